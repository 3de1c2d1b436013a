//! The metrics page in Prometheus' text format, written from figures that were gathered for it. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use crate::messages::{Closing, Refusal, ShardFigures};

/// What the page tells.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The broker's version.
    pub version: &'static str,
    /// Since the broker was ready.
    pub uptime: Duration,
    /// Topics in the registry.
    pub topics: u64,
    /// The registry's revision.
    pub registry_revision: u64,
    /// Whether the registry answers, and is this cluster's.
    pub registry_up: bool,
    /// What the log says that an operator should change about it.
    pub registry_warnings: u64,
    /// Memory that the process has in use, in bytes; 0: not known.
    pub resident_bytes: u64,
    /// CPU time that the process has used.
    pub cpu: Duration,
    /// Topics' directories that are kept and not served, as the start found them.
    pub directories_set_aside: u64,
    /// Checkpoints that the start could not read.
    pub checkpoints_unreadable: u64,
    /// Each shard that answered.
    pub shards: Vec<ShardFigures>,
    /// Shards that did not answer in time.
    pub silent_shards: u64,
}

/// How a shard's metric is read: its name, its kind, what it means, where the shard's figures have it.
type ShardMetric = (&'static str, &'static str, &'static str, fn(&ShardFigures) -> u64);

const SHARD_METRICS: [ShardMetric; 21] = [
    ("corelane_partitions", "gauge", "Partitions that serve.", |shard| shard.partitions),
    ("corelane_partitions_refused", "gauge", "Partitions that an operator must look at.", |shard| shard.refused),
    ("corelane_bad_messages_total", "counter", "Damaged places, found at recovery or met by readers.", |shard| {
        shard.damage.bad_messages
    }),
    ("corelane_recoveries_total", "counter", "Recoveries that found a torn tail or damage.", |shard| {
        shard.damage.recoveries
    }),
    ("corelane_cut_bytes_total", "counter", "Bytes of torn tails that were cut off, a copy of each kept.", |shard| {
        shard.damage.cut_bytes
    }),
    ("corelane_foreign_files", "gauge", "Files in partitions' directories that are not the log's.", |shard| {
        shard.damage.foreign_files
    }),
    ("corelane_rebuilt_summaries_total", "counter", "Damaged summaries that were rebuilt.", |shard| {
        shard.damage.rebuilt_summaries
    }),
    ("corelane_unreadable_segments_total", "counter", "Reads of segments whose file is gone or too short.", |shard| {
        shard.damage.unreadable_segments
    }),
    ("corelane_connections", "gauge", "Client connections.", |shard| shard.connections),
    ("corelane_connections_max", "gauge", "Client connections that the shard takes.", |shard| shard.connections_max),
    ("corelane_connections_accepted_total", "counter", "Connections accepted, refused ones included.", |shard| {
        shard.accepted
    }),
    ("corelane_long_polls", "gauge", "Requests that wait for news.", |shard| shard.long_polls),
    ("corelane_busy_total", "counter", "Requests answered BUSY since a limit was reached.", |shard| shard.busy),
    ("corelane_outgoing_bytes", "gauge", "Answers that wait to be sent, without bytes of the log.", |shard| {
        shard.outgoing_head_bytes
    }),
    ("corelane_receive_extra_bytes", "gauge", "What receive buffers have beyond their usual size.", |shard| {
        shard.receive_extra_bytes
    }),
    ("corelane_arena_bytes", "gauge", "Size of the shard's arena.", |shard| shard.arena_bytes),
    ("corelane_arena_used_bytes", "gauge", "Arena memory in use, hot tails included.", |shard| shard.arena_used_bytes),
    ("corelane_published_bytes_total", "counter", "Bytes received in published sets.", |shard| shard.published_bytes),
    ("corelane_published_sets_total", "counter", "Sets published.", |shard| shard.published_sets),
    ("corelane_fetched_bytes_total", "counter", "Bytes of the log sent to consumers.", |shard| shard.fetched_bytes),
    ("corelane_fetches_total", "counter", "Fetches answered.", |shard| shard.fetches),
];

/// The page's content type.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes the page.
pub fn render(snapshot: &Snapshot) -> String {
    let mut text = String::with_capacity(4096);
    head(&mut text, "corelane_build_info", "gauge", "Always 1; the labels tell the version.");
    let _ = writeln!(text, "corelane_build_info{{version=\"{}\"}} 1", snapshot.version);
    for (name, kind, help, value) in [
        ("corelane_uptime_seconds", "gauge", "Time since the broker was ready.", snapshot.uptime.as_secs_f64()),
        ("corelane_topics", "gauge", "Topics in the registry.", snapshot.topics as f64),
        ("corelane_registry_revision", "gauge", "Revision of the registry.", snapshot.registry_revision as f64),
        (
            "corelane_registry_up",
            "gauge",
            "1: the registry answers, and is this cluster's.",
            f64::from(u8::from(snapshot.registry_up)),
        ),
        (
            "corelane_registry_warnings",
            "gauge",
            "What /health/ready says of the registry.",
            snapshot.registry_warnings as f64,
        ),
        ("corelane_silent_shards", "gauge", "Shards that did not answer for this page.", snapshot.silent_shards as f64),
        (
            "corelane_directories_set_aside",
            "gauge",
            "Topics' directories that are kept and not served.",
            snapshot.directories_set_aside as f64,
        ),
        (
            "corelane_checkpoints_unreadable",
            "gauge",
            "Checkpoints that the start could not read.",
            snapshot.checkpoints_unreadable as f64,
        ),
        ("process_resident_memory_bytes", "gauge", "Memory in use.", snapshot.resident_bytes as f64),
        ("process_cpu_seconds_total", "counter", "CPU time used.", snapshot.cpu.as_secs_f64()),
    ] {
        head(&mut text, name, kind, help);
        let _ = writeln!(text, "{name} {value}");
    }
    for (name, kind, help, value) in SHARD_METRICS {
        head(&mut text, name, kind, help);
        for shard in &snapshot.shards {
            let _ = writeln!(text, "{name}{{shard=\"{}\"}} {}", shard.shard, value(shard));
        }
    }
    by_reason(
        &mut text,
        ("corelane_connections_refused_total", "Connections refused, by the limit that was reached."),
        snapshot,
        |shard| Refusal::ALL.iter().map(|(_, name)| *name).zip(shard.refused_connections).collect(),
    );
    by_reason(
        &mut text,
        ("corelane_connections_closed_total", "Connections that the broker closed, by the reason."),
        snapshot,
        |shard| Closing::ALL.iter().map(|(_, name)| *name).zip(shard.closed_connections).collect(),
    );
    text
}

/// A counter of each shard for each of several reasons.
fn by_reason(
    text: &mut String,
    (name, help): (&str, &str),
    snapshot: &Snapshot,
    counts: impl Fn(&ShardFigures) -> Vec<(&'static str, u64)>,
) {
    head(text, name, "counter", help);
    for shard in &snapshot.shards {
        for (reason, count) in counts(shard) {
            let _ = writeln!(text, "{name}{{shard=\"{}\",reason=\"{reason}\"}} {count}", shard.shard);
        }
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// What the system says of this process: memory in use in bytes, CPU time. Zero where it does not say.
pub fn process_usage() -> (u64, Duration) {
    let numbers = |file: &str, behind: &str| -> Vec<u64> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let rest = text.rsplit_once(behind).map_or(text.as_str(), |(_, rest)| rest);
        rest.split_whitespace().map(|number| number.parse().unwrap_or(0)).collect()
    };
    // proc(5): statm has the resident pages second; stat has user and system time 14th and 15th, counted from 1, and the
    // process's name, which may hold anything, in parentheses second.
    let pages = numbers("/proc/self/statm", "\0").get(1).copied().unwrap_or(0);
    let ticks: u64 = numbers("/proc/self/stat", ")").iter().skip(11).take(2).sum();
    let tick_ms = 1000 / rustix::param::clock_ticks_per_second().max(1);
    (pages * rustix::param::page_size() as u64, Duration::from_millis(ticks * tick_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_help_and_type_and_each_shard_its_line() {
        let shard =
            |shard| ShardFigures { shard, partitions: 3, published_sets: u64::from(shard), ..Default::default() };
        let snapshot = Snapshot { version: "0.1.0", shards: vec![shard(0), shard(1)], ..Snapshot::default() };
        let page = render(&snapshot);
        for line in page.lines() {
            let name = line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ");
            let name = name.split([' ', '{']).next().expect("a name");
            assert!(page.contains(&format!("# HELP {name} ")) && page.contains(&format!("# TYPE {name} ")), "{line}");
        }
        assert!(page.contains("corelane_build_info{version=\"0.1.0\"} 1\n"));
        assert!(page.contains("corelane_partitions{shard=\"0\"} 3\ncorelane_partitions{shard=\"1\"} 3\n"));
        assert!(page.contains("# TYPE corelane_published_sets_total counter\n"));
    }

    #[test]
    fn the_system_knows_this_process() {
        let (resident, cpu) = process_usage();
        assert!(resident > 100_000 && cpu < Duration::from_hours(1), "{resident} {cpu:?}");
    }
}
