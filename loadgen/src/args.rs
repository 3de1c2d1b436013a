//! The command line of the load generator.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use corelane_client::{Acks, Compression};

use crate::payload::HEADER_BYTES;

/// Put a Corelane cluster under load, measure it, and check that what is consumed is what was published.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "corelane-loadgen",
    version,
    after_help = "\
Every value carries a run, a sequence number and the time of its publication. A message that is missing, damaged, \
twice there or out of order is noticed and counted. In `both`, consumers begin at the ends of the partitions and read \
until everything acknowledged has come. With --rate the load is open: each set has its time, whatever the broker does, \
and latencies count from that time.

Sizes and MB/s (millions of bytes) count values alone. Latencies are microseconds: from handing a set over to its \
acknowledgement (ack), and to the delivery of each message (end to end).

Ctrl-C ends the run with its report. Exit status: 0 verified; 1 not verified, or messages failed; 2 wrong arguments.

Examples:
  corelane-loadgen both --topic load --create-partitions 2 --duration 10s
  corelane-loadgen produce --topic load --set 1000 --count 100000000 --acks received
  corelane-loadgen consume --topic load --exit-at-end
  corelane-loadgen both --topic load --set 1 --rate 20000 --duration 30s --json report.json"
)]
pub(crate) struct Args {
    /// What to do
    pub(crate) mode: Mode,

    /// Brokers to begin with
    #[arg(
        long,
        env = "CORELANE_BROKER",
        value_name = "HOST:PORT[,...]",
        value_delimiter = ',',
        default_value = "127.0.0.1:9400"
    )]
    pub(crate) broker: Vec<String>,

    /// The topic; it must exist unless --create-partitions is given
    #[arg(long)]
    pub(crate) topic: String,

    /// Create the topic with so many partitions if it does not exist
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) create_partitions: Option<u32>,

    /// Bytes of each value
    #[arg(long, value_name = "BYTES", default_value_t = 200, value_parser = clap::value_parser!(u32).range(HEADER_BYTES as i64..))]
    pub(crate) size: u32,

    /// Messages in each set
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) set: u32,

    /// End after so many messages
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,

    /// End after so long [default: 10s, unless --count or --exit-at-end is given]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,

    /// Publish so many messages a second, all connections together [default: as fast as they go]
    #[arg(long, value_name = "MESSAGES", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,

    /// So many producers and, as far as there are partitions for them, consumers, each with connections of its own
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,

    /// When the broker acknowledges
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = AcksArg::Durable)]
    pub(crate) acks: AcksArg,

    /// How sets are compressed
    #[arg(long, value_enum, value_name = "CODEC", default_value_t = CompressionArg::None)]
    pub(crate) compression: CompressionArg,

    /// Sets under way to each partition [default: 4 MiB of them, at least 32 and at most 2048]
    #[arg(long, value_name = "SETS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) in_flight: Option<u32>,

    /// Where `consume` begins
    #[arg(long, value_enum, value_name = "PLACE", default_value_t = From::Earliest)]
    pub(crate) from: From,

    /// `consume` stops at the ends that the partitions have when it begins
    #[arg(long)]
    pub(crate) exit_at_end: bool,

    /// Write the report as JSON to this file (`-`: standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// How long to wait for a connection, for an answer, and for what is still on its way at the end
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Publish
    Produce,
    /// Consume what was published by another run
    Consume,
    /// Publish and consume at the same time
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum From {
    Earliest,
    Latest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AcksArg {
    /// Never
    None,
    /// When the broker has the set in memory
    Received,
    /// When the set is on stable storage
    Durable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompressionArg {
    None,
    Lz4,
    Zstd,
    Snappy,
    Gzip,
}

impl Args {
    pub(crate) fn publishes(&self) -> bool {
        self.mode != Mode::Consume
    }

    pub(crate) fn consumes(&self) -> bool {
        self.mode != Mode::Produce
    }

    pub(crate) fn acks(&self) -> Acks {
        match self.acks {
            AcksArg::None => Acks::None,
            AcksArg::Received => Acks::Received,
            AcksArg::Durable => Acks::Durable,
        }
    }

    pub(crate) fn compression(&self) -> Compression {
        match self.compression {
            CompressionArg::None => Compression::None,
            CompressionArg::Lz4 => Compression::Lz4,
            CompressionArg::Zstd => Compression::Zstd,
            CompressionArg::Snappy => Compression::Snappy,
            CompressionArg::Gzip => Compression::Gzip,
        }
    }

    /// How long the run lasts; none: until the count or the end is reached.
    pub(crate) fn run_time(&self) -> Option<Duration> {
        let otherwise_bounded = self.count.is_some() || (self.exit_at_end && self.mode == Mode::Consume);
        self.duration.or((!otherwise_bounded).then_some(Duration::from_secs(10)))
    }

    /// Bytes of one set in the log: each message has a frame of 24 bytes.
    pub(crate) fn set_bytes(&self) -> usize {
        self.set as usize * (self.size as usize + 24)
    }

    /// Sets under way to each partition.
    pub(crate) fn sets_in_flight(&self) -> usize {
        match self.in_flight {
            Some(sets) => sets as usize,
            None => ((4 << 20) / self.set_bytes()).clamp(32, 2048),
        }
    }
}

/// A number with `ms`, `s`, `m` or `h`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds_per_unit = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{text}` is not a duration; write for example 500ms, 10s or 5m")),
    };
    let seconds = number.parse::<f64>().map_err(|_| format!("`{number}` is not a number"))? * seconds_per_unit;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(format!("`{text}` must be longer than zero")),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err(format!("`{text}` is no rate; write messages a second, for example 20000")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn durations_and_rates_are_read() {
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_mins(2)));
        for text in ["", "10", "0s", "-1s", "1d", "1e99h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(parse_rate("20000"), Ok(20_000.0));
        for text in ["0", "-5", "inf", "fast"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_run_without_a_bound_lasts_ten_seconds() {
        let args = |line: &str| Args::try_parse_from(line.split(' ')).unwrap();
        assert_eq!(args("loadgen both --topic t").run_time(), Some(Duration::from_secs(10)));
        assert_eq!(args("loadgen both --topic t --count 5").run_time(), None);
        assert_eq!(args("loadgen both --topic t --count 5 --duration 1s").run_time(), Some(Duration::from_secs(1)));
        assert_eq!(args("loadgen consume --topic t --exit-at-end").run_time(), None);
        assert!(Args::try_parse_from("loadgen both --topic t --size 31".split(' ')).is_err());
    }

    #[test]
    fn small_sets_get_a_longer_window() {
        let args = |line: &str| Args::try_parse_from(line.split(' ')).unwrap().sets_in_flight();
        assert_eq!(args("loadgen both --topic t --set 1"), 2048);
        assert_eq!(args("loadgen both --topic t --set 50"), 374);
        assert_eq!(args("loadgen both --topic t --set 10000"), 32);
        assert_eq!(args("loadgen both --topic t --in-flight 5"), 5);
    }
}
