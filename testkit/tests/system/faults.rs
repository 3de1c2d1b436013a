//! The client behind a network that delays, cuts, swallows and truncates: order kept, nothing acknowledged lost, every
//! message accounted for, no busy loop.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corelane_client::{Client, Consumer, DeliveryError, Record, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, Direction, Port, Process, Proxy, Rule, bin, full};

use crate::support::{PATIENCE, assert_run, create, number, numbered, numbers_of, read_all, soon, within};

const PARTITIONS: u32 = 2;

/// A broker that tells its clients to come through the proxy.
struct Behind {
    proxy: Proxy,
    _broker: Broker,
    _port: Port,
}

impl Behind {
    fn start() -> Behind {
        let port = Port::reserve();
        let proxy = Proxy::start(port.addr());
        let options = BrokerOptions::new().listen(port.addr()).arg("--advertise").arg(proxy.addr().to_string());
        Behind { proxy, _broker: Broker::start(options), _port: port }
    }

    async fn client(&self) -> Client {
        let builder = Client::builder().bootstrap(self.proxy.addr().to_string());
        // Short, so that what is swallowed is noticed within the test.
        let builder = builder.connect_timeout(Duration::from_secs(2)).request_timeout(Duration::from_secs(2));
        soon("the client to connect", builder.build()).await.expect("everything passes at first")
    }
}

