//! What to write and when to flush. Pure: the driver asks, then does it.

use std::ops::Range;
use std::time::Duration;

use crate::config::TopicConfig;
use crate::coverage::{Coverage, SetEnds};
use crate::env::BLOCK_BYTES;
use crate::limits;
use crate::tuning::Tuning;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes of whole blocks at or below `bytes`.
pub(crate) fn floor_block(bytes: u64) -> u64 {
    bytes - bytes % BLOCK
}

/// Bytes of whole blocks at or above `bytes`.
pub(crate) fn ceil_block(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK)
}

/// What the planner looks at. Positions, all in one segment.
pub(crate) struct Situation<'a> {
    pub(crate) coverage: &'a Coverage,
    /// The base of the segment that is written to.
    pub(crate) base: u64,
    /// No byte at or beyond it is written: the end of what there is in this segment, or of the write window.
    pub(crate) limit: u64,
    /// Everything below it is wanted on the disk as soon as can be.
    pub(crate) due: u64,
    /// Whether each flush begins as soon as anything waits for it.
    pub(crate) continuous: bool,
    /// Whether somebody waits for memory, perhaps a write that counts as in flight.
    pub(crate) memory_is_awaited: bool,
    pub(crate) tuning: &'a Tuning,
}

/// A write of everything from the last submitted byte up to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WritePlan {
    pub(crate) to: u64,
    pub(crate) synchronous: bool,
}

/// The next write, if there is reason for one now.
///
/// What streams in is written in large whole blocks, several at a time. Otherwise one write takes all there is: small,
/// it is a synchronous one, as long as nothing before it needs a flush anyway.
pub(crate) fn plan_write(now: &Situation<'_>) -> Option<WritePlan> {
    let (coverage, tuning) = (now.coverage, now.tuning);
    let from = coverage.submitted();
    if now.limit <= from || coverage.in_flight() >= tuning.writes_in_flight_max || coverage.next_block_is_busy(now.base)
    {
        return None;
    }
    let whole_to = now.base + floor_block(now.limit - now.base);
    if whole_to >= from + tuning.write_bytes_min {
        let to_max = now.base + floor_block(from - now.base) + tuning.write_bytes_max;
        return Some(WritePlan { to: whole_to.min(to_max), synchronous: false });
    }
    if coverage.in_flight() > 0 || now.due <= from {
        return None;
    }
    let small = now.limit - from <= tuning.sync_write_bytes_max;
    Some(WritePlan { to: now.limit, synchronous: small && coverage.no_flush_is_needed_before() })
}

/// Which blocks are to be written with zeros now, as bytes from the segment's base: behind those that were written before, and
/// nowhere near what is being written. `submitted`: up to where data was; `zeroed`: up to where zeros were, or data. The last
/// block that is allocated gets none: zeros in a file that somebody cut short would hide that it was.
pub(crate) fn plan_zeros(submitted: u64, zeroed: u64, allocated: u64, tuning: &Tuning) -> Option<Range<u64>> {
    // Where there are none yet they begin further on, so that the next commits need not wait for them.
    let from = if zeroed > submitted { zeroed } else { ceil_block(submitted + tuning.zeros_ahead_bytes_min / 2) };
    let to = floor_block(allocated).saturating_sub(BLOCK).min(from.saturating_add(tuning.zeros_step_bytes));
    (zeroed < submitted + tuning.zeros_ahead_bytes_min && from < to).then_some(from..to)
}

/// Whether a flush is to begin now.
pub(crate) fn plan_flush(now: &Situation<'_>) -> bool {
    let coverage = now.coverage;
    if coverage.is_flushing() || !coverage.has_complete() {
        return false;
    }
    let is_worth_it = coverage.in_flight() == 0 || coverage.complete_bytes() >= now.tuning.flush_bytes_min;
    if !is_worth_it && !now.memory_is_awaited {
        // When what is in flight has ended this is asked again; only for memory it may wait long, which a flush can free.
        return false;
    }
    let due = now.due.min(now.limit);
    now.continuous || (due > coverage.covered() && coverage.is_written(due))
}

/// Why a topic's policy wants a flush now, or when it will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushWish {
    Now,
    /// At this monotonic time, if nothing changes.
    At(Duration),
    /// When more has come.
    Later,
}

