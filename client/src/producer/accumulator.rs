//! Where messages become sets: a queue per partition, each message encoded straight into the set that will be sent. One
//! lock guards it all; a message holds it for about as long as it takes to copy it. Connections (lanes) take sets from
//! here, and report back how they ended. No I/O, no tasks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use corelane_proto::ids::TopicId;
use corelane_proto::message::MessageParts;
use corelane_proto::set::SetBuilder;

use super::Compression;
use super::builder::ProducerSettings;
use super::delivery::{Completion, DeliveryFuture};
use super::error::{DeliveryError, SendError};
use super::partitioner::{PartitionChoice, Partitioner, partition_for_key};
use super::prepared::PreparedSet;
use super::record::Record;
use crate::cluster::Place;

/// Room that a partition's first set begins with; later ones begin with what the one before them needed.
pub(super) const SET_CAPACITY_FIRST: usize = 512;

/// A caller that sends in a loop lets the lanes run whenever so much became ready: sets then leave while they are still in
/// the processor's cache, and neither latency nor memory grows to the whole buffer.
const PAUSE_AFTER_BYTES: usize = 64 << 10;
/// What a set counts for beside its bytes.
const PAUSE_SET_COST: usize = 1 << 10;

/// A set that is complete.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) set: Bytes,
    pub(super) messages: u32,
    /// What it takes of `buffer_bytes`.
    pub(super) buffered_bytes: usize,
    pub(super) completion: Arc<Completion>,
    /// In the order in which sets were begun, over all partitions.
    pub(super) number: u64,
    pub(super) opened: Instant,
    /// Whether compression was tried, and whether it paid.
    pub(super) packed: bool,
    pub(super) wrapped: bool,
    /// Appended only if this is the end.
    pub(super) expected_id: Option<u64>,
}

pub(super) struct OpenSet {
    builder: SetBuilder,
    completion: Arc<Completion>,
    number: u64,
    opened: Instant,
}

pub(super) struct PartitionQueue {
    pub(super) topic: usize,
    pub(super) partition: u32,
    pub(super) epoch: u32,
    /// The lane that sends it.
    pub(super) lane: usize,
    /// The lane that will, as soon as everything under way on the other has landed.
    pub(super) next_lane: Option<usize>,
    /// No longer there: what still waits fails with this.
    pub(super) gone: Option<DeliveryError>,
    /// The cluster says that it takes nothing at the moment: messages without a key go elsewhere.
    pub(super) is_down: bool,
    /// Until then its lane is not expected to make progress: messages without a key go elsewhere.
    pub(super) troubled_until: Option<Instant>,
    /// It is in its lane's list, or the lane is at work on it.
    pub(super) listed: bool,
    pub(super) open: Option<OpenSet>,
    pub(super) ready: VecDeque<Batch>,
    /// Sets closed so far: when it changes, messages without a key go to the next partition.
    pub(super) closed_sets: u64,
    pub(super) capacity: usize,
}

pub(super) struct TopicQueue {
    pub(super) name: Arc<str>,
    pub(super) topic_id: TopicId,
    pub(super) message_bytes_max: usize,
    pub(super) set_bytes_max: usize,
    pub(super) flush_interval_ms: u64,
    /// Indices into the accumulator's partitions.
    pub(super) partitions: Vec<usize>,
    pub(super) sticky: u32,
    pub(super) sticky_closed_sets: u64,
}

/// What the accumulator keeps for a lane.
#[derive(Default)]
pub(super) struct LaneQueue {
    /// Partitions that have something new to send.
    pub(super) listed: VecDeque<usize>,
    /// Sets that linger: until when, of which partition, which set. In the order of time.
    pub(super) lingering: VecDeque<(Instant, usize, u64)>,
    /// Partitions that move away or are gone.
    pub(super) leaving: Vec<usize>,
    /// The lane's task, while it sleeps.
    pub(super) sleeping: Option<Waker>,
    /// When the sleeping task wakes by itself.
    pub(super) wakes_at: Option<Instant>,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Counters {
    pub(super) published: u64,
    pub(super) acknowledged: u64,
    pub(super) failed: u64,
    /// Those among the failed that were given up at the end.
    pub(super) abandoned: u64,
    pub(super) sets: u64,
    pub(super) set_bytes: u64,
    pub(super) retries: u64,
    pub(super) connections: u64,
    pub(super) last_error: Option<DeliveryError>,
    /// What is in the way at the moment.
    pub(super) obstacle: Option<Arc<str>>,
}

/// How far the producer's life has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    Open,
    /// Takes no more messages.
    Closing,
    /// Gives up what is left.
    Over,
}

