//! What a shard counts and how it looks from outside: counters that only its own thread touches, and the figures that it
//! hands to the control thread when somebody asks for a page. Nothing here is shared between threads.

use std::cell::Cell;
use std::time::Duration;

use corelane_log::{Bounds, PartitionStats};
use corelane_proto::frame::{Method, Status};
use corelane_proto::ids::TopicId;

const METHODS: usize = 26;
const STATUSES: usize = 24;

/// The upper ends of a latency histogram's buckets, in microseconds; what is longer falls into one more.
pub const BUCKETS_US: [u64; 16] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
];

/// Counts durations by bucket.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Cell<u64>; BUCKETS_US.len() + 1],
    sum_ns: Cell<u64>,
}

impl Histogram {
    /// One that took so long.
    pub fn record(&self, duration: Duration) {
        let ns = duration.as_nanos() as u64;
        let bucket = &self.buckets[BUCKETS_US.partition_point(|end_us| end_us * 1_000 < ns)];
        bucket.set(bucket.get() + 1);
        self.sum_ns.set(self.sum_ns.get().wrapping_add(ns));
    }

    /// What it has counted.
    pub fn figures(&self) -> HistogramFigures {
        HistogramFigures {
            buckets: std::array::from_fn(|bucket| self.buckets[bucket].get()),
            sum: Duration::from_nanos(self.sum_ns.get()),
        }
    }
}

/// What a histogram has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramFigures {
    /// How many fell into each bucket, the last one without an end.
    pub buckets: [u64; BUCKETS_US.len() + 1],
    /// How long all took together.
    pub sum: Duration,
}

/// Counts answers by method and status.
#[derive(Debug)]
pub struct RequestCounts([[Cell<u64>; STATUSES]; METHODS]);

impl Default for RequestCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| std::array::from_fn(|_| Cell::default())))
    }
}

impl RequestCounts {
    /// So many requests for `method` (none: one that is not known here) were answered, or done where no answer was wanted.
    pub fn add(&self, method: Option<Method>, status: Status, count: u64) {
        let cell = &self.0[method.map_or(0, |method| usize::from(method.code()))][usize::from(status.code())];
        cell.set(cell.get() + count);
    }

    /// Those that are not zero, and those of Publish and Fetch: an error that comes for the first time is a rise, too.
    pub fn figures(&self) -> Vec<RequestFigure> {
        let methods = std::iter::once(None).chain(Method::all().iter().copied().map(Some));
        let all = methods.flat_map(|method| Status::all().map(move |status| (method, status)));
        let counted = all.map(|(method, status)| RequestFigure {
            method,
            status,
            count: self.0[method.map_or(0, |method| usize::from(method.code()))][usize::from(status.code())].get(),
        });
        let is_told =
            |figure: &RequestFigure| figure.count > 0 || matches!(figure.method, Some(Method::Publish | Method::Fetch));
        counted.filter(is_told).collect()
    }
}

/// So many answers with this status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFigure {
    /// To what; none: to methods that this broker does not know.
    pub method: Option<Method>,
    /// The status.
    pub status: Status,
    /// How many.
    pub count: u64,
}

/// How long requests took, from their head until the answer was ready to be sent.
#[derive(Debug, Default)]
pub struct RequestTimes {
    /// Publishes: receiving the set and, if asked for, the wait for its flush included.
    pub publish: Histogram,
    /// Fetches, without their wait for news.
    pub fetch: Histogram,
    /// Commits of groups.
    pub commit: Histogram,
}

/// How long the disk took.
#[derive(Debug, Default)]
pub struct DiskTimes {
    /// Writes of the log.
    pub write: Histogram,
    /// Writes that were durable when they ended.
    pub synchronous_write: Histogram,
    /// Flushes.
    pub flush: Histogram,
    /// Reads of the log.
    pub read: Histogram,
}

