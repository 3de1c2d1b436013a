//! What is to be reached: every line of the table, with the figure that is asked for and what it is compared with.

/// Which side of the figure is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing is asked: a reference, or something that is worth knowing.
    None,
}

/// A line of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    /// `row.figure`.
    pub(crate) id: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) bound: Bound,
    pub(crate) title: &'static str,
}

const fn target(id: &'static str, unit: &'static str, bound: Bound, title: &'static str) -> Target {
    Target { id, unit, bound, title }
}

use Bound::{AtLeast, AtMost};

/// CPU-seconds of the broker for a GB of the log.
const PER_GB: &str = "CPU-s/GB";
const RATE: &str = "M/s";

/// In the order in which they are told. Messages have values of 200 bytes, acks=durable.
pub(crate) const TARGETS: &[Target] = &[
    target("ref.disk_write", "MB/s", Bound::None, "fio: sequential direct write, 512 KiB, depth 4, preallocated"),
    target("ref.disk_read", "MB/s", Bound::None, "fio: sequential direct read, 512 KiB, depth 4"),
    target("ref.commit_p50", "us", Bound::None, "fio: 4 KiB written, then fdatasync: p50"),
    target("ref.commit_p99", "us", Bound::None, "fio: 4 KiB written, then fdatasync: p99"),
    target("ref.receiver", "MB/s", Bound::None, "a bare receiver: recv, walk, CRC, no disk"),
    target("ref.receiver_cpu", PER_GB, Bound::None, "  its CPU"),
    target("ref.sender", "MB/s", Bound::None, "a bare sendfile sender to a receiver that discards"),
    target("ref.sender_cpu", PER_GB, Bound::None, "  its CPU"),
    target("publish50.rate", RATE, AtLeast(3.0), "publish, sets of 50, one connection (where the disk allows it)"),
    target("publish50.prepared", RATE, Bound::None, "  the same with prepared sets"),
    target("publish50.ratio", "", AtLeast(0.85), "  of the lower of disk write and bare receiver"),
    target("publish50.cpu", PER_GB, AtMost(0.80), "  broker CPU"),
    target("publish50x8.rate", RATE, Bound::None, "publish, prepared sets of 50, eight connections, eight partitions"),
    target("publish50x8.ratio", "", AtLeast(0.85), "  of the lower of disk write and bare receiver"),
    target("publish50x8.cpu", PER_GB, AtMost(0.80), "  broker CPU"),
    target("publish50on1.rate", RATE, Bound::None, "publish, prepared sets of 50, eight connections, one partition"),
    target("publish50on1.ratio", "", AtLeast(0.75), "  of the lower of disk write and bare receiver"),
    target("publish1000.rate", RATE, AtLeast(4.0), "publish, sets of 1000, one connection (where the disk allows it)"),
    target("publish1.rate", RATE, AtLeast(0.6), "publish, one message a request, pipelined"),
    target("publish1.cpu", "us each", AtMost(1.2), "  broker CPU"),
    target("both.rate", RATE, Bound::None, "publish, prepared sets of 50, while the client's iterator consumes them"),
    target("both.consumed", RATE, Bound::None, "  consumed, the rest behind the last acknowledgement included"),
    target("both.ratio", "", AtLeast(0.75), "  of publishing alone, the better of the two above"),
    target("both.cpu", PER_GB, AtMost(0.45), "  broker CPU of the hot fetch, beyond that of publishing alone"),
    target("consume.rate", RATE, AtLeast(5.0), "consume what lies in the page cache, client's iterator, CRC checked"),
    target("consume.ratio", "", AtLeast(0.80), "  of the bare sendfile sender"),
    target("drain.ratio", "", AtLeast(0.90), "the same to a receiver that discards, of the bare sendfile sender"),
    target("drain.cpu", PER_GB, AtMost(0.20), "  broker CPU"),
    target("cold.rate", RATE, Bound::None, "consume, cold, client's iterator"),
    target("cold.ratio", "", AtLeast(0.90), "  of the lower of disk read and bare sendfile sender"),
    target("cold.cpu", PER_GB, AtMost(0.20), "  broker CPU"),
    target("fanout.cpu", "", AtMost(1.15), "eight consumers of one partition: broker CPU a byte, of that for one"),
    target("fanout.read", "", AtMost(1.05), "  bytes read from the disk, of the log's"),
    target("many.rate", RATE, Bound::None, "publish, prepared sets of 50, 1,000 connections, 1,000 partitions"),
    target("many.cpu", PER_GB, Bound::None, "  broker CPU"),
    target("many.ratio", "", AtLeast(0.70), "  of one connection, one partition, the better of the two above"),
    target("latency.p50", "us", Bound::None, "20,000 messages/s, publish to delivery, durable: p50"),
    target("latency.p99", "us", Bound::None, "  p99"),
    target("latency.p50_ratio", "", AtMost(3.0), "  p50 of the disk's own write and flush"),
    target("latency.p99_ratio", "", AtMost(2.0), "  p99 of the disk's own write and flush"),
    target("memory.idle", "MB", AtMost(20.0), "memory of an idle broker, its arena not counted"),
    target("memory.busy", "MB", AtMost(40.0), "  of a busy one"),
    target("idle.cpu", "%", AtMost(0.5), "CPU of a broker with eight partitions and nothing to do, of a core"),
    target("start.empty", "ms", AtMost(100.0), "start, empty"),
    target("start.first", "ms", AtMost(100.0), "  to the first acknowledged message, its topic created"),
    target("start.killed", "ms", AtMost(1000.0), "start after kill -9, with the log that was consumed"),
    target("instructions.encode", "each", Bound::None, "instructions a message: encoding a set of 50"),
    target("instructions.check", "each", Bound::None, "  checking it"),
    target("instructions.parse", "each", Bound::None, "  walking over it without the CRC"),
    target("instructions.commit", "each", Bound::None, "  landing, check and commit of it in a partition"),
    target("instructions.ratio", "", AtMost(1.05), "  the worst of them, of the baseline"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_an_id_of_its_own() {
        for (index, target) in TARGETS.iter().enumerate() {
            assert!(TARGETS[..index].iter().all(|other| other.id != target.id), "{}", target.id);
            assert!(target.id.split_once('.').is_some_and(|(row, figure)| !row.is_empty() && !figure.is_empty()));
        }
    }
}
