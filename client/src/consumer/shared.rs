//! What a consumer, its lanes and its finders share: a bounded queue of pieces per partition, and who is to be woken. One
//! lock, held for moments; messages are not touched under it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use corelane_proto::ids::TopicId;

use super::builder::ConsumerSettings;
use super::error::ConsumeError;
use super::lane::Lane;
use super::message::Source;
use super::piece::{From, Piece};
use super::pool::Pool;
use crate::cluster::{Cluster, Place};
use crate::net::connect;

/// Fewer bytes than this are not asked for at once, however many partitions share the prefetch.
const FETCH_BYTES_MIN: usize = 4 << 10;

pub(super) struct Shared {
    pub(super) cluster: Arc<Cluster>,
    pub(super) settings: ConsumerSettings,
    pub(super) session: [u8; 16],
    pub(super) pool: Arc<Pool>,
    runtime: tokio::runtime::Handle,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) partitions: Vec<Partition>,
    /// Partitions with something in their queue, in turn.
    ready: VecDeque<usize>,
    pub(super) lanes: Vec<LaneState>,
    lane_of: HashMap<Place, usize>,
    /// Partitions that were given up.
    given_up: usize,
    /// The consumer's task, while it waits.
    consumer: Option<Waker>,
    pub(super) over: bool,
    pub(super) counters: Counters,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counters {
    pub(super) bytes: u64,
    pub(super) bad_messages: u64,
    pub(super) skipped_bytes: u64,
    pub(super) resets: u64,
    pub(super) connections: u64,
}

pub(super) struct Partition {
    pub(super) source: Arc<Source>,
    pub(super) topic_id: TopicId,
    pub(super) epoch: u32,
    /// Grows with each new stream; what comes for an older one is dropped.
    pub(super) generation: u64,
    queue: VecDeque<Item>,
    /// Memory that the queue holds.
    queued: usize,
    /// Its lane waits for the queue to shrink.
    pub(super) hungry: Option<usize>,
    pub(super) visible_end: u64,
    pub(super) until: Option<u64>,
    /// Where its stream begins; none: that is not known yet.
    pub(super) begin: Option<u64>,
    /// Nothing more will come of it unless it is sought.
    pub(super) rests: bool,
    /// It is not read any more; its place is kept for when it is taken up again.
    is_given_up: bool,
}

/// A partition to read.
pub(super) struct Added {
    pub(super) source: Arc<Source>,
    pub(super) topic_id: TopicId,
    pub(super) epoch: u32,
    pub(super) begin: Option<u64>,
    pub(super) visible_end: u64,
    pub(super) until: Option<u64>,
}

/// What waits for the program.
pub(super) enum Item {
    Piece { piece: Piece, charge: usize, epoch: u32, generation: u64 },
    Error { error: ConsumeError, is_last: bool },
}

/// A stream for a lane to fetch.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) partition: usize,
    pub(super) generation: u64,
    pub(super) topic_id: TopicId,
    pub(super) epoch: u32,
    pub(super) from: From,
    /// Refusals in a row, without a message between them.
    pub(super) failures: u32,
}

#[derive(Default)]
pub(super) struct LaneState {
    pub(super) orders: Vec<Order>,
    /// Partitions whose queue has room again.
    pub(super) fed: Vec<usize>,
    pub(super) sleeping: Option<Waker>,
}

impl LaneState {
    fn wake(&mut self) {
        if let Some(waker) = self.sleeping.take() {
            waker.wake();
        }
    }
}

impl Shared {
    pub(super) fn new(cluster: Arc<Cluster>, settings: ConsumerSettings, runtime: tokio::runtime::Handle) -> Arc<Self> {
        let pool = Pool::new(settings.prefetch_bytes);
        let session = connect::new_session();
        Arc::new(Self { cluster, settings, session, pool, runtime, state: Mutex::default() })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// What a partition may hold ready for the program.
    pub(super) fn share(&self, partitions: usize) -> usize {
        (self.settings.prefetch_bytes / partitions.max(1)).max(2 * FETCH_BYTES_MIN)
    }

    /// How much is asked for at once.
    pub(super) fn fetch_bytes(&self, partitions: usize) -> usize {
        (self.share(partitions) / 2).min(self.settings.fetch_bytes as usize).max(1)
    }

    /// Gives a stream to the lane of a place, which is started if there is none.
    pub(super) fn order(self: &Arc<Self>, place: Place, order: Order) {
        let mut state = self.state();
        let partition = &mut state.partitions[order.partition];
        if partition.generation != order.generation {
            return;
        }
        partition.epoch = order.epoch;
        if partition.until.is_some_and(|until| order.from.position >= until) {
            partition.rests = true;
            state.wake_consumer();
            return;
        }
        let next = state.lanes.len();
        let lane = *state.lane_of.entry(place).or_insert(next);
        if lane == next {
            state.lanes.push(LaneState::default());
            self.runtime.spawn(Lane::new(self.clone(), lane, place).run());
        }
        state.lanes[lane].orders.push(order);
        state.lanes[lane].wake();
    }

    /// Whether a stream is still wanted.
    pub(super) fn is_wanted(&self, partition: usize, generation: u64) -> bool {
        let state = self.state();
        !state.over && state.partitions[partition].generation == generation
    }

    pub(super) fn close(&self) {
        let mut state = self.state();
        state.over = true;
        state.lanes.iter_mut().for_each(LaneState::wake);
    }
}

impl State {
    /// Adds a partition; its number.
    pub(super) fn add(&mut self, added: Added) -> usize {
        let Added { source, topic_id, epoch, begin, visible_end, until } = added;
        self.partitions.push(Partition {
            source,
            topic_id,
            epoch,
            generation: 0,
            queue: VecDeque::new(),
            queued: 0,
            hungry: None,
            visible_end,
            until,
            begin,
            rests: false,
            is_given_up: false,
        });
        self.partitions.len() - 1
    }

