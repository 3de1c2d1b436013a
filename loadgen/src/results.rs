//! The results of a run: as JSON for programs (and for `report` and `compare` later), as a table for people.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::latency::{Brief, Percentiles};
use crate::machine::Machine;

/// The version of the document; a later one has other meanings, not just more fields.
pub(crate) const FORMAT: u32 = 1;

/// One direction's throughput.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// What was asked for, defaults filled in. What the mode does not have is null.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    pub(crate) mode: String,
    pub(crate) topics: u64,
    /// Of all topics.
    pub(crate) partitions: u64,
    pub(crate) producers: u64,
    pub(crate) consumers: u64,
    pub(crate) group: Option<String>,
    pub(crate) fan_out: u64,
    pub(crate) set: Option<u64>,
    pub(crate) size: Option<String>,
    pub(crate) size_mean_bytes: Option<f64>,
    pub(crate) keys: Option<String>,
    pub(crate) rate: Option<f64>,
    pub(crate) ramp: Option<String>,
    pub(crate) arrivals: Option<String>,
    pub(crate) outstanding: Option<u64>,
    pub(crate) in_flight: Option<u64>,
    pub(crate) acks: Option<String>,
    pub(crate) compression: Option<String>,
    pub(crate) seed: Option<u64>,
    pub(crate) count: Option<u64>,
    pub(crate) duration_s: Option<f64>,
    pub(crate) warmup_s: f64,
}

/// A broker that was there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BrokerSeen {
    pub(crate) id: u32,
    pub(crate) version: String,
    pub(crate) shards: u32,
}

/// What happened in an interval.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Moment {
    /// The end of the interval, since the start of the run.
    pub(crate) at_s: f64,
    pub(crate) seconds: f64,
    pub(crate) warm_up: bool,
    /// Messages that the rate asked for; null without one.
    pub(crate) offered: Option<f64>,
    /// Messages acknowledged.
    pub(crate) published: u64,
    pub(crate) published_bytes: u64,
    pub(crate) consumed: u64,
    pub(crate) consumed_bytes: u64,
    pub(crate) errors: u64,
    pub(crate) ack_us: Option<Brief>,
    pub(crate) end_to_end_us: Option<Brief>,
}

/// Messages, as verification counts them; the warm-up's too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Verification {
    pub(crate) acknowledged: u64,
    /// Those that were whole and new, over all audiences.
    pub(crate) consumed: u64,
    pub(crate) missing: u64,
    pub(crate) extra: u64,
    pub(crate) duplicates: u64,
    pub(crate) out_of_order: u64,
    pub(crate) damaged: u64,
}

/// What the load generator itself used while it measured.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Generator {
    pub(crate) cpu_s: f64,
    /// For each message published or consumed.
    pub(crate) cpu_us_per_message: f64,
}

/// Pairs of a quantile and its latency in microseconds.
pub(crate) type Curve = Vec<(f64, u64)>;

/// Everything that a run tells. What the mode does not do is null.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Results {
    /// See [`FORMAT`].
    pub(crate) format: u32,
    pub(crate) name: Option<String>,
    /// RFC 3339.
    pub(crate) started: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) settings: Settings,
    pub(crate) machine: Machine,
    pub(crate) brokers: Vec<BrokerSeen>,
    pub(crate) interrupted: bool,
    pub(crate) produce: Option<Flow>,
    pub(crate) consume: Option<Flow>,
    /// Messages that were due by the end and not handed over: the load was more than could be offered. Null without a rate.
    pub(crate) behind: Option<u64>,
    pub(crate) ack_us: Option<Percentiles>,
    /// As `ack_us`, from when sets were handed over. Null without a rate: it would be the same.
    pub(crate) service_us: Option<Percentiles>,
    /// From when sets were due to when they were handed over. Null without a rate.
    pub(crate) late_us: Option<Percentiles>,
    pub(crate) end_to_end_us: Option<Percentiles>,
    pub(crate) verified: bool,
    pub(crate) verification: Verification,
    /// Messages, by the kind of error.
    pub(crate) errors: BTreeMap<String, u64>,
    /// The first faults that verification found, with their places.
    pub(crate) faults: Vec<String>,
    pub(crate) generator: Generator,
    /// By the name of the latency.
    pub(crate) curves: BTreeMap<String, Curve>,
    pub(crate) timeline: Vec<Moment>,
}

/// Kinds of error that a retry is allowed to make.
pub(crate) const DUPLICATES: &str = "duplicates";

/// Why a document is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{path}: {cause}")]
    File { path: String, cause: std::io::Error },
    #[error("{path} is no result of corelane-loadgen: {cause}")]
    Json { path: String, cause: serde_json::Error },
    #[error(
        "{path} is no result of corelane-loadgen that this version understands: its format is {format}, not {FORMAT}"
    )]
    Format { path: String, format: u32 },
}

