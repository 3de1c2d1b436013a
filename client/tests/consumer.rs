//! The consumer against a broker that misbehaves: whatever is cut, delayed, damaged or moved, each message comes once, in
//! order, and the stream says what it could not give.

mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corelane_client::{CallError, ConsumeError, Consumer, ConsumerBuilder, OutOfRange, SkipCause, Start};
use corelane_proto::codec::Codec;
use corelane_proto::frame::{Method, Status};
use corelane_proto::message::{MESSAGE_BYTES_LIMIT, MessageParts};
use corelane_proto::set::SetBuilder;
use corelane_proto::wrapper;
use support::{Act, FakeBroker, seed, set_of};

const SOON: Duration = Duration::from_secs(10);

fn value(index: usize) -> String {
    // Lengths differ, so that pieces end anywhere.
    format!("{index:06}{}", "x".repeat(index * 7 % 50))
}

fn fill(broker: &FakeBroker, topic: &str, partition: usize, range: std::ops::Range<usize>) {
    for index in range {
        broker.append(topic, partition, &set_of(&[&value(index)]));
    }
}

async fn next(consumer: &mut Consumer) -> corelane_client::ConsumedMessage {
    let next = tokio::time::timeout(SOON, consumer.next()).await;
    next.expect("a message comes soon").expect("the stream goes on").unwrap()
}

async fn take(consumer: &mut Consumer, count: usize) -> Vec<String> {
    let mut values = Vec::new();
    for _ in 0..count {
        values.push(String::from_utf8(next(consumer).await.value().unwrap().to_vec()).unwrap());
    }
    values
}

async fn rest(consumer: &mut Consumer) -> Vec<String> {
    let mut values = Vec::new();
    loop {
        match tokio::time::timeout(SOON, consumer.next()).await.expect("the stream ends soon") {
            None => return values,
            Some(message) => values.push(String::from_utf8(message.unwrap().value().unwrap().to_vec()).unwrap()),
        }
    }
}

fn values(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(value).collect()
}

async fn consumer(broker: &FakeBroker, configure: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder) -> Consumer {
    configure(broker.client().await.consumer()).build().await.unwrap()
}

#[tokio::test]
async fn pieces_of_any_size_make_the_same_messages() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..300);
    for fetch_bytes in [1, 23, 24, 25, 100, 1000, 1 << 20] {
        let mut consumer = consumer(&broker, |it| it.topic("t").fetch_bytes(fetch_bytes).until_end(true)).await;
        assert_eq!(rest(&mut consumer).await, values(0..300), "fetches of {fetch_bytes}");
        let stats = consumer.stats();
        assert_eq!((stats.messages, stats.bad_messages, stats.connections), (300, 0, 1));
    }
    broker.assert_no_complaints();
}

#[tokio::test]
async fn a_message_larger_than_a_fetch_arrives_and_does_not_take_a_fetch_for_each_kilobyte() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let large = "L".repeat(1_000_000);
    broker.append("t", 0, &set_of(&["before", &large, "after"]));
    let mut consumer = consumer(&broker, |it| it.topic("t").fetch_bytes(1024).until_end(true)).await;
    assert!(rest(&mut consumer).await == ["before", &large, "after"]);
    let fetches = broker.state().seen.iter().filter(|seen| seen.method == Method::Fetch).count();
    assert!(fetches < 10, "{fetches} fetches");
}

#[tokio::test]
async fn the_stream_follows_what_is_appended() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let mut consumer = consumer(&broker, |it| it.topic("t").max_wait(Duration::from_millis(50))).await;
    for index in 0..20 {
        if index % 5 == 0 {
            tokio::time::sleep(Duration::from_millis(70)).await;
        }
        fill(&broker, "t", 0, index..index + 1);
        assert_eq!(take(&mut consumer, 1).await, [value(index)]);
    }
    let positions = consumer.positions();
    assert_eq!(positions[0].position, positions[0].visible_end);
}

