//! What is too old or too much. Pure: ages are measured on the monotonic clock, so a wall clock that jumps deletes nothing.

use crate::config::TopicConfig;
use crate::segment::Arrivals;

/// What retention looks at in a closed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClosedSegment {
    pub(crate) end: u64,
    /// When its newest byte arrived, in monotonic milliseconds, if that is known.
    pub(crate) last_at_ms: Option<i64>,
}

/// Whether the oldest segment of a log that ends at `end` is to be deleted.
pub(crate) fn is_expired(config: &TopicConfig, oldest: ClosedSegment, end: u64, now_ms: i64) -> bool {
    let too_much = config.retention_bytes > 0 && end - oldest.end >= config.retention_bytes;
    too_much || expires_at_ms(config, oldest).is_some_and(|at_ms| at_ms <= now_ms)
}

/// When the oldest segment is to be deleted for its age, in monotonic milliseconds.
pub(crate) fn expires_at_ms(config: &TopicConfig, oldest: ClosedSegment) -> Option<i64> {
    if config.retention_ms == 0 {
        return None;
    }
    Some(add_ms(oldest.last_at_ms?, config.retention_ms))
}

/// When the active segment is to be closed: its first message is too old for it, or its newest for the log.
pub(crate) fn roll_at_ms(config: &TopicConfig, arrivals: &Arrivals) -> Option<i64> {
    let by_segment = (config.segment_ms > 0).then(|| add_ms(arrivals.first_at_ms, config.segment_ms));
    let by_retention = (config.retention_ms > 0).then(|| add_ms(arrivals.last_at_ms, config.retention_ms));
    by_segment.into_iter().chain(by_retention).min()
}

fn add_ms(at_ms: i64, more_ms: u64) -> i64 {
    at_ms.saturating_add_unsigned(more_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(retention_ms: u64, retention_bytes: u64, segment_ms: u64) -> TopicConfig {
        TopicConfig { retention_ms, retention_bytes, segment_ms, ..TopicConfig::default() }
    }

    #[test]
    fn the_newest_arrival_counts() {
        let oldest = ClosedSegment { end: 100, last_at_ms: Some(-50) };
        assert!(!is_expired(&config(1000, 0, 0), oldest, 300, 949));
        assert!(is_expired(&config(1000, 0, 0), oldest, 300, 950));
        assert!(!is_expired(&config(0, 0, 0), oldest, 300, i64::MAX), "0 is for ever");
        assert!(!is_expired(&config(1000, 0, 0), ClosedSegment { last_at_ms: None, ..oldest }, 300, i64::MAX));
    }

    #[test]
    fn what_remains_is_never_less_than_the_size_asked_for() {
        let oldest = ClosedSegment { end: 100, last_at_ms: None };
        assert!(!is_expired(&config(0, 201, 0), oldest, 300, 0));
        assert!(is_expired(&config(0, 200, 0), oldest, 300, 0));
    }

    #[test]
    fn an_active_segment_is_closed_by_either_age() {
        let arrivals = Arrivals { first_ms: 0, last_ms: 0, first_at_ms: 10, last_at_ms: 500 };
        assert_eq!(roll_at_ms(&config(1000, 0, 2000), &arrivals), Some(1500));
        assert_eq!(roll_at_ms(&config(3000, 0, 2000), &arrivals), Some(2010));
        assert_eq!(roll_at_ms(&config(0, 0, 0), &arrivals), None);
        assert_eq!(roll_at_ms(&config(u64::MAX, 0, 0), &arrivals), Some(i64::MAX));
    }
}
