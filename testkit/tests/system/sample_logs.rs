//! Real logs of sixteen systems (CRLF line ends, odd bytes, empty lines, no newline at the end) go in and come back.

use std::collections::HashMap;
use std::path::Path;

use corelane_client::{Client, Compression, Record, TopicSettings, partition_for_key};
use corelane_testkit::{Broker, BrokerOptions, sample_logs, skip};

use crate::support::{PATIENCE, Seen, connect, create, read_all};

const CODECS: [Compression; 5] =
    [Compression::None, Compression::Lz4, Compression::Zstd, Compression::Snappy, Compression::Gzip];

#[tokio::test(flavor = "multi_thread")]
async fn sample_logs_come_back_in_order_from_one_partition() {
    let Some(logs) = sample_logs() else {
        return skip("sample_logs_come_back_in_order_from_one_partition", "the sample logs are not on this machine");
    };
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    for log in logs {
        let bytes = std::fs::read(&log).expect("a sample log can be read");
        let lines = lines(&bytes);
        for codec in CODECS {
            let topic = topic_name(&log, codec);
            create(&client, &topic, 1, TopicSettings::new()).await;
            publish(&client, &topic, codec, &lines, |_| None).await;
            let seen = read_all(&client, &topic).await;
            assert!(joined(&seen) == with_last_newline(&bytes), "{topic} is not as published");
            assert!(seen.windows(2).all(|pair| pair[0].position < pair[1].position), "{topic}: positions grow");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_logs_come_back_whole_from_eight_partitions_and_each_key_in_order() {
    let Some(logs) = sample_logs() else {
        return skip(
            "sample_logs_come_back_whole_from_eight_partitions_and_each_key_in_order",
            "the sample logs are not on this machine",
        );
    };
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    for log in logs {
        let bytes = std::fs::read(&log).expect("a sample log can be read");
        let lines = lines(&bytes);
        let mut published: HashMap<&[u8], Vec<&[u8]>> = HashMap::new();
        for line in &lines {
            published.entry(key(line)).or_default().push(line);
        }
        for codec in CODECS {
            let topic = topic_name(&log, codec);
            create(&client, &topic, 8, TopicSettings::new()).await;
            publish(&client, &topic, codec, &lines, |line| Some(key(line))).await;
            let seen = read_all(&client, &topic).await;
            let mut consumed: HashMap<&[u8], Vec<&[u8]>> = HashMap::new();
            for message in &seen {
                let key = message.key.as_deref().expect("every message has a key");
                assert_eq!(message.partition, partition_for_key(key, 8), "{topic}: keys go where their hash says");
                consumed.entry(key).or_default().push(&message.value);
            }
            assert!(consumed == published, "{topic} is not as published");
        }
    }
}

fn topic_name(log: &Path, codec: Compression) -> String {
    format!("{}-{codec:?}", log.file_stem().expect("a log has a name").to_string_lossy())
}

/// Lines without their newlines; a carriage return before one belongs to the line.
fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|byte| *byte == b'\n').collect()
}

/// The line's third word, which many lines share: a level, a time, a process, or nothing.
fn key(line: &[u8]) -> &[u8] {
    line.split(|byte| *byte == b' ').nth(2).unwrap_or_default()
}

fn joined(seen: &[Seen]) -> Vec<u8> {
    seen.iter().flat_map(|message| message.value.iter().copied().chain([b'\n'])).collect()
}

fn with_last_newline(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.last() != Some(&b'\n') {
        bytes.push(b'\n');
    }
    bytes
}

async fn publish<'a>(
    client: &Client,
    topic: &str,
    codec: Compression,
    lines: &[&'a [u8]],
    key: impl Fn(&'a [u8]) -> Option<&'a [u8]>,
) {
    let producer = client.producer().compression(codec).build().expect("a producer");
    for line in lines {
        let mut record = Record::to(topic).value(line);
        if let Some(key) = key(line) {
            record = record.key(key);
        }
        drop(producer.send(record).await.expect("a line is taken"));
    }
    let report = producer.close(PATIENCE).await;
    assert!(report.is_complete(), "{topic}: {report:?}");
}
