//! The broker's memory does not grow with what passes through it, nor with consumers that stop reading.

use std::time::Duration;

use corelane_client::{Client, Record, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, full};
use tokio::task::JoinHandle;

use crate::support::{PATIENCE, connect, create, eventually, numbered, soon};

/// What a busy broker may use beyond what it used when it was warm: the design's bound.
const GROWTH_BYTES_MAX: u64 = 20 << 20;
const VALUE_BYTES: usize = 1000;
const STALLED_CONSUMERS: usize = 20;

fn bytes_total() -> u64 {
    if full() { 10 << 30 } else { 192 << 20 }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_flat_while_data_passes() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "flow", 2, settings()).await;
    let consumer = spawn_consumer(&client, "flow").await;
    let growth = growth_while(&broker, publish(&client, "flow")).await;
    println!("{} MiB passed, memory grew by {} KiB", bytes_total() >> 20, growth >> 10);
    assert!(growth <= GROWTH_BYTES_MAX, "memory grew by {growth} bytes");
    consumer.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_flat_with_consumers_that_stop_reading() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "stalled", 2, settings()).await;
    // Each reads one message and then nothing more: what it has asked for fills its socket and waits in the broker.
    let mut stalled = Vec::new();
    for _ in 0..STALLED_CONSUMERS {
        let builder = client.consumer().topic("stalled").start(Start::Latest).prefetch_bytes(64 << 10);
        stalled.push(soon("a consumer", builder.build()).await.expect("a consumer"));
    }
    let growth = growth_while(&broker, publish(&client, "stalled")).await;
    println!(
        "{STALLED_CONSUMERS} consumers stalled, {} MiB published, {} KiB grown",
        bytes_total() >> 20,
        growth >> 10
    );
    assert!(growth <= GROWTH_BYTES_MAX, "memory grew by {growth} bytes");
    for consumer in &mut stalled {
        let next = soon("a message that waited", consumer.next()).await.expect("the consumer goes on");
        next.expect("a message without an error");
    }
}

/// Retention keeps the long form's disk small; it is part of the flow.
fn settings() -> TopicSettings {
    TopicSettings::new().segment_bytes(64 << 20).retention_bytes(512 << 20)
}

async fn spawn_consumer(client: &Client, topic: &str) -> JoinHandle<()> {
    let builder = client.consumer().topic(topic).start(Start::Latest);
    let mut consumer = soon("a consumer", builder.build()).await.expect("a consumer");
    tokio::spawn(async move {
        while let Some(message) = consumer.next().await {
            message.expect("a message without an error");
        }
    })
}

/// Publishes [`bytes_total`] in the background.
fn publish(client: &Client, topic: &'static str) -> JoinHandle<()> {
    let producer = client.producer().build().expect("a producer");
    tokio::spawn(async move {
        let value = numbered(0, VALUE_BYTES);
        for at in 0..bytes_total() / VALUE_BYTES as u64 {
            let record = Record::to(topic).partition((at % 2) as u32).value(&value);
            drop(producer.send(record).await.expect("a message is taken"));
        }
        assert!(producer.close(PATIENCE).await.is_complete());
    })
}

/// By how much the broker's resident memory rises, while `publisher` runs, above where it is when the arena has been
/// used once (a tenth of the way, and 64 MiB a shard at least).
async fn growth_while(broker: &Broker, publisher: JoinHandle<()>) -> u64 {
    let mut warm = 0;
    let mut highest = 0;
    let mut samples = Vec::new();
    while !publisher.is_finished() {
        samples.push(broker.rss_bytes());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    publisher.await.expect("the publisher ends well");
    samples.push(broker.rss_bytes());
    for (at, rss) in samples.iter().enumerate() {
        if at < samples.len() / 2 {
            warm = warm.max(*rss);
        } else {
            highest = highest.max(*rss);
        }
    }
    println!("memory: first {} KiB, warm {} KiB, highest {} KiB", samples[0] >> 10, warm >> 10, highest >> 10);
    highest.saturating_sub(warm)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_come_and_go_leave_no_memory_and_no_descriptor() {
    let broker = Broker::start(BrokerOptions::new());
    let warm_up = connect(&broker).await;
    create(&warm_up, "coming-and-going", 1, TopicSettings::new()).await;
    let rounds = if full() { 2_000 } else { 100 };
    let mut before = None;
    for round in 0..rounds {
        let client = connect(&broker).await;
        let producer = client.producer().build().expect("a producer");
        drop(producer.send(Record::to("coming-and-going").value(b"hello")).await.expect("a message is taken"));
        assert!(producer.close(PATIENCE).await.is_complete());
        if round == 10 {
            before = Some(broker.stats());
        }
    }
    let before = before.expect("more than ten rounds");
    eventually("descriptors to be closed", async || broker.descriptors() <= before.descriptors + 2).await;
    let growth = broker.rss_bytes().saturating_sub(before.rss_bytes);
    assert!(growth < 4 << 20, "memory grew by {growth} bytes in {rounds} connections");
}
