//! What a partition knows at one moment, and the small decisions that need all of it. Nothing here waits.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use corelane_proto::ids::Position;
use corelane_proto::set::SetInfo;

use super::promises::Promises;
use crate::config::TopicConfig;
use crate::coverage::{Coverage, LastMessage, SetEnd, SetEnds};
use crate::env::Env;
use crate::error::{AppendError, ClosedReason, ReadError};
use crate::index::{Index, Run};
use crate::landing::Place;
use crate::segment::{Arrivals, Now, Segment};
use crate::shard::EnvFile;
use crate::tail::Tail;
use crate::tuning::Tuning;

/// What creation or recovery found: the segments, the last of them open for writing, and the end.
pub(crate) struct Found<E: Env> {
    pub(crate) segments: VecDeque<Segment<E>>,
    pub(crate) end: u64,
    pub(crate) last: LastMessage,
    /// Why it takes no appends, if it does not.
    pub(crate) refuses: Option<ClosedReason>,
    /// Where a file's name says that the log begins.
    pub(crate) start_mark: Option<u64>,
}

pub(super) struct State<E: Env> {
    pub(super) config: TopicConfig,
    pub(super) tuning: Tuning,
    /// By base; the last one is active. Never empty.
    pub(super) segments: VecDeque<Segment<E>>,
    pub(super) end: u64,
    pub(super) durable: u64,
    /// The last message before the durable end.
    pub(super) last: LastMessage,
    pub(super) coverage: Coverage,
    pub(super) ends: SetEnds,
    pub(super) tail: Tail<E>,
    /// Who receives in the tail.
    pub(super) holder: Option<Rc<RefCell<Place<E>>>>,
    pub(super) space: Space,
    pub(super) next_file: NextFile<E>,
    pub(super) rolling: Rolling,
    /// Everything below is to be flushed, whatever the policy says.
    pub(super) flush_target: u64,
    /// Whether the shard will ask for a flush when memory is short.
    pub(super) known_dirty: bool,
    /// No arrival is recorded before this.
    pub(super) last_arrival_ms: i64,
    /// Why appends are refused.
    pub(super) refuses: Option<ClosedReason>,
    /// From this position on zeros are being written: no data goes there meanwhile.
    pub(super) zeroing: Option<u64>,
    /// Why the durable end will not move any more.
    pub(super) frozen: Option<ClosedReason>,
    /// From here on the file that is written was cut off, by somebody else.
    pub(super) cut_at: Option<u64>,
    /// Why nobody is served any more.
    pub(super) ended: Option<ClosedReason>,
    pub(super) ending: Option<Ending>,
    pub(super) chores: Chores,
    pub(super) promises: Promises<E>,
}

/// How the partition ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// What was appended is flushed first.
    Close,
    /// Nothing matters any more.
    Delete,
}

/// Space of the active segment's file, allocated ahead.
#[derive(Default)]
pub(super) struct Space {
    /// Bytes that are allocated for certain, the flush behind it included.
    pub(super) allocated: u64,
    /// Allocated, but the flush has not ended.
    pub(super) unsynced: Option<u64>,
    /// The disk is being asked.
    pub(super) is_asking: bool,
    /// Bytes that somebody waits for.
    pub(super) wanted: u64,
    /// When the disk was last found full.
    pub(super) full_at: Option<Duration>,
    /// The disk had none when it was last asked, which the operator was told.
    pub(super) was_refused: bool,
    /// Up to where zeros were written ahead, or were tried to be.
    pub(super) zeroed: u64,
    /// How many commits in a row were so small that this pays.
    pub(super) small_commits: u32,
}

impl Space {
    /// Whether an allocation is under way, its flush included.
    pub(super) fn is_busy(&self) -> bool {
        self.is_asking || self.unsynced.is_some()
    }
}

/// The file for the next segment, made ahead.
pub(super) enum NextFile<E: Env> {
    None,
    /// Somebody waits for it.
    Wanted,
    Making,
    Ready {
        file: EnvFile<E>,
        bytes: u64,
    },
}

/// Between a roll in memory and the moment when writes into the new segment may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rolling {
    No,
    /// The old segment is not flushed whole yet.
    Old,
    /// The old one is being flushed for the last time and the new one named.
    Naming,
}

/// What waits to be tidied up.
#[derive(Default)]
pub(super) struct Chores {
    pub(super) is_busy: bool,
    /// Until then nothing is deleted, after a failure.
    pub(super) expiry_rests_until: Duration,
    /// Until then nothing is trimmed or summarised, after a failure.
    pub(super) tidying_rests_until: Duration,
    /// Segments that are to be trimmed or summarised.
    pub(super) untidy: usize,
    /// An operator's wish: segments that end at or below it go.
    pub(super) trim_to: u64,
    /// How far the active segment's summary tells of it, in bytes from its base.
    pub(super) summarized_to: u64,
    /// What left the log, and has yet to leave the disk for certain.
    pub(super) doomed: Option<Doomed>,
    /// Where the name of a file says that the log begins, as far as is known; `None`: there is no such file.
    pub(super) start_mark: Option<u64>,
    /// No file says so: the log was made by an older version. One is made.
    pub(super) needs_mark: bool,
    /// Failures to delete so far, and the last one.
    pub(super) failures: u64,
    pub(super) last_failure: String,
}

