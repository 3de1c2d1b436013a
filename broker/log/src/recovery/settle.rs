//! Recovery's second half: makes certain what was found, and the partition from it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use corelane_proto::ids::Position;

use super::find_end::{Outcome, Recovery};
use super::layout::SegmentFile;
use super::{Recovered, mend};
use crate::config::PartitionOptions;
use crate::coverage::LastMessage;
use crate::env::{Disk, Env, File, OpenMode};
use crate::error::{ClosedReason, OpenError, is_no_space};
use crate::index::Index;
use crate::names;
use crate::partition::Found;
use crate::plan::{ceil_block, floor_block};
use crate::segment::{Arrivals, Now, Segment};
use crate::shard::{EnvFile, Shard};

/// Makes an empty segment, or goes on with one, with the first step of space allocated.
pub(super) async fn make_segment<E: Env>(
    shard: &Shard<E>,
    dir: &Path,
    base: u64,
    options: &PartitionOptions,
    file: Option<EnvFile<E>>,
) -> Result<(EnvFile<E>, u64), OpenError> {
    let path = dir.join(names::segment(Position(base), options.epoch));
    let file = match file {
        Some(file) => file,
        None => shard.env().disk().open(&path, OpenMode::Create).await.map_err(OpenError::disk("making", &path))?,
    };
    let bytes = shard.tuning().allocate_bytes_first.min(ceil_block(options.config.segment_bytes));
    let old_bytes = file.bytes().await.map_err(OpenError::disk("reading the size of", &path))?;
    file.allocate(bytes).await.map_err(OpenError::disk("allocating space for", &path))?;
    file.sync_data().await.map_err(OpenError::disk("flushing", &path))?;
    Ok((file, bytes.max(old_bytes)))
}

pub(super) fn empty_segment<E: Env>(
    shard: &Shard<E>,
    base: u64,
    options: &PartitionOptions,
    file: EnvFile<E>,
    file_bytes: u64,
) -> Segment<E> {
    Segment {
        base,
        epoch: options.epoch,
        file_bytes,
        file: Some(file),
        writes: true,
        index: Some(Rc::new(Index::new(0, shard.tuning().stretch_bytes))),
        facts: None,
        arrivals: None,
        modified_ms: i64::MAX,
        needs_trim: false,
        needs_summary: false,
    }
}

