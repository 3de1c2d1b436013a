//! A disk that fails, dawdles or loses power under a running broker: the statuses that are promised, no hang, nothing
//! acknowledged lost, and whoever is not concerned goes on. On a real block device with a real file system.

use std::time::{Duration, Instant};

use corelane_client::{Acks, Client, DeliveryError, Producer, Record, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, FaultyDisk, full, skip};

use crate::operations::Metrics;
use crate::support::{
    assert_run, connect, create, detail, details, eventually, next, number, numbered, numbers_of, publish_numbered,
    read_all, small_segments, soon,
};
use crate::survival::Survival;

/// Bytes by which the disk knows what it is to fail.
const MARK: &[u8] = b"the sector that went bad: 6f1d2c";
/// What a producer waits for a partition that may open again.
const DEADLINE: Duration = Duration::from_secs(3);

fn start(disk: &FaultyDisk) -> Broker {
    Broker::start(BrokerOptions::new().data(disk.path().join("data")))
}

/// A message with this number that carries the mark.
fn marked(at: u64) -> Vec<u8> {
    [&numbered(at, 500), MARK].concat()
}

/// A disk of so many MiB for this test, or the reason why it is skipped, told.
fn mounted(test: &str, mib: u64) -> Option<FaultyDisk> {
    FaultyDisk::mount(mib).inspect_err(|why| skip(test, why)).ok()
}

