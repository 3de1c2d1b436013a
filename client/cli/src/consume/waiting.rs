//! What a command that follows says of partitions that cannot be read at the moment: once for each cause, again while it
//! lasts, and when all of them have given messages again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use corelane_client::{CallError, ConsumeError};

/// A cause that was told of is not told again for so long: the client reports each partition.
const SILENCE: Duration = Duration::from_secs(8);

#[derive(Debug, Default)]
pub(super) struct Waiting {
    partitions: BTreeSet<(String, u32)>,
    told: BTreeMap<String, Instant>,
}

impl Waiting {
    /// A partition cannot be read; what is to be said of it.
    pub(super) fn begin(&mut self, error: &ConsumeError, now: Instant) -> Option<String> {
        let words = match error {
            ConsumeError::Unavailable { topic, partition, cause } => {
                self.partitions.insert((topic.clone(), *partition));
                match cause {
                    CallError::Unreachable { .. } => format!("{cause}; what lies there waits, still trying"),
                    _ => format!("{error}; still trying"),
                }
            }
            _ => format!("{error}; still trying"),
        };
        self.told.retain(|_, told| now.duration_since(*told) < SILENCE);
        if self.told.contains_key(&words) {
            return None;
        }
        self.told.insert(words.clone(), now);
        Some(words)
    }

    /// A partition has given a message; what is to be said when it was the last one of those that waited.
    pub(super) fn end(&mut self, topic: &str, partition: u32) -> Option<&'static str> {
        if self.partitions.is_empty() {
            return None;
        }
        self.partitions.remove(&(topic.to_owned(), partition));
        self.partitions.is_empty().then_some("what waited is read again")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable(partition: u32, broker_id: u32) -> ConsumeError {
        let cause = CallError::Unreachable { broker_id, causes: Vec::new() };
        ConsumeError::Unavailable { topic: "t".to_owned(), partition, cause }
    }

    #[test]
    fn a_cause_is_told_once_for_all_its_partitions_and_again_while_it_lasts() {
        let mut waiting = Waiting::default();
        let now = Instant::now();
        let words = waiting.begin(&unreachable(0, 2), now).unwrap();
        assert!(words.starts_with("broker 2 cannot be reached"), "{words}");
        assert_eq!(waiting.begin(&unreachable(3, 2), now), None);
        assert!(waiting.begin(&unreachable(1, 3), now).is_some(), "another cause");
        assert_eq!(waiting.begin(&unreachable(0, 2), now + SILENCE), Some(words));
    }

    #[test]
    fn the_end_is_told_when_the_last_of_them_is_read() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.end("t", 0), None);
        waiting.begin(&unreachable(0, 2), Instant::now());
        waiting.begin(&unreachable(3, 2), Instant::now());
        assert_eq!(waiting.end("t", 1), None);
        assert_eq!(waiting.end("t", 0), None);
        assert!(waiting.end("t", 3).is_some());
        assert_eq!(waiting.end("t", 3), None);
    }
}
