//! The simulated disk: operations with a drawn latency over `volume` and `names`, the faults that a disk commits, and the
//! assertions on how direct I/O may be used. Completion order is the order of drawn end times, so it is any order.

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::arena::SimArena;
use super::executor::World;
use super::file::SimFile;
use super::flight::{Completion, Effect, Flight, Write};
use super::names::{Names, Node};
use super::volume::FileNode;
use crate::env::{BLOCK_BYTES, DirEntry, Disk, OpenMode};

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;

/// What the disk does wrong while it runs. What it does at a crash needs no setting.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// How often a write ends with EIO; any of its blocks land.
    pub write_eio: f64,
    /// How often a flush of a file ends with EIO.
    pub flush_eio: f64,
    /// How often a read ends with EIO, having scribbled over the memory given.
    pub read_eio: f64,
    /// How often a change of names, its flush, or an allocation ends with EIO, undone.
    pub names_eio: f64,
    /// After a failed flush the cache holds clean-looking blocks that no later flush writes.
    pub gate: bool,
    /// How often an operation takes a thousand times as long.
    pub slow: f64,
    /// Space for files, in bytes.
    pub capacity_bytes: u64,
    /// No directory has room for another name: a rename ends with ENOSPC.
    pub names_full: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            write_eio: 0.0,
            flush_eio: 0.0,
            read_eio: 0.0,
            names_eio: 0.0,
            gate: false,
            slow: 0.0,
            capacity_bytes: u64::MAX,
            names_full: false,
        }
    }
}

pub(super) fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

pub(super) fn no_space() -> io::Error {
    io::Error::from_raw_os_error(28)
}

pub(super) struct Inner {
    pub(super) world: Rc<World>,
    pub(super) names: RefCell<Names>,
    pub(super) files: RefCell<BTreeMap<u64, FileNode>>,
    pub(super) faults: Cell<Faults>,
    pub(super) in_flight: RefCell<BTreeMap<u64, Flight>>,
    pub(super) lock_waiters: RefCell<Vec<Waker>>,
    pub(super) replacing: RefCell<BTreeSet<PathBuf>>,
    pub(super) life: Cell<u64>,
    /// Whether an operation begins when it is called or when its future is first polled: callers may rely on neither.
    pub(super) eager: bool,
    /// Whether directory operations survive a cut in order.
    pub(super) journal: bool,
    pub(super) latency_us_max: u64,
}

/// The simulated disk. Clones share everything; it outlives the lives that use it.
#[derive(Clone)]
pub struct SimDisk {
    pub(super) inner: Rc<Inner>,
}

impl SimDisk {
    pub(super) fn new(world: Rc<World>) -> Self {
        let inner = Inner {
            names: RefCell::new(Names::new()),
            files: RefCell::default(),
            faults: Cell::new(Faults::default()),
            in_flight: RefCell::default(),
            lock_waiters: RefCell::default(),
            replacing: RefCell::default(),
            life: Cell::new(0),
            eager: world.chance(0.5),
            journal: world.chance(0.3),
            latency_us_max: world.pick(&[5, 200, 5_000]),
            world,
        };
        Self { inner: Rc::new(inner) }
    }

    /// The faults in force.
    pub fn faults(&self) -> Faults {
        self.inner.faults.get()
    }

