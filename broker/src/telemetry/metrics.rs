//! The metrics page in Prometheus' text format, written from what was gathered for it. Names say what is counted and end
//! with the unit; labels are few. What there is of every topic or partition is told when it is asked for. Pure.

use std::fmt::{Error, Write as _};
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::snapshot::Snapshot;
use crate::figures::{BUCKETS_US, Closing, HistogramFigures, PartitionFigures, Refusal, ShardFigures};
use crate::limits::METRICS_GROUP_LINES_MAX;

/// The page's content type.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the page tells beyond brokers, shards and groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// A few lines for each topic.
    pub topics: bool,
    /// A few lines for each partition that this broker serves.
    pub partitions: bool,
}

/// Writes the page.
pub fn render(snapshot: Snapshot, detail: Detail) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { snapshot: Arc::new(snapshot), detail }));
    let mut text = String::with_capacity(64 << 10);
    prometheus_text::encode(&mut text, &registry).expect("a string takes what is written");
    text
}

#[derive(Debug)]
struct Page {
    snapshot: Arc<Snapshot>,
    detail: Detail,
}

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut writer = Writer(encoder);
        let snapshot = &*self.snapshot;
        encode_broker(&mut writer, snapshot)?;
        encode_groups(&mut writer, snapshot)?;
        encode_shards(&mut writer, snapshot)?;
        if self.detail.topics {
            encode_topics(&mut writer, snapshot)?;
        }
        if self.detail.partitions {
            encode_partitions(&mut writer, snapshot)?;
        }
        Ok(())
    }
}

type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Copy)]
enum Value {
    Whole(u64),
    Real(f64),
}

/// Whether a metric goes up and down. A counter's name is written without the `_total` that the page gives it.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gauge,
    Counter,
}

struct Writer<'e>(DescriptorEncoder<'e>);

impl Writer<'_> {
    fn one(&mut self, kind: Kind, name: &str, help: &str, value: Value) -> Result<(), Error> {
        self.family(kind, name, help, [(Labels::new(), value)])
    }

    fn family(
        &mut self,
        kind: Kind,
        name: &str,
        help: &str,
        lines: impl IntoIterator<Item = (Labels, Value)>,
    ) -> Result<(), Error> {
        let metric_type = if kind == Kind::Gauge { MetricType::Gauge } else { MetricType::Counter };
        let mut metric = self.0.encode_descriptor(name, help, None, metric_type)?;
        for (labels, value) in lines {
            if labels.is_empty() {
                write_value(&mut metric, kind, value)?;
            } else {
                write_value(&mut metric.encode_family(&labels)?, kind, value)?;
            }
        }
        Ok(())
    }

    fn histograms<'h>(
        &mut self,
        name: &str,
        help: &str,
        lines: impl IntoIterator<Item = (Labels, &'h HistogramFigures)>,
    ) -> Result<(), Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, HistogramFigures { buckets, sum }) in lines {
            let ends = BUCKETS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = ends.zip(buckets.iter().copied()).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let mut line = metric.encode_family(&labels)?;
            line.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), count, &buckets, None)?;
        }
        Ok(())
    }
}

fn write_value(metric: &mut MetricEncoder<'_>, kind: Kind, value: Value) -> Result<(), Error> {
    match (kind, value) {
        (Kind::Gauge, Value::Whole(value)) => metric.encode_gauge(&value),
        (Kind::Gauge, Value::Real(value)) => metric.encode_gauge(&value),
        (Kind::Counter, Value::Whole(value)) => metric.encode_counter::<NoLabelSet, _, f64>(&value, None),
        (Kind::Counter, Value::Real(value)) => metric.encode_counter::<NoLabelSet, _, f64>(&value, None),
    }
}

