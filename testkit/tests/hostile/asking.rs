//! Too many, too much, too big a wish: each limit of the broker is reached here, says so in the way that it should, is counted,
//! and lets go again.

use std::io::Write;
use std::net::Shutdown;

use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;
use corelane_testkit::{Broker, BrokerOptions, wait_until};

use crate::wire::{PATIENCE, Wire, closed, create_topic, fetch, metric, publish, set_of};

fn refused(broker: &Broker, limit: &str) -> u64 {
    metric(broker, "corelane_connections_refused_total", &format!("reason=\"{limit}\""))
}

#[test]
fn connections_are_limited_in_all_and_per_address_on_whatever_shard_they_arrive() {
    let limits = ["--connections-max", "20", "--connections-per-address-max", "12"];
    let broker = Broker::start(BrokerOptions::new().shards(2).args(limits));
    assert_eq!(metric(&broker, "corelane_connections_max", ""), 40);
    for shard in 0..2 {
        // Accepted on either shard and handed over to this one: it alone counts.
        let mut served: Vec<Wire> = Vec::new();
        let mut tries = 0;
        while let Ok(wire) = Wire::try_greet(broker.addr(), shard) {
            served.push(wire);
            tries += 1;
            assert!(tries <= 12, "a thirteenth connection of one address is served");
        }
        assert_eq!(served.len(), 12);
        for wire in &mut served {
            assert_eq!(wire.call(Method::Metadata, &pb::MetadataRequest::default(), &[]).status, Status::Ok);
        }
        assert!(refused(&broker, "connections_per_address_max") > 0);
        drop(served);
        wait_until("places to be free", PATIENCE, || Wire::try_greet(broker.addr(), shard).is_ok());
    }
    assert_eq!(refused(&broker, "connections_max"), 0);
}

#[test]
fn long_polls_are_limited_per_shard_and_their_memory_comes_back() {
    const LIMIT: usize = 50_000;
    let broker = Broker::start(BrokerOptions::new().shards(1));
    let topic = create_topic(broker.addr(), "awaited", 1);
    let mut first = Wire::greet(broker.addr(), 0);
    let published = first.call(Method::Publish, &publish(&topic, 0, 0), &set_of(&["x"]));
    let position = published.ok::<pb::PublishResponse>().next_id;
    let before = broker.rss_bytes();
    // A connection takes 1,024.
    let mut waiting: Vec<Wire> = (0..LIMIT.div_ceil(1_000)).map(|_| Wire::greet(broker.addr(), 0)).collect();
    for wire in &mut waiting {
        for _ in 0..1_000 {
            wire.send(Method::Fetch, &fetch(&topic, 0, position, 60_000), &[]).expect("the broker reads");
        }
    }
    wait_until("all to wait", PATIENCE, || metric(&broker, "corelane_long_polls", "") == LIMIT as u64);
    let during = broker.rss_bytes();
    let one_more = first.call(Method::Fetch, &fetch(&topic, 0, position, 60_000), &[]);
    assert_eq!(one_more.status, Status::Busy);
    assert!(metric(&broker, "corelane_busy_total", "") > 0);
    let at_once = first.call(Method::Fetch, &fetch(&topic, 0, position, 0), &[]);
    assert_eq!(at_once.status, Status::Ok, "who does not wait is served");

    // News for all of them.
    first.call(Method::Publish, &publish(&topic, 0, 1), &set_of(&["news"])).ok::<pb::PublishResponse>();
    for wire in &mut waiting {
        for _ in 0..1_000 {
            assert!(!wire.receive().expect("an answer").payload.is_empty());
        }
    }
    drop(waiting);
    wait_until("memory to come back", PATIENCE, || broker.rss_bytes() < before + (24 << 20));
    let after = broker.rss_bytes();
    println!("{LIMIT} long polls: {} KiB before, {} with them, {} after", before >> 10, during >> 10, after >> 10);
    assert_eq!(metric(&broker, "corelane_long_polls", ""), 0);
}

#[test]
fn after_a_half_close_everything_is_answered_that_does_not_wait_for_news() {
    let broker = Broker::start(BrokerOptions::new().shards(2));
    let topic = create_topic(broker.addr(), "asked", 2);
    let shard = topic.partitions[0].shard;
    let mut wire = Wire::greet(broker.addr(), shard);
    let ask = |wire: &mut Wire| -> Vec<u32> {
        let created = pb::CreateTopicRequest { name: "new".to_owned(), partitions: 3, ..Default::default() };
        let found = pb::FindMessageRequest {
            topic_id: topic.topic_id.clone(),
            epoch: topic.partitions[0].epoch,
            target: Some(pb::find_message_request::Target::Latest(true)),
            ..Default::default()
        };
        let asked = [
            wire.send(Method::CreateTopic, &created, &[]),
            wire.send(Method::DescribeTopic, &pb::DescribeTopicRequest { name: "asked".to_owned() }, &[]),
            wire.send(Method::DescribeCluster, &pb::DescribeClusterRequest::default(), &[]),
            wire.send(Method::Publish, &publish(&topic, 0, 0), &set_of(&["x"])),
            wire.send(Method::FindMessage, &found, &[]),
            wire.send(Method::Metadata, &pb::MetadataRequest::default(), &[]),
        ];
        asked.into_iter().map(|sent| sent.expect("the broker reads")).collect()
    };
    let mut asked = ask(&mut wire);
    // This one waits for news, which nobody awaits any more.
    wire.send(Method::Fetch, &fetch(&topic, 1, 0, 60_000), &[]).expect("the broker reads");
    wire.stream.shutdown(Shutdown::Write).expect("a connected socket");
    while !asked.is_empty() {
        let answered = wire.receive().unwrap_or_else(|error| panic!("{error}; not answered: {asked:?}"));
        if let Some(at) = asked.iter().position(|correlation| *correlation == answered.correlation) {
            assert_eq!(answered.status, Status::Ok, "request {}", answered.correlation);
            asked.remove(at);
        }
    }
    wire.until_closed();
}

#[test]
fn a_request_that_is_announced_costs_memory_only_as_it_comes() {
    const CLAIMS: usize = 2_000;
    let broker = Broker::start(BrokerOptions::new().shards(1));
    let _warm = Wire::greet(broker.addr(), 0);
    let mut claiming: Vec<Wire> = (0..CLAIMS).map(|_| Wire::greet(broker.addr(), 0)).collect();
    let before = broker.rss_bytes();
    for wire in &mut claiming {
        // The longest request message there may be, of which ten bytes come.
        let header = corelane_proto::frame::FrameHeader::new(Method::Metadata.code(), 1, 64 << 10, 0);
        wire.stream.write_all(&[&header.encode()[..], &[0; 10]].concat()).expect("sent");
    }
    let growth = broker.rss_bytes().saturating_sub(before);
    println!("{CLAIMS} claims of 64 KiB: {} KiB", growth >> 10);
    assert!(growth < 10 << 20, "{growth} bytes for {CLAIMS} claims");
    let mut other = Wire::greet(broker.addr(), 0);
    assert_eq!(other.call(Method::Metadata, &pb::MetadataRequest::default(), &[]).status, Status::Ok);
    wait_until("the claims to be closed", PATIENCE, || closed(&broker, "frame_late") == CLAIMS as u64);
    assert!(claiming.iter_mut().all(|wire| wire.until_closed().is_empty()));
}
