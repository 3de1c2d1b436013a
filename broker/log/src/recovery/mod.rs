//! Making and opening a partition. Opening is recovery: the same walk after an orderly stop and after a crash. Nothing is
//! visible, and no append begins, before what was found is certain to be on the disk.

mod decide;
mod find_end;
pub(crate) mod layout;
mod mend;
mod settle;
pub(crate) mod walk;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use corelane_proto::ids::Position;

use crate::checkpoint::CheckpointEntry;
use crate::config::{InvalidConfig, PartitionOptions};
use crate::coverage::LastMessage;
use crate::env::{Disk, Env, File, OpenMode};
use crate::error::OpenError;
use crate::names;
use crate::partition::{Driver, Found, Partition, count};
use crate::shard::{EnvFile, Shard};
use find_end::Recovery;
use layout::{Layout, SegmentFile};
use settle::{empty_segment, make_segment};
use walk::Reader;

/// What opening a partition found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The end.
    pub end: Position,
    /// A torn tail that was cut off: where its copy lies and how many bytes it has.
    pub cut: Option<(PathBuf, u64)>,
    /// Where damaged bytes begin; they are kept.
    pub damage: Option<Position>,
    /// Bytes that were walked over, set by set.
    pub walked_bytes: u64,
    /// Files in the directory that are not ours.
    pub foreign: Vec<String>,
}

impl<E: Env> Partition<E> {
    /// Makes a partition with an empty log in `topic_dir`, which must exist. Durable when it completes. What an earlier
    /// attempt left, with nothing in it, is taken over.
    pub async fn create(
        shard: &Shard<E>,
        topic_dir: &Path,
        options: &PartitionOptions,
    ) -> Result<(Partition<E>, Driver<E>), OpenError> {
        check(shard, options)?;
        let dir = names::partition_dir(topic_dir, options.partition);
        let disk = shard.env().disk();
        match disk.create_dir(&dir).await {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(OpenError::disk("making the directory", &dir)(error));
            }
            _ => {}
        }
        let entries = disk.list(&dir).await.map_err(OpenError::disk("listing", &dir))?;
        let base = options.start.0;
        let layout = Layout::read(&entries);
        let file = match &layout.segments[..] {
            [] => None,
            [only] if (only.base, only.epoch) == (base, options.epoch) => Some(take_over(shard, &dir, only).await?),
            _ => return Err(OpenError::Exists { path: dir }),
        };
        let (file, file_bytes) = make_segment(shard, &dir, base, options, file).await?;
        mark_start(disk, &dir, base, &layout).await?;
        disk.sync_dir(&dir).await.map_err(OpenError::disk("flushing", &dir))?;
        disk.sync_dir(topic_dir).await.map_err(OpenError::disk("flushing", topic_dir))?;
        let segments = VecDeque::from([empty_segment(shard, base, options, file, file_bytes)]);
        let found = Found { segments, end: base, last: LastMessage::default(), refuses: None, start_mark: Some(base) };
        Ok(Partition::assemble(shard, dir, options, found))
    }

    /// Opens a partition: walks from the checkpoint's `floor` (or the last segment's base) to the end, cuts a torn tail off
    /// with a copy kept, keeps what is damaged. `clean` says that the last life ended in order with everything flushed; it
    /// spares writing the last bytes anew, never the walk.
    pub async fn open(
        shard: &Shard<E>,
        topic_dir: &Path,
        options: &PartitionOptions,
        floor: Option<CheckpointEntry>,
        clean: bool,
    ) -> Result<(Partition<E>, Driver<E>, Recovered), OpenError> {
        check(shard, options)?;
        let dir = names::partition_dir(topic_dir, options.partition);
        let ours = |entry: &CheckpointEntry| {
            (entry.topic_id, entry.partition, entry.epoch) == (options.topic_id, options.partition, options.epoch)
        };
        let floor = floor.filter(ours);
        let recovery = Recovery { shard, dir: &dir, options, floor, clean, report: Recovered::default() };
        let (found, report) = recovery.run().await?;
        let (partition, driver) = Partition::assemble(shard, dir, options, found);
        let counters = partition.counters();
        count(&counters.recoveries, u64::from(report.cut.is_some() || report.damage.is_some()));
        count(&counters.bad_messages, u64::from(report.damage.is_some()));
        count(&counters.foreign_files, report.foreign.len() as u64);
        count(&counters.cut_bytes, report.cut.as_ref().map_or(0, |(_, bytes)| *bytes));
        Ok((partition, driver, report))
    }
}

fn check<E: Env>(shard: &Shard<E>, options: &PartitionOptions) -> Result<(), OpenError> {
    options.validate()?;
    if !mend::arena_holds(shard, options.config.set_bytes_max) {
        let reason = format!("is {}; the memory of a shard must hold two such sets", options.config.set_bytes_max);
        return Err(InvalidConfig { field: "set_bytes_max", reason }.into());
    }
    Ok(())
}

/// Says where a log that is being made begins; what an earlier attempt said with another start goes.
async fn mark_start<D: Disk>(disk: &D, dir: &Path, base: u64, layout: &Layout) -> Result<(), OpenError> {
    let mark = names::start(Position(base));
    let earlier = layout.start.map(|at| names::start(Position(at)));
    for name in layout.leftovers.iter().filter(|name| is_start(name)).chain(&earlier).filter(|name| **name != mark) {
        let path = dir.join(name);
        disk.remove_file(&path).await.map_err(OpenError::disk("removing", path))?;
    }
    let path = dir.join(mark);
    match disk.open(&path, OpenMode::Create).await {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(OpenError::disk("making", &path)(error)),
        _ => Ok(()),
    }
}

fn is_start(name: &str) -> bool {
    matches!(names::classify(name), names::FileKind::Start(_))
}

/// Opens the empty segment that an earlier attempt to make the partition left; refuses one with content.
async fn take_over<E: Env>(shard: &Shard<E>, dir: &Path, left: &SegmentFile) -> Result<EnvFile<E>, OpenError> {
    let path = dir.join(left.name());
    let file = shard.env().disk().open(&path, OpenMode::Write).await.map_err(OpenError::disk("opening", &path))?;
    let bytes = file.bytes().await.map_err(OpenError::disk("reading the size of", &path))?;
    let reader = Reader { shard, file: &file, base: left.base, bytes };
    match reader.content_end(left.base).await.map_err(OpenError::disk("reading", &path))? {
        None => Ok(file),
        Some(_) => Err(OpenError::Exists { path: dir.to_owned() }),
    }
}
