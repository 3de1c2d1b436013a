//! The client against real brokers: whole, killed, restarted, paused, and behind a proxy that misbehaves.

mod support;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corelane_client::{
    Acks, CallError, Client, Compression, DeliveryError, Find, GroupConsumer, NewTopic, OutOfRange, Record, SendError,
    Start, Status, TopicSettings, partition_for_key,
};
use corelane_testkit::{Broker, BrokerOptions, Direction, Port, Proxy, Rule};

const LONG: Duration = Duration::from_mins(1);

async fn connect(broker: &Broker) -> Client {
    Client::builder().bootstrap(broker.addr().to_string()).build().await.unwrap()
}

async fn create(client: &Client, topic: &str, partitions: u32) {
    client.admin().create_topic(NewTopic::named(topic).partitions(partitions)).await.unwrap();
}

fn value(index: usize) -> String {
    format!("{index:06} {}", "v".repeat(index * 31 % 300))
}

async fn publish(client: &Client, topic: &str, range: std::ops::Range<usize>) {
    let producer = client.producer().build().unwrap();
    for index in range {
        drop(producer.send(Record::to(topic).value(value(index).as_bytes())).await.unwrap());
    }
    let report = producer.close(LONG).await;
    assert!(report.is_complete(), "{report:?}");
}

/// Values by partition, up to the ends of now.
async fn read(client: &Client, topic: &str, fetch_bytes: u32) -> BTreeMap<u32, Vec<String>> {
    let mut consumer = client.consumer().topic(topic).fetch_bytes(fetch_bytes).until_end(true).build().await.unwrap();
    let mut values: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    while let Some(message) = tokio::time::timeout(LONG, consumer.next()).await.expect("the stream goes on") {
        let message = message.unwrap();
        let value = String::from_utf8(message.value().unwrap().to_vec()).unwrap();
        values.entry(message.partition()).or_default().push(value);
    }
    assert_eq!(consumer.stats().bad_messages, 0);
    values
}

fn first_copies(values: &[String]) -> Vec<&String> {
    let mut seen = HashSet::new();
    values.iter().filter(|value| seen.insert(*value)).collect()
}

#[tokio::test]
async fn what_is_published_is_consumed_in_order_with_every_codec_and_fetch_size() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    let codecs = [Compression::None, Compression::Lz4, Compression::Zstd, Compression::Snappy, Compression::Gzip];
    for compression in codecs {
        let topic = format!("t-{compression:?}");
        create(&client, &topic, 4).await;
        let producer = client.producer().compression(compression).batch_bytes(8 << 10).build().unwrap();
        let mut expected: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        let mut deliveries = Vec::new();
        for index in 0..3000 {
            let (key, value) = (format!("key-{}", index % 50), value(index));
            let record = Record::to(&topic).key(key.as_bytes()).value(value.as_bytes());
            deliveries.push(producer.send(record).await.unwrap());
            expected.entry(partition_for_key(key.as_bytes(), 4)).or_default().push(value);
        }
        assert!(producer.close(LONG).await.is_complete());
        for fetch_bytes in [1000, 1 << 20] {
            assert!(read(&client, &topic, fetch_bytes).await == expected, "{compression:?}");
        }
        // What a delivery says is where the message is found.
        for index in [0, 1, 1499, 2999] {
            let delivered = deliveries[index].clone().await.unwrap();
            let start = Start::Position(delivered.position.unwrap());
            let consumer = client.consumer().partition_from(&topic, delivered.partition, start);
            let message = consumer.build().await.unwrap().next().await.unwrap().unwrap();
            assert_eq!(message.position(), delivered.position.unwrap(), "{compression:?}");
            assert_eq!(message.value().unwrap(), value(index).as_bytes(), "{compression:?}");
        }
    }
}

