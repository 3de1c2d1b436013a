//! `--until TIME`: which messages still belong to the output, and when every partition has given its share.
//!
//! A partition is done at its first message of that time or later. Times are not ordered within a partition, so this is
//! a rule of thumb for producers whose clocks differ; what it guarantees is that no later message is printed.

use std::collections::BTreeMap;

/// Which partitions are done.
#[derive(Debug)]
pub(super) struct Until {
    time_ms: i64,
    done: BTreeMap<u32, bool>,
}

impl Until {
    pub(super) fn new(time_ms: i64, partitions: impl IntoIterator<Item = u32>) -> Self {
        Self { time_ms, done: partitions.into_iter().map(|partition| (partition, false)).collect() }
    }

    pub(super) fn time_ms(&self) -> i64 {
        self.time_ms
    }

    /// Whether a message belongs to the output. The first one of a partition that does not ends the partition.
    pub(super) fn takes(&mut self, partition: u32, timestamp_ms: i64) -> bool {
        let done = self.done.entry(partition).or_insert(false);
        *done |= timestamp_ms >= self.time_ms;
        !*done
    }

    /// Nothing more is expected of a partition.
    pub(super) fn give_up(&mut self, partition: u32) {
        self.done.insert(partition, true);
    }

    /// Whether no partition can give anything more.
    pub(super) fn is_done(&self) -> bool {
        self.done.values().all(|done| *done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_done_at_its_first_message_of_that_time() {
        let mut until = Until::new(1_000, [0, 1]);
        assert!(until.takes(0, 999));
        assert!(!until.takes(0, 1_000));
        assert!(!until.takes(0, 5), "what follows in the log was published later, whatever its time");
        assert!(!until.is_done());
        assert!(!until.takes(1, 2_000));
        assert!(until.is_done());
    }
}
