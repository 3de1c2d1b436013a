//! Messages of every size within the limit arrive, whatever the consumer's fetch size; a larger one is refused clearly.

use corelane_client::{Compression, Record, SendError, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions};

use crate::support::{PATIENCE, assert_run, connect, create, number, numbered, numbers_of, read_to_end, soon};

const LIMIT: usize = 1 << 20;
/// What the format puts around a value without key and headers.
const FRAME_BYTES: usize = 24;

#[tokio::test(flavor = "multi_thread")]
async fn a_message_larger_than_the_fetch_size_blocks_nothing() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "large", 1, TopicSettings::new().message_bytes_max(LIMIT as u32)).await;
    let producer = client.producer().build().expect("a producer");
    let sizes = [LIMIT - 1, LIMIT, 100, LIMIT + 1, LIMIT, 2 * LIMIT, 24 + 8];
    let mut taken = Vec::new();
    for (at, size) in sizes.into_iter().enumerate() {
        let value = numbered(at as u64, size - FRAME_BYTES);
        match soon("the message to be taken", producer.send(Record::to("large").value(&value))).await {
            Ok(delivery) => {
                assert!(size <= LIMIT, "{size} bytes were taken");
                drop(delivery);
                taken.push(at as u64);
            }
            Err(SendError::TooLarge { bytes, limit, .. }) => {
                assert!(size > LIMIT, "{size} bytes were refused");
                assert_eq!((bytes, limit), (size, LIMIT));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(producer.close(PATIENCE).await.is_complete());
    let builder = client.consumer().topic("large").start(Start::Earliest).fetch_bytes(1 << 10).prefetch_bytes(4 << 10);
    let seen = read_to_end(builder).await;
    assert_eq!(seen.iter().map(|seen| number(&seen.value)).collect::<Vec<_>>(), taken);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_fetch_size_joins_the_pieces_to_the_same_messages() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    let codecs = [Compression::None, Compression::Lz4];
    for (topic, codec) in ["pieces", "packed-pieces"].into_iter().zip(codecs) {
        create(&client, topic, 1, TopicSettings::new()).await;
        let producer = client.producer().compression(codec).batch_messages_max(20).build().expect("a producer");
        for at in 0..300 {
            let value = numbered(at, 8 + (at as usize * 37) % 3_000);
            drop(producer.send(Record::to(topic).value(&value)).await.expect("a message is taken"));
        }
        assert!(producer.close(PATIENCE).await.is_complete());
        for fetch_bytes in [1, 23, 24, 25, 4_095, 4_096, 4_097, 1 << 20] {
            // The smallest pieces would take a call for each byte: only a few messages then.
            let start = if fetch_bytes < 1_000 { Start::LastMessages(3) } else { Start::Earliest };
            let builder = client.consumer().topic(topic).start(start).fetch_bytes(fetch_bytes);
            let numbers = numbers_of(&read_to_end(builder).await);
            assert!(numbers.len() >= 3, "fetch size {fetch_bytes}");
            assert_run(&numbers, numbers[0]..300);
        }
    }
}
