//! Consuming: a stream of messages from one or many partitions, fetched ahead within a bound, checked, unpacked and
//! handed out as views of what was received.

mod builder;
mod changing;
mod error;
mod fetching;
mod finder;
mod joiner;
mod lane;
mod last;
mod message;
mod piece;
mod pool;
mod resolve;
mod shared;
mod skip;
mod turn;
mod watcher;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use crate::client::Client;
use crate::error::CallError;
use last::position_of_last;
use piece::{Piece, Step};
use shared::{Item, Shared};
use turn::Turn;

pub use builder::ConsumerBuilder;
pub(crate) use builder::ConsumerSettings;
pub(crate) use changing::{Beginning, Delivered, NoBeginning, Reader, StreamId, Streams, find_beginning};
pub use error::ConsumeError;
pub use message::{ConsumedMessage, Headers};
pub(crate) use skip::OnSkip;
pub use skip::{Skip, SkipCause};

/// A topic that the cluster does not know is gone only when it still is after so long: a broker may be behind.
const DOUBT: Duration = Duration::from_secs(2);

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
    /// So that of the messages visible now the last so many of each partition come, or all if there are fewer, and what
    /// becomes visible later.
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

/// A stream of messages from one or many partitions. It ends ([`None`]) only when nothing can come any more: it was told
/// to end ([`ConsumerBuilder::until_end`]), all its topics were deleted, or all its partitions rest after an error. When
/// there is nothing to read it waits.
///
/// Messages of one partition come in order; partitions take turns, of some milliseconds each while a program is slow.
pub struct Consumer {
    client: Client,
    shared: Arc<Shared>,
    /// What is handed out at the moment.
    current: Option<Current>,
    /// By partition, where to resume; none: where it begins.
    positions: Vec<Option<u64>>,
    messages: u64,
    bad_inside: u64,
    /// Whether the stream ends when nothing can come any more.
    ends: bool,
    /// Whether the lanes get their turn after each large piece; they need it when they share the program's thread.
    yields: bool,
    shall_yield: bool,
}

struct Current {
    partition: usize,
    piece: Piece,
    until: u64,
    epoch: u32,
    generation: u64,
    charge: usize,
    turn: Turn,
}

