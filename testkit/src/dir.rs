//! A directory of a test's own on the real disk: brokers use direct I/O, which the usual /tmp in memory may not have.

use std::path::{Path, PathBuf};

use crate::binaries::target_dir;

/// A fresh directory below the build's target directory (or below `CORELANE_TEST_DIR`), removed at the end. With
/// `CORELANE_KEEP=1` a failed test's directory stays, and its path is printed.
#[derive(Debug)]
pub struct TestDir {
    directory: tempfile::TempDir,
}

impl TestDir {
    /// Makes one. `name` goes into the directory's name, for whoever looks.
    pub fn new(name: &str) -> TestDir {
        let parent = scratch();
        let directory = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .tempdir_in(&parent)
            .unwrap_or_else(|error| panic!("cannot make a directory in {}: {error}", parent.display()));
        TestDir { directory }
    }

    /// Where it is, absolute.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A path inside it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("CORELANE_KEEP").is_some_and(|value| value == "1") {
            self.directory.disable_cleanup(true);
            eprintln!("kept {}", self.path().display());
        }
    }
}

/// The directory in which tests make theirs.
pub(crate) fn scratch() -> PathBuf {
    let parent = std::env::var_os("CORELANE_TEST_DIR").map_or_else(|| target_dir().join("tmp"), PathBuf::from);
    std::fs::create_dir_all(&parent).unwrap_or_else(|error| panic!("cannot make {}: {error}", parent.display()));
    parent
}
