//! Checkpoints: one small file per shard that says how far each of its partitions was known to be durable. What lies below
//! was durable, whether the log agrees or not; so an entry is a floor for the end, and it shortens recovery. Written whole,
//! by fsync and rename; a file that cannot be believed is as good as none.
//!
//! ```text
//! 0   8  magic "CLCKPT01"
//! 8   8  u64 the start of the broker (identity's counter) that wrote it
//! 16  1  u8  1: an orderly stop wrote it, with every entry's log flushed whole and closed; 0: not
//! 17  3      zeros
//! 20  4  u32 entries
//! 24  40 each: topic id (16), u32 partition, u32 epoch, u64 durable end, u32 length and u32 CRC of the last message before
//!            it (zeros: the log was empty)
//!     4  u32 CRC-32 (IEEE) of all before
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use corelane_proto::ids::{Epoch, Position, TopicId};

use crate::env::Disk;
use crate::limits;

const MAGIC: &[u8; 8] = b"CLCKPT01";
const HEAD_BYTES: usize = 24;
const ENTRY_BYTES: usize = 40;
const PREFIX: &str = "checkpoint-";

/// How far one partition is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// The topic.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: u32,
    /// The epoch whose positions these are.
    pub epoch: Epoch,
    /// Everything below is on stable storage; a set ends here.
    pub durable_end: Position,
    /// Length in bytes of the last message before `durable_end`; 0: there is none.
    pub last_message_bytes: u32,
    /// The CRC field of that message.
    pub last_message_crc: u32,
}

/// What one shard knew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The start of the broker that wrote it: the identity's counter.
    pub starts: u64,
    /// Whether an orderly stop wrote it.
    pub clean: bool,
    /// One entry per partition.
    pub entries: Vec<CheckpointEntry>,
}

/// What is known of one partition from all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The highest entry.
    pub entry: CheckpointEntry,
    /// Whether the broker's last life stopped in order, with this entry.
    pub clean: bool,
}

/// The floors of all partitions of a data directory.
#[derive(Clone, Debug, Default)]
pub struct Floors {
    floors: BTreeMap<(TopicId, u32), Floor>,
}

impl Floors {
    /// The floor of one partition.
    pub fn get(&self, topic_id: TopicId, partition: u32) -> Option<Floor> {
        self.floors.get(&(topic_id, partition)).copied()
    }

    /// Takes in one file. Shards may have changed their number, so that a partition stands in several files: the durable
    /// end only grows within an epoch, so the highest counts. `starts_last` is the counter of the broker's last life.
    pub fn add(&mut self, checkpoint: &Checkpoint, starts_last: u64) {
        let clean = checkpoint.clean && checkpoint.starts == starts_last;
        for entry in &checkpoint.entries {
            let rank = |floor: &Floor| (floor.entry.epoch, floor.entry.durable_end, floor.clean);
            let floor = Floor { entry: *entry, clean };
            let known = self.floors.entry((entry.topic_id, entry.partition)).or_insert(floor);
            if rank(&floor) > rank(known) {
                *known = floor;
            }
        }
    }
}

impl Checkpoint {
    /// The file's content.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + self.entries.len() * ENTRY_BYTES + 4);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.starts.to_le_bytes());
        out.extend_from_slice(&[u8::from(self.clean), 0, 0, 0]);
        out.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for entry in &self.entries {
            out.extend_from_slice(&entry.topic_id.0);
            out.extend_from_slice(&entry.partition.to_le_bytes());
            out.extend_from_slice(&entry.epoch.0.to_le_bytes());
            out.extend_from_slice(&entry.durable_end.0.to_le_bytes());
            out.extend_from_slice(&entry.last_message_bytes.to_le_bytes());
            out.extend_from_slice(&entry.last_message_crc.to_le_bytes());
        }
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a file's content; `None` when it cannot be believed.
    pub fn decode(content: &[u8]) -> Option<Self> {
        let (body, crc) = content.split_last_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) || body.len() < HEAD_BYTES || &body[..8] != MAGIC {
            return None;
        }
        let (entries, rest) = body[HEAD_BYTES..].as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() || entries.len() != u32_at(body, 20) as usize {
            return None;
        }
        let entries = entries.iter().map(decode_entry).collect();
        Some(Self { starts: u64_at(body, 8), clean: body[16] == 1, entries })
    }
}

