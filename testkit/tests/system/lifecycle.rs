//! Starting, stopping and starting again, with clients at work meanwhile.

use std::time::Duration;

use corelane_client::{Record, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, http_get, run};

use crate::support::{
    PATIENCE, connect, create, eventually, from_start, next, number, numbered, publish_numbered, read_all, soon, within,
};

/// What an orderly stop may take, and what a refusal to start may.
const STOP_MAX: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_second_broker_on_the_same_directory_is_refused_and_the_first_goes_on() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "guarded", 1, TopicSettings::new()).await;

    let failure = Broker::try_start(BrokerOptions::new().data(broker.data_dir())).expect_err("a second broker started");
    let status = failure.status.expect("it ended by itself");
    assert!(!status.success(), "{failure:?}");
    let directory = broker.data_dir().display().to_string();
    assert!(failure.stderr.contains(&directory), "the directory is named: {}", failure.stderr);
    assert!(failure.took < STOP_MAX, "{failure:?}");

    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "guarded", 0, 0..10, 100).await;
    assert_eq!(read_all(&client, "guarded").await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_on_a_port_that_is_taken_is_refused() {
    let broker = Broker::start(BrokerOptions::new());
    let failure = Broker::try_start(BrokerOptions::new().listen(broker.addr()))
        .expect_err("a second broker on the same port started");
    assert!(!failure.status.expect("it ended by itself").success(), "{failure:?}");
    assert!(failure.stderr.contains(&broker.addr().port().to_string()), "the port is named: {}", failure.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_load_ends_with_status_0_in_time_and_keeps_what_was_acknowledged() {
    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "busy", 4, TopicSettings::new()).await;
    let producer = client.producer().delivery_timeout(Duration::from_mins(5)).build().expect("a producer");
    let publisher = {
        let producer = producer.clone();
        tokio::spawn(async move {
            for at in 0_u64.. {
                let value = numbered(at, 500);
                let record = Record::to("busy").partition((at % 4) as u32).value(&value);
                match producer.send(record).await {
                    Ok(delivery) => drop(delivery),
                    Err(_closed) => return at,
                }
            }
            unreachable!("u64 does not end")
        })
    };
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut consumer = from_start(&client, "busy").await;
        readers.push(tokio::spawn(async move { while consumer.next().await.is_some() {} }));
    }
    eventually("some acknowledgements", async || producer.stats().acknowledged > 20_000).await;
    let took = broker.stop();
    println!("stopped in {took:?}");
    assert!(took < STOP_MAX, "stopping took {took:?}");

    broker.restart();
    let report = {
        // Closing makes the publisher end; what it had handed over before is delivered to the restarted broker.
        let producer = producer.clone();
        within(Duration::from_mins(3), "the rest to be delivered", producer.close(Duration::from_mins(2))).await
    };
    let published = soon("the publisher", publisher).await.expect("the publisher ends well");
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.published, published);
    readers.iter().for_each(tokio::task::JoinHandle::abort);
    let mut present = vec![false; published as usize];
    for seen in read_all(&client, "busy").await {
        let at = number(&seen.value);
        assert_eq!(at % 4, u64::from(seen.partition));
        present[at as usize] = true;
    }
    assert!(present.iter().all(|there| *there), "an acknowledged message is missing");
    broker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_goes_on_where_it_was_when_the_broker_restarts() {
    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "resumed", 1, TopicSettings::new()).await;
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "resumed", 0, 0..5_000, 300).await;

    // A small prefetch: most of what follows is fetched after a restart.
    let builder = client.consumer().topic("resumed").start(Start::Earliest).prefetch_bytes(16 << 10);
    let mut consumer = soon("a consumer", builder.build()).await.expect("a consumer");
    for at in 0..5_000 {
        match at {
            1_500 => broker.restart(),
            3_000 => {
                broker.kill9();
                broker.restart();
            }
            _ => {}
        }
        let message = loop {
            match soon("a message", consumer.next()).await.expect("the consumer goes on") {
                Ok(message) => break message,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        };
        assert_eq!(number(message.value().expect("a value")), at);
    }

    // And it waits for what is published after another restart.
    broker.restart();
    let published = publish_numbered(&producer, "resumed", 0, 5_000..5_001, 300).await;
    let message = loop {
        match soon("a message", consumer.next()).await.expect("the consumer goes on") {
            Ok(message) => break message,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    assert_eq!(message.position(), published[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_keeps_its_identity_and_topics_across_restarts() {
    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "lasting", 3, TopicSettings::new().retention_bytes(1 << 30)).await;
    let before = client.admin().describe_cluster().await.expect("a description");
    let topic = client.admin().describe_topic("lasting").await.expect("a description").topic;
    broker.kill9();
    broker.restart();
    let client = connect(&broker).await;
    let after = client.admin().describe_cluster().await.expect("a description");
    assert_eq!(after.cluster_id, before.cluster_id);
    let same = client.admin().describe_topic("lasting").await.expect("a description").topic;
    assert_eq!((same.topic_id, same.partitions.len()), (topic.topic_id, 3));
    assert_eq!(same.settings, topic.settings);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_broker_holds_up_its_clients_and_loses_nothing() {
    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "paused", 1, TopicSettings::new()).await;
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "paused", 0, 0..100, 100).await;
    let mut consumer = from_start(&client, "paused").await;
    for at in 0..100 {
        assert_eq!(number(&next(&mut consumer).await.value), at);
    }
    broker.pause();
    let value = numbered(100, 100);
    let delivery = producer.send(Record::to("paused").value(&value)).await.expect("a message is taken");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(delivery.try_result().is_none(), "a paused broker acknowledged");
    broker.resume();
    soon("the acknowledgement", delivery).await.expect("acknowledged");
    assert_eq!(number(&next(&mut consumer).await.value), 100);
    assert!(producer.close(PATIENCE).await.is_complete());
}

#[test]
fn health_and_metrics_answer_while_the_broker_serves() {
    let broker = Broker::start(BrokerOptions::new());
    for page in ["/health/live", "/health/ready", "/metrics"] {
        let answer = http_get(broker.http_addr(), page, PATIENCE).expect("the page comes");
        assert_eq!(answer.status, 200, "{page}: {}", answer.body);
    }
    let described = run(broker.cli().args(["cluster", "describe"]), PATIENCE).success();
    assert!(described.text().contains(&broker.addr().port().to_string()), "{}", described.text());
}
