//! The settings of a group's member, and its beginning.

use std::sync::Arc;
use std::time::Duration;

use super::shared::Shared;
use super::{GroupConsumer, GroupPartition, member};
use crate::client::Client;
use crate::consumer::{ConsumerSettings, OnSkip, OutOfRange, Reader, Skip};
use crate::error::CallError;

/// Where a group begins in a partition in which it has no committed position. A partition that was added, or a topic that
/// was created, after the group subscribed to it begins at its start whatever this says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GroupStart {
    /// At the oldest message retained.
    #[default]
    Earliest,
    /// At the visible end of the moment.
    Latest,
    /// At the first message whose timestamp (milliseconds since the Unix epoch) is at or after this.
    TimeMs(i64),
    /// Nowhere: an error in the stream.
    Fail,
}

/// A function of the program that is told of a partition.
type Callback = Arc<dyn Fn(&GroupPartition) + Send + Sync>;

#[derive(Clone)]
pub(super) struct GroupSettings {
    pub(super) group: String,
    pub(super) topics: Vec<String>,
    pub(super) pattern: Option<String>,
    pub(super) start: GroupStart,
    /// Whether asking for the next message says that the one before was processed.
    pub(super) marks: bool,
    pub(super) release_wait: Duration,
    /// None: only when the program says so.
    pub(super) commit_interval: Option<Duration>,
    pub(super) lease: Duration,
    pub(super) processing_max: Duration,
    pub(super) release_max: Option<Duration>,
    pub(super) on_claim: Option<Callback>,
    pub(super) on_release: Option<Callback>,
    pub(super) on_lost: Option<Callback>,
    pub(super) consumer: ConsumerSettings,
}

/// Configures a [`GroupConsumer`].
#[derive(Clone)]
pub struct GroupConsumerBuilder {
    client: Client,
    settings: GroupSettings,
}

impl std::fmt::Debug for GroupConsumerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupConsumerBuilder").field("group", &self.settings.group).finish_non_exhaustive()
    }
}

impl GroupConsumerBuilder {
    pub(crate) fn new(client: Client, group: String) -> Self {
        // A group goes on at the start where its place is gone, and never jumps to the end.
        let consumer = ConsumerSettings {
            out_of_range: OutOfRange::Earliest,
            fails_above_end: true,
            ..ConsumerSettings::default()
        };
        Self {
            client,
            settings: GroupSettings {
                group,
                topics: Vec::new(),
                pattern: None,
                start: GroupStart::default(),
                marks: true,
                release_wait: Duration::ZERO,
                commit_interval: Some(Duration::from_secs(5)),
                lease: Duration::from_secs(10),
                processing_max: Duration::from_mins(5),
                release_max: None,
                on_claim: None,
                on_release: None,
                on_lost: None,
                consumer,
            },
        }
    }