#[tokio::test]
async fn every_start_begins_where_it_says() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let mut starts = Vec::new();
    for index in 0..100_i64 {
        let mut set = SetBuilder::new();
        let value = value(index as usize);
        let parts = MessageParts { timestamp_ms: index * 10, value: Some(value.as_bytes()), ..MessageParts::default() };
        set.push(&parts).unwrap();
        starts.push(broker.append("t", 0, &set.finish()));
    }
    let cases = [
        (Start::Earliest, 0),
        (Start::Latest, 100),
        (Start::Position(0), 0),
        (Start::Position(starts[40]), 40),
        // A number inside a message means the next one.
        (Start::Position(starts[40] + 1), 41),
        (Start::TimeMs(-5), 0),
        (Start::TimeMs(500), 50),
        (Start::TimeMs(501), 51),
        (Start::TimeMs(99_999), 100),
        (Start::LastMessages(0), 100),
        (Start::LastMessages(1), 99),
        (Start::LastMessages(3), 97),
        (Start::LastMessages(99), 1),
        (Start::LastMessages(1000), 0),
    ];
    for (start, first) in cases {
        let mut consumer = consumer(&broker, |it| it.topic("t").start(start).until_end(true)).await;
        assert_eq!(rest(&mut consumer).await, values(first..100), "{start:?}");
    }
    let mut consumer = consumer(&broker, |it| it.topic("t").start(Start::Latest)).await;
    fill(&broker, "t", 0, 100..101);
    assert_eq!(take(&mut consumer, 1).await, [value(100)]);
}

#[tokio::test]
async fn a_consumer_resumes_where_another_stopped_inside_compressed_sets_too() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    for set in 0..10 {
        let plain = set_of(&[&value(set * 3), &value(set * 3 + 1), &value(set * 3 + 2)]);
        let codec = [Codec::Lz4, Codec::StoredSet, Codec::Zstd][set % 3];
        broker.append("t", 0, &if set % 4 == 3 { plain } else { wrapper::wrap(codec, &plain, true).unwrap() });
    }
    for stop in 0..=30 {
        let mut first = consumer(&broker, |it| it.topic("t").until_end(true)).await;
        assert_eq!(take(&mut first, stop).await, values(0..stop));
        let position = first.position("t", 0).unwrap();
        let mut second = consumer(&broker, |it| it.topic("t").start(Start::Position(position)).until_end(true)).await;
        assert_eq!(rest(&mut second).await, values(stop..30), "stopped after {stop}");
    }
}

#[tokio::test]
async fn cuts_anywhere_lose_nothing_and_repeat_nothing() {
    let seed = seed("cuts_anywhere");
    let broker = FakeBroker::start().await;
    broker.topic("t", 3);
    for partition in 0..3 {
        fill(&broker, "t", partition, 0..400);
    }
    for round in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(round));
        broker.script(move |seen| match (seen.method, random.u32(..100)) {
            (Method::Fetch, 0..4) => Act::Cut,
            (Method::Fetch, 4..12) => Act::CutAnswerAt(random.usize(..2000)),
            (Method::Fetch, 12..16) => Act::refuse([Status::Busy, Status::Stopping][random.usize(..2)]),
            (Method::Fetch, 16..20) => Act::After(Duration::from_millis(random.u64(..5))),
            _ => Act::Properly,
        });
        let mut consumer = consumer(&broker, |it| it.topic("t").fetch_bytes(1500).until_end(true)).await;
        let mut got: HashMap<u32, Vec<String>> = HashMap::new();
        loop {
            match tokio::time::timeout(SOON, consumer.next()).await.expect("the stream goes on") {
                None => break,
                Some(Ok(message)) => {
                    let value = String::from_utf8(message.value().unwrap().to_vec()).unwrap();
                    got.entry(message.partition()).or_default().push(value);
                }
                Some(Err(error)) => panic!("{error}"),
            }
        }
        for partition in 0..3 {
            assert_eq!(got[&partition], values(0..400), "partition {partition}, round {round}");
        }
    }
    broker.assert_no_complaints();
}

