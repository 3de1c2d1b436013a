//! What is known of the topic that files were exported from and does not stand in their names: how many partitions it had.
//! It lies beside them, in a file that readers of the directory pass over.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::whole::{BEGIN, Whole};

/// The content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) partitions: u32,
}

fn path(directory: &Path, topic: &str, id: &str) -> PathBuf {
    directory.join(format!("{BEGIN}{topic}-{id}.json"))
}

impl Origin {
    /// None: nothing is known.
    pub(super) fn read(directory: &Path, topic: &str, id: &str) -> io::Result<Option<Self>> {
        match fs::read(path(directory, topic, id)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes it, unless it stands there already.
    pub(super) fn write(self, directory: &Path, topic: &str, id: &str) -> io::Result<()> {
        if Self::read(directory, topic, id).is_ok_and(|there| there == Some(self)) {
            return Ok(());
        }
        let whole = Whole::create(directory)?;
        let mut writer = whole.writer()?;
        serde_json::to_writer(&mut writer, &self)?;
        writer.write_all(b"\n")?;
        writer.flush()?;
        whole.replace(&path(directory, topic, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_last_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Origin::read(dir.path(), "t", "00c0ffee").unwrap(), None);
        for partitions in [4, 4, 8] {
            Origin { partitions }.write(dir.path(), "t", "00c0ffee").unwrap();
            assert_eq!(Origin::read(dir.path(), "t", "00c0ffee").unwrap(), Some(Origin { partitions }));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::write(path(dir.path(), "t", "00c0ffee"), "{").unwrap();
        assert!(Origin::read(dir.path(), "t", "00c0ffee").is_err());
    }
}
