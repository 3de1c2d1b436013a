//! Keeping the log tidy, one chore at a time: expired segments go, closed ones are trimmed to their length and get their
//! summaries. And the operator's calls: trim, close, delete.

use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use corelane_proto::ids::Position;

use super::promises::Departed;
use super::state::{Doomed, Ending, Rolling, State};
use super::{Inner, Partition, count};
use crate::env::{Disk, Env, File, OpenMode};
use crate::error::{ClosedReason, KeepError, is_no_space};
use crate::limits;
use crate::names;
use crate::retention::{ClosedSegment, expires_at_ms, is_expired};
use crate::segment::{Arrivals, Facts, Now, Segment};
use crate::summary::Summary;

/// One chore, about the closed segment at `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chore {
    base: u64,
    kind: ChoreKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChoreKind {
    /// It is too old or too much.
    Expire,
    /// Find out when its bytes arrived.
    LookUp,
    /// Its file is longer than it.
    Trim,
    /// It has no sidecar yet.
    Summarize,
    /// A segment before it left the log, but deleting its files failed.
    Remove,
    /// No file says that the log begins here.
    MarkStart,
}

impl<E: Env> Partition<E> {
    /// Moves the start to the last segment start at or below `to`, and says where it is then. Durable when it completes.
    pub async fn trim(&self, to: Position) -> Result<Position, KeepError> {
        let inner = &self.inner;
        let failures = {
            let mut state = inner.state.borrow_mut();
            if to.0 > state.end {
                return Err(KeepError::OutOfRange { start: Position(state.start()), end: Position(state.end) });
            }
            state.chores.trim_to = state.chores.trim_to.max(to.0);
            state.chores.expiry_rests_until = Duration::ZERO;
            state.chores.failures
        };
        loop {
            let changed = inner.room.changed();
            {
                let state = inner.state.borrow();
                if let Some(reason) = &state.ended {
                    return Err(KeepError::Closed(reason.clone()));
                }
                if state.chores.failures != failures {
                    let reason = state.chores.last_failure.clone();
                    return Err(KeepError::Disk { what: "deleting a segment".to_owned(), reason });
                }
                let remains = state.closed_segments() > 0 && state.segment_end(0) <= to.0;
                if !remains && !state.chores.is_busy && state.chores.doomed.is_none() {
                    return Ok(Position(state.start()));
                }
            }
            inner.driver.notify();
            changed.await;
        }
    }

    /// Takes no more appends, flushes what there is, ends the driver. Completes when that is done; an error says that not
    /// everything could be flushed. Readers are told that the partition is gone.
    pub async fn close(&self) -> Result<(), ClosedReason> {
        self.end(Ending::Close, ClosedReason::Stopping).await;
        let state = self.inner.state.borrow();
        match &state.refuses {
            Some(reason) if *reason != ClosedReason::Stopping => Err(reason.clone()),
            _ if state.durable == state.end => Ok(()),
            _ => Err(ClosedReason::Stopping),
        }
    }

    /// Ends the driver without flushing anything, for a partition whose directory goes as a whole. Readers and publishers
    /// are told that it is deleted; who reads a file of it already can go on.
    pub async fn abandon(&self) {
        self.end(Ending::Delete, ClosedReason::Deleted).await;
    }

    /// Deletes the partition: its directory is renamed first, so that a crash leaves it there or leaves something that is
    /// recognised as rubbish, then it is emptied and removed.
    pub async fn delete(&self) -> Result<(), KeepError> {
        self.abandon().await;
        let dir = &self.inner.dir;
        remove_dir(self.inner.shard.env().disk(), dir)
            .await
            .map_err(|error| KeepError::Disk { what: format!("deleting {}", dir.display()), reason: error.to_string() })
    }

    async fn end(&self, ending: Ending, reason: ClosedReason) {
        let inner = &self.inner;
        {
            let mut state = inner.state.borrow_mut();
            state.ending = Some(ending);
            if ending == Ending::Delete {
                state.frozen = Some(reason.clone());
                state.refuses = Some(reason);
            } else {
                state.refuses.get_or_insert(reason);
            }
        }
        inner.wake_everybody();
        loop {
            let changed = inner.room.changed();
            if inner.state.borrow().ended.is_some() {
                return;
            }
            changed.await;
        }
    }
}

