//! The command line of the load generator.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::keys::{self, KeySpec};
use crate::pace::Arrivals;
use crate::parse::{self, Ramp};
use crate::sizes::{self, SizeSpec};

/// Put a Corelane cluster under load, measure it, and check that what is consumed is what was published.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "corelane-loadgen",
    version,
    after_help = "\
Every value carries a run, a sequence number and the time of its publication. A message that is missing, damaged, \
twice there or out of order is noticed and counted. In `both`, consumers begin at the ends of the partitions and read \
until everything acknowledged has come.

Examples:
  corelane-loadgen both --topic load --create-partitions 2 --duration 10s
  corelane-loadgen both --topic load --set 1 --rate 20k --warmup 5s --duration 30s --json run.json --html run.html
  corelane-loadgen produce --topic load --set 1000 --count 100M --acks received
  corelane-loadgen both --topic load --ramp 10k..200k/1m --keys zipf:1M --size lognormal:300..5000
  corelane-loadgen consume --topic load --exit-at-end
  corelane-loadgen compare before.json after.json --fail-above 10

`corelane-loadgen both --help` tells all options; docs/loadgen.md what is measured from where to where."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// Publish
    #[command(after_help = AFTER_RUN)]
    Produce {
        #[command(flatten)]
        run: RunArgs,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// Consume what was published by another run
    #[command(after_help = AFTER_RUN)]
    Consume {
        #[command(flatten)]
        run: RunArgs,
        #[command(flatten)]
        audience: AudienceArgs,
        /// Where to begin; a group, where it stands if it has been there before
        #[arg(long, value_enum, value_name = "PLACE", default_value_t = From::Earliest)]
        from: From,
        /// Stop at the ends that the partitions have when it begins
        #[arg(long, conflicts_with = "group")]
        exit_at_end: bool,
    },
    /// Publish and consume at the same time
    #[command(after_help = AFTER_RUN)]
    Both {
        #[command(flatten)]
        run: RunArgs,
        #[command(flatten)]
        load: LoadArgs,
        #[command(flatten)]
        audience: AudienceArgs,
    },
    /// Draw results that were kept with --json as a page; several are laid over each other
    Report {
        /// Results, the one to compare with first
        #[arg(required = true, value_name = "RESULTS")]
        results: Vec<PathBuf>,
        /// The page to write (`-`: standard output)
        #[arg(long, value_name = "FILE", default_value = "report.html")]
        html: PathBuf,
    },
    /// Compare the results of two runs that were kept with --json
    #[command(after_help = "\
Exit status: 0; 1 if a figure is worse than --fail-above allows, or the second run was not verified; 2 if the results \
cannot be read.

A rate is worse when it is lower, a latency when it is higher. Runs with different settings are compared too; the \
differences are told.")]
    Compare {
        /// The results to compare with
        before: PathBuf,
        /// The results to judge
        after: PathBuf,
        /// Fail if a figure is worse by more than so many percent
        #[arg(long, value_name = "PERCENT", value_parser = percent)]
        fail_above: Option<f64>,
        /// Figures that --fail-above judges [default: rates, and latencies up to p99.9]
        #[arg(long, value_name = "FIGURE", value_delimiter = ',', value_parser = figures())]
        figures: Vec<String>,
        /// Print the comparison as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

const AFTER_RUN: &str = "\
Sizes and MB/s (millions of bytes) count values alone. Latencies are microseconds. With --rate or --ramp the load is open: \
each set has its time, whatever the broker does, and latencies count from that time, so a stall is charged with all that \
it kept waiting. Without, sets follow as fast as the producer takes them (or --outstanding of them at a time), and \
latencies count from handing a set over.

Ctrl-C ends the run with its report; a second one does not wait for what is on its way. Exit status: 0 verified; 1 not \
verified, or messages failed; 2 wrong arguments.";

/// What every run needs.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Brokers to begin with
    #[arg(
        long,
        env = "CORELANE_BROKER",
        value_name = "HOST:PORT[,...]",
        value_delimiter = ',',
        default_value = "127.0.0.1:9400"
    )]
    pub(crate) broker: Vec<String>,

    /// The topics; they must exist unless --create-partitions is given
    #[arg(long, required = true, value_name = "TOPIC[,...]", value_delimiter = ',')]
    pub(crate) topic: Vec<String>,

    /// So many topics for each one named: TOPIC-0, TOPIC-1 and so on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) topics: Option<u32>,

    /// Create topics that do not exist, with so many partitions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) create_partitions: Option<u32>,

    /// End after so many messages, those of the warm-up included
    #[arg(long, value_name = "N", value_parser = parse::count)]
    pub(crate) count: Option<u64>,

    /// End after so long, the warm-up not included [default: the ramp's time or 10s, unless something else ends the run]
    #[arg(long, value_name = "DURATION", value_parser = parse::duration)]
    pub(crate) duration: Option<Duration>,

    /// Leave what happens in the first so long out of the figures (it is verified all the same)
    #[arg(long, value_name = "DURATION", value_parser = parse::duration)]
    pub(crate) warmup: Option<Duration>,

    /// So many producers and, as far as there are partitions for them, consumers, each with connections of its own
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,

    /// The time between two points of the time lines
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse::duration)]
    pub(crate) interval: Duration,

    /// Write the results as JSON to this file (`-`: standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the results as a page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// A name for this run in results, charts and comparisons
    #[arg(long, value_name = "TEXT")]
    pub(crate) name: Option<String>,

    /// How long to wait for a connection, for an answer, and for what is still on its way at the end
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse::duration)]
    pub(crate) timeout: Duration,
}

