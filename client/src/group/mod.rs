//! Consuming as a member of a group: the partitions of the subscribed topics are shared out among the group's members,
//! each one is read by one of them at a time, and where the group stands is kept by the cluster. The stream is the same
//! as a consumer's; which partitions it is fed from changes underneath it.

mod admin;
mod builder;
mod claims;
mod clock;
mod commits;
mod error;
mod handle;
mod line;
mod member;
mod releases;
mod rewind;
mod shared;
mod state;

use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use corelane_proto::ids::TopicId;
use corelane_proto::pb;
use futures_core::Stream;

use crate::consumer::{ConsumeError, ConsumedMessage, Delivered, Reader, Start};
use shared::Shared;
use state::{Delivery, Key, Life, Phase, Place, Tenure};

pub use admin::{GroupDescription, GroupMember, GroupSummary, NewPosition, PartitionOfGroup};
pub use builder::{GroupConsumerBuilder, GroupStart};
pub use error::GroupError;
pub use handle::GroupHandle;

/// Tells one ownership of a partition from every other: of two, the greater one is the later. A store that refuses
/// writes under a lower fence than it has seen keeps an owner out that was replaced without knowing it yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Fence {
    /// Grows when the cluster's registry is restored from a backup, or moved.
    pub incarnation: u64,
    /// Grows with each ownership within an incarnation.
    pub number: u64,
}

impl Fence {
    pub(crate) fn from_pb(fence: &pb::Fence) -> Self {
        Self { incarnation: fence.incarnation, number: fence.number }
    }
}

impl std::fmt::Display for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.incarnation, self.number)
    }
}

/// A partition that this member owns, or owned.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GroupPartition {
    /// The topic.
    pub topic: Arc<str>,
    /// The topic's lasting id.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: u32,
    /// The number of this ownership.
    pub fence: Fence,
    /// Whether its messages are being delivered; not before its beginning is known, nor once it is being given up.
    pub is_read: bool,
    /// The epoch and the position below which everything was processed; none before the beginning is known.
    pub processed: Option<(u32, u64)>,
    /// The same, as far as it is committed.
    pub committed: Option<(u32, u64)>,
    /// The visible end when a broker last told it.
    pub visible_end: Option<u64>,
}

impl GroupPartition {
    fn of(key: Key, tenure: &Tenure, visible_end: Option<u64>) -> Self {
        let pair = |place: Place| (place.epoch, place.position);
        Self {
            topic: tenure.topic.clone(),
            topic_id: key.0,
            partition: key.1,
            fence: Fence::from_pb(&tenure.fence),
            is_read: tenure.phase == Phase::Reading,
            processed: tenure.done.map(pair),
            committed: tenure.committed.map(pair),
            visible_end,
        }
    }
}

/// A message of a group's stream: the message itself, and under which ownership it was delivered.
#[derive(Debug, Clone)]
pub struct GroupMessage {
    message: ConsumedMessage,
    topic_id: TopicId,
    fence: Fence,
    epoch: u32,
}

impl GroupMessage {
    /// The number of the ownership under which it was delivered.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The topic's lasting id.
    pub fn topic_id(&self) -> TopicId {
        self.topic_id
    }

    /// The epoch that its position belongs to.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The message alone.
    pub fn into_message(self) -> ConsumedMessage {
        self.message
    }

    fn key_of_partition(&self) -> Key {
        (self.topic_id, self.message.partition())
    }

    fn next(&self) -> Place {
        Place { epoch: self.epoch, position: self.message.next_position() }
    }
}

impl Deref for GroupMessage {
    type Target = ConsumedMessage;

    fn deref(&self) -> &ConsumedMessage {
        &self.message
    }
}

/// A member of a group, as a stream of the messages of all partitions that it owns at the moment. It ends ([`None`]) only
/// after a refusal that no retry can help.
///
/// A message counts as processed when the next one is asked for, unless
/// [`manual_commit`](GroupConsumerBuilder::manual_commit) was chosen. Every message is delivered to the group at least
/// once: after a crash, a long pause, or a loss of the connection, what was not committed is delivered again, to this
/// member or to another one.
///
/// Dropping it leaves the group in the background, if the runtime goes on; [`GroupConsumer::close`] waits for it.
pub struct GroupConsumer {
    handle: GroupHandle,
    reader: Reader,
}

impl std::fmt::Debug for GroupConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupConsumer").field("assignment", &self.handle.assignment()).finish_non_exhaustive()
    }
}

impl Drop for GroupConsumer {
    fn drop(&mut self) {
        self.handle.shared.state().abandon();
        self.handle.begin_to_close();
    }
}

