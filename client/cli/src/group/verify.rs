//! `group verify`: whether each partition that the group reads has exactly one owner, a live member, the one that it should.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use corelane_client::{CallError, Client, GroupDescription, TopicInfo};
use serde_json::json;

use crate::error::CliError;
use crate::output::{count, print, print_json};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(300);

pub(super) async fn run(client: &Client, json: bool, group: &str, wait: Option<Duration>) -> Result<(), CliError> {
    let began = Instant::now();
    let (description, problems) = loop {
        let has_time = began.elapsed() < wait.unwrap_or_default();
        let description = match client.admin().describe_group(group).await {
            // Its first member is still on its way.
            Err(CallError::UnknownGroup { .. }) if has_time => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            description => description?,
        };
        let topics = client.admin().list_topics().await?;
        let problems = problems(&description, &topics);
        if problems.is_empty() || !has_time {
            break (description, problems);
        }
        tokio::time::sleep(PAUSE).await;
    };
    let partitions = description.partitions.iter().filter(|partition| partition.target.is_some()).count() as u64;
    if json {
        print_json(&json!({
            "group": group,
            "verified": problems.is_empty(),
            "partitions": partitions,
            "members": description.members.len(),
            "problems": problems,
        }))?;
    } else if problems.is_empty() {
        let members = count(description.members.len() as u64, "member");
        print(&format!("group {group}: {}, {members}, one owner each\n", count(partitions, "partition")))?;
    } else {
        problems.iter().try_for_each(|problem| print(&format!("{problem}\n")))?;
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(CliError::NotVerified { group: group.to_owned(), problems: count(problems.len() as u64, "problem") })
}

/// What is not as it should be, in words.
fn problems(description: &GroupDescription, topics: &[TopicInfo]) -> Vec<String> {
    let members: BTreeSet<&str> = description.members.iter().map(|member| &*member.member_id).collect();
    let mut problems = Vec::new();
    if members.is_empty() {
        problems.push("the group has no members, so nobody reads".to_owned());
        return problems;
    }
    if description.is_changing {
        problems.push("members or topics have changed, and the next assignment is due".to_owned());
    }
    let mut assigned: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for partition in &description.partitions {
        let name = format!("{}/{}", partition.topic, partition.partition);
        if partition.target.is_some() {
            assigned.entry(&partition.topic).or_default().insert(partition.partition);
        }
        match (&partition.owner, &partition.target) {
            (Some(owner), _) if !members.contains(&**owner) => {
                problems.push(format!("{name} is owned by {owner}, which is not a live member"));
            }
            (Some(owner), Some(target)) if owner != target => {
                problems.push(format!("{name} is owned by {owner} and shall go to {target}"));
            }
            (Some(owner), None) => problems.push(format!("{name} is owned by {owner} and assigned to nobody")),
            (None, Some(target)) => problems.push(format!("{name} has no owner; it shall go to {target}")),
            _ => {}
        }
    }
    // Topics by name; which topics a pattern takes only the brokers decide.
    let named: BTreeSet<&str> = description.members.iter().flat_map(|it| &it.topics).map(|name| &**name).collect();
    for topic in topics.iter().filter(|topic| named.contains(&*topic.name)) {
        let known = assigned.get(&*topic.name);
        let is_missing = |partition: &&u32| known.is_none_or(|known| !known.contains(partition));
        let numbers: Vec<u32> = topic.partitions.iter().map(|partition| partition.partition).collect();
        for partition in numbers.iter().filter(is_missing) {
            problems.push(format!("{}/{partition} is assigned to nobody", topic.name));
        }
    }
    problems
}
