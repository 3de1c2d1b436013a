//! The operations of the disk on the ring: what each asks of the kernel and what it keeps alive meanwhile.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use corelane_log::env::BLOCK_BYTES;
use io_uring::squeue::{self, Entry};
use io_uring::{opcode, types};

use super::arena::{ShardSlice, SpareGrant};
use super::ring::{Operation, Ring, Step, WeakRing, is_transient, once};

/// The working directory as the directory that paths are relative to.
const HERE: types::Fd = types::Fd(libc::AT_FDCWD);

/// An open descriptor. The last owner to go has it closed by the ring.
pub(super) struct Descriptor {
    descriptor: Option<OwnedFd>,
    ring: WeakRing,
}

impl Descriptor {
    pub(super) fn new(descriptor: OwnedFd, ring: WeakRing) -> Self {
        Self { descriptor: Some(descriptor), ring }
    }

    pub(super) fn get(&self) -> &OwnedFd {
        self.descriptor.as_ref().expect("taken only when dropped")
    }

    pub(super) fn raw(&self) -> types::Fd {
        types::Fd(self.get().as_raw_fd())
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            self.ring.close(descriptor);
        }
    }
}

/// Opens a file or a directory.
pub(super) struct Open {
    pub(super) path: CString,
    pub(super) flags: i32,
    pub(super) mode: u32,
    /// The descriptor, until the future takes it: closed here if nobody does.
    pub(super) opened: Option<OwnedFd>,
}

impl Operation for Open {
    fn entry(&mut self) -> Entry {
        opcode::OpenAt::new(HERE, self.path.as_ptr()).flags(self.flags).mode(self.mode).build()
    }

    fn complete(&mut self, result: i32) -> Step {
        if let Ok(raw) = RawFd::try_from(result)
            && raw >= 0
        {
            use std::os::fd::FromRawFd;
            // SAFETY: the kernel has just opened this descriptor for this operation; nobody else knows it.
            self.opened = Some(unsafe { OwnedFd::from_raw_fd(raw) });
        }
        once(result)
    }
}

/// Reads into granted spare bytes.
pub(super) struct Read {
    file: Rc<Descriptor>,
    grant: Option<SpareGrant>,
    registered: Option<u16>,
    offset: u64,
    done: usize,
    flags: squeue::Flags,
}

impl Read {
    pub(super) fn new(ring: &Ring, file: Rc<Descriptor>, grant: SpareGrant, offset: u64) -> Self {
        let registered = ring.registered_index(grant.pointer(), grant.bytes());
        Self { file, grant: Some(grant), registered, offset, done: 0, flags: squeue::Flags::empty() }
    }
}

impl Operation for Read {
    fn entry(&mut self) -> Entry {
        let grant = self.grant.as_ref().expect("held until the last completion");
        let (rest, offset) = ((grant.bytes() - self.done) as u32, self.offset + self.done as u64);
        // The grant keeps these bytes for the kernel alone, and `done` never passes its end.
        let pointer = grant.pointer().wrapping_add(self.done);
        match self.registered {
            Some(index) => opcode::ReadFixed::new(self.file.raw(), pointer, rest, index).offset(offset).build(),
            None => opcode::Read::new(self.file.raw(), pointer, rest).offset(offset).build(),
        }
        .flags(self.flags)
    }

    fn complete(&mut self, result: i32) -> Step {
        if is_transient(result) {
            self.flags = squeue::Flags::ASYNC;
            return Step::Again;
        }
        let wanted = self.grant.as_ref().map_or(0, SpareGrant::bytes);
        self.done += usize::try_from(result).unwrap_or(0);
        // A direct read ends early at the end of the file, inside a block or at one's end; only the second kind leaves
        // open whether there is more.
        if result > 0 && self.done < wanted && self.done.is_multiple_of(BLOCK_BYTES) {
            return Step::Again;
        }
        let grant = self.grant.take().expect("held until the last completion");
        if result < 0 {
            drop(grant);
            return once(result);
        }
        grant.finish(self.done);
        Step::Done(Ok(self.done as u32))
    }
}

/// Writes slices one behind the other, whole.
pub(super) struct Write {
    file: Rc<Descriptor>,
    parts: Vec<ShardSlice>,
    vectors: Vec<libc::iovec>,
    registered: Option<u16>,
    offset: u64,
    synchronous: bool,
    left: usize,
    flags: squeue::Flags,
}

