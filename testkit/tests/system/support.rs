//! What these tests share: connecting, numbered messages whose bytes can be checked, reading a topic to its end.

use std::future::Future;
use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

use corelane_client::{
    Client, ConsumedMessage, Consumer, ConsumerBuilder, NewTopic, PartitionDetail, Producer, Record, Start,
    TopicSettings,
};
use corelane_testkit::Broker;

/// How long anything that is not slow by nature may take on a busy machine before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A message as it was consumed, with bytes of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) partition: u32,
    pub(crate) position: u64,
    pub(crate) next_position: u64,
    pub(crate) ends_set: bool,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Vec<u8>,
}

/// Awaits `future`; panics, naming `what`, when that takes longer than [`PATIENCE`].
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    within(PATIENCE, what, future).await
}

/// Awaits `future`; panics, naming `what`, when that takes longer than `deadline`.
pub(crate) async fn within<T>(deadline: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(deadline, future).await.unwrap_or_else(|_| panic!("waited {deadline:?} for {what}"))
}

pub(crate) async fn connect(broker: &Broker) -> Client {
    let builder = Client::builder().bootstrap(broker.addr().to_string());
    soon("the client to connect", builder.build()).await.expect("a broker that is ready takes connections")
}

pub(crate) async fn create(client: &Client, topic: &str, partitions: u32, settings: TopicSettings) {
    let topic = NewTopic::named(topic).partitions(partitions).settings(settings);
    client.admin().create_topic(topic).await.expect("a topic can be created");
}

/// Segments as small as the broker takes them, and sets that fit.
pub(crate) fn small_segments() -> TopicSettings {
    TopicSettings::new().segment_bytes(64 << 10).set_bytes_max(32 << 10).message_bytes_max(16 << 10)
}

/// Message `number` of a test: its number and then bytes that follow from it, `bytes` (at least 8) in all.
pub(crate) fn numbered(number: u64, bytes: usize) -> Vec<u8> {
    [&number.to_le_bytes()[..], filling(number, bytes - 8)].concat()
}

/// The number of a message that [`numbered`] made; panics when a byte of it is not as it was made.
pub(crate) fn number(value: &[u8]) -> u64 {
    let (number, rest) = value.split_first_chunk().expect("a message begins with its number");
    let number = u64::from_le_bytes(*number);
    assert!(rest == filling(number, rest.len()), "message {number} of {} bytes is not as published", value.len());
    number
}

/// Bytes that tell one message from the next: a piece of a page of noise. Made once and only copied and compared then,
/// since these tests move gigabytes in a lightly optimised build.
fn filling(number: u64, bytes: usize) -> &'static [u8] {
    const PLACES: u64 = 65_521;
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut noise = vec![0; PLACES as usize + (2 << 20)];
        fastrand::Rng::with_seed(0).fill(&mut noise);
        noise
    });
    let at = (number % PLACES * 7_919 % PLACES) as usize;
    &NOISE[at..at + bytes]
}

/// The numbers of messages that [`numbered`] made.
pub(crate) fn numbers_of(seen: &[Seen]) -> Vec<u64> {
    seen.iter().map(|seen| number(&seen.value)).collect()
}

/// Asserts that `numbers` are exactly those of `expected`, in order.
#[track_caller]
pub(crate) fn assert_run(numbers: &[u64], expected: Range<u64>) {
    if let Some((found, expected)) = numbers.iter().zip(expected.clone()).find(|(found, expected)| **found != *expected)
    {
        panic!("message {found} where {expected} was expected");
    }
    assert_eq!(numbers.len() as u64, expected.end - expected.start, "messages");
}

/// Publishes messages `numbers` of `bytes` each to one partition and returns their ids.
pub(crate) async fn publish_numbered(
    producer: &Producer,
    topic: &str,
    partition: u32,
    numbers: Range<u64>,
    bytes: usize,
) -> Vec<u64> {
    let mut deliveries = Vec::new();
    for at in numbers {
        let value = numbered(at, bytes);
        let record = Record::to(topic).partition(partition).value(&value);
        deliveries.push(producer.send(record).await.expect("a message is taken"));
    }
    let mut ids = Vec::new();
    for delivery in deliveries {
        let delivered = soon("an acknowledgement", delivery).await.expect("a message is acknowledged");
        ids.push(delivered.position.expect("an acknowledged message has a position"));
    }
    ids
}

/// A consumer of all of a topic, from its start on.
pub(crate) async fn from_start(client: &Client, topic: &str) -> Consumer {
    let builder = client.consumer().topic(topic).start(Start::Earliest);
    soon("the consumer to be built", builder.build()).await.expect("a consumer of a topic that exists")
}

/// The next message; panics when there is none soon.
pub(crate) async fn next(consumer: &mut Consumer) -> Seen {
    let next = soon("a message", consumer.next()).await.expect("a consumer does not end by itself");
    seen(&next.expect("a message without an error"))
}

pub(crate) fn seen(message: &ConsumedMessage) -> Seen {
    Seen {
        partition: message.partition(),
        position: message.position(),
        next_position: message.next_position(),
        // Bit 7 of the attributes: docs/format.md.
        ends_set: message.frame()[9] & 0x80 != 0,
        key: message.key().map(<[u8]>::to_vec),
        value: message.value().map(<[u8]>::to_vec).unwrap_or_default(),
    }
}

/// All that the topic holds at this moment, in the order of arrival.
pub(crate) async fn read_all(client: &Client, topic: &str) -> Vec<Seen> {
    read_to_end(client.consumer().topic(topic).start(Start::Earliest)).await
}

/// All from where the consumer starts to the ends of this moment.
pub(crate) async fn read_to_end(builder: ConsumerBuilder) -> Vec<Seen> {
    let mut consumer = soon("the consumer to be built", builder.until_end(true).build()).await.expect("a consumer");
    let mut all = Vec::new();
    while let Some(message) = soon("a message or the end", consumer.next()).await {
        all.push(seen(&message.expect("a message without an error")));
    }
    assert_eq!(consumer.stats().bad_messages, 0, "bad messages were skipped");
    all
}

/// The state of a topic's partitions, in order.
pub(crate) async fn details(client: &Client, topic: &str) -> Vec<PartitionDetail> {
    let description = soon("the topic's description", client.admin().describe_topic(topic)).await;
    description.expect("a topic that exists can be described").details
}

/// The state of a topic's only partition.
pub(crate) async fn detail(client: &Client, topic: &str) -> PartitionDetail {
    details(client, topic).await.into_iter().next().expect("a topic has a partition")
}

/// Asks `probe` again and again until it says yes; panics, naming `what`, when that takes too long.
pub(crate) async fn eventually(what: &str, mut probe: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !probe().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