/// One shard's state.
#[derive(Clone, Debug, Default)]
pub struct ShardFigures {
    /// The shard.
    pub shard: u32,
    /// Those of its partitions that serve.
    pub partitions: Vec<PartitionFigures>,
    /// Partitions that are refused.
    pub refused: u64,
    /// Partitions that are being opened.
    pub opening: u64,
    /// What partitions have counted that are not here any more.
    pub let_go: PartitionStats,
    /// Connections.
    pub connections: u64,
    /// How many the shard takes.
    pub connections_max: u64,
    /// Connections accepted since the start, those that were refused included.
    pub accepted: u64,
    /// Connections refused since the start, by [`Refusal`].
    pub refused_connections: [u64; Refusal::ALL.len()],
    /// Connections that the broker closed since the start, by [`Closing`].
    pub closed_connections: [u64; Closing::ALL.len()],
    /// Requests that were answered since the start.
    pub requests: Vec<RequestFigure>,
    /// How long they took: publishes, fetches, commits.
    pub request_times: [(&'static str, HistogramFigures); 3],
    /// How long the disk took.
    pub disk_times: [(&'static str, HistogramFigures); 4],
    /// Requests answered `BUSY` since the start because a limit of the shard was reached.
    pub busy: u64,
    /// Requests that were read and are not answered.
    pub in_flight: u64,
    /// Requests that wait for news.
    pub long_polls: u64,
    /// Calls that wait for the control thread, of all shards.
    pub control_queue: u64,
    /// Bytes that wait to be sent and do not lie in the log.
    pub outgoing_head_bytes: u64,
    /// What receive buffers have grown to beyond their usual size, in bytes.
    pub receive_extra_bytes: u64,
    /// The arena's size, in bytes.
    pub arena_bytes: u64,
    /// What of it is used, the hot tails included, in bytes.
    pub arena_used_bytes: u64,
    /// Bytes received in published sets since the start.
    pub published_bytes: u64,
    /// Sets published since the start.
    pub published_sets: u64,
    /// Bytes sent to consumers since the start.
    pub fetched_bytes: u64,
    /// Fetches answered since the start.
    pub fetches: u64,
    /// Bytes sent by zero copy since the start.
    pub zero_copy_sent_bytes: u64,
}

impl ShardFigures {
    /// The sum of what its partitions have and have counted, with what those have counted that are gone.
    pub fn log(&self) -> PartitionStats {
        let mut sum = self.let_go;
        self.partitions.iter().for_each(|partition| add_stats(&mut sum, &partition.stats));
        sum
    }
}

/// One partition's state.
#[derive(Clone, Copy, Debug)]
pub struct PartitionFigures {
    /// Its topic.
    pub topic_id: TopicId,
    /// Its number.
    pub partition: u32,
    /// Where its log begins and ends.
    pub bounds: Bounds,
    /// Whether it takes no publishes until a restart.
    pub is_closed: bool,
    /// Whether it takes none until there is room on the disk.
    pub lacks_space: bool,
    /// Bytes sent to consumers since the start.
    pub fetched_bytes: u64,
    /// What it has and has counted.
    pub stats: PartitionStats,
}

/// Adds what a partition has and has counted to what others have.
pub fn add_stats(sum: &mut PartitionStats, stats: &PartitionStats) {
    let PartitionStats {
        segments,
        bytes_on_disk,
        bytes_in_memory,
        sets,
        messages,
        bytes,
        writes,
        synchronous_writes,
        flushes,
        bad_messages,
        recoveries,
        cut_bytes,
        foreign_files,
        rebuilt_summaries,
        unreadable_segments,
        moved_out,
    } = stats;
    for (sum, more) in [
        (&mut sum.segments, segments),
        (&mut sum.bytes_on_disk, bytes_on_disk),
        (&mut sum.bytes_in_memory, bytes_in_memory),
        (&mut sum.sets, sets),
        (&mut sum.messages, messages),
        (&mut sum.bytes, bytes),
        (&mut sum.writes, writes),
        (&mut sum.synchronous_writes, synchronous_writes),
        (&mut sum.flushes, flushes),
        (&mut sum.bad_messages, bad_messages),
        (&mut sum.recoveries, recoveries),
        (&mut sum.cut_bytes, cut_bytes),
        (&mut sum.foreign_files, foreign_files),
        (&mut sum.rebuilt_summaries, rebuilt_summaries),
        (&mut sum.unreadable_segments, unreadable_segments),
        (&mut sum.moved_out, moved_out),
    ] {
        *sum += more;
    }
}

/// What of these goes on to count when the partition has gone: what it has, goes with it.
pub fn let_go(stats: &PartitionStats) -> PartitionStats {
    PartitionStats { segments: 0, bytes_on_disk: 0, bytes_in_memory: 0, foreign_files: 0, ..*stats }
}

/// Why a new connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `connections_max` is reached.
    Connections,
    /// `connections_per_address_max` is reached.
    Address,
    /// The shard that it wants has too many to take over.
    HandOvers,
}

impl Refusal {
    /// All of them, in the order of their numbers, with the names that the metrics page gives them.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Connections, "connections_max"),
        (Self::Address, "connections_per_address_max"),
        (Self::HandOvers, "hand_overs"),
    ];
}

/// Why the broker closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It said no Hello in time.
    NoHello,
    /// It does not speak the protocol.
    NotTheProtocol,
    /// A frame that cannot be right.
    BadFrame,
    /// A frame that does not arrive.
    FrameLate,
    /// It takes no answers.
    Stuck,
    /// Nothing happened on it for long.
    Idle,
    /// Its machine does not answer.
    PeerGone,
}

impl Closing {
    /// All of them, in the order of their numbers, with the names that the metrics page gives them.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::NoHello, "no_hello"),
        (Self::NotTheProtocol, "not_the_protocol"),
        (Self::BadFrame, "bad_frame"),
        (Self::FrameLate, "frame_late"),
        (Self::Stuck, "stuck_reader"),
        (Self::Idle, "idle"),
        (Self::PeerGone, "peer_gone"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_first_bucket_that_it_does_not_pass() {
        let histogram = Histogram::default();
        for us in [1, 50, 51, 10_000_000, 10_000_001] {
            histogram.record(Duration::from_micros(us));
        }
        let figures = histogram.figures();
        assert_eq!((figures.buckets[0], figures.buckets[1]), (2, 1));
        assert_eq!((figures.buckets[15], figures.buckets[16]), (1, 1));
        assert_eq!(figures.sum, Duration::from_micros(20_000_103));
    }

    #[test]
    fn there_is_a_count_for_every_method_and_status() {
        let counts = RequestCounts::default();
        for method in std::iter::once(None).chain(Method::all().iter().copied().map(Some)) {
            Status::all().for_each(|status| counts.add(method, status, 2));
        }
        let figures = counts.figures();
        assert_eq!(figures.len(), METHODS * STATUSES);
        assert!(figures.iter().all(|figure| figure.count == 2), "each has a place of its own");
    }

    #[test]
    fn errors_of_publishes_and_fetches_are_told_before_there_are_any() {
        let figures = RequestCounts::default().figures();
        assert_eq!(figures.len(), 2 * STATUSES);
        assert!(
            figures
                .iter()
                .any(|figure| (figure.method, figure.status, figure.count)
                    == (Some(Method::Publish), Status::NoSpace, 0))
        );
    }
}
