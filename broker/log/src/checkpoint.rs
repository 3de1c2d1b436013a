//! What a shard knew to be durable: one small file per shard, replaced whole every second while something changed and at an
//! orderly stop. It is a floor for the end of each log and shortens recovery; a lost or stale one costs time only.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use corelane_proto::ids::{Epoch, Position, TopicId};

pub use crate::coverage::LastMessage;
use crate::env::Disk;
use crate::limits::SMALL_FILE_BYTES_MAX;

const MAGIC: [u8; 8] = *b"CLCKP\0\0\x01";
const HEAD_BYTES: usize = 8 + 8 + 4 + 1;
const ENTRY_BYTES: usize = 72;
const PREFIX: &str = "checkpoint-";
/// Stands for "not known" among times.
const NONE_MS: i64 = i64::MIN;

/// What is known of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// The topic's id.
    pub topic_id: TopicId,
    /// The partition's number.
    pub partition: u32,
    /// The life of the log.
    pub epoch: Epoch,
    /// What lies below it was durable, whether the log agrees or not.
    pub durable_end: Position,
    /// The last message before it; with 0 bytes: not known.
    pub last: LastMessage,
    /// The segment that was active.
    pub segment_base: Position,
    /// When its first bytes arrived, in milliseconds since the Unix epoch.
    pub first_arrival_ms: Option<i64>,
    /// When its newest bytes arrived.
    pub last_arrival_ms: Option<i64>,
}

/// One shard's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The broker's start counter in that life.
    pub starts: u64,
    /// How many shards the broker had.
    pub shards: u32,
    /// Whether this is the last word of an orderly stop, with everything flushed.
    pub clean: bool,
    /// The shard's partitions.
    pub entries: Vec<CheckpointEntry>,
}

impl Checkpoint {
    /// magic | starts | shards | clean | entries: topic id, partition, epoch, durable end, last message's length and CRC,
    /// segment base, first arrival, last arrival | CRC-32 of all before it
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + self.entries.len() * ENTRY_BYTES + 4);
        out.extend(MAGIC);
        out.extend(self.starts.to_le_bytes());
        out.extend(self.shards.to_le_bytes());
        out.push(u8::from(self.clean));
        for entry in &self.entries {
            out.extend(entry.topic_id.0);
            out.extend(entry.partition.to_le_bytes());
            out.extend(entry.epoch.0.to_le_bytes());
            out.extend(entry.durable_end.0.to_le_bytes());
            out.extend(entry.last.bytes.to_le_bytes());
            out.extend(entry.last.crc.to_le_bytes());
            out.extend(entry.segment_base.0.to_le_bytes());
            out.extend(entry.first_arrival_ms.unwrap_or(NONE_MS).to_le_bytes());
            out.extend(entry.last_arrival_ms.unwrap_or(NONE_MS).to_le_bytes());
            out.extend([0; 8]);
        }
        out.extend(crc32fast::hash(&out).to_le_bytes());
        out
    }

    /// Reads what `encode` wrote; `None` for anything else.
    pub fn decode(content: &[u8]) -> Option<Checkpoint> {
        let (body, crc) = content.split_last_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let (starts, rest) = body.strip_prefix(&MAGIC)?.split_first_chunk::<8>()?;
        let (shards, rest) = rest.split_first_chunk::<4>()?;
        let (clean, rest) = rest.split_first()?;
        let (entries, rest) = rest.as_chunks::<ENTRY_BYTES>();
        rest.is_empty().then(|| Checkpoint {
            starts: u64::from_le_bytes(*starts),
            shards: u32::from_le_bytes(*shards),
            clean: *clean == 1,
            entries: entries.iter().map(decode_entry).collect(),
        })
    }
}

fn decode_entry(bytes: &[u8; ENTRY_BYTES]) -> CheckpointEntry {
    fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
        bytes[at..at + N].try_into().expect("an entry is as long as its fields")
    }
    let time = |at| Some(i64::from_le_bytes(part(bytes, at))).filter(|time| *time != NONE_MS);
    CheckpointEntry {
        topic_id: TopicId(part(bytes, 0)),
        partition: u32::from_le_bytes(part(bytes, 16)),
        epoch: Epoch(u32::from_le_bytes(part(bytes, 20))),
        durable_end: Position(u64::from_le_bytes(part(bytes, 24))),
        last: LastMessage { bytes: u32::from_le_bytes(part(bytes, 32)), crc: u32::from_le_bytes(part(bytes, 36)) },
        segment_base: Position(u64::from_le_bytes(part(bytes, 40))),
        first_arrival_ms: time(48),
        last_arrival_ms: time(56),
    }
}

