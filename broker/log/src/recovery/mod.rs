//! Making and opening a partition. Opening is recovery: the same walk after an orderly stop and after a crash. Nothing is
//! visible, and no append begins, before what was found is certain to be on the disk.

mod decide;
mod layout;
mod mend;
mod walk;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use corelane_proto::ids::Position;

use crate::checkpoint::CheckpointEntry;
use crate::config::{InvalidConfig, PartitionOptions};
use crate::coverage::LastMessage;
use crate::env::{Disk, Env, File, OpenMode};
use crate::error::{ClosedReason, OpenError, is_no_space};
use crate::index::Index;
use crate::names;
use crate::partition::{Driver, Found, Partition, count};
use crate::plan::ceil_block;
use crate::segment::{Arrivals, Now, Segment};
use crate::shard::{EnvFile, Shard};
use decide::{Stop, Verdict};
use layout::{Layout, SegmentFile};
use walk::{Reader, Walked};

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
        let file = match &Layout::read(&entries).segments[..] {
            [] => None,
            [only] if (only.base, only.epoch) == (base, options.epoch) => Some(take_over(shard, &dir, only).await?),
            _ => return Err(OpenError::Exists { path: dir }),
        };
        let (file, file_bytes) = make_segment(shard, &dir, base, options, file).await?;
        disk.sync_dir(&dir).await.map_err(OpenError::disk("flushing", &dir))?;
        disk.sync_dir(topic_dir).await.map_err(OpenError::disk("flushing", topic_dir))?;
        let segments = VecDeque::from([empty_segment(shard, base, options, file, file_bytes)]);
        let found = Found { segments, end: base, last: LastMessage::default(), refuses: None };
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

/// Makes an empty segment, or goes on with one, with the first step of space allocated.
async fn make_segment<E: Env>(
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

fn empty_segment<E: Env>(
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

/// The segments as a partition keeps them; nothing is open yet.
fn segment_list<E: Env>(
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
            modified_ms: file.modified_ms,
            needs_trim: at < closed && file.bytes > length,
            needs_summary: false,
        });
    }
    list
}

/// One run of recovery.
struct Recovery<'a, E: Env> {
    shard: &'a Shard<E>,
    dir: &'a Path,
    options: &'a PartitionOptions,
    floor: Option<CheckpointEntry>,
    clean: bool,
    report: Recovered,
}

/// Where the walk ended.
struct Outcome {
    end: u64,
    last: LastMessage,
    /// Where a torn tail behind the end ends.
    tail_to: Option<u64>,
    /// The last segment is damaged: it is closed at the end, and a new one begins there.
    closes_last: bool,
    /// What the walk got to know of segments, by their place in the list.
    indexes: Vec<(usize, Index)>,
    /// Whether the checkpoint's last message was found where it says.
    agrees: bool,
}

impl<E: Env> Recovery<'_, E> {
    async fn run(mut self) -> Result<(Found<E>, Recovered), OpenError> {
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
        if let Some(gap) = layout.gap() {
            let (from, to) = (Position(gap.from), Position(gap.to));
            return Err(OpenError::Gap { path: self.dir.to_owned(), from, to });
        }
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
        if outcome.closes_last {
            self.go_on_in_new(segments, file, outcome).await
        } else {
            self.settle(segments, file, outcome).await
        }
    }

    /// Finds the end: walks from the floor, or from the last segment's base, through all segments that follow.
    async fn walk(&mut self, segments: &[SegmentFile], newest: &EnvFile<E>) -> Result<Outcome, OpenError> {
        let last_index = segments.len() - 1;
        let floor = self.floor.map_or(0, |floor| floor.durable_end.0);
        let agreeing = self.agreeing_segment(segments, newest).await?;
        let start = match agreeing {
            Some(_) => floor,
            None => self.start_without_floor(segments, newest).await?,
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
            let walked = reader.walk_sets(from, limit).await.map_err(read_error)?;
            self.refuse_newer(segment, &walked)?;
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
                    let behind = reader.walk_sets(floor, limit).await;
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

    /// Without a checkpoint that agrees: the last segment's base; if nothing is in it, the base of the one before.
    async fn start_without_floor(&self, segments: &[SegmentFile], newest: &EnvFile<E>) -> Result<u64, OpenError> {
        let last = segments.last().expect("there is a newest segment");
        let Some(before) = segments.len().checked_sub(2) else { return Ok(last.base) };
        let content = self.reader(last, newest).content_end(last.base).await;
        let is_empty = content.map_err(OpenError::disk("reading", self.path(last)))?.is_none();
        Ok(if is_empty { segments[before].base } else { last.base })
    }

    /// The last segment is damaged: it is kept and closed at the larger of what is allocated and the floor, and a new one
    /// begins there.
    async fn go_on_in_new(
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
        let mut list = segment_list(&segments, outcome.indexes, false);
        list.back_mut().expect("there is a damaged segment").arrivals = Some(self.arrivals(&damaged));
        list.push_back(empty_segment(self.shard, outcome.end, self.options, new, new_bytes));
        let found = Found { segments: list, end: outcome.end, last: LastMessage::default(), refuses: None };
        Ok((found, self.report))
    }

    /// The last segment ends in order or with a torn tail: makes what was found certain, and zeros behind it.
    async fn settle(
        mut self,
        mut segments: Vec<SegmentFile>,
        file: EnvFile<E>,
        outcome: Outcome,
    ) -> Result<(Found<E>, Recovered), OpenError> {
        let last = segments.last_mut().expect("there is a newest segment");
        let path = self.dir.join(last.name());
        let end = outcome.end - last.base;
        if ceil_block(last.bytes) > last.bytes {
            file.allocate(ceil_block(last.bytes)).await.map_err(OpenError::disk("allocating space for", &path))?;
            last.bytes = ceil_block(last.bytes);
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
        let mut list = segment_list(&segments, outcome.indexes, true);
        let active = list.back_mut().expect("there is a newest segment");
        active.file = Some(file);
        active.writes = true;
        if outcome.end > active.base {
            active.arrivals = Some(self.arrivals(&last));
        }
        Ok((Found { segments: list, end: outcome.end, last: outcome.last, refuses }, self.report))
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

    /// When the active segment's bytes arrived: as the checkpoint says, or else when its file was last written.
    fn arrivals(&self, active: &SegmentFile) -> Arrivals {
        let recorded = self.floor.filter(|floor| floor.segment_base.0 == active.base);
        let first_ms = recorded.and_then(|floor| floor.first_arrival_ms).unwrap_or(active.modified_ms);
        let last_ms = recorded.and_then(|floor| floor.last_arrival_ms).unwrap_or(first_ms).max(active.modified_ms);
        Arrivals::recorded(first_ms, last_ms, Now::read(self.shard.env()))
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

    fn reader<'f>(&'f self, segment: &SegmentFile, file: &'f EnvFile<E>) -> Reader<'f, E> {
        Reader { shard: self.shard, file, base: segment.base, bytes: segment.bytes }
    }

    async fn sync_dir(&self) -> Result<(), OpenError> {
        self.shard.env().disk().sync_dir(self.dir).await.map_err(OpenError::disk("flushing", self.dir))
    }

    fn path(&self, segment: &SegmentFile) -> PathBuf {
        self.dir.join(segment.name())
    }

    fn label(&self) -> String {
        format!("{}/{}", self.options.topic, self.options.partition)
    }
}
