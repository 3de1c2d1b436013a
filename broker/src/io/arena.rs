//! One long-lived region of memory per shard, cut into block-aligned chunks: publishes are received into it, the disk
//! writes from it and reads into it, sockets send from it. On huge pages where the system gives them. One thread owns it.
//! The unsafe code of this file rests on one rule: bytes below a chunk's fill mark are never written while the chunk
//! lives, bytes above it are reached by one borrower at a time.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Poll, Waker};

use corelane_log::env::{self, BLOCK_BYTES};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::buddy::Buddy;

/// The size of the pages that back an arena where the system has them: its regions are multiples of it.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What backs an arena's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages reserved by the operator (`vm.nr_hugepages`).
    Reserved,
    /// Ordinary memory that the kernel was asked to back by huge pages where it can.
    Transparent,
    /// Ordinary pages.
    Plain,
}

/// A bounded, recycled pool of block-aligned memory. Clones share it.
#[derive(Clone)]
pub struct ShardArena(Rc<Region>);

struct Region {
    base: NonNull<u8>,
    bytes: usize,
    pages: Pages,
    buddy: RefCell<Buddy>,
    /// What of it the kernel may be reading for sockets, in whole chunks.
    pinned_bytes: Cell<usize>,
    /// Counts the chunks given back, so that a waiter sees whether one was since it asked.
    returns: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl ShardArena {
    /// Maps a region of at least `bytes` bytes.
    ///
    /// # Errors
    /// What `mmap` answers when there is no room for it.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(HUGE_PAGE_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
        let (base, pages) = map_region(bytes)?;
        let blocks = u32::try_from(bytes / BLOCK_BYTES).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Self(Rc::new(Region {
            base,
            bytes,
            pages,
            buddy: RefCell::new(Buddy::new(blocks)),
            pinned_bytes: Cell::new(0),
            returns: Cell::new(0),
            waiters: RefCell::new(Vec::new()),
        })))
    }

    /// What backs the memory.
    pub fn pages(&self) -> Pages {
        self.0.pages
    }

    /// What the kernel may be reading for sockets, in bytes: whole chunks, since no part of one is given back alone.
    pub(super) fn pinned_bytes(&self) -> usize {
        self.0.pinned_bytes.get()
    }

    /// The whole region, for registration with a ring.
    pub(super) fn region(&self) -> (*mut u8, usize) {
        (self.0.base.as_ptr(), self.0.bytes)
    }
}

fn map_region(bytes: usize) -> io::Result<(NonNull<u8>, Pages)> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let map = |flags| {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory that exists.
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE | flags) }
    };
    let (base, pages) = if let Ok(base) = map(MapFlags::HUGETLB | MapFlags::POPULATE) {
        (base, Pages::Reserved)
    } else {
        let base = map(MapFlags::empty())?;
        // SAFETY: the range is the mapping just made; the advice changes how it is backed, never what it holds.
        let advised = unsafe { madvise(base, bytes, Advice::LinuxHugepage) };
        (base, if advised.is_ok() { Pages::Transparent } else { Pages::Plain })
    };
    Ok((NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?, pages))
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and nothing points into it: every chunk and slice holds a reference to
        // this region, so this runs after the last of them.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of the arena failed: {unmapped:?}");
    }
}

impl env::Arena for ShardArena {
    type Chunk = ShardChunk;

    fn allocate(&self, bytes: usize) -> Option<ShardChunk> {
        let blocks = u32::try_from(bytes.max(1).div_ceil(BLOCK_BYTES)).ok()?;
        let first = self.0.buddy.borrow_mut().take(blocks)?;
        Some(ShardChunk(Rc::new(ChunkState {
            region: Rc::clone(&self.0),
            first_block: first,
            blocks,
            filled: Cell::new(0),
            spare_lent: Cell::new(false),
            granted: RefCell::new(None),
            pins: Cell::new(0),
        })))
    }