/// What the policy says about the sets that are not durable.
pub(crate) fn flush_wish(config: &TopicConfig, ends: &SetEnds, now: Duration) -> FlushWish {
    let Some(first) = ends.first() else { return FlushWish::Later };
    let by_count = config.flush_messages > 0 && ends.messages() >= config.flush_messages;
    if config.flushes_continuously() || by_count {
        return FlushWish::Now;
    }
    let interval = match config.flush_interval_ms {
        0 => limits::FLUSH_INTERVAL_BY_COUNT,
        interval_ms => Duration::from_millis(interval_ms),
    };
    let at = first.appended.saturating_add(interval);
    if at <= now { FlushWish::Now } else { FlushWish::At(at) }
}

/// How large a segment's file is to become, in bytes, so that `needed` bytes fit. Steps double from the first one up to
/// the largest; never beyond what the segment can hold.
pub(crate) fn next_allocation(allocated: u64, needed: u64, segment_bytes: u64, tuning: &Tuning) -> u64 {
    let step = allocated.clamp(tuning.allocate_bytes_first, tuning.allocate_step_bytes_max);
    let most = ceil_block(segment_bytes).max(ceil_block(needed));
    ceil_block((allocated + step).max(needed)).min(most).max(allocated)
}

/// Whether to allocate ahead: three quarters are used, and the segment may grow.
pub(crate) fn wants_allocation(allocated: u64, used: u64, segment_bytes: u64) -> bool {
    allocated < segment_bytes && used > allocated - allocated / 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::{LastMessage, SetEnd};

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    static TUNING: std::sync::LazyLock<Tuning> = std::sync::LazyLock::new(Tuning::default);

    fn at(coverage: &Coverage, limit: u64, due: u64) -> Situation<'_> {
        Situation { coverage, base: 0, limit, due, continuous: true, memory_is_awaited: false, tuning: &TUNING }
    }

    #[test]
    fn a_small_commit_is_one_synchronous_write() {
        let coverage = Coverage::new(100);
        assert_eq!(plan_write(&at(&coverage, 300, 300)), Some(WritePlan { to: 300, synchronous: true }));
        assert_eq!(plan_write(&at(&coverage, 300, 100)), None, "nothing is due");
    }

    #[test]
    fn behind_a_plain_write_a_small_one_is_plain_too() {
        let mut coverage = Coverage::new(0);
        let big = coverage.submit(MIB, false);
        assert_eq!(plan_write(&at(&coverage, MIB + 10, MIB + 10)), None, "it waits for the one in flight");
        coverage.complete(big);
        assert_eq!(
            plan_write(&at(&coverage, MIB + 10, MIB + 10)),
            Some(WritePlan { to: MIB + 10, synchronous: false })
        );
        coverage.flush_begins();
        assert_eq!(plan_write(&at(&coverage, MIB + 10, MIB + 10)), Some(WritePlan { to: MIB + 10, synchronous: true }));
    }

    #[test]
    fn a_stream_is_written_in_whole_blocks_at_depth() {
        let mut coverage = Coverage::new(100);
        let limit = 10 * MIB + 77;
        for depth in 1..=limits::WRITES_IN_FLIGHT_MAX as u64 {
            let plan = plan_write(&at(&coverage, limit, limit)).unwrap();
            assert_eq!(plan, WritePlan { to: depth * MIB, synchronous: false });
            coverage.submit(plan.to, plan.synchronous);
        }
        assert_eq!(plan_write(&at(&coverage, limit, limit)), None);
    }

    #[test]
    fn zeros_are_written_in_steps_ahead_of_the_end_and_never_behind_what_is_allocated() {
        let plan = |submitted, zeroed| plan_zeros(submitted, zeroed, MIB, &TUNING);
        assert_eq!(plan(5000, 0), Some(72 * KIB..328 * KIB));
        assert_eq!(plan(9000, 328 * KIB), None, "there are enough");
        assert_eq!(plan(200 * KIB, 264 * KIB), Some(264 * KIB..520 * KIB));
        assert_eq!(plan(900 * KIB, 264 * KIB), Some(964 * KIB..MIB - BLOCK), "what streamed in has passed them");
        assert_eq!(plan(1000 * KIB, 264 * KIB), None, "there is no room for any");
        assert_eq!(plan_zeros(0, 0, 2 * BLOCK - 1, &TUNING), None, "whole blocks, and not the last one");
    }

    #[test]
    fn a_medium_commit_is_plain_and_flushed() {
        let mut coverage = Coverage::new(0);
        let plan = plan_write(&at(&coverage, 200 * KIB, 200 * KIB)).unwrap();
        assert_eq!(plan, WritePlan { to: 200 * KIB, synchronous: false });
        let id = coverage.submit(plan.to, plan.synchronous);
        assert!(!plan_flush(&at(&coverage, 200 * KIB, 200 * KIB)));
        coverage.complete(id);
        assert!(plan_flush(&at(&coverage, 200 * KIB, 200 * KIB)));
    }

    #[test]
    fn a_flush_beside_writes_waits_until_it_is_worth_it() {
        let mut coverage = Coverage::new(0);
        let parts = [MIB / 2, MIB, 2 * MIB].map(|to| coverage.submit(to, false));
        coverage.complete(parts[0]);
        assert!(!plan_flush(&at(&coverage, 4 * MIB, 4 * MIB)));
        assert!(plan_flush(&Situation { memory_is_awaited: true, ..at(&coverage, 4 * MIB, 4 * MIB) }));
        coverage.complete(parts[1]);
        assert!(plan_flush(&at(&coverage, 4 * MIB, 4 * MIB)));
    }

    #[test]
    fn a_lazy_topic_is_flushed_once_all_that_is_due_is_written() {
        let mut coverage = Coverage::new(0);
        let lazy = |coverage: &Coverage, due| plan_flush(&Situation { continuous: false, ..at(coverage, MIB, due) });
        let first = coverage.submit(MIB / 2, false);
        let second = coverage.submit(MIB, false);
        coverage.complete(first);
        assert!(!lazy(&coverage, 0));
        assert!(!lazy(&coverage, MIB));
        coverage.complete(second);
        assert!(lazy(&coverage, MIB));
    }

    #[test]
    fn the_policy_counts_messages_and_time() {
        let config = |messages, interval| TopicConfig {
            flush_messages: messages,
            flush_interval_ms: interval,
            ..Default::default()
        };
        let second = Duration::from_secs(1);
        let mut ends = SetEnds::default();
        assert_eq!(flush_wish(&config(0, 0), &ends, second), FlushWish::Later);
        ends.push(SetEnd { end: 10, messages: 5, last: LastMessage::default(), appended: second });
        assert_eq!(flush_wish(&config(0, 0), &ends, second), FlushWish::Now);
        assert_eq!(flush_wish(&config(6, 0), &ends, second), FlushWish::At(2 * second), "not for ever by count alone");
        assert_eq!(flush_wish(&config(5, 0), &ends, second), FlushWish::Now);
        assert_eq!(flush_wish(&config(6, 500), &ends, second), FlushWish::At(second * 3 / 2));
        assert_eq!(flush_wish(&config(6, 500), &ends, second * 3 / 2), FlushWish::Now);
    }

    #[test]
    fn allocation_starts_small_and_doubles_up_to_the_largest_step() {
        assert_eq!(next_allocation(0, 10, 1 << 30, &Tuning::default()), 32 * KIB);
        assert_eq!(next_allocation(32 * KIB, 33 * KIB, 1 << 30, &Tuning::default()), 64 * KIB);
        assert_eq!(next_allocation(0, 3 * MIB + 1, 1 << 30, &Tuning::default()), 3 * MIB + 4 * KIB);
        assert_eq!(next_allocation(256 * MIB, 256 * MIB, 1 << 30, &Tuning::default()), 320 * MIB);
        assert_eq!(next_allocation(32 * KIB, 33 * KIB, 40 * KIB + 1, &Tuning::default()), 44 * KIB);
        assert!(wants_allocation(32 * KIB, 25 * KIB, 1 << 30) && !wants_allocation(32 * KIB, 24 * KIB, 1 << 30));
        assert!(!wants_allocation(MIB, MIB, MIB));
    }
}
