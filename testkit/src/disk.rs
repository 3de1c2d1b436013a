//! File systems of a test's own: a small one, for what happens when a disk is full, and one on a disk that misbehaves. They
//! need root and a loop device.

mod faulty;
mod medium;
mod served_file;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub use faulty::FaultyDisk;
pub use medium::PowerCut;

use crate::command::run;
use crate::dir::TestDir;

const COMMAND_DEADLINE: Duration = Duration::from_secs(30);

/// A freshly made ext4 file system in a file, mounted; unmounted and removed when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    directory: TestDir,
}

impl SmallDisk {
    /// Makes one of `mebibytes`. The error says which step this machine does not allow, for [`skip`](crate::skip).
    pub fn mount(mebibytes: u64) -> Result<SmallDisk, String> {
        let directory = TestDir::new("disk");
        let image = directory.join("image");
        let mounted = directory.join("mounted");
        std::fs::create_dir(&mounted).map_err(|error| error.to_string())?;
        let file = std::fs::File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(mebibytes << 20).map_err(|error| error.to_string())?;
        // No reserved blocks: full must mean full for root too.
        step(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))?;
        step(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mounted))?;
        Ok(SmallDisk { directory })
    }

    /// Where it is mounted.
    pub fn path(&self) -> std::path::PathBuf {
        self.directory.join("mounted")
    }

    /// Fills it to the last byte with a file of nobody's.
    pub fn fill(&self) {
        let path = self.filler();
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&path).expect("a file can be made");
        // In smaller and smaller pieces: the last ones find what the first ones left.
        for bytes in [1 << 20, 64 << 10, 4 << 10, 1 << 10] {
            let piece = vec![0xAA; bytes];
            while file.write_all(&piece).and_then(|()| file.sync_data()).is_ok() {}
        }
    }

    /// Takes away what [`fill`](SmallDisk::fill) has put there.
    pub fn make_room(&self) {
        std::fs::remove_file(self.filler()).expect("the filler is there");
        // What was freed counts once the file system has noted it.
        rustix::fs::syncfs(std::fs::File::open(self.path()).expect("it is mounted")).expect("it can be flushed");
    }

    fn filler(&self) -> std::path::PathBuf {
        self.path().join("filler")
    }

    /// Bytes that an unprivileged writer could still get.
    pub fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.path()).expect("a mounted file system tells its size");
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a broker that was just killed may hold files for a moment longer.
        if let Err(why) = step(Command::new("umount").arg("--lazy").arg(self.path())) {
            eprintln!("{why}");
        }
    }
}

fn step(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_owned();
    let program = program.to_string_lossy();
    let found = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join(&*program).exists());
    if !found {
        return Err(format!("no {program}"));
    }
    let finished = run(command, COMMAND_DEADLINE);
    if finished.status.success() { Ok(()) } else { Err(format!("{program}: {}", finished.stderr.trim())) }
}
