//! What is known of a segment's inside: a message boundary about every 64 KiB, and for each how many messages lie before
//! it and the largest timestamp among them. Built as sets are appended, or by a scan. Pure.

/// A known message boundary. Counts and times are those of the messages between the index's beginning and it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Bytes from the segment's base.
    pub(crate) offset: u64,
    pub(crate) messages_before: u64,
    pub(crate) max_timestamp_before_ms: i64,
}

/// The stretches of a segment from `known_from` to `end`, in bytes from its base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    /// How far boundaries lie apart, at least.
    pub(crate) stretch_bytes: u64,
    pub(crate) known_from: u64,
    pub(crate) end: u64,
    pub(crate) messages: u64,
    pub(crate) max_timestamp_ms: i64,
    pub(crate) stretches: Vec<Stretch>,
}

/// One or more messages that lie back to back, as the index counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) bytes: u64,
    /// As consumers see them: a wrapper's count.
    pub(crate) messages: u64,
    pub(crate) max_timestamp_ms: i64,
}

impl Index {
    /// Knows nothing yet, and is to grow from `known_from`, a boundary.
    pub(crate) fn new(known_from: u64, stretch_bytes: u64) -> Self {
        Self {
            stretch_bytes,
            known_from,
            end: known_from,
            messages: 0,
            max_timestamp_ms: i64::MIN,
            stretches: Vec::new(),
        }
    }

    /// Whether it tells everything from the segment's base on.
    pub(crate) fn is_complete(&self) -> bool {
        self.known_from == 0
    }

    /// More messages follow the last ones.
    pub(crate) fn append(&mut self, run: Run) {
        if self.stretches.last().is_none_or(|last| self.end >= last.offset + self.stretch_bytes) {
            self.mark_boundary();
        }
        self.end += run.bytes;
        self.messages += run.messages;
        self.max_timestamp_ms = self.max_timestamp_ms.max(run.max_timestamp_ms);
    }

    /// Notes that a message begins at the end.
    pub(crate) fn mark_boundary(&mut self) {
        if self.stretches.last().is_some_and(|last| last.offset == self.end) {
            return;
        }
        self.stretches.push(Stretch {
            offset: self.end,
            messages_before: self.messages,
            max_timestamp_before_ms: self.max_timestamp_ms,
        });
    }

    /// Bytes that are no good messages follow; behind them lies a boundary.
    pub(crate) fn append_damage(&mut self, bytes: u64) {
        if bytes > 0 {
            self.end += bytes;
            self.mark_boundary();
        }
    }

    /// What it knows up to the last boundary at or below `offset`; `None` when that is nothing.
    pub(crate) fn truncated(&self, offset: u64) -> Option<Index> {
        if self.end <= offset {
            return Some(self.clone());
        }
        let count = self.stretches.partition_point(|stretch| stretch.offset <= offset);
        let last = self.stretches.get(count.checked_sub(1)?)?;
        Some(Index {
            end: last.offset,
            messages: last.messages_before,
            max_timestamp_ms: last.max_timestamp_before_ms,
            stretches: self.stretches[..count - 1].to_vec(),
            ..*self
        })
    }

    /// This index, which ends where `later` begins, and `later`, as one.
    pub(crate) fn joined(mut self, later: &Index) -> Index {
        assert!(self.end == later.known_from, "an index that begins at {} was expected", self.end);
        for stretch in &later.stretches {
            self.stretches.push(Stretch {
                offset: stretch.offset,
                messages_before: self.messages + stretch.messages_before,
                max_timestamp_before_ms: self.max_timestamp_ms.max(stretch.max_timestamp_before_ms),
            });
        }
        self.end = later.end;
        self.messages += later.messages;
        self.max_timestamp_ms = self.max_timestamp_ms.max(later.max_timestamp_ms);
        self
    }

