//! Latencies in microseconds, from a microsecond to an hour, to three digits.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

const HIGHEST_US: u64 = 3_600_000_000;

/// A histogram that takes whatever it is given.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u64>);

/// The figures of a report, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, HIGHEST_US, 3).expect("constant bounds are valid"))
    }
}

impl Latencies {
    /// So many messages took so long.
    pub(crate) fn record(&mut self, latency: Duration, messages: u64) {
        self.record_us(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX), messages);
    }

    /// The same in microseconds. What lies beyond the bounds counts as the bound.
    pub(crate) fn record_us(&mut self, latency_us: u64, messages: u64) {
        self.0.saturating_record_n(latency_us.clamp(1, HIGHEST_US), messages);
    }

    pub(crate) fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// None when nothing was recorded.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        let at = |quantile| self.0.value_at_quantile(quantile);
        (!self.0.is_empty()).then(|| Percentiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.0.max(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut low = Latencies::default();
        assert_eq!(low.percentiles(), None);
        low.record(Duration::from_micros(100), 989);
        low.record(Duration::ZERO, 1);
        let mut high = Latencies::default();
        high.record_us(5_000, 9);
        high.record(Duration::from_secs(1 << 40), 1);
        low.add(&high);
        let found = low.percentiles().unwrap();
        assert_eq!((found.p50, found.p99), (100, 100));
        assert!((5_000..=5_003).contains(&found.p999), "{found:?}");
        assert!(found.max >= HIGHEST_US);
    }
}