/// What is published, and how.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "What is published")]
pub(crate) struct LoadArgs {
    /// Bytes of each value: 200, 100..1000 (uniform), 100:3,4000:1 (sizes with weights), lognormal:P50..P99
    #[arg(long, value_name = "SIZES", default_value = "200", value_parser = sizes::parse)]
    pub(crate) size: SizeSpec,

    /// Messages in each set
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) set: u32,

    /// Keys, which decide the partitions (of all, for every producer): none, uniform:N, zipf:N or zipf:N:EXPONENT
    #[arg(long, value_name = "KEYS", default_value = "none", value_parser = keys::parse)]
    pub(crate) keys: KeySpec,

    /// Publish so many messages a second, all producers together [default: as fast as they go]
    #[arg(long, value_name = "MESSAGES", value_parser = parse::rate)]
    pub(crate) rate: Option<f64>,

    /// Go from one rate to another in so long, and on at the last one: 10k..200k/30s
    #[arg(long, value_name = "FROM..TO/DURATION", value_parser = parse::ramp, conflicts_with = "rate")]
    pub(crate) ramp: Option<Ramp>,

    /// How the sets of --rate and --ramp follow each other [default: even]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) arrivals: Option<Arrivals>,

    /// A closed loop: so many sets of each producer unanswered; the next one goes when one was answered
    #[arg(long, value_name = "SETS", conflicts_with_all = ["rate", "ramp", "in_flight"],
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) outstanding: Option<u32>,

    /// So many producers, instead of --connections
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) producers: Option<u32>,

    /// When the broker acknowledges
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = AcksArg::Durable)]
    pub(crate) acks: AcksArg,

    /// How sets are compressed
    #[arg(long, value_enum, value_name = "CODEC", default_value_t = CompressionArg::None)]
    pub(crate) compression: CompressionArg,

    /// Sets under way to each partition [default: 4 MiB of them, at least 32 and at most 2048]
    #[arg(long, value_name = "SETS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) in_flight: Option<u32>,

    /// What random sizes, keys and arrivals are drawn from: the same seed, the same load
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Who consumes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Who consumes")]
pub(crate) struct AudienceArgs {
    /// So many consumers, instead of --connections; without a group at most one for each partition
    #[arg(long, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) consumers: Option<u32>,

    /// Consume as members of this group
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,

    /// Consume everything so many times, each time by --consumers consumers (or a group GROUP-0, GROUP-1 and so on)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) fan_out: u32,
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

/// What an option's value is called on the command line.
pub(crate) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err(format!("`{text}` is no percentage; write for example 10")),
    }
}

fn figures() -> PossibleValuesParser {
    PossibleValuesParser::new(crate::compare::figure_names())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
        for line in [
            "both --topic t --rate 5 --ramp 1..2/1s",
            "both --topic t --rate 5 --outstanding 1",
            "both --topic t --outstanding 1 --in-flight 5",
            "both --topic t --exit-at-end",
            "produce --topic t --group g",
            "consume --topic t --size 100",
            "consume --topic t --group g --exit-at-end",
            "both",
            "both --topic t --size 31",
            "both --topic t --set 0",
            "compare a.json",
            "compare a.json b.json --fail-above -1",
            "compare a.json b.json --figures speed",
            "completions tcsh",
        ] {
            let parsed = Cli::try_parse_from(std::iter::once("loadgen").chain(line.split(' ')));
            assert_eq!(parsed.map(|_| line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn the_examples_of_the_help_are_commands() {
        let help = Cli::command().render_long_help().to_string();
        let examples: Vec<_> = help.lines().filter_map(|line| line.strip_prefix("  corelane-loadgen ")).collect();
        assert!(examples.len() >= 6, "{help}");
        for example in examples {
            let parsed = Cli::try_parse_from(std::iter::once("loadgen").chain(example.split(' ')));
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
    }
}
