//! The lock on a data directory, which keeps two processes from writing in it: a broker, or the offline repair. Plain
//! blocking calls; the kernel gives the lock up with the process, however that ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NAME: &str = "lock";
/// How often a lock that is held is tried again, and how long between two times: [`is_held`] of another process holds it
/// for a moment.
const ATTEMPTS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(50);

/// A data directory, locked for this process until dropped.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

/// Why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process has it.
    #[error("another process{} uses {}", shown(owner.as_deref()), dir.display())]
    Held {
        /// The directory.
        dir: PathBuf,
        /// The process id that its owner has written down.
        owner: Option<String>,
    },
    /// The system refused.
    #[error("locking {} failed: {cause}", path.display())]
    System {
        /// The lock's file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

fn shown(owner: Option<&str>) -> String {
    owner.map_or_else(String::new, |owner| format!(" (pid {owner})"))
}

impl DirLock {
    /// Locks `dir`, making the lock's file if it is not there, and writes this process's id into it.
    pub fn take(dir: &Path) -> Result<DirLock, LockError> {
        let path = dir.join(NAME);
        let system = |cause| LockError::System { path: path.clone(), cause };
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(system)?;
        lock(&file, dir, &path)?;
        // Over what is there: on a full disk a file that was emptied could not be filled again.
        let owner = format!("{}\n", std::process::id());
        file.write_all_at(owner.as_bytes(), 0).and_then(|()| file.set_len(owner.len() as u64)).map_err(system)?;
        Ok(DirLock { _file: file })
    }

    /// Locks `dir` and writes nothing, for a look that must not change it. `None`: there is no lock's file, so no broker
    /// has ever run on it.
    pub fn hold(dir: &Path) -> Result<Option<DirLock>, LockError> {
        let path = dir.join(NAME);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(LockError::System { path, cause }),
        };
        lock(&file, dir, &path)?;
        Ok(Some(DirLock { _file: file }))
    }
}

fn lock(file: &File, dir: &Path, path: &Path) -> Result<(), LockError> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if attempts < ATTEMPTS => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => {
                // The owner may be about to write it.
                let owner = fs::read_to_string(path).unwrap_or_default();
                let owner = Some(owner.trim().to_owned()).filter(|owner| !owner.is_empty());
                return Err(LockError::Held { dir: dir.to_owned(), owner });
            }
            Err(TryLockError::Error(cause)) => return Err(LockError::System { path: path.to_owned(), cause }),
        }
    }
}

/// Whether a process has `dir` locked: a broker runs on it. The question itself shares the lock for a moment, which
/// [`DirLock::take`] is patient with.
pub fn is_held(dir: &Path) -> io::Result<bool> {
    let file = match File::open(dir.join(NAME)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_keeps_others_out_and_a_look_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_held(dir.path()).unwrap());
        assert!(DirLock::hold(dir.path()).unwrap().is_none());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a look made a file");
        let taken = DirLock::take(dir.path()).unwrap();
        assert!(is_held(dir.path()).unwrap());
        match DirLock::hold(dir.path()) {
            Err(LockError::Held { owner, .. }) => assert_eq!(owner, Some(std::process::id().to_string())),
            other => panic!("{other:?}"),
        }
        drop(taken);
        assert!(!is_held(dir.path()).unwrap());
        let held = DirLock::hold(dir.path()).unwrap();
        assert!(held.is_some() && DirLock::take(dir.path()).is_err());
    }
}