async fn publish(producer: &Producer, topic: &str, value: &[u8]) -> Result<(), DeliveryError> {
    let delivery = soon("the message to be taken", producer.send(Record::to(topic).value(value))).await;
    let began = Instant::now();
    let outcome = soon("the message's fate", delivery.expect("taken")).await;
    assert!(began.elapsed() < 5 * DEADLINE, "its fate was told after {:?}", began.elapsed());
    outcome.map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_fails_is_never_acknowledged_and_closes_its_partition_only_until_a_restart() {
    let name = "a_write_that_fails_is_never_acknowledged_and_closes_its_partition_only_until_a_restart";
    let Some(disk) = mounted(name, 96) else { return };
    let mut broker = start(&disk);
    let client = connect(&broker).await;
    for topic in ["hit", "spared"] {
        create(&client, topic, 1, small_segments()).await;
    }
    let producer = client.producer().delivery_timeout(DEADLINE).build().expect("a producer");
    publish_numbered(&producer, "hit", 0, 0..100, 500).await;
    disk.fail_writes(MARK);
    let error = publish(&producer, "hit", &marked(100)).await.expect_err("it cannot be written");
    println!("{error}");
    assert!(disk.failures() > 0);

    // No second try behind its back: also when the disk would take it, the partition stays closed and says why.
    disk.heal();
    let error = publish(&producer, "hit", &numbered(101, 500)).await.expect_err("closed");
    assert!(error.to_string().contains("read-only until the broker is restarted"), "{error}");
    let topic = client.admin().describe_topic("hit").await.expect("a description").topic;
    println!("{:?}", topic.partitions[0]);
    // Others go on, and so does reading.
    publish_numbered(&producer, "spared", 0, 0..100, 500).await;
    assert_run(&numbers_of(&read_all(&client, "hit").await), 0..100);
    assert_run(&numbers_of(&read_all(&client, "spared").await), 0..100);

    broker.kill9();
    broker.restart();
    let client = connect(&broker).await;
    let producer = client.producer().delivery_timeout(DEADLINE).build().expect("a producer");
    assert_run(&numbers_of(&read_all(&client, "hit").await), 0..100);
    publish_numbered(&producer, "hit", 0, 100..200, 500).await;
    assert_run(&numbers_of(&read_all(&client, "hit").await), 0..200);
    broker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_that_fails_and_the_read_only_file_system_after_it_lose_nothing_and_stop_no_reader() {
    let name = "a_flush_that_fails_and_the_read_only_file_system_after_it_lose_nothing_and_stop_no_reader";
    let Some(mut disk) = mounted(name, 96) else { return };
    let mut broker = start(&disk);
    let client = connect(&broker).await;
    create(&client, "flushed", 2, small_segments()).await;
    let producer = client.producer().delivery_timeout(DEADLINE).build().expect("a producer");
    publish_numbered(&producer, "flushed", 0, 0..100, 500).await;
    publish_numbered(&producer, "flushed", 1, 100..200, 500).await;
    let ends = details(&client, "flushed").await;
    disk.fail_flushes();
    let mut deliveries = Vec::new();
    for at in 0..4 {
        let value = numbered(200 + at, 500);
        let record = Record::to("flushed").partition((at % 2) as u32).value(&value);
        deliveries.push(soon("the message to be taken", producer.send(record)).await.expect("taken"));
    }
    for delivery in deliveries {
        let error = soon("the message's fate", delivery).await.expect_err("nothing can be flushed");
        println!("{error}");
    }
    // The file system has lost its journal by now, and is read-only: whoever reads goes on, whoever writes is told.
    let file = disk.path().join("written");
    eventually("the file system to be read-only", async || std::fs::write(&file, b"x").is_err()).await;
    let client = connect(&broker).await;
    let stored = numbers_of(&read_all(&client, "flushed").await);
    assert_eq!(stored.len(), 200, "what is visible is what was durable");
    let after = details(&client, "flushed").await;
    for (before, after) in ends.iter().zip(&after) {
        assert_eq!(before.visible_end, after.visible_end, "nothing is visible that was not flushed");
    }
    let hasty = Client::builder().bootstrap(broker.addr().to_string()).topic_timeout(Duration::from_secs(1));
    let hasty = soon("the client to connect", hasty.build()).await.expect("a client");
    let error = soon("an answer", hasty.admin().delete_topic("flushed")).await.expect_err("the registry cannot write");
    println!("{error}");

    // It ends when it is told to, in time, with a status that tells that not all went well.
    let began = Instant::now();
    broker.terminate();
    let status = broker.wait(Duration::from_secs(20)).expect("it ends in time");
    println!("{status}, after {:?}", began.elapsed());
    let said = broker.log().matches("the registry's file").count();
    assert!((1..=4).contains(&said), "what fails again and again was said {said} times");
    disk.heal();
    disk.repair();
    broker.restart();
    let client = connect(&broker).await;
    let producer = client.producer().delivery_timeout(DEADLINE).build().expect("a producer");
    let mut stored = numbers_of(&read_all(&client, "flushed").await);
    stored.sort_unstable();
    assert_run(&stored[..200], 0..200);
    publish_numbered(&producer, "flushed", 0, 300..400, 500).await;
    broker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_fails_holds_up_its_readers_only_and_they_go_on_when_it_succeeds() {
    let name = "a_read_that_fails_holds_up_its_readers_only_and_they_go_on_when_it_succeeds";
    let Some(disk) = mounted(name, 96) else { return };
    let mut broker = start(&disk);
    let client = connect(&broker).await;
    for topic in ["hit", "spared"] {
        create(&client, topic, 1, small_segments()).await;
    }
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "hit", 0, 0..200, 500).await;
    publish(&producer, "hit", &marked(200)).await.expect("published");
    publish_numbered(&producer, "hit", 0, 201..1_000, 500).await;
    publish_numbered(&producer, "spared", 0, 0..1_000, 500).await;
    // What was written long ago is not in memory any more.
    broker.restart();
    disk.fail_reads(MARK);
    let client = connect(&broker).await;
    let builder = client.consumer().topic("hit").start(Start::Earliest).fetch_bytes(4 << 10).prefetch_bytes(4 << 10);
    let mut reader = soon("a consumer", builder.build()).await.expect("a consumer");
    for at in 0..100 {
        assert_eq!(number(&next(&mut reader).await.value), at, "what lies before it is read");
    }
    assert_run(&numbers_of(&read_all(&client, "spared").await), 0..1_000);
    let waiting = tokio::spawn(async move {
        for at in 100..1_000 {
            let message = loop {
                match reader.next().await.expect("the consumer goes on") {
                    Ok(message) => break message,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            };
            let value = message.value().expect("a value");
            let value = value.strip_suffix(MARK).unwrap_or(value);
            assert_eq!(number(value), at);
        }
    });
    eventually("the bad place to be met", async || disk.failures() > 0).await;
    assert!(!waiting.is_finished(), "the disk did not give message 200");
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "hit", 0, 1_000..1_100, 500).await;
    disk.heal();
    soon("the reader to go on by itself", waiting).await.expect("it got everything");
    broker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_disk_delays_what_needs_it_and_nothing_else() {
    let disk = match FaultyDisk::mount(96) {
        Ok(disk) => disk,
        Err(why) => return skip("a_slow_disk_delays_what_needs_it_and_nothing_else", &why),
    };
    let mut broker = start(&disk);
    // An acknowledgement waits for several flushes: of the segment, of the file system's journal, perhaps of a checkpoint.
    let patience = Duration::from_mins(2);
    let client = Client::builder().bootstrap(broker.addr().to_string());
    let client = client.request_timeout(patience).topic_timeout(patience);
    let client = soon("the client to connect", client.build()).await.expect("a broker that is ready takes connections");
    create(&client, "slow", 1, TopicSettings::new()).await;
    let durable = client.producer().delivery_timeout(patience).build().expect("a producer");
    publish_numbered(&durable, "slow", 0, 0..100, 500).await;
    let delay = Duration::from_secs(if full() { 2 } else { 1 });
    disk.delay_flushes(delay);

    // Received is not durable: it is told at once, and read only when it is on the disk.
    let received = client.producer().acks(Acks::Received).delivery_timeout(patience).build();
    let received = received.expect("a producer");
    let began = Instant::now();
    publish_numbered(&received, "slow", 0, 100..101, 500).await;
    let state = detail(&client, "slow").await;
    let told_after = began.elapsed();
    if told_after < delay / 2 {
        assert!(state.visible_end < state.end, "visible before the flush");
    }
    let began = Instant::now();
    publish_numbered(&durable, "slow", 0, 101..102, 500).await;
    println!("received after {told_after:?}, durable after {:?}", began.elapsed());
    assert!(began.elapsed() >= delay / 2, "acknowledged before the flush");
    // Calls and readers that need no flush do not wait for one.
    assert_run(&numbers_of(&read_all(&client, "slow").await), 0..102);
    // A producer that cannot wait so long is told so.
    let hasty = client.producer().delivery_timeout(delay / 5).build().expect("a producer");
    let error = publish(&hasty, "slow", &numbered(102, 500)).await.expect_err("that is too short");
    assert!(matches!(error, DeliveryError::TimedOut { .. }), "{error}");
    if full() {
        // Many flushes: the registry's, the directories', the segment's.
        create(&client, "made", 1, small_segments()).await;
    }
    disk.heal();
    let took = broker.stop();
    println!("stopped in {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_readers_of_a_slow_disk_take_turns_and_none_counts_as_stuck() {
    /// What they wait for together fills the memory for reads three times, and takes longer than a stuck reader has.
    const READERS: usize = 48;
    const READ_BYTES_A_SECOND: u32 = 8 << 20;
    let Some(disk) = mounted("many_readers_of_a_slow_disk_take_turns_and_none_counts_as_stuck", 96) else { return };
    let options = BrokerOptions::new().data(disk.path().join("data")).shards(1).args(["--arena-bytes", "32MiB"]);
    let mut broker = Broker::start(options);
    let client = connect(&broker).await;
    create(&client, "cold", 1, TopicSettings::new()).await;
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "cold", 0, 0..4, 250_000).await;
    // What was written long ago is not in memory any more.
    broker.restart();
    disk.slow_reads(READ_BYTES_A_SECOND);
    let began = Instant::now();
    let mut reading = Vec::new();
    for _ in 0..READERS {
        let client = connect(&broker).await;
        reading.push(tokio::spawn(async move {
            let builder = client.consumer().topic("cold").start(Start::Earliest);
            let builder = builder.fetch_bytes(1 << 20).prefetch_bytes(64 << 10);
            let mut reader = soon("a consumer", builder.build()).await.expect("a consumer");
            for at in 0..4 {
                assert_eq!(number(&next(&mut reader).await.value), at);
            }
        }));
    }
    for reader in reading {
        soon("a reader to get everything", reader).await.expect("every byte as it was published");
    }
    println!("{READERS} readers of a megabyte each, on a disk of 8 MiB/s: {:?}", began.elapsed());
    let stuck = Metrics::of(&broker, "").count("corelane_connections_closed_total", &["reason=\"stuck_reader\""]);
    assert_eq!(stuck, 0, "readers that read were closed");
    disk.heal();
    broker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_takes_of_what_was_only_received_no_more_than_the_flush_policy_lets_it() {
    let name = "a_power_cut_takes_of_what_was_only_received_no_more_than_the_flush_policy_lets_it";
    let Some(mut disk) = mounted(name, 96) else { return };
    const INTERVAL: Duration = Duration::from_millis(500);
    /// A busy machine flushes late.
    const SLACK: Duration = Duration::from_secs(2);
    let rounds = if full() { 20 } else { 1 };
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut broker = start(&disk);
    let mut from = 0;
    for round in 0..rounds {
        let client = connect(&broker).await;
        let topic = format!("received-{round}");
        let settings = small_segments().flush_interval(INTERVAL).flush_messages(1_000_000);
        create(&client, &topic, 1, settings).await;
        let producer = client.producer().acks(Acks::Received).build().expect("a producer");
        let began = Instant::now();
        let mut received = Vec::new();
        while began.elapsed() < 2 * (INTERVAL + SLACK) {
            publish_numbered(&producer, &topic, 0, from..from + 1, 500).await;
            received.push((from, Instant::now()));
            from += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let cut = Instant::now();
        disk.power_off();
        broker.kill9();
        disk.power_on(&mut random);
        broker.restart();
        let stored = numbers_of(&read_all(&connect(&broker).await, &topic).await);
        let first = received[0].0;
        assert_run(&stored, first..first + stored.len() as u64);
        let due = received.iter().filter(|(_, at)| cut.duration_since(*at) > INTERVAL + SLACK).count();
        println!("{} of {} received are there, {due} had to be", stored.len(), received.len());
        assert!(due > 0 && stored.len() >= due, "{} are there, {due} had to be", stored.len());
    }
    broker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn power_cuts_under_load_lose_nothing_durable_and_every_start_succeeds() {
    let mut disk = match FaultyDisk::mount(256) {
        Ok(disk) => disk,
        Err(why) => return skip("power_cuts_under_load_lose_nothing_durable_and_every_start_succeeds", &why),
    };
    let cuts = if full() { 100 } else { 6 };
    let seed = fastrand::u64(..);
    println!("seed {seed}, {cuts} power cuts");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut broker = start(&disk);
    let survival = Survival::prepare(&broker).await;
    let (mut kept, mut torn, mut lost, mut stored) = (0, 0, 0, 0);
    for cut in 0..cuts {
        let work = survival.work(&broker, cut).await;
        tokio::time::sleep(Duration::from_millis(random.u64(20..300))).await;
        disk.power_off();
        broker.kill9();
        drop(work);
        let fates = disk.power_on(&mut random);
        (kept, torn, lost) = (kept + fates.kept, torn + fates.torn, lost + fates.lost);
        broker.restart();
        stored = survival.check(&broker).await;
    }
    println!("{}; unflushed writes: {kept} kept, {torn} torn, {lost} lost", survival.survived(cuts, stored));
    broker.stop();
}
