//! `--exact`: the target is the same log. The target's end says where to go on, whatever is committed; each set is published
//! as it lies, with the end that it expects, so that two mirrors of one partition cannot harm each other. Whatever would make
//! the copy another log stops the mirror with a report.

use std::collections::HashMap;
use std::time::Duration;

use corelane_client::{Client, DeliveryError, Fence, Find, Found, GroupMessage, PreparedSet, Status};
use corelane_proto::message::Message;

use super::Sides;
use super::compare::{self, Place};
use super::pending::Failed;
use crate::error::CliError;

/// Between two looks at a target that has not flushed everything yet, or does not answer.
const PAUSE: Duration = Duration::from_millis(50);
/// Messages at the target's end that are compared before a partition is gone on with.
const COMPARED_MESSAGES: u64 = 16;

/// What is to be done with a message.
pub(super) enum Step {
    /// Its set is not whole yet.
    Gathered,
    /// The partition is to be read from this position on.
    Begin(u64),
    /// It ends this set of so many messages.
    Publish { first: u64, set: PreparedSet, messages: u64 },
}

/// A partition under one ownership.
struct Line {
    fence: Fence,
    epoch: u32,
    /// Where the next message must lie.
    next: u64,
    /// The set that is not whole yet, and where it begins.
    set: Vec<u8>,
    first: u64,
    messages: u64,
}

/// A place in the source at which the mirror may have to stop.
#[derive(Clone, Copy)]
pub(super) struct At<'m> {
    pub(super) topic: &'m str,
    pub(super) partition: u32,
    /// None: nothing was read yet.
    pub(super) position: Option<u64>,
}

impl<'m> At<'m> {
    fn of(message: &'m GroupMessage) -> Self {
        Self { topic: message.topic(), partition: message.partition(), position: Some(message.position()) }
    }
}

/// See the head of this file.
pub(super) struct Exact<'a> {
    sides: &'a Sides,
    lines: HashMap<(String, u32), Line>,
}

impl<'a> Exact<'a> {
    pub(super) fn new(sides: &'a Sides) -> Self {
        Self { sides, lines: HashMap::new() }
    }

    /// The partition begins anew with its next message.
    pub(super) fn forget(&mut self, topic: &str, partition: u32) {
        self.lines.remove(&(topic.to_owned(), partition));
    }

    /// Takes a message in; `name`: the topic in the target.
    pub(super) async fn take(&mut self, message: &GroupMessage, name: &str) -> Result<Step, CliError> {
        let (topic, partition) = (message.topic().to_owned(), message.partition());
        let key = (topic, partition);
        if self.lines.get(&key).is_none_or(|line| line.fence != message.fence()) {
            let next = patiently(async || self.begin(At::of(message), name).await).await?;
            let (fence, epoch) = (message.fence(), message.epoch());
            self.lines.insert(key.clone(), Line { fence, epoch, next, set: Vec::new(), first: next, messages: 0 });
            if next != message.position() {
                return Ok(Step::Begin(next));
            }
        }
        let line = self.lines.get_mut(&key).expect("it was made, if it was missing");
        line.check(message)?;
        if line.set.is_empty() {
            line.first = message.position();
            line.messages = 0;
        }
        line.next = message.next_position();
        line.messages += 1;
        line.set.extend_from_slice(message.frame());
        let is_last = Message::view(message.frame()).is_ok_and(|message| message.is_last());
        if !is_last {
            return Ok(Step::Gathered);
        }
        let (first, messages) = (line.first, line.messages);
        let set = PreparedSet::new(name, partition, std::mem::take(&mut line.set));
        let set = set.map_err(|error| stopped(At::of(message), &format!("the set that begins at {first}: {error}")))?;
        Ok(Step::Publish { first, set: set.expected_id(first), messages })
    }

