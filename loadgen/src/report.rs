//! The result of a run: as JSON for programs and as a table for people.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::latency::Percentiles;

/// One direction's throughput.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Flow {
    pub(crate) messages: u64,
    /// Of the values.
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) messages_per_s: f64,
    /// Millions of bytes a second.
    pub(crate) mb_per_s: f64,
}

impl Flow {
    pub(crate) fn new(messages: u64, bytes: u64, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        Self {
            messages,
            bytes,
            seconds,
            messages_per_s: per_second(messages as f64),
            mb_per_s: per_second(bytes as f64 / 1e6),
        }
    }
}

/// Everything that a run tells. What the mode does not do is null.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) produce: Option<Flow>,
    pub(crate) consume: Option<Flow>,
    pub(crate) ack_us: Option<Percentiles>,
    pub(crate) end_to_end_us: Option<Percentiles>,
    pub(crate) verified: bool,
    /// Messages, by the kind of error.
    pub(crate) errors: BTreeMap<String, u64>,
}

/// Kinds of error that a retry is allowed to make.
pub(crate) const DUPLICATES: &str = "duplicates";

impl Report {
    /// Whether the run counts as a success: verified, and nothing failed but what retries repair.
    pub(crate) fn is_success(&self) -> bool {
        self.verified && self.errors.keys().all(|kind| kind == DUPLICATES)
    }

    pub(crate) fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("our own documents have text keys");
        text.push('\n');
        text
    }

    /// The table.
    pub(crate) fn to_text(&self) -> String {
        let mut lines = vec![format!(
            "{:<14} {:>14} {:>16} {:>10} {:>14} {:>10}",
            "", "messages", "bytes", "seconds", "messages/s", "MB/s"
        )];
        for (name, flow) in [("produce", &self.produce), ("consume", &self.consume)] {
            lines.extend(flow.as_ref().map(|flow| {
                format!(
                    "{name:<14} {:>14} {:>16} {:>10.2} {:>14.0} {:>10.1}",
                    flow.messages, flow.bytes, flow.seconds, flow.messages_per_s, flow.mb_per_s
                )
            }));
        }
        if self.ack_us.is_some() || self.end_to_end_us.is_some() {
            lines.push(format!("\n{:<14} {:>14} {:>16} {:>10} {:>14} {:>10}", "", "p50", "p90", "p99", "p99.9", "max"));
        }
        for (name, latencies) in [("ack us", &self.ack_us), ("end to end us", &self.end_to_end_us)] {
            lines.extend(latencies.map(|Percentiles { p50, p90, p99, p999, max }| {
                format!("{name:<14} {p50:>14} {p90:>16} {p99:>10} {p999:>14} {max:>10}")
            }));
        }
        lines.push(if self.verified { "\nverified".to_owned() } else { "\nNOT VERIFIED".to_owned() });
        lines.extend(self.errors.iter().map(|(kind, messages)| format!("{kind}: {messages}")));
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            produce: Some(Flow::new(1_000, 200_000, Duration::from_millis(500))),
            consume: None,
            ack_us: Some(Percentiles { p50: 1, p90: 2, p99: 3, p999: 4, max: 5 }),
            end_to_end_us: None,
            verified: true,
            errors: BTreeMap::from([(DUPLICATES.to_owned(), 7)]),
        }
    }

    #[test]
    fn the_json_has_the_documented_fields() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        let expected = serde_json::json!({
            "produce": {
                "messages": 1_000, "bytes": 200_000, "seconds": 0.5, "messages_per_s": 2_000.0, "mb_per_s": 0.4,
            },
            "consume": null,
            "ack_us": {"p50": 1, "p90": 2, "p99": 3, "p999": 4, "max": 5},
            "end_to_end_us": null,
            "verified": true,
            "errors": {"duplicates": 7},
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn duplicates_are_told_but_are_no_failure() {
        let mut report = report();
        assert!(report.is_success() && report.to_text().contains("duplicates: 7"));
        report.errors.insert("missing".to_owned(), 1);
        assert!(!report.is_success());
        report = Report { verified: false, errors: BTreeMap::new(), ..report };
        assert!(!report.is_success() && report.to_text().contains("NOT VERIFIED"));
    }
}
