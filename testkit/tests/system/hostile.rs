//! What is not this protocol, or claims what it does not have, is closed and costs nothing; others do not notice.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use corelane_client::TopicSettings;
use corelane_testkit::{Broker, BrokerOptions, full, http_get};

use crate::operations::Metrics;
use crate::support::{PATIENCE, connect, create, publish_numbered, read_all};

const GROWTH_BYTES_MAX: u64 = 10 << 20;

/// A frame's header that claims `frame_bytes` after its first field and `proto_bytes` of protobuf (docs/protocol.md).
fn header(frame_bytes: u32, method: u16, proto_bytes: u32) -> Vec<u8> {
    let mut header = frame_bytes.to_le_bytes().to_vec();
    header.extend(7_u32.to_le_bytes());
    header.extend(method.to_le_bytes());
    header.extend(0_u16.to_le_bytes());
    header.extend(proto_bytes.to_le_bytes());
    header
}

/// Inputs that no client sends, each of which must end with the connection closed.
fn hostile_inputs() -> Vec<(&'static str, Vec<u8>)> {
    let mut inputs = vec![
        ("an HTTP request", b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n".to_vec()),
        ("a TLS hello", [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[0x5a; 600]].concat()),
        ("noise", (0..4_096_u32).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()).collect()),
        ("zeros", vec![0; 64]),
        ("a method that does not exist", [header(12, 0xffff, 0), vec![0; 64]].concat()),
        ("a publish before the greeting", [header(12 + 100, 3, 100), vec![1; 100]].concat()),
    ];
    for length in [0, 1, 11, 1 << 31, u32::MAX, 16 << 20] {
        inputs.push(("a length that cannot be", header(length, 1, 8)));
    }
    for proto_bytes in [1 << 31, u32::MAX, 1 << 20, 13] {
        inputs.push(("a protobuf message longer than its frame", header(12, 1, proto_bytes)));
    }
    inputs.push(("a greeting that is not protobuf", [header(12 + 40, 1, 40), vec![0xff; 40]].concat()));
    inputs
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_protocol_is_closed_and_costs_no_memory() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "undisturbed", 1, TopicSettings::new()).await;
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "undisturbed", 0, 0..100, 100).await;

    let before = broker.rss_bytes();
    // Connections that begin a frame and stop: they may stay for as long as the broker waits for a greeting.
    let halves: Vec<TcpStream> = (0..50)
        .map(|at| {
            let mut stream = TcpStream::connect(broker.addr()).expect("the broker accepts");
            stream.write_all(&header(8 << 20, 1, 64)[..at % 16]).expect("a few bytes can be sent");
            stream
        })
        .collect();
    let rounds = if full() { 200 } else { 5 };
    for _ in 0..rounds {
        for (what, bytes) in hostile_inputs() {
            let mut stream = TcpStream::connect(broker.addr()).expect("the broker accepts");
            stream.set_read_timeout(Some(PATIENCE)).expect("a fresh socket takes options");
            // The broker may close before it has read all: both are fine.
            let _ = stream.write_all(&bytes);
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
                Err(error) => panic!("{what} left the connection open: {error}"),
            }
            assert!(answer.len() < 1_000, "{what} was answered with {} bytes", answer.len());
        }
    }
    let growth = broker.rss_bytes().saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "memory grew by {growth} bytes");
    drop(halves);

    publish_numbered(&producer, "undisturbed", 0, 100..200, 100).await;
    assert_eq!(read_all(&client, "undisturbed").await.len(), 200);
    let health = http_get(broker.http_addr(), "/health/ready", Duration::from_secs(10)).expect("the page comes");
    assert_eq!(health.status, 200);
    // Each is counted and named, and whoever sends many does not fill the log.
    let metrics = Metrics::of(&broker, "");
    let closed = |reason| metrics.count("corelane_connections_closed_total", &[reason]) as usize;
    let closed = closed("reason=\"bad_frame\"") + closed("reason=\"not_the_protocol\"") + closed("reason=\"no_hello\"");
    assert!(closed >= rounds * hostile_inputs().len(), "{closed} of {} counted", rounds * hostile_inputs().len());
    let log = broker.log();
    assert!(log.contains("closed a connection from 127.0.0.1"), "{log}");
    let lines = log.lines().count();
    assert!(lines < 500, "{lines} log lines");
}
