//! Recovery's first half: which files there are, and where the log ends. Nothing but leftovers is touched.

use std::path::{Path, PathBuf};

use corelane_proto::ids::Position;

use super::Recovered;
use super::decide::{Stop, Verdict};
use super::layout::{Layout, SegmentFile};
use super::walk::{Reader, Walked};
use crate::checkpoint::CheckpointEntry;
use crate::config::PartitionOptions;
use crate::coverage::LastMessage;
use crate::env::{Disk, Env, File, OpenMode};
use crate::error::OpenError;
use crate::index::Index;
use crate::names;
use crate::partition::Found;
use crate::shard::{EnvFile, Shard};

/// One run of recovery.
pub(super) struct Recovery<'a, E: Env> {
    pub(super) shard: &'a Shard<E>,
    pub(super) dir: &'a Path,
    pub(super) options: &'a PartitionOptions,
    pub(super) floor: Option<CheckpointEntry>,
    pub(super) clean: bool,
    pub(super) report: Recovered,
}

/// Where the walk ended.
pub(super) struct Outcome {
    pub(super) end: u64,
    pub(super) last: LastMessage,
    /// Where a torn tail behind the end ends.
    pub(super) tail_to: Option<u64>,
    /// The last segment is damaged: it is closed at the end, and a new one begins there.
    pub(super) closes_last: bool,
    /// What the walk got to know of segments, by their place in the list.
    pub(super) indexes: Vec<(usize, Index)>,
    /// Whether the checkpoint's last message was found where it says.
    pub(super) agrees: bool,
}

