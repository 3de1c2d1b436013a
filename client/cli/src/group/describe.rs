//! `group describe`: a group as tables and as JSON.

use std::collections::BTreeSet;

use comfy_table::CellAlignment::{Left, Right};
use corelane_client::{Client, GroupDescription, GroupMember};
use serde_json::{Value, json};

use super::lag::{self, Lag};
use super::summary_json;
use crate::args::Shared;
use crate::error::CliError;
use crate::output::{count, print, print_json, print_table, table};
use crate::parse::duration::format_age_ms;

pub(super) async fn run(client: &Client, shared: &Shared, group: &str) -> Result<(), CliError> {
    let description = client.admin().describe_group(group).await?;
    let lags = lag::of_all(client, &description.partitions, shared.timeout).await;
    if shared.json {
        return print_json(&to_json(&description, &lags));
    }
    print_tables(&description, &lags)
}

type Lags = [Option<Result<Lag, String>>];

fn print_tables(description: &GroupDescription, lags: &Lags) -> Result<(), CliError> {
    let group = &description.group;
    print(&format!(
        "group {}: {}, {}, generation {}\n",
        group.group,
        count(group.members, "member"),
        count(group.partitions, "partition"),
        group.generation
    ))?;
    if !description.members.is_empty() {
        let mut rows =
            table(&[("MEMBER", Left), ("CLIENT", Left), ("HOST", Left), ("OWNS", Right), ("SUBSCRIBES TO", Left)]);
        for member in &description.members {
            let owned = description.partitions.iter().filter(|at| at.owner.as_ref() == Some(&member.member_id));
            rows.add_row(vec![
                member.member_id.clone(),
                member.client_name.clone(),
                member.host.clone(),
                owned.count().to_string(),
                subscription(member),
            ]);
        }
        print("\n")?;
        print_table(&rows)?;
    }
    if description.partitions.is_empty() {
        return Ok(());
    }
    let mut rows = table(&[
        ("TOPIC", Left),
        ("PARTITION", Right),
        ("COMMITTED", Right),
        ("END", Right),
        ("LAG", Right),
        ("MESSAGES", Right),
        ("BEHIND", Right),
        ("OWNER", Left),
    ]);
    let members: BTreeSet<&str> = description.members.iter().map(|member| &*member.member_id).collect();
    for (partition, lag) in description.partitions.iter().zip(lags) {
        let lag = lag.as_ref().and_then(|lag| lag.as_ref().ok());
        let cell = |of: &dyn Fn(&Lag) -> String| lag.map_or_else(|| "-".to_owned(), of);
        rows.add_row(vec![
            partition.topic.clone(),
            partition.partition.to_string(),
            partition.committed.map_or_else(|| "-".to_owned(), |(_, position)| position.to_string()),
            cell(&|lag| lag.visible_end.to_string()),
            cell(&|lag| lag.bytes().to_string()),
            cell(&|lag| format!("{}{}", if lag.is_exact { "" } else { "~" }, lag.messages)),
            cell(&|lag| lag.behind_ms.map_or_else(|| "-".to_owned(), format_age_ms)),
            owner(partition.owner.as_deref(), partition.target.as_deref(), &members),
        ]);
    }
    print("\n")?;
    print_table(&rows)?;
    for (partition, lag) in description.partitions.iter().zip(lags) {
        if let Some(Err(reason)) = lag {
            eprintln!("corelane: the lag of {}/{} is not known: {reason}", partition.topic, partition.partition);
        }
    }
    Ok(())
}

/// Who owns it, and who will, in words. The assignment may still name a member that has ended: nothing goes to that one.
fn owner(owner: Option<&str>, target: Option<&str>, members: &BTreeSet<&str>) -> String {
    match (owner, target) {
        (Some(owner), Some(target)) if owner == target || !members.contains(target) => owner.to_owned(),
        (Some(owner), Some(target)) => format!("{owner}, moves to {target}"),
        (Some(owner), None) => format!("{owner}, is released"),
        (None, Some(target)) if members.contains(target) => format!("none, goes to {target}"),
        (None, _) => "none".to_owned(),
    }
}

fn subscription(member: &GroupMember) -> String {
    member.pattern.as_ref().map_or_else(|| member.topics.join(", "), |pattern| format!("/{pattern}/"))
}

fn to_json(description: &GroupDescription, lags: &Lags) -> Value {
    let members = description.members.iter().map(|member| {
        json!({
            "member_id": member.member_id,
            "client_name": member.client_name,
            "host": member.host,
            "topics": member.topics,
            "pattern": member.pattern,
        })
    });
    let partitions = description.partitions.iter().zip(lags).map(|(partition, lag)| {
        let known = lag.as_ref().and_then(|lag| lag.as_ref().ok());
        json!({
            "topic": partition.topic,
            "topic_id": partition.topic_id.to_string(),
            "partition": partition.partition,
            "owner": partition.owner,
            "target": partition.target,
            "fence": partition.fence.map(|fence| fence.to_string()),
            "committed": partition.committed.map(|(_, position)| position),
            "committed_epoch": partition.committed.map(|(epoch, _)| epoch),
            "committed_at_ms": partition.committed_at_ms,
            "visible_end": known.map(|lag| lag.visible_end),
            "lag_bytes": known.map(Lag::bytes),
            "lag_messages": known.map(|lag| lag.messages),
            "lag_messages_exact": known.map(|lag| lag.is_exact),
            "behind_ms": known.and_then(|lag| lag.behind_ms),
            "lag_error": lag.as_ref().and_then(|lag| lag.as_ref().err()),
        })
    });
    let (members, partitions): (Vec<Value>, Vec<Value>) = (members.collect(), partitions.collect());
    let mut document = summary_json(&description.group);
    document["members"] = members.into();
    document["partitions"] = partitions.into();
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_has_ended_is_not_named_as_the_coming_owner() {
        let members = BTreeSet::from(["a", "b"]);
        assert_eq!(owner(Some("a"), Some("a"), &members), "a");
        assert_eq!(owner(Some("a"), Some("b"), &members), "a, moves to b");
        assert_eq!(owner(Some("a"), None, &members), "a, is released");
        assert_eq!(owner(None, Some("b"), &members), "none, goes to b");
        assert_eq!(owner(None, None, &members), "none");
        assert_eq!(owner(Some("a"), Some("gone"), &members), "a");
        assert_eq!(owner(None, Some("gone"), &members), "none");
        assert_eq!(owner(None, Some("a"), &BTreeSet::new()), "none", "a group without members");
    }
}
