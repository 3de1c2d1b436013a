//! The log's world on plain blocking files, for the offline tools and for what the control thread does to a data
//! directory. Every operation is done when its future is polled first; nothing here is fast, or tries to be. Memory is
//! not bounded, and slices are copies.

use std::cell::{Cell, RefCell};
use std::fs;
use std::future::Future;
use std::io::{self, ErrorKind, Write};
use std::ops::{Deref, Range};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::env::{Arena, BLOCK_BYTES, Chunk, DirEntry, Disk, Env, File, OpenMode};

/// Files are the owner's, and may be read by its group, as those of the broker's own disk are.
const FILE_MODE: u32 = 0o640;

/// Runs a future of this world to its end; it sleeps where the future does.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        // Only `sleep` is ever pending here.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The world.
#[derive(Clone, Debug)]
pub struct BlockingEnv {
    disk: BlockingDisk,
    arena: BlockingArena,
    begun: Instant,
}

impl Default for BlockingEnv {
    fn default() -> Self {
        Self { disk: BlockingDisk, arena: BlockingArena::default(), begun: Instant::now() }
    }
}

impl Env for BlockingEnv {
    type Disk = BlockingDisk;
    type Arena = BlockingArena;

    fn disk(&self) -> &BlockingDisk {
        &self.disk
    }

    fn arena(&self) -> &BlockingArena {
        &self.arena
    }

    fn monotonic(&self) -> Duration {
        self.begun.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        let until = Instant::now() + duration;
        std::future::poll_fn(move |_| if Instant::now() >= until { Poll::Ready(()) } else { Poll::Pending })
    }

    fn random(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(self.begun.elapsed())
    }
}

/// Memory without a bound.
#[derive(Clone, Debug, Default)]
pub struct BlockingArena {
    bytes_used: Rc<Cell<usize>>,
}

impl Arena for BlockingArena {
    type Chunk = BlockingChunk;

    fn allocate(&self, bytes: usize) -> Option<BlockingChunk> {
        let capacity = bytes.next_multiple_of(BLOCK_BYTES);
        self.bytes_used.set(self.bytes_used.get() + capacity);
        let memory =
            Memory { bytes: RefCell::new(vec![0; capacity]), filled: Cell::new(0), used: self.bytes_used.clone() };
        Some(BlockingChunk { memory: Rc::new(memory) })
    }

    fn released(&self) -> impl Future<Output = ()> + 'static {
        // Nobody has to wait for memory that has no bound.
        std::future::ready(())
    }

    fn bytes_total(&self) -> usize {
        usize::MAX
    }

    fn bytes_used(&self) -> usize {
        self.bytes_used.get()
    }
}

#[derive(Debug)]
struct Memory {
    bytes: RefCell<Vec<u8>>,
    filled: Cell<usize>,
    used: Rc<Cell<usize>>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.used.set(self.used.get() - self.bytes.borrow().len());
    }
}

/// A piece of memory.
#[derive(Clone, Debug)]
pub struct BlockingChunk {
    memory: Rc<Memory>,
}

/// A copy of filled bytes.
#[derive(Clone, Debug)]
pub struct BlockingSlice(Rc<[u8]>);

impl Deref for BlockingSlice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Chunk for BlockingChunk {
    type Slice = BlockingSlice;

    fn capacity(&self) -> usize {
        self.memory.bytes.borrow().len()
    }

    fn filled(&self) -> usize {
        self.memory.filled.get()
    }

    fn with_spare<R>(&self, range: Range<usize>, f: impl FnOnce(&mut [u8]) -> R) -> R {
        assert!(range.start >= self.filled(), "spare bytes begin at {}, {range:?} was asked for", self.filled());
        f(&mut self.memory.bytes.borrow_mut()[range])
    }

    fn fill_to(&self, end: usize) {
        let (filled, capacity) = (self.filled(), self.capacity());
        assert!((filled..=capacity).contains(&end), "the fill mark goes from {filled} up to {capacity}, not to {end}");
        self.memory.filled.set(end);
    }

    fn slice(&self, range: Range<usize>) -> BlockingSlice {
        assert!(range.end <= self.filled(), "{} bytes are filled, {range:?} was asked for", self.filled());
        BlockingSlice(self.memory.bytes.borrow()[range].into())
    }
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockingDisk;

/// Runs the operation at the first poll.
fn doing<T>(operation: impl FnOnce() -> io::Result<T>) -> impl Future<Output = io::Result<T>> {
    futures_util::future::lazy(|_| operation())
}

impl Disk for BlockingDisk {
    type Arena = BlockingArena;
    type File = BlockingFile;

