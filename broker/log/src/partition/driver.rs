//! The one task of a partition that changes the disk. It decides what is to be done next from the partition's state, does
//! it, and looks again whenever something has ended, somebody has called, or a time has come. An idle partition has no
//! operation under way and at most one timer, for the day on which its data expires.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::Inner;
use super::chores::Chore;
use super::state::{Ending, NextFile, Rolling, State};
use super::write::Write;
use crate::env::Env;
use crate::error::ClosedReason;
use crate::limits;
use crate::plan::{
    FlushWish, Situation, ceil_block, flush_wish, next_allocation, plan_flush, plan_write, plan_zeros, wants_allocation,
};
use crate::retention;
use crate::segment::Now;
use crate::shard::EnvFile;
use crate::tuning::Tuning;

/// An operation on the disk, or a sleep.
type Operation = Pin<Box<dyn Future<Output = ()>>>;

/// The task that writes, flushes, rolls and expires: the owner of the partition spawns [`Driver::run`] on its thread.
#[must_use = "nothing reaches the disk unless the driver runs"]
pub struct Driver<E: Env> {
    inner: Rc<Inner<E>>,
}

/// What is to be done next.
enum Action<E: Env> {
    Write(Write<E>),
    Flush(EnvFile<E>, Option<u64>),
    Allocate(EnvFile<E>, u64),
    WriteZeros(EnvFile<E>, u64, Range<u64>),
    Prepare(u64),
    FinishRoll(EnvFile<E>, String),
    Chore(Chore),
}

impl<E: Env> Driver<E> {
    pub(super) fn new(inner: Rc<Inner<E>>) -> Self {
        Self { inner }
    }

