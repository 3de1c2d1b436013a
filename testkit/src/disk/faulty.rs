//! A block device with a file system on it that does what disks do to brokers: it fails, dawdles and loses power. Needs
//! root, FUSE and a loop device.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::medium::PowerCut;
use super::served_file::ServedFile;
use super::{COMMAND_DEADLINE, step};
use crate::command::run;
use crate::dir::TestDir;
use crate::wait::wait_until;

/// A freshly made ext4 file system on a disk in memory, mounted; gone when dropped. An error of its metadata makes it
/// read-only, as is usual.
#[derive(Debug)]
pub struct FaultyDisk {
    device: Option<String>,
    // Dropped in this order.
    file: ServedFile,
    directory: TestDir,
}

impl FaultyDisk {
    /// Makes one of `mebibytes`. The error says which step this machine does not allow, for [`skip`](crate::skip).
    pub fn mount(mebibytes: u64) -> Result<FaultyDisk, String> {
        let directory = TestDir::new("faulty");
        std::fs::create_dir(directory.join("mounted")).map_err(|error| error.to_string())?;
        let file = ServedFile::serve(&directory.join("image"), mebibytes << 20)?;
        let mut disk = FaultyDisk { device: None, file, directory };
        step(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-E", "nodiscard"]).arg(disk.file.path()))?;
        disk.attach()?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.directory.join("mounted")
    }

    /// From now on a write that carries `mark` fails.
    pub fn fail_writes(&self, mark: &[u8]) {
        self.file.medium().faults.writes = Some(mark.to_vec());
    }

    /// From now on a read fails that would find `mark`.
    pub fn fail_reads(&self, mark: &[u8]) {
        self.file.medium().faults.reads = Some(mark.to_vec());
    }

    /// From now on every flush fails.
    pub fn fail_flushes(&self) {
        self.file.medium().faults.flushes = true;
    }

    /// From now on a flush takes so long.
    pub fn delay_flushes(&self, delay: Duration) {
        self.file.medium().faults.flush_delay = delay;
    }

    /// From now on no more than so many bytes a second are read.
    pub fn slow_reads(&self, bytes_a_second: u32) {
        self.file.medium().faults.read_bytes_a_second = Some(bytes_a_second);
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.file.medium().faults = super::medium::Faults::default();
    }

    /// Requests that were failed so far.
    pub fn failures(&self) -> u64 {
        self.file.medium().failures
    }

    /// From now on nothing reaches the disk: the first half of a power cut. What ran on it is to be killed, then
    /// [`power_on`](FaultyDisk::power_on) does the rest.
    pub fn power_off(&self) {
        self.file.medium().faults.all = true;
    }

    /// Mounts the disk anew with what the power cut has left on it.
    pub fn power_on(&mut self, random: &mut fastrand::Rng) -> PowerCut {
        self.detach();
        let cut = self.file.medium().lose_power(random);
        self.attach().unwrap_or_else(|why| panic!("the disk cannot be mounted after a power cut: {why}"));
        cut
    }

    /// Unmounts the disk, which must be healed, has its file system repaired as an operator would, and mounts it again.
    pub fn repair(&mut self) {
        self.detach();
        let repaired = run(Command::new("e2fsck").arg("-fy").arg(self.file.path()), COMMAND_DEADLINE);
        assert!(repaired.status.code().is_some_and(|code| code < 4), "e2fsck: {}", repaired.stderr);
        self.attach().unwrap_or_else(|why| panic!("the repaired disk cannot be mounted: {why}"));
    }

    fn attach(&mut self) -> Result<(), String> {
        let attached = run(Command::new("losetup").args(["--find", "--show"]).arg(self.file.path()), COMMAND_DEADLINE);
        if !attached.status.success() {
            return Err(format!("losetup: {}", attached.stderr.trim()));
        }
        let device = attached.text().trim().to_owned();
        let mounted = self.path();
        self.device = Some(device.clone());
        step(Command::new("mount").args(["-o", "errors=remount-ro", &device]).arg(mounted))
    }

    fn detach(&mut self) {
        let Some(device) = self.device.take() else { return };
        // Whoever ran on it has ended, but its last descriptors may be given up a moment later.
        wait_until("the disk to be unmounted", Duration::from_secs(30), || {
            let mounted = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
            let is_mounted = mounted.lines().any(|line| line.starts_with(&format!("{device} ")));
            !is_mounted || step(Command::new("umount").arg(self.path())).is_ok()
        });
        if let Err(why) = step(Command::new("losetup").args(["--detach", &device])) {
            eprintln!("{why}");
        }
    }
}

impl Drop for FaultyDisk {
    fn drop(&mut self) {
        let Some(device) = self.device.take() else { return };
        self.heal();
        // Lazily: a broker that was just killed may hold files for a moment longer.
        for command in
            [Command::new("umount").arg("--lazy").arg(self.path()), Command::new("losetup").args(["--detach", &device])]
        {
            if let Err(why) = step(command) {
                eprintln!("{why}");
            }
        }
    }
}