/// Where a shard's checkpoint lies in a data directory.
pub fn path(data_dir: &Path, shard: u32) -> PathBuf {
    data_dir.join(format!("{PREFIX}{shard:03}"))
}

/// Replaces a shard's checkpoint: durable when it completes; a crash leaves the old or the new one.
pub async fn write<D: Disk>(disk: &D, data_dir: &Path, shard: u32, checkpoint: &Checkpoint) -> io::Result<()> {
    disk.replace_small(&path(data_dir, shard), checkpoint.encode()).await
}

/// What all shards' checkpoints of a data directory say together, whatever the number of shards was and is.
#[derive(Clone, Debug, Default)]
pub struct Floors {
    entries: HashMap<(TopicId, u32), CheckpointEntry>,
    /// Per life of the broker: shards it had, files that say it ended in order, files that do not.
    lives: HashMap<u64, (u32, u32, u32)>,
    /// Files that could not be read as checkpoints.
    pub unreadable: Vec<PathBuf>,
}

impl Floors {
    /// Adds a checkpoint. Of several entries for a partition the furthest counts: each was true.
    pub fn add(&mut self, checkpoint: Checkpoint) {
        let life = self.lives.entry(checkpoint.starts).or_default();
        life.0 = life.0.max(checkpoint.shards);
        *(if checkpoint.clean { &mut life.1 } else { &mut life.2 }) += 1;
        for entry in checkpoint.entries {
            let known = self.entries.entry((entry.topic_id, entry.partition)).or_insert(entry);
            if (known.epoch, known.durable_end) < (entry.epoch, entry.durable_end) {
                *known = entry;
            }
        }
    }

    /// Whether there was no checkpoint at all, not even one that could not be read.
    pub fn is_empty(&self) -> bool {
        self.lives.is_empty() && self.unreadable.is_empty()
    }

    /// The floor of a partition.
    pub fn of(&self, topic_id: TopicId, partition: u32) -> Option<CheckpointEntry> {
        self.entries.get(&(topic_id, partition)).copied()
    }

    /// Every partition's floor, in no order.
    pub fn entries(&self) -> impl Iterator<Item = &CheckpointEntry> {
        self.entries.values()
    }

    /// Whether the life with this start counter ended in order in every shard.
    pub fn was_clean(&self, starts: u64) -> bool {
        self.lives.get(&starts).is_some_and(|(shards, clean, other)| *other == 0 && clean == shards && *shards > 0)
    }
}

/// Reads all shards' checkpoints. One that is bad is as none, and named.
pub async fn read_all<D: Disk>(disk: &D, data_dir: &Path) -> io::Result<Floors> {
    let mut floors = Floors::default();
    for entry in disk.list(data_dir).await? {
        if !is_checkpoint(&entry.name) {
            continue;
        }
        let path = data_dir.join(&entry.name);
        let content = disk.read_small(&path, SMALL_FILE_BYTES_MAX).await;
        match content.ok().and_then(|content| Checkpoint::decode(&content)) {
            Some(checkpoint) => floors.add(checkpoint),
            None => floors.unreadable.push(path),
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
            last: LastMessage { bytes: 24, crc: 9 },
            segment_base: Position(5),
            first_arrival_ms: Some(-1),
            last_arrival_ms: None,
        }
    }

    fn checkpoint(starts: u64, clean: bool, entries: Vec<CheckpointEntry>) -> Checkpoint {
        Checkpoint { starts, shards: 2, clean, entries }
    }

    #[test]
    fn a_checkpoint_reads_as_it_was_written() {
        let checkpoint = checkpoint(3, true, vec![entry(0, 10), entry(1, 20)]);
        assert_eq!(Checkpoint::decode(&checkpoint.encode()), Some(checkpoint));
    }

    #[test]
    fn a_checkpoint_that_was_hurt_is_not_believed() {
        let good = checkpoint(3, true, vec![entry(0, 10)]).encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(Checkpoint::decode(&bad), None, "byte {at}");
            assert_eq!(Checkpoint::decode(&good[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn the_furthest_entry_counts_and_one_open_shard_makes_a_stop_unclean() {
        let mut floors = Floors::default();
        floors.add(checkpoint(3, true, vec![entry(0, 10), entry(1, 50)]));
        assert!(!floors.was_clean(3), "the other shard said nothing");
        floors.add(checkpoint(3, true, vec![entry(1, 20)]));
        assert!(floors.was_clean(3) && !floors.was_clean(2));
        assert_eq!(floors.of(TopicId([7; 16]), 1), Some(entry(1, 50)));
        floors.add(checkpoint(2, false, vec![entry(0, 99)]));
        assert!(floors.was_clean(3) && !floors.was_clean(2));
        assert_eq!(floors.of(TopicId([7; 16]), 0), Some(entry(0, 99)));
    }
}
