//! The simulated arena: bounded, recycled, poisoned. A new chunk holds a pattern or what another chunk held before, so
//! that whoever takes spare bytes for zeros, or for its own, is found out. Breaches of the chunk's contract are panics.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::executor::World;
use crate::env::{Arena, BLOCK_BYTES, Chunk};

/// How many returned pieces are kept to be handed out again with their old bytes.
const RECYCLED_MAX: usize = 8;

struct Pool {
    world: Rc<World>,
    bytes_total: usize,
    bytes_used: Cell<usize>,
    recycled: RefCell<Vec<Vec<u8>>>,
    releases: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

/// A bounded pool of memory, for one life.
#[derive(Clone)]
pub struct SimArena {
    pool: Rc<Pool>,
}

impl SimArena {
    pub(super) fn new(world: Rc<World>, bytes_total: usize) -> Self {
        let pool = Pool {
            world,
            bytes_total,
            bytes_used: Cell::new(0),
            recycled: RefCell::default(),
            releases: Cell::new(0),
            waiting: RefCell::default(),
        };
        Self { pool: Rc::new(pool) }
    }
}

impl Arena for SimArena {
    type Chunk = SimChunk;

    fn allocate(&self, bytes: usize) -> Option<SimChunk> {
        assert!(bytes > 0, "a chunk of no bytes was asked for");
        let pool = &self.pool;
        let capacity = bytes.next_multiple_of(BLOCK_BYTES);
        if pool.bytes_used.get() + capacity > pool.bytes_total {
            return None;
        }
        pool.bytes_used.set(pool.bytes_used.get() + capacity);
        let stale = {
            let mut recycled = pool.recycled.borrow_mut();
            let fit = recycled.iter().position(|old| old.len() == capacity);
            fit.filter(|_| pool.world.chance(0.7)).map(|index| recycled.swap_remove(index))
        };
        let bytes = stale.unwrap_or_else(|| vec![pool.world.pick(&[0xA5, 0xFF, 0x01]); capacity]);
        let memory = RefCell::new(Memory { bytes, filled: 0, lent: None });
        Some(SimChunk { inner: Rc::new(ChunkInner { pool: pool.clone(), capacity, memory }) })
    }

    fn released(&self) -> impl Future<Output = ()> + 'static {
        let pool = self.pool.clone();
        let seen = pool.releases.get();
        poll_fn(move |cx| {
            if pool.releases.get() != seen {
                return Poll::Ready(());
            }
            let mut waiting = pool.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    fn bytes_total(&self) -> usize {
        self.pool.bytes_total
    }

    fn bytes_used(&self) -> usize {
        self.pool.bytes_used.get()
    }
}

struct Memory {
    bytes: Vec<u8>,
    filled: usize,
    /// What a read in flight will write.
    lent: Option<Range<usize>>,
}

struct ChunkInner {
    pool: Rc<Pool>,
    capacity: usize,
    memory: RefCell<Memory>,
}

impl Drop for ChunkInner {
    fn drop(&mut self) {
        let pool = &self.pool;
        pool.bytes_used.set(pool.bytes_used.get() - self.capacity);
        let mut recycled = pool.recycled.borrow_mut();
        if recycled.len() == RECYCLED_MAX {
            recycled.remove(0);
        }
        recycled.push(std::mem::take(&mut self.memory.get_mut().bytes));
        pool.releases.set(pool.releases.get() + 1);
        for waker in pool.waiting.take() {
            waker.wake();
        }
    }
}

/// A piece of simulated memory.
#[derive(Clone)]
pub struct SimChunk {
    inner: Rc<ChunkInner>,
}

impl SimChunk {
    /// Lends spare bytes to a read that is now in flight.
    pub(super) fn lend(&self, range: Range<usize>) {
        let mut memory = self.inner.memory.borrow_mut();
        assert_eq!(range.start, memory.filled, "a read goes to the fill mark, or unread bytes would count as filled");
        assert!(range.end <= self.inner.capacity, "a read of {range:?} into a chunk of {} bytes", self.inner.capacity);
        assert_eq!(memory.lent, None, "two reads in flight into one chunk");
        memory.lent = Some(range);
    }

    /// The end of a read: `f` writes to the lent bytes and says how many of them count.
    pub(super) fn take_back(&self, f: impl FnOnce(&mut [u8]) -> usize) {
        let mut memory = self.inner.memory.borrow_mut();
        let range = memory.lent.take().expect("the read that ends had lent its bytes");
        let start = range.start;
        memory.filled = start + f(&mut memory.bytes[range]);
    }
}

impl Chunk for SimChunk {
    type Slice = SimSlice;

    fn capacity(&self) -> usize {
        self.inner.capacity
    }

    fn filled(&self) -> usize {
        self.inner.memory.borrow().filled
    }

    fn with_spare<R>(&self, range: Range<usize>, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut memory = self.inner.memory.borrow_mut();
        assert!(range.start >= memory.filled, "spare bytes {range:?} below the fill mark {}", memory.filled);
        assert!(range.end <= self.inner.capacity, "spare bytes {range:?} of {}", self.inner.capacity);
        let overlaps = |lent: &Range<usize>| lent.start < range.end && range.start < lent.end;
        assert!(!memory.lent.as_ref().is_some_and(overlaps), "spare bytes {range:?} are lent to a read in flight");
        f(&mut memory.bytes[range])
    }

    fn fill_to(&self, end: usize) {
        let mut memory = self.inner.memory.borrow_mut();
        assert!(end >= memory.filled, "the fill mark goes down from {} to {end}", memory.filled);
        assert!(end <= self.inner.capacity, "the fill mark {end} of {}", self.inner.capacity);
        let lent = memory.lent.as_ref().is_some_and(|lent| end > lent.start);
        assert!(!lent, "the fill mark {end} passes bytes that a read in flight will write");
        memory.filled = end;
    }

    fn slice(&self, range: Range<usize>) -> SimSlice {
        let memory = self.inner.memory.borrow();
        assert!(range.end <= memory.filled, "a slice {range:?} beyond the fill mark {}", memory.filled);
        // A copy serves as well as a view: filled bytes never change.
        SimSlice { bytes: memory.bytes[range.clone()].into(), start: range.start, _memory: self.inner.clone() }
    }
}

/// A view of filled bytes.
#[derive(Clone)]
pub struct SimSlice {
    bytes: Rc<[u8]>,
    start: usize,
    _memory: Rc<ChunkInner>,
}

impl SimSlice {
    /// Where in its chunk it begins, which decides whether it is aligned.
    pub(super) fn start(&self) -> usize {
        self.start
    }
}

impl Deref for SimSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for SimSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {} of a chunk", self.bytes.len(), self.start)
    }
}
