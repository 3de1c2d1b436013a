//! `corelane topic`: create, list, describe, alter, trim, delete; partitions added, losses accepted.
//!
//! What loses data (a shorter retention, a trim, a deletion), or moves keys, is asked about first, or takes `--yes`.

mod grow;
mod view;

use std::ops::RangeInclusive;

use clap::{Args, Subcommand};
use corelane_client::{Client, NewTopic, TopicDescription, TopicSettings};

use crate::args::Shared;
use crate::error::CliError;
use crate::output::{confirm, count, print, print_json};
use crate::parse::duration::{format_duration_ms, parse_duration_ms, parse_duration_or_forever_ms};
use crate::parse::size::{format_size, parse_size, parse_size_or_unlimited};

/// What brokers take as a segment's size.
const SEGMENT_BYTES: RangeInclusive<u64> = 4 << 10..=64 << 30;
/// What brokers take as the largest set or message.
const SET_BYTES: RangeInclusive<u64> = 24..=8 << 20;

#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// Create a topic
    #[command(after_help = "\
Examples:
  corelane topic create access-log --partitions 4
  corelane topic create metrics --if-not-exists --retention 12h --retention-bytes 10GiB
  corelane topic create clicks --partitions 8 --flush-messages 10000 --flush-interval 50ms")]
    Create(CreateArgs),
    /// List all topics
    #[command(after_help = "\
Examples:
  corelane topic list
  corelane --json topic list")]
    List,
    /// Show a topic's settings and the state of its partitions
    #[command(after_help = "\
Examples:
  corelane topic describe access-log
  corelane --json topic describe access-log")]
    Describe {
        /// The topic
        name: String,
    },
    /// Change a topic's settings; what is not given stays as it is
    #[command(after_help = "\
Examples:
  corelane topic alter access-log --retention 30d
  corelane topic alter access-log --retention 1h --yes")]
    Alter(AlterArgs),
    /// Drop a partition's oldest segments, up to a position
    #[command(after_help = "\
The start moves to the last segment start at or below the position.

Examples:
  corelane topic trim access-log --partition 0 --to 1073741824
  corelane topic trim access-log --partition 0 --to 1073741824 --yes")]
    Trim(TrimArgs),
    /// Add partitions to a topic; keys go to other partitions from then on
    #[command(after_help = "\
A message's partition follows from its key and from how many partitions there are: messages of one key published before \
and after lie in different partitions, and their order is no longer kept between the two.

Examples:
  corelane topic add-partitions access-log --partitions 8
  corelane topic add-partitions access-log --partitions 8 --yes")]
    AddPartitions(grow::AddPartitionsArgs),
    /// Give up what lost partitions held, so that they begin anew
    #[command(after_help = "\
For a partition that its broker refuses, its data being lost for good; or one of a broker that was forgotten: then it \
begins on another one. It begins in a new epoch; what is left of the old one on a disk is kept, and not served.

Examples:
  corelane topic accept-loss access-log --partition 3
  corelane topic accept-loss access-log --partition 3,4 --yes")]
    AcceptLoss(grow::AcceptLossArgs),
    /// Delete a topic and all its messages
    #[command(after_help = "\
Examples:
  corelane topic delete access-log
  corelane topic delete access-log --yes")]
    Delete {
        /// The topic
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The topic's name: letters, digits, `.`, `_` and `-`, at most 200 of them
    name: String,
    /// How many partitions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    partitions: u32,
    /// A topic of this name and partition count that exists already is a success
    #[arg(long)]
    if_not_exists: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct AlterArgs {
    /// The topic
    name: String,
    /// Do not ask before a change that drops messages
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TrimArgs {
    /// The topic
    name: String,
    /// The partition
    #[arg(long, value_name = "P")]
    partition: u32,
    /// The position; messages below it go, as far as whole segments lie there
    #[arg(long, value_name = "POSITION")]
    to: u64,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// A topic's settings; those that are not given are left to the broker.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct SettingsArgs {
    /// Keep messages for so long, or `forever`
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_or_forever_ms)]
    retention: Option<u64>,
    /// Keep at most so many bytes of each partition, or `unlimited`
    #[arg(long, value_name = "BYTES", value_parser = parse_size_or_unlimited)]
    retention_bytes: Option<u64>,
    /// Begin a new segment when this size would be passed; 4KiB to 64GiB. Sets and messages are no longer than a segment
    #[arg(long, value_name = "BYTES", value_parser = |text: &str| in_range(text, SEGMENT_BYTES))]
    segment_bytes: Option<u64>,
    /// Begin a new segment when the current one is so old
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    segment_age: Option<u64>,
    /// Flush after so many messages; 0: not by count
    #[arg(long, value_name = "N")]
    flush_messages: Option<u64>,
    /// Flush after so long; 0: continuously, unless --flush-messages is set
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    flush_interval: Option<u64>,
    /// The largest message that is accepted; 24 bytes to 8MiB
    #[arg(long, value_name = "BYTES", value_parser = |text: &str| in_range_u32(text, SET_BYTES))]
    message_bytes_max: Option<u32>,
    /// The largest message set that is accepted; 24 bytes to 8MiB
    #[arg(long, value_name = "BYTES", value_parser = |text: &str| in_range_u32(text, SET_BYTES))]
    set_bytes_max: Option<u32>,
}