/// Renames a partition's directory, then empties and removes it.
async fn remove_dir<D: Disk>(disk: &D, dir: &Path) -> std::io::Result<()> {
    let mut renamed = dir.as_os_str().to_owned();
    renamed.push(".deleted");
    let renamed = Path::new(&renamed);
    // What a crash left of an earlier deletion would be in the way of the rename.
    empty_dir(disk, renamed).await?;
    disk.rename(dir, renamed).await?;
    disk.sync_dir(dir.parent().unwrap_or(Path::new("."))).await?;
    empty_dir(disk, renamed).await
}

async fn remove_if_there<D: Disk>(disk: &D, path: &Path) -> std::io::Result<()> {
    match disk.remove_file(path).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes a directory and the files in it; one that is not there is well.
async fn empty_dir<D: Disk>(disk: &D, dir: &Path) -> std::io::Result<()> {
    let entries = match disk.list(dir).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        disk.remove_file(&dir.join(entry.name)).await?;
    }
    disk.remove_dir(dir).await
}

impl<E: Env> State<E> {
    fn oldest_closed(&self) -> Option<ClosedSegment> {
        let oldest = self.segments.front().filter(|_| self.closed_segments() > 0)?;
        Some(ClosedSegment {
            end: self.segment_end(0),
            last_at_ms: oldest.arrivals.map(|arrivals| arrivals.last_at_ms),
        })
    }

    /// What is to be done next, unless something failed and rests.
    pub(super) fn next_chore(&self, now: Now) -> Option<Chore> {
        let expiry = self.next_expiry(now).filter(|_| now.monotonic >= self.chores.expiry_rests_until);
        expiry.or_else(|| self.next_tidying().filter(|_| now.monotonic >= self.chores.tidying_rests_until))
    }

    /// When the next chore is due, if there is one to come.
    pub(super) fn next_chore_at(&self, now: Now) -> Option<Duration> {
        if self.chores.is_busy {
            return None;
        }
        let expiry = if self.next_expiry(now).is_some() {
            Some(self.chores.expiry_rests_until)
        } else {
            let at_ms = self.oldest_closed().and_then(|oldest| expires_at_ms(&self.config, oldest));
            at_ms.map(|at_ms| Duration::from_millis(at_ms.max(0) as u64))
        };
        let tidying = self.next_tidying().map(|_| self.chores.tidying_rests_until);
        expiry.into_iter().chain(tidying).min().map(|at| at.max(now.monotonic))
    }

    /// What makes room: it never waits for what only tidies up.
    fn next_expiry(&self, now: Now) -> Option<Chore> {
        let chore = |kind| Some(Chore { base: self.start(), kind });
        if self.chores.doomed.is_some() {
            return chore(ChoreKind::Remove);
        }
        let oldest = self.oldest_closed()?;
        if oldest.end <= self.chores.trim_to || is_expired(&self.config, oldest, self.durable, now.monotonic_ms) {
            return chore(ChoreKind::Expire);
        }
        let is_unknown = self.config.retention_ms > 0 && oldest.last_at_ms.is_none();
        if is_unknown { chore(ChoreKind::LookUp) } else { None }
    }

    fn next_tidying(&self) -> Option<Chore> {
        let active = self.active();
        let grown = self.durable.saturating_sub(active.base).saturating_sub(self.chores.summarized_to);
        if self.rolling == Rolling::No && grown >= self.tuning.summary_step_bytes {
            return Some(Chore { base: active.base, kind: ChoreKind::Summarize });
        }
        if self.chores.needs_mark {
            return Some(Chore { base: self.start(), kind: ChoreKind::MarkStart });
        }
        if self.chores.untidy == 0 {
            return None;
        }
        let mut closed = self.segments.range(..self.closed_segments());
        let untidy = closed.find(|segment| segment.needs_trim || segment.needs_summary)?;
        let kind = if untidy.needs_trim { ChoreKind::Trim } else { ChoreKind::Summarize };
        Some(Chore { base: untidy.base, kind })
    }

    /// The closed segment at `base`, if it is still there.
    pub(super) fn closed_mut(&mut self, base: u64) -> Option<&mut Segment<E>> {
        let index = self.segments.binary_search_by_key(&base, |segment| segment.base).ok()?;
        (index < self.closed_segments()).then(|| &mut self.segments[index])
    }
}

