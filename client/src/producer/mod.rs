//! Publishing. Messages are encoded straight into the set that will be sent; sets go out by size or after the linger
//! time, several under way per partition; order per partition is kept under every retry.

mod accumulator;
mod answers;
mod builder;
mod delivery;
mod directory;
mod error;
mod exchange;
mod keeper;
mod lane;
mod outgoing;
mod partitioner;
mod posting;
mod prepared;
mod record;
mod shared;
mod window;

use std::sync::Arc;
use std::time::{Duration, Instant};

use corelane_proto::codec::Codec;

use accumulator::{Life, Pushed, Receipt};
use shared::Shared;

pub use builder::ProducerBuilder;
pub use delivery::{Delivered, DeliveryFuture};
pub use error::{DeliveryError, SendError, TrySendError};
pub use partitioner::{PartitionChoice, Partitioner, murmur2, partition_for_key};
pub use posting::Posting;
pub use prepared::PreparedSet;
pub use record::Record;

/// When the broker acknowledges a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acks {
    /// When it is on stable storage.
    #[default]
    Durable,
    /// When the broker has taken it into memory; a crash of the broker may lose it.
    Received,
    /// Never. A message counts as acknowledged once it was written to the socket without a refusal; it is never sent
    /// twice.
    None,
}

/// How sets are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: very fast.
    Lz4,
    /// Zstandard: dense.
    Zstd,
    /// Snappy.
    Snappy,
    /// Gzip.
    Gzip,
}

impl Compression {
    fn codec(self) -> Option<Codec> {
        match self {
            Self::None => None,
            Self::Lz4 => Some(Codec::Lz4),
            Self::Zstd => Some(Codec::Zstd),
            Self::Snappy => Some(Codec::Snappy),
            Self::Gzip => Some(Codec::Gzip),
        }
    }
}

/// Totals since the producer was built, at the end of a flush or close:
/// `acknowledged + failed + unsent == published`.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct FlushReport {
    /// Messages that the producer took.
    pub published: u64,
    /// Messages acknowledged as the producer's `acks` ask.
    pub acknowledged: u64,
    /// Messages that failed for good.
    pub failed: u64,
    /// Messages of which neither is known: still waiting, or under way, when the time was up.
    pub unsent: u64,
    /// Why the last message that failed did; while there are unsent ones, what is in their way, if that is known.
    pub last_error: Option<DeliveryError>,
}

impl FlushReport {
    /// Whether every message was acknowledged.
    pub fn is_complete(&self) -> bool {
        self.acknowledged == self.published
    }
}

/// Counters since the producer was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ProducerStats {
    /// Messages that the producer took.
    pub published: u64,
    /// Messages acknowledged.
    pub acknowledged: u64,
    /// Messages failed for good.
    pub failed: u64,
    /// Sets acknowledged.
    pub sets: u64,
    /// Bytes of the sets acknowledged, as sent.
    pub set_bytes: u64,
    /// Sets that were sent again.
    pub retries: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Bytes waiting to be sent or acknowledged now.
    pub buffered_bytes: u64,
}

/// How a set ended; see [`ProducerBuilder::on_set`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SetReport {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: u32,
    /// How many messages the set had.
    pub messages: u32,
    /// Its bytes as sent.
    pub bytes: usize,
    /// The time since its first message was handed over.
    pub age: Duration,
    /// The id of its first message (or of its wrapper); not known with `Acks::None`.
    pub first: Result<Option<u64>, DeliveryError>,
}

/// Publishes messages. It is cheap to clone; all clones share buffers and connections. When the last clone is dropped
/// without [`Producer::close`], what is not acknowledged is given up.
#[derive(Clone)]
pub struct Producer {
    handle: Arc<Handle>,
}

