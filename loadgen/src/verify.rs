//! Is what was consumed what was published? Pure bookkeeping, apart from clocks and connections.
//!
//! A stream is what one connection published to one partition: sequence numbers from 0, in order. A number that is
//! skipped is a gap until it comes after all; one that comes again is a duplicate, which a retry may make.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::payload::Header;

/// Gaps that are remembered for a stream; what is missing beyond them counts as missing for good.
const GAPS_MAX: usize = 10_000;

/// Which stream a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamId {
    pub(crate) run: u64,
    pub(crate) connection: u32,
    pub(crate) partition: u32,
}

/// What was published to a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) messages: u64,
    pub(crate) checksum: u64,
    /// Sequence numbers whose delivery failed: they may be there or not.
    pub(crate) uncertain: Vec<Range<u64>>,
}

impl Published {
    /// These messages were acknowledged.
    pub(crate) fn acknowledge(&mut self, id: StreamId, sequences: Range<u64>) {
        self.messages += sequences.end - sequences.start;
        for sequence in sequences {
            let header = Header { run: id.run, connection: id.connection, sequence, published_us: 0 };
            self.checksum = self.checksum.wrapping_add(header.checksum());
        }
    }

    /// The delivery of these messages failed.
    pub(crate) fn fail(&mut self, sequences: Range<u64>) {
        match self.uncertain.last_mut() {
            Some(last) if last.end == sequences.start => last.end = sequences.end,
            _ => self.uncertain.push(sequences),
        }
    }
}

/// What was consumed of a stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Consumed {
    /// Messages, duplicates not counted.
    pub(crate) messages: u64,
    pub(crate) checksum: u64,
    pub(crate) duplicates: u64,
    /// Messages that came after later ones.
    pub(crate) out_of_order: u64,
    next: u64,
    gaps: Vec<Range<u64>>,
    /// Messages of gaps beyond those that are remembered.
    missing_more: u64,
}

impl Consumed {
    /// A stream that is read from this sequence number on.
    pub(crate) fn from(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// Counts a message. False: it is a duplicate.
    pub(crate) fn take(&mut self, header: &Header) -> bool {
        let sequence = header.sequence;
        if sequence != self.next {
            if sequence > self.next {
                self.open_gap(self.next..sequence);
            } else if self.fill_gap(sequence) {
                self.out_of_order += 1;
            } else {
                self.duplicates += 1;
                return false;
            }
        }
        self.next = self.next.max(sequence + 1);
        self.messages += 1;
        self.checksum = self.checksum.wrapping_add(header.checksum());
        true
    }

    fn open_gap(&mut self, gap: Range<u64>) {
        if self.gaps.len() < GAPS_MAX {
            self.gaps.push(gap);
        } else {
            self.missing_more += gap.end - gap.start;
        }
    }

    fn fill_gap(&mut self, sequence: u64) -> bool {
        let Some(at) = self.gaps.iter().position(|gap| gap.contains(&sequence)) else { return false };
        let gap = self.gaps[at].clone();
        let rest = [gap.start..sequence, sequence + 1..gap.end];
        self.gaps.splice(at..=at, rest.into_iter().filter(|range| !range.is_empty()));
        true
    }

    /// Messages between the first and the last one consumed that did not come.
    pub(crate) fn missing(&self) -> u64 {
        self.missing_but(&[])
    }

    /// Numbers below the last one consumed that must be there and are not.
    fn missing_but(&self, uncertain: &[Range<u64>]) -> u64 {
        let excused = |gap: &Range<u64>| -> u64 {
            uncertain.iter().map(|range| range.end.min(gap.end).saturating_sub(range.start.max(gap.start))).sum()
        };
        self.missing_more + self.gaps.iter().map(|gap| gap.end - gap.start - excused(gap)).sum::<u64>()
    }

    /// How many of the messages published to this stream are missing, and whether it is what was published.
    pub(crate) fn compare(&self, published: &Published) -> (u64, bool) {
        let at_end: u64 = {
            // What lies above the last one consumed has no gap yet. Failed deliveries there are excused too.
            let uncertain: u64 = published.uncertain.iter().map(|range| range.end - range.start).sum();
            let end = published.messages + uncertain;
            let tail = self.next..end.max(self.next);
            let excused: u64 = published
                .uncertain
                .iter()
                .map(|range| range.end.min(tail.end).saturating_sub(range.start.max(tail.start)))
                .sum();
            (tail.end - tail.start).saturating_sub(excused)
        };
        let missing = self.missing_but(&published.uncertain) + at_end;
        // A failed delivery may have been published all the same; then the sums cannot be compared, but the numbers
        // above have been, one by one.
        let same = !published.uncertain.is_empty()
            || (self.messages, self.checksum) == (published.messages, published.checksum);
        (missing, missing == 0 && same && self.out_of_order == 0)
    }
}

/// All streams that a consumer sees.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    numbers: BTreeMap<StreamId, usize>,
    consumed: Vec<Consumed>,
    /// The stream of the last message: mostly that of the next one too.
    last: Option<(StreamId, usize)>,
}

