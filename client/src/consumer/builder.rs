//! The settings of a consumer, and its beginning.

use std::sync::Arc;
use std::time::Duration;

use super::finder::{self, Why};
use super::last::position_of_last;
use super::piece::From;
use super::resolve::{Begun, Resolved};
use super::shared::{Added, Item, Order, Shared};
use super::{Consumer, OnSkip, OutOfRange, Skip, Start, watcher};
use crate::client::Client;
use crate::error::CallError;

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
    pub(crate) refresh: Duration,
    pub(crate) begin_patience: Option<Duration>,
    /// Whether a position beyond the end is an error whatever `out_of_range` says.
    pub(crate) fails_above_end: bool,
    /// Whether compressed sets are handed out as they lie.
    pub(crate) whole_sets: bool,
    pub(crate) on_skip: Option<OnSkip>,
}

/// A topic asked for; `partition` and `start` if they were named.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) topic: String,
    pub(crate) partition: Option<u32>,
    pub(crate) start: Option<Start>,
}

impl Default for ConsumerSettings {
    fn default() -> Self {
        Self {
            wanted: Vec::new(),
            start: Start::default(),
            out_of_range: OutOfRange::default(),
            fetch_bytes: 1 << 20,
            prefetch_bytes: 16 << 20,
            max_wait: Duration::from_secs(5),
            until_end: false,
            refresh: Duration::from_secs(30),
            begin_patience: None,
            fails_above_end: false,
            whole_sets: false,
            on_skip: None,
        }
    }
}

impl ConsumerBuilder {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, settings: ConsumerSettings::default() }
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

    /// How long a broker holds a fetch for which there is nothing (default 5 s). New messages are delivered at once
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

    /// Hands compressed sets out as they lie, each as one message whose value is the set: for programs that copy logs as
    /// they are.
    pub fn whole_sets(mut self) -> Self {
        self.settings.whole_sets = true;
        self
    }

    /// Calls a function for each stretch of a log that the stream leaves out and goes on behind: what retention had taken
    /// before it was read (unless [`OutOfRange::Fail`] makes it an error), damaged messages, a log that began again. It is
    /// told when that is noticed, which may be ahead of the messages before it, on a task of the consumer: it must be quick.
    pub fn on_skip(mut self, call: impl Fn(&Skip) + Send + Sync + 'static) -> Self {
        self.settings.on_skip = Some(OnSkip(Arc::new(call)));
        self
    }

    /// How often a consumer of whole topics looks for partitions that were added to them (default 30 s). They are read
    /// from their start on. With [`ConsumerBuilder::until_end`] it does not look.
    pub fn refresh(mut self, interval: Duration) -> Self {
        self.settings.refresh = interval;
        self
    }

    /// How long partitions whose brokers cannot be asked where to begin hold up [`ConsumerBuilder::build`] (default one
    /// second where others can begin, else the client's request time-out).
    pub fn begin_patience(mut self, patience: Duration) -> Self {
        self.settings.begin_patience = Some(patience);
        self
    }

    /// Looks the topics up, finds the starts, and begins to fetch. Partitions whose brokers cannot be asked begin when they
    /// can; until then they are no part of [`Consumer::positions`], and end where they end when they begin.
    ///
    /// # Errors
    /// [`CallError::UnknownTopic`], [`CallError::NoSuchPartition`], or what kept the client from asking for any of them.
    pub async fn build(self) -> Result<Consumer, CallError> {
        self.check()?;
        let runtime = tokio::runtime::Handle::current();
        let shared = Shared::new(self.client.cluster.clone(), self.settings, runtime);
        for Resolved { source, topic_id, epoch, start, begun } in shared.resolve().await? {
            let mut added = Added { source, topic_id, epoch, begin: None, visible_end: 0, until: None };
            if let Begun::At(From { position, .. }, bounds) | Begun::Nowhere { position, bounds } = &begun {
                (added.begin, added.visible_end) = (Some(*position), bounds.visible_end);
                added.until = shared.settings.until_end.then_some(bounds.visible_end);
            }
            let source = added.source.clone();
            match begun {
                Begun::At(mut from, bounds) => {
                    if let Start::LastMessages(wanted) = start {
                        from.position = position_of_last(&self.client, &source, bounds, wanted).await?;
                        added.begin = Some(from.position);
                    }
                    let index = shared.state().add(added);
                    shared.start_stream(index, 0, from, 0)?;
                }
                Begun::Nowhere { position, bounds } => {
                    let error = finder::out_of_range(&source.topic, source.partition, position, &bounds);
                    let mut state = shared.state();
                    let index = state.add(added);
                    state.push(index, Item::Error { error, is_last: true });
                }
                Begun::Later => {
                    let partition = shared.state().add(added);
                    let from = From { position: 0, time_ms: None };
                    let order = Order { partition, generation: 0, topic_id, epoch, from, failures: 0 };
                    shared.go_on(order, from, Why::NotBegun(start));
                }
            }
        }
        let is_whole = shared.settings.wanted.iter().any(|wanted| wanted.partition.is_none());
        if is_whole && !shared.settings.until_end {
            shared.runtime().spawn(watcher::run(Arc::downgrade(&shared), shared.settings.refresh));
        }
        Ok(Consumer::of(self.client, shared))
    }

    fn check(&self) -> Result<(), CallError> {
        let invalid = |field, reason: &str| Err(CallError::Invalid { field, reason: reason.to_owned() });
        if self.settings.wanted.is_empty() {
            return invalid("topic", "no topic was named");
        }
        if self.settings.fetch_bytes == 0 {
            return invalid("fetch_bytes", "must be above 0");
        }
        if self.settings.refresh.is_zero() {
            return invalid("refresh", "must be longer than zero");
        }
        if self.settings.prefetch_bytes == 0 {
            return invalid("prefetch_bytes", "must be above 0");
        }
        Ok(())
    }
}