#[tokio::test]
async fn every_call_of_the_admin_does_what_it_says() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    let admin = client.admin();
    let settings =
        TopicSettings::new().segment_bytes(1 << 20).retention(Duration::from_hours(1)).set_bytes_max(1 << 20);
    let created = admin.create_topic(NewTopic::named("b").partitions(3).settings(settings.clone())).await.unwrap();
    assert!(created.created && created.topic.partitions.len() == 3);
    assert_eq!(created.topic.settings.retention_ms, Some(3_600_000));
    let error = admin.create_topic(NewTopic::named("b").partitions(3)).await.unwrap_err();
    assert_eq!(error.refusal().unwrap().status, Status::TopicExists);
    let again = admin.create_topic(NewTopic::named("b").partitions(3).if_not_exists(true)).await.unwrap();
    assert!(!again.created);
    assert_eq!(again.topic.topic_id, created.topic.topic_id);
    let error = admin.create_topic(NewTopic::named("not a name")).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("name"), "{error}");
    create(&client, "a", 1).await;
    let names: Vec<String> = admin.list_topics().await.unwrap().into_iter().map(|topic| topic.name).collect();
    assert_eq!(names, ["a", "b"]);
    let altered = admin.alter_topic("b", TopicSettings::new().retention_bytes(123 << 20)).await.unwrap();
    assert_eq!((altered.settings.retention_bytes, altered.settings.retention_ms), (Some(123 << 20), Some(3_600_000)));
    publish(&client, "a", 0..100).await;
    let described = admin.describe_topic("a").await.unwrap();
    assert!(described.details[0].visible_end > 2400 && described.details[0].start == 0, "{described:?}");
    let cluster = admin.describe_cluster().await.unwrap();
    assert_eq!((cluster.topics, cluster.partitions, cluster.registry.as_str()), (2, 4, "embedded"));
    assert!(cluster.brokers.iter().any(|at| at.port == broker.addr().port() && at.alive));
    let end = admin.find("a", 0, Find::Latest).await.unwrap();
    assert_eq!((end.position, end.start), (described.details[0].visible_end, 0));
    assert_eq!(admin.find("a", 0, Find::Containing(3)).await.unwrap().position, 0);
    let id = admin.delete_topic("a").await.unwrap();
    assert_eq!(id, described.topic.topic_id);
    for error in [
        admin.describe_topic("a").await.unwrap_err(),
        admin.delete_topic("a").await.unwrap_err(),
        admin.find("a", 0, Find::Latest).await.unwrap_err(),
        admin.alter_topic("a", settings).await.unwrap_err(),
    ] {
        assert!(matches!(error, CallError::UnknownTopic { .. }), "{error}");
    }
    let error = admin.find("b", 3, Find::Latest).await.unwrap_err();
    assert!(matches!(error, CallError::NoSuchPartition { partition: 3, partitions: 3, .. }), "{error}");
}

#[tokio::test]
async fn starts_and_trims_agree_with_the_log() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    let small = TopicSettings::new().segment_bytes(64 << 10).set_bytes_max(16 << 10).message_bytes_max(16 << 10);
    client.admin().create_topic(NewTopic::named("t").settings(small)).await.unwrap();
    let producer = client.producer().batch_bytes(4 << 10).build().unwrap();
    let mut positions = Vec::new();
    for index in 0..2000 {
        let value = value(index);
        let record = Record::to("t").value(value.as_bytes()).timestamp_ms(1_000_000 + index as i64);
        positions.push(producer.send(record).await.unwrap());
    }
    assert!(producer.close(LONG).await.is_complete());
    let mut ids = Vec::new();
    for delivery in positions {
        ids.push(delivery.await.unwrap().position.unwrap());
    }
    let from = async |start, policy: OutOfRange| {
        let consumer = client.consumer().topic("t").start(start).out_of_range(policy).until_end(true);
        let mut consumer = consumer.build().await.unwrap();
        let mut values = Vec::new();
        while let Some(message) = consumer.next().await {
            values.push(String::from_utf8(message.unwrap().value().unwrap().to_vec()).unwrap());
        }
        values
    };
    let expected = |first: usize| (first..2000).map(value).collect::<Vec<_>>();
    for (start, first) in [
        (Start::Earliest, 0),
        (Start::Latest, 2000),
        (Start::Position(ids[1234]), 1234),
        (Start::Position(ids[1234] + 1), 1235),
        (Start::TimeMs(1_000_777), 777),
        (Start::TimeMs(0), 0),
        (Start::TimeMs(i64::MAX), 2000),
        (Start::LastMessages(1), 1999),
        (Start::LastMessages(777), 1223),
        (Start::LastMessages(5000), 0),
    ] {
        assert!(from(start, OutOfRange::Fail).await == expected(first), "{start:?}");
    }
    let start = client.admin().trim("t", 0, ids[1000]).await.unwrap();
    let first = ids.binary_search(&start).expect("a segment begins with a message");
    assert!(first > 700 && first <= 1000, "{first}");
    assert!(from(Start::Position(ids[10]), OutOfRange::Earliest).await == expected(first));
    assert!(from(Start::Earliest, OutOfRange::Fail).await == expected(first));
    assert!(from(Start::Position(ids[10]), OutOfRange::Latest).await.is_empty());
}