fn encode_broker(writer: &mut Writer<'_>, snapshot: &Snapshot) -> Result<(), Error> {
    let mut build = writer.0.encode_descriptor(
        "corelane_build",
        "Always 1; the labels tell which broker this is",
        None,
        MetricType::Info,
    )?;
    build.encode_info(&[
        ("version", snapshot.version.to_owned()),
        ("broker_id", snapshot.broker_id.to_string()),
        ("cluster", snapshot.cluster.clone()),
        ("cluster_id", snapshot.cluster_id.clone()),
    ])?;
    let (process, registry) = (&snapshot.process, &snapshot.registry);
    let running = snapshot.brokers.iter().filter(|broker| broker.is_running).count() as u64;
    let control_queue = snapshot.shards.iter().map(|shard| shard.control_queue).max().unwrap_or(0);
    let is_ready = snapshot.readiness.reasons.is_empty();
    use Kind::{Counter, Gauge};
    use Value::{Real, Whole};
    for (kind, name, help, value) in [
        (Gauge, "corelane_uptime_seconds", "Time since the broker was ready", Real(snapshot.uptime.as_secs_f64())),
        (Gauge, "corelane_ready", "1: the broker serves all that it should, as /health/ready says", flag(is_ready)),
        (Gauge, "corelane_topics", "Topics in the registry", Whole(snapshot.topics.len() as u64)),
        (Gauge, "corelane_brokers", "Brokers that the registry knows", Whole(snapshot.brokers.len() as u64)),
        (Gauge, "corelane_brokers_running", "Those of them that run", Whole(running)),
        (Gauge, "corelane_registry_up", "1: the registry answers, and is this cluster's", flag(registry.is_up)),
        (Gauge, "corelane_registry_revision", "Revision of the registry as last seen", Whole(registry.revision)),
        (Gauge, "corelane_registry_warnings", "What /health/ready says of the registry", Whole(registry.warnings)),
        (
            Gauge,
            "corelane_displaced",
            "1: another broker has this one's place and this one takes no publishes",
            flag(registry.is_displaced),
        ),
        (Gauge, "corelane_silent_shards", "Shards that did not answer for this page", Whole(snapshot.silent_shards)),
        (
            Gauge,
            "corelane_directories_set_aside",
            "Topics' directories that are kept and not served",
            Whole(snapshot.directories_set_aside),
        ),
        (
            Gauge,
            "corelane_checkpoints_unreadable",
            "Checkpoints that the start could not read",
            Whole(snapshot.checkpoints_unreadable),
        ),
        (
            Gauge,
            "corelane_control_queue_length",
            "Topic and group calls that wait for the control thread",
            Whole(control_queue),
        ),
        (Gauge, "corelane_disk_bytes", "Size of the data directory's file system", Whole(process.disk_bytes)),
        (Gauge, "corelane_disk_free_bytes", "What of it is free for the broker", Whole(process.disk_free_bytes)),
        (Gauge, "process_resident_memory_bytes", "Memory in use", Whole(process.resident_bytes)),
        (Gauge, "process_virtual_memory_bytes", "Address space", Whole(process.virtual_bytes)),
        (Counter, "process_cpu_seconds", "CPU time used", Real(process.cpu.as_secs_f64())),
        (
            Gauge,
            "process_start_time_seconds",
            "When the process was started, since the Unix epoch",
            Real(process.started.as_secs_f64()),
        ),
        (Gauge, "process_open_fds", "Open file descriptors", Whole(process.descriptors)),
        (Gauge, "process_max_fds", "File descriptors that the process may open", Whole(process.descriptors_max)),
        (Gauge, "process_threads", "Threads", Whole(process.threads)),
    ] {
        writer.one(kind, name, help, value)?;
    }
    Ok(())
}

fn flag(is_so: bool) -> Value {
    Value::Whole(u64::from(is_so))
}

/// Groups of which there are more than [`METRICS_GROUP_LINES_MAX`] are counted and not told; of lags the largest are told.
fn encode_groups(writer: &mut Writer<'_>, snapshot: &Snapshot) -> Result<(), Error> {
    let figures = &snapshot.groups;
    let mut lags: Vec<_> = figures.lags.iter().collect();
    lags.sort_by_key(|(_, lag)| std::cmp::Reverse(lag.bytes));
    let told = &figures.groups[..figures.groups.len().min(METRICS_GROUP_LINES_MAX)];
    let left_out = figures.groups.len().saturating_sub(told.len()) + lags.len().saturating_sub(METRICS_GROUP_LINES_MAX);
    lags.truncate(METRICS_GROUP_LINES_MAX);
    use Kind::Gauge;
    use Value::{Real, Whole};
    for (name, help, value) in [
        ("corelane_groups", "Consumer groups", Whole(figures.groups.len() as u64)),
        ("corelane_group_calls", "Group calls under way here", Whole(figures.calls)),
        ("corelane_group_commits_waiting", "Positions that wait to be committed here", Whole(figures.commits_waiting)),
        ("corelane_group_lags_partial", "1: there are too many positions to look at", flag(figures.is_partial)),
        ("corelane_group_lines_left_out", "Lines of groups that this page leaves out", Whole(left_out as u64)),
    ] {
        writer.one(Gauge, name, help, value)?;
    }
    // No line before they were read at all.
    let age = figures.positions_age.map(|age| (Labels::new(), Real(age.as_secs_f64())));
    let help = "How old the positions are that lags are computed from";
    writer.family(Gauge, "corelane_group_positions_age_seconds", help, age)?;
    type Read = fn(&super::snapshot::GroupFigures) -> u64;
    let by_group: [(&str, &str, Read); 4] = [
        ("corelane_group_members", "Members of the group", |group| group.members),
        ("corelane_group_partitions", "Partitions that its members shall own", |group| group.partitions),
        ("corelane_group_unowned_partitions", "Those of them that nobody owns now", |group| group.unowned),
        ("corelane_group_generation", "Number of the group's last assignment", |group| group.generation),
    ];
    for (name, help, read) in by_group {
        let lines = told.iter().map(|group| (vec![("group", group.name.clone())], Whole(read(group))));
        writer.family(Gauge, name, help, lines)?;
    }
    let lines = lags
        .iter()
        .map(|((group, topic), lag)| (vec![("group", group.clone()), ("topic", topic.clone())], Whole(lag.bytes)));
    let help = "Bytes behind the group's committed positions, in the partitions that this broker serves";
    writer.family(Gauge, "corelane_group_lag_bytes", help, lines)
}

