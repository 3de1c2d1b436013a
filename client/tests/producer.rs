//! The producer against a broker that misbehaves: order, retries, limits, and an account of every message.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corelane_client::{
    Acks, CallError, Compression, DeliveryError, Partitioner, PreparedSet, Producer, Record, SendError, TrySendError,
    partition_for_key,
};
use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;
use support::{Act, FakeBroker, seed};

const LONG: Duration = Duration::from_secs(20);

async fn send_all(producer: &Producer, topic: &str, count: usize) {
    for index in 0..count {
        let value = format!("{index:06}");
        drop(producer.send(Record::to(topic).partition(0).value(value.as_bytes())).await.unwrap());
    }
}

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{index:06}")).collect()
}

/// What was resent may be there twice; the first copies must be in order.
fn first_copies(values: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    values.into_iter().filter(|value| seen.insert(value.clone())).collect()
}

#[tokio::test]
async fn messages_arrive_in_order_and_deliveries_say_where() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let client = broker.client().await;
    let producer = client.producer().batch_messages_max(7).build().unwrap();
    let mut deliveries = Vec::new();
    for index in 0..100 {
        let value = format!("{index:06}");
        deliveries.push(producer.send(Record::to("t").value(value.as_bytes())).await.unwrap());
    }
    let report = producer.flush(LONG).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(broker.values("t", 0), expected(100));
    let boundaries = broker.state().topics["t"].logs[0].boundaries.clone();
    for (delivery, boundary) in deliveries.into_iter().zip(boundaries) {
        assert_eq!(delivery.await.unwrap().position, Some(boundary));
    }
    broker.assert_no_complaints();
}

