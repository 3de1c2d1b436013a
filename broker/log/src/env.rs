//! What the log needs from the world: a disk, an arena of aligned memory, two clocks, randomness. Everything here runs on
//! one thread. The broker implements it on `io_uring`, the offline tools on blocking files, the tests on a simulated disk.

use std::future::Future;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::time::Duration;

/// The unit of direct I/O, in bytes: offsets, lengths and memory of reads and writes are multiples of it.
pub const BLOCK_BYTES: usize = 4096;

/// The world as a partition sees it. Cheap to clone; clones share everything.
pub trait Env: Clone + 'static {
    /// Files and directories.
    type Disk: Disk<Arena = Self::Arena>;
    /// Aligned memory.
    type Arena: Arena;

    /// The disk.
    fn disk(&self) -> &Self::Disk;
    /// The arena.
    fn arena(&self) -> &Self::Arena;
    /// Time since some fixed point, never going back: for intervals.
    fn monotonic(&self) -> Duration;
    /// Milliseconds since the Unix epoch by the wall clock, which may jump: for arrival times.
    fn wall_ms(&self) -> i64;
    /// Completes once so much monotonic time has passed.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static;
    /// A random number.
    fn random(&self) -> u64;
}

/// A bounded, recycled pool of block-aligned memory.
pub trait Arena: Clone + 'static {
    /// The pieces it hands out.
    type Chunk: Chunk;

    /// A chunk of at least `bytes` bytes, or `None` when the pool has no room. Its spare bytes hold anything.
    fn allocate(&self, bytes: usize) -> Option<Self::Chunk>;
    /// Completes when memory has been given back since the call.
    fn released(&self) -> impl Future<Output = ()> + 'static;
    /// The size of the pool, in bytes.
    fn bytes_total(&self) -> usize;
    /// What is handed out, in bytes.
    fn bytes_used(&self) -> usize;
}

/// A piece of aligned memory that fills from its front. What lies below the fill mark never changes while a clone or a
/// slice of the chunk lives; what lies above is written through `with_spare` only. That makes it sound to write, send and
/// fill one chunk at the same time.
pub trait Chunk: Clone + 'static {
    /// A shared view of filled bytes; it keeps the memory alive.
    type Slice: Deref<Target = [u8]> + Clone + 'static;

    /// Bytes in all: a multiple of `BLOCK_BYTES`.
    fn capacity(&self) -> usize;
    /// The fill mark.
    fn filled(&self) -> usize;
    /// Lends spare bytes. Panics when `range` begins below the fill mark or ends beyond the capacity.
    fn with_spare<R>(&self, range: Range<usize>, f: impl FnOnce(&mut [u8]) -> R) -> R;
    /// Moves the fill mark up. Panics when it would go down or beyond the capacity.
    fn fill_to(&self, end: usize);
    /// A view of filled bytes. Panics when `range` ends beyond the fill mark.
    fn slice(&self, range: Range<usize>) -> Self::Slice;
}

/// Shorthand for the chunk of a disk's arena.
pub type ChunkOf<D> = <<D as Disk>::Arena as Arena>::Chunk;
/// Shorthand for the slice of a disk's arena.
pub type SliceOf<D> = <ChunkOf<D> as Chunk>::Slice;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name; not necessarily ours, nor UTF-8 (lossy then, which no name of ours is).
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Its size in bytes, as the file system says.
    pub bytes: u64,
    /// Its last modification, in milliseconds since the Unix epoch.
    pub modified_ms: i64,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist; reads only, takes no lock.
    Read,
    /// Must exist; reads and writes, exclusive lock (waits until a dead process's last write has landed).
    Write,
    /// Must not exist; otherwise as `Write`.
    Create,
}

/// A file system, direct for files that are opened, plain for small ones that are read and replaced whole.
/// None of the changes to a directory is durable before `sync_dir`.
pub trait Disk: Clone + 'static {
    /// The memory its reads and writes use.
    type Arena: Arena;
    /// An open file. Dropping it closes it, once nothing is under way on it.
    type File: File<Arena = Self::Arena>;

    /// Opens a file for direct I/O.
    fn open(&self, path: &Path, mode: OpenMode) -> impl Future<Output = io::Result<Self::File>> + 'static;
    /// What a directory holds, in no order.
    fn list(&self, dir: &Path) -> impl Future<Output = io::Result<Vec<DirEntry>>> + 'static;
    /// Makes a directory; the parent must exist.
    fn create_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + 'static;
    /// Flushes a directory: the names made, changed and removed in it are durable afterwards.
    fn sync_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + 'static;
    /// Renames a file or directory within one file system, replacing a file.
    fn rename(&self, from: &Path, to: &Path) -> impl Future<Output = io::Result<()>> + 'static;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> impl Future<Output = io::Result<()>> + 'static;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> impl Future<Output = io::Result<()>> + 'static;
    /// Reads a small file whole; more than `bytes_max` is an error of kind `FileTooLarge`.
    fn read_small(&self, path: &Path, bytes_max: usize) -> impl Future<Output = io::Result<Vec<u8>>> + 'static;
    /// Replaces a small file whole: a temporary file, its fsync, the rename, the directory's fsync. A crash leaves the
    /// old or the new content.
    fn replace_small(&self, path: &Path, content: Vec<u8>) -> impl Future<Output = io::Result<()>> + 'static;
}

/// An open file. Cheap to clone; clones share the descriptor. Dropping a future of it cancels nothing: the operation
/// runs to its end and keeps its memory until then.
pub trait File: Clone + 'static {
    /// The memory its reads and writes use.
    type Arena: Arena;

    /// Reads into the chunk's spare bytes from `at` on, `bytes` of them, and moves its fill mark behind what was read. Fewer only at
    /// the end of the file. Offset, `at` and `bytes` are multiples of the block.
    fn read(
        &self,
        chunk: &<Self::Arena as Arena>::Chunk,
        at: usize,
        bytes: usize,
        offset: u64,
    ) -> impl Future<Output = io::Result<usize>> + 'static;
    /// Writes whole blocks from `parts`, one behind the other, at `offset`; all or an error. With `synchronous`, the
    /// bytes written, and nothing else, are on stable storage afterwards.
    fn write(
        &self,
        parts: Vec<<<Self::Arena as Arena>::Chunk as Chunk>::Slice>,
        offset: u64,
        synchronous: bool,
    ) -> impl Future<Output = io::Result<()>> + 'static;
    /// Flushes the data of all writes that had completed when it began, and the metadata needed to read them.
    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + 'static;
    /// Allocates space up to `bytes` and sets the size to it; what was not written reads as zeros. Never shrinks.
    fn allocate(&self, bytes: u64) -> impl Future<Output = io::Result<()>> + 'static;
    /// Sets the size.
    fn truncate(&self, bytes: u64) -> impl Future<Output = io::Result<()>> + 'static;
    /// How many names it has; none once it was removed.
    fn links(&self) -> impl Future<Output = io::Result<u64>> + 'static;
    /// The size in bytes.
    fn bytes(&self) -> impl Future<Output = io::Result<u64>> + 'static;
}
