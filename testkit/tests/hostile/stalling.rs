//! Clients that begin and do not go on: each is closed in its time and counted, and holds nobody up until then.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use corelane_proto::frame::Method;
use corelane_proto::pb;
use corelane_testkit::{Broker, BrokerOptions, full, wait_until};

use crate::unsent::greet_narrowly;
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
    let bytes =
        frame(Method::Metadata, 1, &pb::MetadataRequest { topics: vec!["t".repeat(200)], ..Default::default() }, &[]);
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

/// What a machine that is busy may take for what takes milliseconds, and yet the broker has no reason to close what is
/// silent: half of its patience where memory is scarce.
const AT_ONCE: Duration = Duration::from_secs(1);
/// So often at most, until it was at once.
const TRIES: u32 = 10;

/// Forty sets of which so many bytes come, in all more than the arena holds; and what publishes beside them.
struct Claims {
    broker: Broker,
    claimed: pb::Topic,
    other: pb::Topic,
    producer: Wire,
    sequence: u64,
}

impl Claims {
    fn start() -> Claims {
        let broker = Broker::start(BrokerOptions::new().shards(1));
        let (claimed, other) = (create_topic(broker.addr(), "claimed", 1), create_topic(broker.addr(), "other", 1));
        let producer = Wire::greet(broker.addr(), 0);
        Claims { broker, claimed, other, producer, sequence: 0 }
    }

    fn make(&self, sent_bytes: usize) -> Vec<Wire> {
        let claim = claim(&self.claimed, sent_bytes);
        let claiming = (0..40).map(|_| {
            let mut wire = Wire::greet(self.broker.addr(), 0);
            wire.stream.write_all(&claim).expect("sent");
            wire
        });
        claiming.collect()
    }

    fn publish_large(&mut self) -> Duration {
        let began = Instant::now();
        let (request, set) = (publish(&self.other, 0, self.sequence), set_of(&[vec![1; 1_000_000]]));
        self.producer.call(Method::Publish, &request, &set).ok::<pb::PublishResponse>();
        self.sequence += 1;
        began.elapsed()
    }

    fn closed(&self) -> u64 {
        closed(&self.broker, "frame_late")
    }
}

#[test]
fn sets_that_are_announced_and_do_not_come_hold_up_nobody() {
    // Three bytes of each: not one of them has to go before there is room for what comes. Where that took longer, it is
    // tried again: the broker has had reason to close them then, memory is scarce and they are silent.
    for at in 1..=TRIES {
        let mut claims = Claims::start();
        let began = Instant::now();
        let announced = claims.make(3);
        let took = claims.publish_large();
        let closed = claims.closed();
        println!("beside sets that are only announced: {took:?}, {closed} were closed");
        drop(announced);
        if began.elapsed() < AT_ONCE {
            assert_eq!(closed, 0, "a claim had to be closed first");
            break;
        }
        println!("all together {:?}: too slow to tell, try {at} of {TRIES}", began.elapsed());
    }
}

#[test]
fn sets_that_begin_to_come_and_do_not_go_on_hold_up_others_once_at_most() {
    for at in 1..=TRIES {
        let mut claims = Claims::start();
        // Enough of each that it is believed: those that hold up others are closed before their time.
        let believed = claims.make(200_000);
        let took = claims.publish_large();
        println!("beside sets that begin to come: {took:?}, {} were closed", claims.closed());
        drop(believed);
        // From now on the broker takes no announcement for true.
        let (began, before) = (Instant::now(), claims.closed());
        let believed_no_more = claims.make(200_000);
        println!("and again: {:?}", claims.publish_large());
        let closed = claims.closed() - before;
        drop(believed_no_more);
        claims.publish_large();
        if began.elapsed() < AT_ONCE {
            assert_eq!(closed, 0, "a claim had to be closed first");
            break;
        }
        println!("all together {:?}: too slow to tell, try {at} of {TRIES}", began.elapsed());
    }
}

#[test]
fn readers_that_take_nothing_of_what_was_read_for_them_do_not_hold_up_those_that_read() {
    // What reads of files may hold is a quarter of the arena: 16 pieces at most.
    const STALLED: usize = 24;
    // More than the arena holds.
    const SETS: u64 = 40;
    let broker = Broker::start(BrokerOptions::new().shards(1).args(["--arena-bytes", "32MiB"]));
    let (topic, hot) = (create_topic(broker.addr(), "cold", 1), create_topic(broker.addr(), "hot", 1));
    let mut producer = Wire::greet(broker.addr(), 0);
    let set = set_of(&[vec![1; 1_000_000]]);
    for topic in [&topic, &hot] {
        for sequence in 0..SETS {
            producer.call(Method::Publish, &publish(topic, 0, sequence), &set).ok::<pb::PublishResponse>();
        }
    }
    for at in 1..=TRIES {
        let began = Instant::now();
        // Once they hold all of it, each further one waits as well before its first answer begins.
        let stalled = (0..STALLED).map(|_| {
            let mut reader = greet_narrowly(broker.addr());
            for first in 0..8 {
                reader
                    .send(Method::Fetch, &fetch(&topic, 0, first * set.len() as u64, 0), &[])
                    .expect("the broker reads");
            }
            reader.stream.peek(&mut [0]).expect("an answer begins");
            reader
        });
        let stalled: Vec<Wire> = stalled.collect();
        for first in 0..4 {
            let request = fetch(&topic, 0, first * set.len() as u64, 0);
            let answered = Wire::greet(broker.addr(), 0).call(Method::Fetch, &request, &[]);
            assert!(answered.payload.chunks(set.len()).all(|got| got == &set[..got.len()]));
        }
        let took = began.elapsed();
        println!("beside readers that take nothing: {took:?}");
        // One that was passed over goes on, and gets every byte.
        let mut reader = stalled.into_iter().next().expect("one of them");
        for _ in 0..8 {
            let payload = reader.receive().expect("an answer").payload;
            assert_eq!(payload.len(), 4 << 20);
            assert!(payload.chunks(set.len()).all(|got| got == &set[..got.len()]));
        }
        // Where they keep it for as long as stuck readers may, this takes one to two seconds.
        if took < AT_ONCE / 2 {
            return;
        }
        assert!(at < TRIES, "who reads waits for those that do not, {TRIES} times of {TRIES}");
        println!("too slow to tell, try {at} of {TRIES}");
    }
}
