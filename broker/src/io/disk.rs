//! The log's disk on a shard's ring: direct I/O for segments, plain files for what is small. Small files and directory
//! listings, which the ring does not offer, go to the executor's helper thread. Nothing here blocks the shard.

use std::cell::OnceCell;
use std::ffi::CString;
use std::fs;
use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use corelane_log::env::{self, BLOCK_BYTES, DirEntry, OpenMode};
use rustix::fs::{FlockOperation, flock, fstat};

use super::arena::{ShardArena, ShardChunk, ShardSlice};
use super::operations::{Descriptor, FileCall, OnFile, OnPath, Open, PathCall, Read, Write};
use super::pipe::{Fill, PIPE_BYTES, Pipe, read_ahead};
use super::ring::Ring;
use crate::figures::{DiskTimes, Histogram};

/// How often a lock that is held is asked for again. A killed process gives its locks up when its last write has landed.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// A shard's disk. Clones share it.
#[derive(Clone)]
pub struct ShardDisk {
    ring: Ring,
    times: Rc<DiskTimes>,
}

impl ShardDisk {
    /// The disk behind this ring.
    pub fn new(ring: Ring) -> Self {
        Self { ring, times: Rc::default() }
    }

    /// How long the log's operations took.
    pub fn times(&self) -> &DiskTimes {
        &self.times
    }

    fn open_path(&self, path: &Path, flags: i32) -> impl Future<Output = io::Result<Rc<Descriptor>>> + 'static {
        let (ring, path) = (self.ring.clone(), c_path(path));
        async move {
            let open = Open { path: path?, flags: flags | libc::O_CLOEXEC, mode: 0o640, opened: None };
            let opened = ring.run(open, |_, open| open.opened.take()).await?;
            let opened = opened.ok_or(io::ErrorKind::NotFound)?;
            Ok(Rc::new(Descriptor::new(opened, ring.downgrade())))
        }
    }

    fn on_path(
        &self,
        path: &Path,
        call: impl FnOnce() -> io::Result<PathCall>,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let (ring, path, call) = (self.ring.clone(), c_path(path), call());
        async move {
            let operation = OnPath { path: path?, call: call? };
            ring.run(operation, |_, _| ()).await
        }
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Runs blocking code on the executor's helper thread.
async fn on_helper<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    glommio::executor().spawn_blocking(work).await
}

impl env::Disk for ShardDisk {
    type Arena = ShardArena;
    type File = ShardFile;

    fn open(&self, path: &Path, mode: OpenMode) -> impl Future<Output = io::Result<ShardFile>> + 'static {
        let flags = match mode {
            OpenMode::Read => libc::O_RDONLY,
            OpenMode::Write => libc::O_RDWR,
            OpenMode::Create => libc::O_RDWR | libc::O_CREAT | libc::O_EXCL,
        };
        let opening = self.open_path(path, flags | libc::O_DIRECT);
        let (ring, times) = (self.ring.clone(), Rc::clone(&self.times));
        async move {
            let file = opening.await?;
            if mode != OpenMode::Read {
                lock(&file).await?;
            }
            Ok(ShardFile { ring, times, file, cached: (mode == OpenMode::Read).then(Rc::default) })
        }
    }

    fn list(&self, dir: &Path) -> impl Future<Output = io::Result<Vec<DirEntry>>> + 'static {
        let dir = dir.to_owned();
        on_helper(move || list_dir(&dir))
    }

    fn create_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        self.on_path(dir, || Ok(PathCall::CreateDir))
    }

    fn sync_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let opening = self.open_path(dir, libc::O_RDONLY | libc::O_DIRECTORY);
        let ring = self.ring.clone();
        async move {
            let file = opening.await?;
            ring.run(OnFile { file, call: FileCall::Sync }, |_, _| ()).await
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        self.on_path(from, || Ok(PathCall::Rename(c_path(to)?)))
    }

    fn remove_file(&self, path: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        self.on_path(path, || Ok(PathCall::RemoveFile))
    }

    fn remove_dir(&self, path: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        self.on_path(path, || Ok(PathCall::RemoveDir))
    }

    fn read_small(&self, path: &Path, bytes_max: usize) -> impl Future<Output = io::Result<Vec<u8>>> + 'static {
        let path = path.to_owned();
        on_helper(move || read_small(&path, bytes_max))
    }

    fn replace_small(&self, path: &Path, content: Vec<u8>) -> impl Future<Output = io::Result<()>> + 'static {
        let path = path.to_owned();
        on_helper(move || replace_small(&path, &content))
    }
}

/// Takes the exclusive lock. The kernel's waiting call would block the shard, so it is tried again and again.
async fn lock(file: &Descriptor) -> io::Result<()> {
    loop {
        match flock(file.get(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => glommio::timer::sleep(LOCK_RETRY).await,
            Err(error) => return Err(error.into()),
        }
    }
}

fn list_dir(dir: &Path) -> io::Result<Vec<DirEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // Removed since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        entries.push(DirEntry {
            name: entry.file_name().to_string_lossy().into_owned(),
            is_dir: metadata.is_dir(),
            bytes: metadata.len(),
            modified_ms: modified.as_millis() as i64,
        });
    }
    Ok(entries)
}

fn read_small(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    fs::File::open(path)?.take(bytes_max as u64 + 1).read_to_end(&mut content)?;
    if content.len() > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(content)
}

