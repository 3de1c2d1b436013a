//! `corelane group`: list, describe, reset, delete, verify.

mod describe;
mod lag;
mod reset;
mod verify;

use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::CellAlignment::{Left, Right};
use corelane_client::{Client, GroupSummary};
use serde_json::{Value, json};

use crate::args::Shared;
use crate::error::CliError;
use crate::output::{confirm, count, print, print_json, print_table, table};
use crate::parse::duration::parse_timeout;
use crate::parse::place::{Place, parse_place};

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List all groups
    #[command(after_help = "\
GENERATION counts how often the partitions were shared out anew. KIND names what the members are: `corelane`, by this client.

Examples:
  corelane group list
  corelane --json group list")]
    List,
    /// Show a group's members, who owns which partition, and how far each of them is behind
    #[command(after_help = "\
COMMITTED is where the group goes on, END what can be read now, LAG the bytes between the two. MESSAGES is an estimate from
the next messages to read (exact when they are few). BEHIND is how long ago the next message to read was published, by the
time that its producer gave it. What was read and is not committed yet counts as behind: up to five seconds of it.

Examples:
  corelane group describe indexer
  corelane --json group describe indexer")]
    Describe {
        /// The group
        group: String,
    },
    /// Set a group's positions in a topic, while it has no members
    #[command(after_help = "\
A time is that of the first message that is read: 2026-07-01T12:00:00Z, '2026-07-01 12:00' (local), @1782900000, or -1h.

Examples:
  corelane group reset indexer --topic access-log --to earliest --dry-run
  corelane group reset indexer --topic access-log --to -1h
  corelane group reset indexer --topic access-log --partition 2 --to 1048576
  corelane --broker us-1:9400 group reset indexer --topic access-log --partition 2 --to 1048576 --create")]
    Reset(ResetArgs),
    /// Delete a group that has no members, with its positions
    #[command(after_help = "\
Examples:
  corelane group delete indexer
  corelane group delete indexer --yes")]
    Delete {
        /// The group
        group: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Check that each partition has exactly one owner, and that this one is a live member
    #[command(after_help = "\
The exit status is 0 when it is so, else 1. While members come and go it is not, so give it time with --wait.

Examples:
  corelane group verify indexer
  corelane group verify indexer --wait 30s")]
    Verify {
        /// The group
        group: String,
        /// Look again for so long until it is so
        #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
        wait: Option<Duration>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    /// The group
    group: String,
    /// The topic
    #[arg(long, value_name = "TOPIC")]
    topic: String,
    /// Only this partition; may be repeated [default: all]
    #[arg(long, value_name = "P")]
    partition: Vec<u32>,
    /// Where the group shall go on: earliest, latest, a position (of each partition), a time, or a time ago
    #[arg(long, value_name = "earliest|latest|POSITION|TIME|-1h", allow_hyphen_values = true, value_parser = parse_place)]
    to: Place,
    /// Make the group first if there is none, or have it know the topic: for consumers that move to another cluster
    #[arg(long, conflicts_with = "dry_run")]
    create: bool,
    /// Show what would be set, and set nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(shared: &Shared, command: GroupCommand) -> Result<(), CliError> {
    let client = shared.connect().await?;
    match command {
        GroupCommand::List => list(&client.admin().list_groups().await?, shared.json),
        GroupCommand::Describe { group } => describe::run(&client, shared, &group).await,
        GroupCommand::Reset(args) => reset::run(&client, shared, &args).await,
        GroupCommand::Delete { group, yes } => delete(&client, shared.json, &group, yes).await,
        GroupCommand::Verify { group, wait } => verify::run(&client, shared.json, &group, wait).await,
    }
}

fn list(groups: &[GroupSummary], json: bool) -> Result<(), CliError> {
    if json {
        return print_json(&groups.iter().map(summary_json).collect::<Vec<_>>());
    }
    let mut rows =
        table(&[("GROUP", Left), ("MEMBERS", Right), ("PARTITIONS", Right), ("GENERATION", Right), ("KIND", Left)]);
    for group in groups {
        rows.add_row(vec![
            group.group.clone(),
            group.members.to_string(),
            group.partitions.to_string(),
            group.generation.to_string(),
            group.kind.clone(),
        ]);
    }
    print_table(&rows)
}

fn summary_json(group: &GroupSummary) -> Value {
    json!({
        "group": group.group,
        "kind": group.kind,
        "generation": group.generation,
        "members": group.members,
        "partitions": group.partitions,
    })
}

async fn delete(client: &Client, json: bool, group: &str, yes: bool) -> Result<(), CliError> {
    let description = client.admin().describe_group(group).await?;
    if !description.members.is_empty() {
        let members = count(description.members.len() as u64, "member");
        let reason = format!("group {group} has {members}; stop them first, then it can be deleted");
        return Err(CliError::Argument(reason));
    }
    let committed = description.partitions.iter().filter(|partition| partition.committed.is_some()).count();
    let positions = count(committed as u64, "committed position");
    confirm(&format!("Group {group} and its {positions} are deleted for good."), yes)?;
    client.admin().delete_group(group).await?;
    if json {
        return print_json(&json!({ "group": group, "deleted": true }));
    }
    print(&format!("deleted group {group}\n"))
}