/// How a shard's metric is read.
type ShardMetric = (Kind, &'static str, &'static str, fn(&ShardFigures) -> u64);

const SHARD_METRICS: [ShardMetric; 25] = [
    (Kind::Gauge, "corelane_partitions", "Partitions that serve", |shard| shard.partitions.len() as u64),
    (Kind::Gauge, "corelane_partitions_refused", "Partitions that an operator must look at", |shard| shard.refused),
    (Kind::Gauge, "corelane_partitions_opening", "Partitions that are being opened", |shard| shard.opening),
    (Kind::Gauge, "corelane_partitions_closed", "Partitions that take no publishes until a restart", |shard| {
        shard.partitions.iter().filter(|partition| partition.is_closed).count() as u64
    }),
    (Kind::Gauge, "corelane_log_unflushed_bytes", "Appended and not durable yet", |shard| {
        shard.partitions.iter().map(|partition| partition.bounds.end.0 - partition.bounds.durable_end.0).sum()
    }),
    (Kind::Gauge, "corelane_connections", "Client connections", |shard| shard.connections),
    (Kind::Gauge, "corelane_connections_max", "Client connections that the shard takes", |shard| shard.connections_max),
    (Kind::Counter, "corelane_connections_accepted", "Connections accepted, refused ones included", |shard| {
        shard.accepted
    }),
    (Kind::Gauge, "corelane_requests_in_flight", "Requests that were read and are not answered", |shard| {
        shard.in_flight
    }),
    (Kind::Gauge, "corelane_long_polls", "Requests that wait for news", |shard| shard.long_polls),
    (Kind::Counter, "corelane_busy", "Requests answered BUSY since a limit was reached", |shard| shard.busy),
    (Kind::Gauge, "corelane_outgoing_bytes", "Answers that wait to be sent, without bytes of the log", |shard| {
        shard.outgoing_head_bytes
    }),
    (Kind::Gauge, "corelane_receive_extra_bytes", "What receive buffers have beyond their usual size", |shard| {
        shard.receive_extra_bytes
    }),
    (Kind::Gauge, "corelane_arena_bytes", "Size of the shard's arena", |shard| shard.arena_bytes),
    (Kind::Gauge, "corelane_arena_used_bytes", "Arena memory in use, hot tails included", |shard| {
        shard.arena_used_bytes
    }),
    (Kind::Counter, "corelane_published_bytes", "Bytes received in published sets", |shard| shard.published_bytes),
    (Kind::Counter, "corelane_published_sets", "Sets published", |shard| shard.published_sets),
    (Kind::Counter, "corelane_fetched_bytes", "Bytes of the log sent to consumers", |shard| shard.fetched_bytes),
    (Kind::Counter, "corelane_fetches", "Fetches answered", |shard| shard.fetches),
    (Kind::Counter, "corelane_zero_copy_sent_bytes", "Bytes of the log sent by zero copy", |shard| {
        shard.zero_copy_sent_bytes
    }),
    (Kind::Counter, "corelane_published_messages", "Messages appended, a compressed set counted as one", |shard| {
        shard.log().messages
    }),
    (Kind::Gauge, "corelane_log_bytes", "Size of the segment files, space allocated ahead included", |shard| {
        shard.log().bytes_on_disk
    }),
    (Kind::Gauge, "corelane_log_segments", "Segment files", |shard| shard.log().segments),
    (Kind::Gauge, "corelane_log_tail_bytes", "Bytes of the logs' tails in memory", |shard| shard.log().bytes_in_memory),
    (Kind::Counter, "corelane_flushes", "Flushes of the log", |shard| shard.log().flushes),
];