#[tokio::test]
async fn a_refusal_in_the_middle_of_a_window_reorders_nothing() {
    for status in [Status::Busy, Status::NoSpace, Status::ClosedForWrites, Status::RegistryUnavailable] {
        let broker = FakeBroker::start().await;
        broker.topic("t", 1);
        broker.script(move |seen| match (seen.method, seen.nth) {
            (Method::Publish, 5 | 9 | 23 | 24) => Act::refuse(status),
            _ => Act::Properly,
        });
        let client = broker.client().await;
        let producer = client.producer().batch_messages_max(1).in_flight_max(8).build().unwrap();
        send_all(&producer, "t", 100).await;
        let report = producer.close(LONG).await;
        assert_eq!((report.acknowledged, report.failed, report.unsent), (100, 0, 0), "{status}");
        assert_eq!(broker.values("t", 0), expected(100), "{status}");
        assert_eq!(broker.state().hellos.iter().filter(|hello| !hello.session.is_empty()).count(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_set_refused_for_good_fails_alone_and_the_rest_keeps_its_order() {
    // One uses its number up, the other leaves it open.
    for status in [Status::InvalidMessage, Status::InvalidRequest] {
        let broker = FakeBroker::start().await;
        broker.topic("t", 1);
        broker.script(move |seen| match (seen.method, seen.nth) {
            (Method::Publish, 5) => Act::refuse(status),
            _ => Act::Properly,
        });
        let client = broker.client().await;
        let producer = client.producer().batch_messages_max(1).in_flight_max(8).build().unwrap();
        send_all(&producer, "t", 50).await;
        let report = producer.close(LONG).await;
        assert_eq!((report.acknowledged, report.failed, report.unsent), (49, 1, 0), "{status}");
        let mut expected = expected(50);
        expected.remove(4);
        assert_eq!(broker.values("t", 0), expected, "{status}");
        let Some(DeliveryError::Refused(refusal)) = report.last_error else { panic!("{report:?}") };
        assert_eq!(refusal.status, status);
    }
}

#[tokio::test]
async fn after_a_cut_the_unanswered_sets_are_sent_again_in_order() {
    for act in [Act::Cut, Act::CutAnswerAt(0), Act::CutAnswerAt(3), Act::CutAnswerAt(17)] {
        let broker = FakeBroker::start().await;
        broker.topic("t", 1);
        let cut = act.clone();
        broker.script(move |seen| match (seen.method, seen.nth) {
            (Method::Publish, 4 | 20 | 21 | 50) => cut.clone(),
            _ => Act::Properly,
        });
        let client = broker.client().await;
        let producer = client.producer().batch_messages_max(1).in_flight_max(5).build().unwrap();
        send_all(&producer, "t", 100).await;
        let report = producer.close(LONG).await;
        assert_eq!((report.acknowledged, report.failed, report.unsent), (100, 0, 0), "{act:?}");
        assert_eq!(first_copies(broker.values("t", 0)), expected(100), "{act:?}");
        let hellos = broker.state().hellos.clone();
        let attempts: Vec<u64> =
            hellos.iter().filter(|hello| !hello.session.is_empty()).map(|hello| hello.attempt).collect();
        assert_eq!(attempts, (1..=attempts.len() as u64).collect::<Vec<_>>());
        assert_eq!(attempts.len(), 5);
        broker.assert_no_complaints();
    }
}

#[tokio::test]
async fn a_silent_broker_is_left_and_its_sets_are_sent_again() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    broker.script(|seen| match (seen.method, seen.connection) {
        (Method::Publish, connection) if connection <= 2 => Act::Silence,
        _ => Act::Properly,
    });
    let client = broker.builder().request_timeout(Duration::from_millis(300)).build().await.unwrap();
    let producer = client.producer().batch_messages_max(1).build().unwrap();
    send_all(&producer, "t", 10).await;
    let report = producer.close(LONG).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(first_copies(broker.values("t", 0)), expected(10));
}

#[tokio::test]
async fn under_random_faults_every_message_is_accounted_for_and_order_is_kept() {
    let seed = seed("under_random_faults");
    for round in 0..6 {
        let broker = FakeBroker::start().await;
        broker.topic("t", 3);
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(round));
        broker.script(move |seen| {
            if seen.method != Method::Publish {
                return Act::Properly;
            }
            match random.u32(..100) {
                0..3 => Act::Cut,
                3..6 => Act::CutAnswerAt(random.usize(..40)),
                6..12 => Act::refuse([Status::Busy, Status::NoSpace, Status::Stopping][random.usize(..3)]),
                // Not a status that uses the number up: of a set that is bad, a real broker always says so.
                12..16 => Act::refuse(Status::Internal),
                16..20 => Act::After(Duration::from_millis(random.u64(..5))),
                _ => Act::Properly,
            }
        });
        let client = broker.client().await;
        let in_flight_max = 1 + (seed.wrapping_add(round) % 9) as usize;
        let producer = client.producer().batch_messages_max(3).in_flight_max(in_flight_max).build().unwrap();
        let mut deliveries = Vec::new();
        for index in 0..600 {
            let value = format!("{index:06}");
            let record = Record::to("t").partition(index % 3).value(value.as_bytes());
            deliveries.push((index, producer.send(record).await.unwrap()));
        }
        let report = producer.close(LONG).await;
        assert_eq!(report.published, 600);
        assert_eq!(report.acknowledged + report.failed, 600, "{report:?}");
        let mut acknowledged = vec![Vec::new(); 3];
        for (index, delivery) in deliveries {
            match delivery.await {
                Ok(delivered) => acknowledged[(index % 3) as usize].push((format!("{index:06}"), delivered.position)),
                Err(DeliveryError::Refused(_)) => {}
                Err(error) => panic!("{index}: {error}"),
            }
        }
        assert_eq!(acknowledged.iter().map(Vec::len).sum::<usize>() as u64, report.acknowledged);
        for (partition, acknowledged) in acknowledged.iter().enumerate() {
            let values = broker.values("t", partition);
            let first = first_copies(values.clone());
            assert!(first.is_sorted(), "partition {partition}, round {round}: {values:?}");
            let boundaries = broker.state().topics["t"].logs[partition].boundaries.clone();
            for (value, position) in acknowledged {
                let index =
                    boundaries.binary_search(&position.unwrap()).expect("an acknowledged position is a message's");
                assert_eq!(&values[index], value);
            }
        }
        broker.assert_no_complaints();
    }
}

#[tokio::test]
async fn a_message_above_the_limit_is_refused_alone() {
    let broker = FakeBroker::start().await;
    broker.topic_with("t", 1, pb::TopicConfig { message_bytes_max: Some(1000), ..pb::TopicConfig::default() });
    let client = broker.client().await;
    let producer = client.producer().build().unwrap();
    for bytes in [1000 - 24 - 1, 1000 - 24, 1000 - 24 + 1, 10] {
        let value = vec![b'x'; bytes];
        match producer.send(Record::to("t").value(&value)).await {
            Ok(_) => assert!(bytes + 24 <= 1000),
            Err(SendError::TooLarge { bytes: whole, limit, .. }) => assert_eq!((whole, limit), (1001, 1000)),
            Err(error) => panic!("{error}"),
        }
    }
    let report = producer.flush(LONG).await;
    assert_eq!((report.published, report.acknowledged), (3, 3));
}

#[tokio::test]
async fn a_full_buffer_makes_send_wait_and_try_send_say_so() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let is_open = Arc::new(AtomicUsize::new(0));
    let gate = is_open.clone();
    broker.script(move |seen| match seen.method {
        Method::Publish if gate.load(Ordering::Relaxed) == 0 => Act::refuse(Status::NoSpace),
        _ => Act::Properly,
    });
    let client = broker.client().await;
    let producer = client.producer().buffer_bytes(10_000).batch_bytes(1000).build().unwrap();
    assert!(matches!(producer.try_send(&Record::to("t").value(b"x")), Err(TrySendError::NotReady)));
    producer.prepare("t").await.unwrap();
    let value = [b'v'; 76];
    let record = Record::to("t").value(&value);
    let mut taken = 0;
    loop {
        match producer.try_send(&record) {
            Ok(_) => taken += 1,
            Err(TrySendError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(taken, 100);
    let waiting = tokio::spawn({
        let producer = producer.clone();
        async move { producer.send(Record::to("t").value(b"late")).await.unwrap().await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    is_open.store(1, Ordering::Relaxed);
    waiting.await.unwrap().unwrap();
    let report = producer.close(LONG).await;
    assert_eq!((report.published, report.acknowledged), (101, 101));
}

#[tokio::test]
async fn many_are_posted_at_once_as_far_as_there_is_room_and_keep_their_order() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let client = broker.client().await;
    let producer = client.producer().buffer_bytes(4_000).batch_messages_max(7).build().unwrap();
    let mut next = 0;
    let mut post = || {
        producer.post_many(|posting| {
            while next < 1_000 {
                posting.try_post(&Record::to("t").value(format!("{next:06}").as_bytes()))?;
                next += 1;
            }
            Ok(())
        })
    };
    assert!(matches!(post(), Err(TrySendError::NotReady)), "the topic is not known");
    let (mut not_ready, mut full) = (0, 0);
    while let Err(error) = post() {
        match error {
            TrySendError::NotReady => not_ready += 1,
            TrySendError::Full => full += 1,
            error => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(full > 0, "it was not ready {not_ready} times and never full");
    let report = producer.close(LONG).await;
    assert!(report.is_complete() && report.published == 1_000, "{report:?}");
    let expected: Vec<_> = (0..1_000).map(|index| format!("{index:06}")).collect();
    assert_eq!(broker.values("t", 0), expected);
}

#[tokio::test]
async fn what_cannot_be_delivered_in_time_fails_and_says_why() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    broker.script(|seen| if seen.method == Method::Publish { Act::refuse(Status::NoSpace) } else { Act::Properly });
    let client = broker.client().await;
    let producer = client.producer().delivery_timeout(Duration::from_millis(300)).build().unwrap();
    let delivery = producer.send(Record::to("t").value(b"x")).await.unwrap();
    let Err(DeliveryError::TimedOut { cause }) = delivery.await else { panic!("no time-out") };
    assert!(cause.as_deref().unwrap().contains("NO_SPACE"), "{cause:?}");
    let report = producer.close(LONG).await;
    assert_eq!((report.published, report.failed, report.unsent), (1, 1, 0));
}

#[tokio::test]
async fn flush_with_a_dead_broker_accounts_for_every_message_within_its_deadline() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 2);
    let client = broker.client().await;
    let producer = client.producer().batch_messages_max(10).build().unwrap();
    for index in 0..50 {
        let value = format!("{index}");
        drop(producer.send(Record::to("t").value(value.as_bytes())).await.unwrap());
    }
    assert!(producer.flush(LONG).await.is_complete());
    broker.stop().await;
    for index in 0..5000 {
        let value = format!("{index}");
        drop(producer.send(Record::to("t").value(value.as_bytes())).await.unwrap());
    }
    let began = Instant::now();
    let report = producer.flush(Duration::from_millis(200)).await;
    assert_eq!((report.published, report.acknowledged, report.failed, report.unsent), (5050, 50, 0, 5000));
    let last = producer.send(Record::to("t").value(b"last")).await.unwrap();
    let report = producer.close(Duration::from_millis(200)).await;
    assert_eq!((report.published, report.acknowledged, report.failed, report.unsent), (5051, 50, 0, 5001));
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(matches!(last.await, Err(DeliveryError::Closed)));
    assert!(matches!(producer.send(Record::to("t")).await, Err(SendError::Closed)));
}

#[tokio::test]
async fn a_restarted_broker_gets_what_waited_for_it() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let client = broker.client().await;
    let producer = client.producer().batch_messages_max(2).build().unwrap();
    send_all(&producer, "t", 10).await;
    assert!(producer.flush(LONG).await.is_complete());
    let topics = broker.stop().await;
    for index in 10..20 {
        let value = format!("{index:06}");
        drop(producer.send(Record::to("t").partition(0).value(value.as_bytes())).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let again = FakeBroker::start_at(&broker.address, topics).await;
    let report = producer.close(LONG).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(again.values("t", 0), expected(20));
}

#[tokio::test]
async fn without_acknowledgement_nothing_is_sent_twice_and_refusals_are_counted() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    broker.script(|seen| match (seen.method, seen.nth) {
        (Method::Publish, 10) => Act::refuse(Status::Busy),
        (Method::Publish, 30) => Act::Cut,
        _ => Act::Properly,
    });
    let client = broker.client().await;
    let producer = client.producer().acks(Acks::None).batch_messages_max(1).build().unwrap();
    for index in 0..200 {
        let value = format!("{index:06}");
        let delivery = producer.send(Record::to("t").value(value.as_bytes())).await.unwrap();
        if let Ok(delivered) = delivery.await {
            assert_eq!(delivered.position, None);
        }
    }
    let report = producer.close(LONG).await;
    assert_eq!(report.acknowledged + report.failed, 200, "{report:?}");
    assert!(report.failed >= 1, "{report:?}");
    let values = broker.values("t", 0);
    assert!(values.is_sorted(), "{values:?}");
    assert_eq!(first_copies(values.clone()), values, "nothing is there twice");
    assert!(values.len() >= 150, "{} of 200 arrived", values.len());
}

#[tokio::test]
async fn partitions_that_move_to_another_shard_keep_their_order() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 2);
    let mover = broker.clone();
    broker.script(move |seen| {
        if seen.method == Method::Publish && seen.nth % 40 == 0 {
            let mover = mover.clone();
            // The script runs under the broker's lock.
            tokio::spawn(async move {
                let mut state = mover.state();
                let shards = &mut state.topics.get_mut("t").unwrap().shards;
                shards[0] = 1 - shards[0];
            });
        }
        Act::Properly
    });
    let client = broker.client().await;
    let producer = client.producer().batch_messages_max(1).in_flight_max(4).build().unwrap();
    for index in 0..200 {
        let value = format!("{index:06}");
        drop(producer.send(Record::to("t").partition(0).value(value.as_bytes())).await.unwrap());
        if index % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let report = producer.close(LONG).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(first_copies(broker.values("t", 0)), expected(200));
    assert!(broker.state().hellos.iter().any(|hello| hello.shard == Some(1)));
    broker.assert_no_complaints();
}

/// It is said to have moved, and then not, while the lane rests between two connections.
#[tokio::test]
async fn a_partition_that_was_to_move_and_stays_is_sent_on() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let mut was_refused = false;
    broker.script(move |seen| match (seen.method, seen.nth) {
        (Method::Publish, 1) => {
            was_refused = true;
            let elsewhere = pb::Error { broker_id: Some(7), shard: Some(1), ..pb::Error::default() };
            Act::Refuse(Status::NotHere, elsewhere)
        }
        (Method::Publish, 2) => Act::Cut,
        (Method::Metadata, _) if was_refused => Act::After(Duration::from_millis(10)),
        _ => Act::Properly,
    });
    let rest = Duration::from_millis(90);
    let client = broker.builder().backoff(rest, rest).build().await.unwrap();
    let producer = client.producer().batch_messages_max(1).in_flight_max(2).build().unwrap();
    for value in ["000000", "000001"] {
        drop(producer.send(Record::to("t").value(value.as_bytes())).await.unwrap());
    }
    let report = producer.flush(Duration::from_secs(5)).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(broker.values("t", 0), expected(2));
    broker.assert_no_complaints();
}

#[tokio::test]
async fn a_new_epoch_and_a_topic_created_again_are_followed() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let client = broker.client().await;
    let producer = client.producer().build().unwrap();
    producer.send(Record::to("t").value(b"1")).await.unwrap().await.unwrap();
    broker.state().topics.get_mut("t").unwrap().epoch = 2;
    producer.send(Record::to("t").value(b"2")).await.unwrap().await.unwrap();
    broker.state().topics.get_mut("t").unwrap().id = [99; 16];
    producer.send(Record::to("t").value(b"3")).await.unwrap().await.unwrap();
    assert_eq!(broker.values("t", 0), ["1", "2", "3"]);
}

#[tokio::test]
async fn a_deleted_topic_fails_its_messages_and_is_looked_up_again() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let client = broker.client().await;
    let producer = client.producer().build().unwrap();
    producer.send(Record::to("t").value(b"1")).await.unwrap().await.unwrap();
    broker.state().topics.clear();
    let delivery = producer.send(Record::to("t").value(b"2")).await.unwrap();
    assert!(matches!(delivery.await, Err(DeliveryError::TopicDeleted)));
    let error = producer.send(Record::to("t").value(b"3")).await.unwrap_err();
    assert!(matches!(&error, SendError::Topic { cause: CallError::UnknownTopic { .. }, .. }), "{error}");
    broker.topic("t", 1);
    producer.send(Record::to("t").value(b"4")).await.unwrap().await.unwrap();
    assert_eq!(broker.values("t", 0), ["4"]);
}

#[tokio::test]
async fn keys_go_where_their_hash_says_and_the_rest_takes_turns() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 5);
    let client = broker.client().await;
    let producer = client.producer().batch_messages_max(10).build().unwrap();
    for index in 0..100 {
        let key = format!("key-{index}");
        drop(producer.send(Record::to("t").key(key.as_bytes()).value(key.as_bytes())).await.unwrap());
    }
    assert!(producer.flush(LONG).await.is_complete());
    for partition in 0..5 {
        for value in broker.values("t", partition) {
            assert_eq!(partition_for_key(value.as_bytes(), 5) as usize, partition);
        }
    }
    let before: Vec<usize> = (0..5).map(|partition| broker.values("t", partition).len()).collect();
    for _ in 0..500 {
        drop(producer.send(Record::to("t").value(b"without")).await.unwrap());
    }
    assert!(producer.flush(LONG).await.is_complete());
    for (partition, before) in before.into_iter().enumerate() {
        assert_eq!(broker.values("t", partition).len() - before, 100, "partition {partition}");
    }
}

