//! Is what was consumed what was published? Pure bookkeeping, apart from clocks and connections.
//!
//! A stream is what one connection published to one partition: sequence numbers from 0, in order. A number that is
//! skipped is a gap until it comes after all; one that comes again is a duplicate, which a retry may make.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::FixedState;

/// Gaps that are remembered for a stream; what is missing beyond them counts as missing for good.
const GAPS_MAX: usize = 10_000;

/// Which stream a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StreamId {
    pub(crate) run: u64,
    pub(crate) connection: u32,
    pub(crate) lane: u32,
}

/// What was published to a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Published {
    /// Messages acknowledged.
    pub(crate) messages: u64,
    /// Sequence numbers whose delivery failed: they may be there or not.
    pub(crate) uncertain: Vec<Range<u64>>,
}

impl Published {
    /// So many messages more were acknowledged.
    pub(crate) fn acknowledge(&mut self, messages: u64) {
        self.messages += messages;
    }

    /// The delivery of these messages failed.
    pub(crate) fn fail(&mut self, sequences: Range<u64>) {
        match self.uncertain.last_mut() {
            Some(last) if last.end == sequences.start => last.end = sequences.end,
            _ => self.uncertain.push(sequences),
        }
    }

    /// The first number that was never published.
    fn end(&self) -> u64 {
        self.messages + self.uncertain.iter().map(|range| range.end - range.start).sum::<u64>()
    }

    /// How many of these numbers may be missing.
    fn excused(&self, gap: &Range<u64>) -> u64 {
        let common = |range: &Range<u64>| range.end.min(gap.end).saturating_sub(range.start.max(gap.start));
        self.uncertain.iter().map(common).sum()
    }
}

/// How a message relates to the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The next one, or one behind a gap.
    New,
    /// It came after later ones.
    OutOfOrder,
    /// It had come before.
    Duplicate,
}

/// What was consumed of a stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Consumed {
    /// Messages, duplicates not counted.
    pub(crate) messages: u64,
    pub(crate) duplicates: u64,
    /// Messages that came after later ones.
    pub(crate) out_of_order: u64,
    next: u64,
    /// In order.
    gaps: Vec<Range<u64>>,
    /// Messages of gaps beyond those that are remembered.
    missing_more: u64,
}

/// How a stream as it was consumed differs from what was published.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Difference {
    /// Messages acknowledged that did not come.
    pub(crate) missing: u64,
    /// Messages that nobody published.
    pub(crate) extra: u64,
    /// The first numbers that are missing, failed deliveries in between not counted out.
    pub(crate) first_missing: Option<Range<u64>>,
}

impl Consumed {
    /// A stream that is read from this sequence number on.
    pub(crate) fn from(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// Counts a message.
    pub(crate) fn take(&mut self, sequence: u64) -> Taken {
        let mut taken = Taken::New;
        if sequence > self.next {
            self.open_gap(self.next..sequence);
        } else if sequence < self.next {
            if !self.fill_gap(sequence) {
                self.duplicates += 1;
                return Taken::Duplicate;
            }
            self.out_of_order += 1;
            taken = Taken::OutOfOrder;
        }
        self.next = self.next.max(sequence + 1);
        self.messages += 1;
        taken
    }

    fn open_gap(&mut self, gap: Range<u64>) {
        if self.gaps.len() < GAPS_MAX {
            self.gaps.push(gap);
        } else {
            self.missing_more += gap.end - gap.start;
        }
    }

    fn fill_gap(&mut self, sequence: u64) -> bool {
        let at = self.gaps.partition_point(|gap| gap.end <= sequence);
        let Some(gap) = self.gaps.get(at).filter(|gap| gap.contains(&sequence)).cloned() else { return false };
        let rest = [gap.start..sequence, sequence + 1..gap.end];
        self.gaps.splice(at..=at, rest.into_iter().filter(|range| !range.is_empty()));
        true
    }

    /// Messages between the first and the last one consumed that did not come.
    pub(crate) fn missing(&self) -> u64 {
        self.missing_more + self.gaps.iter().map(|gap| gap.end - gap.start).sum::<u64>()
    }

    /// The first of those.
    pub(crate) fn first_gap(&self) -> Option<Range<u64>> {
        self.gaps.first().cloned()
    }

    /// Compares with what was published.
    pub(crate) fn compare(&self, published: &Published) -> Difference {
        let end = published.end();
        // What lies above the last one consumed has no gap yet.
        let at_end = self.next..end.max(self.next);
        let all = self.gaps.iter().chain(std::iter::once(&at_end));
        let faults =
            all.map(|gap| (gap, gap.end - gap.start - published.excused(gap))).filter(|(_, missing)| *missing > 0);
        let mut difference = Difference { extra: self.next.saturating_sub(end), ..Difference::default() };
        difference.missing = self.missing_more;
        for (gap, missing) in faults {
            difference.missing += missing;
            difference.first_missing.get_or_insert_with(|| gap.clone());
        }
        difference
    }
}

/// All streams that consumers see.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    numbers: HashMap<StreamId, usize, FixedState>,
    consumed: Vec<(StreamId, Consumed)>,
    /// The stream of the last message: mostly that of the next one too.
    last: Option<(StreamId, usize)>,
    runs: Vec<u64>,
}

