//! What is durable: the longest prefix each part of which is covered, rounded down to a set end. Pure.
//!
//! A part is what one write carried. A synchronous write covers its own part when it completes; a plain one is covered by
//! a flush that began after it had completed. Nothing else covers anything.

use std::collections::VecDeque;
use std::time::Duration;

use crate::env::BLOCK_BYTES;

/// Names a part that is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    InFlight {
        synchronous: bool,
    },
    /// Written, not covered.
    Complete,
    /// Written before the flush that is under way began.
    Flushing,
    Covered,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    id: PartId,
    to: u64,
    step: Step,
}

/// The parts that were submitted and are not yet behind the covered prefix, in order.
#[derive(Debug)]
pub(crate) struct Coverage {
    parts: VecDeque<Part>,
    next: u64,
    /// Everything below is covered.
    covered: u64,
    /// Everything below was submitted.
    submitted: u64,
    in_flight: usize,
    flushing: bool,
}

impl Coverage {
    /// Everything below `end` is covered.
    pub(crate) fn new(end: u64) -> Self {
        Self { parts: VecDeque::new(), next: 0, covered: end, submitted: end, in_flight: 0, flushing: false }
    }

    /// The end of the covered prefix.
    pub(crate) fn covered(&self) -> u64 {
        self.covered
    }

    /// The end of what was submitted.
    pub(crate) fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Writes in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether a flush is under way.
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing
    }

    /// A write of everything from the last submitted byte to `to` begins.
    pub(crate) fn submit(&mut self, to: u64, synchronous: bool) -> PartId {
        assert!(to > self.submitted, "a write to {to} was expected behind {}", self.submitted);
        let id = PartId(self.next);
        self.next += 1;
        self.submitted = to;
        self.in_flight += 1;
        self.parts.push_back(Part { id, to, step: Step::InFlight { synchronous } });
        id
    }

    /// A write has completed well.
    pub(crate) fn complete(&mut self, id: PartId) {
        self.in_flight -= 1;
        let part = self.parts.iter_mut().find(|part| part.id == id).expect("a part in flight is known");
        part.step = match part.step {
            Step::InFlight { synchronous: true } => Step::Covered,
            Step::InFlight { synchronous: false } => Step::Complete,
            other => unreachable!("a part in flight was expected, it is {other:?}"),
        };
        self.advance();
    }

    /// A write has failed: its part is never covered.
    pub(crate) fn fail(&mut self) {
        self.in_flight -= 1;
    }

    /// Whether a flush would cover anything.
    pub(crate) fn has_complete(&self) -> bool {
        self.parts.iter().any(|part| part.step == Step::Complete)
    }

    /// How many bytes a flush would cover.
    pub(crate) fn complete_bytes(&self) -> u64 {
        let mut from = self.covered;
        let mut bytes = 0;
        for part in &self.parts {
            if part.step == Step::Complete {
                bytes += part.to - from;
            }
            from = part.to;
        }
        bytes
    }

    /// Whether everything below `to` was written, so that a flush that begins now covers it.
    pub(crate) fn is_written(&self, to: u64) -> bool {
        let mut from = self.covered;
        for part in &self.parts {
            if from >= to {
                break;
            }
            if part.is_in_flight() {
                return false;
            }
            from = part.to;
        }
        from >= to
    }

    /// Whether nothing is between the covered prefix and a write that begins now but what is sure to be covered without
    /// a further flush: only then does a synchronous write move the durable end.
    pub(crate) fn no_flush_is_needed_before(&self) -> bool {
        self.parts.iter().all(|part| !matches!(part.step, Step::Complete | Step::InFlight { synchronous: false }))
    }

    /// A flush begins: it will cover what is complete now.
    pub(crate) fn flush_begins(&mut self) {
        assert!(!self.flushing, "one flush at a time was expected");
        self.flushing = true;
        self.parts.iter_mut().filter(|part| part.step == Step::Complete).for_each(|part| part.step = Step::Flushing);
    }

    /// The flush has ended well.
    pub(crate) fn flush_ends(&mut self) {
        self.flushing = false;
        self.parts.iter_mut().filter(|part| part.step == Step::Flushing).for_each(|part| part.step = Step::Covered);
        self.advance();
    }

    /// The flush has failed: it covers nothing, and no later one may count for what it should have covered.
    pub(crate) fn flush_fails(&mut self) {
        self.flushing = false;
    }

    /// Whether a write that begins at the last submitted byte would share a block with one that is in flight, in a
    /// segment that begins at `base`.
    pub(crate) fn next_block_is_busy(&self, base: u64) -> bool {
        let partial = !(self.submitted - base).is_multiple_of(BLOCK_BYTES as u64);
        partial && self.parts.back().is_some_and(Part::is_in_flight)
    }

    fn advance(&mut self) {
        while let Some(part) = self.parts.front().filter(|part| part.step == Step::Covered) {
            self.covered = part.to;
            self.parts.pop_front();
        }
    }
}