#[tokio::test]
async fn a_programs_own_partitioner_is_asked_and_its_mistakes_are_errors_of_the_message() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 3);
    let client = broker.client().await;
    let partitioner = Partitioner::custom(|choice| u32::from(choice.value.unwrap()[0] - b'0'));
    let producer = client.producer().partitioner(partitioner).build().unwrap();
    for value in ["0", "1", "2", "1"] {
        producer.send(Record::to("t").value(value.as_bytes())).await.unwrap().await.unwrap();
    }
    let error = producer.send(Record::to("t").value(b"3")).await.unwrap_err();
    assert!(matches!(error, SendError::NoSuchPartition { partition: 3, partitions: 3, .. }), "{error}");
    assert_eq!([0, 1, 2].map(|partition| broker.values("t", partition).len()), [1, 2, 1]);
}

#[tokio::test]
async fn compressed_sets_are_one_message_and_their_deliveries_count_from_its_id() {
    for compression in [Compression::Lz4, Compression::Zstd, Compression::Snappy, Compression::Gzip] {
        let broker = FakeBroker::start().await;
        broker.topic("t", 1);
        let client = broker.client().await;
        let producer = client.producer().compression(compression).build().unwrap();
        let mut deliveries = Vec::new();
        for _ in 0..100 {
            deliveries.push(producer.send(Record::to("t").value(&[b'x'; 100])).await.unwrap());
        }
        assert!(producer.flush(LONG).await.is_complete());
        let log = broker.state().topics["t"].logs[0].clone();
        assert_eq!(log.boundaries.len(), 1, "{compression:?}");
        assert!(log.bytes.len() < 5000, "{compression:?}: {}", log.bytes.len());
        for (index, delivery) in deliveries.into_iter().enumerate() {
            assert_eq!(delivery.await.unwrap().position, Some(index as u64));
        }
    }
}

