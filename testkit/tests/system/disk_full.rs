//! A full disk is an answer, not an end: publishing is refused in time and resumes by itself, everything else goes on.

use std::time::Duration;

use corelane_client::{DeliveryError, Record, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, SmallDisk, skip};

use crate::support::{PATIENCE, connect, create, eventually, numbered, numbers_of, read_all, soon};

const VALUE_BYTES: usize = 8 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_publishing_in_time_and_everything_resumes_when_there_is_room() {
    // Declared before the broker, so that it goes after it.
    let disk = match SmallDisk::mount(200) {
        Ok(disk) => disk,
        Err(why) => {
            return skip("a_full_disk_refuses_publishing_in_time_and_everything_resumes_when_there_is_room", &why);
        }
    };
    let mut broker = Broker::start(BrokerOptions::new().data(disk.path().join("data")));
    let client = connect(&broker).await;
    create(&client, "full", 1, TopicSettings::new().segment_bytes(8 << 20)).await;
    let producer = client.producer().delivery_timeout(Duration::from_secs(5)).build().expect("a producer");

    // Publish until a message fails: that is the full disk.
    let mut acknowledged = Vec::new();
    let mut refusal = None;
    let mut at = 0;
    while refusal.is_none() {
        let mut deliveries = Vec::new();
        for _ in 0..100 {
            let value = numbered(at, VALUE_BYTES);
            let record = Record::to("full").value(&value);
            deliveries.push((at, soon("the message to be taken", producer.send(record)).await.expect("taken")));
            at += 1;
        }
        for (at, delivery) in deliveries {
            match soon("the message's fate", delivery).await {
                Ok(_) => acknowledged.push(at),
                Err(error) => refusal = Some(error),
            }
        }
        assert!(at < 100_000, "200 MB never fill");
    }
    let refusal = refusal.expect("the loop ended");
    println!("{} messages acknowledged, then: {refusal}", acknowledged.len());
    assert!(matches!(&refusal, DeliveryError::TimedOut { .. } | DeliveryError::Refused(_)), "{refusal:?}");
    assert!(refusal.to_string().contains("NO_SPACE"), "the cause is named: {refusal}");

    // Fetch goes on, and what is there is whole.
    let stored = numbers_of(&read_all(&client, "full").await);
    assert!(acknowledged.iter().all(|at| stored.binary_search(at).is_ok()), "an acknowledged message is missing");

    // Retention makes room, and publishing resumes by itself.
    let smaller = TopicSettings::new().retention_bytes(64 << 20);
    client.admin().alter_topic("full", smaller).await.expect("a topic can be altered on a full disk");
    eventually("publishing to resume", async || {
        let value = numbered(at, VALUE_BYTES);
        let delivery = producer.send(Record::to("full").value(&value)).await.expect("taken");
        at += 1;
        delivery.await.is_ok()
    })
    .await;
    let last = at - 1;
    let stored = numbers_of(&read_all(&client, "full").await);
    assert_eq!(stored.last(), Some(&last));
    producer.close(PATIENCE).await;
    broker.stop();
    broker.restart();
    let client = connect(&broker).await;
    let again = numbers_of(&read_all(&client, "full").await);
    assert_eq!(again.last(), Some(&last));
}
