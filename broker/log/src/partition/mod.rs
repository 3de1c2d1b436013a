//! One partition: an ordered log in segments. The owner's thread publishes to it and reads from it through [`Partition`];
//! one task, its [`Driver`], does everything that changes the disk.

mod append;
mod chores;
mod driver;
mod find;
mod promises;
mod read;
mod standing;
mod state;
mod write;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::task::Poll;

use corelane_proto::ids::{Epoch, Position, TopicId};

pub use append::Appended;
pub use driver::Driver;
pub use find::Target;
pub use read::{Piece, Promise};

use crate::checkpoint::CheckpointEntry;
use crate::config::{InvalidConfig, PartitionOptions, TopicConfig};
use crate::env::Env;
use crate::error::{AppendError, ClosedReason, ReadError};
use crate::landing::Place;
use crate::notify::{Notify, WaitList};
use crate::segment::Now;
use crate::shard::{Shard, Tenant};
pub(crate) use state::Found;
use state::State;

/// A partition. Cheap to clone; clones are the same partition. One thread.
pub struct Partition<E: Env> {
    inner: Rc<Inner<E>>,
}

impl<E: Env> Clone for Partition<E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

/// Where a partition's log begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The oldest id retained.
    pub start: Position,
    /// What consumers may read ends here. Never beyond the durable end.
    pub visible_end: Position,
    /// Everything below is on stable storage; the end of a set.
    pub durable_end: Position,
    /// The id that the next message gets.
    pub end: Position,
    /// The life of the log that these positions belong to.
    pub epoch: Epoch,
}

/// What a partition has and has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionStats {
    /// Segments, the active one included.
    pub segments: u64,
    /// Bytes of its segment files, allocated ahead included.
    pub bytes_on_disk: u64,
    /// Bytes of its tail in memory.
    pub bytes_in_memory: u64,
    /// Sets appended.
    pub sets: u64,
    /// Messages appended, a wrapper counted as one.
    pub messages: u64,
    /// Bytes appended.
    pub bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Writes that were synchronous.
    pub synchronous_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Places that were found damaged: at recovery, or met by a reader.
    pub bad_messages: u64,
    /// Recoveries that found a torn tail or damage.
    pub recoveries: u64,
    /// Bytes of torn tails that were cut off, each with a copy kept.
    pub cut_bytes: u64,
    /// Files in its directory that are not the log's, as the start found them.
    pub foreign_files: u64,
    /// Damaged summaries that were met, and rebuilt.
    pub rebuilt_summaries: u64,
    /// Attempts to read a segment whose file is gone or too short.
    pub unreadable_segments: u64,
    /// Receivers that were moved out of the tail.
    pub moved_out: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) sets: Cell<u64>,
    pub(crate) messages: Cell<u64>,
    pub(crate) bytes: Cell<u64>,
    pub(crate) writes: Cell<u64>,
    pub(crate) synchronous_writes: Cell<u64>,
    pub(crate) flushes: Cell<u64>,
    pub(crate) bad_messages: Cell<u64>,
    pub(crate) recoveries: Cell<u64>,
    pub(crate) cut_bytes: Cell<u64>,
    pub(crate) foreign_files: Cell<u64>,
    pub(crate) rebuilt_summaries: Cell<u64>,
    pub(crate) unreadable_segments: Cell<u64>,
    pub(crate) moved_out: Cell<u64>,
}

pub(crate) fn count(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}

/// What all handles of a partition share.
pub(crate) struct Inner<E: Env> {
    this: Weak<Inner<E>>,
    pub(crate) shard: Shard<E>,
    /// The partition's directory.
    dir: PathBuf,
    /// `topic/partition`, for log lines.
    label: String,
    topic_id: TopicId,
    partition: u32,
    epoch: Epoch,
    /// The write window W.
    window: u64,
    /// When it was opened, by both clocks.
    opened: Now,
    state: RefCell<State<E>>,
    /// The driver has something to look at.
    driver: Notify,
    /// Whoever waits for room looks again: the window moved, space was allocated, a roll is done, a receiver left.
    room: Notify,
    /// Whoever waits for a durable (and visible) end.
    durable: WaitList,
    counters: Counters,
    /// The segment that was last found unreadable: one that stays so is told once.
    unreadable: Cell<Option<u64>>,
}