#[tokio::test]
async fn messages_around_the_limit_arrive_or_are_refused_and_block_nobody() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    let limit = 1_000_000;
    let settings = TopicSettings::new().message_bytes_max(limit).set_bytes_max(2_000_000);
    client.admin().create_topic(NewTopic::named("t").settings(settings)).await.unwrap();
    let producer = client.producer().build().unwrap();
    let mut arrived = Vec::new();
    for bytes in [limit - 1, limit, limit + 1, 100, limit] {
        let value = "x".repeat(bytes as usize - 24);
        match producer.send(Record::to("t").value(value.as_bytes())).await {
            Ok(delivery) => {
                delivery.await.unwrap();
                arrived.push(value.len());
            }
            Err(SendError::TooLarge { bytes, .. }) => assert_eq!(bytes, limit as usize + 1),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(arrived.len(), 4);
    let read = read(&client, "t", 1024).await;
    assert_eq!(read[&0].iter().map(String::len).collect::<Vec<_>>(), arrived);
}

#[tokio::test]
async fn acknowledged_messages_survive_kills_and_both_sides_go_on_by_themselves() {
    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "t", 2).await;
    let producer = client.producer().batch_messages_max(20).in_flight_max(8).build().unwrap();
    let mut consumer = client.consumer().topic("t").build().await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    // The broker's life, on a thread of its own.
    let killing = std::thread::spawn(move || {
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(400));
            broker.kill9();
            broker.restart();
        }
        over.store(true, Ordering::Relaxed);
        broker
    });
    let consumed: Arc<Mutex<HashMap<u32, Vec<String>>>> = Arc::default();
    let into = consumed.clone();
    let consuming = tokio::spawn(async move {
        loop {
            let message = match consumer.next().await.expect("it waits for more") {
                Ok(message) => message,
                Err(error) => panic!("{error}"),
            };
            let value = String::from_utf8(message.value().unwrap().to_vec()).unwrap();
            into.lock().unwrap().entry(message.partition()).or_default().push(value);
        }
    });
    let mut deliveries = Vec::new();
    let mut index = 0;
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..20 {
            let value = value(index);
            let record = Record::to("t").partition((index % 2) as u32).value(value.as_bytes());
            deliveries.push(producer.send(record).await.unwrap());
            index += 1;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let report = producer.close(LONG).await;
    assert_eq!((report.acknowledged, report.failed, report.unsent), (index as u64, 0, 0), "{report:?}");
    let _broker = killing.join().unwrap();
    let read = read(&client, "t", 1 << 20).await;
    let deadline = Instant::now() + LONG;
    for partition in 0..2_u32 {
        let values = &read[&partition];
        let expected: Vec<String> = (0..index).filter(|index| index % 2 == partition as usize).map(value).collect();
        assert!(first_copies(values).into_iter().eq(&expected), "partition {partition}");
        // The consumer that was there all the time saw the same.
        while consumed.lock().unwrap().get(&partition).map_or(0, Vec::len) < values.len() {
            assert!(Instant::now() < deadline, "the consumer goes on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(consumed.lock().unwrap()[&partition] == *values, "partition {partition}");
    }
    consuming.abort();
}

#[tokio::test]
async fn flush_tells_the_truth_about_a_broker_that_hangs() {
    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "t", 2).await;
    let acknowledged = Arc::new(Mutex::new(0));
    let count = acknowledged.clone();
    let producer = client
        .producer()
        .on_set(move |set| {
            if set.first.is_ok() {
                *count.lock().unwrap() += u64::from(set.messages);
            }
        })
        .build()
        .unwrap();
    for index in 0..100_000 {
        if index == 30_000 {
            broker.pause();
        }
        drop(producer.send(Record::to("t").value(value(index).as_bytes())).await.unwrap());
    }
    let began = Instant::now();
    let flushed = producer.flush(Duration::from_millis(500)).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(flushed.published, 100_000);
    assert_eq!(flushed.acknowledged + flushed.failed + flushed.unsent, flushed.published);
    assert!(flushed.unsent > 0, "{flushed:?}");
    let closed = producer.close(Duration::from_millis(200)).await;
    assert_eq!(closed.acknowledged + closed.failed + closed.unsent, closed.published);
    assert_eq!(closed.acknowledged, *acknowledged.lock().unwrap());
    broker.resume();
    let read: Vec<String> = read(&client, "t", 1 << 20).await.into_values().flatten().collect();
    assert!(read.len() as u64 >= closed.acknowledged, "{} < {}", read.len(), closed.acknowledged);
}

#[tokio::test]
async fn without_acknowledgements_everything_arrives_when_nothing_goes_wrong() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    for acks in [Acks::None, Acks::Received] {
        let topic = format!("t-{acks:?}");
        create(&client, &topic, 1).await;
        let producer = client.producer().acks(acks).batch_messages_max(10).build().unwrap();
        for index in 0..5000 {
            drop(producer.send(Record::to(&topic).value(value(index).as_bytes())).await.unwrap());
        }
        assert!(producer.close(LONG).await.is_complete());
        let expected: Vec<String> = (0..5000).map(value).collect();
        let mut consumer = client.consumer().topic(&topic).build().await.unwrap();
        for expected in expected {
            let message = tokio::time::timeout(LONG, consumer.next()).await.unwrap().unwrap().unwrap();
            assert_eq!(message.value().unwrap(), expected.as_bytes());
        }
    }
}

