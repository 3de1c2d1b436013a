//! Whether this machine lets a broker run, asked before anything is started: each answer is one line with the cause and
//! the remedy. Called by the main thread; may block.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use corelane_log::env::{Arena, BLOCK_BYTES, Chunk};
use io_uring::{IoUring, Probe, opcode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::arena::ShardArena;

/// The least memlock limit with which glommio starts at all, in bytes.
const MEMLOCK_BYTES_MIN: u64 = 512 << 10;
/// What one shard's rings and their buffers are charged against that limit, in bytes: about 360 KiB, and room for those of
/// a broker that has just ended, which the kernel gives back a little later. It counts all shards of a user together. The
/// arena is not in it: it is registered where there is room, and works without.
const SHARD_MEMLOCK_BYTES: u64 = 512 << 10;
/// The capability whose holder is not charged (capabilities(7)).
const CAP_IPC_LOCK: u32 = 14;
/// How whoever reads it raises the limit.
pub const MEMLOCK_REMEDY: &str =
    "raise the memlock limit (systemd: LimitMEMLOCK=infinity; a shell: ulimit -l unlimited)";
/// Descriptors that a broker wants at least.
const DESCRIPTORS_MIN: u64 = 4096;

/// Whether the kernel offers `io_uring` with the operations that the broker uses.
///
/// # Errors
/// One line with cause and remedy.
pub fn check_io_uring() -> Result<(), String> {
    let ring = IoUring::new(8).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => "io_uring is not in this kernel; Corelane needs Linux 6.1 or newer".to_owned(),
        Some(libc::EPERM) => "io_uring is forbidden here; set the sysctl kernel.io_uring_disabled to 0, and in a \
                              container use a seccomp profile that allows io_uring_setup, io_uring_enter and \
                              io_uring_register"
            .to_owned(),
        Some(libc::ENOMEM) => format!("io_uring gets no memory; {MEMLOCK_REMEDY}"),
        _ => format!("io_uring cannot be set up: {error}"),
    })?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| format!("io_uring cannot be probed: {error}"))?;
    let needed = [
        ("OPENAT", opcode::OpenAt::CODE),
        ("READ_FIXED", opcode::ReadFixed::CODE),
        ("WRITE_FIXED", opcode::WriteFixed::CODE),
        ("FSYNC", opcode::Fsync::CODE),
        ("FALLOCATE", opcode::Fallocate::CODE),
        ("RENAMEAT", opcode::RenameAt::CODE),
        ("UNLINKAT", opcode::UnlinkAt::CODE),
        ("MKDIRAT", opcode::MkDirAt::CODE),
    ];
    match needed.iter().find(|(_, code)| !probe.is_supported(*code)) {
        Some((name, _)) => Err(format!("this kernel's io_uring lacks {name}; Corelane needs Linux 6.1 or newer")),
        None => Ok(()),
    }
}

/// Whether the memlock limit lets so many shards start.
///
/// # Errors
/// One line with cause and remedy.
pub fn check_memlock(shards: usize) -> Result<(), String> {
    let needed = if is_charged_for_memory() { shards as u64 * SHARD_MEMLOCK_BYTES } else { 0 };
    let needed = needed.max(MEMLOCK_BYTES_MIN);
    match getrlimit(Resource::Memlock).current {
        Some(bytes) if bytes < needed => Err(format!(
            "the memlock limit is {} KiB and {} are needed for {shards} shards; {MEMLOCK_REMEDY}, or start with fewer \
             --shards",
            bytes >> 10,
            needed >> 10
        )),
        _ => Ok(()),
    }
}

/// Whether the memlock limit is for this process: it is not for one that may lock as it likes.
fn is_charged_for_memory() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    effective & (1 << CAP_IPC_LOCK) == 0
}

/// Raises the limit of open descriptors to what the system allows this process, and says so if that is little.
///
/// # Errors
/// One line with cause and remedy; the broker may start all the same.
pub fn raise_descriptor_limit() -> Result<u64, String> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    match current {
        Some(descriptors) if descriptors < DESCRIPTORS_MIN => Err(format!(
            "only {descriptors} files and connections may be open at a time; raise the limit (systemd: \
             LimitNOFILE=1048576; a shell: ulimit -n 1048576)"
        )),
        current => Ok(current.unwrap_or(u64::MAX)),
    }
}

/// How many descriptors this process may open now.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether `dir`, which is made if absent, can be written with direct I/O in the log's blocks. A full disk is well: a broker
/// that runs makes room, by retention, by a trim, by the deletion of a topic.
///
/// # Errors
/// One line with cause and remedy.
pub fn check_data_dir(dir: &Path) -> Result<(), String> {
    let shown = dir.display();
    let explain = |what: &str, error: &io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let user = rustix::process::geteuid().as_raw();
            format!("{what} {shown} is not permitted to user {user}; give the directory to that user (chown)")
        }
        io::ErrorKind::ReadOnlyFilesystem => format!(
            "{shown} lies on a file system that is mounted read-only, or that systemd shows so: the unit's ReadWritePaths= \
             names what the broker may write"
        ),
        io::ErrorKind::StorageFull => format!("{shown} lies on a file system that is full, and is new; make room"),
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => format!("{shown} is not a directory"),
        _ => format!("{what} {shown} failed: {error}"),
    };
    fs::create_dir_all(dir).map_err(|error| explain("making", &error))?;
    let probe = dir.join(format!(".probe-{}", std::process::id()));
    let outcome = write_direct(&probe);
    let removed = fs::remove_file(&probe);
    match outcome {
        Ok(()) => removed.map_err(|error| explain("removing a file in", &error)),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            tracing::warn!("{shown} lies on a file system that is full: publishing waits until there is room");
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(format!(
            "the file system of {shown} does not offer direct I/O in blocks of {BLOCK_BYTES} bytes; put the data \
             directory on ext4 or XFS"
        )),
        Err(error) => Err(explain("writing in", &error)),
    }
}

/// Whether `dir` lies in memory, which the machine forgets when it stops.
pub fn is_in_memory(dir: &Path) -> bool {
    // statfs(2): the magic numbers of tmpfs and ramfs.
    const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];
    rustix::fs::statfs(dir).is_ok_and(|found| IN_MEMORY.contains(&found.f_type))
}

fn write_direct(path: &Path) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(libc::O_DIRECT).open(path)?;
    let chunk = ShardArena::new(BLOCK_BYTES)?.allocate(BLOCK_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    chunk.fill_to(BLOCK_BYTES);
    file.write_all(&chunk.slice(0..BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use corelane_testkit::TestDir;

    use super::*;

    #[test]
    fn this_machine_passes_as_far_as_tests_need_it() {
        assert_eq!(check_io_uring(), Ok(()));
        assert_eq!(check_memlock(1), Ok(()));
        let dir = TestDir::new("checks");
        assert_eq!(check_data_dir(&dir.join("new/deep")), Ok(()));
        assert_eq!(fs::read_dir(dir.join("new/deep")).expect("made").count(), 0, "the probe stayed behind");
    }

    #[test]
    fn a_data_directory_that_cannot_be_is_explained() {
        let dir = TestDir::new("checks");
        fs::write(dir.join("file"), b"").expect("written");
        let line = check_data_dir(&dir.join("file")).expect_err("a file is no directory");
        assert!(line.contains("is not a directory") && !line.contains('\n'), "{line}");
    }
}
