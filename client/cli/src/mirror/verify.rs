//! `mirror verify`: whether the target has what the source has. With `--exact` both logs are compared as they lie; else every
//! message of the source must be found in the target by its origin, with the same content and in order. For that the
//! positions in the target are kept in memory: 16 bytes a message of a topic.

use std::collections::HashMap;
use std::fmt::Write;

use corelane_client::{CallError, Client, ConsumeError, ConsumedMessage, Consumer, Find, OutOfRange, TopicInfo};
use serde::Serialize;

use super::Sides;
use super::args::Between;
use super::compare::{self, Place};
use super::origin::{is_back, way};
use crate::args::Shared;
use crate::error::CliError;
use crate::output::{count, print_json};

/// What was found of one partition of the source.
#[derive(Debug, Default, Serialize)]
struct Finding {
    topic: String,
    target: String,
    partition: u32,
    /// Messages that are the same on both sides; with `--exact`, a compressed set is one.
    messages: u64,
    /// Messages that the target had more than once.
    duplicates: u64,
    /// Messages behind the last one that was copied so far; with `--exact`, bytes.
    not_copied_yet: u64,
    /// What is wrong, in words.
    problems: Vec<String>,
}

/// Problems of one kind that are listed for a partition; the rest are counted.
const PROBLEMS_MAX: usize = 10;

pub(super) async fn run(shared: &Shared, between: &Between) -> Result<(), CliError> {
    let sides = Sides::connect(shared, between).await?;
    let mut topics = sides.source.admin().list_topics().await?;
    topics.retain(|topic| between.is_meant(&topic.name));
    if topics.is_empty() {
        return Err(CliError::Argument(format!("no topic of the source matches {:?}", between.topics())));
    }
    let mut findings = Vec::new();
    for topic in &topics {
        let target = between.target_of(&topic.name);
        if between.exact {
            findings.extend(exactly(&sides, topic, &target).await?);
        } else {
            findings.extend(by_origin(&sides, topic, &target, between.local_only).await?);
        }
    }
    tell(shared, &findings)
}

fn tell(shared: &Shared, findings: &[Finding]) -> Result<(), CliError> {
    if shared.json {
        print_json(&findings)?;
    } else {
        for finding in findings {
            let Finding { topic, target, partition, messages, duplicates, not_copied_yet, problems } = finding;
            let mut line = format!("{topic}/{partition} -> {target}: {} the same", count(*messages, "message"));
            for (number, what) in [(duplicates, "duplicates"), (not_copied_yet, "not copied yet")] {
                if *number > 0 {
                    write!(line, ", {number} {what}").expect("a string takes what is written");
                }
            }
            crate::output::print(&format!("{line}\n"))?;
            for problem in problems {
                crate::output::print(&format!("  {problem}\n"))?;
            }
        }
    }
    let wrong = findings.iter().filter(|finding| !finding.problems.is_empty()).count() as u64;
    match wrong {
        0 => Ok(()),
        wrong => Err(CliError::Mirror(format!("the target differs in {}", count(wrong, "partition")))),
    }
}

/// Compares the logs themselves.
async fn exactly(sides: &Sides, topic: &TopicInfo, target: &str) -> Result<Vec<Finding>, CliError> {
    let mut findings = Vec::new();
    for partition in 0..topic.partitions.len() as u32 {
        let mut finding =
            Finding { topic: topic.name.clone(), target: target.to_owned(), partition, ..Finding::default() };
        let source = sides.source.admin().find(&topic.name, partition, Find::Latest).await?;
        match sides.target.admin().find(target, partition, Find::Latest).await {
            Ok(copy) => {
                let (from, until) = (source.start.max(copy.start), source.visible_end.min(copy.visible_end));
                finding.not_copied_yet = source.visible_end.saturating_sub(copy.visible_end);
                if copy.visible_end > source.visible_end {
                    let problem =
                        format!("the target ends at {}, the source at {}", copy.visible_end, source.visible_end);
                    finding.problems.push(problem);
                }
                let places = [
                    Place { client: &sides.source, topic: &topic.name, partition },
                    Place { client: &sides.target, topic: target, partition },
                ];
                let compared = compare::places(places, from, until).await?;
                finding.messages = compared.messages;
                finding.problems.extend(compared.difference);
            }
            Err(CallError::UnknownTopic { .. } | CallError::NoSuchPartition { .. }) => {
                finding.problems.push("the target does not have this partition".to_owned());
            }
            Err(error) => return Err(error.into()),
        }
        findings.push(finding);
    }
    Ok(findings)
}

/// What the target has of one partition of the source: positions, ascending, and what identifies the content.
#[derive(Default)]
struct Copies {
    seen: Vec<(u64, u64)>,
    duplicates: u64,
    out_of_order: Vec<u64>,
}