    /// Sets the faults for operations that begin from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.inner.faults.set(faults);
    }

    /// What files take up, in bytes: those with a name, and those without one that are still open.
    pub fn bytes_used(&self) -> u64 {
        let named: BTreeSet<u64> = self.inner.names.borrow().files().into_iter().map(|(_, id)| id).collect();
        let files = self.inner.files.borrow();
        let counted = files.iter().filter(|(id, file)| named.contains(id) || file.handles > 0);
        counted.map(|(_, file)| file.size().next_multiple_of(BLOCK)).sum()
    }

    /// Blocks that a power cut could take or tear now: written but not flushed, or being written.
    pub fn blocks_at_risk(&self) -> usize {
        let flights = self.in_flight();
        let in_flight = flights.values().map(|flight| match flight {
            Flight::Write(write) => write.blocks.len(),
            Flight::Change(_) | Flight::Read(_) => 0,
        });
        let files = self.inner.files.borrow();
        in_flight.sum::<usize>() + files.values().map(FileNode::blocks_pending).sum::<usize>()
    }

    /// The paths of all files, sorted.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.inner.names.borrow().files().into_iter().map(|(path, _)| path).collect()
    }

    /// Whether a file has a name.
    pub(super) fn has_name(&self, id: u64) -> bool {
        self.inner.names.borrow().files().iter().any(|(_, file)| *file == id)
    }

    /// All bytes of a file as a read would return them now, or `None` when there is no such file.
    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        let id = self.inner.names.borrow().file(path).ok()?;
        Some(self.inner.files.borrow()[&id].content())
    }

    /// Changes stored bytes as rot does. Returns the offsets that really changed.
    pub fn hurt(&self, path: &Path, range: Range<u64>, byte: impl Fn(u8) -> u8) -> Vec<u64> {
        let id = self.inner.names.borrow().file(path).expect("the file to hurt exists");
        let mut files = self.inner.files.borrow_mut();
        let file = files.get_mut(&id).expect("a named file exists");
        (range.start..range.end.min(file.size())).filter(|offset| file.hurt(*offset, &byte)).collect()
    }

    /// Cuts a file short as somebody beside the broker may, whoever has it locked.
    pub fn shorten(&self, path: &Path, bytes: u64) {
        let id = self.inner.names.borrow().file(path).expect("the file to shorten exists");
        let sequence = self.inner.world.next();
        self.file(id, |file| file.set_size(sequence, bytes));
    }

    /// From now on reads of the block with this offset end with EIO.
    pub fn make_unreadable(&self, path: &Path, offset: u64) {
        let id = self.inner.names.borrow().file(path).expect("the file to hurt exists");
        self.inner.files.borrow_mut().get_mut(&id).expect("a named file exists").unreadable.insert(offset / BLOCK);
    }

    pub(super) fn world(&self) -> &Rc<World> {
        &self.inner.world
    }

    pub(super) fn life(&self) -> u64 {
        self.inner.life.get()
    }

    pub(super) fn in_flight(&self) -> Ref<'_, BTreeMap<u64, Flight>> {
        self.inner.in_flight.borrow()
    }

    // Operations -----------------------------------------------------------------------------------------------------

    pub(super) fn file<R>(&self, id: u64, f: impl FnOnce(&mut FileNode) -> R) -> R {
        f(self.inner.files.borrow_mut().get_mut(&id).expect("files are never forgotten"))
    }

    fn latency(&self) -> Duration {
        let world = &self.inner.world;
        let us = world.random() % self.inner.latency_us_max + 1;
        Duration::from_micros(if world.chance(self.faults().slow) { us * 1_000 } else { us })
    }

    /// Puts an operation in flight; it ends after a drawn time.
    pub(super) fn launch(&self, flight: Flight) {
        let id = self.inner.world.next();
        self.inner.in_flight.borrow_mut().insert(id, flight);
        let disk = self.clone();
        self.inner.world.call_after(self.latency(), move || {
            let flight = disk.inner.in_flight.borrow_mut().remove(&id);
            match flight {
                Some(Flight::Write(write)) => disk.end_write(&write),
                Some(Flight::Change(effect) | Flight::Read(effect)) => effect(&disk),
                None => {} // A crash came first.
            }
        });
    }

    /// A change of the disk that takes effect at its end, or fails so often.
    pub(super) fn change<T: 'static>(
        &self,
        eio_rate: f64,
        effect: impl FnOnce(&Self) -> io::Result<T> + 'static,
    ) -> Completion<T> {
        let fails = self.inner.world.chance(eio_rate);
        if fails {
            self.inner.world.trace(|| "the next operation fails".to_owned());
        }
        let completion = Completion::new();
        let result = completion.clone();
        let effect: Effect = Box::new(move |disk| result.finish(if fails { Err(eio()) } else { effect(disk) }));
        self.launch(Flight::Change(effect));
        completion
    }

    /// Begins an operation at the call or at the first poll, as the seed has it.
    pub(super) fn begin<T: 'static>(
        &self,
        start: impl FnOnce(&Self) -> Completion<T> + 'static,
    ) -> impl Future<Output = io::Result<T>> + 'static {
        let disk = self.clone();
        let (begun, start) = if disk.inner.eager { (Some(start(&disk)), None) } else { (None, Some(start)) };
        async move {
            match (begun, start) {
                (Some(completion), _) => completion.await,
                (None, Some(start)) => start(&disk).await,
                (None, None) => unreachable!("one of the two was set above"),
            }
        }
    }

    fn end_write(&self, write: &Write) {
        let world = &self.inner.world;
        let id = write.handle.file;
        if write.orphan {
            world.trace(|| format!("late landing in file {id} blocks {:?}", write.block_range()));
            self.land_some(write, if world.chance(0.5) { 1.0 } else { 0.6 });
            let others = self.inner.in_flight.borrow().values().any(|flight| match flight {
                Flight::Write(other) => other.orphan && other.handle.file == id,
                _ => false,
            });
            if !others {
                self.unlock(id);
            }
            return;
        }
        if write.fails {
            self.land_some(write, 0.5);
            write.completion.finish(Err(eio()));
            return;
        }
        let sequence = world.next();
        self.file(id, |file| {
            for (index, content) in write.block_range().zip(&write.blocks) {
                if write.synchronous {
                    file.land_synchronous(index, content.clone());
                } else {
                    file.land(sequence, index, content.clone());
                }
            }
        });
        world.trace(|| format!("written file {id} blocks {:?}", write.block_range()));
        write.completion.finish(Ok(()));
    }

    pub(super) fn unlock(&self, id: u64) {
        self.file(id, |file| file.locked = false);
        for waker in self.inner.lock_waiters.take() {
            waker.wake();
        }
    }

    /// The file at `path` opened, or `None` while another descriptor holds the lock.
    fn try_open(&self, path: &Path, mode: OpenMode) -> io::Result<Option<SimFile>> {
        let id = if mode == OpenMode::Create {
            if self.inner.world.chance(0.3) && self.bytes_used() >= self.faults().capacity_bytes {
                return Err(no_space());
            }
            self.new_file(path)?
        } else {
            self.inner.names.borrow().file(path)?
        };
        let opened = self.file(id, |file| {
            let waits = mode != OpenMode::Read && file.locked;
            if !waits {
                file.locked |= mode != OpenMode::Read;
                file.handles += 1;
            }
            !waits
        });
        Ok(opened.then(|| SimFile::new(self, id, mode != OpenMode::Read)))
    }

    fn new_file(&self, path: &Path) -> io::Result<u64> {
        let id = self.inner.world.next();
        self.inner.names.borrow_mut().add(id, path, Node::File(id))?;
        let mut file = FileNode::default();
        file.modified_ms = self.inner.world.wall_ms();
        self.inner.files.borrow_mut().insert(id, file);
        Ok(id)
    }

    /// Completes when the file's lock may be free.
    async fn unlocked(&self, path: &Path) {
        poll_fn(|cx| {
            let id = self.inner.names.borrow().file(path);
            if !id.is_ok_and(|id| self.file(id, |file| file.locked)) {
                return Poll::Ready(());
            }
            self.inner.lock_waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Checks that `bytes` more fit; when not, how many blocks do.
    pub(super) fn check_room(&self, bytes: u64) -> Result<(), u64> {
        let free = self.faults().capacity_bytes.saturating_sub(self.bytes_used());
        if bytes <= free { Ok(()) } else { Err(free / BLOCK) }
    }

    fn write_temporary(&self, path: &Path, content: &[u8]) -> io::Result<u64> {
        if self.check_room((content.len() as u64).next_multiple_of(BLOCK)).is_err() {
            return Err(no_space());
        }
        let sequence = self.inner.world.next();
        if self.inner.names.borrow().file(path).is_ok() {
            self.inner.names.borrow_mut().remove_file(sequence, path)?;
        }
        let id = self.new_file(path)?;
        self.file(id, |file| file.write_small(sequence, content));
        Ok(id)
    }
}

/// Marks a path as being replaced; two replacements at once would share a temporary file.
struct Replacing {
    disk: SimDisk,
    path: PathBuf,
}

impl Replacing {
    fn new(disk: &SimDisk, path: &Path) -> Self {
        let free = disk.inner.replacing.borrow_mut().insert(path.to_owned());
        assert!(free, "{} is replaced twice at the same time", path.display());
        Self { disk: disk.clone(), path: path.to_owned() }
    }
}

impl Drop for Replacing {
    fn drop(&mut self) {
        self.disk.inner.replacing.borrow_mut().remove(&self.path);
    }
}

impl Disk for SimDisk {
    type Arena = SimArena;
    type File = SimFile;

    fn open(&self, path: &Path, mode: OpenMode) -> impl Future<Output = io::Result<SimFile>> + 'static {
        let (disk, path) = (self.clone(), path.to_owned());
        async move {
            loop {
                let at = path.clone();
                let rate = disk.faults().names_eio;
                disk.inner.world.trace(|| format!("open {} {mode:?}", path.display()));
                let opened = disk.change(rate, move |disk| disk.try_open(&at, mode)).await?;
                if let Some(file) = opened {
                    return Ok(file);
                }
                disk.unlocked(&path).await;
            }
        }
    }

    fn list(&self, dir: &Path) -> impl Future<Output = io::Result<Vec<DirEntry>>> + 'static {
        let dir = dir.to_owned();
        self.begin(move |disk| {
            disk.change(disk.faults().read_eio, move |disk| {
                let mut entries = Vec::new();
                for (name, node) in disk.inner.names.borrow().list(&dir)? {
                    entries.push(match node {
                        Node::Dir(_) => DirEntry { name, is_dir: true, bytes: BLOCK, modified_ms: 0 },
                        Node::File(id) => disk.file(id, |file| DirEntry {
                            name,
                            is_dir: false,
                            bytes: file.size(),
                            modified_ms: file.modified_ms,
                        }),
                    });
                }
                disk.inner.world.shuffle(&mut entries);
                Ok(entries)
            })
        })
    }

    fn create_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let dir = dir.to_owned();
        self.begin(move |disk| {
            disk.inner.world.trace(|| format!("create directory {}", dir.display()));
            disk.change(disk.faults().names_eio, move |disk| {
                let id = disk.inner.world.next();
                disk.inner.names.borrow_mut().add(id, &dir, Node::Dir(id))
            })
        })
    }

    fn sync_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let dir = dir.to_owned();
        self.begin(move |disk| {
            let begun = disk.inner.world.next();
            disk.inner.world.trace(|| format!("flush directory {}", dir.display()));
            disk.change(disk.faults().names_eio, move |disk| disk.inner.names.borrow_mut().flush(&dir, begun))
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.begin(move |disk| {
            disk.inner.world.trace(|| format!("rename {} to {}", from.display(), to.display()));
            let is_full = disk.faults().names_full;
            disk.change(disk.faults().names_eio, move |disk| {
                if is_full {
                    return Err(no_space());
                }
                disk.inner.names.borrow_mut().rename(disk.inner.world.next(), &from, &to)
            })
        })
    }

    fn remove_file(&self, path: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let path = path.to_owned();
        self.begin(move |disk| {
            disk.inner.world.trace(|| format!("remove {}", path.display()));
            disk.change(disk.faults().names_eio, move |disk| {
                disk.inner.names.borrow_mut().remove_file(disk.inner.world.next(), &path)
            })
        })
    }

    fn remove_dir(&self, path: &Path) -> impl Future<Output = io::Result<()>> + 'static {
        let path = path.to_owned();
        self.begin(move |disk| {
            disk.inner.world.trace(|| format!("remove directory {}", path.display()));
            disk.change(disk.faults().names_eio, move |disk| {
                disk.inner.names.borrow_mut().remove_dir(disk.inner.world.next(), &path)
            })
        })
    }

    fn read_small(&self, path: &Path, bytes_max: usize) -> impl Future<Output = io::Result<Vec<u8>>> + 'static {
        let path = path.to_owned();
        self.begin(move |disk| {
            disk.change(disk.faults().read_eio, move |disk| {
                let id = disk.inner.names.borrow().file(&path)?;
                disk.file(id, |file| {
                    if file.size() > bytes_max as u64 {
                        return Err(io::ErrorKind::FileTooLarge.into());
                    }
                    if file.unreadable.is_empty() { Ok(file.content()) } else { Err(eio()) }
                })
            })
        })
    }

    fn replace_small(&self, path: &Path, content: Vec<u8>) -> impl Future<Output = io::Result<()>> + 'static {
        let (disk, path) = (self.clone(), path.to_owned());
        async move {
            let _replacing = Replacing::new(&disk, &path);
            let mut temporary = path.clone().into_os_string();
            temporary.push(".tmp");
            let temporary = PathBuf::from(temporary);
            let faults = disk.faults();
            let (at, bytes) = (temporary.clone(), content.len());
            disk.inner.world.trace(|| format!("replace {} by {bytes} bytes", path.display()));
            let id = disk.change(faults.write_eio, move |disk| disk.write_temporary(&at, &content)).await?;
            let begun = disk.inner.world.next();
            let flush = move |disk: &Self| {
                disk.file(id, |file| file.flush(begun));
                Ok(())
            };
            disk.change(faults.flush_eio, flush).await?;
            disk.rename(&temporary, &path).await?;
            disk.sync_dir(path.parent().unwrap_or(Path::new("/"))).await
        }
    }
}