impl Streams {
    /// Counts a message of a stream; false: it is a duplicate. A stream that is not known is read from this message on.
    pub(crate) fn take(&mut self, id: StreamId, header: &Header) -> bool {
        let number = match self.last {
            Some((last, number)) if last == id => number,
            _ => self.number(id, header.sequence),
        };
        self.last = Some((id, number));
        self.consumed[number].take(header)
    }

    /// The number of a stream that begins with this sequence number if it is not known.
    fn number(&mut self, id: StreamId, begin: u64) -> usize {
        *self.numbers.entry(id).or_insert_with(|| {
            self.consumed.push(Consumed::from(begin));
            self.consumed.len() - 1
        })
    }

    /// Expects a stream from its first message on.
    pub(crate) fn expect(&mut self, id: StreamId) {
        self.number(id, 0);
    }

    pub(crate) fn get(&self, id: StreamId) -> Option<&Consumed> {
        self.numbers.get(&id).map(|number| &self.consumed[*number])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Consumed> {
        self.consumed.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: StreamId = StreamId { run: 9, connection: 1, partition: 2 };

    fn header(sequence: u64) -> Header {
        Header { run: ID.run, connection: ID.connection, sequence, published_us: 5 }
    }

    fn consumed(sequences: impl IntoIterator<Item = u64>) -> Consumed {
        let mut consumed = Consumed::default();
        for sequence in sequences {
            consumed.take(&header(sequence));
        }
        consumed
    }

    fn published(messages: u64) -> Published {
        let mut published = Published::default();
        published.acknowledge(ID, 0..messages);
        published
    }

    #[test]
    fn what_was_published_is_verified_and_duplicates_are_no_fault() {
        assert_eq!(consumed(0..100).compare(&published(100)), (0, true));
        let again = consumed((0..60).chain(50..100));
        assert_eq!((again.duplicates, again.compare(&published(100))), (10, (0, true)));
    }

    #[test]
    fn what_is_missing_is_counted_wherever_it_is_missing() {
        assert_eq!(consumed((0..10).chain(15..100)).compare(&published(100)), (5, false));
        assert_eq!(consumed(5..100).compare(&published(100)), (5, false));
        assert_eq!(consumed(0..90).compare(&published(100)), (10, false));
        assert_eq!(consumed([]).compare(&published(100)), (100, false));
    }

    #[test]
    fn more_than_was_published_is_not_verified() {
        assert_eq!(consumed(0..101).compare(&published(100)), (0, false));
    }

    #[test]
    fn another_order_is_a_fault_though_nothing_is_missing() {
        let swapped = consumed([0, 2, 1, 3]);
        assert_eq!((swapped.out_of_order, swapped.missing()), (1, 0));
        assert_eq!(swapped.compare(&published(4)), (0, false));
    }

    #[test]
    fn a_failed_delivery_may_be_there_or_not() {
        let mut published = published(10);
        published.fail(10..15);
        published.fail(15..20);
        published.acknowledge(ID, 20..30);
        assert_eq!(published.uncertain.as_slice(), std::slice::from_ref(&(10..20)));
        assert_eq!(consumed((0..10).chain(20..30)).compare(&published), (0, true));
        assert_eq!(consumed(0..30).compare(&published), (0, true));
        assert_eq!(consumed((0..8).chain(20..30)).compare(&published), (2, false));
        assert_eq!(consumed(0..25).compare(&published), (5, false));
        assert_eq!(consumed(0..10).compare(&published), (10, false));
    }

    #[test]
    fn a_stream_joined_in_the_middle_is_whole_from_there_on() {
        let mut streams = Streams::default();
        assert!((40..50).all(|sequence| streams.take(ID, &header(sequence))));
        assert!(!streams.take(ID, &header(45)));
        let stream = streams.get(ID).unwrap();
        assert_eq!((stream.messages, stream.missing(), stream.out_of_order), (10, 0, 0));
    }
}