impl<E: Env> Inner<E> {
    pub(super) async fn do_chore(self: Rc<Self>, chore: Chore) {
        let done = match chore.kind {
            ChoreKind::Expire => self.expire(chore.base).await,
            ChoreKind::LookUp => {
                self.look_up(chore.base).await;
                Ok(())
            }
            ChoreKind::Trim => self.trim_file(chore.base).await,
            ChoreKind::Summarize => self.summarize(chore.base).await,
            ChoreKind::Remove => self.remove_doomed().await,
            ChoreKind::MarkStart => self.mark_start().await,
        };
        let now = self.shard.env().monotonic();
        let mut state = self.state.borrow_mut();
        state.chores.is_busy = false;
        if let Err(error) = done {
            let what = format!("{:?} of the segment at {}", chore.kind, chore.base);
            tracing::warn!(partition = %self.label, "{what} failed and is tried again later: {error}");
            let until = now + self.shard.tuning().housekeeping_retry;
            match chore.kind {
                ChoreKind::Trim | ChoreKind::Summarize | ChoreKind::MarkStart => {
                    state.chores.tidying_rests_until = until;
                }
                ChoreKind::Expire | ChoreKind::LookUp | ChoreKind::Remove => {
                    state.chores.expiry_rests_until = until;
                    state.chores.failures += 1;
                    state.chores.last_failure = error.to_string();
                }
            }
        }
        state.chores.untidy = state.count_untidy();
        drop(state);
        self.room.notify();
    }

    /// Takes the oldest segment out of the log and deletes it. The start never moves back, even when that fails.
    /// What readers were promised of it they are sent: its file stays open for them.
    async fn expire(&self, base: u64) -> std::io::Result<()> {
        self.open_promised(base).await;
        {
            let mut state = self.state.borrow_mut();
            assert!(state.closed_segments() > 0 && state.start() == base, "the oldest segment was expected at {base}");
            let end = state.segment_end(0);
            let mut segment = state.segments.pop_front().expect("a closed segment is there");
            if let Some(file) = segment.file.take() {
                state.promises.depart(Departed { base, end, file });
            }
            let (log, summary) = (self.dir.join(segment.name()), self.dir.join(segment.summary_name()));
            state.chores.doomed = Some(Doomed { log, summary });
        }
        self.remove_doomed().await
    }

    /// Deletes the files of the segment that was taken out of the log last. The directory is flushed before the next one
    /// may go: a crash must not leave a gap.
    async fn remove_doomed(&self) -> std::io::Result<()> {
        let Some(Doomed { log, summary }) = self.state.borrow().chores.doomed.clone() else { return Ok(()) };
        self.move_mark().await?;
        let disk = self.shard.env().disk();
        for path in [&log, &summary] {
            remove_if_there(disk, path).await?;
        }
        disk.sync_dir(&self.dir).await?;
        self.state.borrow_mut().chores.doomed = None;
        Ok(())
    }