/// What the clones of a producer share; the tasks hold only what is inside.
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.advance_life(Life::Over);
    }
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Producer {
    /// Takes a message: it is copied into the set that will be sent. Waits while the buffer is full or the topic is being
    /// looked up. Await the returned future to learn what became of the message, or drop it. Safe to cancel: either the
    /// message was taken or it was not.
    ///
    /// ```no_run
    /// # async fn example(producer: corelane_client::Producer) -> Result<(), Box<dyn std::error::Error>> {
    /// use corelane_client::Record;
    /// for line in ["one", "two", "three"] {
    ///     drop(producer.send(Record::to("lines").value(line.as_bytes())).await?);
    /// }
    /// let report = producer.flush(std::time::Duration::from_secs(10)).await;
    /// assert!(report.is_complete());
    /// # Ok(()) }
    /// ```
    pub async fn send(&self, record: Record<'_>) -> Result<DeliveryFuture, SendError> {
        self.take(record.topic, || self.push(&record)).await
    }

    /// Takes a message like [`Producer::send`], for callers that do not ask for the fate of each: [`Producer::flush`] tells
    /// whether all were acknowledged, and [`ProducerBuilder::on_set`] how each set ended. Safe to cancel, as `send` is.
    ///
    /// ```no_run
    /// # async fn example(producer: corelane_client::Producer) -> Result<(), Box<dyn std::error::Error>> {
    /// use corelane_client::Record;
    /// for line in ["one", "two", "three"] {
    ///     producer.post(Record::to("lines").value(line.as_bytes())).await?;
    /// }
    /// let report = producer.flush(std::time::Duration::from_secs(10)).await;
    /// assert!(report.is_complete());
    /// # Ok(()) }
    /// ```
    pub async fn post(&self, record: Record<'_>) -> Result<(), SendError> {
        self.take(record.topic, || self.push(&record)).await
    }

    /// Takes a whole set, which is sent as it is, behind what was taken for its partition before. Waits like
    /// [`Producer::send`]. The delivery tells the place of its first message.
    ///
    /// ```no_run
    /// # async fn example(producer: corelane_client::Producer) -> Result<(), Box<dyn std::error::Error>> {
    /// use corelane_client::{PreparedSet, Record};
    /// let set = PreparedSet::of("ledger", 0, &[Record::to("ledger").value(b"first entry")])?.expected_id(0);
    /// match producer.send_set(set).await?.await {
    ///     Ok(delivered) => println!("appended at {:?}", delivered.position),
    ///     Err(error) => println!("somebody else was faster: {error}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn send_set(&self, set: PreparedSet) -> Result<DeliveryFuture, SendError> {
        let push = || {
            let pushed = self.handle.shared.accumulator().push_set(&set);
            pushed.map(woken)
        };
        self.take(&set.topic, push).await
    }

    /// Takes what `push` offers; waits while the buffer is full or the topic is being looked up.
    async fn take<R>(&self, topic: &str, push: impl Fn() -> Result<Push<R>, SendError>) -> Result<R, SendError> {
        let shared = &self.handle.shared;
        loop {
            match push()? {
                Push::Taken { receipt, pause } => {
                    if pause {
                        tokio::task::yield_now().await;
                    }
                    return Ok(receipt);
                }
                Push::UnknownTopic => {
                    self.prepare(topic).await?;
                }
                Push::Full => {
                    let mut space = std::pin::pin!(shared.space.notified());
                    // Whoever is registered before the second look misses no memory that becomes free after it.
                    space.as_mut().enable();
                    match push()? {
                        Push::Taken { receipt, .. } => return Ok(receipt),
                        Push::UnknownTopic => {}
                        Push::Full => space.await,
                    }
                }
            }
        }
    }

    /// Takes a message if that is possible at once.
    pub fn try_send(&self, record: &Record<'_>) -> Result<DeliveryFuture, TrySendError> {
        self.try_take(record)
    }

    /// Takes a message like [`Producer::post`] if that is possible at once.
    pub fn try_post(&self, record: &Record<'_>) -> Result<(), TrySendError> {
        self.try_take(record)
    }

    fn try_take<R: Receipt>(&self, record: &Record<'_>) -> Result<R, TrySendError> {
        match self.push(record)? {
            Push::Taken { receipt, .. } => Ok(receipt),
            Push::Full => Err(TrySendError::Full),
            Push::UnknownTopic => {
                self.prepare_beside(record.topic.to_owned());
                Err(TrySendError::NotReady)
            }
        }
    }

    fn prepare_beside(&self, topic: String) {
        let producer = self.clone();
        self.handle.shared.runtime().spawn(async move { producer.prepare(&topic).await });
    }

    fn push<R: Receipt>(&self, record: &Record<'_>) -> Result<Push<R>, SendError> {
        let now_ms = now_if_needed(record);
        let pushed = self.handle.shared.accumulator().push(record, now_ms);
        pushed.map(woken)
    }

    /// Looks a topic up, so that [`Producer::try_send`] and its kin know it. Returns how many partitions it has.
    pub async fn prepare(&self, topic: &str) -> Result<u32, SendError> {
        let shared = &self.handle.shared;
        if let Some(partitions) = shared.accumulator().has_topic(topic) {
            return Ok(partitions);
        }
        let places = shared.cluster.topic(topic).await;
        let places = places.map_err(|cause| SendError::Topic { topic: topic.to_owned(), cause })?;
        shared.learn(&places);
        Ok(places.partitions.len() as u32)
    }

    /// Sends what is waiting, without lingering, and waits until every message taken so far is acknowledged or failed, at
    /// most for `timeout`.
    pub async fn flush(&self, timeout: Duration) -> FlushReport {
        let shared = &self.handle.shared;
        let (woken, target) = {
            let mut accumulator = shared.accumulator();
            (accumulator.close_all(), accumulator.next_number())
        };
        woken.into_iter().for_each(std::task::Waker::wake);
        let done = async {
            loop {
                let mut progress = std::pin::pin!(shared.progress.notified());
                progress.as_mut().enable();
                if shared.accumulator().ended_from() >= target {
                    return;
                }
                progress.await;
            }
        };
        // Running into the time-out is told by the report.
        let _ = tokio::time::timeout(timeout, done).await;
        shared.report()
    }

    /// Takes no more messages, flushes, and ends the producer. What is not acknowledged when `timeout` is over is given up
    /// and reported as unsent. Later calls return the same report.
    pub async fn close(&self, timeout: Duration) -> FlushReport {
        let shared = &self.handle.shared;
        shared.advance_life(Life::Closing);
        self.flush(timeout).await;
        shared.advance_life(Life::Over);
        loop {
            let mut ended = std::pin::pin!(shared.lane_ended.notified());
            ended.as_mut().enable();
            if shared.lanes_alive() == 0 {
                return shared.report();
            }
            ended.await;
        }
    }

    /// What keeps messages of some partition from being delivered at the moment, as it was met last; none: nothing that is
    /// known.
    pub fn obstacle(&self) -> Option<Arc<str>> {
        let accumulator = self.handle.shared.accumulator();
        let now = Instant::now();
        let is_troubled = accumulator.partitions.iter().any(|at| at.troubled_until.is_some_and(|until| until > now));
        accumulator.counters.obstacle.clone().filter(|_| is_troubled)
    }

    /// Counters.
    pub fn stats(&self) -> ProducerStats {
        let accumulator = self.handle.shared.accumulator();
        let counters = &accumulator.counters;
        ProducerStats {
            published: counters.published,
            acknowledged: counters.acknowledged,
            failed: counters.failed,
            sets: counters.sets,
            set_bytes: counters.set_bytes,
            retries: counters.retries,
            connections: counters.connections,
            buffered_bytes: accumulator.buffered_bytes as u64,
        }
    }
}

/// What came of a message.
enum Push<R> {
    Taken { receipt: R, pause: bool },
    Full,
    UnknownTopic,
}

/// Wakes the lane that has to know; the lock must be free by now.
fn woken<R>(pushed: Pushed<R>) -> Push<R> {
    match pushed {
        Pushed::Taken { receipt, woken, pause } => {
            if let Some(waker) = woken {
                waker.wake();
            }
            Push::Taken { receipt, pause }
        }
        Pushed::Full => Push::Full,
        Pushed::UnknownTopic => Push::UnknownTopic,
    }
}

/// The time that a message gets that has none.
fn now_if_needed(record: &Record<'_>) -> i64 {
    if record.timestamp_ms.is_none() { now_ms() } else { 0 }
}

fn now_ms() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.map_or(0, |since| since.as_millis() as i64)
}