    /// Where to go on with a partition, whatever is committed: at the target's end, if what lies before it is the source's.
    /// Does not wait for a side that does not answer.
    pub(super) async fn begin(&self, at: At<'_>, name: &str) -> Result<u64, CliError> {
        let partition = at.partition;
        let target = flushed(&self.sides.target, name, partition).await?;
        let source = find(&self.sides.source, at.topic, partition, Find::Latest).await?;
        if target.end > source.visible_end {
            let reason =
                format!("{name}/{partition} in the target ends at {}, beyond {}", target.end, source.visible_end);
            return Err(stopped(at, &format!("{reason}: it is no copy of this log, or of an earlier life of it")));
        }
        if target.end < source.start {
            let reason = format!("{name}/{partition} in the target ends at {}", target.end);
            return Err(stopped(at, &format!("{reason}, and retention has taken all below {}", source.start)));
        }
        // The last messages of the copy tell whether it is one.
        let last = find(&self.sides.target, name, partition, Find::LastMessages(COMPARED_MESSAGES)).await?;
        let from = last.position.max(source.start).max(target.start);
        self.compare(at, name, from, target.end).await?;
        Ok(target.end)
    }

    /// Stops where the target has anything else than the source between two positions.
    async fn compare(&self, at: At<'_>, name: &str, from: u64, until: u64) -> Result<(), CliError> {
        let partition = at.partition;
        let places = [
            Place { client: &self.sides.source, topic: at.topic, partition },
            Place { client: &self.sides.target, topic: name, partition },
        ];
        match compare::places(places, from, until).await?.difference {
            None => Ok(()),
            Some(difference) => Err(stopped(at, &format!("{name}/{partition} in the target is no copy: {difference}"))),
        }
    }

    /// Whether a set that failed is in the target all the same, and on its stable storage: it was appended, and the answer
    /// was lost; or another mirror was faster. Anything else there stops the mirror.
    pub(super) async fn is_there(&self, failed: &Failed<'_>, name: &str) -> Result<bool, CliError> {
        let DeliveryError::Refused(refusal) = &failed.error else { return Ok(false) };
        let message = &failed.on_its_way.message;
        if refusal.status != Status::UnexpectedEnd {
            return Ok(false);
        }
        let found = loop {
            let target = &self.sides.target;
            let found = patiently(async || find(target, name, message.partition(), Find::Latest).await).await?;
            if found.visible_end >= message.next_position() {
                // What reaches as far may be somebody else's.
                self.compare(At::of(message), name, failed.on_its_way.first, message.next_position()).await?;
                return Ok(true);
            }
            if found.visible_end == found.end {
                break found;
            }
            tokio::time::sleep(PAUSE).await;
        };
        let (first, end, partition) = (failed.on_its_way.first, found.end, message.partition());
        let reason = format!("the set at {first} was refused: {name}/{partition} in the target ends at {end}");
        Err(stopped(At::of(message), &format!("{reason}; somebody else publishes there, or it has lost what it had")))
    }
}

impl Line {
    /// Nothing may be missing, and the log must be the same one.
    fn check(&self, message: &GroupMessage) -> Result<(), CliError> {
        if message.epoch() != self.epoch {
            let (epoch, before) = (message.epoch(), self.epoch);
            return Err(stopped(At::of(message), &format!("the log began again: epoch {epoch} follows {before}")));
        }
        if message.position() != self.next {
            let (missing, next) = (message.position().abs_diff(self.next), self.next);
            let reason = format!("the {missing} bytes from {next} on cannot be read");
            return Err(stopped(At::of(message), &format!("{reason}: they are damaged, or retention has taken them")));
        }
        Ok(())
    }
}

/// The bounds of a partition once all that it holds is on stable storage.
async fn flushed(client: &Client, topic: &str, partition: u32) -> Result<Found, CliError> {
    loop {
        let found = find(client, topic, partition, Find::Latest).await?;
        if found.visible_end == found.end {
            return Ok(found);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn find(client: &Client, topic: &str, partition: u32, what: Find) -> Result<Found, CliError> {
    Ok(client.admin().find(topic, partition, what).await?)
}

/// Tries until it works, or a refusal comes that no retry can help.
async fn patiently<T>(attempt: impl AsyncFn() -> Result<T, CliError>) -> Result<T, CliError> {
    loop {
        match attempt().await {
            Err(CliError::Call(error)) if error.is_retryable() => {
                eprintln!("corelane: {error}; still trying");
                tokio::time::sleep(PAUSE).await;
            }
            other => return other,
        }
    }
}

/// The report with which the mirror stops.
fn stopped(at: At<'_>, reason: &str) -> CliError {
    let At { topic, partition, position } = at;
    let place = position.map(|position| format!(", at position {position}")).unwrap_or_default();
    CliError::Mirror(format!("{topic}/{partition} cannot be copied exactly{place}: {reason}"))
}
