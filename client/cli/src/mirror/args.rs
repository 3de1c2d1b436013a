//! The arguments of `mirror`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use regex::Regex;

use super::rename::{Rename, renamed};
use crate::parse::duration::parse_timeout;
use crate::parse::size::parse_size;
use crate::produce::CompressionArg;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Copies what the topics hold and what comes, until it is told to stop. It reads as a member of a group of the source: \
several mirrors of one group share the work, and one that comes back goes on where the group stands. A position is \
committed only once the target has what lies below it on stable storage, so everything arrives at least once, and in \
order within a partition.

Where source and target have as many partitions, each partition is copied to the one of its number; else messages go where \
their keys belong. Topics that the target lacks are created with the source's partitions and settings. A message that was in \
the target's cluster before is not taken back to it, so two clusters can mirror each other: each message carries where it \
comes from in a header, corelane-origin: CLUSTER/TOPIC/TOPIC-ID/PARTITION/EPOCH/POSITION.

With --exact the target is the same log: the same bytes at the same positions, compressed sets included, in a topic that \
nobody else publishes to. What cannot be copied so (a damaged message, a log that began again, positions that retention \
has taken) stops it with a report.

Examples:
  corelane mirror --from eu-1:9400 --to us-1:9400 --topics 'orders|payments' --group to-us
  corelane mirror --from eu-1:9400 --to us-1:9400 --topics '.*' --group to-us --rename '*=eu.*' --rate 20MB
  corelane mirror --from eu-1:9400 --to us-1:9400 --topics ledger --group copy --exact
  corelane mirror verify --from eu-1:9400 --to us-1:9400 --topics ledger --exact"
)]
pub(crate) struct MirrorArgs {
    #[command(subcommand)]
    pub(super) command: Option<MirrorCommand>,

    #[command(flatten)]
    pub(super) run: RunArgs,

    // The sides are named by --from and --to; what every command takes would say nothing here, so it is not shown.
    #[arg(long, global = true, hide = true, value_delimiter = ',')]
    broker: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum MirrorCommand {
    /// Compare what the two sides hold, message by message
    #[command(after_help = "\
Compares up to the ends that the source has when it begins, as far as the target has got; what was published there by \
others does not matter, unless with --exact. Fails when something is missing, out of order or another. With --group, what the \
mirror of this group has committed must be there: a topic of the target that was deleted is told from one that was not \
copied yet.

Examples:
  corelane mirror verify --from eu-1:9400 --to us-1:9400 --topics 'orders|payments'
  corelane --json mirror verify --from eu-1:9400 --to us-1:9400 --topics ledger --exact")]
    Verify(VerifyArgs),
}

/// Which topics of which clusters. What is required is an option all the same, or `mirror verify` would have to name it twice.
#[derive(Debug, Args)]
pub(super) struct Between {
    /// Brokers of the source to begin with
    #[arg(long, value_name = "HOST:PORT[,...]", required = true)]
    from: Option<String>,

    /// Brokers of the target to begin with
    #[arg(long, value_name = "HOST:PORT[,...]", required = true)]
    to: Option<String>,

    /// The topics whose whole name matches this regular expression, those that are created later too
    #[arg(long, value_name = "PATTERN", required = true, value_parser = parse_pattern)]
    topics: Option<Regex>,

    /// What topics are called in the target; `*` stands for the same text on both sides; may be repeated, the first that
    /// fits counts [default: as in the source]
    #[arg(long, value_name = "OLD=NEW")]
    pub(super) rename: Vec<Rename>,

    /// The same bytes at the same positions, in a topic of its own
    #[arg(long)]
    pub(super) exact: bool,

    /// Copy only what was published in the source itself, nothing that a mirror has brought there: for three and more
    /// clusters that all mirror each other
    #[arg(long, conflicts_with = "exact")]
    pub(super) local_only: bool,
}

impl Between {
    pub(super) fn from(&self) -> &str {
        self.from.as_deref().unwrap_or_default()
    }

    pub(super) fn to(&self) -> &str {
        self.to.as_deref().unwrap_or_default()
    }

    /// As it was given; a group's pattern matches whole names, too.
    pub(super) fn topics(&self) -> &str {
        let whole = self.topics.as_ref().map_or("", Regex::as_str);
        whole.strip_prefix(WHOLE.0).and_then(|rest| rest.strip_suffix(WHOLE.1)).unwrap_or_default()
    }

    /// Whether a topic of the source is to be copied.
    pub(super) fn is_meant(&self, topic: &str) -> bool {
        self.topics.as_ref().is_some_and(|pattern| pattern.is_match(topic))
    }

    /// The name of a topic in the target.
    pub(super) fn target_of(&self, topic: &str) -> String {
        renamed(&self.rename, topic)
    }
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    pub(super) between: Between,

    /// The mirror's group: what it has committed must be in the target
    #[arg(long, value_name = "GROUP", conflicts_with = "exact")]
    pub(super) group: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) between: Between,

    /// The group of the source that keeps how far the mirror has come
    #[arg(long, value_name = "GROUP", required = true)]
    group: Option<String>,

    /// Copy at most so many bytes a second [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub(super) rate: Option<u64>,

    /// How sets are compressed in the target
    #[arg(long, value_name = "CODEC", value_enum, default_value_t, conflicts_with = "exact")]
    pub(super) compression: CompressionArg,

    /// How often positions are committed
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_timeout)]
    pub(super) commit_interval: Duration,

    /// How long a mirror counts as alive after it was heard of last: so long its partitions wait after a crash
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_timeout)]
    pub(super) lease: Duration,

    /// How often to tell how far it is, where there is no terminal
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_timeout)]
    pub(super) report_interval: Duration,

    /// Keep metrics in this file, for the text file collector of Prometheus' node exporter
    #[arg(long, value_name = "FILE")]
    pub(super) metrics_file: Option<PathBuf>,
}

impl RunArgs {
    pub(super) fn group(&self) -> &str {
        self.group.as_deref().unwrap_or_default()
    }
}

/// What makes a pattern match whole names.
const WHOLE: (&str, &str) = ("^(?:", ")$");

fn parse_pattern(text: &str) -> Result<Regex, String> {
    // Alone first: what is wrong is to be shown as it was given.
    Regex::new(text).map_err(|error| error.to_string())?;
    Regex::new(&format!("{}{text}{}", WHOLE.0, WHOLE.1)).map_err(|error| error.to_string())
}

/// Reads a rate: a size that is not 0.
fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a rate of 0 would copy nothing; leave --rate out for no limit".to_owned()),
        bytes => Ok(bytes),
    }
}
