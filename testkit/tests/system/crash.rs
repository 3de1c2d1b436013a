//! Kill -9 in the middle of publishing: what was acknowledged or seen stays, under its id, and nothing else appears.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use corelane_client::{Acks, Client, DeliveryFuture, Producer, Record, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, TestDir, full};

use crate::support::{Seen, connect, create, details, eventually, number, numbered, read_to_end, seen, within};
use crate::survival::Survival;

const TOPIC: &str = "crash";
const PARTITIONS: u32 = 4;
/// Every set has so many messages, so that a half set shows as a count that is not a multiple.
const SET_MESSAGES: u64 = 50;
const VALUE_BYTES: usize = 1000;
const KILLS: u64 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_loses_nothing_acknowledged_or_seen_and_leaves_no_half_set() {
    let bytes_total: u64 = if full() { 1 << 30 } else { 48 << 20 };
    let sets = bytes_total / (VALUE_BYTES as u64 * SET_MESSAGES * u64::from(PARTITIONS));
    let seed = fastrand::u64(..);
    println!("seed {seed}, {sets} sets for each of {PARTITIONS} partitions");
    let mut random = fastrand::Rng::with_seed(seed);

    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    // Rolls happen on the way.
    create(&client, TOPIC, PARTITIONS, TopicSettings::new().segment_bytes(8 << 20)).await;
    let producer = client
        .producer()
        .acks(Acks::Durable)
        .batch_messages_max(SET_MESSAGES as u32)
        .linger(Duration::from_hours(1))
        .delivery_timeout(Duration::from_mins(10))
        .build()
        .expect("a producer");

    let watched = Arc::new(Mutex::new(Vec::new()));
    let watcher = tokio::spawn(watch(client.clone(), Arc::clone(&watched)));
    let publisher = tokio::spawn(publish(producer.clone(), sets));
    let total = sets * SET_MESSAGES * u64::from(PARTITIONS);
    for kill in 0..KILLS {
        // Somewhere in the kill's own part of the way.
        let threshold = total * (2 * kill + 1) / (2 * KILLS + 1) + random.u64(..total / (2 * KILLS + 1));
        eventually("acknowledgements up to the kill", async || producer.stats().acknowledged >= threshold).await;
        let seen_before = watched.lock().expect("the watcher lives").len();
        broker.kill9();
        broker.restart();
        println!("kill {kill} at {threshold} acknowledged, {seen_before} seen");
    }
    let firsts = within(Duration::from_mins(10), "everything to be taken", publisher).await.expect("the publisher");
    let report = producer.close(Duration::from_mins(10)).await;
    assert!(report.is_complete(), "{report:?}");
    watcher.abort();

    // A last kill, with nothing under way: what is read back is what the disk holds.
    broker.kill9();
    broker.restart();
    let client = connect(&broker).await;
    let stored = stored(&client).await;
    check_sets(&stored, sets);
    let by_place: HashMap<(u32, u64), u64> =
        stored.iter().map(|seen| ((seen.partition, seen.position), number(&seen.value))).collect();
    for (partition, first, delivery) in firsts {
        let position = delivery.await.expect("every set was acknowledged").position.expect("a position");
        assert_eq!(by_place.get(&(partition, position)), Some(&first), "acknowledged at {partition}/{position}");
    }
    for (partition, position, number) in watched.lock().expect("the watcher's notes").iter() {
        assert_eq!(by_place.get(&(*partition, *position)), Some(number), "seen at {partition}/{position}");
    }
    broker.stop();
}

/// Publishes every partition's messages in order; returns of each set's first message where and what it is, and its fate.
async fn publish(producer: Producer, sets: u64) -> Vec<(u32, u64, DeliveryFuture)> {
    let mut firsts = Vec::new();
    for at in 0..sets * SET_MESSAGES {
        let value = numbered(at, VALUE_BYTES);
        for partition in 0..PARTITIONS {
            let record = Record::to(TOPIC).partition(partition).value(&value);
            let delivery = producer.send(record).await.expect("a message is taken");
            if at.is_multiple_of(SET_MESSAGES) {
                firsts.push((partition, at, delivery));
            }
        }
    }
    firsts
}