    /// The last known boundary at or below `offset`, if it lies in what is known.
    pub(crate) fn boundary_at_or_below(&self, offset: u64) -> Option<u64> {
        let behind = self.stretches.partition_point(|stretch| stretch.offset <= offset);
        behind.checked_sub(1).map(|last| self.stretches[last].offset)
    }

    /// The first known boundary above `offset`; the end of what is known counts.
    pub(crate) fn boundary_above(&self, offset: u64) -> Option<u64> {
        let behind = self.stretches.partition_point(|stretch| stretch.offset <= offset);
        let next = self.stretches.get(behind).map_or(self.end, |stretch| stretch.offset);
        (next > offset).then_some(next)
    }

    /// Where the stretch begins that holds the first message with a timestamp of `time_ms` or later.
    pub(crate) fn stretch_with_time(&self, time_ms: i64) -> Option<u64> {
        if self.max_timestamp_ms < time_ms {
            return None;
        }
        let behind = self.stretches.partition_point(|stretch| stretch.max_timestamp_before_ms < time_ms);
        self.stretches.get(behind.saturating_sub(1)).map(|last| last.offset)
    }

    /// The last stretch with at most `messages` messages before it.
    pub(crate) fn stretch_behind_messages(&self, messages: u64) -> Option<Stretch> {
        let behind = self.stretches.partition_point(|stretch| stretch.messages_before <= messages);
        behind.checked_sub(1).map(|last| self.stretches[last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: u64, max_timestamp_ms: i64) -> Run {
        Run { bytes, messages: 10, max_timestamp_ms }
    }

    /// Sets of 30,000 bytes: boundaries at 0, 90,000, 180,000 ...
    fn index(known_from: u64, times: &[i64]) -> Index {
        let mut index = Index::new(known_from, 64 << 10);
        for time in times {
            index.append(run(30_000, *time));
        }
        index
    }

    #[test]
    fn boundaries_are_remembered_about_every_64_kib() {
        let index = index(0, &[1; 9]);
        assert_eq!(index.stretches.iter().map(|s| s.offset).collect::<Vec<_>>(), [0, 90_000, 180_000]);
        assert_eq!(index.boundary_at_or_below(89_999), Some(0));
        assert_eq!(index.boundary_at_or_below(90_000), Some(90_000));
        assert_eq!(index.boundary_above(0), Some(90_000));
        assert_eq!(index.boundary_above(180_000), Some(270_000));
        assert_eq!(index.boundary_above(270_000), None);
    }

    #[test]
    fn times_need_not_be_ordered() {
        let index = index(0, &[5, 1, 1, 2, 9, 1, 3, 1, 1]);
        assert_eq!(index.stretch_with_time(5), Some(0));
        assert_eq!(index.stretch_with_time(6), Some(90_000));
        assert_eq!(index.stretch_with_time(9), Some(90_000));
        assert_eq!(index.stretch_with_time(10), None);
        assert_eq!(index.stretch_with_time(i64::MIN), Some(0));
    }

    #[test]
    fn messages_are_counted_from_the_beginning() {
        let index = index(0, &[1; 9]);
        assert_eq!(index.stretch_behind_messages(29).unwrap().offset, 0);
        assert_eq!(index.stretch_behind_messages(30).unwrap().offset, 90_000);
    }

    #[test]
    fn a_truncated_index_is_that_of_the_shorter_segment() {
        let times = [5, 1, 1, 2, 9, 1, 3, 1, 1];
        assert_eq!(index(0, &times).truncated(179_999), Some(index(0, &times[..3])));
        assert_eq!(index(0, &times).truncated(180_000), Some(index(0, &times[..6])));
        assert_eq!(index(0, &times).truncated(270_000), Some(index(0, &times)));
    }

    #[test]
    fn two_halves_join_to_the_whole() {
        let times = [5, 1, 1, 2, 9, 1, 3, 1, 1];
        let joined = index(0, &times[..3]).joined(&index(90_000, &times[3..]));
        assert_eq!(joined, index(0, &times));
    }
}
