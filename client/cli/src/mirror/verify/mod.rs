//! `mirror verify`: whether the target has what the source has. With `--exact` both logs are compared as they lie
//! (`exactly.rs`); else every message of the source must be found in the target by its origin, with the same content and in
//! order (`by_origin.rs`, of what `copies.rs` keeps of the target).

mod by_origin;
mod copies;
mod exactly;

use std::collections::HashMap;
use std::fmt::Write;

use corelane_client::{CallError, ConsumeError, ConsumedMessage, Consumer, TopicInfo};
use serde::Serialize;

use super::Sides;
use super::args::VerifyArgs;
use super::lineage::step_in;
use super::targets::why_left_out;
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
    /// Messages that a mirror leaves out for where they come from.
    left_out: u64,
    /// Messages of the source that are damaged, so that nobody can tell whether they were copied.
    damaged: u64,
    /// Messages that the target would have had before what it begins with now.
    gone_from_target: u64,
    /// What is wrong, in words.
    problems: Vec<String>,
    /// What could not be compared and why, in words.
    notes: Vec<String>,
}

/// Problems of one kind that are listed for a partition; the rest are counted.
const PROBLEMS_MAX: usize = 10;

/// By topic id and partition, what a group has committed: the epoch and the position.
type Committed = HashMap<(String, u32), (u32, u64)>;

pub(super) async fn run(shared: &Shared, args: &VerifyArgs) -> Result<(), CliError> {
    let between = &args.between;
    let sides = Sides::connect(shared, between).await?;
    let mut topics = sides.source.admin().list_topics().await?;
    topics.retain(|topic| between.is_meant(&topic.name));
    if topics.is_empty() {
        return Err(CliError::Argument(format!("no topic of the source matches {:?}", between.topics())));
    }
    let committed = match &args.group {
        Some(group) => committed(&sides, group).await?,
        None => Committed::new(),
    };
    let mut findings = Vec::new();
    for topic in &topics {
        let target = between.target_of(&topic.name);
        if let Some(reason) = why_left_out(&sides, between.exact, topic, &target).await? {
            let note = format!("not compared, and not copied: {reason}");
            findings.extend(of_topic(topic, &target).map(|finding| Finding { notes: vec![note.clone()], ..finding }));
        } else if between.exact {
            findings.extend(exactly::compare(&sides, topic, &target).await?);
        } else if is_exact_copy(&sides, topic, &target).await? {
            // Its messages are the original's own and do not say where they come from.
            let problem = "the target is an exact copy: compare it with --exact";
            let problems = vec![problem.to_owned()];
            findings.extend(of_topic(topic, &target).map(|finding| Finding { problems: problems.clone(), ..finding }));
        } else {
            findings.extend(by_origin::compare(&sides, topic, &target, between.local_only, &committed).await?);
        }
    }
    tell(shared, &findings)
}

/// Whether what the target has under this name is an exact copy of the topic.
async fn is_exact_copy(sides: &Sides, topic: &TopicInfo, target: &str) -> Result<bool, CliError> {
    match sides.target.admin().describe_topic(target).await {
        Ok(found) => Ok(step_in(&found.topic.copy_of, &sides.source_id)
            .is_some_and(|step| step.topic == topic.name && step.topic_id == topic.topic_id.short())),
        Err(CallError::UnknownTopic { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn committed(sides: &Sides, group: &str) -> Result<Committed, CliError> {
    let described = sides.source.admin().describe_group(group).await?;
    let partitions = described.partitions.into_iter();
    Ok(partitions.filter_map(|at| Some(((at.topic_id.to_string(), at.partition), at.committed?))).collect())
}

/// A finding for each partition of a topic, of which nothing is known yet.
fn of_topic(topic: &TopicInfo, target: &str) -> impl Iterator<Item = Finding> {
    (0..topic.partitions.len() as u32).map(move |partition| Finding {
        topic: topic.name.clone(),
        target: target.to_owned(),
        partition,
        ..Finding::default()
    })
}

fn tell(shared: &Shared, findings: &[Finding]) -> Result<(), CliError> {
    if shared.json {
        print_json(&findings)?;
    } else {
        for finding in findings {
            crate::output::print(&finding.lines())?;
        }
    }
    let wrong = findings.iter().filter(|finding| !finding.problems.is_empty()).count() as u64;
    match wrong {
        0 => Ok(()),
        wrong => Err(CliError::Mirror(format!("the target differs in {}", count(wrong, "partition")))),
    }
}

impl Finding {
    fn lines(&self) -> String {
        let Finding { topic, target, partition, messages, .. } = self;
        let mut lines = format!("{topic}/{partition} -> {target}: {} the same", count(*messages, "message"));
        for (number, what) in [
            (self.duplicates, "duplicates"),
            (self.not_copied_yet, "not copied yet"),
            (self.left_out, "left out for where they come from"),
            (self.damaged, "damaged in the source, not compared"),
            (self.gone_from_target, "before the target's beginning, not compared"),
        ] {
            if number > 0 {
                write!(lines, ", {number} {what}").expect("a string takes what is written");
            }
        }
        lines.push('\n');
        for words in self.problems.iter().chain(&self.notes) {
            writeln!(lines, "  {words}").expect("a string takes what is written");
        }
        lines
    }

    /// Adds a problem that these positions of the source have.
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

/// The next message; what is damaged is passed.
pub(super) async fn next(reader: &mut Consumer) -> Result<Option<ConsumedMessage>, CliError> {
    loop {
        match reader.next().await {
            None => return Ok(None),
            Some(Ok(message)) => return Ok(Some(message)),
            Some(Err(ConsumeError::Undecodable { .. })) => {}
            Some(Err(error)) if error.is_retryable() => eprintln!("corelane: {error}; still trying"),
            Some(Err(ConsumeError::Unavailable { cause, .. })) => return Err(cause.into()),
            Some(Err(error)) => return Err(CliError::Consume(error.to_string())),
        }
    }
}
