//! What the partitions of one shard share: the world, the arena's memory and the open files of readers. It decides who
//! gives memory back when somebody needs it: the hot tails, oldest first. One thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;

use crate::env::{Arena, Disk, Env, File};
use crate::limits;
use crate::notify::Notify;
use crate::tuning::Tuning;

/// A chunk of an environment's arena.
pub type EnvChunk<E> = <<E as Env>::Arena as Arena>::Chunk;
/// A slice of an environment's arena.
pub type EnvSlice<E> = <EnvChunk<E> as crate::env::Chunk>::Slice;
/// A file of an environment's disk.
pub type EnvFile<E> = <<E as Env>::Disk as Disk>::File;

/// What memory is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Bytes that arrive: leaves the reserve alone.
    Arrival,
    /// Padded blocks and reads: what lets memory be freed, and is given back soon.
    Service,
}

/// A partition, as the shard sees it.
pub(crate) trait Tenant {
    /// Gives the chunk `number` of the tail back, if it is no longer needed.
    fn evict(&self, number: u64);
    /// Flushes what waits, whatever the topic's policy: memory is needed.
    fn flush_for_memory(&self);
    /// Closes the file that readers use of the segment at `base`.
    fn close_read_file(&self, base: u64);
}

/// What the partitions of one shard share. Cheap to clone; clones share everything.
pub struct Shard<E: Env> {
    inner: Rc<ShardInner<E>>,
}

impl<E: Env> Clone for Shard<E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

/// A chunk of a tail that may be given back.
struct Evictable {
    tenant: Weak<dyn Tenant>,
    number: u64,
    bytes: usize,
}

struct ShardInner<E: Env> {
    env: E,
    tuning: Tuning,
    /// Chunks that are durable, in the order in which they became so.
    evictable: RefCell<VecDeque<Evictable>>,
    /// The bytes of those, about.
    evictable_bytes: Cell<usize>,
    /// Partitions that may hold bytes that are not durable.
    dirty: RefCell<Vec<Weak<dyn Tenant>>>,
    /// Files of closed segments, in the order in which they were opened.
    read_files: RefCell<VecDeque<(Weak<dyn Tenant>, u64)>>,
    /// Memory may be had that could not be had before.
    freed: Notify,
    /// How many wait for it.
    waiting: Cell<usize>,
    /// What partitions keep outside the arena, in bytes.
    kept_bytes: Rc<Cell<usize>>,
}

impl<E: Env> Shard<E> {
    /// A shard without partitions.
    pub fn new(env: E) -> Self {
        Self::with_tuning(env, Tuning::default())
    }

    /// A shard without partitions that works by other sizes and times.
    #[doc(hidden)]
    pub fn with_tuning(env: E, tuning: Tuning) -> Self {
        let inner = ShardInner {
            env,
            tuning,
            evictable: RefCell::default(),
            evictable_bytes: Cell::default(),
            dirty: RefCell::default(),
            read_files: RefCell::default(),
            freed: Notify::default(),
            waiting: Cell::default(),
            kept_bytes: Rc::default(),
        };
        Self { inner: Rc::new(inner) }
    }

    /// The world.
    pub fn env(&self) -> &E {
        &self.inner.env
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.inner.tuning
    }

    /// A chunk of at least `bytes` bytes; hot tails make room for it if need be.
    pub(crate) fn try_allocate(&self, bytes: usize, purpose: Purpose) -> Option<EnvChunk<E>> {
        let arena = self.env().arena();
        let reserve = if purpose == Purpose::Arrival { arena.bytes_total() / limits::ARENA_RESERVE_PART } else { 0 };
        loop {
            let within = arena.bytes_used() + bytes + reserve <= arena.bytes_total();
            if let Some(chunk) = within.then(|| arena.allocate(bytes)).flatten() {
                return Some(chunk);
            }
            let oldest = self.inner.evictable.borrow_mut().pop_front()?;
            self.forget_evictable(oldest.bytes);
            if let Some(tenant) = oldest.tenant.upgrade() {
                tenant.evict(oldest.number);
            }
        }
    }

    /// A chunk of at least `bytes` bytes for arrivals, without asking anybody to make room.
    pub(crate) fn allocate_free(&self, bytes: usize) -> Option<EnvChunk<E>> {
        let arena = self.env().arena();
        let within = arena.bytes_used() + bytes <= self.arrival_bytes_max();
        within.then(|| arena.allocate(bytes)).flatten()
    }