impl<E: Env> Partition<E> {
    pub(crate) fn assemble(
        shard: &Shard<E>,
        dir: PathBuf,
        options: &PartitionOptions,
        found: Found<E>,
    ) -> (Partition<E>, Driver<E>) {
        let inner = Rc::new_cyclic(|this| Inner {
            this: this.clone(),
            shard: shard.clone(),
            dir,
            label: format!("{}/{}", options.topic, options.partition),
            topic_id: options.topic_id,
            partition: options.partition,
            epoch: options.epoch,
            window: options.unflushed_bytes_max,
            opened: Now::read(shard.env()),
            state: RefCell::new(State::new(options.config.clone(), *shard.tuning(), found)),
            driver: Notify::default(),
            room: Notify::default(),
            durable: WaitList::default(),
            counters: Counters::default(),
            unreadable: Cell::default(),
        });
        (Partition { inner: inner.clone() }, Driver::new(inner))
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Where the log begins and ends.
    pub fn bounds(&self) -> Bounds {
        let state = self.inner.state.borrow();
        Bounds {
            start: Position(state.start()),
            visible_end: Position(state.durable),
            durable_end: Position(state.durable),
            end: Position(state.end),
            epoch: self.inner.epoch,
        }
    }

    /// Completes when everything below `end` is durable, with the durable end. An error says that it cannot be told any
    /// more in this life of the broker; the data may be there after a restart.
    pub fn wait_durable(&self, end: Position) -> impl Future<Output = Result<Position, AppendError>> + 'static {
        let inner = self.inner.clone();
        let wait = Wait { inner, target: end.0, ticket: None };
        wait.until(|state, target| match &state.frozen {
            _ if state.durable >= target => Some(Ok(Position(state.durable))),
            Some(reason) => Some(Err(AppendError::Closed(reason.clone()))),
            None => None,
        })
    }

    /// Completes when the visible end lies above `above`, or when the partition goes away.
    pub fn wait_visible(&self, above: Position) -> impl Future<Output = Result<Bounds, ReadError>> + 'static {
        let partition = self.clone();
        async move {
            let wait = Wait { inner: partition.inner.clone(), target: above.0.saturating_add(1), ticket: None };
            wait.until(|state, target| match &state.ended {
                Some(reason) => Some(Err(ReadError::Gone(reason.clone()))),
                None if state.durable >= target => Some(Ok(())),
                None => None,
            })
            .await
            .map(|()| partition.bounds())
        }
    }

    /// Takes a new configuration, from now on.
    pub fn configure(&self, config: TopicConfig) -> Result<(), InvalidConfig> {
        config.validate()?;
        let least = u64::from(config.set_bytes_max) + crate::env::BLOCK_BYTES as u64;
        if self.inner.window < least {
            let reason = format!("needs a write window of {least} bytes; unflushed_bytes_max is {}", self.inner.window);
            return Err(InvalidConfig { field: "set_bytes_max", reason });
        }
        self.inner.state.borrow_mut().config = config;
        self.inner.driver.notify();
        self.inner.room.notify();
        Ok(())
    }

    /// What it has and has done.
    pub fn stats(&self) -> PartitionStats {
        let state = self.inner.state.borrow();
        let counters = &self.inner.counters;
        PartitionStats {
            segments: state.segments.len() as u64,
            bytes_on_disk: state.segments.iter().map(|segment| segment.file_bytes).sum(),
            bytes_in_memory: state.end - state.tail.start(state.end),
            sets: counters.sets.get(),
            messages: counters.messages.get(),
            bytes: counters.bytes.get(),
            writes: counters.writes.get(),
            synchronous_writes: counters.synchronous_writes.get(),
            flushes: counters.flushes.get(),
            bad_messages: counters.bad_messages.get(),
            recoveries: counters.recoveries.get(),
            cut_bytes: counters.cut_bytes.get(),
            foreign_files: counters.foreign_files.get(),
            rebuilt_summaries: counters.rebuilt_summaries.get(),
            unreadable_segments: counters.unreadable_segments.get(),
            moved_out: counters.moved_out.get(),
        }
    }

    /// Whether the disk had no room for it when it last asked: publishes wait, or are refused.
    pub fn lacks_space(&self) -> bool {
        self.inner.state.borrow().space.was_refused
    }

    /// What the checkpoint is to say about it now.
    pub fn checkpoint_entry(&self) -> CheckpointEntry {
        let inner = &self.inner;
        let mut state = inner.state.borrow_mut();
        state.correct_arrivals(Now::read(inner.shard.env()));
        let active = state.active();
        let arrivals = active.arrivals.filter(|_| state.durable > active.base);
        CheckpointEntry {
            topic_id: inner.topic_id,
            partition: inner.partition,
            epoch: inner.epoch,
            durable_end: Position(state.durable),
            last: state.last,
            segment_base: Position(active.base),
            first_arrival_ms: arrivals.map(|arrivals| arrivals.first_ms),
            last_arrival_ms: arrivals.map(|arrivals| arrivals.last_ms),
        }
    }

    /// Why it takes no appends, if it does not.
    pub fn closed(&self) -> Option<ClosedReason> {
        self.inner.state.borrow().refuses.clone()
    }
}