/// Follows the topic across the kills and notes what it sees.
async fn watch(client: Client, notes: Arc<Mutex<Vec<(u32, u64, u64)>>>) {
    let builder = client.consumer().topic(TOPIC).start(Start::Earliest);
    let mut consumer = builder.build().await.expect("a consumer");
    loop {
        match consumer.next().await.expect("a consumer does not end by itself") {
            Ok(message) => {
                let seen = seen(&message);
                notes.lock().expect("nobody panics with it").push((seen.partition, seen.position, number(&seen.value)));
            }
            Err(error) => assert!(error.is_retryable(), "a reader of the tail was thrown out: {error}"),
        }
    }
}

/// Everything the topic holds, partition by partition.
async fn stored(client: &Client) -> Vec<Seen> {
    let mut all = Vec::new();
    for detail in details(client, TOPIC).await {
        assert_eq!(detail.visible_end, detail.end, "partition {} is quiet", detail.partition);
        let builder = client.consumer().partition(TOPIC, detail.partition).start(Start::Earliest);
        let seen = read_to_end(builder).await;
        assert_eq!(seen.first().map(|first| first.position), Some(detail.start));
        assert_eq!(seen.last().map(|last| last.next_position), Some(detail.end));
        assert!(seen.windows(2).all(|pair| pair[0].next_position == pair[1].position), "ids are contiguous");
        all.extend(seen);
    }
    all
}