    fn released(&self) -> impl Future<Output = ()> + 'static {
        let region = Rc::clone(&self.0);
        let seen = region.returns.get();
        poll_fn(move |context| {
            if region.returns.get() != seen {
                return Poll::Ready(());
            }
            let mut waiters = region.waiters.borrow_mut();
            if !waiters.iter().any(|waiter| waiter.will_wake(context.waker())) {
                waiters.push(context.waker().clone());
            }
            Poll::Pending
        })
    }

    fn bytes_total(&self) -> usize {
        self.0.bytes
    }

    fn bytes_used(&self) -> usize {
        self.0.buddy.borrow().blocks_used() as usize * BLOCK_BYTES
    }
}

/// A piece of the arena that fills from its front. Clones share it; the last one gives the memory back.
#[derive(Clone)]
pub struct ShardChunk(Rc<ChunkState>);

struct ChunkState {
    region: Rc<Region>,
    first_block: u32,
    blocks: u32,
    filled: Cell<usize>,
    /// Set while `with_spare` lends bytes.
    spare_lent: Cell<bool>,
    /// Spare bytes that the kernel may be writing: a read under way.
    granted: RefCell<Option<Range<usize>>>,
    /// Slices of it that the kernel may be reading for sockets.
    pins: Cell<usize>,
}

impl ChunkState {
    fn capacity(&self) -> usize {
        BLOCK_BYTES * self.blocks as usize
    }

    fn pointer(&self, at: usize) -> *mut u8 {
        assert!(at <= self.capacity(), "byte {at} lies outside a chunk of {}", self.capacity());
        // SAFETY: the chunk's blocks lie inside the region, and `at` inside the chunk (or one past its end), so the
        // offset stays within the one mapping.
        unsafe { self.region.base.as_ptr().add(self.first_block as usize * BLOCK_BYTES + at) }
    }

    /// Panics unless `range` is spare and nobody else has hold of any of it.
    fn check_spare(&self, range: &Range<usize>) {
        assert!(
            range.start >= self.filled.get() && range.start <= range.end && range.end <= self.capacity(),
            "spare bytes {range:?} of a chunk of {} filled to {}",
            self.capacity(),
            self.filled.get()
        );
        assert!(!self.spare_lent.get(), "spare bytes of one chunk were lent twice");
        if let Some(granted) = &*self.granted.borrow() {
            assert!(
                range.end <= granted.start || range.start >= granted.end,
                "spare bytes {range:?} overlap a read under way into {granted:?}"
            );
        }
    }
}

impl Drop for ChunkState {
    fn drop(&mut self) {
        self.region.buddy.borrow_mut().give_back(self.first_block, self.blocks);
        self.region.returns.set(self.region.returns.get().wrapping_add(1));
        for waiter in self.region.waiters.take() {
            waiter.wake();
        }
    }
}

impl ShardChunk {
    /// Reserves spare bytes for the kernel to write into, until the grant is finished or dropped.
    pub(super) fn grant(&self, range: Range<usize>) -> SpareGrant {
        self.0.check_spare(&range);
        let mut granted = self.0.granted.borrow_mut();
        assert!(granted.is_none(), "two reads into one chunk at a time");
        *granted = Some(range.clone());
        SpareGrant { chunk: self.clone(), range }
    }
}

impl env::Chunk for ShardChunk {
    type Slice = ShardSlice;

    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn filled(&self) -> usize {
        self.0.filled.get()
    }