impl<E: Env> Inner<E> {
    /// What is covered may have grown: moves the durable end and wakes whoever waits for it.
    fn advance(&self) {
        let mut state = self.state.borrow_mut();
        if state.frozen.is_some() {
            return;
        }
        let covered = state.coverage.covered();
        let Some(last) = state.ends.advance(covered) else { return };
        state.durable = last.end;
        state.last = last.last;
        drop(state);
        self.offer_tail();
        self.durable.wake_up_to(last.end);
        self.room.notify();
    }

    /// Lets the shard have the memory of what is durable when it needs it.
    fn offer_tail(&self) {
        let offers = {
            let mut state = self.state.borrow_mut();
            let durable = state.durable;
            state.tail.offer(durable)
        };
        for (number, bytes) in offers {
            self.shard.is_evictable(self.this.clone(), number, bytes);
        }
    }

    /// A write or a flush failed: no appends any more, and the durable end stays where it is.
    fn close_for_disk(&self, what: &str, error: &std::io::Error) {
        let reason = ClosedReason::Disk { what: what.to_owned(), reason: error.to_string() };
        tracing::error!(partition = %self.label, "{reason}");
        let mut state = self.state.borrow_mut();
        if state.refuses.as_ref().is_none_or(|known| *known == ClosedReason::Stopping) {
            state.refuses = Some(reason.clone());
        }
        state.frozen.get_or_insert(reason);
        drop(state);
        self.wake_everybody();
    }

    fn wake_everybody(&self) {
        self.durable.wake_all();
        self.room.notify();
        self.driver.notify();
    }

    /// A landing is gone or was appended.
    pub(crate) fn release_place(&self, place: &Rc<RefCell<Place<E>>>) {
        let mut state = self.state.borrow_mut();
        if state.holder.as_ref().is_some_and(|holder| Rc::ptr_eq(holder, place)) {
            state.holder = None;
            drop(state);
            self.offer_tail();
            self.room.notify();
        }
    }
}

impl<E: Env> Tenant for Inner<E> {
    fn evict(&self, number: u64) {
        let mut state = self.state.borrow_mut();
        let durable = state.durable;
        let keep_last = state.holder.is_some() || state.end > durable;
        state.tail.evict(number, durable, keep_last, |bytes| self.shard.keep(bytes));
    }

    fn flush_for_memory(&self) {
        let mut state = self.state.borrow_mut();
        state.known_dirty = false;
        state.flush_target = state.end;
        drop(state);
        self.driver.notify();
    }

    fn close_read_file(&self, base: u64) {
        let mut state = self.state.borrow_mut();
        state.close_read_file(base);
    }
}

/// Waits in the list of durable ends.
struct Wait<E: Env> {
    inner: Rc<Inner<E>>,
    target: u64,
    ticket: Option<crate::notify::Ticket>,
}

impl<E: Env> Wait<E> {
    async fn until<T>(mut self, check: impl Fn(&State<E>, u64) -> Option<T>) -> T {
        poll_fn(|cx| {
            if let Some(done) = check(&self.inner.state.borrow(), self.target) {
                return Poll::Ready(done);
            }
            self.ticket = Some(self.inner.durable.register(self.target, self.ticket, cx.waker()));
            Poll::Pending
        })
        .await
    }
}

impl<E: Env> Drop for Wait<E> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.inner.durable.forget(ticket);
        }
    }
}