/// In each partition: whole sets only, each as published, none missing, and resent ones in order.
fn check_sets(stored: &[Seen], sets: u64) {
    for partition in 0..PARTITIONS {
        let stored = stored.iter().filter(|seen| seen.partition == partition);
        let ends: Vec<bool> = stored.clone().map(|seen| seen.ends_set).collect();
        let numbers: Vec<u64> = stored.map(|seen| number(&seen.value)).collect();
        assert!(numbers.len().is_multiple_of(SET_MESSAGES as usize), "partition {partition} ends in half a set");
        for (at, ends_set) in ends.into_iter().enumerate() {
            assert_eq!(ends_set, (at as u64 + 1).is_multiple_of(SET_MESSAGES), "message {at} of partition {partition}");
        }
        let mut expected = 0;
        let mut resent = 0;
        for set in numbers.chunks(SET_MESSAGES as usize) {
            assert!(set[0].is_multiple_of(SET_MESSAGES), "a set of partition {partition} begins at message {}", set[0]);
            assert!(set.windows(2).all(|pair| pair[0] + 1 == pair[1]), "a set of partition {partition} is mixed up");
            let set = set[0] / SET_MESSAGES;
            assert!(set <= expected, "set {set} of partition {partition} came before set {expected}");
            resent += u64::from(set != expected);
            expected = set + 1;
        }
        println!("partition {partition}: {} sets, {resent} steps back", numbers.len() as u64 / SET_MESSAGES);
        assert_eq!(expected, sets, "partition {partition} ends with its last set");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_at_any_moment_starts_included_loses_nothing_durable_and_leaves_nothing_else() {
    let lives = if full() { 400 } else { 20 };
    let seed = fastrand::u64(..);
    println!("seed {seed}, {lives} lives");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut broker = Broker::start(BrokerOptions::new());
    let survival = Survival::prepare(&broker).await;
    let (mut deaths, mut deaths_at_start, mut stored) = (0, 0, 0);
    for life in 0..lives {
        let work = survival.work(&broker, life).await;
        tokio::time::sleep(Duration::from_millis(random.u64(5..200))).await;
        broker.kill9();
        deaths += 1;
        drop(work);
        // Killed again while it recovers, perhaps more than once; a start that was quicker is killed when it is ready.
        while random.u8(0..3) == 0 {
            broker.set_options(BrokerOptions::new().ready_within(Duration::from_millis(random.u64(1..120))));
            if broker.try_restart().is_ok() {
                broker.kill9();
            } else {
                deaths_at_start += 1;
            }
            deaths += 1;
        }
        broker.set_options(BrokerOptions::new());
        broker.restart();
        // Reading all of it each time would be most of the test.
        if life % 4 == 3 || full() {
            stored = survival.check(&broker).await;
        }
    }
    println!("{}, {deaths_at_start} before it was ready", survival.survived(deaths, stored));
    assert!(!broker.log().contains("set aside"), "the log takes what a kill left for damage");
    broker.stop();
}

#[test]
fn a_directory_whose_first_start_was_killed_starts_the_next_time() {
    let rounds = if full() { 300 } else { 12 };
    let seed = fastrand::u64(..);
    println!("seed {seed}, {rounds} rounds");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..rounds {
        let dir = TestDir::new("first");
        let options = || BrokerOptions::new().shards(1).data(dir.join("data"));
        let killed_after = Duration::from_micros(random.u64(1_000..80_000));
        if let Ok(mut broker) = Broker::try_start(options().ready_within(killed_after)) {
            broker.kill9();
        }
        Broker::start(options()).stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_after_a_crash_reads_what_the_checkpoint_does_not_cover_whatever_the_logs_size() {
    // Small next to the logs, large next to what is read of each: its last message, a block or two.
    const READ_BYTES_MAX: u64 = 4 << 20;
    let sizes: [u64; 2] = if full() { [256 << 20, 4 << 30] } else { [16 << 20, 64 << 20] };
    let mut broker = Broker::start(BrokerOptions::new());
    let mut published = 0;
    for bytes in sizes {
        let client = connect(&broker).await;
        if published == 0 {
            create(&client, TOPIC, PARTITIONS, TopicSettings::new().segment_bytes(64 << 20)).await;
        }
        let producer = client.producer().acks(Acks::Durable).build().expect("a producer");
        let began = SystemTime::now();
        let value = numbered(0, 10_000);
        while published < bytes {
            for partition in 0..PARTITIONS {
                let record = Record::to(TOPIC).partition(partition).value(&value);
                drop(producer.send(record).await.expect("a message is taken"));
                published += value.len() as u64;
            }
        }
        assert!(producer.close(Duration::from_mins(10)).await.is_complete());
        // Each second, while something changes: that no more is written says that all of it is covered.
        let rests = |at: SystemTime| at > began && at.elapsed().is_ok_and(|since| since > Duration::from_secs(3));
        eventually("a checkpoint of all of it", async || checkpointed_at(&broker).is_some_and(rests)).await;
        broker.kill9();
        broker.restart();
        let read = bytes_read(&broker);
        println!("{} MiB of logs: ready after {:?}, {} KiB read", published >> 20, broker.start_took(), read >> 10);
        assert!(read < READ_BYTES_MAX, "{read} bytes were read of logs of {published}");
    }
    let stored: u64 = details(&connect(&broker).await, TOPIC).await.iter().map(|detail| detail.visible_end).sum();
    assert!(stored >= published, "{stored} bytes are there, {published} were published");
    broker.stop();
}

/// When a shard's checkpoint was written last.
fn checkpointed_at(broker: &Broker) -> Option<SystemTime> {
    let files = std::fs::read_dir(broker.data_dir()).expect("the data directory").flatten();
    let checkpoints = files.filter(|file| file.file_name().to_string_lossy().starts_with("checkpoint-"));
    checkpoints.filter_map(|file| file.metadata().ok()?.modified().ok()).max()
}

/// What the broker's process has had read from the disk.
fn bytes_read(broker: &Broker) -> u64 {
    let counters = std::fs::read_to_string(format!("/proc/{}/io", broker.pid())).expect("a process has counters");
    let line = counters.lines().find_map(|line| line.strip_prefix("read_bytes: ")).expect("a count of bytes read");
    line.parse().expect("a count")
}