#[tokio::test]
async fn damaged_messages_are_counted_and_skipped_and_the_good_ones_around_them_delivered() {
    let seed = seed("damaged_messages");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..20 {
        let broker = FakeBroker::start().await;
        broker.topic("t", 1);
        fill(&broker, "t", 0, 0..100);
        let mut expected = values(0..100);
        let damaged = random.usize(..100);
        {
            let mut state = broker.state();
            let log = &mut state.topics.get_mut("t").unwrap().logs[0];
            let begin = log.boundaries[damaged] as usize;
            let end = log.boundaries.get(damaged + 1).map_or(log.bytes.len(), |&end| end as usize);
            log.bytes[random.usize(begin..end)] ^= 1 << random.u32(..8);
        }
        expected.remove(damaged);
        let mut consumer = consumer(&broker, |it| it.topic("t").fetch_bytes(700).until_end(true)).await;
        assert_eq!(rest(&mut consumer).await, expected, "damaged: {damaged}, round {round}");
        let stats = consumer.stats();
        assert_eq!((stats.messages, stats.bad_messages), (99, 1));
        assert!(stats.skipped_bytes >= 30);
    }
}

#[tokio::test]
async fn what_is_damaged_on_its_way_is_asked_for_again_and_only_what_stays_so_is_skipped() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..100);
    {
        let mut state = broker.state();
        let boundaries = state.topics["t"].logs[0].boundaries.clone();
        // Once in a value, twice in a head, and one that never comes over as it is.
        state.damaged_on_the_way =
            [(boundaries[10] + 30, 1), (boundaries[20] + 1, 2), (boundaries[30] + 30, 1_000)].into();
    }
    let mut consumer = consumer(&broker, |it| it.topic("t").fetch_bytes(700).until_end(true)).await;
    let mut expected = values(0..100);
    expected.remove(30);
    assert_eq!(rest(&mut consumer).await, expected);
    let stats = consumer.stats();
    assert_eq!((stats.messages, stats.bad_messages), (99, 1));
}

#[tokio::test]
async fn a_message_of_a_newer_format_is_named_and_not_skipped_like_damage() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..10);
    let (at, behind) = {
        let mut state = broker.state();
        let log = &mut state.topics.get_mut("t").unwrap().logs[0];
        let (at, behind) = (log.boundaries[4] as usize, log.boundaries[5] as usize);
        log.bytes[at + 8] = 2;
        let crc = crc32fast::hash(&log.bytes[at + 8..behind]);
        log.bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        (at as u64, behind as u64)
    };
    let mut consumer = consumer(&broker, |it| it.topic("t")).await;
    assert_eq!(take(&mut consumer, 4).await, values(0..4));
    let next = tokio::time::timeout(SOON, consumer.next()).await.expect("an error comes soon");
    let error = next.expect("the stream goes on").expect_err("nobody here knows version 2");
    assert!(!error.is_retryable());
    let ConsumeError::NewerVersion { position, next_position, version: 2, .. } = error else { panic!("{error}") };
    assert_eq!((position, next_position), (at, behind));
    // Whoever wants to goes on behind it.
    consumer.seek("t", 0, Start::Position(next_position)).await.expect("a position that is retained");
    assert_eq!(take(&mut consumer, 5).await, values(5..10));
    assert_eq!(consumer.stats().bad_messages, 0);
}

#[tokio::test]
async fn partitions_take_turns_and_prefetch_stays_bounded() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 4);
    for partition in 0..4 {
        for _ in 0..200 {
            broker.append("t", partition, &set_of(&[&"x".repeat(1000)]));
        }
    }
    let prefetch_bytes = 100_000;
    let mut consumer =
        consumer(&broker, |it| it.topic("t").prefetch_bytes(prefetch_bytes).fetch_bytes(5000).until_end(true)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let fetched = consumer.stats().bytes;
    // Each partition may go beyond its share by the piece that is under way.
    assert!(fetched > 0 && fetched <= prefetch_bytes as u64 + 4 * 2 * 5000, "{fetched}");
    let mut counts = [0_usize; 4];
    for _ in 0..400 {
        counts[next(&mut consumer).await.partition() as usize] += 1;
    }
    assert!(counts.iter().all(|&count| count > 60), "{counts:?}");
    assert_eq!(rest(&mut consumer).await.len(), 400);
}