    /// The number of a partition that is read, or was.
    pub(super) fn index_of(&self, topic: &str, partition: u32) -> Option<usize> {
        self.partitions.iter().position(|at| &*at.source.topic == topic && at.source.partition == partition)
    }

    /// Adds a partition, or takes one up that was given up. Its number and the generation of its stream.
    pub(super) fn take_up(&mut self, added: Added) -> (usize, u64) {
        let Some(index) = self.index_of(&added.source.topic, added.source.partition) else {
            return (self.add(added), 0);
        };
        let generation = self.begin_anew(index);
        let at = &mut self.partitions[index];
        (at.topic_id, at.epoch) = (added.topic_id, added.epoch);
        (at.begin, at.visible_end) = (added.begin, added.visible_end);
        self.given_up -= usize::from(std::mem::take(&mut at.is_given_up));
        (index, generation)
    }

    /// Reads a partition no more; what was fetched of it is dropped.
    pub(super) fn give_up(&mut self, partition: usize) {
        self.begin_anew(partition);
        let at = &mut self.partitions[partition];
        at.rests = true;
        self.given_up += usize::from(!std::mem::replace(&mut at.is_given_up, true));
    }

    /// Among how many partitions the prefetch is shared out.
    pub(super) fn active(&self) -> usize {
        self.partitions.len() - self.given_up
    }

    /// Begins another stream of a partition; what was fetched before is dropped. Returns its generation.
    pub(super) fn begin_anew(&mut self, partition: usize) -> u64 {
        let at = &mut self.partitions[partition];
        at.generation += 1;
        at.queue.clear();
        at.queued = 0;
        at.rests = false;
        at.hungry = None;
        at.generation
    }

    /// Queues something for the program and wakes it.
    pub(super) fn push(&mut self, partition: usize, item: Item) {
        let at = &mut self.partitions[partition];
        if let Item::Piece { charge, .. } = &item {
            at.queued += charge;
        }
        at.queue.push_back(item);
        if at.queue.len() == 1 {
            self.ready.push_back(partition);
        }
        self.wake_consumer();
    }

    pub(super) fn wake_consumer(&mut self) {
        if let Some(waker) = self.consumer.take() {
            waker.wake();
        }
    }

    /// The next thing for the program: partitions take turns. A lane that waited for room is told when half of the
    /// `share` is free.
    pub(super) fn pop(&mut self, share: usize) -> Option<(usize, Item)> {
        loop {
            let partition = self.ready.pop_front()?;
            let at = &mut self.partitions[partition];
            // A queue that was dropped by a seek may still be listed.
            let Some(item) = at.queue.pop_front() else { continue };
            if let Item::Piece { charge, .. } = &item {
                at.queued -= charge;
            }
            if let Item::Error { is_last: true, .. } = &item {
                at.rests = true;
            }
            if !at.queue.is_empty() {
                self.ready.push_back(partition);
            }
            if at.queued <= share / 2
                && let Some(lane) = at.hungry.take()
            {
                self.lanes[lane].fed.push(partition);
                self.lanes[lane].wake();
            }
            return Some((partition, item));
        }
    }

    /// Takes back what is left of a piece: others get their turn before it goes on. It is dropped if its stream is another
    /// one by now.
    pub(super) fn put_back(&mut self, partition: usize, piece: Piece, charge: usize, epoch: u32, generation: u64) {
        let at = &mut self.partitions[partition];
        if at.generation != generation {
            return;
        }
        at.queued += charge;
        at.queue.push_front(Item::Piece { piece, charge, epoch, generation });
        // With more behind it, it is listed already.
        if at.queue.len() == 1 {
            self.ready.push_back(partition);
        }
    }

    pub(super) fn has_room(&self, partition: usize, share: usize) -> bool {
        self.partitions[partition].queued < share
    }

    /// Whether anything can still come.
    pub(super) fn is_exhausted(&self) -> bool {
        self.partitions.iter().all(|partition| partition.rests && partition.queue.is_empty())
    }

    pub(super) fn wait(&mut self, waker: &Waker) {
        self.consumer = Some(waker.clone());
    }
}
