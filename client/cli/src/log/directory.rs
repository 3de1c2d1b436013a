//! Which partitions a data directory holds, whose it is, and whether a broker runs on it. Reads only.

use std::path::{Path, PathBuf};

use corelane_log::blocking::{self, BlockingDisk};
use corelane_log::checkpoint::{self, CheckpointEntry, Floors};
use corelane_log::data_dir::{DataDir, DataDirError, FoundTopic, Identity, TopicIdentity};
use corelane_log::limits::UNFLUSHED_BYTES_DEFAULT;
use corelane_log::{PartitionOptions, lock};
use corelane_proto::ids::Epoch;

use super::report::{Finding, Severity};
use crate::error::CliError;

/// A data directory, or the part of it that was asked for.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    pub(super) identity: Option<Identity>,
    pub(super) floors: Floors,
    /// A broker has it locked.
    pub(super) is_running: bool,
    pub(super) partitions: Vec<PartitionPlace>,
    /// What is to be said of the directory and of its topics' directories.
    pub(super) findings: Vec<Finding>,
}

/// A partition's directory.
pub(super) struct PartitionPlace {
    pub(super) dir: PathBuf,
    pub(super) topic: TopicIdentity,
    pub(super) partition: u32,
    pub(super) floor: Option<CheckpointEntry>,
}

impl PartitionPlace {
    pub(super) fn label(&self) -> String {
        format!("{}/{}", self.topic.name, self.partition)
    }

    pub(super) fn topic_dir(&self) -> &Path {
        self.dir.parent().expect("a partition's directory lies in its topic's")
    }
}

/// The data directory that `path` is or lies in.
pub(super) fn data_dir_of(path: &Path) -> PathBuf {
    let is_topic = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains('~'));
    let lies_in_topic = path.parent().is_some_and(is_topic);
    let up = |steps: usize| path.ancestors().nth(steps).unwrap_or(path).to_owned();
    if is_topic(path) {
        up(1)
    } else if lies_in_topic {
        up(2)
    } else {
        path.to_owned()
    }
}

/// A path as the system knows it; an error says what was asked for.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, CliError> {
    path.canonicalize().map_err(|cause| CliError::NotSeen(format!("{}: {cause}", path.display())))
}

fn resolve_dir(path: &Path) -> Result<PathBuf, CliError> {
    let resolved = resolve(path)?;
    if resolved.is_dir() {
        return Ok(resolved);
    }
    let path = path.display();
    Err(CliError::NotSeen(format!("{path} is not a directory; `corelane log dump` looks at a single file")))
}

