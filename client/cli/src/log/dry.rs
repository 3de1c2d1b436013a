//! A disk that reads what is there and writes nothing: recovery run on it says what it would do. It notes each change
//! that it was asked for. Recovery never reads back what it has written, so nothing of that is kept.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use corelane_log::blocking::{BlockingArena, BlockingChunk, BlockingDisk, BlockingEnv, BlockingFile, BlockingSlice};
use corelane_log::env::{Chunk, DirEntry, Disk, Env, File, OpenMode};

/// A change that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A new file.
    Make(PathBuf),
    /// A small file written whole: a copy of what is cut off.
    Keep(PathBuf, u64),
    /// A file that goes.
    Remove(PathBuf),
    /// Bytes of a file written.
    Write(PathBuf, u64),
}

/// The world with such a disk.
#[derive(Clone, Default)]
pub(super) struct DryEnv {
    real: BlockingEnv,
    disk: DryDisk,
}

impl DryEnv {
    /// What has been asked for, in order.
    pub(super) fn changes(&self) -> Vec<Change> {
        self.disk.changes.borrow().clone()
    }
}

impl Env for DryEnv {
    type Disk = DryDisk;
    type Arena = BlockingArena;

    fn disk(&self) -> &DryDisk {
        &self.disk
    }

    fn arena(&self) -> &BlockingArena {
        self.real.arena()
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic()
    }

    fn wall_ms(&self) -> i64 {
        self.real.wall_ms()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        self.real.sleep(duration)
    }

    fn random(&self) -> u64 {
        self.real.random()
    }
}

#[derive(Clone, Default)]
pub(super) struct DryDisk {
    real: BlockingDisk,
    changes: Rc<RefCell<Vec<Change>>>,
}

impl DryDisk {
    fn note(&self, change: Change) -> impl Future<Output = io::Result<()>> + 'static {
        self.changes.borrow_mut().push(change);
        std::future::ready(Ok(()))
    }
}

impl Disk for DryDisk {
    type Arena = BlockingArena;
    type File = DryFile;

    fn open(&self, path: &Path, mode: OpenMode) -> impl Future<Output = io::Result<DryFile>> + 'static {
        let (real, disk, path) = (self.real, self.clone(), path.to_owned());
        async move {
            let file = if mode == OpenMode::Create {
                disk.changes.borrow_mut().push(Change::Make(path.clone()));
                None
            } else {
                // Without the lock of a writer.
                Some(real.open(&path, OpenMode::Read).await?)
            };
            let bytes = match &file {
                Some(file) => file.bytes().await?,
                None => 0,
            };
            Ok(DryFile { file, path, bytes: Rc::new(Cell::new(bytes)), disk })
        }
    }

    fn list(&self, dir: &Path) -> impl Future<Output = io::Result<Vec<DirEntry>>> + 'static {
        self.real.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        self.note(Change::Make(dir.to_owned()))
    }

    fn sync_dir(&self, _dir: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        std::future::ready(Ok(()))
    }

    fn rename(&self, from: &Path, to: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        self.changes.borrow_mut().push(Change::Remove(from.to_owned()));
        self.note(Change::Make(to.to_owned()))
    }

    fn remove_file(&self, path: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        self.note(Change::Remove(path.to_owned()))
    }

    fn remove_dir(&self, path: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        self.note(Change::Remove(path.to_owned()))
    }

    fn read_small(&self, path: &Path, bytes_max: usize) -> impl Future<Output = io::Result<Vec<u8>>> + 'static {
        self.real.read_small(path, bytes_max)
    }

    fn replace_small(&self, path: &Path, content: Vec<u8>) -> impl Future<Output = io::Result<()>> + 'static {
        self.note(Change::Keep(path.to_owned(), content.len() as u64))
    }
}

/// A file as it is, with the size that it would have.
#[derive(Clone)]
pub(super) struct DryFile {
    /// `None`: it would be new.
    file: Option<BlockingFile>,
    path: PathBuf,
    bytes: Rc<Cell<u64>>,
    disk: DryDisk,
}

impl File for DryFile {
    type Arena = BlockingArena;

    fn read(
        &self,
        chunk: &BlockingChunk,
        at: usize,
        bytes: usize,
        offset: u64,
    ) -> impl Future<Output = io::Result<usize>> + 'static {
        let (file, chunk, size) = (self.file.clone(), chunk.clone(), self.bytes.get());
        async move {
            let read = match &file {
                Some(file) => file.read(&chunk, at, bytes, offset).await?,
                None => 0,
            };
            // What would have been allocated reads as zeros.
            let there = size.saturating_sub(offset).min(bytes as u64) as usize;
            if read < there {
                chunk.with_spare(at + read..at + there, |spare| spare.fill(0));
                chunk.fill_to(at + there);
            }
            Ok(read.max(there))
        }
    }

    fn write(
        &self,
        parts: Vec<BlockingSlice>,
        _offset: u64,
        _synchronous: bool,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        self.disk.note(Change::Write(self.path.clone(), bytes))
    }

    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + 'static {
        std::future::ready(Ok(()))
    }

    fn allocate(&self, bytes: u64) -> impl Future<Output = io::Result<()>> + 'static {
        self.bytes.set(self.bytes.get().max(bytes));
        std::future::ready(Ok(()))
    }

    fn truncate(&self, bytes: u64) -> impl Future<Output = io::Result<()>> + 'static {
        self.bytes.set(bytes);
        std::future::ready(Ok(()))
    }

    fn links(&self) -> impl Future<Output = io::Result<u64>> + 'static {
        std::future::ready(Ok(1))
    }

    fn bytes(&self) -> impl Future<Output = io::Result<u64>> + 'static {
        std::future::ready(Ok(self.bytes.get()))
    }
}

#[cfg(test)]
mod tests {
    use corelane_log::blocking::run;
    use corelane_log::env::Arena;

    use super::*;

    #[test]
    fn nothing_is_written_and_everything_asked_for_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 5000]).unwrap();
        let env = DryEnv::default();
        let disk = env.disk();
        run(async {
            let file = disk.open(&path, OpenMode::Write).await.unwrap();
            file.allocate(8192).await.unwrap();
            let chunk = env.arena().allocate(8192).unwrap();
            assert_eq!(file.read(&chunk, 0, 8192, 0).await.unwrap(), 8192);
            assert_eq!(&chunk.slice(4999..5001)[..], [7, 0]);
            file.write(vec![chunk.slice(0..4096)], 0, true).await.unwrap();
            disk.replace_small(&dir.path().join("copy"), vec![1; 9]).await.unwrap();
            disk.remove_file(&path).await.unwrap();
            let made = disk.open(&dir.path().join("new"), OpenMode::Create).await.unwrap();
            assert_eq!(made.bytes().await.unwrap(), 0);
        });
        assert_eq!(std::fs::read(&path).unwrap(), [7; 5000]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let expected = [
            Change::Write(path.clone(), 4096),
            Change::Keep(dir.path().join("copy"), 9),
            Change::Remove(path),
            Change::Make(dir.path().join("new")),
        ];
        assert_eq!(env.changes(), expected);
    }
}
