//! The topics of the target: which one a source topic is copied to, made with the source's partitions and settings where
//! it is missing.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use corelane_client::{CallError, NewTopic, Status, TopicDescription, TopicSettings};

use super::Sides;
use super::args::Between;
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
}

impl Target {
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
}

impl<'a> Targets<'a> {
    pub(super) fn new(sides: &'a Sides, between: &'a Between) -> Self {
        Self { sides, between, known: HashMap::new() }
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

    async fn try_look_up(&self, topic: &str) -> Result<Target, CliError> {
        let name = self.between.target_of(topic);
        let source = self.sides.source.admin().describe_topic(topic).await?;
        let partitions = source.topic.partitions.len() as u32;
        let there = match self.sides.target.admin().describe_topic(&name).await {
            Ok(found) => found.topic.partitions.len() as u32,
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
        Ok(Target { name, partitions: there, is_parallel })
    }

    fn check_exact(&self, topic: &str, name: &str, (partitions, there): (u32, u32)) -> Result<(), CliError> {
        if partitions != there {
            return Err(CliError::Mirror(format!(
                "{topic} has {partitions} partitions and {name} in the target has {there}: --exact needs as many"
            )));
        }
        let other = self.known.iter().find(|(other, target)| *other != topic && target.name == name);
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
            topic.settings(source.topic.settings.clone()).starts(starts(source)?)
        } else {
            topic.settings(with_room_for_origin(source.topic.settings.clone()))
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

/// The largest message of the source must fit with its origin.
fn with_room_for_origin(mut settings: TopicSettings) -> TopicSettings {
    let message =
        settings.message_bytes_max.map(|bytes| bytes.saturating_add(HEADER_BYTES_MAX).min(MESSAGE_BYTES_LIMIT));
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
        let target = |partitions, is_parallel| Target { name: "t".to_owned(), partitions, is_parallel };
        assert_eq!(target(4, true).partition(3, true), Some(3));
        assert_eq!(target(4, true).partition(3, false), Some(3));
        assert_eq!(target(4, false).partition(6, false), Some(2));
        assert_eq!(target(4, false).partition(6, true), None, "where the key belongs");
    }

    #[test]
    fn the_largest_message_of_the_source_fits_with_its_origin() {
        let settings = TopicSettings::new().message_bytes_max(1 << 20).set_bytes_max(1 << 20).segment_bytes(1 << 20);
        let with_room = with_room_for_origin(settings);
        let expected = (1 << 20) + HEADER_BYTES_MAX;
        assert_eq!((with_room.message_bytes_max, with_room.set_bytes_max), (Some(expected), Some(expected)));
        assert_eq!(with_room.segment_bytes, Some(u64::from(expected)));
        let largest = with_room_for_origin(TopicSettings::new().message_bytes_max(MESSAGE_BYTES_LIMIT));
        assert_eq!(largest.message_bytes_max, Some(MESSAGE_BYTES_LIMIT));
    }
}