    /// Makes the empty file whose name says where the log begins. Failed once, it is left to the next start.
    async fn mark_start(&self) -> std::io::Result<()> {
        let start = {
            let mut state = self.state.borrow_mut();
            let start = state.start();
            state.chores.needs_mark = false;
            // Even if this fails: what may be there must move along.
            state.chores.start_mark = Some(start);
            start
        };
        let path = self.dir.join(names::start(Position(start)));
        match self.shard.env().disk().open(&path, OpenMode::Create).await {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Says durably that the log begins where its first segment now does, before the file of the one that left it goes:
    /// else a start could not tell what retention took from what was lost. A rename asks a full disk for nothing, and
    /// where even that is refused, nothing is said any more.
    async fn move_mark(&self) -> std::io::Result<()> {
        let disk = self.shard.env().disk();
        let (known, start) = {
            let state = self.state.borrow();
            (state.chores.start_mark, state.start())
        };
        if let Some(known) = known.filter(|known| *known < start) {
            let path = |at| self.dir.join(names::start(Position(at)));
            let (old, new) = (path(known), path(start));
            let mark = match disk.rename(&old, &new).await {
                Ok(()) => Some(start),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    remove_if_there(disk, &new).await?;
                    None
                }
                Err(error) if is_no_space(&error) => {
                    remove_if_there(disk, &old).await?;
                    None
                }
                Err(error) => return Err(error),
            };
            self.state.borrow_mut().chores.start_mark = mark;
        }
        disk.sync_dir(&self.dir).await
    }

    /// Finds out when the segment's newest bytes arrived: from its summary, or else as the start could tell.
    async fn look_up(&self, base: u64) {
        let (path, modified_ms, bytes) = {
            let state = self.state.borrow();
            let index = state.segment_index(base);
            let segment = &state.segments[index];
            (self.dir.join(segment.summary_name()), segment.modified_ms, state.segment_end(index) - base)
        };
        // One that was written while the segment was active does not know the newest arrival.
        let is_whole = |summary: &Summary| summary.bytes == bytes;
        let summary = self.read_summary(&path, base).await.filter(is_whole);
        let times = summary.map(|summary| (summary.first_arrival_ms, summary.last_arrival_ms));
        let (first_ms, last_ms) = times.unwrap_or((modified_ms, modified_ms));
        // As seen from the start: whatever the wall clock has done since, nothing gets older by it.
        let arrivals = Arrivals::recorded(first_ms, last_ms, self.opened);
        if let Some(segment) = self.state.borrow_mut().closed_mut(base) {
            segment.arrivals = Some(arrivals);
        }
    }

    /// Reads the summary of the segment at `base`. One that is missing, bad, another segment's or unreadable is `None`: it
    /// is never needed.
    pub(super) async fn read_summary(&self, path: &Path, base: u64) -> Option<Summary> {
        match self.shard.env().disk().read_small(path, limits::SUMMARY_BYTES_MAX).await {
            Ok(content) => {
                let summary = Summary::decode(&content).filter(|summary| summary.base == base);
                if summary.is_none() {
                    count(&self.counters.rebuilt_summaries, 1);
                    let path = path.display();
                    tracing::warn!(partition = %self.label, "{path} is damaged; it is rebuilt from its segment");
                }
                summary
            }
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::FileTooLarge) {
                    tracing::warn!(partition = %self.label, "{} cannot be read, its segment is: {error}", path.display());
                }
                None
            }
        }
    }

    /// Trims a closed segment's file to the segment's length: exactly, for a shorter file would be a gap.
    async fn trim_file(&self, base: u64) -> std::io::Result<()> {
        let (file, path, bytes) = {
            let state = self.state.borrow();
            let index = state.segment_index(base);
            let segment = &state.segments[index];
            let file = segment.file.clone().filter(|_| segment.writes);
            (file, self.dir.join(segment.name()), state.segment_end(index) - base)
        };
        let file = match file {
            Some(file) => file,
            None => self.shard.env().disk().open(&path, OpenMode::Write).await?,
        };
        file.truncate(bytes).await?;
        if let Some(segment) = self.state.borrow_mut().closed_mut(base) {
            segment.file_bytes = bytes;
            segment.needs_trim = false;
            // The lock goes with it; readers open the file anew.
            segment.file = None;
            segment.writes = false;
        }
        Ok(())
    }

    /// Writes a segment's summary: of the active one, what is known of its durable part. What earlier lives wrote and this
    /// one has not walked over is scanned first.
    async fn summarize(&self, base: u64) -> std::io::Result<()> {
        let index = self.index_of(base).await.map_err(|error| std::io::Error::other(error.to_string()))?;
        let Some(index) = index else { return Ok(()) };
        let (path, summary) = {
            let mut state = self.state.borrow_mut();
            state.correct_arrivals(Now::read(self.shard.env()));
            let at = state.segment_index(base);
            let durable_bytes = state.durable.min(state.segment_end(at)) - base;
            if at + 1 == state.segments.len() {
                state.chores.summarized_to = durable_bytes;
            }
            let Some(index) = index.truncated(durable_bytes) else { return Ok(()) };
            let segment = &state.segments[at];
            let modified_ms = segment.modified_ms.min(self.opened.wall_ms);
            let times = segment.arrivals.map_or((modified_ms, modified_ms), |times| (times.first_ms, times.last_ms));
            let (first_arrival_ms, last_arrival_ms) = times;
            let summary = Summary { base, bytes: index.end, first_arrival_ms, last_arrival_ms, index };
            (self.dir.join(segment.summary_name()), summary)
        };
        let written = summary.bytes;
        self.shard.env().disk().replace_small(&path, summary.encode()).await?;
        let mut state = self.state.borrow_mut();
        // It may have been closed meanwhile, and then lacks the last of it.
        let is_whole = state.segment_end(state.segment_index(base)) - base == written;
        if let Some(segment) = state.closed_mut(base).filter(|_| is_whole) {
            segment.needs_summary = false;
            segment.facts = Some(Facts::of(&index));
        }
        state.forget_summaries(base);
        Ok(())
    }
}