    /// Runs until the partition was closed or deleted. Dropping it before that is as a crash: nothing that was not
    /// durable is promised any more.
    pub async fn run(self) {
        let inner = &self.inner;
        let mut operations = FuturesUnordered::<Operation>::new();
        // Polled only once it has rung: whoever polls a timer before that sets it anew.
        let mut timer: Option<(Duration, FuturesUnordered<Operation>)> = None;
        loop {
            let mut called = pin!(inner.driver.changed());
            let now = Now::read(inner.shard.env());
            while let Some(action) = inner.next_action(now) {
                operations.push(inner.perform(action));
            }
            if operations.is_empty() && inner.is_ended() {
                return;
            }
            let deadline = inner.deadline(now);
            // A timer that rings too early costs one look; setting one anew at each look would cost more.
            match deadline {
                None => timer = None,
                Some(at) if timer.as_ref().is_some_and(|(set, _)| *set <= at) => {}
                Some(at) => {
                    let sleep: Operation = Box::pin(inner.shard.env().sleep(at.saturating_sub(now.monotonic)));
                    timer = Some((at, FuturesUnordered::from_iter([sleep])));
                }
            }
            poll_fn(|cx| {
                let ended = matches!(operations.poll_next_unpin(cx), Poll::Ready(Some(())));
                let rang = timer.as_mut().is_some_and(|(_, timer)| timer.poll_next_unpin(cx).is_ready());
                if rang {
                    timer = None;
                }
                let called = called.as_mut().poll(cx).is_ready();
                if ended || rang || called { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }
}

impl<E: Env> Drop for Driver<E> {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        let reason = match state.ending {
            Some(Ending::Delete) => ClosedReason::Deleted,
            _ => ClosedReason::Stopping,
        };
        state.refuses.get_or_insert(reason.clone());
        state.frozen.get_or_insert(reason.clone());
        state.ended.get_or_insert(reason);
        state.tail.clear();
        // The locks go with the files.
        state.segments.iter_mut().for_each(|segment| segment.file = None);
        state.next_file = NextFile::None;
        drop(state);
        self.inner.wake_everybody();
    }
}

impl<E: Env> Inner<E> {
    fn perform(self: &Rc<Self>, action: Action<E>) -> Operation {
        let inner = self.clone();
        match action {
            Action::Write(write) => Box::pin(inner.write(write)),
            Action::Flush(file, allocated) => Box::pin(inner.flush(file, allocated)),
            Action::Allocate(file, bytes) => Box::pin(inner.allocate(file, bytes)),
            Action::WriteZeros(file, base, range) => Box::pin(inner.write_zeros(file, base, range)),
            Action::Prepare(bytes) => Box::pin(inner.prepare(bytes)),
            Action::FinishRoll(file, name) => Box::pin(inner.finish_roll(file, name)),
            Action::Chore(chore) => Box::pin(inner.do_chore(chore)),
        }
    }

    fn is_ended(&self) -> bool {
        let state = self.state.borrow();
        match state.ending {
            None => false,
            Some(Ending::Delete) => true,
            Some(Ending::Close) => {
                state.frozen.is_some() || (state.durable == state.end && state.rolling == Rolling::No)
            }
        }
    }

    fn next_action(&self, now: Now) -> Option<Action<E>> {
        let mut state = self.state.borrow_mut();
        if state.ending == Some(Ending::Delete) {
            return None;
        }
        if state.frozen.is_none()
            && let Some(action) = self.next_log_action(&mut state, now)
        {
            return Some(action);
        }
        if state.ending.is_some() || state.chores.is_busy {
            return None;
        }
        let chore = state.next_chore(now)?;
        state.chores.is_busy = true;
        Some(Action::Chore(chore))
    }

    /// The next thing to do to the active segment. Notes it as begun.
    fn next_log_action(&self, state: &mut State<E>, now: Now) -> Option<Action<E>> {
        state.update_flush_target(now);
        let file = state.written().file.clone()?;
        let base = state.written().base;
        let continuous = state.config.flushes_continuously();
        let data_end = if state.rolling == Rolling::No { state.end } else { state.active().base };
        let situation = Situation {
            coverage: &state.coverage,
            base,
            limit: data_end.min(state.durable + self.window).min(state.zeroing.unwrap_or(u64::MAX)),
            due: if continuous { state.end } else { state.flush_target },
            continuous,
            memory_is_awaited: self.shard.is_memory_awaited(),
            tuning: &state.tuning,
        };
        // The flush first: a small write behind what it covers can then be a synchronous one, and needs no further flush.
        let allocation = state.space.unsynced.filter(|_| !state.coverage.is_flushing());
        if plan_flush(&situation) || allocation.is_some() {
            state.coverage.flush_begins();
            return Some(Action::Flush(file, allocation));
        }
        if let Some(plan) = plan_write(&situation) {
            let from = state.coverage.submitted();
            let id = state.coverage.submit(plan.to, plan.synchronous);
            let synchronous = plan.synchronous;
            let is_small = synchronous && plan.to - from <= state.tuning.zeros_commit_bytes_max;
            state.space.small_commits = if is_small { state.space.small_commits.saturating_add(1) } else { 0 };
            return Some(Action::Write(Write { id, file, base, from, to: plan.to, synchronous }));
        }
        match state.rolling {
            Rolling::Naming => None,
            Rolling::Old => {
                // Zeros that are written behind the end would make the file that is cut there longer again.
                let is_quiet =
                    state.coverage.in_flight() == 0 && !state.coverage.is_flushing() && state.zeroing.is_none();
                if state.durable < state.active().base || !is_quiet || state.is_resting(now.monotonic) {
                    return None;
                }
                state.rolling = Rolling::Naming;
                Some(Action::FinishRoll(file, state.active().name()))
            }
            Rolling::No => self.next_space_action(state, now, file),
        }
    }

    /// Space ahead, the next segment's file, the roll of a segment that is too old.
    fn next_space_action(&self, state: &mut State<E>, now: Now, file: EnvFile<E>) -> Option<Action<E>> {
        if state.refuses.is_some() {
            return None;
        }
        let (base, used) = (state.active().base, state.end - state.active().base);
        let are_small = state.space.small_commits > 0 && state.space.small_commits >= state.tuning.zeros_after_commits;
        if are_small && !state.space.is_busy() && state.zeroing.is_none() {
            let submitted = state.coverage.submitted() - base;
            if let Some(zeros) = plan_zeros(submitted, state.space.zeroed, state.space.allocated, &state.tuning) {
                state.zeroing = Some(base + zeros.start);
                return Some(Action::WriteZeros(file, base, zeros));
            }
        }
        let segment_bytes = state.config.segment_bytes;
        let space = &mut state.space;
        if !space.is_busy() && space.full_at.is_none() {
            let ahead = wants_allocation(space.allocated, used, segment_bytes);
            if space.wanted > space.allocated || ahead {
                space.is_asking = true;
                return Some(Action::Allocate(
                    file,
                    next_allocation(space.allocated, space.wanted, segment_bytes, &state.tuning),
                ));
            }
        }
        let is_too_old = state.roll_at_ms().is_some_and(|at_ms| at_ms <= now.monotonic_ms);
        match state.next_file {
            NextFile::Ready { .. } if is_too_old && !state.space.is_busy() => {
                self.roll_by_age(state);
                None
            }
            NextFile::Ready { .. } | NextFile::Making => None,
            NextFile::None if !is_too_old && !nearly_full(used, segment_bytes) => None,
            NextFile::None if state.space.full_at.is_some() => None,
            NextFile::None | NextFile::Wanted => {
                state.next_file = NextFile::Making;
                Some(Action::Prepare(prepared_bytes(state.space.allocated, segment_bytes, &state.tuning)))
            }
        }
    }

    /// Rolls, if nobody receives in the tail or the receiver can be moved out; else at the next look.
    fn roll_by_age(&self, state: &mut State<E>) {
        if let Some(holder) = state.holder.clone() {
            let bytes = holder.borrow().bytes.max(1).next_multiple_of(crate::env::BLOCK_BYTES);
            // Evicting looks at this partition too, so it must not be borrowed: only free memory is used here.
            let Some(chunk) = self.shard.allocate_free(bytes) else { return };
            holder.borrow_mut().move_out(chunk);
            state.holder = None;
        }
        state.begin_roll();
        self.driver.notify();
        self.room.notify();
    }

    /// When the driver is to look again if nothing happens.
    fn deadline(&self, now: Now) -> Option<Duration> {
        let state = self.state.borrow();
        if state.ending.is_some() {
            return None;
        }
        let mut earliest = None;
        let mut at = |time: Duration| earliest = Some(earliest.map_or(time, |other: Duration| other.min(time)));
        if state.frozen.is_none() {
            if let FlushWish::At(time) = flush_wish(&state.config, &state.ends, now.monotonic) {
                at(time);
            }
            if state.rolling == Rolling::Old
                && let Some(time) = state.rests_until()
            {
                at(time);
            }
            if state.refuses.is_none()
                && let Some(at_ms) = state.roll_at_ms()
            {
                let time = Duration::from_millis(at_ms.max(0) as u64);
                // Overdue: it waits for room or for a receiver, and looks again now and then.
                at(if time > now.monotonic { time } else { now.monotonic + state.tuning.no_space_retry });
            }
        }
        if let Some(time) = state.next_chore_at(now) {
            at(time);
        }
        earliest.map(|time| time.min(now.monotonic + limits::TIMER_MAX))
    }
}

impl<E: Env> State<E> {
    fn update_flush_target(&mut self, now: Now) {
        let wished = flush_wish(&self.config, &self.ends, now.monotonic) == FlushWish::Now;
        if self.ending.is_some() || (wished && self.flush_target <= self.durable) {
            self.flush_target = self.end;
        }
    }

    /// When the active segment is to be closed for its age, in monotonic milliseconds.
    fn roll_at_ms(&self) -> Option<i64> {
        let active = self.active();
        if self.rolling != Rolling::No || self.end == active.base {
            return None;
        }
        retention::roll_at_ms(&self.config, &active.arrivals?)
    }
}

fn nearly_full(used: u64, segment_bytes: u64) -> bool {
    used > segment_bytes - segment_bytes / 4
}

/// How much space the next segment begins with: as much as the last step of the one that it follows.
fn prepared_bytes(allocated: u64, segment_bytes: u64, tuning: &Tuning) -> u64 {
    let step = (allocated / 2).clamp(tuning.allocate_bytes_first, tuning.allocate_step_bytes_max);
    ceil_block(step).min(ceil_block(segment_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_segment_begins_as_large_as_the_last_step() {
        assert_eq!(prepared_bytes(0, 1 << 30, &Tuning::default()), limits::ALLOCATE_BYTES_FIRST);
        assert_eq!(prepared_bytes(1 << 20, 1 << 30, &Tuning::default()), 1 << 19);
        assert_eq!(prepared_bytes(1 << 30, 1 << 30, &Tuning::default()), limits::ALLOCATE_STEP_BYTES_MAX);
        assert_eq!(prepared_bytes(1 << 20, 5000, &Tuning::default()), 8192);
    }

    #[test]
    fn the_next_file_is_made_when_three_quarters_are_used() {
        assert!(!nearly_full(768, 1024));
        assert!(nearly_full(769, 1024));
    }
}