/// Looks every message of the source up among what the target has of this source.
async fn by_origin(sides: &Sides, topic: &TopicInfo, target: &str, local_only: bool) -> Result<Vec<Finding>, CliError> {
    let mut reader = reader(&sides.source, &topic.name).await?;
    let mut copies = copies(sides, topic, target).await?;
    let mut findings: Vec<Finding> = (0..topic.partitions.len() as u32)
        .map(|partition| Finding {
            topic: topic.name.clone(),
            target: target.to_owned(),
            partition,
            ..Finding::default()
        })
        .collect();
    for finding in &mut findings {
        let Some(of_partition) = copies.get_mut(&finding.partition) else { continue };
        finding.duplicates = of_partition.duplicates;
        let late = std::mem::take(&mut of_partition.out_of_order);
        finding.add("came to the target behind later ones", &late);
    }
    let mut missing: HashMap<u32, Vec<u64>> = HashMap::new();
    let mut different: HashMap<u32, Vec<u64>> = HashMap::new();
    while let Some(message) = next(&mut reader).await? {
        // It came from there, and was not taken back.
        let is_foreign = local_only && way(&message).next().is_some();
        if is_foreign || is_back(&message, &sides.source_id, &sides.target_id) {
            continue;
        }
        let (partition, position) = (message.partition(), message.position());
        let Some(finding) = findings.get_mut(partition as usize) else { continue };
        let seen = copies.get(&partition).map_or(&[][..], |copies| &copies.seen);
        match seen.binary_search_by_key(&position, |(position, _)| *position) {
            Ok(at) if seen[at].1 == content(&message) => finding.messages += 1,
            Ok(_) => different.entry(partition).or_default().push(position),
            Err(at) if at == seen.len() => finding.not_copied_yet += 1,
            Err(_) => missing.entry(partition).or_default().push(position),
        }
    }
    for finding in &mut findings {
        finding.add("are missing in the target", missing.get(&finding.partition).map_or(&[], |at| at));
        finding.add("are not the same in the target", different.get(&finding.partition).map_or(&[], |at| at));
    }
    Ok(findings)
}

impl Finding {
    fn add(&mut self, what: &str, positions: &[u64]) {
        if positions.is_empty() {
            return;
        }
        let first: Vec<String> = positions.iter().take(PROBLEMS_MAX).map(u64::to_string).collect();
        let more = if positions.len() > PROBLEMS_MAX { ", ..." } else { "" };
        let messages = count(positions.len() as u64, "message");
        self.problems.push(format!("{messages} {what}: {}{more}", first.join(", ")));
    }
}

/// Reads the target once, and keeps what it has of this topic of the source: of this life of it, whose positions are others
/// than those of one of the same name that was deleted, or of a log that began again.
async fn copies(sides: &Sides, topic: &TopicInfo, target: &str) -> Result<HashMap<u32, Copies>, CliError> {
    let (mut copies, topic_id) = (HashMap::<u32, Copies>::new(), topic.topic_id.short());
    // By partition of the target and of the source, the last position so far: there is an order within each.
    let mut last: HashMap<(u32, u32), u64> = HashMap::new();
    let mut late: Vec<(u32, u64, u64)> = Vec::new();
    let mut reader = match reader(&sides.target, target).await {
        Ok(reader) => reader,
        Err(CallError::UnknownTopic { .. }) => return Ok(copies),
        Err(error) => return Err(error.into()),
    };
    while let Some(message) = next(&mut reader).await? {
        let Some(origin) = way(&message).last() else { continue };
        let is_of_this_life =
            topic.partitions.get(origin.partition as usize).is_some_and(|at| at.epoch == origin.epoch);
        let is_of_topic = origin.topic == topic.name && origin.topic_id == topic_id;
        if origin.cluster != sides.source_id || !is_of_topic || !is_of_this_life {
            continue;
        }
        let (partition, position) = (origin.partition, origin.position);
        let last = last.entry((message.partition(), partition)).or_insert(0);
        let copies = copies.entry(partition).or_default();
        if position >= *last && copies.seen.last().is_none_or(|(seen, _)| *seen != position) {
            *last = position;
            copies.seen.push((position, content(&message)));
        } else {
            late.push((partition, position, content(&message)));
        }
    }
    for of_partition in copies.values_mut() {
        of_partition.seen.sort_unstable();
    }
    // A message that comes again is a duplicate; one that comes for the first time behind later ones is out of order.
    late.sort_unstable();
    for (partition, position, content) in late {
        let copies = copies.entry(partition).or_default();
        match copies.seen.binary_search_by_key(&position, |(position, _)| *position) {
            Ok(_) => copies.duplicates += 1,
            Err(at) => {
                copies.out_of_order.push(position);
                copies.seen.insert(at, (position, content));
            }
        }
    }
    Ok(copies)
}

/// What a mirror leaves as it is: time, key, value, and the headers but the origin of the last step.
fn content(message: &ConsumedMessage) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    message.timestamp_ms().hash(&mut hasher);
    message.key().hash(&mut hasher);
    message.value().hash(&mut hasher);
    let headers = message.headers().filter(|(name, _)| *name != super::origin::HEADER);
    headers.for_each(|header| header.hash(&mut hasher));
    hasher.finish()
}

async fn reader(client: &Client, topic: &str) -> Result<Consumer, CallError> {
    client.consumer().topic(topic).out_of_range(OutOfRange::Fail).until_end(true).build().await
}

async fn next(reader: &mut Consumer) -> Result<Option<ConsumedMessage>, CliError> {
    loop {
        match reader.next().await {
            None => return Ok(None),
            Some(Ok(message)) => return Ok(Some(message)),
            Some(Err(error)) if error.is_retryable() => eprintln!("corelane: {error}; still trying"),
            Some(Err(ConsumeError::Unavailable { cause, .. })) => return Err(cause.into()),
            Some(Err(error)) => return Err(CliError::Consume(error.to_string())),
        }
    }
}
