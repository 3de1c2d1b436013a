//! Pipes that carry pages of files to sockets without a copy: the ring moves references to pages of the page cache into a
//! pipe, on a kernel worker, so that a cold page blocks nobody; the shard moves them on into a socket that never blocks.
//! Only for files that nobody writes any more: a page that a socket still holds must not change.

use std::cell::{Cell, RefCell};
use std::io::{self, Read as _};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::operations::Descriptor;
use super::ring::{Operation, Ring, Step, is_transient, once};

/// What a pipe holds at most, in bytes: what the kernel lets any user ask for, by default.
pub const PIPE_BYTES: usize = 1 << 20;
/// The number of cachestat(2), the same on every architecture; the `libc` crate does not have it yet.
const SYS_CACHESTAT: libc::c_long = 451;

/// A bounded set of pipes that are lent and come back empty. Clones share it.
#[derive(Clone)]
pub struct Pipes(Rc<Lender>);

struct Lender {
    idle: RefCell<Vec<Ends>>,
    lent: Cell<usize>,
    pipes_max: usize,
}

struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipes {
    /// At most so many pipes, made when they are first wanted.
    pub fn new(pipes_max: usize) -> Self {
        Self(Rc::new(Lender { idle: RefCell::default(), lent: Cell::new(0), pipes_max }))
    }

    /// An empty pipe. None when all are lent, or when the system gives no more: of pipes, of descriptors, of their size.
    pub fn lend(&self) -> Option<Pipe> {
        if self.0.lent.get() >= self.0.pipes_max {
            return None;
        }
        let idle = self.0.idle.borrow_mut().pop();
        let ends = idle.or_else(|| Ends::new().ok())?;
        self.0.lent.set(self.0.lent.get() + 1);
        Some(Pipe { ends: Some(ends), content: Content::Bytes(0), lender: Rc::clone(&self.0) })
    }
}

impl Ends {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        fcntl_setpipe_size(&write, PIPE_BYTES)?;
        Ok(Self { read, write })
    }
}

/// A pipe that is lent. It goes back when it is dropped empty, and is closed when it is not.
pub struct Pipe {
    ends: Option<Ends>,
    content: Content,
    lender: Rc<Lender>,
}

#[derive(Clone, Copy)]
enum Content {
    Bytes(usize),
    /// The kernel may have put something into it, or may yet.
    Unknown,
}

impl Pipe {
    fn ends(&self) -> &Ends {
        self.ends.as_ref().expect("taken only when dropped")
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        match self.content {
            Content::Bytes(bytes) => bytes,
            Content::Unknown => 0,
        }
    }

    /// Moves up to `bytes_max` bytes into a socket that does not block.
    pub(super) fn splice_to(&mut self, socket: impl AsFd, bytes_max: usize) -> io::Result<usize> {
        let wanted = self.bytes().min(bytes_max);
        let moved = splice(&self.ends().read, None, socket, None, wanted, SpliceFlags::NONBLOCK)?;
        self.content = Content::Bytes(self.bytes() - moved);
        Ok(moved)
    }

    /// Takes up to `into.len()` bytes out, by copying them.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let raw = self.ends().read.as_raw_fd();
        // SAFETY: the descriptor is open as long as `self`; the file made of it is never dropped, so it closes nothing.
        let mut reader = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(raw) });
        let wanted = self.bytes().min(into.len());
        let taken = reader.read(&mut into[..wanted])?;
        self.content = Content::Bytes(self.bytes() - taken);
        Ok(taken)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.lender.lent.set(self.lender.lent.get() - 1);
        if let (Content::Bytes(0), Some(ends)) = (self.content, self.ends.take()) {
            self.lender.idle.borrow_mut().push(ends);
        }
    }
}

/// Moves pages of a file into an empty pipe.
pub(super) struct Fill {
    file: Rc<Descriptor>,
    offset: u64,
    bytes: usize,
    /// The pipe, until the future takes it.
    pipe: Option<Pipe>,
}

impl Fill {
    pub(super) fn new(file: Rc<Descriptor>, offset: u64, bytes: usize, mut pipe: Pipe) -> Self {
        assert!(pipe.bytes() == 0, "a pipe that holds {} bytes is not filled", pipe.bytes());
        pipe.content = Content::Unknown;
        Self { file, offset, bytes: bytes.min(PIPE_BYTES), pipe: Some(pipe) }
    }

    pub(super) fn take(&mut self) -> Pipe {
        self.pipe.take().expect("taken once")
    }
}

impl Operation for Fill {
    fn entry(&mut self) -> Entry {
        let to = self.pipe.as_ref().expect("held until the last completion").ends().write.as_raw_fd();
        opcode::Splice::new(self.file.raw(), self.offset as i64, types::Fd(to), -1, self.bytes as u32).build()
    }

    fn complete(&mut self, result: i32) -> Step {
        if is_transient(result) {
            return Step::Again;
        }
        if let (Ok(moved), Some(pipe)) = (usize::try_from(result), &mut self.pipe) {
            pipe.content = Content::Bytes(moved);
        }
        once(result)
    }
}

/// Asks the kernel to read what a sequential reader will want next, unless it lies in the page cache already. By itself the
/// kernel reads so little ahead that a fast disk is mostly idle.
pub(super) fn read_ahead(ring: &Ring, file: &Rc<Descriptor>, offset: u64, bytes: usize) {
    if !is_resident(file, offset, bytes as u64) {
        ring.hint(ReadAhead { file: Rc::clone(file), offset, bytes });
    }
}

struct ReadAhead {
    file: Rc<Descriptor>,
    offset: u64,
    bytes: usize,
}

impl Operation for ReadAhead {
    fn entry(&mut self) -> Entry {
        // The kernel does this on a worker, always.
        opcode::Fadvise::new(self.file.raw(), self.bytes as libc::off_t, libc::POSIX_FADV_WILLNEED)
            .offset(self.offset)
            .build()
    }

    fn complete(&mut self, result: i32) -> Step {
        once(result)
    }
}

/// Whether all of a range lies in the page cache; no, where the kernel (before 6.5) does not tell.
fn is_resident(file: &Descriptor, offset: u64, bytes: u64) -> bool {
    #[repr(C)]
    struct Range {
        offset: u64,
        bytes: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Pages {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let range = Range { offset, bytes };
    let mut pages = Pages::default();
    // SAFETY: the two structures are those of cachestat(2), live until the call returns, and nobody else has them; the
    // descriptor is open as long as `file`. The call looks at what is in memory: it does not block.
    let told = unsafe { libc::syscall(SYS_CACHESTAT, file.get().as_raw_fd(), &raw const range, &raw mut pages, 0_u32) };
    let page_bytes = rustix::param::page_size() as u64;
    told == 0 && pages.cached >= (offset + bytes).div_ceil(page_bytes) - offset / page_bytes
}

#[cfg(test)]
mod tests;
