//! Old messages go, new settings count at once, and a reader that was overtaken hears of it.

use std::cell::Cell;
use std::time::Duration;

use corelane_client::{Client, ConsumeError, OutOfRange, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, full};

use crate::support::{
    assert_run, connect, create, detail, eventually, next, number, numbers_of, publish_numbered, read_all, seen,
    small_segments, soon,
};

#[tokio::test(flavor = "multi_thread")]
async fn segments_made_after_start_expire_and_a_new_setting_counts_without_a_restart() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    let settings = small_segments().retention(Duration::from_hours(1));
    create(&client, "expiring", 1, settings).await;
    let producer = client.producer().build().expect("a producer");
    let first = publish_numbered(&producer, "expiring", 0, 0..1_000, 300).await;
    assert_eq!(detail(&client, "expiring").await.start, 0, "nothing is old");

    let short = TopicSettings::new().retention(Duration::from_millis(1_500)).segment_age(Duration::from_secs(1));
    client.admin().alter_topic("expiring", short).await.expect("a topic can be altered");
    let last = *first.last().expect("ids");
    eventually("what was published before to expire", async || detail(&client, "expiring").await.start > last).await;
    // What comes after the change, in segments made after start, goes the same way, and ids never start again.
    let second = publish_numbered(&producer, "expiring", 0, 1_000..2_000, 300).await;
    assert!(second[0] > last);
    let last = *second.last().expect("ids");
    eventually("what was published after to expire", async || detail(&client, "expiring").await.start > last).await;
    let state = detail(&client, "expiring").await;
    assert_eq!((state.start, state.visible_end), (state.end, state.end), "an empty log keeps its end: {state:?}");

    let long = TopicSettings::new().retention(Duration::from_hours(1)).segment_age(Duration::from_hours(1));
    client.admin().alter_topic("expiring", long).await.expect("a topic can be altered");
    let third = publish_numbered(&producer, "expiring", 0, 2_000..2_100, 300).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(detail(&client, "expiring").await.start, third[0], "kept for an hour now");
    assert_eq!(read_all(&client, "expiring").await.len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_long_load_the_oldest_message_is_never_much_older_than_the_retention() {
    // What a busy machine may add to retention, roll and check.
    const SLACK: Duration = Duration::from_secs(5);
    let (retention, load) = if full() { (60, 300) } else { (2, 14) };
    let (retention, load) = (Duration::from_secs(retention), Duration::from_secs(load));
    let age = retention / 2;
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "aging", 1, small_segments().retention(retention).segment_age(age)).await;
    let producer = client.producer().build().expect("a producer");
    let began = std::time::Instant::now();
    let mut published = Vec::new();
    while began.elapsed() < load {
        let first = published.len() as u64;
        for id in publish_numbered(&producer, "aging", 0, first..first + 20, 300).await {
            published.push((id, std::time::Instant::now()));
        }
        let start = detail(&client, "aging").await.start;
        let Some((_, at)) = published.get(published.partition_point(|(id, _)| *id < start)) else { continue };
        let is_old = at.elapsed();
        assert!(is_old < retention + age + SLACK, "the oldest message is {is_old:?} old");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(detail(&client, "aging").await.start > 0, "nothing expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_by_size_keeps_the_newest() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "sized", 1, small_segments().retention_bytes(256 << 10)).await;
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "sized", 0, 0..4_000, 500).await;
    eventually("the log to shrink", async || {
        let state = detail(&client, "sized").await;
        state.end - state.start <= (256 + 64) << 10
    })
    .await;
    let numbers = numbers_of(&read_all(&client, "sized").await);
    assert!(!numbers.is_empty());
    assert_run(&numbers, numbers[0]..4_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_overtaken_by_retention_is_told_the_valid_range_or_reset_by_its_policy() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    for round in 0..if full() { 60 } else { 2 } {
        overtake(&client, &format!("overtaken-{round}"), round % 2 == 0).await;
    }
}

/// Three readers pause in the first segment of a new topic while those behind it go, by retention or a trim.
async fn overtake(client: &Client, topic: &str, by_retention: bool) {
    create(client, topic, 1, small_segments()).await;
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, topic, 0, 0..2_000, 500).await;
    let reader = |policy| {
        let builder = client.consumer().topic(topic).start(Start::Earliest);
        builder.fetch_bytes(4 << 10).prefetch_bytes(4 << 10).out_of_range(policy).build()
    };
    let mut failing = reader(OutOfRange::Fail).await.expect("a consumer");
    let mut earliest = reader(OutOfRange::Earliest).await.expect("a consumer");
    let mut latest = reader(OutOfRange::Latest).await.expect("a consumer");
    for reader in [&mut failing, &mut earliest, &mut latest] {
        assert_eq!(number(&next(reader).await.value), 0);
    }
    let end = detail(client, topic).await.end;
    let start = if by_retention {
        const KEPT_BYTES: u64 = 128 << 10;
        client.admin().alter_topic(topic, TopicSettings::new().retention_bytes(KEPT_BYTES)).await.expect("altered");
        // Until no further segment goes.
        let last = Cell::new(0);
        eventually("the log to shrink", async || {
            let state = detail(client, topic).await;
            let has_moved = last.replace(state.start) != state.start;
            tokio::time::sleep(Duration::from_millis(300)).await;
            !has_moved && state.end - state.start < KEPT_BYTES + (64 << 10)
        })
        .await;
        last.get()
    } else {
        client.admin().trim(topic, 0, end - (100 << 10)).await.expect("a log can be trimmed")
    };
    assert!(start > end / 2);

    // What was promised or fetched ahead may still come, in order; then the error with the range that is valid.
    let mut expected = 1;
    loop {
        match soon("messages, then an error", failing.next()).await.expect("the consumer goes on") {
            Ok(message) => {
                assert_eq!(number(&seen(&message).value), expected);
                expected += 1;
            }
            Err(ConsumeError::OutOfRange { start: valid, visible_end, .. }) => {
                // The start moves a segment at a time, and the reader may have asked while it moved.
                assert!(0 < valid && valid <= start, "{valid} was the start while it moved to {start}");
                assert_eq!(visible_end, end);
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let resumed = loop {
        let seen = next(&mut earliest).await;
        if seen.position >= start {
            break seen;
        }
    };
    assert_eq!(resumed.position, start, "the policy says: at the oldest that is left");
    // Reset once, or again and again while the start moved.
    assert!(earliest.stats().resets >= 1);

    // It is reset only when its next fetch is due, to the end of that moment: publish until something comes.
    let mut published = 2_000;
    let first_after = loop {
        publish_numbered(&producer, topic, 0, published..published + 1, 500).await;
        published += 1;
        match tokio::time::timeout(Duration::from_millis(100), latest.next()).await {
            Ok(message) => {
                let message = seen(&message.expect("the consumer goes on").expect("a message without an error"));
                if message.position >= start {
                    break message;
                }
            }
            Err(_nothing_yet) => assert!(published < 4_000, "the reader never came to the end"),
        }
    };
    assert!(first_after.position >= end, "the policy says: at the end, not at {}", first_after.position);
    assert_eq!(latest.stats().resets, 1);
}
