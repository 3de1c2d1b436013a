//! Looking for places by time: monotone answers, never above the visible end, all of them fetchable.

use std::time::Duration;

use corelane_client::{Client, Find, Record, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions};

use crate::support::{PATIENCE, connect, create, detail, numbered, read_to_end, small_segments, soon};

const FIRST_MS: i64 = 1_000_000;
const STEP_MS: i64 = 10;

async fn find(client: &Client, topic: &str, find: Find) -> u64 {
    let found = soon("an answer", client.admin().find(topic, 0, find)).await.expect("a place");
    assert!(found.position <= found.visible_end, "{find:?}: {found:?}");
    assert!(found.position >= found.start, "{find:?}: {found:?}");
    found.position
}

/// Publishes a message of a timestamp for each of `times`, in order; returns their ids.
async fn publish_at(client: &Client, topic: &str, times: &[i64], bytes: usize) -> Vec<u64> {
    let producer = client.producer().batch_messages_max(7).build().expect("a producer");
    let mut deliveries = Vec::new();
    for (at, time) in times.iter().enumerate() {
        let value = numbered(at as u64, bytes);
        let record = Record::to(topic).timestamp_ms(*time).value(&value);
        deliveries.push(producer.send(record).await.expect("a message is taken"));
    }
    assert!(producer.flush(PATIENCE).await.is_complete());
    let mut ids = Vec::new();
    for delivery in deliveries {
        ids.push(delivery.await.expect("acknowledged").position.expect("a position"));
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_finds_the_first_message_at_or_after_it() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "timed", 1, small_segments()).await;
    assert_eq!(find(&client, "timed", Find::TimeMs(0)).await, 0, "an empty log");
    assert_eq!(find(&client, "timed", Find::TimeMs(i64::MAX)).await, 0, "an empty log");

    // A few segments; times grow, every tenth message repeats its predecessor's.
    let times: Vec<i64> = (0..800).map(|at| FIRST_MS + (at - i64::from(at % 10 == 9)) * STEP_MS).collect();
    let ids = publish_at(&client, "timed", &times, 500).await;
    let state = detail(&client, "timed").await;
    assert!(state.segments > 3, "{state:?}");
    let expected = |time: i64| times.iter().position(|at| *at >= time).map_or(state.visible_end, |at| ids[at]);
    let mut asked = vec![i64::MIN, -1, 0, FIRST_MS - 1, FIRST_MS + 800 * STEP_MS, i64::MAX];
    asked.extend(times.iter().step_by(13).flat_map(|time| [time - 1, *time, time + 1]));
    asked.sort_unstable();
    let mut last = 0;
    for time in asked {
        let position = find(&client, "timed", Find::TimeMs(time)).await;
        assert_eq!(position, expected(time), "time {time}");
        assert!(position >= last, "time {time} went back");
        last = position;
        if time % 13 == 0 {
            let from_there = read_to_end(client.consumer().topic("timed").start(Start::Position(position))).await;
            assert_eq!(from_there.first().map_or(state.visible_end, |seen| seen.position), position);
        }
    }

    // Expired at the front: answers begin at the start.
    let start = client.admin().trim("timed", 0, state.visible_end / 2).await.expect("a log can be trimmed");
    assert!(start > 0);
    assert_eq!(find(&client, "timed", Find::TimeMs(0)).await, start);
    assert_eq!(find(&client, "timed", Find::Earliest).await, start);
    assert_eq!(find(&client, "timed", Find::Latest).await, state.visible_end);

    // All of it expired: what is found can still be fetched, and nothing comes from there.
    let start = client.admin().trim("timed", 0, state.visible_end).await.expect("a log can be trimmed");
    for time in [i64::MIN, 0, FIRST_MS, FIRST_MS + 799 * STEP_MS, i64::MAX] {
        let position = find(&client, "timed", Find::TimeMs(time)).await;
        assert!(position >= start && position <= state.visible_end, "{position} for {time}");
        let from_there = read_to_end(client.consumer().topic("timed").start(Start::Position(position))).await;
        assert!(from_there.iter().all(|seen| seen.position >= position));
    }
    assert_eq!(find(&client, "timed", Find::TimeMs(i64::MAX)).await, state.visible_end);
}

#[tokio::test(flavor = "multi_thread")]
async fn times_that_are_not_in_order_skip_no_message() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "mixed", 1, small_segments()).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let times: Vec<i64> = (0..600).map(|_| FIRST_MS + random.i64(0..1_000)).collect();
    let ids = publish_at(&client, "mixed", &times, 500).await;
    let end = detail(&client, "mixed").await.visible_end;
    for time in (FIRST_MS - 1..FIRST_MS + 1_001).step_by(17) {
        let expected = times.iter().position(|at| *at >= time).map_or(end, |at| ids[at]);
        assert_eq!(find(&client, "mixed", Find::TimeMs(time)).await, expected, "time {time}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_messages_and_any_position_resolve_to_a_message() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "positions", 1, TopicSettings::new()).await;
    let times: Vec<i64> = (0..300).map(|at| FIRST_MS + at).collect();
    let ids = publish_at(&client, "positions", &times, 100).await;
    // Between two ids: the next message. On an id: that message. One past it, as other systems count: the next.
    for at in [1, 2, 150, 298] {
        for position in [ids[at - 1] + 1, ids[at] - 1, ids[at]] {
            let seen = read_to_end(client.consumer().topic("positions").start(Start::Position(position))).await;
            assert_eq!(seen[0].position, ids[at], "position {position}");
        }
        let containing = find(&client, "positions", Find::Containing(ids[at] + 3)).await;
        assert_eq!(containing, ids[at]);
    }
    for count in [1, 7, 299, 300, 1_000] {
        let seen = read_to_end(client.consumer().topic("positions").start(Start::LastMessages(count))).await;
        assert!(seen.len() as u64 >= count.min(300), "{} of the last {count}", seen.len());
    }
    let builder = client.consumer().topic("positions").start(Start::Latest).max_wait(Duration::from_millis(100));
    assert!(read_to_end(builder).await.is_empty());
}
