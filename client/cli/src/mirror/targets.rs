//! The topics of the target: which one a source topic is copied to, made with the source's partitions and settings where
//! it is missing.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use corelane_client::{CallError, NewTopic, Status, TopicDescription, TopicId, TopicInfo, TopicSettings};

use super::Sides;
use super::args::Between;
use super::lineage::{of_copy, step_in};
use super::origin::HEADER_BYTES_MAX;
use crate::copied;
use crate::error::CliError;

/// The largest message that any topic may allow.
const MESSAGE_BYTES_LIMIT: u32 = 8 << 20;
/// Between two attempts to reach a cluster that does not answer.
const PAUSE: Duration = Duration::from_millis(500);

/// Where a topic is copied to.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: String,
    partitions: u32,
    /// Whether partitions are copied to those of their number.
    is_parallel: bool,
    /// Nothing is copied, for the whole topic came from the target's cluster.
    pub(super) is_left_out: bool,
    /// What the source's topic is an exact copy of.
    pub(super) through: Vec<String>,
}

impl Target {
    fn left_out(name: String) -> Self {
        Self { name, partitions: 1, is_parallel: true, is_left_out: true, through: Vec::new() }
    }

    /// The partition of a message; none: where its key belongs.
    pub(super) fn partition(&self, source: u32, has_key: bool) -> Option<u32> {
        copied::partition(source, has_key, self.partitions, self.is_parallel)
    }
}

/// The targets that are known so far.
pub(super) struct Targets<'a> {
    sides: &'a Sides,
    between: &'a Between,
    known: HashMap<String, Rc<Target>>,
    /// Topics of the source of which it was said that they are left out.
    told: HashSet<TopicId>,
}

impl<'a> Targets<'a> {
    pub(super) fn new(sides: &'a Sides, between: &'a Between) -> Self {
        Self { sides, between, known: HashMap::new(), told: HashSet::new() }
    }

    /// Whether the target of a topic was looked up before.
    pub(super) fn is_known(&self, topic: &str) -> bool {
        self.known.contains_key(topic)
    }

    /// The target of a topic; made, if need be.
    pub(super) async fn of(&mut self, topic: &str) -> Result<Rc<Target>, CliError> {
        match self.known.get(topic) {
            Some(target) => Ok(target.clone()),
            None => self.look_up(topic).await,
        }
    }

