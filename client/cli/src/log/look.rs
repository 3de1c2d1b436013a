//! One partition at this moment: its files, and where its log ends. Offline, recovery itself is asked, on a disk that
//! writes nothing; beside a broker, the checkpoint.

use std::io;
use std::path::Path;
use std::time::Duration;

use corelane_log::blocking::{self, BlockingDisk};
use corelane_log::inspect::{PartitionFiles, SegmentFile, partition_files};
use corelane_log::{CheckpointEntry, OpenError, Partition, Recovered, Shard};
use corelane_proto::ids::{Epoch, Position};

use super::directory::{Directory, PartitionPlace};
use super::dry::DryEnv;

/// While a broker runs, files come and go during a listing: a gap is believed when it is still there after so many.
const LISTINGS_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// A partition, looked at.
pub(super) struct Look {
    pub(super) files: PartitionFiles,
    /// What can be read ends here.
    pub(super) end: Position,
    /// What recovery would do; `None` beside a broker, which has recovered.
    pub(super) recovery: Option<Result<Recovered, OpenError>>,
    /// What the checkpoint says, if it is of this life of the log.
    pub(super) floor: Option<CheckpointEntry>,
}

impl Look {
    /// Lists the partition's directory and finds its end.
    pub(super) fn at(directory: &Directory, place: &PartitionPlace) -> io::Result<Self> {
        let files = list(&place.dir, directory.is_running)?;
        let Some(newest) = files.segments.last().cloned() else {
            return Ok(Self { files, end: Position::ZERO, recovery: None, floor: place.floor });
        };
        let floor = place.floor.filter(|floor| floor.epoch == newest.epoch);
        if directory.is_running {
            let durable = floor.map_or(Position::ZERO, |floor| floor.durable_end);
            let end = durable.min(newest.file_end()).max(newest.base);
            return Ok(Self { files, end, recovery: None, floor });
        }
        let recovery = dry_recovery(directory, place, newest.epoch);
        let end = match &recovery {
            Ok(report) if report.damage.is_none_or(|damage| damage < newest.base) => report.end,
            // It would be closed at the end of its file.
            _ => newest.file_end(),
        };
        Ok(Self { files, end: end.max(newest.base), recovery: Some(recovery), floor })
    }

    /// Where a segment ends: its file may hold less.
    pub(super) fn segment_end(&self, segment: &SegmentFile) -> Position {
        segment.next.unwrap_or(self.end)
    }
}

fn list(dir: &Path, is_running: bool) -> io::Result<PartitionFiles> {
    let mut attempts = 1;
    loop {
        let files = blocking::run(partition_files(&BlockingDisk, dir))?;
        if files.gap.is_none() || !is_running || attempts == LISTINGS_MAX {
            return Ok(files);
        }
        attempts += 1;
        std::thread::sleep(PAUSE);
    }
}

fn dry_recovery(directory: &Directory, place: &PartitionPlace, epoch: Epoch) -> Result<Recovered, OpenError> {
    let shard = Shard::new(DryEnv::default());
    let (floor, clean) = (place.floor, directory.was_clean());
    let options = directory.options(place, epoch);
    let opened = blocking::run(Partition::open(&shard, place.topic_dir(), &options, floor, clean));
    opened.map(|(_, _, report)| report)
}