const DAMAGE_METRICS: [ShardMetric; 6] = [
    (Kind::Counter, "corelane_bad_messages", "Damaged places, found at recovery or met by readers", |shard| {
        shard.log().bad_messages
    }),
    (Kind::Counter, "corelane_recoveries", "Recoveries that found a torn tail or damage", |shard| {
        shard.log().recoveries
    }),
    (Kind::Counter, "corelane_cut_bytes", "Bytes of torn tails that were cut off, a copy of each kept", |shard| {
        shard.log().cut_bytes
    }),
    (Kind::Gauge, "corelane_foreign_files", "Files in partitions' directories that are not the log's", |shard| {
        shard.log().foreign_files
    }),
    (Kind::Counter, "corelane_rebuilt_summaries", "Damaged summaries that were rebuilt", |shard| {
        shard.log().rebuilt_summaries
    }),
    (Kind::Counter, "corelane_unreadable_segments", "Reads of segments whose file is gone or too short", |shard| {
        shard.log().unreadable_segments
    }),
];

fn of_shard(shard: &ShardFigures) -> Labels {
    vec![("shard", shard.shard.to_string())]
}

fn of_shard_and(shard: &ShardFigures, name: &'static str, value: impl Into<String>) -> Labels {
    vec![("shard", shard.shard.to_string()), (name, value.into())]
}

fn encode_shards(writer: &mut Writer<'_>, snapshot: &Snapshot) -> Result<(), Error> {
    let shards = &snapshot.shards;
    for (kind, name, help, read) in SHARD_METRICS.iter().chain(&DAMAGE_METRICS) {
        let lines = shards.iter().map(|shard| (of_shard(shard), Value::Whole(read(shard))));
        writer.family(*kind, name, help, lines)?;
    }
    let queues = snapshot.shard_queues.iter().enumerate();
    let lines = queues.map(|(shard, length)| (vec![("shard", shard.to_string())], Value::Whole(*length)));
    writer.family(Kind::Gauge, "corelane_shard_queue_length", "Messages that wait for the shard", lines)?;
    let refused = shards.iter().flat_map(|shard| {
        let counts = Refusal::ALL.iter().zip(shard.refused_connections);
        counts.map(move |((_, reason), count)| (of_shard_and(shard, "reason", *reason), Value::Whole(count)))
    });
    let help = "Connections refused, by the limit that was reached";
    writer.family(Kind::Counter, "corelane_connections_refused", help, refused)?;
    let closed = shards.iter().flat_map(|shard| {
        let counts = Closing::ALL.iter().zip(shard.closed_connections);
        counts.map(move |((_, reason), count)| (of_shard_and(shard, "reason", *reason), Value::Whole(count)))
    });
    let help = "Connections that the broker closed, by the reason";
    writer.family(Kind::Counter, "corelane_connections_closed", help, closed)?;
    let requests = shards.iter().flat_map(|shard| {
        shard.requests.iter().map(move |figure| {
            let method = figure.method.map_or_else(|| "unknown".to_owned(), |method| snake(&format!("{method:?}")));
            let mut labels = of_shard_and(shard, "method", method);
            labels.push(("status", figure.status.name().to_owned()));
            (labels, Value::Whole(figure.count))
        })
    });
    writer.family(Kind::Counter, "corelane_requests", "Requests answered, by method and status", requests)?;
    let times = shards.iter().flat_map(|shard| {
        shard.request_times.iter().map(move |(method, times)| (of_shard_and(shard, "method", *method), times))
    });
    let help = "From a request's head to its answer, without a fetch's wait for news";
    writer.histograms("corelane_request_duration_seconds", help, times)?;
    let times = shards.iter().flat_map(|shard| {
        shard.disk_times.iter().map(move |(operation, times)| (of_shard_and(shard, "operation", *operation), times))
    });
    writer.histograms("corelane_disk_duration_seconds", "How long the disk took, by operation", times)
}

