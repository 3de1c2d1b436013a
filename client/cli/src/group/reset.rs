//! `group reset`: where a group goes on, decided by an operator.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comfy_table::CellAlignment::{Left, Right};
use corelane_client::{CallError, Client, Find, Found, NewPosition, TopicId, TopicInfo};
use serde_json::json;

use super::ResetArgs;
use crate::args::Shared;
use crate::error::CliError;
use crate::output::{count, print, print_json, print_table, table};
use crate::parse::place::Place;

/// How often to look whether the group knows the topic.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What a group has committed in the topic, by partition: epoch and position.
type Committed = BTreeMap<u32, (u32, u64)>;

pub(super) async fn run(client: &Client, shared: &Shared, args: &ResetArgs) -> Result<(), CliError> {
    let topic = client.admin().describe_topic(&args.topic).await?.topic;
    if args.create && !is_subscribed(client, &args.group, topic.topic_id).await? {
        subscribe(client, shared, args, topic.topic_id).await?;
    }
    let group = client.admin().describe_group(&args.group).await?;
    if !group.members.is_empty() && !args.dry_run {
        let members = count(group.members.len() as u64, "member");
        let reason = format!("group {} has {members}; stop them first, then its positions can be set", args.group);
        return Err(CliError::Argument(reason));
    }
    let committed: Committed = group
        .partitions
        .iter()
        .filter(|partition| partition.topic_id == topic.topic_id)
        .filter_map(|partition| Some((partition.partition, partition.committed?)))
        .collect();
    let positions = new_positions(client, args, &topic).await?;
    if !args.dry_run {
        client.admin().reset_group(&args.group, &positions).await?;
    }
    tell(shared.json, args, &committed, &positions)
}

async fn is_subscribed(client: &Client, group: &str, topic: TopicId) -> Result<bool, CliError> {
    match client.admin().describe_group(group).await {
        Ok(group) => Ok(group.partitions.iter().any(|partition| partition.topic_id == topic)),
        Err(CallError::UnknownGroup { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A group is what members have made it: one joins, and leaves.
async fn subscribe(client: &Client, shared: &Shared, args: &ResetArgs, topic: TopicId) -> Result<(), CliError> {
    let member = client.group(&args.group).topic(&args.topic).manual_commit().build()?;
    let known = async {
        while !is_subscribed(client, &args.group, topic).await? {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    };
    let known = tokio::time::timeout(shared.timeout, known).await;
    member.leave().await.map_err(CliError::Group)?;
    known.map_err(|_| {
        let reason = format!("group {} was not made within {:?}; try again", args.group, shared.timeout);
        CliError::Argument(reason)
    })?
}

async fn new_positions(client: &Client, args: &ResetArgs, topic: &TopicInfo) -> Result<Vec<NewPosition>, CliError> {
    let mut positions = Vec::new();
    for &partition in &args.partition {
        if partition as usize >= topic.partitions.len() {
            let partitions = count(topic.partitions.len() as u64, "partition");
            let reason = format!("topic {} has {partitions}, from 0 on; there is no partition {partition}", topic.name);
            return Err(CliError::Argument(reason));
        }
    }
    for info in &topic.partitions {
        if !args.partition.is_empty() && !args.partition.contains(&info.partition) {
            continue;
        }
        let find = match args.to {
            Place::Earliest | Place::Position(_) => Find::Earliest,
            Place::Latest => Find::Latest,
            Place::Time(moment) => Find::TimeMs(moment.unix_ms(now_ms())),
        };
        let found = client.admin().find(&topic.name, info.partition, find).await?;
        let position = match args.to {
            Place::Position(position) => within(topic, info.partition, position, &found)?,
            _ => found.position,
        };
        let (topic_id, partition, epoch) = (topic.topic_id, info.partition, info.epoch);
        positions.push(NewPosition { topic_id, partition, epoch, position });
    }
    Ok(positions)
}

/// A position that is retained.
fn within(topic: &TopicInfo, partition: u32, position: u64, bounds: &Found) -> Result<u64, CliError> {
    if (bounds.start..=bounds.end).contains(&position) {
        return Ok(position);
    }
    let (name, start, end) = (&topic.name, bounds.start, bounds.end);
    Err(CliError::Argument(format!("{position} is outside of what {name}/{partition} retains, {start} to {end}")))
}

fn tell(json: bool, args: &ResetArgs, committed: &Committed, positions: &[NewPosition]) -> Result<(), CliError> {
    if json {
        let partitions: Vec<_> = positions
            .iter()
            .map(|new| {
                json!({
                    "partition": new.partition,
                    "committed": committed.get(&new.partition).map(|(_, position)| position),
                    "position": new.position,
                    "epoch": new.epoch,
                })
            })
            .collect();
        let (group, topic) = (&args.group, &args.topic);
        let done = !args.dry_run;
        return print_json(&json!({ "group": group, "topic": topic, "reset": done, "partitions": partitions }));
    }
    let mut rows = table(&[("TOPIC", Left), ("PARTITION", Right), ("COMMITTED", Right), ("NEW POSITION", Right)]);
    for new in positions {
        rows.add_row(vec![
            args.topic.clone(),
            new.partition.to_string(),
            committed.get(&new.partition).map_or_else(|| "-".to_owned(), |(_, position)| position.to_string()),
            new.position.to_string(),
        ]);
    }
    print_table(&rows)?;
    let set = count(positions.len() as u64, "position");
    print(&if args.dry_run { "nothing was set: this is a dry run\n".to_owned() } else { format!("{set} set\n") })
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