#[tokio::test]
async fn what_retention_has_taken_is_handled_as_the_policy_says() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..100);
    let start = {
        let mut state = broker.state();
        let log = &mut state.topics.get_mut("t").unwrap().logs[0];
        log.start = log.boundaries[30];
        log.start
    };
    let from = |policy| {
        move |it: ConsumerBuilder| it.topic("t").start(Start::Position(5)).out_of_range(policy).until_end(true)
    };
    assert_eq!(rest(&mut consumer(&broker, from(OutOfRange::Earliest)).await).await, values(30..100));
    assert_eq!(rest(&mut consumer(&broker, from(OutOfRange::Latest)).await).await, values(100..100));
    let mut failing = consumer(&broker, from(OutOfRange::Fail)).await;
    let error = failing.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ConsumeError::OutOfRange { position: 5, start: at, .. } if at == start), "{error}");
    assert!(failing.next().await.is_none());
    failing.seek("t", 0, Start::Position(start)).await.unwrap();
    assert_eq!(rest(&mut failing).await, values(30..100));
}

#[tokio::test]
async fn retention_that_overtakes_a_reader_moves_it_to_the_start_and_is_counted() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..400);
    let skips = Arc::new(Mutex::new(Vec::new()));
    let told = skips.clone();
    let mut consumer = consumer(&broker, |it| {
        let it = it.topic("t").fetch_bytes(1000).prefetch_bytes(2000).until_end(true);
        it.on_skip(move |skip| told.lock().unwrap().push(skip.clone()))
    })
    .await;
    assert_eq!(take(&mut consumer, 1).await, values(0..1));
    let start = {
        let mut state = broker.state();
        let log = &mut state.topics.get_mut("t").unwrap().logs[0];
        log.start = log.boundaries[300];
        log.start
    };
    let rest = rest(&mut consumer).await;
    assert_eq!(rest[rest.len() - 100..], values(300..400));
    assert!(rest.len() < 350, "{}", rest.len());
    assert_eq!(consumer.stats().resets, 1);
    let skips = skips.lock().unwrap();
    let [skip] = &skips[..] else { panic!("{skips:?}") };
    assert_eq!((skip.partition, skip.to, skip.cause), (0, start, SkipCause::Retention));
    let read = rest.len() - 100;
    let next = broker.state().topics["t"].logs[0].boundaries[1 + read];
    assert_eq!(skip.from, next, "just behind what was read before");
}

#[tokio::test]
async fn seek_goes_back_and_forth_and_drops_what_was_fetched() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 2);
    fill(&broker, "t", 0, 0..100);
    fill(&broker, "t", 1, 0..10);
    let boundaries = broker.state().topics["t"].logs[0].boundaries.clone();
    let mut consumer = consumer(&broker, |it| it.partition("t", 0).until_end(true)).await;
    for first in [50, 0, 99, 20] {
        consumer.seek("t", 0, Start::Position(boundaries[first])).await.unwrap();
        assert_eq!(take(&mut consumer, 1).await, values(first..first + 1));
    }
    assert_eq!(rest(&mut consumer).await, values(21..100));
    consumer.seek("t", 0, Start::LastMessages(5)).await.unwrap();
    assert_eq!(rest(&mut consumer).await, values(95..100));
    assert!(consumer.seek("t", 1, Start::Earliest).await.is_err(), "it does not read that partition");
}

#[tokio::test]
async fn a_partition_that_moves_is_followed() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..50);
    let mut consumer = consumer(&broker, |it| it.topic("t").max_wait(Duration::from_millis(50))).await;
    assert_eq!(take(&mut consumer, 50).await, values(0..50));
    for round in 1..4 {
        broker.state().topics.get_mut("t").unwrap().shards[0] = round % 2;
        fill(&broker, "t", 0, 50 * round as usize..50 * (round as usize + 1));
        assert_eq!(take(&mut consumer, 50).await, values(50 * round as usize..50 * (round as usize + 1)));
    }
}

/// A broker of which partition 1 of "t" lies on another one, which is away.
async fn with_partition_1_away() -> FakeBroker {
    let broker = FakeBroker::start().await;
    broker.topic("t", 2);
    fill(&broker, "t", 0, 0..20);
    fill(&broker, "t", 1, 20..30);
    broker.state().down.push(1);
    broker
}

