//! What a consumer sees is durable; what is not flushed yet is not seen.

use std::time::{Duration, Instant};

use corelane_client::{Acks, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, full};

use crate::support::{
    assert_run, connect, create, detail, from_start, next, number, numbers_of, publish_numbered, read_all,
};

/// The long form is the policy of the case as it was reported, several times.
fn interval() -> Duration {
    Duration::from_secs(if full() { 5 } else { 3 })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_seen_only_once_flushed_and_then_stays() {
    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    let settings = TopicSettings::new().flush_messages(10_000).flush_interval(interval());
    create(&client, "lazy", 1, settings).await;
    let mut stored = 0;
    let mut highest = 0;
    for round in 0..if full() { 20 } else { 1 } {
        println!("round {round}: {stored} are there");
        stored = publish_see_and_kill(&mut broker, stored, &mut highest).await;
    }
}

/// Behind the `before` messages that are there publishes 100, sees them once they are flushed and not before; then 100 more
/// that nobody sees before the broker is killed. Answers how many there are then.
async fn publish_see_and_kill(broker: &mut Broker, before: u64, highest: &mut u64) -> u64 {
    let client = connect(broker).await;
    let end = detail(&client, "lazy").await.end;
    let producer = client.producer().acks(Acks::Received).build().expect("a producer");
    let mut reader = from_start(&client, "lazy").await;
    for at in 0..before {
        assert_eq!(number(&next(&mut reader).await.value), at);
    }

    let began = Instant::now();
    publish_numbered(&producer, "lazy", 0, before..before + 100, 100).await;
    let unflushed = detail(&client, "lazy").await;
    // Said only if the interval cannot have passed: this machine may be slow.
    if began.elapsed() < interval() {
        assert_eq!((unflushed.visible_end, unflushed.durable_end), (end, end), "visible before the flush");
        assert!(unflushed.end > end);
    }
    for at in before..before + 100 {
        let seen = next(&mut reader).await;
        assert!(began.elapsed() >= interval(), "message {at} was seen after {:?}", began.elapsed());
        assert_eq!(number(&seen.value), at);
        *highest = seen.next_position.max(*highest);
    }

    // More that is not flushed, then a kill: what was seen stays, and the end is not below it.
    publish_numbered(&producer, "lazy", 0, before + 100..before + 200, 100).await;
    broker.kill9();
    broker.restart();
    let client = connect(broker).await;
    let after = detail(&client, "lazy").await;
    assert!(after.end >= *highest, "the end {} is below what was served, {highest}", after.end);
    let stored = numbers_of(&read_all(&client, "lazy").await);
    assert!(stored.len() as u64 >= before + 100, "{} of {} seen messages are left", stored.len(), before + 100);
    assert_run(&stored, 0..stored.len() as u64);
    stored.len() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_messages_flush_before_the_interval_ends() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    let settings = TopicSettings::new().flush_messages(1_000).flush_interval(Duration::from_mins(30));
    create(&client, "counted", 1, settings).await;
    let producer = client.producer().acks(Acks::Received).build().expect("a producer");
    publish_numbered(&producer, "counted", 0, 0..999, 100).await;
    assert_eq!(detail(&client, "counted").await.visible_end, 0, "flushed before it had to be");
    publish_numbered(&producer, "counted", 0, 999..1_000, 100).await;
    let mut reader = from_start(&client, "counted").await;
    for at in 0..1_000 {
        assert_eq!(number(&next(&mut reader).await.value), at);
    }
}