    /// As `try_allocate`, but waits until there is room: what is not flushed is flushed then.
    pub(crate) async fn allocate(&self, bytes: usize, purpose: Purpose) -> EnvChunk<E> {
        loop {
            let mut released = pin!(self.env().arena().released());
            let mut freed = pin!(self.inner.freed.changed());
            if let Some(chunk) = self.try_allocate(bytes, purpose) {
                return chunk;
            }
            self.flush_dirty();
            let _waiting = Waiting::new(&self.inner.waiting);
            poll_fn(|cx| {
                let ready = released.as_mut().poll(cx).is_ready() | freed.as_mut().poll(cx).is_ready();
                if ready { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }

    /// A chunk of at least `bytes` bytes to read pieces of files into. Waits until there is room; it is to be given back
    /// soon, since what frees memory needs some itself.
    pub async fn allocate_for_reading(&self, bytes: usize) -> EnvChunk<E> {
        self.allocate(bytes, Purpose::Service).await
    }

    /// Whether somebody waits for memory: then those who hold some without using it should be made to give it back.
    pub fn is_memory_awaited(&self) -> bool {
        self.inner.waiting.get() > 0
    }

    /// The largest piece that bytes that arrive may ask for.
    pub(crate) fn arrival_bytes_max(&self) -> usize {
        let total = self.env().arena().bytes_total();
        total - total / limits::ARENA_RESERVE_PART
    }

    /// Whether more than half of the arena is in use and cannot be given back: then nobody should ask for more than is needed.
    pub fn is_memory_scarce(&self) -> bool {
        let arena = self.env().arena();
        arena.bytes_used().saturating_sub(self.inner.evictable_bytes.get()) > arena.bytes_total() / 2
    }

    /// A chunk of a tail, of so many bytes, became durable.
    pub(crate) fn is_evictable(&self, tenant: Weak<dyn Tenant>, number: u64, bytes: usize) {
        let mut evictable = self.inner.evictable.borrow_mut();
        if evictable.len() == evictable.capacity() {
            evictable.retain(|chunk| {
                let lives = chunk.tenant.strong_count() > 0;
                self.forget_evictable(if lives { 0 } else { chunk.bytes });
                lives
            });
        }
        evictable.push_back(Evictable { tenant, number, bytes });
        drop(evictable);
        self.inner.evictable_bytes.set(self.inner.evictable_bytes.get() + bytes);
        self.inner.freed.notify();
    }

    fn forget_evictable(&self, bytes: usize) {
        self.inner.evictable_bytes.set(self.inner.evictable_bytes.get() - bytes);
    }

    /// Whether a partition may keep so many bytes outside the arena, and the count of them, as long as it does.
    pub(crate) fn keep(&self, bytes: usize) -> Option<KeptBytes> {
        let all = &self.inner.kept_bytes;
        let within = all.get() + bytes <= self.tuning().kept_bytes_max;
        within.then(|| {
            all.set(all.get() + bytes);
            KeptBytes { all: Rc::clone(all), bytes }
        })
    }

    /// A partition holds bytes that are not durable. Called once until [`Tenant::flush_for_memory`] is.
    pub(crate) fn is_dirty(&self, tenant: Weak<dyn Tenant>) {
        let mut dirty = self.inner.dirty.borrow_mut();
        if dirty.len() == dirty.capacity() {
            dirty.retain(|tenant| tenant.strong_count() > 0);
        }
        dirty.push(tenant);
    }

    fn flush_dirty(&self) {
        let dirty = std::mem::take(&mut *self.inner.dirty.borrow_mut());
        dirty.iter().filter_map(Weak::upgrade).for_each(|tenant| tenant.flush_for_memory());
    }

    /// A file was opened for readers; the oldest is closed when there are too many.
    pub(crate) fn opened_read_file(&self, tenant: Weak<dyn Tenant>, base: u64) {
        let mut files = self.inner.read_files.borrow_mut();
        // The same file may have been closed and opened again: an old entry would close the new one too early.
        files.retain(|(other, known)| *known != base || !std::ptr::addr_eq(other.as_ptr(), tenant.as_ptr()));
        files.push_back((tenant, base));
        let oldest = if files.len() > self.inner.tuning.read_files_max { files.pop_front() } else { None };
        drop(files);
        if let Some((tenant, base)) = oldest
            && let Some(tenant) = tenant.upgrade()
        {
            tenant.close_read_file(base);
        }
    }
}

/// Counts bytes that a partition keeps outside the arena, as long as it lives.
pub(crate) struct KeptBytes {
    all: Rc<Cell<usize>>,
    bytes: usize,
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.bytes);
    }
}

/// Counts somebody who waits, as long as it lives.
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Reads a file from `offset` (whole blocks) for up to `bytes` (whole blocks) into a chunk of its own.
pub(crate) async fn read_chunk<E: Env>(
    shard: &Shard<E>,
    file: &EnvFile<E>,
    offset: u64,
    bytes: usize,
) -> std::io::Result<(EnvChunk<E>, usize)> {
    let chunk = shard.allocate(bytes, Purpose::Service).await;
    let read = file.read(&chunk, 0, bytes, offset).await?;
    Ok((chunk, read))
}