fn decode_entry(bytes: &[u8; ENTRY_BYTES]) -> CheckpointEntry {
    CheckpointEntry {
        topic_id: TopicId(*bytes.first_chunk().expect("an entry begins with a topic id")),
        partition: u32_at(bytes, 16),
        epoch: Epoch(u32_at(bytes, 20)),
        durable_end: Position(u64_at(bytes, 24)),
        last_message_bytes: u32_at(bytes, 32),
        last_message_crc: u32_at(bytes, 36),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn path(data_dir: &Path, shard: u32) -> PathBuf {
    data_dir.join(format!("{PREFIX}{shard:03}"))
}

/// Replaces a shard's file. A crash leaves the old or the new one.
pub async fn write<D: Disk>(disk: &D, data_dir: &Path, shard: u32, checkpoint: &Checkpoint) -> io::Result<()> {
    disk.replace_small(&path(data_dir, shard), checkpoint.encode()).await
}

/// Reads every shard's file, those of shards that are no more included. One that cannot be believed is named in a log
/// line and left out: recovery walks further then.
pub async fn read_all<D: Disk>(disk: &D, data_dir: &Path, starts_last: u64) -> io::Result<Floors> {
    let mut floors = Floors::default();
    for entry in disk.list(data_dir).await? {
        if !is_checkpoint(&entry.name) {
            continue;
        }
        let path = data_dir.join(&entry.name);
        match disk.read_small(&path, limits::SMALL_FILE_BYTES_MAX).await.map(|content| Checkpoint::decode(&content)) {
            Ok(Some(checkpoint)) => floors.add(&checkpoint, starts_last),
            Ok(None) => {
                tracing::warn!(path = %path.display(), "checkpoint is damaged; recovery walks further without it");
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "checkpoint cannot be read; recovery walks further without it");
            }
        }
    }
    Ok(floors)
}

/// Removes the files of shards from `shards` on, once the others' files hold their partitions.
pub async fn remove_beyond<D: Disk>(disk: &D, data_dir: &Path, shards: u32) -> io::Result<()> {
    for entry in disk.list(data_dir).await? {
        let number = entry.name.strip_prefix(PREFIX).and_then(|digits| digits.parse::<u32>().ok());
        if is_checkpoint(&entry.name) && number.is_some_and(|number| number >= shards) {
            disk.remove_file(&data_dir.join(&entry.name)).await?;
        }
    }
    Ok(())
}

fn is_checkpoint(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|digits| digits.len() >= 3 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(partition: u32, durable_end: u64) -> CheckpointEntry {
        CheckpointEntry {
            topic_id: TopicId([7; 16]),
            partition,
            epoch: Epoch(1),
            durable_end: Position(durable_end),
            last_message_bytes: 40,
            last_message_crc: 0xDEAD_BEEF,
        }
    }

    #[test]
    fn a_checkpoint_reads_as_written_and_no_cut_or_flip_of_it_does() {
        let checkpoint = Checkpoint { starts: 3, clean: true, entries: vec![entry(0, 100), entry(9, u64::MAX)] };
        let content = checkpoint.encode();
        assert_eq!(Checkpoint::decode(&content), Some(checkpoint));
        for cut in 0..content.len() {
            assert_eq!(Checkpoint::decode(&content[..cut]), None, "cut at {cut}");
        }
        for bit in 0..content.len() * 8 {
            let mut flipped = content.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Checkpoint::decode(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn the_bytes_are_pinned() {
        let checkpoint = Checkpoint { starts: 2, clean: true, entries: vec![entry(1, 0x0102)] };
        let mut expected = b"CLCKPT01\x02\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0".to_vec();
        expected.extend_from_slice(&[7; 16]);
        expected.extend_from_slice(b"\x01\0\0\0\x01\0\0\0\x02\x01\0\0\0\0\0\0\x28\0\0\0\xEF\xBE\xAD\xDE");
        let crc = crc32fast::hash(&expected).to_le_bytes();
        expected.extend_from_slice(&crc);
        assert_eq!(checkpoint.encode(), expected);
    }

    #[test]
    fn the_highest_floor_counts_and_is_clean_only_by_the_last_life() {
        let mut floors = Floors::default();
        floors.add(&Checkpoint { starts: 4, clean: true, entries: vec![entry(0, 100)] }, 5);
        assert_eq!(floors.get(TopicId([7; 16]), 0), Some(Floor { entry: entry(0, 100), clean: false }));
        floors.add(&Checkpoint { starts: 5, clean: true, entries: vec![entry(0, 100), entry(1, 7)] }, 5);
        assert_eq!(floors.get(TopicId([7; 16]), 0), Some(Floor { entry: entry(0, 100), clean: true }));
        floors.add(&Checkpoint { starts: 5, clean: false, entries: vec![entry(0, 90)] }, 5);
        assert!(floors.get(TopicId([7; 16]), 0).unwrap().clean);
        assert_eq!(floors.get(TopicId([8; 16]), 0), None);
    }
}