#[tokio::test]
async fn the_callback_hears_of_every_set_once() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 2);
    let client = broker.client().await;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = heard.clone();
    let producer = client
        .producer()
        .batch_messages_max(4)
        .on_set(move |set| listener.lock().unwrap().push((set.partition, set.messages, set.first.clone().unwrap())))
        .build()
        .unwrap();
    for _ in 0..40 {
        producer.post(Record::to("t").value(b"value")).await.unwrap();
    }
    assert!(producer.close(LONG).await.is_complete());
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 10);
    assert!(heard.iter().all(|(_, messages, first)| *messages == 4 && first.is_some()));
}

#[tokio::test]
async fn messages_without_a_key_avoid_partitions_of_a_broker_that_is_down() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 3);
    broker.state().down = vec![1];
    let client = broker.client().await;
    let producer = client.producer().batch_messages_max(1).build().unwrap();
    for index in 0..100 {
        let value = format!("{index:06}");
        drop(producer.send(Record::to("t").value(value.as_bytes())).await.unwrap());
    }
    let report = producer.close(LONG).await;
    assert!(report.is_complete(), "{report:?}");
    let counts = [0, 1, 2].map(|partition| broker.values("t", partition).len());
    assert!(counts[0] > 0 && counts[1] == 0 && counts[2] > 0, "{counts:?}");
}

