//! A full disk is an answer, not an end: publishing is refused in time and resumes by itself, everything else goes on.

use std::time::Duration;

use corelane_client::{Client, DeliveryError, NewTopic, Record, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, SmallDisk, http_get, skip};

use crate::support::{
    PATIENCE, assert_run, connect, create, eventually, numbered, numbers_of, publish_numbered, read_all,
    small_segments, soon,
};

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

    let ready = || http_get(broker.http_addr(), "/health/ready", PATIENCE).expect("the page answers");
    let warned = ready();
    assert!(
        warned.status == 200 && warned.body.contains("the disk is full: 1 partition takes no publishes"),
        "{}",
        warned.body
    );

    // Fetch goes on, and what is there is whole.
    let stored = numbers_of(&read_all(&client, "full").await);
    assert!(acknowledged.iter().all(|at| stored.binary_search(at).is_ok()), "an acknowledged message is missing");

    // Retention makes room, and publishing resumes by itself.
    let smaller = TopicSettings::new().retention_bytes(64 << 20);
    client.admin().alter_topic("full", smaller).await.expect("a topic can be altered on a full disk");
    eventually("publishing to resume, and nothing to be left to warn of", async || {
        let value = numbered(at, VALUE_BYTES);
        let delivery = producer.send(Record::to("full").value(&value)).await.expect("taken");
        at += 1;
        delivery.await.is_ok() && ready().body == "ready\n"
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

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_a_broker_starts_and_stops_and_what_makes_room_is_done() {
    // Declared before the broker, so that it goes after it.
    let disk = match SmallDisk::mount(100) {
        Ok(disk) => disk,
        Err(why) => return skip("on_a_full_disk_a_broker_starts_and_stops_and_what_makes_room_is_done", &why),
    };
    let mut broker = Broker::start(BrokerOptions::new().data(disk.path().join("data")));
    let client = connect(&broker).await;
    create(&client, "kept", 1, small_segments()).await;
    create(&client, "large", 1, TopicSettings::new()).await;
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "kept", 0, 0..500, 1_000).await;
    publish_numbered(&producer, "large", 0, 0..2_000, VALUE_BYTES).await;
    disk.fill();

    // A topic that has no room is refused, and nothing of it is left. The client asks again for some seconds.
    for attempt in 0..2 {
        let topic = NewTopic::named(format!("new-{attempt}")).partitions(3).settings(small_segments());
        let error = soon("the answer", client.admin().create_topic(topic)).await.expect_err("there is no room");
        assert!(error.to_string().contains("NO_SPACE"), "{error}");
    }
    let names = async |client: &Client| {
        let topics = soon("the topics", client.admin().list_topics()).await.expect("topics are listed");
        topics.into_iter().map(|topic| topic.name).collect::<Vec<_>>()
    };
    eventually("nothing to be left", async || names(&client).await == ["kept", "large"]).await;

    // A crash and a stop on a full disk: it starts again all the same, and serves what it has.
    disk.fill();
    broker.kill9();
    broker.restart();
    let client = connect(&broker).await;
    assert_run(&numbers_of(&read_all(&client, "kept").await), 0..500);
    let took = broker.stop();
    println!("stopped in {took:?} on a full disk");
    assert!(took < Duration::from_secs(5), "a stop on a full disk took {took:?}");
    broker.restart();
    let client = connect(&broker).await;

    // Deleting a topic makes room, and everything resumes by itself.
    soon("the deletion", client.admin().delete_topic("large")).await.expect("a topic can be deleted on a full disk");
    let producer = client.producer().build().expect("a producer");
    eventually("publishing to resume", async || {
        let delivery = producer.send(Record::to("kept").value(&numbered(500, 1_000))).await.expect("taken");
        delivery.await.is_ok()
    })
    .await;
    create(&client, "after", 3, small_segments()).await;
    publish_numbered(&producer, "after", 2, 0..100, 1_000).await;
    assert_eq!(names(&client).await, ["after", "kept"]);
    broker.stop();
    broker.restart();
    let client = connect(&broker).await;
    assert_run(&numbers_of(&read_all(&client, "after").await), 0..100);
    let kept = numbers_of(&read_all(&client, "kept").await);
    assert_run(&kept[..500], 0..500);
    assert_eq!(kept.last(), Some(&500));
    for said in ["cannot be believed", "failed and stays closed"] {
        assert!(!broker.log().contains(said), "the log says {said:?}");
    }
}
