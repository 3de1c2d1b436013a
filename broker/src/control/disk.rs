//! What the control thread does to the data directory: its lock, and a topic's directory before partitions are opened in
//! it. Plain blocking calls, run on a helper thread where they may take long.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use corelane_log::blocking::{self, BlockingDisk};
use corelane_log::data_dir::{DataDir, DataDirError, TopicIdentity};
use corelane_log::env::Disk as _;
use corelane_log::lock::{DirLock, LockError};
use corelane_proto::ids::{Epoch, TopicId};

use crate::registry::epochs::{Decision, decide};
use crate::registry::records::PartitionRecord;

/// Locks the data directory; the error is one line with cause and remedy.
pub(super) fn lock(data: &Path) -> Result<DirLock, String> {
    DirLock::take(data).map_err(|error| match error {
        LockError::Held { owner, .. } => {
            let owner = owner.map_or_else(String::new, |owner| format!(" (pid {owner})"));
            format!(
                "another broker{owner} uses the data directory {}; stop it, or choose another directory with --data",
                data.display()
            )
        }
        error => error.to_string(),
    })
}

/// A topic's directory, ready for its partitions.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) topic_dir: PathBuf,
    /// What to do about each; never `SetAside`: that is done.
    pub(super) decisions: Vec<(u32, PartitionRecord, Result<Decision, String>)>,
}

/// Makes the topic's directory durable, then looks what lies in it of each partition.
pub(super) fn prepare(
    data: &Path,
    identity: &TopicIdentity,
    partitions: Vec<(u32, PartitionRecord)>,
) -> Result<Prepared, DataDirError> {
    let dir = DataDir::new(BlockingDisk, data);
    let topic_dir = blocking::run(dir.put_topic(identity))?;
    let decisions = partitions
        .into_iter()
        .map(|(partition, record)| {
            let decision = look(&dir, &topic_dir, partition, &record);
            (partition, record, decision)
        })
        .collect();
    Ok(Prepared { topic_dir, decisions })
}

fn look(
    dir: &DataDir<BlockingDisk>,
    topic_dir: &Path,
    partition: u32,
    record: &PartitionRecord,
) -> Result<Decision, String> {
    let epoch_on_disk = || blocking::run(dir.partition_epoch(topic_dir, partition)).map_err(|error| error.to_string());
    match decide(record, epoch_on_disk()?) {
        Decision::SetAside(epoch) => {
            set_aside(topic_dir, partition, epoch).map_err(|error| {
                format!("an older log (epoch {epoch}) of partition {partition} could not be set aside: {error}")
            })?;
            Ok(decide(record, None))
        }
        decision => Ok(decision),
    }
}

/// Moves a partition's directory to a name that no partition has; nothing in it is touched.
fn set_aside(topic_dir: &Path, partition: u32, epoch: Epoch) -> io::Result<()> {
    let from = topic_dir.join(partition.to_string());
    let free = (0..u32::MAX)
        .map(|n| topic_dir.join(format!("{partition}.epoch-{epoch}.set-aside-{n}")))
        .find(|path| !path.exists())
        .expect("some number is free");
    tracing::warn!(from = %from.display(), to = %free.display(), "an older life of a partition's log is set aside, kept and not served");
    fs::rename(&from, &free)?;
    blocking::run(BlockingDisk.sync_dir(topic_dir))
}

/// Removes a deleted topic's data: its name at once and durably, its bytes as long as that takes.
pub(super) fn delete_topic(
    data: &Path,
    name: &corelane_proto::ids::TopicName,
    topic_id: TopicId,
) -> Result<(), DataDirError> {
    let dir = DataDir::new(BlockingDisk, data);
    blocking::run(dir.delete_topic(name, topic_id))
}

/// Frees the space of what was deleted.
pub(super) fn remove_deleted(data: &Path) -> Result<usize, DataDirError> {
    blocking::run(DataDir::new(BlockingDisk, data).remove_deleted())
}

#[cfg(test)]
mod tests {
    use corelane_log::config::TopicConfig;
    use corelane_log::data_dir::FORMAT_VERSION;
    use corelane_proto::ids::{Position, TopicName};

    use super::*;

    #[test]
    fn a_second_broker_is_refused_and_told_the_pid() {
        let data = tempfile::tempdir().expect("a directory");
        let held = lock(data.path()).expect("locked");
        let line = lock(data.path()).expect_err("refused");
        assert!(line.contains(&format!("(pid {})", std::process::id())) && line.contains("--data"), "{line}");
        drop(held);
        lock(data.path()).expect("free again");
    }

    #[test]
    fn an_older_life_is_set_aside_untouched_and_a_lost_one_is_not_made_again() {
        let data = tempfile::tempdir().expect("a directory");
        let identity = TopicIdentity {
            format_version: FORMAT_VERSION,
            topic_id: TopicId([1; 16]),
            name: TopicName::new("views").expect("a name"),
            partitions: 2,
            config: TopicConfig::default(),
        };
        let record = |epoch, made: Option<u32>| PartitionRecord {
            replicas: vec![1],
            leader: 1,
            epoch: Epoch(epoch),
            made: made.map(Epoch),
            start: Position::ZERO,
        };
        let decide_at = |epoch, made| {
            let prepared = prepare(data.path(), &identity, vec![(0, record(epoch, made))]).expect("prepared");
            prepared.decisions[0].2.clone().expect("decided")
        };
        assert_eq!(decide_at(1, None), Decision::Create);
        assert_eq!(decide_at(1, Some(1)), Decision::Lost);
        let topic_dir = data.path().join("views~01010101");
        let segment = topic_dir.join("0/00000000000000000000-00000001.log");
        fs::create_dir(topic_dir.join("0")).expect("made");
        fs::write(&segment, b"old").expect("written");
        assert_eq!(decide_at(1, Some(1)), Decision::Open { record_made: false });
        assert_eq!(decide_at(1, None), Decision::Open { record_made: true });
        assert_eq!(decide_at(2, Some(1)), Decision::Create);
        let kept = topic_dir.join("0.epoch-1.set-aside-0/00000000000000000000-00000001.log");
        assert_eq!(fs::read(kept).expect("kept"), b"old");
    }
}
