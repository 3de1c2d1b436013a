//! The arguments of `consume`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::format::Format;
use crate::parse::duration::parse_timeout;
use crate::parse::place::{FromArg, Moment, parse_moment};

#[derive(Debug, Args)]
#[command(after_help = "\
Begins at the earliest message and follows the topic until it is told to stop.

Formats:
  value    the value as it is, then a newline
  json     an object a line, with topic, partition, position, timestamp_ms, key, value,
           headers [{name, value}]; key_base64 or value_base64 instead where the bytes are
           not UTF-8; null where there is no key or no value
  FORMAT   %k key, %v value, %t topic, %p partition, %i position, %d time (milliseconds
           since 1970, UTC), %h headers (name=value,...), %% percent sign;
           \\n \\t \\r \\0 \\\\ \\xNN as usual; no newline is added

Times: 2026-07-01T12:00:00Z, '2026-07-01 12:00' (local), @1782900000 (Unix seconds, or milliseconds from 12 digits on), \
now, or a time ago: -1h, -90s, -1h30m.

A reader of the output that leaves early (`| head -1`) ends the command with status 0. So does Ctrl-C or SIGTERM while \
it follows; before --exit-at-end, --until or --max is reached, they end it with 130 or 143. A command that ends by \
itself fails when damaged messages had to be skipped.

With --group, the partitions are shared out among all members of the group, and the group goes on where it last \
committed; what was printed is committed, also when Ctrl-C or SIGTERM ends the command.

Examples:
  corelane consume access-log
  corelane consume access-log --group indexer
  corelane consume access-log --group indexer --from latest --format '%p/%i %v\\n'
  corelane consume --pattern 'access-.*' --group indexer --format '%t %v\\n'
  corelane consume access-log --from -1h --exit-at-end --output last-hour.log
  corelane consume access-log --partition 0 --partition 2 --last 10 --exit-at-end
  corelane consume orders --from 2026-07-01 --until 2026-07-02 --format json
  corelane consume orders --from latest --format '%p/%i %d %k %v\\n'")]
pub(crate) struct ConsumeArgs {
    /// The topic
    #[arg(required_unless_present = "pattern")]
    pub(crate) topic: Option<String>,

    /// With --group: instead of a topic, all whose whole name this regular expression matches, those that are created later
    /// too
    #[arg(long, value_name = "PATTERN", requires = "group", conflicts_with = "topic")]
    pub(crate) pattern: Option<String>,

    /// Read this partition; may be repeated [default: all]
    #[arg(long, value_name = "P")]
    pub(crate) partition: Vec<u32>,

    /// Read as a member of this group of consumers; --from (earliest, latest or a time) says where a group begins that has no
    /// position yet
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["partition", "last", "until", "exit_at_end"])]
    pub(crate) group: Option<String>,

    /// With --group: how often positions are committed
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_timeout)]
    pub(crate) commit_interval: Duration,

    #[command(flatten)]
    pub(crate) begin: FromArg,

    /// Begin with the last N messages of each partition
    #[arg(long, value_name = "N", conflicts_with = "from")]
    pub(crate) last: Option<u64>,

    /// Stop each partition at its first message of this time or later, and at the end it has when that time has come
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_moment)]
    pub(crate) until: Option<Moment>,

    /// Stop after N messages
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<u64>,

    /// Stop at the ends that the partitions have now, however busy the topic is
    #[arg(long)]
    pub(crate) exit_at_end: bool,

    /// How to print a message: value, json, or a pattern
    #[arg(long, value_name = "value|json|FORMAT")]
    pub(crate) format: Option<Format>,

    /// Write to this file instead of standard output; it is made or emptied
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

impl ConsumeArgs {
    /// The topic, when it is no pattern.
    pub(crate) fn topic(&self) -> &str {
        self.topic.as_deref().unwrap_or_default()
    }

    /// The format asked for; `--json` alone asks for JSON.
    pub(crate) fn format(&self, json: bool) -> Format {
        match &self.format {
            Some(format) => format.clone(),
            None if json => Format::Json,
            None => Format::Value,
        }
    }

    /// Whether the command is to end by itself. If not, it follows the topic and a signal is its ordinary end.
    pub(crate) fn ends_by_itself(&self) -> bool {
        self.exit_at_end || self.until.is_some() || self.max.is_some()
    }
}
