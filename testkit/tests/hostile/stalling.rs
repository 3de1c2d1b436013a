//! Clients that begin and do not go on: each is closed in its time and counted, and holds nobody up until then.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use corelane_proto::frame::Method;
use corelane_proto::pb;
use corelane_testkit::{Broker, BrokerOptions, full, wait_until};

use crate::wire::{PATIENCE, Wire, closed, create_topic, fetch, frame, hello, publish, set_of};

/// Of the largest set that a topic takes by default, so many bytes come.
fn claim(topic: &pb::Topic, sent_bytes: usize) -> Vec<u8> {
    let mut claim = frame(Method::Publish, 1, &publish(topic, 0, 0), &vec![0x5a; 4 << 20]);
    claim.truncate(claim.len() - (4 << 20) + sent_bytes);
    claim
}

#[test]
fn whoever_begins_and_does_not_go_on_is_closed_in_time_and_counted() {
    let broker = Broker::start(BrokerOptions::new().shards(1));
    let topic = create_topic(broker.addr(), "stalled", 1);
    let began = Instant::now();
    let mut silent = Wire::open(broker.addr());
    let mut half_a_hello = Wire::open(broker.addr());
    half_a_hello.stream.write_all(&frame(Method::Hello, 1, &hello(0), &[])[..20]).expect("sent");
    let mut half_a_head = Wire::greet(broker.addr(), 0);
    half_a_head.stream.write_all(&[9, 0, 0]).expect("sent");
    let mut half_a_set = Wire::greet(broker.addr(), 0);
    half_a_set.stream.write_all(&claim(&topic, 3)).expect("sent");
    // A byte a second.
    let dripping = Wire::greet(broker.addr(), 0).stream;
    let drip = std::thread::spawn(move || drip(dripping, began));
    let mut stuck = full().then(|| stuck_reader(&broker, &topic));

    assert!(silent.until_closed().is_empty() && half_a_hello.until_closed().is_empty());
    assert_eq!(closed(&broker, "no_hello"), 2);
    println!("without a Hello: {:?}", began.elapsed());
    assert!(half_a_head.until_closed().is_empty() && half_a_set.until_closed().is_empty());
    println!("a frame that does not come: {:?}", began.elapsed());
    drip.join().expect("the drip is closed too");
    wait_until("all to be counted", PATIENCE, || closed(&broker, "frame_late") == 3);
    if let Some(stuck) = &mut stuck {
        wait_until("the stuck reader to be counted", 2 * PATIENCE, || closed(&broker, "stuck_reader") == 1);
        println!("a reader that takes nothing: {:?}", began.elapsed());
        stuck.until_closed();
    }
    let log = broker.log();
    for what in ["no Hello within", "a frame does not arrive"] {
        assert!(log.contains(what), "the log says {what:?}");
    }
}

#[test]
fn a_connection_on_which_nothing_happens_is_closed_and_one_that_waits_for_news_is_not() {
    let broker = Broker::start(BrokerOptions::new().shards(1).args(["--idle-timeout", "2s"]));
    let topic = create_topic(broker.addr(), "quiet", 1);
    let mut waiting = Wire::greet(broker.addr(), 0);
    waiting.send(Method::Fetch, &fetch(&topic, 0, 0, 60_000), &[]).expect("the broker reads");
    let mut idle = Wire::greet(broker.addr(), 0);
    assert!(idle.until_closed().is_empty());
    assert!(closed(&broker, "idle") > 0);
    let mut producer = Wire::greet(broker.addr(), 0);
    let set = set_of(&["news"]);
    producer.call(Method::Publish, &publish(&topic, 0, 0), &set).ok::<pb::PublishResponse>();
    assert!(waiting.receive().expect("an answer").payload == set);
}

fn drip(mut stream: TcpStream, began: Instant) {
    let bytes = frame(Method::Metadata, 1, &pb::MetadataRequest { topics: vec!["t".repeat(200)] }, &[]);
    for byte in bytes {
        if stream.write_all(&[byte]).is_err() {
            println!("a byte a second: {:?}", began.elapsed());
            return;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    panic!("a byte a second went on for {:?}", began.elapsed());
}

/// A reader that asks for more than its socket holds, and reads nothing.
fn stuck_reader(broker: &Broker, topic: &pb::Topic) -> Wire {
    let mut producer = Wire::greet(broker.addr(), 0);
    for sequence in 0..16 {
        let answered = producer.call(Method::Publish, &publish(topic, 0, sequence), &set_of(&[vec![1; 1_000_000]]));
        answered.ok::<pb::PublishResponse>();
    }
    let mut reader = Wire::greet(broker.addr(), 0);
    for at in 0..16 {
        reader.send(Method::Fetch, &fetch(topic, 0, at * 1_000_024, 0), &[]).expect("sent");
    }
    reader
}

#[test]
fn sets_that_are_announced_and_do_not_come_hold_up_nobody() {
    let broker = Broker::start(BrokerOptions::new().shards(1));
    let (claimed, other) = (create_topic(broker.addr(), "claimed", 1), create_topic(broker.addr(), "other", 1));
    let claims = |sent_bytes: usize| -> Vec<Wire> {
        let claim = claim(&claimed, sent_bytes);
        let claiming = (0..40).map(|_| {
            let mut wire = Wire::greet(broker.addr(), 0);
            wire.stream.write_all(&claim).expect("sent");
            wire
        });
        claiming.collect()
    };
    let mut producer = Wire::greet(broker.addr(), 0);
    let mut publish_large = |sequence: u64| {
        let began = Instant::now();
        let answered = producer.call(Method::Publish, &publish(&other, 0, sequence), &set_of(&[vec![1; 1_000_000]]));
        answered.ok::<pb::PublishResponse>();
        began.elapsed()
    };
    // More than the arena holds, three bytes of each: not one of them has to go before there is room for what comes.
    let began = Instant::now();
    let announced = claims(3);
    let took = publish_large(0);
    println!("beside sets that are only announced: {took:?}");
    // A machine that is slower than that has given the broker reason to close them: memory is scarce, they are silent.
    if began.elapsed() < Duration::from_secs(2) {
        assert_eq!(closed(&broker, "frame_late"), 0, "a claim had to be closed first");
    }
    drop(announced);
    // Enough of each that it is believed: those that hold up others are closed before their time.
    let believed = claims(200_000);
    let took = publish_large(1);
    println!("beside sets that begin to come: {took:?}, {} were closed", closed(&broker, "frame_late"));
    drop(believed);
    // From now on the broker takes no announcement for true.
    let (began, closed_before) = (Instant::now(), closed(&broker, "frame_late"));
    let believed_no_more = claims(200_000);
    println!("and again: {:?}", publish_large(2));
    if began.elapsed() < Duration::from_secs(1) {
        assert_eq!(closed(&broker, "frame_late"), closed_before, "a claim had to be closed first");
    }
    drop(believed_no_more);
    publish_large(3);
}