impl Results {
    /// Reads what `--json` wrote.
    pub(crate) fn read(path: &Path) -> Result<Self, ReadError> {
        let name = path.display().to_string();
        let text = std::fs::read(path).map_err(|cause| ReadError::File { path: name.clone(), cause })?;
        let mut results: Self =
            serde_json::from_slice(&text).map_err(|cause| ReadError::Json { path: name.clone(), cause })?;
        if results.format != FORMAT {
            return Err(ReadError::Format { path: name, format: results.format });
        }
        if results.name.is_none() {
            results.name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        }
        Ok(results)
    }

    /// Whether the run counts as a success: verified, and nothing failed but what retries repair.
    pub(crate) fn is_success(&self) -> bool {
        self.verified && self.errors.keys().all(|kind| kind == DUPLICATES)
    }

    pub(crate) fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("our own documents have text keys");
        text.push('\n');
        text
    }

    /// The latencies that there are, with the names that people read and those of the fields.
    pub(crate) fn latencies(&self) -> impl Iterator<Item = (&'static str, &'static str, Percentiles)> {
        let all = [
            ("ack", "ack_us", self.ack_us),
            ("ack, once sent", "service_us", self.service_us),
            ("sent late by", "late_us", self.late_us),
            ("end to end", "end_to_end_us", self.end_to_end_us),
        ];
        all.into_iter().filter_map(|(name, field, latencies)| Some((name, field, latencies?)))
    }

    /// The table.
    pub(crate) fn to_text(&self) -> String {
        let mut lines = vec![format!(
            "{:<18} {:>14} {:>16} {:>10} {:>14} {:>10}",
            "", "messages", "bytes", "seconds", "messages/s", "MB/s"
        )];
        for (name, flow) in [("produce", &self.produce), ("consume", &self.consume)] {
            lines.extend(flow.as_ref().map(|flow| {
                format!(
                    "{name:<18} {:>14} {:>16} {:>10.2} {:>14.0} {:>10.1}",
                    flow.messages, flow.bytes, flow.seconds, flow.messages_per_s, flow.mb_per_s
                )
            }));
        }
        let mut heads = Some(format!(
            "\n{:<18} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "latency, us", "p50", "p90", "p99", "p99.9", "p99.99", "max"
        ));
        for (name, _, latencies) in self.latencies() {
            lines.extend(heads.take());
            let Percentiles { p50, p90, p99, p999, p9999, max, .. } = latencies;
            lines.push(format!("{name:<18} {p50:>10} {p90:>10} {p99:>10} {p999:>10} {p9999:>10} {max:>10}"));
        }
        lines.push(format!(
            "\nload generator: {:.2} CPU-seconds, {:.2} us a message",
            self.generator.cpu_s, self.generator.cpu_us_per_message
        ));
        if let Some(behind) = self.behind.filter(|behind| *behind > 0) {
            lines.push(format!("behind the rate: {behind} messages were due and not sent when the run ended"));
        }
        if self.interrupted {
            lines.push("interrupted".to_owned());
        }
        lines.push(if self.verified { "verified".to_owned() } else { "NOT VERIFIED".to_owned() });
        lines.extend(self.errors.iter().map(|(kind, messages)| format!("{kind}: {messages}")));
        lines.extend(self.faults.iter().map(|fault| format!("  {fault}")));
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Results with a bit of everything.
    pub(crate) fn example() -> Results {
        let percentiles =
            Percentiles { count: 9, mean: 2.5, p50: 100, p90: 200, p99: 300, p999: 400, p9999: 450, max: 500 };
        let brief = Some(Brief { p50: 100, p99: 300, max: 500 });
        let moment = |at_s: f64| Moment {
            at_s,
            seconds: 1.0,
            warm_up: at_s < 1.5,
            offered: Some(1_000.0),
            published: 1_000,
            consumed: 990,
            ack_us: brief,
            end_to_end_us: brief,
            ..Moment::default()
        };
        Results {
            format: FORMAT,
            settings: Settings { mode: "both".to_owned(), rate: Some(1_000.0), ..Settings::default() },
            produce: Some(Flow::new(1_000, 200_000, Duration::from_millis(500))),
            consume: Some(Flow::new(990, 198_000, Duration::from_millis(500))),
            ack_us: Some(percentiles),
            end_to_end_us: Some(percentiles),
            verified: true,
            errors: BTreeMap::from([(DUPLICATES.to_owned(), 7)]),
            curves: BTreeMap::from([
                ("ack_us".to_owned(), vec![(0.0, 10), (0.5, 100), (0.9, 200), (0.99, 300), (0.999, 400)]),
                ("end_to_end_us".to_owned(), vec![(0.0, 20), (0.5, 120), (0.9, 220), (0.99, 320)]),
            ]),
            timeline: vec![moment(1.0), moment(2.0), moment(3.0)],
            ..Results::default()
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let results = example();
        assert_eq!(serde_json::from_str::<Results>(&results.to_json()).unwrap(), results);
    }

    #[test]
    fn duplicates_are_told_but_are_no_failure() {
        let mut results = example();
        assert!(results.is_success() && results.to_text().contains("duplicates: 7"));
        results.errors.insert("missing".to_owned(), 1);
        assert!(!results.is_success());
        results = Results { verified: false, errors: BTreeMap::new(), ..results };
        assert!(!results.is_success() && results.to_text().contains("NOT VERIFIED"));
    }
}
