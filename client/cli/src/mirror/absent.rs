//! Whether the target still has what was copied before. The group alone says where a mirror goes on, so a target topic that
//! was deleted, or another cluster under the same group, would be filled from there on, and nobody would hear of the rest.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use corelane_client::{CallError, ConsumedMessage, Consumer, Find, OutOfRange, Start, TopicDescription};

use super::Sides;
use super::args::{Between, RunArgs};
use super::claims::Committed;
use super::lineage::step_in;
use super::origin::{Here, way};
use super::progress::Counts;
use crate::error::CliError;

/// So many messages of each side are looked at; when they do not decide it, nothing is said.
const LOOKED_AT: usize = 1_000;

/// How long one look may hold up what is copied.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Before a side that does not answer is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Partitions that were claimed, and of which it is not known yet whether the target has what was copied of them.
#[derive(Default)]
pub(super) struct Checks {
    waiting: VecDeque<Claimed>,
    /// A side did not answer.
    is_held_up: bool,
}

impl Checks {
    /// Adds what was claimed, with what was committed there.
    pub(super) fn add(&mut self, claimed: BTreeMap<(String, u32), Committed>) {
        let with_position = claimed.into_iter().filter_map(|((topic, partition), committed)| {
            let (epoch, committed) = committed?;
            Some(Claimed { topic, partition, epoch, committed })
        });
        self.waiting.extend(with_position);
    }

    /// How long the next look can wait.
    pub(super) fn pause(&self) -> Duration {
        match (self.waiting.is_empty(), self.is_held_up) {
            (true, _) => Duration::MAX,
            (false, true) => PAUSE,
            (false, false) => Duration::ZERO,
        }
    }

    /// Looks at one partition, so that the others are copied meanwhile; says so if its copies are not there.
    pub(super) async fn look_at_one(&mut self, sides: &Sides, args: &RunArgs, counts: &mut Counts) {
        let Some(claimed) = self.waiting.pop_front() else { return };
        let looked = tokio::time::timeout(LOOK_MAX, missing(sides, &args.between, &claimed)).await;
        self.is_held_up = false;
        let Claimed { topic, partition, committed, .. } = &claimed;
        match looked {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(reason))) => {
                counts.partitions_without_copies += 1;
                let group = args.group();
                eprintln!(
                    "corelane: {topic}/{partition}: the group has copied up to {committed}, and {reason}: it was deleted \
                     there, or it is another one. Only what follows is copied; to copy all of it again, end the mirrors of \
                     this group, and: corelane group reset {group} --topic {topic} --to earliest"
                );
            }
            Ok(Err(CliError::Call(error))) if !error.is_retryable() => tell_unknown(&claimed, &error.to_string()),
            // It will be known later.
            Err(_) | Ok(Err(CliError::Call(_))) => {
                self.is_held_up = true;
                self.waiting.push_back(claimed);
            }
            Ok(Err(error)) => tell_unknown(&claimed, &error.to_string()),
        }
    }
}

/// No reason to end: what is claimed here is copied all the same.
fn tell_unknown(claimed: &Claimed, reason: &str) {
    let Claimed { topic, partition, .. } = claimed;
    eprintln!("corelane: {topic}/{partition}: whether the target has what was copied before is not known: {reason}");
}

/// A partition with what the group had committed there when it was claimed.
#[derive(Debug, Clone)]
struct Claimed {
    topic: String,
    partition: u32,
    epoch: u32,
    committed: u64,
}

/// Why the target cannot be what the group's positions were committed for; `None`: it can.
async fn missing(sides: &Sides, between: &Between, claimed: &Claimed) -> Result<Option<String>, CliError> {
    let Claimed { topic, partition, epoch, committed } = claimed;
    let source = match sides.source.admin().describe_topic(topic).await {
        Err(CallError::UnknownTopic { .. }) => return Ok(None),
        described => described?,
    };
    let is_of_this_log = source.topic.partitions.get(*partition as usize).is_some_and(|at| at.epoch == *epoch);
    if !is_of_this_log || step_in(&source.topic.copy_of, &sides.target_id).is_some() {
        return Ok(None);
    }
    let here = Here::of(sides, &source.topic);
    let start = sides.source.admin().find(topic, *partition, Find::Earliest).await?.start;
    if start >= *committed || !has_any_to_copy(sides, between, &here, claimed, start).await? {
        return Ok(None);
    }
    let name = between.target_of(topic);
    let target = match sides.target.admin().describe_topic(&name).await {
        Err(CallError::UnknownTopic { .. }) => return Ok(Some(format!("there is no topic {name} in the target"))),
        described => described?,
    };
    let is_parallel = target.topic.partitions.len() == source.topic.partitions.len();
    let of_target = if is_parallel { *partition..*partition + 1 } else { 0..target.topic.partitions.len() as u32 };
    for at in of_target {
        if may_have_copies(sides, &target, at, &here, claimed).await? {
            return Ok(None);
        }
    }
    Ok(Some(format!("{name} in the target has nothing of it")))
}

/// Whether the source has anything below what is committed that is to be copied.
async fn has_any_to_copy(
    sides: &Sides,
    between: &Between,
    here: &Here<'_>,
    claimed: &Claimed,
    start: u64,
) -> Result<bool, CliError> {
    let reader = sides.source.consumer().partition_from(&claimed.topic, claimed.partition, Start::Position(start));
    let mut reader = reader.out_of_range(OutOfRange::Earliest).until_end(true).build().await?;
    let is_to_copy = |message: &ConsumedMessage| {
        message.position() < claimed.committed && !here.is_left_out(message, between.local_only)
    };
    Ok(first(&mut reader, is_to_copy).await? == Sought::Found)
}

/// Whether a partition of the target has a copy of what was committed, or may have had one: its own retention, or others'
/// messages before it, keep it from being known.
async fn may_have_copies(
    sides: &Sides,
    target: &TopicDescription,
    partition: u32,
    here: &Here<'_>,
    claimed: &Claimed,
) -> Result<bool, CliError> {
    let Some(detail) = target.details.iter().find(|detail| detail.partition == partition) else { return Ok(true) };
    if detail.start > 0 {
        return Ok(true);
    }
    let reader = sides.target.consumer().partition(&target.topic.name, partition);
    let mut reader = reader.out_of_range(OutOfRange::Earliest).until_end(true).build().await?;
    let is_copy = |message: &ConsumedMessage| {
        way(message)
            .any(|step| here.is_of(&step) && step.partition == claimed.partition && step.position < claimed.committed)
    };
    Ok(first(&mut reader, is_copy).await? != Sought::NotThere)
}

#[derive(PartialEq, Eq)]
enum Sought {
    Found,
    NotThere,
    /// There is more than is looked at.
    NotKnown,
}

async fn first(reader: &mut Consumer, is_it: impl Fn(&ConsumedMessage) -> bool) -> Result<Sought, CliError> {
    for _ in 0..LOOKED_AT {
        match super::verify::next(reader).await? {
            None => return Ok(Sought::NotThere),
            Some(message) if is_it(&message) => return Ok(Sought::Found),
            Some(_) => {}
        }
    }
    Ok(Sought::NotKnown)
}
