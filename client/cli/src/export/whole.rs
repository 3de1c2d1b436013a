//! Files that appear whole or not at all: written beside under a name that does not count, flushed, then renamed to their
//! own name unless there is such a file already. A crash at any line leaves a file that does not count, which a later run
//! removes once nobody holds its lock.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// How names that do not count begin and end.
pub(super) const BEGIN: &str = ".corelane-export-";
const END: &str = ".tmp";
/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;
/// Between two looks at whether another run has ended.
const PAUSE: Duration = Duration::from_millis(100);

/// A file on its way to its name.
pub(super) struct Whole {
    path: PathBuf,
    /// Locked as long as it is open, which tells it from what a killed run has left.
    file: File,
}

/// Whether a file got its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    Done,
    /// Somebody else has made a file of this name.
    Taken,
}

impl Whole {
    /// Makes a file in this directory, which must exist.
    pub(super) fn create(directory: &Path) -> io::Result<Self> {
        loop {
            let path = directory.join(format!("{BEGIN}{}-{:016x}{END}", std::process::id(), unique()));
            match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    file.lock()?;
                    // Who cleans up may have seen it before it was locked.
                    if path.exists() {
                        return Ok(Self { path, file });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where its bytes go.
    pub(super) fn writer(&self) -> io::Result<BufWriter<File>> {
        Ok(BufWriter::with_capacity(BUFFER_BYTES, self.file.try_clone()?))
    }

    /// Flushes what was written and gives the file its name, durably; what has this name is replaced.
    pub(super) fn replace(self, name: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, name)?;
        sync_directory(name.parent().unwrap_or(Path::new(".")))
    }

    /// Flushes what was written and gives the file its name, durably; none is replaced.
    pub(super) fn name(self, name: &Path) -> io::Result<Named> {
        self.file.sync_all()?;
        let renamed = match renameat_with(CWD, &self.path, CWD, name, RenameFlags::NOREPLACE) {
            // Not every file system can do that at once; a link does not replace anything either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match fs::hard_link(&self.path, name) {
                Ok(()) => fs::remove_file(&self.path),
                Err(error) => Err(error),
            },
            other => other.map_err(io::Error::from),
        };
        match renamed {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(Named::Taken),
            Err(error) => return Err(error),
        }
        sync_directory(name.parent().unwrap_or(Path::new(".")))?;
        Ok(Named::Done)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // Under its own name it is another path; a failure leaves what the next run removes.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes a directory and its parents, durably.
pub(super) fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_directory(parent)?;
    }
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match directory.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_directory(Path::new(".")),
        Some(parent) => sync_directory(parent),
        None => Ok(()),
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The right to export a topic into a directory, which one run at a time has; it ends when this is dropped. Waits for it,
/// and says so.
pub(super) async fn lock(directory: &Path, topic: &str) -> io::Result<File> {
    let path = directory.join(format!("{BEGIN}{topic}.lock"));
    // Never removed, or two runs could lock a file of this name each.
    let file = File::options().write(true).create(true).truncate(false).open(&path)?;
    let mut is_told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if is_told => tokio::time::sleep(PAUSE).await,
            Err(TryLockError::WouldBlock) => {
                is_told = true;
                eprintln!("corelane: another run exports {topic} to {}; waiting for its end", directory.display());
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Removes what killed runs have left in a directory.
pub(super) fn clean(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_left = entry.file_name().to_str().is_some_and(|name| name.starts_with(BEGIN) && name.ends_with(END));
        if !is_left {
            continue;
        }
        // Another run that cleans up may be faster.
        let Ok(file) = File::options().write(true).open(entry.path()) else { continue };
        match file.try_lock() {
            Ok(()) => {
                let _ = fs::remove_file(entry.path());
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(())
}

/// A number that no other file of this process has had.
fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn of_two_files_for_one_name_the_first_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("name");
        let (one, other) = (Whole::create(dir.path()).unwrap(), Whole::create(dir.path()).unwrap());
        one.writer().unwrap().write_all(b"one").unwrap();
        other.writer().unwrap().write_all(b"other").unwrap();
        assert_eq!(one.name(&path).unwrap(), Named::Done);
        assert_eq!(other.name(&path).unwrap(), Named::Taken);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_run_left_is_removed_and_what_is_being_written_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join(format!("{BEGIN}1-2{END}"));
        fs::write(&left, b"left").unwrap();
        fs::write(dir.path().join("other.tmp"), b"not ours").unwrap();
        let alive = Whole::create(dir.path()).unwrap();
        clean(dir.path()).unwrap();
        assert!(!left.exists() && dir.path().join("other.tmp").exists());
        assert_eq!(alive.name(&dir.path().join("name")).unwrap(), Named::Done);
    }

    #[test]
    fn directories_are_made_with_their_parents() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        make_directory(&deep).unwrap();
        make_directory(&deep).unwrap();
        assert!(deep.is_dir());
    }
}