    fn with_spare<R>(&self, range: Range<usize>, f: impl FnOnce(&mut [u8]) -> R) -> R {
        self.0.check_spare(&range);
        // Cleared on unwinding too.
        struct Lent<'a>(&'a Cell<bool>);
        impl Drop for Lent<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        self.0.spare_lent.set(true);
        let _lent = Lent(&self.0.spare_lent);
        // SAFETY: the bytes lie in this chunk's part of the mapping (checked by `pointer` and `check_spare`) and hold
        // initialised memory, since a mapping begins as zeros. They are not aliased: slices only reach below the fill
        // mark, which cannot move while `spare_lent` is set; a second lending panics; a read under way overlaps none
        // of them, and none can be granted meanwhile, since `grant` makes the same check. `&self` keeps the chunk alive.
        let spare = unsafe { std::slice::from_raw_parts_mut(self.0.pointer(range.start), range.len()) };
        f(spare)
    }

    fn fill_to(&self, end: usize) {
        let filled = self.0.filled.get();
        assert!(end >= filled && end <= self.0.capacity(), "a fill mark moved from {filled} to {end}");
        if end == filled {
            return;
        }
        assert!(!self.0.spare_lent.get(), "a fill mark moved while spare bytes were lent");
        if let Some(granted) = &*self.0.granted.borrow() {
            assert!(end <= granted.start, "a fill mark moved into a read under way");
        }
        self.0.filled.set(end);
    }

    fn slice(&self, range: Range<usize>) -> ShardSlice {
        assert!(
            range.start <= range.end && range.end <= self.0.filled.get(),
            "slice {range:?} of a chunk filled to {}",
            self.0.filled.get()
        );
        ShardSlice { start: self.0.pointer(range.start), bytes: range.len(), chunk: self.clone() }
    }
}

/// Spare bytes that a read under way may write.
pub(super) struct SpareGrant {
    chunk: ShardChunk,
    range: Range<usize>,
}

impl SpareGrant {
    /// Where the kernel writes.
    pub(super) fn pointer(&self) -> *mut u8 {
        self.chunk.0.pointer(self.range.start)
    }

    /// How many bytes it may write.
    pub(super) fn bytes(&self) -> usize {
        self.range.len()
    }

    /// The read has ended: the bytes up to the `bytes`th of the grant are filled.
    pub(super) fn finish(self, bytes: usize) {
        assert!(bytes <= self.range.len(), "a read of {} answered {bytes}", self.range.len());
        let (chunk, end) = (self.chunk.clone(), self.range.start + bytes);
        drop(self);
        env::Chunk::fill_to(&chunk, end);
    }
}

impl Drop for SpareGrant {
    fn drop(&mut self) {
        *self.chunk.0.granted.borrow_mut() = None;
    }
}

/// A shared view of filled bytes; it keeps the memory alive.
#[derive(Clone)]
pub struct ShardSlice {
    start: *const u8,
    bytes: usize,
    /// Held so that the memory stays.
    chunk: ShardChunk,
}

impl ShardSlice {
    /// A part of this view.
    ///
    /// # Panics
    /// When `range` ends beyond it.
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.bytes, "part {range:?} of a slice of {}", self.bytes);
        // SAFETY: `range.start` is at most this slice's length, so the pointer stays within its bytes or one past them.
        let start = unsafe { self.start.add(range.start) };
        Self { start, bytes: range.len(), chunk: self.chunk.clone() }
    }
}

impl ShardSlice {
    /// By how much `ShardArena::pinned_bytes` would grow with this slice.
    pub(super) fn bytes_to_pin(&self) -> usize {
        if self.chunk.0.pins.get() == 0 { self.chunk.0.capacity() } else { 0 }
    }

    /// The same bytes for the kernel to read beyond the call that hands them over. They stay as they are until this is
    /// dropped, as those of every slice do; what it adds is that they are counted.
    pub(super) fn pin(self) -> PinnedSlice {
        let chunk = &self.chunk.0;
        chunk.region.pinned_bytes.set(chunk.region.pinned_bytes.get() + self.bytes_to_pin());
        chunk.pins.set(chunk.pins.get() + 1);
        PinnedSlice(self)
    }
}

/// A slice that the kernel may be reading for a socket.
pub(super) struct PinnedSlice(ShardSlice);

impl Deref for PinnedSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for PinnedSlice {
    fn drop(&mut self) {
        let chunk = &self.0.chunk.0;
        chunk.pins.set(chunk.pins.get() - 1);
        chunk.region.pinned_bytes.set(chunk.region.pinned_bytes.get() - self.0.bytes_to_pin());
    }
}

impl Deref for ShardSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes were below the fill mark when the slice was made, the mark never goes down, and bytes below
        // it are never written while the chunk lives, which this slice keeps alive.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl AsRef<[u8]> for ShardSlice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests;
