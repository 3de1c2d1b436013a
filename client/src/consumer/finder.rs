//! Where a stream begins, and where it goes on when it cannot go on as it was: out of range, a bad message, a partition
//! that moved, a new epoch, a deleted topic. Everything here asks a broker; lanes do not wait for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use corelane_proto::frame::Method;
use corelane_proto::pb;

use super::error::ConsumeError;
use super::last::position_of_last;
use super::message::Source;
use super::piece::From;
use super::shared::{Item, Order, Shared};
use super::{OnSkip, OutOfRange, Skip, SkipCause, Start};
use crate::client::Client;
use crate::cluster::{Cluster, Place};
use crate::error::{CallError, Refusal};
use crate::topic::{Find, Found};

/// How often a message that comes damaged, and of which the broker's copy is good, is fetched anew before it is skipped.
const AGAIN_MAX: u32 = 3;

/// Why a stream cannot go on as it was.
#[derive(Debug, Clone)]
pub(super) enum Why {
    /// The message at this position is bad.
    BadMessage,
    /// The message at this position is good, and of a format's version that is not known here.
    NewerVersion(u8),
    /// The position is not retained, or lies beyond the end.
    OutOfRange,
    /// It may be served elsewhere, or under another epoch, or not any more.
    Stale(Box<Refusal>),
    /// Its lane cannot connect.
    Unreachable,
    /// Nobody has told yet where it begins.
    NotBegun(Start),
}

impl Start {
    pub(super) fn find(self) -> Find {
        match self {
            Self::Earliest => Find::Earliest,
            Self::Latest => Find::Latest,
            Self::Position(position) => Find::Containing(position),
            Self::TimeMs(time) => Find::TimeMs(time),
            Self::LastMessages(messages) => Find::LastMessages(messages),
        }
    }
}

/// Asks for a place in a partition, for as long as the request time-out.
async fn find(cluster: &Cluster, topic: &str, partition: u32, find: Find) -> Result<Found, CallError> {
    find_for(cluster.settings.request_timeout, cluster, topic, partition, find).await
}

/// Asks for a place in a partition; what may pass is tried again for as long as `patience`.
async fn find_for(
    patience: Duration,
    cluster: &Cluster,
    topic: &str,
    partition: u32,
    find: Find,
) -> Result<Found, CallError> {
    let found = cluster.call_partition_for(patience, topic, partition, Method::FindMessage, |places, at| {
        let (topic_id, target) = (places.topic_id.to_vec(), Some(find.to_pb()));
        pb::FindMessageRequest { topic_id, partition, epoch: at.epoch, target }
    });
    found.await.map(Found::from_pb)
}

/// Resolves a start: where the stream begins, and the bounds at that moment.
pub(super) async fn begin(
    cluster: &Cluster,
    topic: &str,
    partition: u32,
    start: Start,
    policy: OutOfRange,
) -> Result<(From, Found), BeginError> {
    begin_for(cluster.settings.request_timeout, cluster, topic, partition, start, policy).await
}

/// As [`begin`]; what may pass is tried again for as long as `patience`.
pub(super) async fn begin_for(
    patience: Duration,
    cluster: &Cluster,
    topic: &str,
    partition: u32,
    start: Start,
    policy: OutOfRange,
) -> Result<(From, Found), BeginError> {
    let find = async |target| find_for(patience, cluster, topic, partition, target).await.map_err(BeginError::Call);
    if let Start::Position(position) = start {
        // A position is taken as it is if it is retained: the first fetch finds its message.
        let bounds = find(Find::Earliest).await?;
        if position >= bounds.start && position <= bounds.end {
            return Ok((From { position, time_ms: None }, bounds));
        }
        let target = match policy {
            OutOfRange::Earliest => bounds.start,
            OutOfRange::Latest => bounds.visible_end,
            OutOfRange::Fail => return Err(BeginError::OutOfRange { position, bounds }),
        };
        return Ok((From { position: target, time_ms: None }, bounds));
    }
    let found = find(start.find()).await?;
    let time_ms = if let Start::TimeMs(time) = start { Some(time) } else { None };
    Ok((From { position: found.position, time_ms }, found))
}

/// Why a stream could not begin.
#[derive(Debug)]
pub(super) enum BeginError {
    Call(CallError),
    OutOfRange { position: u64, bounds: Found },
}

impl BeginError {
    /// As an error of a call, for those who asked for a place of which the broker decides.
    pub(super) fn into_call(self, topic: &str, partition: u32) -> CallError {
        match self {
            Self::Call(error) => error,
            Self::OutOfRange { position, bounds } => CallError::Invalid {
                field: "position",
                reason: format!(
                    "{position} is outside of what {topic}/{partition} retains, {} to {}",
                    bounds.start, bounds.end
                ),
            },
        }
    }
}

