//! The arguments of `export` and `import`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::parse::duration::parse_timeout;
use crate::parse::place::{FromArg, Moment, parse_moment};
use crate::parse::size::parse_size_or_unlimited;
use crate::produce::CompressionArg;

/// How messages are written to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileFormat {
    /// Apache Parquet: columns topic, partition, position, timestamp, key, headers, value
    Parquet,
    /// A JSON object a line, as `consume --format json` prints it
    Jsonl,
    /// The log's own bytes, compressed sets as they are
    Raw,
}

impl FileFormat {
    /// The end of its files' names.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            FileFormat::Parquet => "parquet",
            FileFormat::Jsonl => "jsonl",
            FileFormat::Raw => "raw",
        }
    }
}

/// Into which directories files are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartitionBy {
    /// date=YYYY-MM-DD (UTC), by the time of a file's first message; a later day begins a new file
    Time,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Writes what the topic holds beyond the newest files in the directory, up to the ends that it has now, and ends. So it is \
run again and again, by cron for example: each run goes on where the files end. The first one begins at the earliest message, \
or where --from says, which has no other meaning: what appears later, an added partition for example, is exported from its start.

A file appears when it is whole and on stable storage, under a name that says what it begins with: \
TOPIC-ID-PARTITION-EPOCH-POSITION, with the first 8 digits of the topic's id: of a topic that was created again all is \
new. A run that is killed leaves nothing that counts; of two runs at the same time one \
waits for the other. What has been written may be moved elsewhere, but for the newest file of each partition. A log that \
was restored from an older copy does not go on where the files end, and is refused: export it to another directory. A partition \
that cannot be read is named at the end; the others are exported.

Parquet columns: topic string, partition int32, position int64, timestamp (milliseconds, UTC), key binary, headers list of \
(name string, value binary), value binary; null where a message has no key or no value.

Examples:
  corelane export page-views --to /warehouse/page-views --format parquet
  corelane export page-views --to /warehouse/page-views --format parquet --partition-by time
  corelane export page-views --to /backup --format raw --group backup
  corelane export page-views --to /tmp/july --format jsonl --from 2026-07-01 --until 2026-08-01")]
pub(crate) struct ExportArgs {
    /// The topic
    pub(super) topic: String,

    /// The directory; it is made if need be
    #[arg(long, value_name = "DIR")]
    pub(super) to: PathBuf,

    /// How messages are written
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "parquet")]
    pub(super) format: FileFormat,

    #[command(flatten)]
    pub(super) begin: FromArg,

    /// Stop each partition at its first message of this time or later [default: at the end that it has now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_moment)]
    pub(super) until: Option<Moment>,

    /// A group that keeps how far the files go, for `corelane group describe` and its lag; no member may be in it. Where
    /// the directory has nothing yet, it says where to begin
    #[arg(long, value_name = "GROUP")]
    pub(super) group: Option<String>,

    /// Sort files into directories
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(super) partition_by: Option<PartitionBy>,

    /// Begin a new file after about so many bytes of messages; 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size_or_unlimited)]
    pub(super) file_bytes: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Publishes the messages of every file in the directory, partition by partition, in their order; with their keys, headers and \
times. If the topic has as many partitions as the one that was exported (a hidden file beside the others says how many), each \
goes to the one that it came from; else it goes where its key belongs, and what has no key stays in order. Files of the raw \
format are published set by set, as they are, and need as many partitions.

A directory with files of several topics, or in several formats, is refused unless one is named; so are those of a topic and \
of another one that was created under its name later. Nothing keeps what was imported already: a second run publishes \
everything again.

A damaged Parquet file is refused, and so is what lacks a value (null is a tombstone) or a time.

Examples:
  corelane import /warehouse/page-views --topic page-views-again
  corelane import /backup --topic restored --compression zstd")]
pub(crate) struct ImportArgs {
    /// The directory that `export` has written
    pub(super) directory: PathBuf,

    /// The topic to publish to; it must exist
    #[arg(long, value_name = "TOPIC")]
    pub(super) topic: String,

    /// Of which topic the files are, where there are several
    #[arg(long, value_name = "TOPIC")]
    pub(super) source_topic: Option<String>,

    /// The 8 digits of the topic's id in the files' names, where a topic was deleted and created again
    #[arg(long, value_name = "ID")]
    pub(super) topic_id: Option<String>,

    /// In which format the files are, where there are several
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(super) format: Option<FileFormat>,

    /// Publish each message to the partition of the number that it came from, however many there were
    #[arg(long)]
    pub(super) keep_partitions: bool,

    /// How sets are compressed; those of raw files stay as they are
    #[arg(long, value_name = "CODEC", value_enum, default_value_t)]
    pub(super) compression: CompressionArg,

    /// How long to go on trying to deliver a message, and to find a broker at the start
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_timeout)]
    pub(super) delivery_timeout: Duration,
}