#[tokio::test]
async fn a_topic_that_is_deleted_under_its_producer_and_consumer_ends_them_with_an_error() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "t", 1).await;
    let producer = client.producer().build().unwrap();
    producer.send(Record::to("t").value(b"1")).await.unwrap().await.unwrap();
    let mut consumer = client.consumer().topic("t").build().await.unwrap();
    consumer.next().await.unwrap().unwrap();
    client.admin().delete_topic("t").await.unwrap();
    let error = tokio::time::timeout(LONG, consumer.next()).await.expect("it hears of it").unwrap().unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    assert!(consumer.next().await.is_none());
    let error = producer.send(Record::to("t").value(b"2")).await.unwrap().await.unwrap_err();
    assert!(matches!(error, DeliveryError::TopicDeleted), "{error}");
    create(&client, "t", 2).await;
    producer.send(Record::to("t").value(b"3")).await.unwrap().await.unwrap();
}

/// A broker that tells its clients the proxy's address, so that nobody goes around it.
fn behind_a_proxy() -> (Broker, Proxy) {
    let port = Port::reserve();
    let proxy = Proxy::start(port.addr());
    let options = BrokerOptions::new().listen(port.addr()).args(["--advertise", &proxy.addr().to_string()]);
    drop(port);
    (Broker::start(options), proxy)
}