impl GroupConsumer {
    fn new(shared: Arc<Shared>, reader: Reader) -> Self {
        Self { handle: GroupHandle { shared }, reader }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// The next message. Waits while there is none. Safe to cancel: nothing is lost, and the message before counts as
    /// processed all the same.
    ///
    /// ```no_run
    /// # async fn example(client: corelane_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut consumer = client.group("billing").topic("orders").build()?;
    /// while let Some(message) = consumer.next().await {
    ///     match message {
    ///         Ok(message) => println!("{}/{} {:?}", message.partition(), message.position(), message.value()),
    ///         Err(error) if error.is_retryable() => eprintln!("{error}"),
    ///         Err(error) => return Err(error.into()),
    ///     }
    /// }
    /// consumer.close().await?;
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Option<Result<GroupMessage, GroupError>> {
        std::future::poll_fn(|cx| self.poll_message(cx)).await
    }

    /// The next message if it is here already; never waits.
    pub fn next_ready(&mut self) -> Option<Result<GroupMessage, GroupError>> {
        if let Some(error) = self.put_down() {
            return Some(Err(error));
        }
        loop {
            let next = self.reader.ready()?;
            if let Some(next) = self.accept(next) {
                return Some(next);
            }
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<GroupMessage, GroupError>>> {
        if let Some(error) = self.put_down() {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            let Poll::Ready(next) = self.reader.poll(cx) else {
                // What is reported from now on wakes the task.
                let mut state = self.shared().state();
                if let Some(error) = state.errors.pop_front() {
                    return Poll::Ready(Some(Err(error)));
                }
                return if state.life == Life::Over { Poll::Ready(None) } else { Poll::Pending };
            };
            if let Some(next) = self.accept(next) {
                return Poll::Ready(Some(next));
            }
        }
    }

    /// The program is done with the message before. Returns an error that waits for it.
    fn put_down(&self) -> Option<GroupError> {
        let mut state = self.shared().state();
        let is_awaited = state.put_down();
        let error = state.errors.pop_front();
        drop(state);
        if is_awaited {
            self.shared().notify();
        }
        error
    }

    /// Decides what becomes of what was fetched. `None`: nothing that the program gets.
    fn accept(&self, next: Result<Delivered, ConsumeError>) -> Option<Result<GroupMessage, GroupError>> {
        match next {
            Ok(Delivered { stream, epoch, message }) => {
                let next = Place { epoch, position: message.next_position() };
                let delivery = self.shared().state().deliver(stream, next);
                match delivery {
                    Delivery::Granted(topic_id, fence) => Some(Ok(GroupMessage { message, topic_id, fence, epoch })),
                    Delivery::Refused => None,
                    Delivery::Late => {
                        self.shared().found_late();
                        None
                    }
                }
            }
            Err(error) => self.meet(error).map(Err),
        }
    }

    fn meet(&self, error: ConsumeError) -> Option<GroupError> {
        let shared = self.shared();
        match error {
            // The next target will be without it.
            ConsumeError::TopicDeleted { .. } => None,
            ConsumeError::OutOfRange { topic, partition, position, visible_end, .. } => {
                let mut state = shared.state();
                let key = state.key_of(&topic, partition)?;
                state.stop(key, Phase::Resting);
                let group = shared.settings.group.clone();
                Some(GroupError::AheadOfEnd { group, topic, partition, position, end: visible_end })
            }
            other => Some(other.into()),
        }
    }

    /// Commits everything that was handed out so far, the last message included, and waits for the answer. Safe to cancel:
    /// what one call did not come to tell, the next one does.
    ///
    /// # Errors
    /// [`GroupError::NotCommitted`] with the partitions of which messages that were handed out are not committed: those
    /// that were lost, or released before their messages were marked, since the last call, and those whose commit was not
    /// answered within the client's request time-out.
    pub async fn commit(&mut self) -> Result<(), GroupError> {
        let awaited = {
            let mut state = self.shared().state();
            state.mark_handed_out();
            state.awaited()
        };
        // A release may have waited for just that.
        self.shared().notify();
        let uncommitted = self.handle.uncommitted(awaited).await;
        let mut partitions = std::mem::take(&mut self.shared().state().forfeited);
        partitions.extend(uncommitted);
        let partitions = Vec::from_iter(partitions);
        if partitions.is_empty() { Ok(()) } else { Err(GroupError::NotCommitted { partitions }) }
    }

    /// Commits one partition up to this message, which counts as processed, and waits for the answer.
    ///
    /// # Errors
    /// As [`GroupConsumer::commit`].
    pub async fn commit_through(&self, message: &GroupMessage) -> Result<(), GroupError> {
        self.handle.commit_through(message).await
    }

    /// Goes on elsewhere in a partition that this member owns, also before what is committed: the place is committed, and
    /// then read from. What was fetched before is dropped.
    ///
    /// # Errors
    /// [`GroupError::NotOwned`], or why the place cannot be found or committed. The partition rests then.
    pub async fn rewind(&mut self, topic: &str, partition: u32, start: Start) -> Result<(), GroupError> {
        self.shared().state().put_down();
        rewind::rewind(self.shared(), topic, partition, start).await
    }

    /// For other tasks: a handle that can be cloned, to say what was processed and to look at what is owned.
    pub fn handle(&self) -> GroupHandle {
        self.handle.clone()
    }

    /// The partitions that this member owns at the moment.
    pub fn assignment(&self) -> Vec<GroupPartition> {
        self.handle.assignment()
    }

    /// Counters of what was read.
    pub fn stats(&self) -> crate::ConsumerStats {
        let mut stats = self.reader.stats();
        stats.resets += self.shared().state().skipped;
        stats
    }

    /// Commits what was processed (the last message included, unless commits are manual), gives everything up, and
    /// leaves the group, so that others take over at once. Waits for it, at most about a lease's life.
    ///
    /// # Errors
    /// [`GroupError::NotCommitted`] with the partitions whose last position could not be committed.
    pub async fn close(self) -> Result<(), GroupError> {
        self.shared().state().put_down();
        self.handle.begin_to_close();
        self.handle.closed().await
    }

    /// [Closes](Self::close) a member whose program will mark nothing more: with
    /// [`manual_marks`](GroupConsumerBuilder::manual_marks), what it got and did not mark is not waited for, and comes again
    /// to whoever reads the partition next.
    ///
    /// # Errors
    /// As [`GroupConsumer::close`].
    pub async fn leave(self) -> Result<(), GroupError> {
        self.shared().state().give_up();
        self.handle.begin_to_close();
        self.handle.closed().await
    }

    /// For a program whose thread does not run the lanes.
    pub(crate) fn on_a_thread_of_its_own(mut self) -> Self {
        self.reader.on_a_thread_of_its_own();
        self
    }
}

impl Stream for GroupConsumer {
    type Item = Result<GroupMessage, GroupError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_message(cx)
    }
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<GroupConsumer>();
};
