//! The registry's file, with room kept on the disk for what it has to write next: a hole would be found to have no room only
//! in the middle of a commit, and what makes room on a full disk, the deletion of a topic, must be written too. So the
//! file's blocks are allocated before it grows, and beyond its end as many again as it has: redb grows it by doubling.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::{Errno, retry_on_intr};

/// The least that is kept beyond the file's end, in bytes.
const RESERVE_BYTES_MIN: u64 = 256 << 10;

/// What is known of the room beyond the file's end. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Reserve {
    file: Arc<File>,
    is_low: Arc<AtomicBool>,
}

impl Reserve {
    /// Whether the room is not what it should be, after an attempt to make it so.
    pub(super) fn is_low(&self) -> bool {
        if self.is_low.load(Ordering::Relaxed) {
            self.replenish();
        }
        self.is_low.load(Ordering::Relaxed)
    }

    fn replenish(&self) {
        let kept = self.file.metadata().and_then(|metadata| {
            let bytes = metadata.len();
            self.allocate(bytes + bytes.max(RESERVE_BYTES_MIN))
        });
        let was_low = self.is_low.swap(kept.is_err(), Ordering::Relaxed);
        match kept {
            Err(error) if !was_low => {
                tracing::warn!(%error, "no room beside the registry's file: it takes what makes room and nothing new");
            }
            Ok(()) if was_low => tracing::info!("there is room beside the registry's file again"),
            _ => {}
        }
    }

    /// Allocates the file's blocks up to `end`, without changing its length.
    fn allocate(&self, end: u64) -> io::Result<()> {
        match retry_on_intr(|| fallocate(&*self.file, FallocateFlags::KEEP_SIZE, 0, end)) {
            // A file system that cannot promise room finds out when it writes.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            allocated => Ok(allocated?),
        }
    }
}

/// The file as redb sees it.
#[derive(Debug)]
pub(super) struct ReservedFile {
    inner: FileBackend,
    reserve: Reserve,
}

impl ReservedFile {
    /// Opens the file, or makes it. What is read of it from now on the disk has for certain: after a failed write the page
    /// cache may tell of bytes that are not there, and the disk's own cache of bytes that it may yet lose.
    pub(super) fn open(path: &Path) -> Result<(Self, Reserve), redb::Error> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.sync_data()?;
        // Advice: a file system that does not take it loses nothing by that.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        let reserve = Reserve { file: Arc::new(file.try_clone()?), is_low: Arc::default() };
        reserve.replenish();
        Ok((Self { inner: FileBackend::new(file)?, reserve: reserve.clone() }, reserve))
    }
}

impl StorageBackend for ReservedFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.reserve.allocate(bytes)?;
        self.inner.set_len(bytes)?;
        self.reserve.replenish();
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
