//! A reader that lags while the log goes from under it: it gets the bytes that it was promised, to the last, and then an
//! answer that says what there is.

use std::path::Path;
use std::time::Duration;

use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;
use corelane_testkit::{Broker, BrokerOptions, full, wait_until};
use prost::Message;

use crate::unsent::greet_narrowly;
use crate::wire::{PATIENCE, Wire, fetch, publish, set_of};

const SET_BYTES: usize = 30_000;
const SETS: u64 = 120;
/// Longer than a reader that takes nothing keeps anything of the log in memory (docs/architecture.md).
const LAG: Duration = Duration::from_secs(4);

/// A topic whose segments hold two sets each.
fn create_small(broker: &Broker, name: &str) -> pb::Topic {
    let config = pb::TopicConfig {
        segment_bytes: Some(64 << 10),
        set_bytes_max: Some(32 << 10),
        message_bytes_max: Some(32 << 10),
        ..Default::default()
    };
    let request =
        pb::CreateTopicRequest { name: name.to_owned(), partitions: 1, config: Some(config), ..Default::default() };
    let created: pb::CreateTopicResponse = Wire::greet(broker.addr(), 0).call(Method::CreateTopic, &request, &[]).ok();
    created.topic.expect("the topic that was created")
}

/// Publishes `SETS` sets; answers the log.
fn fill(producer: &mut Wire, topic: &pb::Topic) -> Vec<u8> {
    let mut log = Vec::new();
    for sequence in 0..SETS {
        let set = set_of(&[vec![sequence as u8; SET_BYTES]]);
        producer.call(Method::Publish, &publish(topic, 0, sequence), &set).ok::<pb::PublishResponse>();
        log.extend(set);
    }
    log
}

/// Segments of all the topics of this name.
fn segments(data: &Path, topic: &str) -> usize {
    let mut count = 0;
    for dir in std::fs::read_dir(data).expect("the data directory").flatten() {
        if dir.file_name().to_string_lossy().starts_with(&format!("{topic}~")) {
            let files = std::fs::read_dir(dir.path().join("0")).expect("the partition's directory").flatten();
            count += files.filter(|file| file.file_name().to_string_lossy().ends_with(".log")).count();
        }
    }
    count
}

#[test]
fn a_reader_that_lags_gets_what_it_was_promised_though_it_was_trimmed_and_then_the_valid_range() {
    let broker = Broker::start(BrokerOptions::new().shards(1));
    for round in 0..if full() { 30 } else { 1 } {
        let name = format!("lagging-{round}");
        let topic = create_small(&broker, &name);
        let mut producer = Wire::greet(broker.addr(), 0);
        let log = fill(&mut producer, &topic);
        let mut reader = greet_narrowly(broker.addr());
        reader.send(Method::Fetch, &fetch(&topic, 0, 0, 0), &[]).expect("the broker reads");
        // The answer has begun: what it names is promised.
        reader.stream.peek(&mut [0]).expect("an answer");
        let before = segments(&broker.data_dir(), &name);
        let trim = pb::TrimTopicRequest {
            topic_id: topic.topic_id.clone(),
            partition: 0,
            epoch: topic.partitions[0].epoch,
            position: log.len() as u64,
        };
        let start = producer.call(Method::TrimTopic, &trim, &[]).ok::<pb::TrimTopicResponse>().start;
        assert!(start > log.len() as u64 - (64 << 10), "trimmed to {start} of {}", log.len());
        wait_until("the files to go", PATIENCE, || segments(&broker.data_dir(), &name) < before / 10);
        std::thread::sleep(LAG);

        let answered = reader.receive().expect("what was promised");
        answered.ok::<pb::FetchResponse>();
        println!(
            "{} of {} bytes were promised, in {before} segments of which none is left",
            answered.payload.len(),
            log.len()
        );
        assert!(answered.payload.len() > 1 << 20, "{} bytes fit into the socket", answered.payload.len());
        assert!(answered.payload == log[..answered.payload.len()], "what was promised is not as it was published");
        let behind = answered.payload.len() as u64;
        let answered = reader.call(Method::Fetch, &fetch(&topic, 0, behind.min(start - 1), 0), &[]);
        assert_eq!(answered.status, Status::OutOfRange);
        let error = pb::Error::decode(&answered.proto[..]).expect("an error parses");
        assert_eq!((error.start, error.end), (Some(start), Some(log.len() as u64)), "the valid range");
    }
}