impl SettingsArgs {
    fn settings(&self) -> TopicSettings {
        let mut settings = TopicSettings::new();
        settings.retention_ms = self.retention;
        settings.retention_bytes = self.retention_bytes;
        settings.segment_bytes = self.segment_bytes;
        settings.segment_ms = self.segment_age;
        settings.flush_messages = self.flush_messages;
        settings.flush_interval_ms = self.flush_interval;
        settings.message_bytes_max = self.message_bytes_max;
        settings.set_bytes_max = self.set_bytes_max;
        settings
    }
}

/// Reads a size that must lie in a range.
fn in_range(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let size = parse_size(text)?;
    if range.contains(&size) {
        return Ok(size);
    }
    Err(format!("`{text}` is out of range; it can be {} to {}", format_size(*range.start()), format_size(*range.end())))
}

fn in_range_u32(text: &str, range: RangeInclusive<u64>) -> Result<u32, String> {
    in_range(text, range).map(|size| u32::try_from(size).expect("the range ends far below 4 GiB"))
}

pub(crate) async fn run(shared: &Shared, command: TopicCommand) -> Result<(), CliError> {
    if let TopicCommand::Alter(args) = &command
        && args.settings.settings() == TopicSettings::new()
    {
        return Err(CliError::Argument("nothing to alter; give at least one setting, see --help".to_owned()));
    }
    let client = shared.connect().await?;
    match command {
        TopicCommand::Create(args) => create(&client, shared.json, args).await,
        TopicCommand::List => view::list(&client.admin().list_topics().await?, shared.json),
        TopicCommand::Describe { name } => view::description(&client.admin().describe_topic(&name).await?, shared.json),
        TopicCommand::Alter(args) => alter(&client, shared.json, &args).await,
        TopicCommand::Trim(args) => trim(&client, shared.json, &args).await,
        TopicCommand::AddPartitions(args) => grow::add_partitions(&client, shared.json, &args).await,
        TopicCommand::AcceptLoss(args) => grow::accept_loss(&client, shared.json, &args).await,
        TopicCommand::Delete { name, yes } => delete(&client, shared.json, &name, yes).await,
    }
}

async fn create(client: &Client, json: bool, args: CreateArgs) -> Result<(), CliError> {
    let asked = args.settings.settings();
    let topic = NewTopic::named(args.name)
        .partitions(args.partitions)
        .settings(asked.clone())
        .if_not_exists(args.if_not_exists);
    let made = client.admin().create_topic(topic).await?;
    if json {
        let mut document = view::topic_json(&made.topic);
        document["created"] = made.created.into();
        return print_json(&document);
    }
    let partitions = count(made.topic.partitions.len() as u64, "partition");
    let verb = if made.created { "created" } else { "exists already:" };
    print(&format!("{verb} topic {} with {partitions}\n", made.topic.name))?;
    if let Some(note) = limits_note(&asked, &made.topic.settings) {
        eprintln!("corelane: {note}");
    }
    Ok(())
}

/// What a size of segments has done to limits that were not given: a set lies in one segment, a message in one set.
fn limits_note(asked: &TopicSettings, made: &TopicSettings) -> Option<String> {
    let segment_bytes = asked.segment_bytes?;
    let set = made.set_bytes_max.filter(|&bytes| asked.set_bytes_max.is_none() && u64::from(bytes) == segment_bytes)?;
    let message = made.message_bytes_max.unwrap_or(set);
    Some(format!(
        "a set lies in one segment, so the largest set is {} and the largest message {}",
        format_size(u64::from(set)),
        format_size(u64::from(message))
    ))
}

async fn alter(client: &Client, json: bool, args: &AlterArgs) -> Result<(), CliError> {
    let settings = args.settings.settings();
    let current = client.admin().describe_topic(&args.name).await?.topic.settings;
    if let Some(loss) = loss(&current, &settings) {
        confirm(&format!("{loss}, so messages of topic {} may be dropped for good.", args.name), args.yes)?;
    }
    let topic = client.admin().alter_topic(&args.name, settings).await?;
    if json {
        return print_json(&view::topic_json(&topic));
    }
    print(&format!("altered topic {}\n", topic.name))
}