impl Directory {
    /// Looks at the data directory that `path` is or lies in; partitions outside `path` are left out.
    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let data = data_dir_of(&resolve_dir(path)?);
        let is_running = lock::is_held(&data)
            .map_err(|error| CliError::NotSeen(format!("asking for the lock of {} failed: {error}", data.display())))?;
        Self::read_as(path, is_running)
    }

    /// As [`Self::read`], for a caller that knows whether a broker runs.
    pub(super) fn read_as(path: &Path, is_running: bool) -> Result<Self, CliError> {
        let selected = resolve_dir(path)?;
        let data = data_dir_of(&selected);
        let not_seen = |what: &str, error: &dyn std::fmt::Display| {
            CliError::NotSeen(format!("{what} {} failed: {error}", data.display()))
        };
        // First: what the checkpoints call durable was on the disk before anything is listed.
        let floors = blocking::run(checkpoint::read_all(&BlockingDisk, &data));
        let floors = floors.map_err(|error| not_seen("listing", &error))?;
        let dir = DataDir::new(BlockingDisk, &data);
        let mut findings: Vec<Finding> = floors.unreadable.iter().map(|path| unreadable_checkpoint(path)).collect();
        let topics = blocking::run(dir.topics()).map_err(|error| not_seen("listing", &error))?;
        let identity = match blocking::run(dir.identity()) {
            Ok(None) if topics.is_empty() => {
                return Err(CliError::NotSeen(format!(
                    "{} holds nothing of a broker; give the directory that the broker was started with (--data)",
                    path.display()
                )));
            }
            Ok(None) => {
                let text =
                    "is missing, though there are topics; put it back from a backup, or the broker does not start";
                findings.push(Finding::damage("bad_identity", &data.join("identity"), text));
                None
            }
            Ok(identity) => identity,
            Err(error) => {
                findings.push(identity_finding(&data.join("identity"), &error));
                None
            }
        };
        let mut directory = Self { path: data, identity, floors, is_running, partitions: Vec::new(), findings };
        for topic in topics {
            if topic.path.starts_with(&selected) || selected.starts_with(&topic.path) {
                directory.add_topic(topic);
            }
        }
        directory.partitions.retain(|partition| partition.dir.starts_with(&selected));
        Ok(directory)
    }

    fn add_topic(&mut self, found: FoundTopic) {
        let topic = match found.identity {
            Ok(topic) => topic,
            Err(error) => {
                self.findings.push(identity_finding(&found.path, &error));
                return;
            }
        };
        let known = self.floors.entries().filter(|entry| entry.topic_id == topic.topic_id && entry.durable_end.0 > 0);
        let mut lost: Vec<&CheckpointEntry> =
            known.filter(|entry| !found.partitions.contains(&entry.partition)).collect();
        lost.sort_unstable_by_key(|entry| entry.partition);
        for entry in lost {
            let text = format!("is missing, and had messages up to {}; put it back from a backup", entry.durable_end);
            let path = found.path.join(entry.partition.to_string());
            self.findings.push(Finding::damage("missing_partition", &path, text));
        }
        for partition in found.partitions {
            self.partitions.push(PartitionPlace {
                dir: found.path.join(partition.to_string()),
                floor: self.floors.of(topic.topic_id, partition),
                topic: topic.clone(),
                partition,
            });
        }
    }

    /// What recovery is told of a partition whose newest segment is of `epoch`.
    pub(super) fn options(&self, place: &PartitionPlace, epoch: Epoch) -> PartitionOptions {
        let TopicIdentity { name, topic_id, config, .. } = place.topic.clone();
        let mut options = PartitionOptions::new(name, topic_id, place.partition);
        options.epoch = epoch;
        options.config = config;
        let window = self.identity.as_ref().map_or(0, |identity| identity.window_max_ever);
        options.window_max_ever = window.max(UNFLUSHED_BYTES_DEFAULT);
        options
    }

    /// Whether the last life ended in order.
    pub(super) fn was_clean(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| self.floors.was_clean(identity.starts))
    }

    /// A path as it is told: from the data directory on.
    pub(super) fn shown<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.path).unwrap_or(path)
    }
}

fn unreadable_checkpoint(path: &Path) -> Finding {
    if let Err(error) = std::fs::File::open(path)
        && error.kind() == std::io::ErrorKind::PermissionDenied
    {
        return Finding::failed(path, &error);
    }
    let text = "is damaged; the next start reads more of the logs, and takes the word of the other checkpoints only";
    Finding::damage("bad_checkpoint", path, text)
}

fn identity_finding(path: &Path, error: &DataDirError) -> Finding {
    let text = error.to_string();
    match error {
        DataDirError::Disk { cause, .. } if cause.kind() == std::io::ErrorKind::PermissionDenied => {
            Finding::failed(path, cause)
        }
        DataDirError::Disk { .. } => Finding::new(Severity::Damage, "unreadable", path, text),
        DataDirError::NewerFormat { .. } => Finding::damage("newer_version", path, text),
        DataDirError::Misplaced { .. } => Finding::damage("misplaced", path, text),
        _ => Finding::damage("bad_identity", path, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_directory_is_found_from_a_topic_and_from_a_partition() {
        for path in ["/d/data", "/d/data/t~0011aabb", "/d/data/t~0011aabb/7"] {
            assert_eq!(data_dir_of(Path::new(path)), Path::new("/d/data"), "{path}");
        }
    }
}
