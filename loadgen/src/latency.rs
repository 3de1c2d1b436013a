//! Latencies in microseconds, from a microsecond to an hour, to three digits.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

const HIGHEST_US: u64 = 3_600_000_000;
/// Points of a curve for each factor of ten between a percentile's distance from 100 % and the next one's.
const POINTS_PER_DECADE: i32 = 12;

/// A histogram that takes whatever it is given.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u64>);

/// The figures of a report, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Percentiles {
    /// Messages measured.
    pub(crate) count: u64,
    pub(crate) mean: f64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) p9999: u64,
    pub(crate) max: u64,
}

/// The figures of an interval, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Brief {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, HIGHEST_US, 3).expect("constant bounds are valid"))
    }
}

impl Latencies {
    /// So many messages took so long. What lies beyond the bounds counts as the bound.
    pub(crate) fn record(&mut self, latency: Duration, messages: u64) {
        let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record_n(latency_us.clamp(1, HIGHEST_US), messages);
    }

    pub(crate) fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    pub(crate) fn clear(&mut self) {
        self.0.reset();
    }

    /// None when nothing was recorded.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        let at = |quantile| self.0.value_at_quantile(quantile);
        (!self.0.is_empty()).then(|| Percentiles {
            count: self.0.len(),
            mean: (self.0.mean() * 10.0).round() / 10.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: self.0.max(),
        })
    }

    /// None when nothing was recorded.
    pub(crate) fn brief(&self) -> Option<Brief> {
        let at = |quantile| self.0.value_at_quantile(quantile);
        (!self.0.is_empty()).then(|| Brief { p50: at(0.5), p99: at(0.99), max: self.0.max() })
    }

    /// Pairs of a quantile and its latency, evenly over the "nines": as far as there are messages that tell.
    pub(crate) fn curve(&self) -> Vec<(f64, u64)> {
        let mut curve = Vec::new();
        for step in 0.. {
            let beyond = 10_f64.powf(-f64::from(step) / f64::from(POINTS_PER_DECADE));
            if beyond * (self.0.len() as f64) < 1.0 {
                break;
            }
            curve.push((1.0 - beyond, self.0.value_at_quantile(1.0 - beyond)));
        }
        curve
    }
}

/// One kind of latency: what came since the last look, and all that counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series {
    interval: Latencies,
    total: Latencies,
}

impl Series {
    pub(crate) fn record(&mut self, latency: Duration, messages: u64) {
        self.interval.record(latency, messages);
    }

    /// Ends an interval; what it had counts for the whole run unless it was the warm-up.
    pub(crate) fn end_interval(&mut self, counts: bool) -> Option<Brief> {
        let brief = self.interval.brief();
        if counts {
            self.total.add(&self.interval);
        }
        self.interval.clear();
        brief
    }

    /// All that counts, the interval that runs not included.
    pub(crate) fn total(&self) -> &Latencies {
        &self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut low = Latencies::default();
        assert_eq!((low.percentiles(), low.brief(), low.curve().len()), (None, None, 0));
        low.record(Duration::from_micros(100), 989);
        low.record(Duration::ZERO, 1);
        let mut high = Latencies::default();
        high.record(Duration::from_millis(5), 9);
        high.record(Duration::from_secs(1 << 40), 1);
        low.add(&high);
        let found = low.percentiles().unwrap();
        assert_eq!((found.count, found.p50, found.p99), (1_000, 100, 100));
        assert!((5_000..=5_003).contains(&found.p999), "{found:?}");
        assert!(found.max >= HIGHEST_US && found.p9999 >= HIGHEST_US);
    }

    #[test]
    fn a_curve_reaches_as_far_as_there_are_messages() {
        let mut latencies = Latencies::default();
        for latency_us in 1..=1_000 {
            latencies.record(Duration::from_micros(latency_us), 1);
        }
        let curve = latencies.curve();
        assert_eq!((curve.first().unwrap().1, curve.len()), (1, 37), "three nines, twelve points each, and both ends");
        let (quantile, latency_us) = curve[12];
        assert!((quantile - 0.9).abs() < 1e-9 && latency_us.abs_diff(900) <= 1, "{quantile} {latency_us}");
        assert!(curve.iter().all(|(quantile, _)| *quantile < 1.0));
        assert!(curve.is_sorted());
    }

    #[test]
    fn the_warm_up_has_its_interval_but_does_not_count() {
        let mut series = Series::default();
        series.record(Duration::from_micros(500), 3);
        assert_eq!(series.end_interval(false), Some(Brief { p50: 500, p99: 500, max: 500 }));
        series.record(Duration::from_micros(7), 1);
        assert_eq!(series.end_interval(true).map(|brief| brief.max), Some(7));
        assert_eq!(series.end_interval(true), None);
        assert_eq!(series.total().percentiles().map(|all| (all.count, all.max)), Some((1, 7)));
    }
}