fn replace_small(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = PathBuf::from(path);
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(".new");
    temporary.set_file_name(name);
    if let Err(error) = write_new(&temporary, content).and_then(|()| fs::rename(&temporary, path)) {
        // On a full disk what it holds is wanted for something else.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(dir)?.sync_all()
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// An open segment file. Clones share the descriptor.
#[derive(Clone)]
pub struct ShardFile {
    ring: Ring,
    times: Rc<DiskTimes>,
    file: Rc<Descriptor>,
    /// A second descriptor that reads through the page cache, once it was wanted. Only files that were opened for reading
    /// have one: nobody writes them any more.
    cached: Option<Rc<OnceCell<Rc<Descriptor>>>>,
}

impl ShardFile {
    /// Whether `fill` may be asked for.
    pub fn can_fill(&self) -> bool {
        self.cached.is_some()
    }

    /// Puts up to `bytes` bytes from `offset` on into the pipe, which must be empty, without copying them: some, if there
    /// are any.
    ///
    /// # Panics
    /// Unless `can_fill`.
    pub fn fill(&self, pipe: Pipe, offset: u64, bytes: usize) -> impl Future<Output = io::Result<Pipe>> + 'static {
        let file = self.clone();
        async move {
            let cached = file.cached.as_ref().expect("only a file that nobody writes has its pages lent");
            let cached = match cached.get() {
                Some(cached) => Rc::clone(cached),
                None => Rc::clone(cached.get_or_init({
                    let opened = file.open_again().await?;
                    || opened
                })),
            };
            // Twice as much again is read ahead as is wanted now: who reads much at a time gets the disk's whole rate.
            let bytes = bytes.min(PIPE_BYTES);
            read_ahead(&file.ring, &cached, offset + bytes as u64, 2 * bytes);
            let filling = file.ring.run(Fill::new(cached, offset, bytes, pipe), |_, fill| fill.take());
            timed(filling, &file.times, |times| &times.read).await
        }
    }

    /// The same file again, to be read through the page cache. It may have been unlinked meanwhile, so no path is asked.
    async fn open_again(&self) -> io::Result<Rc<Descriptor>> {
        let path = c_path(Path::new(&format!("/proc/self/fd/{}", self.file.get().as_raw_fd())))?;
        let open = Open { path, flags: libc::O_RDONLY | libc::O_CLOEXEC, mode: 0, opened: None };
        let opened = self.ring.run(open, |_, open| open.opened.take()).await?;
        Ok(Rc::new(Descriptor::new(opened.ok_or(io::ErrorKind::NotFound)?, self.ring.downgrade())))
    }

    fn call(&self, call: FileCall) -> impl Future<Output = io::Result<()>> + 'static {
        self.ring.run(OnFile { file: Rc::clone(&self.file), call }, |_, _| ())
    }
}

impl env::File for ShardFile {
    type Arena = ShardArena;

    fn read(
        &self,
        chunk: &ShardChunk,
        at: usize,
        bytes: usize,
        offset: u64,
    ) -> impl Future<Output = io::Result<usize>> + 'static {
        check_aligned(at as u64 | bytes as u64 | offset);
        let read = Read::new(&self.ring, Rc::clone(&self.file), chunk.grant(at..at + bytes), offset);
        let reading = self.ring.run(read, |bytes, _| bytes as usize);
        timed(reading, &self.times, |times| &times.read)
    }

    fn write(
        &self,
        parts: Vec<ShardSlice>,
        offset: u64,
        synchronous: bool,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        check_aligned(parts.iter().fold(offset, |bits, part| bits | part.len() as u64));
        let write = Write::new(&self.ring, Rc::clone(&self.file), parts, offset, synchronous);
        let kind: fn(&DiskTimes) -> &Histogram =
            if synchronous { |times| &times.synchronous_write } else { |times| &times.write };
        timed(self.ring.run(write, |_, _| ()), &self.times, kind)
    }

    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + 'static {
        timed(self.call(FileCall::SyncData), &self.times, |times| &times.flush)
    }

    fn allocate(&self, bytes: u64) -> impl Future<Output = io::Result<()>> + 'static {
        self.call(FileCall::Allocate(bytes))
    }

    fn truncate(&self, bytes: u64) -> impl Future<Output = io::Result<()>> + 'static {
        // Kernels before 6.9 have no such operation on the ring.
        let on_ring = self.call(FileCall::Truncate(bytes));
        let file = Rc::clone(&self.file);
        async move {
            match on_ring.await {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    let copy = file.get().try_clone()?;
                    on_helper(move || Ok(rustix::fs::ftruncate(&copy, bytes)?)).await
                }
                result => result,
            }
        }
    }

    fn links(&self) -> impl Future<Output = io::Result<u64>> + 'static {
        let links = fstat(self.file.get()).map(|stat| stat.st_nlink as _);
        async move { Ok(links?) }
    }

    fn bytes(&self) -> impl Future<Output = io::Result<u64>> + 'static {
        // The size of an open file is in memory: this call does not block.
        let size = fstat(self.file.get()).map(|stat| stat.st_size as u64);
        async move { Ok(size?) }
    }
}

/// The same operation, its time recorded.
fn timed<T>(
    operation: impl Future<Output = io::Result<T>> + 'static,
    times: &Rc<DiskTimes>,
    kind: impl Fn(&DiskTimes) -> &Histogram + 'static,
) -> impl Future<Output = io::Result<T>> + 'static {
    let (times, began) = (Rc::clone(times), Instant::now());
    async move {
        let outcome = operation.await;
        kind(&times).record(began.elapsed());
        outcome
    }
}

fn check_aligned(bits: u64) {
    assert!(bits.is_multiple_of(BLOCK_BYTES as u64), "an operation that is not aligned to blocks: {bits:#x}");
}

#[cfg(test)]
mod tests;