pub(super) struct Accumulator {
    settings: Arc<ProducerSettings>,
    pub(super) names: HashMap<Arc<str>, usize>,
    last_topic: usize,
    pub(super) topics: Vec<TopicQueue>,
    pub(super) partitions: Vec<PartitionQueue>,
    pub(super) lanes: Vec<LaneQueue>,
    pub(super) lane_of: HashMap<Place, usize>,
    pub(super) buffered_bytes: usize,
    pub(super) counters: Counters,
    pub(super) life: Life,
    /// Which sets have ended, from set number `ended_from` on; the first one has not.
    ended: VecDeque<bool>,
    ended_from: u64,
    /// What was closed since the caller was last told to pause, see [`PAUSE_AFTER_BYTES`].
    closed_since_pause: usize,
}

/// A record as the format's encoder takes it; `now_ms` is its time if it has none.
pub(super) fn parts<'a>(record: &'a Record<'_>, now_ms: i64) -> MessageParts<'a> {
    MessageParts {
        timestamp_ms: record.timestamp_ms.unwrap_or(now_ms),
        key: record.key,
        headers: &record.headers,
        value: record.value,
        producer: None,
    }
}

/// What a caller gets for a message that was taken.
pub(super) trait Receipt {
    /// The one for the message at this place of its set.
    fn of(completion: &Arc<Completion>, offset: usize, index: u32) -> Self;
}

impl Receipt for DeliveryFuture {
    fn of(completion: &Arc<Completion>, offset: usize, index: u32) -> Self {
        Self::new(Arc::clone(completion), offset as u32, index)
    }
}

/// Whoever does not ask for the message's fate pays nothing for it.
impl Receipt for () {
    fn of(_: &Arc<Completion>, _: usize, _: u32) {}
}

/// What came of a message.
pub(super) enum Pushed<R> {
    /// Taken. `woken`: the task to wake once the lock is released; `pause`: the lanes should get their turn, if they share
    /// the thread with the caller.
    Taken { receipt: R, woken: Option<Waker>, pause: bool },
    /// The buffer is full.
    Full,
    /// The topic must be looked up first.
    UnknownTopic,
}

impl Accumulator {
    pub(super) fn new(settings: Arc<ProducerSettings>) -> Self {
        Self {
            settings,
            names: HashMap::new(),
            last_topic: 0,
            topics: Vec::new(),
            partitions: Vec::new(),
            lanes: Vec::new(),
            lane_of: HashMap::new(),
            buffered_bytes: 0,
            counters: Counters::default(),
            life: Life::Open,
            ended: VecDeque::new(),
            ended_from: 0,
            closed_since_pause: 0,
        }
    }

    // ---- Taking messages ---------------------------------------------------------------------------------------

    /// Takes a message; `now_ms` is its time if it has none.
    pub(super) fn push<R: Receipt>(&mut self, record: &Record<'_>, now_ms: i64) -> Result<Pushed<R>, SendError> {
        if self.life != Life::Open {
            return Err(SendError::Closed);
        }
        let Some(topic) = self.topic_index(record.topic) else { return Ok(Pushed::UnknownTopic) };
        let parts = parts(record, now_ms);
        let bytes = parts.encoded_bytes();
        let limit = self.topics[topic].message_bytes_max.min(self.topics[topic].set_bytes_max);
        if bytes > limit {
            return Err(SendError::TooLarge { topic: record.topic.to_owned(), bytes, limit });
        }
        // A message that is larger than the whole buffer goes alone.
        if self.buffered_bytes > 0 && self.buffered_bytes + bytes > self.settings.buffer_bytes {
            return Ok(Pushed::Full);
        }
        let partition = self.choose(topic, record)?;
        let set_bytes_max = self.set_bytes_max(topic);
        let mut woken = None;
        let open_bytes = self.partitions[partition].open.as_ref().map_or(0, |open| open.builder.bytes());
        if open_bytes > 0 && open_bytes + bytes > set_bytes_max {
            woken = self.close_set(partition);
        }
        let queue = &mut self.partitions[partition];
        let is_new = queue.open.is_none();
        let open = match &mut queue.open {
            Some(open) => open,
            None => queue.open.insert(OpenSet {
                builder: SetBuilder::with_capacity(queue.capacity.max(bytes)),
                completion: Completion::new(queue.partition),
                number: self.ended_from + self.ended.len() as u64,
                opened: Instant::now(),
            }),
        };
        let index = open.builder.messages();
        let offset = match open.builder.push(&parts) {
            Ok(offset) => offset,
            Err(error) => {
                if is_new {
                    queue.open = None;
                }
                return Err(SendError::Invalid { reason: error.to_string() });
            }
        };
        let receipt = R::of(&open.completion, offset, index);
        let is_full = index + 1 >= self.settings.batch_messages_max || open.builder.bytes() >= set_bytes_max;
        self.buffered_bytes += bytes;
        self.counters.published += 1;
        if is_new {
            self.ended.push_back(false);
        }
        let also_woken = if is_full {
            self.close_set(partition)
        } else if is_new {
            self.set_opened(partition)
        } else {
            None
        };
        let pause = self.is_time_to_pause();
        Ok(Pushed::Taken { receipt, woken: woken.or(also_woken), pause })
    }