impl Write {
    pub(super) fn new(
        ring: &Ring,
        file: Rc<Descriptor>,
        parts: Vec<ShardSlice>,
        offset: u64,
        synchronous: bool,
    ) -> Self {
        let left = parts.iter().map(|part| part.len()).sum();
        let registered = match parts.as_slice() {
            [only] => ring.registered_index(only.as_ptr(), only.len()),
            _ => None,
        };
        Self { file, parts, vectors: Vec::new(), registered, offset, synchronous, left, flags: squeue::Flags::empty() }
    }

    /// Skips what has been written.
    fn advance(&mut self, bytes: usize) {
        self.left -= bytes;
        self.offset += bytes as u64;
        let mut skip = bytes;
        self.parts.retain_mut(|part| {
            let taken = skip.min(part.len());
            skip -= taken;
            *part = part.part(taken..part.len());
            !part.is_empty()
        });
    }
}

impl Operation for Write {
    fn entry(&mut self) -> Entry {
        let rw_flags = if self.synchronous { libc::RWF_DSYNC } else { 0 };
        match (self.registered, self.parts.as_slice()) {
            (Some(index), [only]) => opcode::WriteFixed::new(self.file.raw(), only.as_ptr(), only.len() as u32, index)
                .offset(self.offset)
                .rw_flags(rw_flags)
                .build(),
            (_, parts) => {
                self.vectors = parts
                    .iter()
                    .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
                    .collect();
                opcode::Writev::new(self.file.raw(), self.vectors.as_ptr(), self.vectors.len() as u32)
                    .offset(self.offset)
                    .rw_flags(rw_flags)
                    .build()
            }
        }
        .flags(self.flags)
    }

    fn complete(&mut self, result: i32) -> Step {
        if is_transient(result) {
            self.flags = squeue::Flags::ASYNC;
            return Step::Again;
        }
        let Ok(written) = usize::try_from(result) else { return once(result) };
        self.advance(written);
        match self.left {
            0 => Step::Done(Ok(0)),
            // A short write ends on a block, or direct I/O could not go on behind it.
            _ if written > 0 && written.is_multiple_of(BLOCK_BYTES) => Step::Again,
            _ => Step::Done(Err(io::ErrorKind::WriteZero.into())),
        }
    }
}

/// What else is asked of an open file.
pub(super) enum FileCall {
    /// Flush data, and the metadata needed to read it.
    SyncData,
    /// Flush everything: for directories.
    Sync,
    /// Allocate up to so many bytes, size included.
    Allocate(u64),
    /// Set the size.
    Truncate(u64),
}

/// A call on an open file.
pub(super) struct OnFile {
    pub(super) file: Rc<Descriptor>,
    pub(super) call: FileCall,
}

impl Operation for OnFile {
    fn entry(&mut self) -> Entry {
        let file = self.file.raw();
        match self.call {
            FileCall::SyncData => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            FileCall::Sync => opcode::Fsync::new(file).build(),
            FileCall::Allocate(bytes) => opcode::Fallocate::new(file, bytes).build(),
            FileCall::Truncate(bytes) => opcode::Ftruncate::new(file, bytes).build(),
        }
    }

    fn complete(&mut self, result: i32) -> Step {
        if is_transient(result) { Step::Again } else { once(result) }
    }
}

/// A change to a directory.
pub(super) enum PathCall {
    /// Make a directory.
    CreateDir,
    /// Rename to this path.
    Rename(CString),
    /// Remove a file.
    RemoveFile,
    /// Remove an empty directory.
    RemoveDir,
}

/// A call on a path.
pub(super) struct OnPath {
    pub(super) path: CString,
    pub(super) call: PathCall,
}

impl Operation for OnPath {
    fn entry(&mut self) -> Entry {
        let path = self.path.as_ptr();
        match &self.call {
            PathCall::CreateDir => opcode::MkDirAt::new(HERE, path).mode(0o750).build(),
            PathCall::Rename(to) => opcode::RenameAt::new(HERE, path, HERE, to.as_ptr()).build(),
            PathCall::RemoveFile => opcode::UnlinkAt::new(HERE, path).build(),
            PathCall::RemoveDir => opcode::UnlinkAt::new(HERE, path).flags(libc::AT_REMOVEDIR).build(),
        }
    }

    fn complete(&mut self, result: i32) -> Step {
        if is_transient(result) { Step::Again } else { once(result) }
    }
}