/// The files of a segment that is no longer part of the log.
#[derive(Clone)]
pub(super) struct Doomed {
    pub(super) log: PathBuf,
    pub(super) summary: PathBuf,
}

/// Whether a set may be appended now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Ready,
    /// The driver is to look, and the caller waits for `room`.
    Wait,
    /// The segment is full and the next one could begin, but somebody receives in the tail.
    Roll,
}

impl<E: Env> State<E> {
    pub(super) fn new(config: TopicConfig, tuning: Tuning, found: Found<E>) -> Self {
        let Found { mut segments, end, last, refuses, start_mark } = found;
        let active = segments.back_mut().expect("a log has a segment");
        if active.index.is_none() {
            active.index = Some(Rc::new(Index::new(end - active.base, tuning.stretch_bytes)));
        }
        let space = Space { allocated: active.file_bytes, ..Space::default() };
        let last_arrival_ms =
            segments.iter().filter_map(|segment| segment.arrivals).map(|arrivals| arrivals.last_ms).max();
        let untidy = segments.iter().filter(|segment| segment.needs_trim || segment.needs_summary).count();
        Self {
            config,
            tuning,
            segments,
            end,
            durable: end,
            last,
            coverage: Coverage::new(end),
            ends: SetEnds::default(),
            tail: Tail::new(tuning.tail_chunk_bytes_max),
            holder: None,
            space,
            next_file: NextFile::None,
            rolling: Rolling::No,
            flush_target: end,
            known_dirty: false,
            last_arrival_ms: last_arrival_ms.unwrap_or(i64::MIN),
            refuses,
            zeroing: None,
            frozen: None,
            cut_at: None,
            ended: None,
            ending: None,
            chores: Chores { untidy, start_mark, needs_mark: start_mark.is_none(), ..Chores::default() },
            promises: Promises::default(),
        }
    }

    pub(super) fn count_untidy(&self) -> usize {
        self.segments.iter().filter(|segment| segment.needs_trim || segment.needs_summary).count()
    }

    pub(super) fn start(&self) -> u64 {
        self.segments[0].base
    }

    pub(super) fn active(&self) -> &Segment<E> {
        self.segments.back().expect("a log has an active segment")
    }

    /// The segment that writes go to: while a roll is under way, the old one.
    pub(super) fn written(&self) -> &Segment<E> {
        match self.rolling {
            Rolling::No => self.active(),
            Rolling::Old | Rolling::Naming => &self.segments[self.segments.len() - 2],
        }
    }

    /// How many segments, from the oldest, are closed and flushed whole.
    pub(super) fn closed_segments(&self) -> usize {
        self.segments.len() - if self.rolling == Rolling::No { 1 } else { 2 }
    }

    /// The segment that holds `at`; for the end, the active one.
    pub(super) fn segment_index(&self, at: u64) -> usize {
        self.segments.partition_point(|segment| segment.base <= at) - 1
    }

    /// Refuses positions below the start and beyond the end.
    pub(super) fn check_range(&self, at: u64) -> Result<(), ReadError> {
        if let Some(reason) = &self.ended {
            return Err(ReadError::Gone(reason.clone()));
        }
        if at < self.start() || at > self.end {
            return Err(ReadError::OutOfRange { start: Position(self.start()), end: Position(self.end) });
        }
        Ok(())
    }

    /// Where the segment at `index` ends.
    pub(super) fn segment_end(&self, index: usize) -> u64 {
        self.segments.get(index + 1).map_or(self.end, |next| next.base)
    }

    /// Whether `bytes` bytes can be appended, and if not, asks for what is missing. The clock is read only where it matters:
    /// a set passes here twice.
    pub(super) fn room_for(&mut self, bytes: usize, now: impl Fn() -> Duration) -> Result<Room, AppendError> {
        if let Some(reason) = &self.refuses {
            return Err(AppendError::Closed(reason.clone()));
        }
        if bytes as u64 > u64::from(self.config.set_bytes_max) {
            let limit = u64::from(self.config.set_bytes_max);
            return Err(AppendError::TooLarge { bytes: bytes as u64, limit });
        }
        if self.rolling != Rolling::No && self.is_resting(now()) {
            return Err(AppendError::NoSpace);
        }
        let used = self.end - self.active().base;
        let needed = used + bytes as u64;
        if used > 0 && needed > self.config.segment_bytes {
            return self.ask_for_roll(now());
        }
        if needed <= self.space.allocated {
            return Ok(Room::Ready);
        }
        self.check_full(now())?;
        self.space.wanted = self.space.wanted.max(needed);
        Ok(Room::Wait)
    }