    /// Adds a topic. It need not exist yet.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.settings.topics.push(topic.into());
        self
    }

    /// Subscribes to all topics whose whole name matches this regular expression, those that are created later too,
    /// instead of to topics by name.
    pub fn pattern(mut self, pattern: impl Into<String>) -> Self {
        self.settings.pattern = Some(pattern.into());
        self
    }

    /// Where the group begins in a partition in which it has no committed position (default [`GroupStart::Earliest`]).
    /// The place is committed before the first message is delivered.
    pub fn start(mut self, start: GroupStart) -> Self {
        self.settings.start = start;
        self
    }

    /// How often positions are committed (default 5 s). A message counts as processed when the next one is asked for; on
    /// release and on [`GroupConsumer::close`] what was processed is committed too.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.settings.commit_interval = Some(interval);
        self
    }

    /// The program says which messages were processed, with [`GroupHandle::mark`](crate::GroupHandle::mark), instead of
    /// by asking for the next one: for programs that work on several at a time. Commits go on at their interval.
    pub fn manual_marks(mut self) -> Self {
        self.settings.marks = false;
        self
    }

    /// Commits nothing by itself, apart from what was marked when a partition is given up: the program commits, with
    /// [`GroupConsumer::commit`] or [`GroupConsumer::commit_through`]. Includes
    /// [`GroupConsumerBuilder::manual_marks`].
    pub fn manual_commit(mut self) -> Self {
        self.settings.commit_interval = None;
        self.manual_marks()
    }

    /// With manual marks: how long a partition that moves elsewhere waits until all of its messages that were handed out
    /// are marked (default: not at all). What is not marked then is delivered again to the next owner.
    pub fn release_wait(mut self, wait: Duration) -> Self {
        self.settings.release_wait = wait;
        self
    }

    /// How long the member counts as alive after its last heartbeat (default 10 s; 1 s to 5 min). So long nobody else
    /// gets its partitions after a crash, and so long it may be cut off without losing them.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How long the program may take for one message (default 5 min). Beyond it the member loses its partitions, so that
    /// a stuck process does not hold its share up for ever.
    pub fn processing_max(mut self, limit: Duration) -> Self {
        self.settings.processing_max = limit;
        self
    }

    /// How long it may take to give a partition up that moves elsewhere (default: the processing limit and a lease's
    /// life).
    pub fn release_max(mut self, limit: Duration) -> Self {
        self.settings.release_max = Some(limit);
        self
    }

    /// Calls a function for each partition that was claimed, before its first message is delivered, with what the group had
    /// committed there. It runs on the
    /// member's task: it must be quick, and it must not wait for the member.
    pub fn on_claim(mut self, call: impl Fn(&GroupPartition) + Send + Sync + 'static) -> Self {
        self.settings.on_claim = Some(Arc::new(call));
        self
    }

    /// Calls a function for each partition that is about to be given up: none of its messages is in hand, none will
    /// come, its final position is not committed yet. It runs on the member's task: it must be quick, and it must not
    /// wait for the member.
    pub fn on_release(mut self, call: impl Fn(&GroupPartition) + Send + Sync + 'static) -> Self {
        self.settings.on_release = Some(Arc::new(call));
        self
    }

    /// Calls a function for each partition that was lost without a release: somebody else may own it by now. It runs on
    /// the member's task: it must be quick, and it must not wait for the member.
    pub fn on_lost(mut self, call: impl Fn(&GroupPartition) + Send + Sync + 'static) -> Self {
        self.settings.on_lost = Some(Arc::new(call));
        self
    }

    /// Calls a function for each stretch of a log that the group leaves out and goes on behind: what retention had taken
    /// beyond the committed position, damaged messages, a log that began again. It runs on a task of the member: it must be
    /// quick. A stretch that is left out is told again to whoever reads the partition next until more is committed.
    pub fn on_skip(mut self, call: impl Fn(&Skip) + Send + Sync + 'static) -> Self {
        self.settings.consumer.on_skip = Some(OnSkip(Arc::new(call)));
        self
    }

    /// See [`ConsumerBuilder::fetch_bytes`](crate::ConsumerBuilder::fetch_bytes).
    pub fn fetch_bytes(mut self, bytes: u32) -> Self {
        self.settings.consumer.fetch_bytes = bytes;
        self
    }

    /// See [`ConsumerBuilder::prefetch_bytes`](crate::ConsumerBuilder::prefetch_bytes).
    pub fn prefetch_bytes(mut self, bytes: usize) -> Self {
        self.settings.consumer.prefetch_bytes = bytes;
        self
    }

    /// See [`ConsumerBuilder::max_wait`](crate::ConsumerBuilder::max_wait).
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.settings.consumer.max_wait = wait;
        self
    }

    /// See [`ConsumerBuilder::whole_sets`](crate::ConsumerBuilder::whole_sets).
    pub fn whole_sets(mut self) -> Self {
        self.settings.consumer.whole_sets = true;
        self
    }

    /// Makes the member. It joins in the background, and goes on trying when no broker answers; the stream tells.
    ///
    /// # Errors
    /// [`CallError::Invalid`] when a setting makes no sense.
    pub fn build(self) -> Result<GroupConsumer, CallError> {
        self.build_on(&tokio::runtime::Handle::current())
    }

    /// Makes so many members in this process: each has its own share of the partitions and its own stream.
    ///
    /// # Errors
    /// [`CallError::Invalid`] when a setting makes no sense.
    pub fn build_streams(self, streams: usize) -> Result<Vec<GroupConsumer>, CallError> {
        (0..streams).map(|_| self.clone().build()).collect()
    }

    pub(crate) fn build_on(self, runtime: &tokio::runtime::Handle) -> Result<GroupConsumer, CallError> {
        self.check()?;
        let cluster = self.client.cluster.clone();
        let reader = Reader::new(self.client, self.settings.consumer.clone(), runtime.clone());
        let shared = Shared::new(cluster, self.settings, reader.streams());
        runtime.spawn(member::run(shared.clone()));
        Ok(GroupConsumer::new(shared, reader))
    }

    fn check(&self) -> Result<(), CallError> {
        let invalid = |field, reason: &str| Err(CallError::Invalid { field, reason: reason.to_owned() });
        let settings = &self.settings;
        if settings.group.is_empty() {
            return invalid("group", "it has no name");
        }
        if settings.topics.is_empty() == settings.pattern.is_none() {
            return invalid("topic", "name topics or a pattern, one of the two");
        }
        if settings.pattern.as_ref().is_some_and(String::is_empty) {
            return invalid("pattern", "an empty pattern matches no topic");
        }
        if settings.commit_interval.is_some_and(|interval| interval.is_zero()) {
            return invalid("commit_interval", "must be longer than zero");
        }
        if settings.lease < Duration::from_secs(1) || settings.lease > Duration::from_mins(5) {
            return invalid("lease", "must be between 1 s and 5 min");
        }
        if settings.processing_max.is_zero() || settings.release_max.is_some_and(|limit| limit.is_zero()) {
            return invalid("processing_max", "limits must be longer than zero");
        }
        if settings.consumer.fetch_bytes == 0 || settings.consumer.prefetch_bytes == 0 {
            return invalid("fetch_bytes", "must be above 0");
        }
        Ok(())
    }
}