#[tokio::test]
async fn partitions_of_a_broker_that_is_away_begin_when_it_is_back_and_hold_up_no_others() {
    for (start, expected) in [(Start::Earliest, 0..20), (Start::LastMessages(5), 15..20)] {
        let broker = with_partition_1_away().await;
        let mut consumer = consumer(&broker, |it| it.topic("t").start(start).until_end(true)).await;
        assert_eq!(consumer.not_begun(), [("t".into(), 1)]);
        assert_eq!(consumer.positions().iter().map(|at| at.partition).collect::<Vec<_>>(), [0]);
        assert_eq!(take(&mut consumer, expected.len()).await, values(expected.clone()));
        assert!(
            tokio::time::timeout(Duration::from_millis(50), consumer.next()).await.is_err(),
            "it waits for the rest"
        );
        broker.state().down.clear();
        let count = expected.len().min(10);
        assert_eq!(rest(&mut consumer).await, values(30 - count..30));
        assert!(consumer.not_begun().is_empty());
        assert_eq!(consumer.positions()[1].position, consumer.positions()[1].visible_end);
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_named_and_can_be_given_up() {
    let broker = with_partition_1_away().await;
    let client = broker.builder().request_timeout(Duration::from_millis(1500)).build().await.unwrap();
    let mut consumer = client.consumer().topic("t").until_end(true).build().await.unwrap();
    assert_eq!(take(&mut consumer, 20).await, values(0..20));
    let error = tokio::time::timeout(SOON, consumer.next()).await.unwrap().unwrap().unwrap_err();
    let ConsumeError::Unavailable { partition: 1, cause: CallError::Unreachable { broker_id: 9, .. }, .. } = &error
    else {
        panic!("{error}")
    };
    assert!(error.is_retryable() && error.to_string().starts_with("t/1 cannot be read: broker 9"), "{error}");
    assert!(consumer.stop("t", 1) && !consumer.stop("t", 2));
    assert_eq!(rest(&mut consumer).await, [""; 0]);
    // Sought, it begins where it is told to, as soon as it is there.
    broker.state().down.clear();
    consumer.seek("t", 1, Start::Earliest).await.unwrap();
    assert_eq!(rest(&mut consumer).await, values(20..30));
}

#[tokio::test]
async fn a_consumer_of_which_no_partition_can_begin_is_an_error() {
    let broker = with_partition_1_away().await;
    broker.state().down.push(0);
    let client = broker.builder().request_timeout(Duration::from_millis(1500)).build().await.unwrap();
    let error = client.consumer().topic("t").build().await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable { broker_id: 9, .. }), "{error}");
}

#[tokio::test]
async fn a_restarted_broker_is_read_on_where_it_was() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..50);
    let mut consumer = consumer(&broker, |it| it.topic("t")).await;
    assert_eq!(take(&mut consumer, 50).await, values(0..50));
    let topics = broker.stop().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let again = FakeBroker::start_at(&broker.address, topics).await;
    fill(&again, "t", 0, 50..60);
    assert_eq!(take(&mut consumer, 10).await, values(50..60));
}

#[tokio::test]
async fn while_the_broker_is_away_the_stream_says_so_and_goes_on_when_it_is_back() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..5);
    let client = broker.builder().request_timeout(Duration::from_millis(200)).build().await.unwrap();
    let mut consumer = client.consumer().topic("t").build().await.unwrap();
    assert_eq!(take(&mut consumer, 5).await, values(0..5));
    let topics = broker.stop().await;
    let error = tokio::time::timeout(SOON, consumer.next()).await.expect("it says so").unwrap().unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains(&broker.address), "{error}");
    let again = FakeBroker::start_at(&broker.address, topics).await;
    fill(&again, "t", 0, 5..6);
    loop {
        match tokio::time::timeout(SOON, consumer.next()).await.expect("it goes on").unwrap() {
            Ok(message) => {
                assert_eq!(message.value().unwrap(), value(5).as_bytes());
                break;
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_new_epoch_and_a_deleted_topic_are_told() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..5);
    let failing =
        |it: ConsumerBuilder| it.topic("t").out_of_range(OutOfRange::Fail).max_wait(Duration::from_millis(50));
    let mut stays = consumer(&broker, |it| it.topic("t").max_wait(Duration::from_millis(50))).await;
    let mut fails = consumer(&broker, failing).await;
    assert_eq!(take(&mut stays, 5).await, values(0..5));
    assert_eq!(take(&mut fails, 5).await, values(0..5));
    {
        let mut state = broker.state();
        let topic = state.topics.get_mut("t").unwrap();
        topic.epoch = 2;
        topic.logs[0] = support::Log::default();
    }
    fill(&broker, "t", 0, 7..9);
    assert_eq!(take(&mut stays, 2).await, values(7..9));
    let error = tokio::time::timeout(SOON, fails.next()).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, ConsumeError::NewEpoch { expected: 1, epoch: 2, .. }), "{error}");
    broker.state().topics.clear();
    broker.wake();
    let error = tokio::time::timeout(SOON, stays.next()).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, ConsumeError::TopicDeleted { .. }), "{error}");
    assert!(stays.next().await.is_none());
}