/// So many times something else goes wrong; everything passes in between and at the end.
async fn trouble(behind: Arc<Behind>, seed: u64, faults: u32) {
    let mut random = fastrand::Rng::with_seed(seed);
    let proxy = &behind.proxy;
    for _ in 0..faults {
        tokio::time::sleep(Duration::from_millis(random.u64(50..300))).await;
        let direction = if random.bool() { Direction::ToBroker } else { Direction::ToClient };
        match random.u8(0..6) {
            0 => proxy.cut(),
            1 => proxy.set(direction, Rule::CutAfter(random.u64(0..200_000))),
            2 => proxy.set(direction, Rule::SwallowAfter(random.u64(0..200_000))),
            3 => proxy.set(direction, Rule::Delay(Duration::from_millis(random.u64(1..100)))),
            4 => proxy.set(direction, Rule::Hold),
            _ => proxy.refuse(true),
        }
        tokio::time::sleep(Duration::from_millis(random.u64(20..300))).await;
        proxy.heal();
        // What was swallowed leaves a stream that is no stream any more: a real network breaks such a connection.
        proxy.cut();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_network_lose_nothing_and_keep_the_order() {
    let faults = if full() { 500 } else { 20 };
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let behind = Arc::new(Behind::start());
    let client = behind.client().await;
    create(&client, "faulty", PARTITIONS, TopicSettings::new()).await;
    let builder = client.consumer().topic("faulty").start(Start::Earliest).fetch_bytes(64 << 10);
    let consumer = soon("a consumer", builder.build()).await.expect("everything passes at first");
    // Not known until the trouble is over.
    let total = Arc::new(AtomicU64::new(u64::MAX));
    let reader = tokio::spawn(read_through(consumer, Arc::clone(&total)));
    let troubling = tokio::spawn(trouble(Arc::clone(&behind), seed, faults));

    let producer = client.producer().batch_messages_max(25).delivery_timeout(Duration::from_mins(10)).build();
    let producer = producer.expect("a producer");
    let mut published = 0;
    while !troubling.is_finished() {
        let value = numbered(published, 100);
        for partition in 0..PARTITIONS {
            let record = Record::to("faulty").partition(partition).value(&value);
            drop(within(PATIENCE, "a message to be taken", producer.send(record)).await.expect("taken"));
        }
        published += 1;
        if published.is_multiple_of(100) {
            // The trouble shall last for sets by the thousand, not for gigabytes.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    troubling.await.expect("the trouble ends");
    let report = producer.flush(Duration::from_mins(5)).await;
    assert!(report.is_complete(), "{report:?}");
    total.store(published, Ordering::Relaxed);
    // Wakes a reader that has all already.
    let last = numbered(published, 100);
    for partition in 0..PARTITIONS {
        let delivery = producer.send(Record::to("faulty").partition(partition).value(&last)).await.expect("taken");
        soon("the last message's acknowledgement", delivery).await.expect("acknowledged");
    }
    let seen = within(Duration::from_mins(5), "the reader to see all", reader).await.expect("the reader");
    let stats = producer.stats();
    println!("{published} messages, {} sets sent again, {} connections", stats.retries, stats.connections);
    assert!(stats.retries > 0, "the trouble troubled nothing");
    for (partition, numbers) in seen.into_iter().enumerate() {
        // Sets may come again from the oldest unanswered one on; none is missing and none comes too early.
        let mut expected = 0;
        for found in numbers {
            assert!(found <= expected, "partition {partition}: message {found} came before message {expected}");
            expected = expected.max(found + 1);
        }
        assert!(expected >= published, "partition {partition} ends at message {expected} of {published}");
    }
}

/// Reads until message `total` - 1 of every partition has come; the numbers of each partition as they came. No position
/// comes twice or late.
async fn read_through(mut consumer: Consumer, total: Arc<AtomicU64>) -> Vec<Vec<u64>> {
    let mut seen = vec![Vec::new(); PARTITIONS as usize];
    let mut highest = vec![None; PARTITIONS as usize];
    let is_complete = |numbers: &Vec<u64>| numbers.last().is_some_and(|last| last + 1 >= total.load(Ordering::Relaxed));
    while !seen.iter().all(is_complete) {
        match consumer.next().await.expect("the consumer goes on") {
            Ok(message) => {
                let partition = message.partition() as usize;
                let position = message.position();
                assert!(highest[partition] < Some(position), "{position} came again or late");
                highest[partition] = Some(position);
                seen[partition].push(number(message.value().expect("a value")));
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_set_in_the_middle_of_a_window_leaves_the_others_in_order() {
    let behind = Behind::start();
    let client = behind.client().await;
    create(&client, "window", 1, TopicSettings::new()).await;
    let producer = client.producer().batch_messages_max(1).in_flight_max(16).build().expect("a producer");
    soon("the topic to be looked up", producer.prepare("window")).await.expect("a topic that exists");
    // The producer still believes in the old limit: what it sends beyond the new one is refused by the broker.
    let smaller = TopicSettings::new().message_bytes_max(1_000);
    client.admin().alter_topic("window", smaller).await.expect("a topic can be altered");
    let is_large = |at: u64| at % 7 == 3;
    let mut deliveries = Vec::new();
    for at in 0..500 {
        let value = numbered(at, if is_large(at) { 5_000 } else { 100 });
        deliveries.push(producer.send(Record::to("window").value(&value)).await.expect("a message is taken"));
    }
    for (at, delivery) in deliveries.into_iter().enumerate() {
        match soon("the message's fate", delivery).await {
            Ok(_) => assert!(!is_large(at as u64), "message {at} was accepted"),
            Err(DeliveryError::Refused(refusal)) => {
                assert!(is_large(at as u64), "message {at}: {refusal}");
            }
            Err(error) => panic!("message {at}: {error}"),
        }
    }
    let stored = numbers_of(&read_all(&client, "window").await);
    let expected: Vec<u64> = (0..500).filter(|at| !is_large(*at)).collect();
    assert_eq!(stored, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_delivers_everything_and_a_swallowed_answer_is_noticed() {
    let behind = Behind::start();
    let client = behind.client().await;
    create(&client, "slow", 1, TopicSettings::new()).await;
    behind.proxy.set(Direction::ToClient, Rule::Delay(Duration::from_millis(100)));
    let producer = client.producer().build().expect("a producer");
    for at in 0..2_000 {
        let value = numbered(at, 100);
        drop(soon("a message to be taken", producer.send(Record::to("slow").value(&value))).await.expect("taken"));
    }
    assert!(producer.flush(Duration::from_mins(1)).await.is_complete());
    assert_run(&numbers_of(&read_all(&client, "slow").await), 0..2_000);

    behind.proxy.set(Direction::ToClient, Rule::Swallow);
    let value = numbered(2_000, 100);
    let delivery = producer.send(Record::to("slow").value(&value)).await.expect("taken");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(delivery.try_result().is_none(), "acknowledged without an answer");
    behind.proxy.heal();
    soon("the message to be sent again", delivery).await.expect("acknowledged");
    let stored = numbers_of(&read_all(&client, "slow").await);
    assert_eq!((stored[1_999], stored.last()), (1_999, Some(&2_000)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_cannot_connect_does_not_spin() {
    let behind = Behind::start();
    let client = behind.client().await;
    create(&client, "unreachable", 1, TopicSettings::new()).await;
    let follower = follow(behind.proxy.addr(), "unreachable");
    soon("the follower's connection", async {
        // The client above, and then the follower: at least its first two connections.
        let before = behind.proxy.accepted();
        while behind.proxy.accepted() < before + 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    behind.proxy.refuse(true);
    behind.proxy.cut();
    let watched = Duration::from_secs(if full() { 30 } else { 4 });
    let before = follower.stats().cpu_seconds;
    let attempts_before = behind.proxy.accepted();
    tokio::time::sleep(watched).await;
    let spent = follower.stats().cpu_seconds - before;
    let attempts = behind.proxy.accepted() - attempts_before;
    println!("{attempts} attempts and {spent:.3} s of CPU in {watched:?}");
    assert!(attempts > 0, "it gave up");
    assert!(spent < 0.05 * watched.as_secs_f64(), "{spent} s of CPU in {watched:?}");
    assert!((attempts as f64) < 50.0 * watched.as_secs_f64(), "{attempts} attempts in {watched:?}");
}

/// The command line that follows a topic.
fn follow(addr: SocketAddr, topic: &str) -> Process {
    let mut command = Command::new(bin("corelane"));
    command.args(["--broker", &addr.to_string(), "consume", topic]);
    Process::start(&command)
}