/// A position that is not retained, or lies beyond the end, as an error of the stream.
pub(super) fn out_of_range(topic: &str, partition: u32, position: u64, bounds: &Found) -> ConsumeError {
    let (start, visible_end) = (bounds.start, bounds.visible_end);
    ConsumeError::OutOfRange { topic: topic.to_owned(), partition, position, start, visible_end }
}

impl Shared {
    /// Gives a partition's stream to the lane where it is served.
    pub(super) fn start_stream(
        self: &Arc<Self>,
        partition: usize,
        generation: u64,
        from: From,
        failures: u32,
    ) -> Result<(), CallError> {
        let source = self.state().partitions[partition].source.clone();
        let places = self.cluster.known(&source.topic)?;
        let at = places.partition(source.partition)?;
        let order = Order { partition, generation, topic_id: places.topic_id, epoch: at.epoch, from, failures };
        self.order(at.place, order);
        Ok(())
    }

    /// Goes on with a stream that stopped before the message at `from`, as a task of its own.
    pub(super) fn go_on(self: &Arc<Self>, order: Order, from: From, why: Why) {
        let shared = self.clone();
        self.runtime().spawn(async move { shared.find_way(order, from, why).await });
    }

    async fn find_way(self: Arc<Self>, order: Order, from: From, why: Why) {
        let (partition, generation) = (order.partition, order.generation);
        let source = self.state().partitions[partition].source.clone();
        let mut backoff = self.cluster.backoff();
        // A stream that is refused again and again is not asked for in a loop.
        for failure in 0..order.failures {
            let pause = backoff.pause();
            if failure + 1 == order.failures {
                tokio::time::sleep(pause).await;
            }
        }
        self.take_hint(&source, &why);
        let began = Instant::now();
        while self.is_wanted(partition, generation) {
            let error = match self.try_way(&order, from, &why).await {
                Ok(Way::From(from)) => match self.start_stream(partition, generation, from, order.failures + 1) {
                    Ok(()) => return,
                    Err(error) => error,
                },
                Ok(Way::End(error)) => {
                    self.push_if_wanted(partition, generation, error, true);
                    return;
                }
                Err(error) => error,
            };
            // What keeps the stream from going on is told once a time-out, while the attempts go on.
            let is_gone = matches!(error, CallError::UnknownTopic { .. } | CallError::NoSuchPartition { .. });
            tracing::debug!(topic = %source.topic, partition = source.partition, %error, "a stream waits");
            if is_gone && began.elapsed() > super::DOUBT {
                let (topic, partition_number) = (source.topic.to_string(), source.partition);
                let error = ConsumeError::TopicDeleted { topic, partition: partition_number };
                self.push_if_wanted(partition, generation, error, true);
                return;
            }
            if !is_gone {
                self.push_if_wanted(partition, generation, ConsumeError::unavailable(&source, error), false);
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    /// A refusal may say where the partition is served.
    fn take_hint(&self, source: &Source, why: &Why) {
        if let Why::Stale(refusal) = why
            && let (Some(broker_id), Some(shard)) = (refusal.broker_id, refusal.shard)
            && let Ok(places) = self.cluster.known(&source.topic)
        {
            self.cluster.correct(&places, source.partition, Place { broker_id, shard });
        }
    }

    fn push_if_wanted(&self, partition: usize, generation: u64, error: ConsumeError, is_last: bool) {
        let mut state = self.state();
        if state.partitions[partition].generation == generation {
            state.push(partition, Item::Error { error, is_last });
        }
    }

    async fn try_way(&self, order: &Order, from: From, why: &Why) -> Result<Way, CallError> {
        let source = self.state().partitions[order.partition].source.clone();
        let (topic, partition) = (&*source.topic, source.partition);
        match why {
            Why::BadMessage => {
                let mut found = find(&self.cluster, topic, partition, Find::GoodAfter(from.position)).await?;
                if found.position <= from.position {
                    if order.failures < AGAIN_MAX {
                        tracing::warn!(topic, partition, position = from.position, "a message came damaged; again");
                        return Ok(Way::From(from));
                    }
                    // Whatever it is that damages it, what follows shall not wait for it for ever.
                    found = find(&self.cluster, topic, partition, Find::GoodAfter(from.position + 1)).await?;
                }
                let position = found.position.max(from.position + 1);
                let mut state = self.state();
                state.counters.bad_messages += 1;
                state.counters.skipped_bytes += position - from.position;
                drop(state);
                tracing::warn!(topic, partition, from = from.position, to = position, "a bad message was skipped");
                self.tell_skip(order, (from.position, position), SkipCause::Damage);
                Ok(Way::From(From { position, time_ms: None }))
            }
            Why::NewerVersion(version) => {
                // The broker is asked, so that it counts and says what it stores, and whoever wants to can go on.
                let found = find(&self.cluster, topic, partition, Find::GoodAfter(from.position)).await?;
                let (topic, position, version) = (topic.to_owned(), from.position, *version);
                let next_position = found.position.max(position + 1);
                Ok(Way::End(ConsumeError::NewerVersion { topic, partition, position, next_position, version }))
            }
            Why::OutOfRange => {
                let bounds = find(&self.cluster, topic, partition, Find::Earliest).await?;
                // The end may have reached the position meanwhile.
                if from.position >= bounds.start && from.position <= bounds.end {
                    return Ok(Way::From(from));
                }
                let error = out_of_range(topic, partition, from.position, &bounds);
                if from.position > bounds.end && self.settings.fails_above_end {
                    return Ok(Way::End(error));
                }
                Ok(self.by_policy(order, from.position, error, &bounds))
            }
            Why::NotBegun(start) => self.try_begin(order, &source, *start).await,
            Why::Stale(_) | Why::Unreachable => {
                self.cluster.refresh(&[topic.to_owned()], Instant::now()).await?;
                let places = self.cluster.known(topic)?;
                let at = places.partition(partition)?;
                if places.topic_id == order.topic_id && at.epoch == order.epoch {
                    return Ok(Way::From(from));
                }
                if places.topic_id != order.topic_id {
                    return Ok(Way::End(ConsumeError::TopicDeleted { topic: topic.to_owned(), partition }));
                }
                let bounds = find(&self.cluster, topic, partition, Find::Earliest).await?;
                if let Some(until) = &mut self.state().partitions[order.partition].until {
                    // The end that was seen belongs to the old log.
                    *until = bounds.visible_end;
                }
                let (topic, expected, epoch) = (topic.to_owned(), order.epoch, at.epoch);
                let error = ConsumeError::NewEpoch { topic, partition, expected, epoch };
                Ok(self.by_policy(order, from.position, error, &bounds))
            }
        }
    }

    async fn try_begin(&self, order: &Order, source: &Source, start: Start) -> Result<Way, CallError> {
        let policy = self.settings.out_of_range;
        let (mut from, bounds) = match begin(&self.cluster, &source.topic, source.partition, start, policy).await {
            Ok(begun) => begun,
            Err(BeginError::Call(error)) => return Err(error),
            Err(BeginError::OutOfRange { position, bounds }) => {
                return Ok(Way::End(out_of_range(&source.topic, source.partition, position, &bounds)));
            }
        };
        if let Start::LastMessages(wanted) = start {
            let client = Client { cluster: self.cluster.clone() };
            from.position = position_of_last(&client, source, bounds, wanted).await?;
        }
        let mut state = self.state();
        let at = &mut state.partitions[order.partition];
        if at.generation == order.generation {
            at.begin = Some(from.position);
            at.visible_end = bounds.visible_end;
            at.until = self.settings.until_end.then_some(bounds.visible_end);
        }
        Ok(Way::From(from))
    }

    fn by_policy(&self, order: &Order, from: u64, error: ConsumeError, bounds: &Found) -> Way {
        let position = match self.settings.out_of_range {
            OutOfRange::Earliest => bounds.start,
            OutOfRange::Latest => bounds.visible_end,
            OutOfRange::Fail => return Way::End(error),
        };
        tracing::warn!(%error, position, "the stream goes on elsewhere");
        self.state().counters.resets += 1;
        match error {
            ConsumeError::NewEpoch { epoch, .. } => {
                self.tell_skip(&Order { epoch, ..order.clone() }, (from, position), SkipCause::NewLog);
            }
            // One that is beyond the end left nothing out.
            _ if position > from => self.tell_skip(order, (from, position), SkipCause::Retention),
            _ => {}
        }
        Way::From(From { position, time_ms: None })
    }

    fn tell_skip(&self, order: &Order, (from, to): (u64, u64), cause: SkipCause) {
        let source = self.state().partitions[order.partition].source.clone();
        let (topic, partition, (topic_id, epoch)) =
            (source.topic.clone(), source.partition, (order.topic_id, order.epoch));
        OnSkip::tell(self.settings.on_skip.as_ref(), &Skip { topic, topic_id, partition, epoch, from, to, cause });
    }
}

/// How a stream goes on.
enum Way {
    From(From),
    End(ConsumeError),
}