#[tokio::test]
async fn partitions_that_are_added_are_read_from_their_start_too() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..3);
    let mut consumer =
        consumer(&broker, |it| it.topic("t").start(Start::Latest).refresh(Duration::from_millis(20))).await;
    {
        let mut state = broker.state();
        let topic = state.topics.get_mut("t").unwrap();
        topic.logs.push(support::Log::default());
        topic.shards.push(1);
    }
    fill(&broker, "t", 1, 0..5);
    assert_eq!(take(&mut consumer, 5).await, values(0..5));
    fill(&broker, "t", 0, 3..4);
    assert_eq!(take(&mut consumer, 1).await, values(3..4));
    let end = broker.state().topics["t"].logs[1].end();
    assert_eq!(consumer.position("t", 1), Some(end));
    consumer.seek("t", 1, Start::Earliest).await.unwrap();
    assert_eq!(take(&mut consumer, 5).await, values(0..5));
}

#[tokio::test]
async fn unknown_topics_and_partitions_are_errors_at_once() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 2);
    let client = broker.client().await;
    let error = client.consumer().topic("nope").build().await.unwrap_err();
    assert!(matches!(error, CallError::UnknownTopic { .. }), "{error}");
    let error = client.consumer().partition("t", 2).build().await.unwrap_err();
    assert!(matches!(error, CallError::NoSuchPartition { partition: 2, partitions: 2, .. }), "{error}");
}

#[tokio::test]
async fn a_consumer_is_a_stream_for_combinators() {
    use futures_util::StreamExt;
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    fill(&broker, "t", 0, 0..10);
    let consumer = consumer(&broker, |it| it.topic("t")).await;
    let lengths: Vec<usize> = consumer.map(|message| message.unwrap().value().unwrap().len()).take(10).collect().await;
    assert_eq!(lengths, (0..10).map(|index| value(index).len()).collect::<Vec<_>>());
}

#[tokio::test]
async fn keys_headers_times_and_tombstones_arrive_as_they_were_sent() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let client = broker.client().await;
    let producer = client.producer().build().unwrap();
    use corelane_client::Record;
    let records = [
        Record::to("t").key(b"k").value(b"v").header("a", Some(b"1")).header("a", None).timestamp_ms(42),
        Record::to("t").key(b"").tombstone(),
        Record::to("t").value(b""),
    ];
    for record in records {
        drop(producer.send(record).await.unwrap());
    }
    assert!(producer.close(SOON).await.is_complete());
    let mut consumer = client.consumer().topic("t").build().await.unwrap();
    let first = next(&mut consumer).await;
    assert_eq!((first.key(), first.value(), first.timestamp_ms()), (Some(&b"k"[..]), Some(&b"v"[..]), 42));
    assert_eq!(first.headers().collect::<Vec<_>>(), [("a", Some(&b"1"[..])), ("a", None)]);
    assert_eq!(first.value_bytes().unwrap(), "v");
    let second = next(&mut consumer).await;
    assert_eq!((second.key(), second.value()), (Some(&b""[..]), None));
    let third = next(&mut consumer).await;
    assert_eq!((third.key(), third.value()), (None, Some(&b""[..])));
    assert!(third.frame().len() <= MESSAGE_BYTES_LIMIT as usize);
}
