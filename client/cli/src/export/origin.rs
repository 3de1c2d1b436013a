//! What is known of the topic that files were exported from and does not stand in their names: how many partitions it had,
//! and where the first run began, which a partition without a file would forget. It lies beside them, in a file that readers
//! of the directory pass over.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::names::is_id;
use super::whole::{BEGIN, Whole};

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) partitions: u32,
    /// By format; none: nothing was exported in it, or by a version that did not keep this.
    #[serde(default)]
    pub(super) begun: BTreeMap<String, Begun>,
}

/// Where the first run began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    /// What it was told.
    pub(super) from: String,
    /// By partition: epoch and position; of one that was added later, where the first run that met it began.
    pub(super) positions: BTreeMap<u32, (u32, u64)>,
}

impl Begun {
    /// Where a partition was begun, if it is still the same log.
    pub(super) fn position(&self, partition: u32, epoch: u32) -> Option<u64> {
        self.positions.get(&partition).filter(|(of, _)| *of == epoch).map(|(_, position)| *position)
    }

    /// Keeps where a partition was begun first in this epoch.
    pub(super) fn keep(&mut self, partition: u32, epoch: u32, position: u64) {
        if self.position(partition, epoch).is_none() {
            self.positions.insert(partition, (epoch, position));
        }
    }
}

fn path(directory: &Path, topic: &str, id: &str) -> PathBuf {
    directory.join(format!("{BEGIN}{topic}-{id}.json"))
}

/// The other topics of this name that such files are about: it was deleted and created again.
pub(super) fn other_ids(directory: &Path, topic: &str, id: &str) -> io::Result<Vec<String>> {
    let prefix = format!("{BEGIN}{topic}-");
    let mut others = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let stem = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".json"));
        // The name of another topic may go on where this one's ends.
        others.extend(stem.filter(|stem| is_id(stem) && *stem != id).map(str::to_owned));
    }
    Ok(others)
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
    pub(super) fn write(&self, directory: &Path, topic: &str, id: &str) -> io::Result<()> {
        if Self::read(directory, topic, id).is_ok_and(|there| there.as_ref() == Some(self)) {
            return Ok(());
        }
        let whole = Whole::create(directory)?;
        let mut writer = whole.writer()?;
        serde_json::to_writer(&mut writer, self)?;
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
            let mut origin = Origin { partitions, ..Origin::default() };
            origin.begun.entry("raw".to_owned()).or_default().keep(3, 1, 700);
            origin.write(dir.path(), "t", "00c0ffee").unwrap();
            assert_eq!(Origin::read(dir.path(), "t", "00c0ffee").unwrap(), Some(origin));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::write(path(dir.path(), "t", "00c0ffee"), r#"{"partitions":2}"#).unwrap();
        assert_eq!(Origin::read(dir.path(), "t", "00c0ffee").unwrap().unwrap().partitions, 2);
        fs::write(path(dir.path(), "t", "00c0ffee"), "{").unwrap();
        assert!(Origin::read(dir.path(), "t", "00c0ffee").is_err());
    }

    #[test]
    fn where_a_partition_began_first_is_kept_for_its_epoch() {
        let mut begun = Begun::default();
        begun.keep(0, 1, 100);
        begun.keep(0, 1, 200);
        assert_eq!((begun.position(0, 1), begun.position(0, 2), begun.position(1, 1)), (Some(100), None, None));
        begun.keep(0, 2, 50);
        assert_eq!((begun.position(0, 1), begun.position(0, 2)), (None, Some(50)));
    }

    #[test]
    fn a_topic_of_this_name_that_is_another_is_found() {
        let dir = tempfile::tempdir().unwrap();
        for (topic, id) in [("t", "00000001"), ("t", "00000002"), ("t-x", "00000003"), ("u", "00000004")] {
            Origin::default().write(dir.path(), topic, id).unwrap();
        }
        assert_eq!(other_ids(dir.path(), "t", "00000001").unwrap(), ["00000002"]);
    }
}