    /// Finds or makes the target, for as long as it takes: either cluster may be away for a while.
    pub(super) async fn look_up(&mut self, topic: &str) -> Result<Rc<Target>, CliError> {
        loop {
            match self.try_look_up(topic).await {
                Ok(target) => {
                    let target = Rc::new(target);
                    self.known.insert(topic.to_owned(), target.clone());
                    return Ok(target);
                }
                Err(CliError::Call(error)) if error.is_retryable() => {
                    eprintln!("corelane: the target of topic {topic:?}: {error}; still trying");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn try_look_up(&mut self, topic: &str) -> Result<Target, CliError> {
        let name = self.between.target_of(topic);
        let source = self.sides.source.admin().describe_topic(topic).await?;
        if let Some(reason) = why_left_out(self.sides, self.between.exact, &source.topic, &name).await? {
            if self.told.insert(source.topic.topic_id) {
                eprintln!("corelane: {topic} is not copied: {reason}");
            }
            return Ok(Target::left_out(name));
        }
        let partitions = source.topic.partitions.len() as u32;
        let there = match self.sides.target.admin().describe_topic(&name).await {
            Ok(found) => {
                self.tell_if_it_cannot_be_told(&found.topic, &source.topic);
                found.topic.partitions.len() as u32
            }
            Err(CallError::UnknownTopic { .. }) => self.create(&name, &source).await?,
            Err(error) => return Err(error.into()),
        };
        let is_parallel = there == partitions;
        if self.between.exact {
            self.check_exact(topic, &name, (partitions, there))?;
        } else if !is_parallel {
            eprintln!(
                "corelane: {topic} has {partitions} partitions, {name} in the target {there}: messages go where their keys \
                 belong there"
            );
        }
        Ok(Target { name, partitions: there, is_parallel, is_left_out: false, through: source.topic.copy_of })
    }

    /// A target that was made by hand, or by a mirror of before, does not say that it is a copy.
    fn tell_if_it_cannot_be_told(&mut self, target: &TopicInfo, source: &TopicInfo) {
        let (is_copy, is_original) = (
            step_in(&target.copy_of, &self.sides.source_id).is_some(),
            step_in(&source.copy_of, &self.sides.target_id).is_some(),
        );
        if self.between.exact && !is_copy && !is_original && self.told.insert(target.topic_id) {
            eprintln!(
                "corelane: {} in the target was not made by this mirror, so it does not say that it is a copy of {}: a mirror \
                 from there to here would take it for a topic of its own",
                target.name, source.name
            );
        }
    }

    fn check_exact(&self, topic: &str, name: &str, (partitions, there): (u32, u32)) -> Result<(), CliError> {
        if partitions != there {
            return Err(CliError::Mirror(format!(
                "{topic} has {partitions} partitions and {name} in the target has {there}: --exact needs as many"
            )));
        }
        let other =
            self.known.iter().find(|(other, target)| *other != topic && !target.is_left_out && target.name == name);
        match other {
            Some((other, _)) => Err(CliError::Mirror(format!(
                "{topic} and {other} would both be copied to {name}: --exact needs a topic of its own for each"
            ))),
            None => Ok(()),
        }
    }

    /// Makes the topic; returns how many partitions it has, since somebody else may have made it meanwhile.
    async fn create(&self, name: &str, source: &TopicDescription) -> Result<u32, CliError> {
        let partitions = source.topic.partitions.len() as u32;
        let mut topic = NewTopic::named(name).partitions(partitions).if_not_exists(true);
        topic = if self.between.exact {
            let copy_of = of_copy(&self.sides.source_id, &source.topic);
            topic.settings(source.topic.settings.clone()).starts(starts(source)?).copy_of(copy_of)
        } else {
            // One header of this mirror's own, and one for each exact copy before.
            let headers = 1 + source.topic.copy_of.len() as u32;
            topic.settings(with_room_for_headers(source.topic.settings.clone(), headers))
        };
        match self.sides.target.admin().create_topic(topic).await {
            Ok(made) => {
                if made.created {
                    eprintln!("corelane: created topic {name} in the target");
                }
                Ok(made.topic.partitions.len() as u32)
            }
            Err(error) if error.refusal().is_some_and(|refusal| refusal.status == Status::TopicExists) => {
                let there = self.sides.target.admin().describe_topic(name).await?;
                Ok(there.topic.partitions.len() as u32)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Why nothing of a topic is copied: it is an exact copy of a log of the target's cluster, and its messages, which carry
/// nothing of that, would come back and be copied again, for ever. An exact mirror into that very log adds nothing to it that
/// is not its own.
pub(super) async fn why_left_out(
    sides: &Sides,
    is_exact: bool,
    source: &TopicInfo,
    name: &str,
) -> Result<Option<String>, CliError> {
    let Some(step) = step_in(&source.copy_of, &sides.target_id) else { return Ok(None) };
    if is_exact && step.topic == name {
        match sides.target.admin().describe_topic(name).await {
            Ok(found) if found.topic.topic_id.short() == step.topic_id => return Ok(None),
            Ok(_) | Err(CallError::UnknownTopic { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(format!("it is an exact copy of {}, which comes from the target's cluster", step.topic)))
}

/// Where each partition of the source begins; all of them must be there to tell.
fn starts(source: &TopicDescription) -> Result<Vec<u64>, CliError> {
    let topic = &source.topic;
    if let Some(missing) = topic.partitions.iter().find(|at| source.details.iter().all(|d| d.partition != at.partition))
    {
        let (topic, partition) = (topic.name.clone(), missing.partition);
        let reason = "where it begins is not known".to_owned();
        return Err(CallError::Unavailable { topic, partition, reason }.into());
    }
    Ok(source.details.iter().map(|detail| detail.start).collect())
}

/// The largest message of the source must fit with what says where it comes from.
fn with_room_for_headers(mut settings: TopicSettings, headers: u32) -> TopicSettings {
    let room = headers.saturating_mul(HEADER_BYTES_MAX);
    let message = settings.message_bytes_max.map(|bytes| bytes.saturating_add(room).min(MESSAGE_BYTES_LIMIT));
    settings.message_bytes_max = message;
    settings.set_bytes_max = settings.set_bytes_max.max(message);
    settings.segment_bytes = settings.segment_bytes.max(settings.set_bytes_max.map(u64::from));
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_without_a_key_stay_in_order_whatever_the_counts() {
        let target = |partitions, is_parallel| Target { partitions, is_parallel, ..Target::left_out("t".to_owned()) };
        assert_eq!(target(4, true).partition(3, true), Some(3));
        assert_eq!(target(4, true).partition(3, false), Some(3));
        assert_eq!(target(4, false).partition(6, false), Some(2));
        assert_eq!(target(4, false).partition(6, true), None, "where the key belongs");
    }

    #[test]
    fn the_largest_message_of_the_source_fits_with_its_origin() {
        let settings = TopicSettings::new().message_bytes_max(1 << 20).set_bytes_max(1 << 20).segment_bytes(1 << 20);
        let with_room = with_room_for_headers(settings, 1);
        let expected = (1 << 20) + HEADER_BYTES_MAX;
        assert_eq!((with_room.message_bytes_max, with_room.set_bytes_max), (Some(expected), Some(expected)));
        assert_eq!(with_room.segment_bytes, Some(u64::from(expected)));
        let largest = with_room_for_headers(TopicSettings::new().message_bytes_max(MESSAGE_BYTES_LIMIT), 2);
        assert_eq!(largest.message_bytes_max, Some(MESSAGE_BYTES_LIMIT));
    }
}