#[tokio::test]
async fn when_every_partition_is_down_sets_are_filled_all_the_same() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 3);
    broker.state().down = vec![0, 1, 2];
    let client = broker.client().await;
    let producer = client.producer().linger(LONG).build().unwrap();
    for _ in 0..50 {
        drop(producer.send(Record::to("t").value(b"x")).await.unwrap());
    }
    // One set, of one partition.
    let report = producer.close(Duration::from_millis(50)).await;
    assert_eq!((report.published, report.unsent), (50, 50));
}

#[tokio::test]
async fn a_prepared_set_goes_out_as_it_is_and_only_where_it_is_expected_to() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let client = broker.client().await;
    let producer = client.producer().compression(Compression::Lz4).build().unwrap();
    let set = |values: &[&str]| PreparedSet::new("t", 0, support::set_of(values)).unwrap();
    let mut end = 0;
    let mut deliveries = Vec::new();
    for number in 0..20 {
        let set = set(&["a", "b"]).expected_id(end);
        let place = end;
        // Every fifth is expected elsewhere.
        let (set, expected) = if number % 5 == 4 { (set.expected_id(1), None) } else { (set, Some(place)) };
        end += if expected.is_some() { set.bytes() as u64 } else { 0 };
        deliveries.push((producer.send_set(set).await.unwrap(), expected, end));
    }
    drop(producer.send(Record::to("t").value(b"last")).await.unwrap());
    for (delivery, expected, end) in deliveries {
        match (delivery.await, expected) {
            (Ok(delivered), Some(expected)) => assert_eq!(delivered.position, Some(expected)),
            (Err(DeliveryError::Refused(refusal)), None) => {
                assert_eq!((refusal.status, refusal.end), (Status::UnexpectedEnd, Some(end)));
            }
            (other, expected) => panic!("{other:?} where {expected:?} was expected"),
        }
    }
    assert!(producer.flush(LONG).await.acknowledged == 16 * 2 + 1);
    let mut values = ["a", "b"].repeat(16);
    values.push("last");
    assert_eq!(broker.values("t", 0), values);
    broker.assert_no_complaints();
}

#[test]
fn what_is_no_set_is_no_prepared_set() {
    let good = support::set_of(&["a", "b"]);
    assert!(PreparedSet::new("t", 0, good.slice(..good.len() - 1)).is_err());
    assert!(PreparedSet::new("t", 0, bytes::Bytes::new()).is_err());
    assert!(PreparedSet::of("t", 0, &[]).is_err());
    let set = PreparedSet::of("t", 0, &[Record::to("x").value(b"a").timestamp_ms(0)]).unwrap();
    assert_eq!((set.messages(), set.bytes()), (1, support::set_of(&["a"]).len()));
}
