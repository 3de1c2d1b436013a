//! Topics come and go: names, deletion, another topic of the same name.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use corelane_client::{Client, ConsumeError, NewTopic, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, full, run};

use crate::support::{
    PATIENCE, assert_run, connect, create, detail, eventually, from_start, next, number, numbers_of, publish_numbered,
    read_all, soon,
};

#[tokio::test(flavor = "multi_thread")]
async fn every_topic_name_is_usable_and_deletable_or_refused_with_one_clear_error() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    let home = broker.data_dir().parent().expect("a data directory has a parent").to_owned();
    let beside = entries(&home);

    let longest = "n".repeat(200);
    let usable = ["a", "A", "-leading", "--", "...", "..a", "a..b", "_", "0", "CON", "a.log", longest.as_str()];
    let producer = client.producer().build().expect("a producer");
    for name in usable {
        create(&client, name, 2, TopicSettings::new()).await;
        publish_numbered(&producer, name, 1, 0..3, 50).await;
        let numbers = numbers_of(&read_all(&client, name).await);
        assert_eq!(numbers, [0, 1, 2], "{name}");
    }
    let listed: BTreeSet<String> =
        client.admin().list_topics().await.expect("a list").into_iter().map(|topic| topic.name).collect();
    assert_eq!(listed, usable.iter().map(ToString::to_string).collect());
    for name in usable {
        client.admin().delete_topic(name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    assert!(client.admin().list_topics().await.expect("a list").is_empty());

    let too_long = [201, 249, 255, 256, 10_000].map(|bytes| "n".repeat(bytes));
    let refused =
        ["", ".", "..", "a/b", "/", "../a", "a b", " ", "a\0b", "é", "日本", "a\n", "a\\b", "a:b", "~", "a~b"];
    for name in refused.into_iter().chain(too_long.iter().map(String::as_str)) {
        let error = client.admin().create_topic(NewTopic::named(name)).await.expect_err(name).to_string();
        assert!(!error.contains('\n') && error.len() < 500, "one clear line: {error}");
    }
    assert!(client.admin().list_topics().await.expect("a list").is_empty());
    assert_eq!(entries(&home), beside, "nothing is written outside the data directory");
}

fn entries(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_topic_ends_its_readers_and_a_new_one_of_its_name_begins_empty() {
    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "again", 1, TopicSettings::new()).await;
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "again", 0, 0..100, 200).await;
    let mut reader = from_start(&client, "again").await;
    for at in 0..100 {
        assert_eq!(number(&next(&mut reader).await.value), at);
    }
    let first_id = client.admin().delete_topic("again").await.expect("a topic can be deleted");
    match soon("the reader to end", reader.next()).await {
        Some(Err(ConsumeError::TopicDeleted { topic, .. })) => assert_eq!(topic, "again"),
        other => panic!("a reader of a deleted topic got {other:?}"),
    }
    let error = client.admin().describe_topic("again").await.expect_err("it is gone");
    assert!(!error.is_retryable(), "{error}");

    create(&client, "again", 1, TopicSettings::new()).await;
    assert!(read_all(&client, "again").await.is_empty());
    // The old producer, which knew the old topic, must not hand its numbers to the new one unnoticed: a new producer.
    let producer = client.producer().build().expect("a producer");
    let ids = publish_numbered(&producer, "again", 0, 1_000..1_010, 200).await;
    assert_eq!(ids[0], 0, "a new topic's ids begin at 0");
    broker.kill9();
    broker.restart();
    let client = connect(&broker).await;
    let numbers = numbers_of(&read_all(&client, "again").await);
    assert_run(&numbers, 1_000..1_010);
    let topic_id = client.admin().describe_topic("again").await.expect("a description").topic.topic_id;
    assert_ne!(topic_id, first_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_come_and_go_leave_no_file_no_descriptor_and_no_memory() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    let rounds = if full() { 500 } else { 60 };
    let warm_up = 10;
    come_and_go(&client, 0..warm_up).await;
    let before = broker.stats();
    come_and_go(&client, warm_up..rounds).await;
    eventually("descriptors to be closed", async || broker.descriptors() <= before.descriptors + 4).await;
    eventually("files to be removed", async || topic_directories(&broker.data_dir()) == 0).await;
    let growth = broker.rss_bytes().saturating_sub(before.rss_bytes);
    assert!(growth < 8 << 20, "memory grew by {growth} bytes in {rounds} topics");
}

/// Creates a topic for each round, publishes, leaves a reader waiting at its end, and deletes it under the reader.
async fn come_and_go(client: &Client, rounds: Range<u32>) {
    let mut readers = Vec::new();
    for round in rounds {
        let topic = format!("passing-{round}");
        create(client, &topic, 2, TopicSettings::new()).await;
        let producer = client.producer().build().expect("a producer");
        publish_numbered(&producer, &topic, 0, 0..20, 1_000).await;
        let mut reader = from_start(client, &topic).await;
        for at in 0..20 {
            assert_eq!(number(&next(&mut reader).await.value), at);
        }
        readers.push(tokio::spawn(async move { reader.next().await }));
        client.admin().delete_topic(&topic).await.expect("a topic can be deleted");
        producer.close(PATIENCE).await;
    }
    for reader in readers {
        match soon("an open fetch to end", reader).await.expect("the reader") {
            None | Some(Err(ConsumeError::TopicDeleted { .. })) => {}
            other => panic!("the open fetch of a deleted topic ended with {other:?}"),
        }
    }
}

/// Directories of topics, those that are being removed included; all else in a data directory are files.
fn topic_directories(data: &Path) -> usize {
    let entries = std::fs::read_dir(data).expect("the data directory can be listed");
    entries.flatten().filter(|entry| entry.path().is_dir()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_names_the_command_that_creates_an_unknown_topic() {
    let broker = Broker::start(BrokerOptions::new());
    let finished = run(broker.cli().args(["consume", "nowhere", "--exit-at-end"]), PATIENCE);
    assert!(!finished.status.success());
    let (_, command) = finished.stderr.trim().split_once("corelane topic create").expect("the command is named");
    run(broker.cli().args(["topic", "create"]).args(command.split_whitespace()), PATIENCE).success();
    run(broker.cli().args(["consume", "nowhere", "--exit-at-end"]), PATIENCE).success();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_roll_never_throws_out_a_reader_of_the_tail() {
    const PRODUCERS: u64 = 3;
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "rolling", 1, crate::support::small_segments()).await;
    let messages = if full() { 500_000 } else { 21_000 };
    // Of each producer its own numbers, in order.
    let each = messages / PRODUCERS;
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut reader = from_start(&client, "rolling").await;
        readers.push(tokio::spawn(async move {
            let mut expected: Vec<u64> = (0..PRODUCERS).map(|producer| producer * each).collect();
            for _ in 0..PRODUCERS * each {
                let number = number(&next(&mut reader).await.value);
                let expected = &mut expected[(number / each) as usize];
                assert_eq!(number, *expected);
                *expected += 1;
            }
        }));
    }
    let publishing = (0..PRODUCERS).map(|producer| {
        let numbers = producer * each..(producer + 1) * each;
        let producer = client.producer().batch_bytes(8 << 10).build().expect("a producer");
        tokio::spawn(async move {
            for first in numbers.clone().step_by(1_000) {
                let numbers = first..(first + 1_000).min(numbers.end);
                publish_numbered(&producer, "rolling", 0, numbers, 300).await;
            }
        })
    });
    for producer in publishing.collect::<Vec<_>>() {
        producer.await.expect("a producer");
    }
    for reader in readers {
        crate::support::within(Duration::from_mins(5), "a reader to see all", reader).await.expect("a reader");
    }
    let segments = detail(&client, "rolling").await.segments;
    assert!(segments > messages / 250, "only {segments} segments");
}