impl<E: Env> Recovery<'_, E> {
    pub(super) async fn run(mut self) -> Result<(Found<E>, Recovered), OpenError> {
        let disk = self.shard.env().disk().clone();
        let entries = disk.list(self.dir).await.map_err(OpenError::disk("listing", self.dir))?;
        let layout = Layout::read(&entries);
        let Some(newest) = layout.segments.last() else { return Err(OpenError::Missing { path: self.dir.to_owned() }) };
        if newest.epoch != self.options.epoch {
            let (on_disk, expected) = (newest.epoch, self.options.epoch);
            return Err(OpenError::Epoch { path: self.dir.to_owned(), on_disk, expected });
        }
        // The lock waits until the last write of a process that was killed has landed: only then is anything read.
        let path = self.path(newest);
        let file = disk.open(&path, OpenMode::Write).await.map_err(OpenError::disk("opening", &path))?;
        let mut segments = layout.segments.clone();
        let bytes = file.bytes().await.map_err(OpenError::disk("reading the size of", &path))?;
        segments.last_mut().expect("there is a newest segment").bytes = bytes;
        if let Some(gap) = layout.missing_start() {
            let (from, to) = (Position(gap.from), Position(gap.to));
            return Err(OpenError::MissingStart { path: self.dir.to_owned(), from, to, mark: names::start(from) });
        }
        if let Some(gap) = layout.gap() {
            let (from, to) = (Position(gap.from), Position(gap.to));
            return Err(OpenError::Gap { path: self.dir.to_owned(), from, to });
        }
        self.refuse_overlap(&segments).await?;
        for name in &layout.leftovers {
            // Were it to stay, it would be in nobody's way but the next roll's, which removes it as well.
            if let Err(error) = disk.remove_file(&self.dir.join(name)).await {
                tracing::warn!(partition = %self.label(), "{name} is of no use any more but cannot be removed: {error}");
            }
        }
        if !layout.foreign.is_empty() {
            tracing::warn!(partition = %self.label(), "left alone, not part of the log: {}", layout.foreign.join(", "));
            self.report.foreign = layout.foreign;
        }
        let outcome = self.walk(&segments, &file).await?;
        self.report.end = Position(outcome.end);
        let (mut found, report) = if outcome.closes_last {
            self.go_on_in_new(segments, file, outcome).await?
        } else {
            self.settle(segments, file, outcome).await?
        };
        found.start_mark = layout.start;
        Ok((found, report))
    }

    /// Finds the end: walks from the floor, or from the last segment's base, through all segments that follow.
    async fn walk(&mut self, segments: &[SegmentFile], newest: &EnvFile<E>) -> Result<Outcome, OpenError> {
        let last_index = segments.len() - 1;
        let floor = self.floor.map_or(0, |floor| floor.durable_end.0);
        let agreeing = self.agreeing_segment(segments, newest).await?;
        let start = match agreeing {
            Some(_) => floor,
            None => self.start_without_floor(segments, newest).await?.min(self.base_of_floor(segments)),
        };
        let known = self.floor.filter(|_| agreeing.is_some()).map(|floor| floor.last);
        let mut outcome = Outcome {
            end: start,
            last: known.unwrap_or_default(),
            tail_to: None,
            closes_last: false,
            indexes: Vec::new(),
            agrees: agreeing.is_some(),
        };
        let mut walked_bytes = 0;
        let mut damage = Vec::new();
        let first = segments.partition_point(|segment| segment.base <= start) - 1;
        for (index, segment) in segments.iter().enumerate().skip(first) {
            let is_closed = index < last_index;
            let limit = if is_closed { segments[index + 1].base } else { segment.file_end() };
            let opened = self.open_segment(segments, index, newest).await?;
            let reader = self.reader(segment, &opened);
            let from = start.max(segment.base);
            let read_error = OpenError::disk("reading", self.path(segment));
            let walked = reader.walk_sets(from, limit, floor).await.map_err(read_error)?;
            self.refuse_newer(segment, &walked)?;
            self.refuse_another(from, &walked)?;
            walked_bytes += walked.end - from;
            outcome.last = walked.last.unwrap_or(outcome.last);
            outcome.end = walked.end;
            let mut known = walked.index;
            if is_closed && walked.end == limit {
                // One that was not walked from its base has a summary that knows more.
                if known.is_complete() {
                    outcome.indexes.push((index, known));
                }
                continue;
            }
            let content_end = if is_closed {
                None
            } else {
                reader.content_end(walked.end).await.map_err(OpenError::disk("reading", self.path(segment)))?
            };
            let window = self.options.window_max_ever;
            match (Stop { at: walked.end, floor, is_closed, content_end, window }).verdict() {
                Verdict::End => {}
                Verdict::Tail { to } => outcome.tail_to = Some(to),
                Verdict::Damage => {
                    damage.push((walked.end, index));
                    outcome.closes_last = !is_closed;
                    outcome.end = if is_closed { limit } else { segment.file_end().max(floor) };
                    outcome.last = LastMessage::default();
                    if is_closed {
                        continue;
                    }
                    if walked.end >= floor || floor >= limit {
                        // A scan, once one is wanted, finds what is good behind what is bad.
                        continue;
                    }
                    // The floor is a boundary, and what follows it may be whole.
                    let behind = reader.walk_sets(floor, limit, 0).await;
                    let behind = behind.map_err(OpenError::disk("reading", self.path(segment)))?.index;
                    known.append_damage(floor - walked.end);
                    known = known.joined(&behind);
                    known.append_damage(outcome.end - segment.base - known.end);
                }
            }
            outcome.indexes.push((index, known));
        }
        self.report.walked_bytes = walked_bytes;
        for (at, index) in damage {
            self.note_damage(at, &segments[index]);
        }
        Ok(outcome)
    }

    fn note_damage(&mut self, at: u64, segment: &SegmentFile) {
        tracing::error!(
            partition = %self.label(),
            "damaged bytes at {at} in {}: everything is kept, readers skip what is bad; check the disk",
            segment.name()
        );
        self.report.damage.get_or_insert(Position(at));
    }

    fn refuse_newer(&self, segment: &SegmentFile, walked: &Walked) -> Result<(), OpenError> {
        match walked.newer {
            None => Ok(()),
            Some((at, version)) => Err(OpenError::NewerVersion { path: self.path(segment), at: Position(at), version }),
        }
    }

    /// What was durable never changes: whole good sets that lead over the checkpoint's end with another message before it
    /// are another log's.
    fn refuse_another(&self, from: u64, walked: &Walked) -> Result<(), OpenError> {
        let Some(floor) = self.floor.filter(|floor| floor.last.bytes > 0) else { return Ok(()) };
        let at = floor.durable_end;
        let is_led_over = (from + 1..=walked.end).contains(&at.0);
        if is_led_over && walked.at_watched != Some(floor.last) {
            return Err(OpenError::Another { path: self.dir.to_owned(), at });
        }
        Ok(())
    }

    /// A closed segment ends where the next one begins, and behind that its file has zeros at most, allocated ahead: they
    /// are trimmed off later.
    async fn refuse_overlap(&self, segments: &[SegmentFile]) -> Result<(), OpenError> {
        for (segment, next) in segments.iter().zip(&segments[1..]) {
            if segment.file_end() <= next.base {
                continue;
            }
            // One that cannot be read is told of when somebody wants to read it.
            let opened = self.shard.env().disk().open(&self.path(segment), OpenMode::Read).await;
            let Ok(file) = opened else { continue };
            if matches!(self.reader(segment, &file).overlaps(next.base).await, Ok(true)) {
                let (path, at) = (self.path(segment), Position(next.base));
                return Err(OpenError::Overlap { path, at, next: next.name() });
            }
        }
        Ok(())
    }

    /// The segment in which the checkpoint's last message lies, if it lies where the checkpoint says.
    async fn agreeing_segment(
        &self,
        segments: &[SegmentFile],
        newest: &EnvFile<E>,
    ) -> Result<Option<usize>, OpenError> {
        let Some(floor) = self.floor.filter(|floor| floor.last.bytes > 0) else { return Ok(None) };
        let Some(at) = floor.durable_end.0.checked_sub(u64::from(floor.last.bytes)) else { return Ok(None) };
        let Some(index) = segments.partition_point(|segment| segment.base <= at).checked_sub(1) else {
            return Ok(None);
        };
        let segment = &segments[index];
        let next = segments.get(index + 1);
        let limit = next.map_or(segment.file_end(), |next| next.base);
        let file = self.open_segment(segments, index, newest).await?;
        let agrees = self.reader(segment, &file).agrees_with(&floor, limit).await;
        Ok(agrees.map_err(OpenError::disk("reading", self.path(segment)))?.then_some(index))
    }

    /// Where the segment begins that holds the checkpoint's last message: a walk from there tells whether that message was
    /// damaged or is another log's.
    fn base_of_floor(&self, segments: &[SegmentFile]) -> u64 {
        let at = self.floor.and_then(|floor| floor.durable_end.0.checked_sub(u64::from(floor.last.bytes)));
        let before = at.map_or(0, |at| segments.partition_point(|segment| segment.base <= at));
        before.checked_sub(1).map_or(u64::MAX, |index| segments[index].base)
    }

    /// Without a checkpoint that agrees: the last segment's base; if nothing is in it, the base of the one before.
    async fn start_without_floor(&self, segments: &[SegmentFile], newest: &EnvFile<E>) -> Result<u64, OpenError> {
        let last = segments.last().expect("there is a newest segment");
        let Some(before) = segments.len().checked_sub(2) else { return Ok(last.base) };
        let content = self.reader(last, newest).content_end(last.base).await;
        let is_empty = content.map_err(OpenError::disk("reading", self.path(last)))?.is_none();
        Ok(if is_empty { segments[before].base } else { last.base })
    }

    /// The file of the segment at `index`: the newest one is open already.
    async fn open_segment(
        &self,
        segments: &[SegmentFile],
        index: usize,
        newest: &EnvFile<E>,
    ) -> Result<EnvFile<E>, OpenError> {
        if index + 1 == segments.len() {
            return Ok(newest.clone());
        }
        let path = self.path(&segments[index]);
        self.shard.env().disk().open(&path, OpenMode::Read).await.map_err(OpenError::disk("opening", path))
    }

    pub(super) fn reader<'f>(&'f self, segment: &SegmentFile, file: &'f EnvFile<E>) -> Reader<'f, E> {
        Reader { shard: self.shard, file, base: segment.base, bytes: segment.bytes }
    }

    pub(super) async fn sync_dir(&self) -> Result<(), OpenError> {
        let disk = self.shard.env().disk();
        disk.sync_dir(self.dir).await.map_err(OpenError::disk("flushing", self.dir))?;
        // Who made the partition may have been killed before its own name was durable.
        let parent = self.dir.parent().unwrap_or(self.dir);
        disk.sync_dir(parent).await.map_err(OpenError::disk("flushing", parent))
    }

    pub(super) fn path(&self, segment: &SegmentFile) -> PathBuf {
        self.dir.join(segment.name())
    }

    pub(super) fn label(&self) -> String {
        format!("{}/{}", self.options.topic, self.options.partition)
    }
}
