//! The healthy directory: how it was made, what lies in it, and that every later version opens it.

use std::time::Duration;

use corelane_client::{Client, Compression, Find, Record, Start, TopicSettings};
use corelane_proto::message::MessageParts;
use corelane_proto::set::SetBuilder;
use corelane_testkit::{Broker, BrokerOptions, TestDir};

use super::fixture::{Tree, healthy, is_log, keep_healthy, lay, read_tree, stored};
use super::{TOPIC, kinds, read_partition, verify};
use crate::support::{PATIENCE, connect, create, details, eventually, soon};

/// A value of a message.
fn value(number: u64) -> Vec<u8> {
    if number == 12 {
        // A value that contains whole messages.
        let mut inside = SetBuilder::new();
        for phantom in 0..2 {
            let value = format!("phantom {phantom}");
            inside.push(&MessageParts { value: Some(value.as_bytes()), ..MessageParts::default() }).expect("a message");
        }
        return [b"message 12: ", &inside.finish()[..], b" and so on"].concat();
    }
    format!("message {number:02}: {}", "x".repeat(number as usize % 7 + 20)).into_bytes()
}

/// Publishes messages `numbers` as one set.
async fn publish_set(client: &Client, partition: u32, numbers: std::ops::Range<u64>, compression: Compression) {
    let producer = client.producer().linger(Duration::from_hours(1)).compression(compression).build();
    let producer = producer.expect("a producer");
    for number in numbers {
        let (key, value) = (format!("key-{}", number % 3), value(number));
        let record = Record::to(TOPIC).partition(partition).key(key.as_bytes()).value(&value);
        let record = record.timestamp_ms(1_700_000_000_000 + number as i64);
        drop(producer.send(record).await.expect("a message is taken"));
    }
    assert!(producer.close(PATIENCE).await.is_complete());
}

async fn make() -> Tree {
    let dir = TestDir::new("healthy");
    let mut broker = Broker::start(BrokerOptions::new().data(dir.join("data")).shards(2));
    let client = connect(&broker).await;
    let mut settings = TopicSettings::new().segment_bytes(8 << 10).set_bytes_max(4 << 10).message_bytes_max(4 << 10);
    settings.retention_ms = Some(0);
    create(&client, TOPIC, 2, settings.segment_age(Duration::from_millis(500))).await;
    publish_set(&client, 1, 19..22, Compression::None).await;
    let sets: [&[(std::ops::Range<u64>, Compression)]; 3] = [
        &[(0..3, Compression::None), (3..5, Compression::None)],
        &[(5..10, Compression::Lz4), (10..12, Compression::None)],
        &[(12..14, Compression::None), (14..15, Compression::None)],
    ];
    for (segment, sets) in sets.into_iter().enumerate() {
        for (numbers, compression) in sets {
            publish_set(&client, 0, numbers.clone(), *compression).await;
        }
        let wanted = segment as u64 + 2;
        eventually("the segment is closed", async || details(&client, TOPIC).await[0].segments == wanted).await;
    }
    let long = TopicSettings::new().segment_age(Duration::from_hours(24 * 365));
    client.admin().alter_topic(TOPIC, long).await.expect("a topic can be altered");
    publish_set(&client, 0, 15..17, Compression::None).await;
    publish_set(&client, 0, 17..19, Compression::None).await;
    drop(client);
    broker.stop();
    let mut tree = read_tree(&dir.join("data"));
    tree.retain(|path, _| path != "lock" && !path.contains("next.prepared"));
    for (_, content) in tree.iter_mut().filter(|(path, _)| is_log(path)) {
        // What was allocated ahead.
        content.truncate(content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    }
    tree
}

/// Run with `CORELANE_MAKE_FIXTURES=healthy`, it replaces the kept directory. Nothing else ever should: it is there so
/// that what was written once opens for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_the_first_format_opens_and_reads_as_it_was_written() {
    if std::env::var_os("CORELANE_MAKE_FIXTURES").is_some_and(|what| what == "healthy") {
        keep_healthy(make().await);
    }
    let dir = TestDir::new("golden");
    let data = dir.join("data");
    lay(&healthy(), &data);
    let (status, report) = verify(&data);
    assert_eq!((status, kinds(&report).len()), (0, 0), "{report}");
    let expected = |partition, numbers: std::ops::Range<u64>| {
        let got: Vec<_> = stored(&healthy(), partition).into_iter().flat_map(|stored| stored.got).collect();
        let values: Vec<String> = numbers.map(|number| String::from_utf8_lossy(&value(number)).into_owned()).collect();
        assert_eq!(got.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>(), values);
        got
    };
    let mut broker = Broker::start(BrokerOptions::new().data(&data).shards(2));
    for life in 0..2_u64 {
        let client = connect(&broker).await;
        let (got, stats) = read_partition(&client, 0, Start::Earliest).await;
        let before = expected(0, 0..19);
        assert_eq!((&got[..before.len()], stats.bad_messages), (&before[..], 0));
        assert_eq!(got.len() as u64, before.len() as u64 + life, "what was published since");
        assert_eq!(read_partition(&client, 1, Start::Earliest).await.0[..3], expected(1, 19..22)[..3]);
        let time = Find::TimeMs(1_700_000_000_012);
        let found = soon("an answer", client.admin().find(TOPIC, 0, time)).await.expect("a place");
        assert_eq!(found.position, before[12].0, "by time");
        let more = b"published since";
        let producer = client.producer().build().expect("a producer");
        let sent = producer.send(Record::to(TOPIC).partition(0).value(more)).await.expect("taken");
        soon("an acknowledgement", sent).await.expect("acknowledged");
        drop(client);
        if life == 0 {
            broker.restart();
        }
    }
}