/// How a change of settings lets messages go that would have stayed; none if it does not. 0 means without a bound.
fn loss(current: &TopicSettings, change: &TopicSettings) -> Option<String> {
    let tighter = |old: Option<u64>, new: Option<u64>| match (old.unwrap_or(0), new.unwrap_or(0)) {
        (_, 0) => None,
        (0, new) => Some((None, new)),
        (old, new) => (new < old).then_some((Some(old), new)),
    };
    if let Some((old, new)) = tighter(current.retention_ms, change.retention_ms) {
        let old = old.map_or_else(|| "forever".to_owned(), format_duration_ms);
        return Some(format!("The retention goes down from {old} to {}", format_duration_ms(new)));
    }
    let (old, new) = tighter(current.retention_bytes, change.retention_bytes)?;
    let old = old.map_or_else(|| "unlimited".to_owned(), format_size);
    Some(format!("The retention goes down from {old} to {} a partition", format_size(new)))
}

async fn trim(client: &Client, json: bool, args: &TrimArgs) -> Result<(), CliError> {
    let description = client.admin().describe_topic(&args.name).await?;
    let old_start = start_of(&description, args.partition)?;
    confirm(
        &format!(
            "Topic {}, partition {}, starts at {old_start}: its segments that lie wholly below {} are dropped for good.",
            args.name, args.partition, args.to
        ),
        args.yes,
    )?;
    let start = client.admin().trim(&args.name, args.partition, args.to).await?;
    if json {
        return print_json(&serde_json::json!({ "topic": args.name, "partition": args.partition, "start": start }));
    }
    let dropped = format_size(start.saturating_sub(old_start));
    print(&format!("topic {}, partition {}: starts at {start} now, {dropped} dropped\n", args.name, args.partition))
}

/// The start of a partition's log, if it is known.
fn start_of(description: &TopicDescription, partition: u32) -> Result<u64, CliError> {
    let detail = description.details.iter().find(|detail| detail.partition == partition);
    detail.map(|detail| detail.start).ok_or_else(|| {
        let partitions = description.topic.partitions.len();
        CliError::Argument(if (partition as usize) < partitions {
            format!("partition {partition} of topic {} does not answer; try again later", description.topic.name)
        } else {
            format!(
                "topic {} has {}, from 0 on; there is no partition {partition}",
                description.topic.name,
                count(partitions as u64, "partition")
            )
        })
    })
}

async fn delete(client: &Client, json: bool, name: &str, yes: bool) -> Result<(), CliError> {
    let description = client.admin().describe_topic(name).await?;
    let bytes: u64 = description.details.iter().map(|detail| detail.visible_end.saturating_sub(detail.start)).sum();
    confirm(&format!("Topic {name} and its {} of messages are deleted for good.", format_size(bytes)), yes)?;
    client.admin().delete_topic(name).await?;
    if json {
        return print_json(&serde_json::json!({ "topic": name, "deleted": true }));
    }
    print(&format!("deleted topic {name}\n"))
}

/// The `s` of a plural.
pub(crate) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retention(ms: u64, bytes: u64) -> TopicSettings {
        let mut settings = TopicSettings::new();
        settings.retention_ms = Some(ms);
        settings.retention_bytes = Some(bytes);
        settings
    }

    #[test]
    fn sizes_that_no_broker_takes_are_refused_with_the_range() {
        assert_eq!(in_range("64KiB", SEGMENT_BYTES), Ok(64 << 10));
        let refusal = in_range("1KiB", SEGMENT_BYTES).unwrap_err();
        assert!(refusal.contains("4 KiB to 64 GiB"), "{refusal}");
        assert!(in_range_u32("9MiB", SET_BYTES).unwrap_err().contains("24 B to 8 MiB"));
    }

    #[test]
    fn limits_that_a_small_segment_lowers_are_told() {
        let asked = TopicSettings::new().segment_bytes(64 << 10);
        let made = asked.clone().set_bytes_max(64 << 10).message_bytes_max(64 << 10);
        assert!(limits_note(&asked, &made).unwrap().contains("64 KiB"));
        assert_eq!(limits_note(&made, &made), None, "they were asked for");
        assert_eq!(limits_note(&TopicSettings::new().segment_bytes(1 << 30), &made), None, "they are the defaults");
    }

    #[test]
    fn a_shorter_retention_is_a_loss_and_a_longer_one_is_none() {
        let week = retention(604_800_000, 0);
        assert!(loss(&week, &retention(1_000, 0)).unwrap().contains("from 7d to 1s"));
        assert!(loss(&week, &retention(604_800_000, 1 << 30)).unwrap().contains("from unlimited to 1 GiB"));
        assert!(loss(&retention(0, 0), &retention(1_000, 0)).unwrap().contains("from forever"));
        for harmless in [retention(604_800_000, 0), retention(0, 0), TopicSettings::new().flush_messages(5)] {
            assert_eq!(loss(&week, &harmless), None);
        }
    }
}
