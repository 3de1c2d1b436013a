//! A [`Medium`] as a file that the kernel can make a block device of: the smallest FUSE server, whose file system is that
//! one file. Requests are answered one after the other by a thread of its own; a slow flush holds the later ones up, as on
//! a disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::medium::Medium;

/// The protocol's version that is spoken here, and what it offers: larger writes than a page.
const VERSION: (u32, u32) = (7, 31);
const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const MAX_PAGES: u32 = 1 << 22;
const WRITE_BYTES_MAX: u32 = 128 << 10;
/// Requests go to the server, and nothing stays in the kernel's page cache.
const DIRECT_IO: u32 = 1;
const IN_HEADER_BYTES: usize = 40;

mod opcode {
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// A served file; unmounted when dropped.
#[derive(Debug)]
pub(super) struct ServedFile {
    path: PathBuf,
    medium: Arc<Mutex<Medium>>,
}

impl ServedFile {
    /// Serves a file of `bytes` bytes at `path`, which is made.
    pub(super) fn serve(path: &Path, bytes: u64) -> Result<ServedFile, String> {
        let failed = |error: io::Error| format!("FUSE: {error}");
        File::create(path).map_err(failed)?;
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(failed)?;
        let options = format!("fd={},rootmode=100600,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options).expect("no NUL is in it");
        mount("corelane-test", path, "fuse", MountFlags::NOSUID | MountFlags::NODEV, &*options)
            .map_err(|error| failed(error.into()))?;
        let medium = Arc::<Mutex<Medium>>::default();
        let served = Arc::clone(&medium);
        std::thread::Builder::new()
            .name("disk".to_owned())
            .spawn(move || serve(&device, &served, bytes))
            .map_err(failed)?;
        Ok(ServedFile { path: path.to_owned(), medium })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn medium(&self) -> MutexGuard<'_, Medium> {
        self.medium.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ServedFile {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.path, UnmountFlags::DETACH) {
            eprintln!("unmounting {}: {error}", self.path.display());
        }
    }
}

/// Answers until the file is unmounted.
fn serve(device: &File, medium: &Mutex<Medium>, bytes: u64) {
    let mut request = vec![0; WRITE_BYTES_MAX as usize + (64 << 10)];
    loop {
        let length = match (&mut &*device).read(&mut request) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::NotFound) => continue,
            // Unmounted.
            Err(_) => return,
        };
        let Some((header, body)) = request[..length].split_at_checked(IN_HEADER_BYTES) else { return };
        let Some(answer) = answer(u32_at(header, 4), body, medium, bytes) else { continue };
        let (error, payload) = match answer {
            Ok(payload) => (0, payload),
            Err(error) => (-error, Vec::new()),
        };
        let mut reply = Vec::with_capacity(16 + payload.len());
        reply.extend((16 + payload.len() as u32).to_le_bytes());
        reply.extend(i32::to_le_bytes(error));
        reply.extend(&header[8..16]);
        reply.extend(payload);
        // Fails when whoever asked was interrupted, or the file unmounted: the next read tells.
        let _ = (&mut &*device).write(&reply);
    }
}

/// One request's answer, or the error's number; `None`: none is expected.
fn answer(operation: u32, body: &[u8], medium: &Mutex<Medium>, bytes: u64) -> Option<Result<Vec<u8>, i32>> {
    const EIO: i32 = 5;
    const ENOSYS: i32 = 38;
    let lock = || medium.lock().unwrap_or_else(PoisonError::into_inner);
    let done = match operation {
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => return None,
        opcode::INIT => Ok(init()),
        opcode::GETATTR | opcode::SETATTR => Ok(attributes(bytes)),
        opcode::OPEN => Ok([&[0; 8][..], &DIRECT_IO.to_le_bytes(), &[0; 4]].concat()),
        opcode::RELEASE | opcode::FLUSH => Ok(Vec::new()),
        opcode::READ => {
            let (offset, size) = (u64_at(body, 8), u64::from(u32_at(body, 16)));
            let mut out = vec![0; size.min(bytes.saturating_sub(offset)) as usize];
            let rate = lock().faults.read_bytes_a_second;
            let takes_s = rate.map_or(0.0, |rate| out.len() as f64 / f64::from(rate));
            std::thread::sleep(Duration::from_secs_f64(takes_s));
            lock().read(offset, &mut out).map(|()| out).map_err(|_| EIO)
        }
        opcode::WRITE => {
            let (offset, size) = (u64_at(body, 8), u32_at(body, 16));
            let written = lock().write(offset, &body[40..40 + size as usize]);
            written.map(|()| [size.to_le_bytes(), [0; 4]].concat()).map_err(|_| EIO)
        }
        opcode::FSYNC => {
            let delay = lock().faults.flush_delay;
            std::thread::sleep(delay);
            lock().flush().map(|()| Vec::new()).map_err(|_| EIO)
        }
        _ => Err(ENOSYS),
    };
    Some(done)
}

fn init() -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend([VERSION.0, VERSION.1, 0, ASYNC_READ | BIG_WRITES | MAX_PAGES].map(u32::to_le_bytes).concat());
    // Requests in the background, and when there are many of them.
    out.extend([64_u16, 48].map(u16::to_le_bytes).concat());
    // Times are in nanoseconds.
    out.extend([WRITE_BYTES_MAX, 1].map(u32::to_le_bytes).concat());
    out.extend(((WRITE_BYTES_MAX / 4096) as u16).to_le_bytes());
    out.resize(64, 0);
    out
}

fn attributes(bytes: u64) -> Vec<u8> {
    const REGULAR_FILE: u32 = 0o100_600;
    // Valid for good: nobody changes it behind the kernel's back.
    let mut out = [u64::from(u32::MAX), 0, 1, bytes, bytes / 512, 0, 0, 0].map(u64::to_le_bytes).concat();
    out.extend([0, 0, 0, REGULAR_FILE, 1, 0, 0, 0, 4096, 0].map(u32::to_le_bytes).concat());
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