    fn open(&self, path: &Path, mode: OpenMode) -> impl Future<Output = io::Result<BlockingFile>> + 'static {
        let path = path.to_owned();
        doing(move || {
            let write = mode != OpenMode::Read;
            // A pipe under a file's name would be waited for.
            if mode != OpenMode::Create && !path.metadata()?.is_file() {
                return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
            }
            let mut options = fs::OpenOptions::new();
            options.read(true).write(write).create_new(mode == OpenMode::Create).mode(FILE_MODE);
            let file = options.open(path)?;
            if write {
                file.lock()?;
            }
            Ok(BlockingFile(Rc::new(file)))
        })
    }

    fn list(&self, dir: &Path) -> impl Future<Output = io::Result<Vec<DirEntry>>> + 'static {
        let dir = dir.to_owned();
        doing(move || fs::read_dir(dir)?.filter_map(|entry| dir_entry(entry).transpose()).collect())
    }

    fn create_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let dir = dir.to_owned();
        doing(move || fs::create_dir(dir))
    }

    fn sync_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let dir = dir.to_owned();
        doing(move || fs::File::open(dir)?.sync_all())
    }

    fn rename(&self, from: &Path, to: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let (from, to) = (from.to_owned(), to.to_owned());
        doing(move || fs::rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let path = path.to_owned();
        doing(move || fs::remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let path = path.to_owned();
        doing(move || fs::remove_dir(path))
    }

    fn read_small(&self, path: &Path, bytes_max: usize) -> impl Future<Output = io::Result<Vec<u8>>> + 'static {
        let path = path.to_owned();
        doing(move || {
            let bytes = fs::metadata(&path)?.len();
            if bytes > bytes_max as u64 {
                return Err(io::Error::new(
                    ErrorKind::FileTooLarge,
                    format!("{bytes} bytes; at most {bytes_max} are read"),
                ));
            }
            fs::read(path)
        })
    }

    fn replace_small(&self, path: &Path, content: Vec<u8>) -> impl Future<Output = io::Result<()>> + 'static {
        let path = path.to_owned();
        doing(move || {
            let mut temporary = path.clone().into_os_string();
            temporary.push(".tmp");
            let written = write_new(Path::new(&temporary), &content).and_then(|()| fs::rename(&temporary, &path));
            if let Err(error) = written {
                // On a full disk what it holds is wanted for something else.
                let _ = fs::remove_file(&temporary);
                return Err(error);
            }
            fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
        })
    }
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// `None` for an entry that went away while the directory was listed.
fn dir_entry(entry: io::Result<fs::DirEntry>) -> io::Result<Option<DirEntry>> {
    let entry = entry?;
    let metadata = match entry.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        metadata => metadata?,
    };
    Ok(Some(DirEntry {
        name: entry.file_name().to_string_lossy().into_owned(),
        is_dir: metadata.is_dir(),
        bytes: metadata.len(),
        modified_ms: metadata.mtime() * 1000 + metadata.mtime_nsec() / 1_000_000,
    }))
}

/// An open file; the page cache serves it.
#[derive(Clone, Debug)]
pub struct BlockingFile(Rc<fs::File>);

impl File for BlockingFile {
    type Arena = BlockingArena;

    fn read(
        &self,
        chunk: &BlockingChunk,
        at: usize,
        bytes: usize,
        offset: u64,
    ) -> impl Future<Output = io::Result<usize>> + 'static {
        let (file, chunk) = (self.0.clone(), chunk.clone());
        doing(move || {
            let read = chunk.with_spare(at..at + bytes, |spare| read_full(&file, spare, offset))?;
            chunk.fill_to(at + read);
            Ok(read)
        })
    }

    fn write(
        &self,
        parts: Vec<BlockingSlice>,
        offset: u64,
        synchronous: bool,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let file = self.0.clone();
        doing(move || {
            let mut at = offset;
            for part in parts {
                file.write_all_at(&part, at)?;
                at += part.len() as u64;
            }
            if synchronous { file.sync_data() } else { Ok(()) }
        })
    }

    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + 'static {
        let file = self.0.clone();
        doing(move || file.sync_data())
    }

    fn allocate(&self, bytes: u64) -> impl Future<Output = io::Result<()>> + 'static {
        let file = self.0.clone();
        // Not reserved: whoever writes here can wait, and is told when there is no room.
        doing(move || if file.metadata()?.len() < bytes { file.set_len(bytes) } else { Ok(()) })
    }

    fn truncate(&self, bytes: u64) -> impl Future<Output = io::Result<()>> + 'static {
        let file = self.0.clone();
        doing(move || file.set_len(bytes))
    }

    fn links(&self) -> impl Future<Output = io::Result<u64>> + 'static {
        let file = self.0.clone();
        doing(move || Ok(file.metadata()?.nlink()))
    }

    fn bytes(&self) -> impl Future<Output = io::Result<u64>> + 'static {
        let file = self.0.clone();
        doing(move || Ok(file.metadata()?.len()))
    }
}

fn read_full(file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(bytes) => read += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