/// Cuts, silence, delays and lost tails in both directions, one after the other, while messages flow.
#[tokio::test]
async fn through_a_bad_network_nothing_acknowledged_is_lost_or_out_of_order_and_everything_is_accounted_for() {
    let seed = support::seed("through_a_bad_network");
    let mut random = fastrand::Rng::with_seed(seed);
    let (_broker, proxy) = behind_a_proxy();
    let client = Client::builder()
        .bootstrap(proxy.addr().to_string())
        .connect_timeout(Duration::from_millis(500))
        .request_timeout(Duration::from_secs(1))
        .build()
        .await
        .unwrap();
    create(&client, "t", 2).await;
    let producer = client.producer().batch_messages_max(10).in_flight_max(6).build().unwrap();
    let mut consumer = client.consumer().topic("t").fetch_bytes(4 << 10).build().await.unwrap();
    let consumed: Arc<Mutex<HashMap<u32, Vec<String>>>> = Arc::default();
    let into = consumed.clone();
    let consuming = tokio::spawn(async move {
        while let Some(next) = consumer.next().await {
            // What cannot be reached for a while is told, and the stream goes on.
            let message = match next {
                Ok(message) => message,
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    continue;
                }
            };
            let value = String::from_utf8(message.value().unwrap().to_vec()).unwrap();
            into.lock().unwrap().entry(message.partition()).or_default().push(value);
        }
    });
    let mut index = 0;
    for _ in 0..12 {
        let direction = [Direction::ToBroker, Direction::ToClient][random.usize(..2)];
        let bytes = random.u64(..30_000);
        let rule = match random.u32(..5) {
            0 => Rule::Delay(Duration::from_millis(random.u64(..30))),
            1 => Rule::Hold,
            2 => Rule::SwallowAfter(bytes),
            _ => Rule::CutAfter(bytes),
        };
        proxy.set(direction, rule);
        for _ in 0..random.usize(..400) {
            let value = value(index);
            let record = Record::to("t").partition((index % 2) as u32).value(value.as_bytes());
            drop(producer.send(record).await.unwrap());
            index += 1;
        }
        tokio::time::sleep(Duration::from_millis(random.u64(..100))).await;
        proxy.heal();
        if matches!(rule, Rule::SwallowAfter(_)) {
            // What was swallowed leaves streams without meaning; a real network would have reset them.
            proxy.cut();
        }
        tokio::time::sleep(Duration::from_millis(random.u64(..50))).await;
    }
    let report = producer.close(LONG).await;
    assert_eq!((report.acknowledged, report.failed, report.unsent), (index as u64, 0, 0), "{report:?}");
    let read = read(&client, "t", 1 << 20).await;
    let deadline = Instant::now() + LONG;
    for partition in 0..2_u32 {
        let expected: Vec<String> = (0..index).filter(|index| index % 2 == partition as usize).map(value).collect();
        let values = read.get(&partition).map_or(&[][..], Vec::as_slice);
        assert!(first_copies(values).into_iter().eq(&expected), "partition {partition}");
        while consumed.lock().unwrap().get(&partition).map_or(0, Vec::len) < values.len() {
            assert!(Instant::now() < deadline, "the consumer goes on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(
            consumed.lock().unwrap().get(&partition).map_or(&[][..], Vec::as_slice) == values,
            "partition {partition}"
        );
    }
    consuming.abort();
}

/// What a member got and put down, until so many messages have come or nothing comes for a while.
async fn take(consumer: &mut GroupConsumer, most: usize) -> Vec<String> {
    let mut values = Vec::new();
    while values.len() < most {
        let Ok(next) = tokio::time::timeout(Duration::from_secs(2), consumer.next()).await else { break };
        let message = next.expect("the stream goes on").expect("a message");
        values.push(String::from_utf8(message.value().unwrap().to_vec()).unwrap());
    }
    values
}

/// To all partitions, one after the other.
async fn publish_round(client: &Client, topic: &str, partitions: u32, range: std::ops::Range<usize>) {
    let producer = client.producer().build().unwrap();
    for index in range {
        let record = Record::to(topic).partition(index as u32 % partitions);
        drop(producer.send(record.value(value(index).as_bytes())).await.unwrap());
    }
    let report = producer.close(LONG).await;
    assert!(report.is_complete(), "{report:?}");
}

#[tokio::test]
async fn members_of_a_group_share_the_work_and_the_next_one_goes_on_where_they_stood() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "t", 6).await;
    let member = || client.group("workers").topic("t").commit_interval(Duration::from_millis(50)).build().unwrap();
    let (mut one, mut other) = (member(), member());
    let began = Instant::now();
    while one.assignment().len() != 3 || other.assignment().len() != 3 {
        assert!(began.elapsed() < LONG, "{:?} {:?}", one.assignment(), other.assignment());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    publish_round(&client, "t", 6, 0..1_000).await;
    let (ones, others) = tokio::join!(take(&mut one, 1_000), take(&mut other, 1_000));
    assert!(ones.len() >= 498 && others.len() >= 498, "{} and {}", ones.len(), others.len());
    let mut all: Vec<String> = ones.into_iter().chain(others).collect();
    all.sort();
    assert_eq!(all, (0..1_000).map(value).collect::<Vec<_>>(), "each message came once, to one of the two");
    one.close().await.unwrap();
    // It takes over what the other one had, and nothing is repeated.
    publish_round(&client, "t", 6, 1_000..1_300).await;
    let mut all = take(&mut other, 300).await;
    all.sort();
    assert_eq!(all, (1_000..1_300).map(value).collect::<Vec<_>>());
    other.close().await.unwrap();
    let group = client.admin().describe_group("workers").await.unwrap();
    assert!(group.members.is_empty());
    let topic = client.admin().describe_topic("t").await.unwrap();
    for (partition, detail) in group.partitions.iter().zip(&topic.details) {
        assert_eq!(partition.committed.map(|(_, position)| position), Some(detail.end), "{partition:?}");
    }
}
