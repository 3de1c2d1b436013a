//! Nothing keeps a shard from its work: not a page that must come from the disk, not a disk that dawdles, not a socket that
//! is full, not a crowd. The broker watches itself: a shard that does not come back to its rings says so, and for how long
//! it ran meanwhile. A machine that pauses is not counted as far as the kernel tells; the rest of it is what the second
//! limit is above.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use corelane_client::{Client, Record, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, FaultyDisk, Stall, skip};
use rustix::fs::{Advice, fadvise};

use crate::support::{PATIENCE, connect, create, from_start, publish_numbered, read_all, soon};

/// How long a shard may run without a look at its rings.
const RUNS_MAX: Duration = Duration::from_millis(10);
/// How long it may not come back for whatever reason: longer than a virtual machine is paused by its host, much shorter than
/// what is waited for here.
const GONE_MAX: Duration = Duration::from_millis(150);
/// How long the disk that dawdles takes for a flush.
const FLUSH_TAKES: Duration = Duration::from_millis(400);
const STALLED_CONSUMERS: usize = 8;
/// Connections, and partitions, of the crowd.
const CROWD: u32 = 200;
/// Enough that consumers which stop reading leave their sockets full, in segments that can be sent by reference.
const HISTORY_BYTES: u64 = 64 << 20;
const VALUE_BYTES: usize = 1000;

fn watched() -> BrokerOptions {
    BrokerOptions::new().args(["--stall-warning", "10ms"])
}

/// `before`: how many there were at the start, when nobody was served yet.
#[track_caller]
fn assert_no_stall(broker: &Broker, before: usize) {
    let stalls = broker.stalls().split_off(before);
    println!("{stalls:?}");
    let is_bad = |stall: &Stall| stall.ran >= RUNS_MAX || stall.time >= GONE_MAX;
    assert!(!stalls.iter().any(is_bad), "a shard was kept from its work: {stalls:?}");
}

fn settings() -> TopicSettings {
    TopicSettings::new().segment_bytes(8 << 20).set_bytes_max(1 << 20)
}

async fn publish(client: &Client, topic: &str, bytes: u64) {
    let producer = client.producer().build().expect("a producer");
    let value = vec![7; VALUE_BYTES];
    for _ in 0..bytes / VALUE_BYTES as u64 {
        drop(producer.send(Record::to(topic).partition(0).value(&value)).await.expect("a message is taken"));
    }
    assert!(producer.close(PATIENCE).await.is_complete());
}

/// Takes everything below `directory` out of the page cache.
fn forget(directory: &Path) {
    for entry in std::fs::read_dir(directory).expect("the broker's directory can be listed").flatten() {
        let path = entry.path();
        if path.is_dir() {
            forget(&path);
        } else if let Ok(file) = File::open(&path) {
            fadvise(&file, 0, None, Advice::DontNeed).expect("the page cache takes advice");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_cold_read_and_no_full_socket_keeps_a_shard_from_its_work() {
    let broker = Broker::start(watched());
    let before = broker.stalls().len();
    let client = connect(&broker).await;
    create(&client, "history", 1, settings()).await;
    create(&client, "busy", 1, settings()).await;
    publish(&client, "history", HISTORY_BYTES).await;
    forget(&broker.data_dir());
    // Each reads one message and then nothing more: what it has asked for fills its socket and waits in the broker.
    let mut stalled = Vec::new();
    for _ in 0..STALLED_CONSUMERS {
        let builder = client.consumer().topic("history").start(Start::Earliest).prefetch_bytes(64 << 10);
        let mut consumer = soon("a consumer", builder.build()).await.expect("a consumer");
        let first = soon("a first message", consumer.next()).await.expect("there are messages");
        first.expect("a message without an error");
        stalled.push(consumer);
    }
    let publishing = tokio::spawn({
        let client = client.clone();
        async move { publish(&client, "busy", HISTORY_BYTES / 2).await }
    });
    for _ in 0..3 {
        forget(&broker.data_dir());
        let read = read_all(&client, "history").await;
        assert_eq!(read.len() as u64, HISTORY_BYTES / VALUE_BYTES as u64);
    }
    publishing.await.expect("the publisher ends well");
    assert_no_stall(&broker, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_disk_that_dawdles_keeps_a_shard_from_its_work() {
    let name = "no_disk_that_dawdles_keeps_a_shard_from_its_work";
    let disk = match FaultyDisk::mount(96) {
        Ok(disk) => disk,
        Err(why) => return skip(name, &why),
    };
    let broker = Broker::start(watched().data(disk.path().join("data")));
    let before = broker.stalls().len();
    let client = connect(&broker).await;
    create(&client, "slow", 1, settings()).await;
    disk.delay_flushes(FLUSH_TAKES);
    let producer = client.producer().build().expect("a producer");
    let mut consumer = from_start(&client, "slow").await;
    for round in 0..5 {
        publish_numbered(&producer, "slow", 0, round * 50..(round + 1) * 50, VALUE_BYTES).await;
        soon("a message", consumer.next()).await.expect("it goes on").expect("a message without an error");
    }
    disk.heal();
    assert_no_stall(&broker, before);
}

/// All of them wait for the same news, and then they all publish.
#[tokio::test(flavor = "multi_thread")]
async fn no_crowd_keeps_a_shard_from_its_work() {
    let broker = Broker::start(watched().shards(1));
    let before = broker.stalls().len();
    let client = connect(&broker).await;
    create(&client, "news", 1, settings()).await;
    create(&client, "busy", CROWD, settings()).await;
    let mut consumers = Vec::new();
    for _ in 0..CROWD {
        consumers.push(from_start(&connect(&broker).await, "news").await);
    }
    publish(&client, "news", CROWD as u64 * VALUE_BYTES as u64).await;
    for consumer in &mut consumers {
        for _ in 0..CROWD {
            soon("news", consumer.next()).await.expect("it goes on").expect("a message without an error");
        }
    }
    let publishing = (0..CROWD).map(|partition| {
        let client = client.clone();
        tokio::spawn(async move {
            let producer = client.producer().build().expect("a producer");
            publish_numbered(&producer, "busy", partition, 0..100, VALUE_BYTES).await;
        })
    });
    for publisher in publishing.collect::<Vec<_>>() {
        publisher.await.expect("a publisher ends well");
    }
    assert_no_stall(&broker, before);
}