impl Streams {
    /// Counts a message of a stream. A stream that is not known is read from this message on.
    pub(crate) fn take(&mut self, id: StreamId, sequence: u64) -> Taken {
        let number = match self.last {
            Some((last, number)) if last == id => number,
            _ => self.number(id, sequence),
        };
        self.last = Some((id, number));
        self.consumed[number].1.take(sequence)
    }

    /// The number of a stream that begins with this sequence number if it is not known.
    fn number(&mut self, id: StreamId, begin: u64) -> usize {
        *self.numbers.entry(id).or_insert_with(|| {
            if !self.runs.contains(&id.run) {
                self.runs.push(id.run);
            }
            self.consumed.push((id, Consumed::from(begin)));
            self.consumed.len() - 1
        })
    }

    /// Expects a stream from its first message on.
    pub(crate) fn expect(&mut self, id: StreamId) {
        self.number(id, 0);
    }

    pub(crate) fn get(&self, id: StreamId) -> Option<&Consumed> {
        self.numbers.get(&id).map(|number| &self.consumed[*number].1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(StreamId, Consumed)> {
        self.consumed.iter()
    }

    /// Whether anything of this run has come, or is expected.
    pub(crate) fn knows_run(&self, run: u64) -> bool {
        self.runs.contains(&run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: StreamId = StreamId { run: 9, connection: 1, lane: 2 };

    fn consumed(sequences: impl IntoIterator<Item = u64>) -> Consumed {
        let mut consumed = Consumed::default();
        for sequence in sequences {
            consumed.take(sequence);
        }
        consumed
    }

    fn published(messages: u64) -> Published {
        Published { messages, uncertain: Vec::new() }
    }

    /// How many are missing, and how many too many.
    fn faults(consumed: &Consumed, published: &Published) -> (u64, u64) {
        let difference = consumed.compare(published);
        assert_eq!(difference.missing > 0, difference.first_missing.is_some());
        (difference.missing, difference.extra)
    }

    #[test]
    fn what_was_published_is_verified_and_duplicates_are_no_fault() {
        assert_eq!(faults(&consumed(0..100), &published(100)), (0, 0));
        let again = consumed((0..60).chain(50..100));
        assert_eq!((again.duplicates, faults(&again, &published(100))), (10, (0, 0)));
    }

    #[test]
    fn what_is_missing_is_counted_wherever_it_is_missing() {
        assert_eq!(faults(&consumed((0..10).chain(15..100)), &published(100)), (5, 0));
        assert_eq!(faults(&consumed(5..100), &published(100)), (5, 0));
        assert_eq!(faults(&consumed(0..90), &published(100)), (10, 0));
        assert_eq!(faults(&consumed([]), &published(100)), (100, 0));
        assert_eq!(consumed((0..10).chain(15..90)).compare(&published(100)).first_missing, Some(10..15));
    }

    #[test]
    fn more_than_was_published_is_not_verified() {
        assert_eq!(faults(&consumed(0..101), &published(100)), (0, 1));
    }

    #[test]
    fn another_order_is_a_fault_though_nothing_is_missing() {
        let swapped = consumed([0, 2, 1, 3]);
        assert_eq!((swapped.out_of_order, swapped.missing()), (1, 0));
        assert_eq!(faults(&swapped, &published(4)), (0, 0));
        let mut late = Consumed::default();
        let taken = [0, 5, 3, 3, 4, 1, 2, 6].map(|sequence| late.take(sequence));
        use Taken::{Duplicate, New, OutOfOrder};
        assert_eq!(taken, [New, New, OutOfOrder, Duplicate, OutOfOrder, OutOfOrder, OutOfOrder, New]);
        assert_eq!((late.missing(), late.first_gap()), (0, None));
    }

    #[test]
    fn a_failed_delivery_may_be_there_or_not() {
        let mut published = published(10);
        published.fail(10..15);
        published.fail(15..20);
        published.acknowledge(10);
        assert_eq!(published.uncertain.as_slice(), std::slice::from_ref(&(10..20)));
        assert_eq!(faults(&consumed((0..10).chain(20..30)), &published), (0, 0));
        assert_eq!(faults(&consumed(0..30), &published), (0, 0));
        assert_eq!(faults(&consumed((0..8).chain(20..30)), &published), (2, 0));
        assert_eq!(faults(&consumed(0..25), &published), (5, 0));
        assert_eq!(faults(&consumed(0..10), &published), (10, 0));
        assert_eq!(faults(&consumed(0..32), &published), (0, 2));
    }

    #[test]
    fn a_stream_joined_in_the_middle_is_whole_from_there_on() {
        let mut streams = Streams::default();
        assert!((40..50).all(|sequence| streams.take(ID, sequence) == Taken::New));
        assert_eq!(streams.take(ID, 45), Taken::Duplicate);
        let stream = streams.get(ID).unwrap();
        assert_eq!((stream.messages, stream.missing(), stream.out_of_order), (10, 0, 0));
        assert!(streams.knows_run(ID.run) && !streams.knows_run(1));
    }
}