impl Part {
    fn is_in_flight(&self) -> bool {
        matches!(self.step, Step::InFlight { .. })
    }
}

/// The end of a set that is not durable yet, and what the checkpoint and the flush policy want to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetEnd {
    pub(crate) end: u64,
    /// As consumers see them.
    pub(crate) messages: u32,
    pub(crate) last: LastMessage,
    /// When it was appended, on the monotonic clock.
    pub(crate) appended: Duration,
}

/// The last message before an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastMessage {
    /// Its length in bytes; 0: there is none, or it is not known.
    pub bytes: u32,
    /// Its CRC.
    pub crc: u32,
}

/// The sets above the durable end, in order.
#[derive(Debug, Default)]
pub(crate) struct SetEnds {
    ends: VecDeque<SetEnd>,
    messages: u64,
}

impl SetEnds {
    /// A set was appended.
    pub(crate) fn push(&mut self, end: SetEnd) {
        self.messages += u64::from(end.messages);
        self.ends.push_back(end);
    }

    /// Removes the sets that lie below `covered` whole; the last of them makes the new durable end.
    pub(crate) fn advance(&mut self, covered: u64) -> Option<SetEnd> {
        let mut last = None;
        while let Some(first) = self.ends.front().filter(|first| first.end <= covered) {
            self.messages -= u64::from(first.messages);
            last = Some(*first);
            self.ends.pop_front();
        }
        last
    }

    /// Messages that are not durable.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// The oldest set that is not durable.
    pub(crate) fn first(&self) -> Option<&SetEnd> {
        self.ends.front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_end(end: u64) -> SetEnd {
        SetEnd { end, messages: 1, last: LastMessage::default(), appended: Duration::ZERO }
    }

    #[test]
    fn a_synchronous_write_covers_its_own_bytes_only() {
        let mut coverage = Coverage::new(0);
        let plain = coverage.submit(100, false);
        let synchronous = coverage.submit(200, true);
        coverage.complete(synchronous);
        coverage.complete(plain);
        assert_eq!(coverage.covered(), 0, "the plain part before it is not covered");
        coverage.flush_begins();
        coverage.flush_ends();
        assert_eq!(coverage.covered(), 200);
    }

    #[test]
    fn a_flush_covers_what_had_completed_when_it_began() {
        let mut coverage = Coverage::new(0);
        let first = coverage.submit(100, false);
        let second = coverage.submit(200, false);
        coverage.complete(first);
        coverage.flush_begins();
        coverage.complete(second);
        coverage.flush_ends();
        assert_eq!(coverage.covered(), 100);
        assert!(coverage.has_complete());
    }

    #[test]
    fn the_covered_end_is_a_prefix() {
        let mut coverage = Coverage::new(0);
        let _first = coverage.submit(100, true);
        let second = coverage.submit(200, true);
        coverage.complete(second);
        assert_eq!(coverage.covered(), 0);
    }

    #[test]
    fn a_failed_part_is_never_covered() {
        let mut coverage = Coverage::new(0);
        coverage.submit(100, false);
        coverage.fail();
        let second = coverage.submit(200, true);
        coverage.complete(second);
        coverage.flush_begins();
        coverage.flush_ends();
        assert_eq!(coverage.covered(), 0);
    }

    #[test]
    fn writes_that_share_a_block_wait_for_each_other() {
        let mut coverage = Coverage::new(0);
        let first = coverage.submit(4096, false);
        assert!(!coverage.next_block_is_busy(0));
        let second = coverage.submit(5000, false);
        assert!(coverage.next_block_is_busy(0));
        coverage.complete(first);
        assert!(coverage.next_block_is_busy(0));
        coverage.complete(second);
        assert!(!coverage.next_block_is_busy(0));
    }

    #[test]
    fn written_means_complete_up_to_there() {
        let mut coverage = Coverage::new(0);
        assert!(coverage.is_written(0));
        let first = coverage.submit(100, false);
        let second = coverage.submit(200, false);
        coverage.complete(second);
        assert!(!coverage.is_written(200));
        coverage.complete(first);
        assert!(coverage.is_written(100) && coverage.is_written(150) && coverage.is_written(200));
        assert!(!coverage.is_written(201));
    }

    #[test]
    fn the_durable_end_is_a_set_end() {
        let mut ends = SetEnds::default();
        [10, 25, 40].map(set_end).into_iter().for_each(|end| ends.push(end));
        assert_eq!(ends.advance(9), None);
        assert_eq!(ends.advance(39), Some(set_end(25)));
        assert_eq!((ends.messages(), ends.first()), (1, Some(&set_end(40))));
    }
}