/// `FindMessage` as `find_message`.
fn snake(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        let separator = if letter.is_uppercase() && !text.is_empty() { "_" } else { "" };
        let _ = write!(text, "{separator}{}", letter.to_ascii_lowercase());
    }
    text
}

fn encode_topics(writer: &mut Writer<'_>, snapshot: &Snapshot) -> Result<(), Error> {
    let by_topic = snapshot.by_topic();
    let mut topics: Vec<_> = by_topic.iter().map(|(id, figures)| (snapshot.topic_name(*id), figures)).collect();
    topics.sort_by(|(name, _), (other, _)| name.cmp(other));
    type Read = fn(&(corelane_log::PartitionStats, u64, u64)) -> u64;
    let metrics: [(Kind, &str, &str, Read); 6] = [
        (Kind::Gauge, "corelane_topic_partitions", "Partitions of the topic that serve here", |(_, count, _)| *count),
        (Kind::Gauge, "corelane_topic_log_bytes", "Size of the topic's segment files here", |(stats, ..)| {
            stats.bytes_on_disk
        }),
        (Kind::Gauge, "corelane_topic_log_segments", "Segment files of the topic here", |(stats, ..)| stats.segments),
        (Kind::Counter, "corelane_topic_published_bytes", "Bytes appended to the topic here", |(stats, ..)| {
            stats.bytes
        }),
        (Kind::Counter, "corelane_topic_published_messages", "Messages appended to the topic here", |(stats, ..)| {
            stats.messages
        }),
        (Kind::Counter, "corelane_topic_fetched_bytes", "Bytes of the topic sent to consumers", |(.., fetched)| {
            *fetched
        }),
    ];
    for (kind, name, help, read) in metrics {
        let lines = topics.iter().map(|(topic, figures)| (vec![("topic", topic.clone())], Value::Whole(read(figures))));
        writer.family(kind, name, help, lines)?;
    }
    Ok(())
}

fn encode_partitions(writer: &mut Writer<'_>, snapshot: &Snapshot) -> Result<(), Error> {
    let mut partitions: Vec<(String, &PartitionFigures)> = snapshot
        .shards
        .iter()
        .flat_map(|shard| &shard.partitions)
        .map(|partition| (snapshot.topic_name(partition.topic_id), partition))
        .collect();
    partitions.sort_by(|(name, one), (other, two)| name.cmp(other).then(one.partition.cmp(&two.partition)));
    type Read = fn(&PartitionFigures) -> u64;
    let metrics: [(Kind, &str, &str, Read); 8] = [
        (Kind::Gauge, "corelane_partition_start", "Oldest position retained", |partition| partition.bounds.start.0),
        (Kind::Gauge, "corelane_partition_visible_end", "Where consumers' reading ends", |partition| {
            partition.bounds.visible_end.0
        }),
        (Kind::Gauge, "corelane_partition_end", "Position of the next message", |partition| partition.bounds.end.0),
        (Kind::Gauge, "corelane_partition_closed", "1: takes no publishes until a restart", |partition| {
            u64::from(partition.is_closed)
        }),
        (Kind::Gauge, "corelane_partition_log_bytes", "Size of the partition's segment files", |partition| {
            partition.stats.bytes_on_disk
        }),
        (Kind::Gauge, "corelane_partition_log_segments", "Segment files", |partition| partition.stats.segments),
        (Kind::Counter, "corelane_partition_published_messages", "Messages appended", |partition| {
            partition.stats.messages
        }),
        (Kind::Counter, "corelane_partition_fetched_bytes", "Bytes sent to consumers", |partition| {
            partition.fetched_bytes
        }),
    ];
    for (kind, name, help, read) in metrics {
        let lines = partitions.iter().map(|(topic, partition)| {
            let labels = vec![("topic", topic.clone()), ("partition", partition.partition.to_string())];
            (labels, Value::Whole(read(partition)))
        });
        writer.family(kind, name, help, lines)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::snapshot::GroupsFigures;
    use super::*;

    #[test]
    fn positions_that_were_never_read_have_no_age() {
        let line = |positions_age| {
            let groups = GroupsFigures { positions_age, ..GroupsFigures::default() };
            let page = render(Snapshot { groups, ..Snapshot::default() }, Detail::default());
            page.lines().find(|line| line.starts_with("corelane_group_positions_age_seconds ")).map(str::to_owned)
        };
        assert_eq!(line(None), None);
        assert_eq!(
            line(Some(Duration::from_millis(2_500))).as_deref(),
            Some("corelane_group_positions_age_seconds 2.5")
        );
    }
}