/// After a piece this large the lanes get their turn.
const LARGE_PIECE_BYTES: usize = 64 << 10;

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("positions", &self.positions()).finish_non_exhaustive()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Consumer {
    fn of(client: Client, shared: Arc<Shared>) -> Self {
        Self {
            client,
            shared,
            current: None,
            positions: Vec::new(),
            messages: 0,
            bad_inside: 0,
            ends: true,
            yields: true,
            shall_yield: false,
        }
    }

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

    /// The next message if it is here already; never waits.
    pub fn next_ready(&mut self) -> Option<Result<ConsumedMessage, ConsumeError>> {
        loop {
            if let Some(next) = self.next_of_current() {
                return Some(next);
            }
            let (partition, item) = self.pop()?;
            if let Some(error) = self.take(partition, item) {
                return Some(Err(error));
            }
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ConsumedMessage, ConsumeError>>> {
        loop {
            if let Some(next) = self.next_of_current() {
                return Poll::Ready(Some(next));
            }
            if std::mem::take(&mut self.shall_yield) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut state = self.shared.state();
            let share = self.shared.share(state.active());
            let Some((partition, item)) = state.pop(share) else {
                if self.ends && state.is_exhausted() {
                    return Poll::Ready(None);
                }
                state.wait(cx.waker());
                return Poll::Pending;
            };
            drop(state);
            if let Some(error) = self.take(partition, item) {
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    fn pop(&self) -> Option<(usize, Item)> {
        let mut state = self.shared.state();
        let share = self.shared.share(state.active());
        state.pop(share)
    }

    fn take(&mut self, partition: usize, item: Item) -> Option<ConsumeError> {
        match item {
            Item::Piece { piece, charge, epoch, generation } => {
                let state = self.shared.state();
                let until = state.partitions[partition].until.unwrap_or(u64::MAX);
                self.positions.resize(state.partitions.len(), None);
                drop(state);
                let turn = Turn::begin();
                self.current = Some(Current { partition, piece, until, epoch, generation, charge, turn });
                None
            }
            Item::Error { error, .. } => Some(error),
        }
    }

    #[inline]
    fn next_of_current(&mut self) -> Option<Result<ConsumedMessage, ConsumeError>> {
        let current = self.current.as_mut()?;
        if current.turn.is_over(|| current.piece.unpacking()) {
            self.end_turn();
            return None;
        }
        loop {
            match current.piece.next() {
                Some(Step::Message(message)) if message.position < current.until => {
                    self.positions[current.partition] = Some(message.next_position);
                    self.messages += 1;
                    return Some(Ok(message));
                }
                Some(Step::Bad) => self.bad_inside += 1,
                Some(Step::Undecodable { position, reason }) => {
                    let source = self.shared.state().partitions[current.partition].source.clone();
                    let (topic, partition) = (source.topic.to_string(), source.partition);
                    self.bad_inside += 1;
                    return Some(Err(ConsumeError::Undecodable { topic, partition, position, reason }));
                }
                Some(Step::Message(_)) | None => break,
            }
        }
        self.finish_current();
        None
    }

    /// Others get their turn, and the lanes if they share the program's thread.
    #[cold]
    fn end_turn(&mut self) {
        let Some(Current { partition, mut piece, epoch, generation, charge, .. }) = self.current.take() else { return };
        piece.rest();
        self.shared.state().put_back(partition, piece, charge, epoch, generation);
        self.shall_yield = self.yields;
    }

    #[cold]
    fn finish_current(&mut self) {
        let Some(current) = self.current.take() else { return };
        let position = &mut self.positions[current.partition];
        // A piece may end with what was not wanted, or could not be read.
        *position = (*position).max(Some(current.piece.end().min(current.until)));
        self.shall_yield = self.yields && current.charge >= LARGE_PIECE_BYTES;
        if current.piece.end() >= current.until {
            let mut state = self.shared.state();
            state.begin_anew(current.partition);
            state.partitions[current.partition].rests = true;
        }
    }

    /// Goes on elsewhere in a partition. Messages fetched before are dropped.
    ///
    /// # Errors
    /// When the place cannot be found; the partition rests then.
    pub async fn seek(&mut self, topic: &str, partition: u32, start: Start) -> Result<(), CallError> {
        let Some(index) = self.shared.state().index_of(topic, partition) else {
            return Err(CallError::Invalid {
                field: "partition",
                reason: format!("this consumer does not read {topic}/{partition}"),
            });
        };
        self.stop(topic, partition);
        let begun = finder::begin(&self.shared.cluster, topic, partition, start, OutOfRange::Fail).await;
        let (mut from, bounds) = begun.map_err(|error| error.into_call(topic, partition))?;
        if let Start::LastMessages(wanted) = start {
            let source = self.shared.state().partitions[index].source.clone();
            from.position = position_of_last(&self.client, &source, bounds, wanted).await?;
        }
        if let Some(position) = self.positions.get_mut(index) {
            *position = None;
        }
        let generation = {
            let mut state = self.shared.state();
            let at = &mut state.partitions[index];
            (at.begin, at.visible_end) = (Some(from.position), bounds.visible_end);
            at.until = at.until.or(self.shared.settings.until_end.then_some(bounds.visible_end));
            state.begin_anew(index)
        };
        self.shared.start_stream(index, generation, from, 0)
    }

    /// Reads a partition no more, until it is sought. Messages fetched before are dropped. False: it is none of this consumer's.
    pub fn stop(&mut self, topic: &str, partition: u32) -> bool {
        let mut state = self.shared.state();
        let Some(index) = state.index_of(topic, partition) else { return false };
        state.begin_anew(index);
        state.partitions[index].rests = true;
        drop(state);
        if self.current.as_ref().is_some_and(|current| current.partition == index) {
            self.current = None;
        }
        true
    }

    /// Where each partition's stream stands. One whose broker could not be asked so far is missing: see
    /// [`Consumer::not_begun`].
    pub fn positions(&self) -> Vec<PartitionPosition> {
        let state = self.shared.state();
        let positions = state.partitions.iter().enumerate().filter_map(|(index, at)| {
            let position = self.positions.get(index).copied().flatten().or(at.begin)?;
            Some(PartitionPosition {
                topic: at.source.topic.clone(),
                partition: at.source.partition,
                epoch: at.epoch,
                position,
                visible_end: at.visible_end.max(position),
                until: at.until,
            })
        });
        positions.collect()
    }

    /// The partitions, with their topics, of which nobody has told yet where they begin. They are asked for until
    /// somebody does.
    pub fn not_begun(&self) -> Vec<(Arc<str>, u32)> {
        let state = self.shared.state();
        let waiting = state.partitions.iter().filter(|at| at.begin.is_none() && !at.rests);
        waiting.map(|at| (at.source.topic.clone(), at.source.partition)).collect()
    }

    /// Where to resume a partition: just after the last message that the program got.
    pub fn position(&self, topic: &str, partition: u32) -> Option<u64> {
        let found = self.positions().into_iter().find(|at| &*at.topic == topic && at.partition == partition);
        found.map(|at| at.position)
    }

    /// Counters.
    pub fn stats(&self) -> ConsumerStats {
        let counters = self.shared.state().counters;
        ConsumerStats {
            messages: self.messages,
            bytes: counters.bytes,
            bad_messages: counters.bad_messages + self.bad_inside,
            skipped_bytes: counters.skipped_bytes,
            resets: counters.resets,
            connections: counters.connections,
        }
    }

    /// For a program whose thread does not run the lanes.
    pub(crate) fn on_a_thread_of_its_own(mut self) -> Self {
        self.yields = false;
        self
    }
}

impl Stream for Consumer {
    type Item = Result<ConsumedMessage, ConsumeError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_message(cx)
    }
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Consumer>();
};
