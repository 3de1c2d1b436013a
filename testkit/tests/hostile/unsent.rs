//! Readers that ask for much and take nothing: what waits to be sent to all of them is bounded per shard. At the bound long
//! answers are refused, whoever is stuck is closed early, everybody else is served, and the memory comes back.

use std::net::{SocketAddr, TcpStream};

use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;
use corelane_testkit::{Broker, BrokerOptions, wait_until};
use prost::Message;
use socket2::{Domain, Socket, Type};

use crate::fuzz::steady::Steady;
use crate::wire::{PATIENCE, Wire, closed, create_topic, hello, metric};

/// Bytes that wait to be sent on all connections of a shard and do not lie in the log (docs/architecture.md).
const BOUND_BYTES: u64 = 64 << 20;
/// No answer here is longer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// How many connections it may take: each holds 256 KiB of answers, and what the kernel takes besides.
const CONNECTIONS_MAX: usize = 500;
const REQUESTS_EACH: usize = 40;

/// A client whose socket takes next to nothing that it does not read.
pub(crate) fn greet_narrowly(addr: SocketAddr) -> Wire {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_tcp_mss(536).expect("a fresh socket takes options");
    socket.set_recv_buffer_size(4 << 10).expect("a fresh socket takes options");
    socket.connect(&addr.into()).expect("the broker listens");
    let mut wire = Wire::over(TcpStream::from(socket));
    wire.call(Method::Hello, &hello(0), &[]).ok::<pb::HelloResponse>();
    wire
}

fn waiting_bytes(broker: &Broker) -> u64 {
    metric(broker, "corelane_outgoing_bytes", "")
}

fn busy(broker: &Broker) -> u64 {
    metric(broker, "corelane_busy_total", "")
}

/// Whether a client that takes its answers is told what there is.
fn is_told(wire: &mut Wire) -> bool {
    wire.call(Method::Metadata, &pb::MetadataRequest::default(), &[]).status == Status::Ok
}

/// Nothing waits any more, whoever asks is answered, and the memory has come back.
fn assert_all_is_as_before(broker: &Broker, resident_before: u64) {
    let mut wire = Wire::greet(broker.addr(), 0);
    wait_until("long answers to be given again", PATIENCE, || is_told(&mut wire));
    wait_until("nothing to wait any more", PATIENCE, || waiting_bytes(broker) < ANSWER_BYTES_MAX);
    wait_until("memory to come back", PATIENCE, || broker.rss_bytes() < resident_before + (24 << 20));
    assert!(closed(broker, "stuck_reader") > 0, "whoever is stuck is closed");
}

#[test]
fn answers_that_nobody_takes_are_bounded_per_shard_and_hold_up_nobody_else() {
    let broker = Broker::start(BrokerOptions::new().shards(1));
    for at in 0..64 {
        create_topic(broker.addr(), &format!("{at:0190}"), 1);
    }
    let steady = Steady::start(broker.addr(), "steady");
    let (resident_before, busy_before) = (broker.rss_bytes(), busy(&broker));
    let mut stalled = Vec::new();
    let mut most = 0;
    while busy(&broker) == busy_before {
        assert!(stalled.len() < CONNECTIONS_MAX, "{} bytes wait, and no bound", waiting_bytes(&broker));
        for _ in 0..4 {
            let mut wire = greet_narrowly(broker.addr());
            for _ in 0..REQUESTS_EACH {
                wire.send(Method::Metadata, &pb::MetadataRequest::default(), &[]).expect("the broker reads");
            }
            stalled.push(wire);
        }
        most = most.max(waiting_bytes(&broker));
    }
    let resident = broker.rss_bytes();
    println!(
        "{} connections, {} KiB waited at most; memory {} KiB before, {} then",
        stalled.len(),
        most >> 10,
        resident_before >> 10,
        resident >> 10
    );
    assert!(most > BOUND_BYTES / 2, "refused with {most} bytes waiting");
    assert!(most < BOUND_BYTES + ANSWER_BYTES_MAX, "{most} bytes wait");

    // One that was not stuck for long reads on: its answers are whole, or refused as they should be.
    let mut statuses = Vec::new();
    for mut wire in stalled.drain(stalled.len() - 4..) {
        for _ in 0..REQUESTS_EACH {
            let Ok(answered) = wire.receive() else { break };
            if answered.status == Status::Ok {
                assert_eq!(answered.ok::<pb::MetadataResponse>().topics.len(), 65);
            }
            statuses.push(answered.status);
        }
    }
    assert!(statuses.iter().all(|status| matches!(status, Status::Ok | Status::Busy)), "{statuses:?}");
    assert!(statuses.contains(&Status::Busy), "nobody was told");
    wait_until("those that are stuck to be closed", PATIENCE, || closed(&broker, "stuck_reader") > 0);
    let seen = steady.stop(broker.addr());
    println!("the client beside: {} rounds, the longest {:?}", seen.rounds, seen.longest);
    drop(stalled);
    assert_all_is_as_before(&broker, resident_before);
}

#[test]
fn descriptions_that_are_under_way_are_few_and_count_once_they_are_there() {
    const PARTITIONS: u32 = 128;
    const REQUESTS: usize = 1_000;
    let broker = Broker::start(BrokerOptions::new().shards(1));
    create_topic(broker.addr(), "wide", PARTITIONS);
    let request = pb::DescribeTopicRequest { name: "wide".to_owned() };
    let answer = Wire::greet(broker.addr(), 0).call(Method::DescribeTopic, &request, &[]);
    let answer_bytes = answer.ok::<pb::DescribeTopicResponse>().encoded_len() as u64;
    // Asked for at once they are more than twice the bound.
    let connections = 1 + 2 * BOUND_BYTES as usize / (REQUESTS * answer_bytes as usize);
    let (resident_before, busy_before) = (broker.rss_bytes(), busy(&broker));
    let mut stalled: Vec<Wire> = (0..connections).map(|_| greet_narrowly(broker.addr())).collect();
    for wire in &mut stalled {
        for _ in 0..REQUESTS {
            wire.send(Method::DescribeTopic, &request, &[]).expect("the broker reads");
        }
    }
    let (mut most, mut resident) = (0, 0);
    wait_until("the bound", PATIENCE, || {
        most = most.max(waiting_bytes(&broker));
        resident = resident.max(broker.rss_bytes());
        busy(&broker) > busy_before
    });
    most = most.max(waiting_bytes(&broker));
    println!(
        "{connections} connections, answers of {answer_bytes} bytes, {} KiB waited at most; memory {} KiB before, {} then",
        most >> 10,
        resident_before >> 10,
        resident >> 10
    );
    // Those that had a seat, and a line for each that was refused.
    let beyond = 16 * answer_bytes + (connections * REQUESTS * 128) as u64;
    assert!(most < BOUND_BYTES + beyond && beyond < BOUND_BYTES / 5, "{most} bytes wait");
    drop(stalled);
    let mut wire = Wire::greet(broker.addr(), 0);
    wait_until("long answers to be given again", PATIENCE, || is_told(&mut wire));
}