impl<E: Env> Recovery<'_, E> {
    /// The segments as a partition keeps them; nothing is open yet.
    fn segment_list(
        &self,
        files: &[SegmentFile],
        indexes: Vec<(usize, Index)>,
        last_is_active: bool,
    ) -> VecDeque<Segment<E>> {
        let mut indexes = indexes.into_iter().peekable();
        let closed = files.len() - usize::from(last_is_active);
        let mut list = VecDeque::with_capacity(files.len() + 1);
        for (at, file) in files.iter().enumerate() {
            let index = indexes.next_if(|(known, _)| *known == at).map(|(_, index)| Rc::new(index));
            let length = files.get(at + 1).map_or(file.bytes, |next| next.base - file.base);
            list.push_back(Segment {
                base: file.base,
                epoch: file.epoch,
                file_bytes: file.bytes,
                file: None,
                writes: false,
                index,
                facts: None,
                arrivals: None,
                modified_ms: self.arrived_by_ms(file, file.base + length),
                needs_trim: at < closed && file.bytes > length,
                needs_summary: false,
            });
        }
        list
    }

    /// The last segment is damaged: it is kept and closed at the larger of what is allocated and the floor, and a new one
    /// begins there.
    pub(super) async fn go_on_in_new(
        self,
        mut segments: Vec<SegmentFile>,
        file: EnvFile<E>,
        outcome: Outcome,
    ) -> Result<(Found<E>, Recovered), OpenError> {
        let last = segments.last_mut().expect("there is a newest segment");
        let bytes = outcome.end - last.base;
        let path = self.dir.join(last.name());
        if bytes > last.bytes {
            file.allocate(bytes).await.map_err(OpenError::disk("allocating space for", &path))?;
            last.bytes = bytes;
        }
        file.sync_data().await.map_err(OpenError::disk("flushing", &path))?;
        let (new, new_bytes) = make_segment(self.shard, self.dir, outcome.end, self.options, None).await?;
        self.sync_dir().await?;
        let damaged = *last;
        let mut list = self.segment_list(&segments, outcome.indexes, false);
        list.back_mut().expect("there is a damaged segment").arrivals = Some(self.arrivals(&damaged, outcome.end));
        list.push_back(empty_segment(self.shard, outcome.end, self.options, new, new_bytes));
        let found =
            Found { segments: list, end: outcome.end, last: LastMessage::default(), refuses: None, start_mark: None };
        Ok((found, self.report))
    }

    /// The last segment ends in order or with a torn tail: makes what was found certain, and zeros behind it.
    pub(super) async fn settle(
        mut self,
        mut segments: Vec<SegmentFile>,
        file: EnvFile<E>,
        outcome: Outcome,
    ) -> Result<(Found<E>, Recovered), OpenError> {
        let last = segments.last_mut().expect("there is a newest segment");
        let path = self.dir.join(last.name());
        let end = outcome.end - last.base;
        if ceil_block(last.bytes) > last.bytes {
            let content_end = outcome.tail_to.unwrap_or(outcome.end) - last.base;
            last.bytes = match file.allocate(ceil_block(last.bytes)).await {
                Ok(()) => ceil_block(last.bytes),
                // A disk that became full gave less than a block at the end, and nothing of the log lies in that.
                Err(error) if is_no_space(&error) && content_end <= floor_block(last.bytes) => floor_block(last.bytes),
                Err(error) => return Err(OpenError::disk("allocating space for", &path)(error)),
            };
        }
        let last = *last;
        let refuses = match outcome.tail_to {
            Some(tail_to) => self.keep_copy(&last, &file, outcome.end, tail_to).await?,
            None => None,
        };
        let floor = self.floor.map_or(0, |floor| floor.durable_end.0);
        let nothing_new = self.clean && outcome.agrees && outcome.tail_to.is_none() && floor == outcome.end;
        if !nothing_new {
            let window = self.options.window_max_ever;
            // What a checkpoint that agrees calls durable is; of the rest at most two windows can be uncertain: a set whose
            // unwritten end reads as zeros may reach beyond durable end + W.
            let certain = if outcome.agrees { floor.saturating_sub(last.base) } else { 0 };
            let from = end.saturating_sub(2 * window).max(certain.min(end));
            let zero_to = if refuses.is_some() { 0 } else { end.saturating_add(window).min(last.bytes) };
            let rewritten = mend::rewrite(self.shard, &file, from, end, zero_to).await;
            rewritten.map_err(OpenError::disk("writing", &path))?;
            file.sync_data().await.map_err(OpenError::disk("flushing", &path))?;
            self.sync_dir().await?;
        }
        let mut list = self.segment_list(&segments, outcome.indexes, true);
        let active = list.back_mut().expect("there is a newest segment");
        active.file = Some(file);
        active.writes = true;
        if outcome.end > active.base {
            active.arrivals = Some(self.arrivals(&last, outcome.end));
        }
        Ok((Found { segments: list, end: outcome.end, last: outcome.last, refuses, start_mark: None }, self.report))
    }

    /// Keeps a durable copy of a torn tail, before any of it is overwritten. Without room for it nothing is overwritten,
    /// and the partition takes no appends.
    async fn keep_copy(
        &mut self,
        segment: &SegmentFile,
        file: &EnvFile<E>,
        from: u64,
        to: u64,
    ) -> Result<Option<ClosedReason>, OpenError> {
        let bytes = to - from;
        let tail = self.reader(segment, file).copy(from, to).await;
        let tail = tail.map_err(OpenError::disk("reading", self.path(segment)))?;
        let (name, path) = self.name_of_copy(segment).await?;
        match self.shard.env().disk().replace_small(&path, tail).await {
            Ok(()) => {
                tracing::warn!(
                    partition = %self.label(),
                    "a torn tail of {bytes} bytes behind {from} was cut off; its copy is {name}"
                );
                self.report.cut = Some((path, bytes));
                Ok(None)
            }
            Err(error) if is_no_space(&error) => {
                let reason = ClosedReason::NoRoomForCopy { bytes };
                tracing::error!(partition = %self.label(), "{reason}");
                Ok(Some(reason))
            }
            Err(error) => Err(OpenError::disk("writing", path)(error)),
        }
    }

    /// A name that no earlier copy has, whatever the clock does.
    async fn name_of_copy(&self, segment: &SegmentFile) -> Result<(String, PathBuf), OpenError> {
        let disk = self.shard.env().disk();
        let entries = disk.list(self.dir).await.map_err(OpenError::disk("listing", self.dir))?;
        let mut wall_ms = self.shard.env().wall_ms();
        loop {
            let name = names::cut(Position(segment.base), segment.epoch, wall_ms);
            if !entries.iter().any(|entry| entry.name == name) {
                let path = self.dir.join(&name);
                return Ok((name, path));
            }
            wall_ms += 1;
        }
    }

    /// When the bytes arrived of a segment that was active at last and ends at `end`.
    fn arrivals(&self, segment: &SegmentFile, end: u64) -> Arrivals {
        let told = self.floor.filter(|floor| floor.segment_base.0 == segment.base);
        let first_ms = told.and_then(|floor| floor.first_arrival_ms).unwrap_or(segment.modified_ms);
        Arrivals::recorded(first_ms, self.arrived_by_ms(segment, end), Now::read(self.shard.env()))
    }

    /// When the newest byte had arrived of a segment that ends at `end`, for want of a summary. What the checkpoint does not
    /// tell of came after it, and so perhaps just now: a crash may have lost the file's time, and may have come before a
    /// wrong clock was set. Kept for too long is well, deleted too early is not.
    fn arrived_by_ms(&self, segment: &SegmentFile, end: u64) -> i64 {
        let Some(floor) = self.floor.filter(|floor| end <= floor.durable_end.0) else {
            return segment.modified_ms.max(self.shard.env().wall_ms());
        };
        let told_ms = floor.last_arrival_ms.filter(|_| floor.segment_base.0 == segment.base);
        told_ms.map_or(segment.modified_ms, |told_ms| told_ms.max(segment.modified_ms))
    }
}