    fn is_time_to_pause(&mut self) -> bool {
        let pause = self.closed_since_pause >= PAUSE_AFTER_BYTES;
        if pause {
            self.closed_since_pause = 0;
        }
        pause
    }

    /// Takes a whole set: it follows what was taken for its partition before.
    pub(super) fn push_set(&mut self, set: &PreparedSet) -> Result<Pushed<DeliveryFuture>, SendError> {
        if self.life != Life::Open {
            return Err(SendError::Closed);
        }
        let Some(topic) = self.topic_index(&set.topic) else { return Ok(Pushed::UnknownTopic) };
        let (bytes, limit) = (set.bytes.len(), self.topics[topic].set_bytes_max);
        if bytes > limit {
            return Err(SendError::TooLarge { topic: set.topic.clone(), bytes, limit });
        }
        if self.buffered_bytes > 0 && self.buffered_bytes + bytes > self.settings.buffer_bytes {
            return Ok(Pushed::Full);
        }
        let partition = self.partition_index(topic, set.partition)?;
        let before = self.close_set(partition);
        let completion = Completion::new(set.partition);
        let number = self.next_number();
        self.ended.push_back(false);
        self.buffered_bytes += bytes;
        self.counters.published += u64::from(set.info.messages);
        self.partitions[partition].ready.push_back(Batch {
            set: set.bytes.clone(),
            messages: set.info.messages,
            buffered_bytes: bytes,
            completion: completion.clone(),
            number,
            opened: Instant::now(),
            // It goes as it is.
            packed: true,
            wrapped: false,
            expected_id: set.expected_id,
        });
        let woken = before.or_else(|| self.list(partition));
        self.closed_since_pause += bytes + PAUSE_SET_COST;
        let pause = self.is_time_to_pause();
        Ok(Pushed::Taken { receipt: DeliveryFuture::new(completion, 0, 0), woken, pause })
    }

    /// A compressed set is one message, so that limit holds too.
    fn set_bytes_max(&self, topic: usize) -> usize {
        let topic = &self.topics[topic];
        let set_bytes_max = self.settings.batch_bytes.min(topic.set_bytes_max);
        match self.settings.compression {
            Compression::None => set_bytes_max,
            _ => set_bytes_max.min(topic.message_bytes_max),
        }
    }

    fn topic_index(&mut self, name: &str) -> Option<usize> {
        if self.topics.get(self.last_topic).is_some_and(|topic| &*topic.name == name) {
            // Gone topics lose their name, so that they are looked up again.
            return Some(self.last_topic);
        }
        let index = *self.names.get(name)?;
        self.last_topic = index;
        Some(index)
    }

    fn choose(&mut self, topic: usize, record: &Record<'_>) -> Result<usize, SendError> {
        let partitions = self.topics[topic].partitions.len() as u32;
        let partition = match (record.partition, &self.settings.partitioner, record.key) {
            (Some(partition), _, _) => partition,
            (None, Partitioner::ByKey, Some(key)) => partition_for_key(key, partitions.max(1)),
            (None, Partitioner::ByKey | Partitioner::RoundRobin, _) => self.sticky(topic),
            (None, Partitioner::Random, _) => self.next_healthy(topic, fastrand::u32(..partitions.max(1))),
            (None, Partitioner::Custom(choose), key) => {
                choose(&PartitionChoice { topic: record.topic, key, value: record.value, partitions })
            }
        };
        self.partition_index(topic, partition)
    }

    fn partition_index(&self, topic: usize, partition: u32) -> Result<usize, SendError> {
        let topic = &self.topics[topic];
        let partitions = topic.partitions.len() as u32;
        topic.partitions.get(partition as usize).copied().ok_or_else(|| SendError::NoSuchPartition {
            topic: topic.name.to_string(),
            partition,
            partitions,
        })
    }