    fn ask_for_roll(&mut self, now: Duration) -> Result<Room, AppendError> {
        if self.rolling != Rolling::No || self.space.is_busy() {
            return Ok(Room::Wait);
        }
        match self.next_file {
            NextFile::Ready { .. } => return Ok(Room::Roll),
            NextFile::None => {
                self.check_full(now)?;
                self.next_file = NextFile::Wanted;
            }
            NextFile::Wanted | NextFile::Making => {}
        }
        Ok(Room::Wait)
    }

    /// The disk was full: says so for a while, then lets it be asked again.
    fn check_full(&mut self, now: Duration) -> Result<(), AppendError> {
        if self.is_resting(now) {
            return Err(AppendError::NoSpace);
        }
        self.space.full_at = None;
        Ok(())
    }

    /// Whether the disk was full a moment ago and is not asked again yet.
    pub(super) fn is_resting(&self, now: Duration) -> bool {
        self.rests_until().is_some_and(|until| now < until)
    }

    /// When the disk, having been full, may be asked again.
    pub(super) fn rests_until(&self) -> Option<Duration> {
        self.space.full_at.map(|at| at + self.tuning.no_space_retry)
    }

    /// Whether the window has room for `bytes` more; if not, a flush is forced.
    pub(super) fn window_has_room(&mut self, bytes: usize, window: u64) -> bool {
        if self.end == self.durable || self.end - self.durable + bytes as u64 <= window {
            return true;
        }
        self.flush_target = self.end;
        false
    }

    /// Goes on in the next segment: in memory now, on the disk once the old one is flushed whole.
    pub(super) fn begin_roll(&mut self) {
        assert!(self.holder.is_none(), "nobody was expected to receive in the tail during a roll");
        assert!(self.rolling == Rolling::No && self.end > self.active().base, "a segment with content was expected");
        assert!(!self.space.is_busy(), "no allocation was expected under way during a roll");
        let NextFile::Ready { file, bytes } = std::mem::replace(&mut self.next_file, NextFile::None) else {
            unreachable!("the next segment's file was expected to be ready");
        };
        let epoch = self.active().epoch;
        self.segments.push_back(Segment {
            base: self.end,
            epoch,
            file_bytes: bytes,
            file: Some(file),
            writes: true,
            index: Some(Rc::new(Index::new(0, self.tuning.stretch_bytes))),
            facts: None,
            arrivals: None,
            modified_ms: i64::MAX,
            needs_trim: false,
            needs_summary: false,
        });
        self.space = Space { allocated: bytes, ..Space::default() };
        self.rolling = Rolling::Old;
        self.chores.summarized_to = 0;
        self.flush_target = self.end;
    }

    /// A checked set of `bytes` bytes is now part of the log. Returns its first id.
    pub(super) fn commit(&mut self, bytes: usize, info: &SetInfo, now: Now) -> u64 {
        let first = self.end;
        self.end += bytes as u64;
        self.ends.push(SetEnd {
            end: self.end,
            messages: info.messages_inside.try_into().unwrap_or(u32::MAX),
            last: LastMessage { bytes: info.last_length, crc: info.last_crc },
            appended: now.monotonic,
        });
        let not_before_ms = self.last_arrival_ms;
        let active = self.segments.back_mut().expect("a log has an active segment");
        match &mut active.arrivals {
            Some(arrivals) => arrivals.extend(now),
            arrivals @ None => *arrivals = Some(Arrivals::begin(now, not_before_ms)),
        }
        self.last_arrival_ms = not_before_ms.max(now.wall_ms);
        let index = active.index.as_mut().expect("the active segment has an index");
        Rc::make_mut(index).append(Run {
            bytes: bytes as u64,
            messages: info.messages_inside,
            max_timestamp_ms: info.max_timestamp_ms,
        });
        first
    }

    /// See [`Arrivals::correct`].
    pub(super) fn correct_arrivals(&mut self, now: Now) {
        // Segments older than these have been written down.
        let recent = self.segments.len().saturating_sub(3);
        self.segments
            .range_mut(recent..)
            .filter_map(|segment| segment.arrivals.as_mut())
            .for_each(|arrivals| arrivals.correct(now));
    }

    /// Closes the file that readers use of a closed segment.
    pub(super) fn close_read_file(&mut self, base: u64) {
        let closed = self.closed_segments();
        let mut closed = self.segments.range_mut(..closed);
        if let Some(segment) = closed.find(|segment| segment.base == base && !segment.writes) {
            segment.file = None;
        }
    }

    /// Keeps the summaries of a few closed segments only.
    pub(super) fn forget_summaries(&mut self, keep: u64) {
        // One that is not flushed whole cannot be read back yet.
        let closed = self.closed_segments();
        let loaded = |segment: &Segment<E>| segment.index.is_some() && !segment.needs_summary;
        let count = self.segments.range(..closed).filter(|segment| loaded(segment)).count();
        if count <= self.tuning.summaries_loaded_max {
            return;
        }
        let forgotten = self.segments.range_mut(..closed).find(|segment| loaded(segment) && segment.base != keep);
        if let Some(segment) = forgotten {
            segment.index = None;
        }
    }
}