    /// The same partition until its set is complete, then the next.
    fn sticky(&mut self, topic: usize) -> u32 {
        let at = &self.topics[topic];
        let Some(&current) = at.partitions.get(at.sticky as usize) else { return 0 };
        let is_same_set = self.partitions[current].closed_sets == at.sticky_closed_sets;
        if is_same_set && self.is_healthy(current) {
            return at.sticky;
        }
        let next = self.next_healthy(topic, (at.sticky + 1) % at.partitions.len() as u32);
        if is_same_set && !self.is_healthy(at.partitions[next as usize]) {
            // None is: sets become whole all the same.
            return at.sticky;
        }
        let closed_sets = self.partitions[self.topics[topic].partitions[next as usize]].closed_sets;
        let at = &mut self.topics[topic];
        at.sticky = next;
        at.sticky_closed_sets = closed_sets;
        next
    }

    /// The first partition from `from` on that makes progress; `from` if none does.
    fn next_healthy(&self, topic: usize, from: u32) -> u32 {
        let partitions = &self.topics[topic].partitions;
        let count = partitions.len() as u32;
        let is_healthy = |partition: &u32| self.is_healthy(partitions[*partition as usize]);
        (0..count).map(|step| (from + step) % count).find(is_healthy).unwrap_or(from)
    }

    fn is_healthy(&self, partition: usize) -> bool {
        let queue = &self.partitions[partition];
        !queue.is_down && queue.troubled_until.is_none_or(|until| until <= Instant::now())
    }

    // ---- Sets --------------------------------------------------------------------------------------------------

    /// A set was begun: its lane must know when to send it.
    fn set_opened(&mut self, partition: usize) -> Option<Waker> {
        let queue = &self.partitions[partition];
        let open = queue.open.as_ref()?;
        if self.settings.linger.is_zero() {
            return self.list(partition);
        }
        let due = open.opened + self.settings.linger;
        let lane = &mut self.lanes[queue.lane];
        lane.lingering.push_back((due, partition, open.number));
        if lane.wakes_at.is_some_and(|at| at <= due) { None } else { lane.sleeping.take() }
    }

    /// Ends the open set of a partition.
    pub(super) fn close_set(&mut self, partition: usize) -> Option<Waker> {
        let queue = &mut self.partitions[partition];
        let mut open = queue.open.take()?;
        let buffered_bytes = open.builder.bytes();
        queue.capacity = buffered_bytes + buffered_bytes / 16 + 64;
        queue.closed_sets += 1;
        self.closed_since_pause += buffered_bytes + PAUSE_SET_COST;
        queue.ready.push_back(Batch {
            messages: open.builder.messages(),
            set: open.builder.finish(),
            buffered_bytes,
            completion: open.completion,
            number: open.number,
            opened: open.opened,
            packed: self.settings.compression == Compression::None,
            wrapped: false,
            expected_id: None,
        });
        self.list(partition)
    }

    /// Ends the open set if it is still the one that lingered.
    pub(super) fn close_lingering(&mut self, partition: usize, number: u64) {
        let is_it = self.partitions[partition].open.as_ref().is_some_and(|open| open.number == number);
        if is_it {
            // The lane itself asks, so nobody needs to be woken.
            let _ = self.close_set(partition);
        }
    }

    /// Whether anything of a partition waits here.
    pub(super) fn has_sets(&self, partition: usize) -> bool {
        let queue = &self.partitions[partition];
        !queue.ready.is_empty() || queue.open.is_some()
    }

    /// The next complete set of a partition; without a linger time also the open one.
    pub(super) fn take_ready(&mut self, partition: usize) -> Option<Batch> {
        if self.partitions[partition].ready.is_empty() && self.settings.linger.is_zero() {
            let _ = self.close_set(partition);
        }
        self.partitions[partition].ready.pop_front()
    }

    /// Ends every open set, so that nothing lingers.
    pub(super) fn close_all(&mut self) -> Vec<Waker> {
        (0..self.partitions.len()).filter_map(|partition| self.close_set(partition)).collect()
    }

    /// Tells the lane of a partition that there is something to do.
    pub(super) fn list(&mut self, partition: usize) -> Option<Waker> {
        let queue = &mut self.partitions[partition];
        if queue.listed {
            return None;
        }
        queue.listed = true;
        let lane = &mut self.lanes[queue.lane];
        lane.listed.push_back(partition);
        lane.sleeping.take()
    }

    /// A set ended: its memory is free again.
    pub(super) fn ended(&mut self, batch: &Batch) {
        self.buffered_bytes -= batch.buffered_bytes;
        if let Some(ended) = self.ended.get_mut((batch.number - self.ended_from) as usize) {
            *ended = true;
        }
        while self.ended.front() == Some(&true) {
            self.ended.pop_front();
            self.ended_from += 1;
        }
    }

    /// Every set begun so far has a lower number.
    pub(super) fn next_number(&self) -> u64 {
        self.ended_from + self.ended.len() as u64
    }

    /// Every set below this number has ended.
    pub(super) fn ended_from(&self) -> u64 {
        self.ended_from
    }
}
