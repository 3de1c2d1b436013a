//! Every message of the source, looked for among the copies that the target has of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use corelane_client::{Consumer, OutOfRange, Skip, SkipCause, TopicInfo};

use super::super::Sides;
use super::super::origin::Here;
use super::copies::{Copies, content};
use super::{Committed, Finding, next, of_topic};
use crate::error::CliError;

/// Damaged stretches of the source, by partition, as they are met.
type Damaged = Arc<Mutex<HashMap<u32, u64>>>;

/// Positions of the source, by partition.
type Positions = HashMap<u32, Vec<u64>>;

/// Looks every message of the source up among what the target has of this source.
pub(super) async fn compare(
    sides: &Sides,
    topic: &TopicInfo,
    target: &str,
    local_only: bool,
    committed: &Committed,
) -> Result<Vec<Finding>, CliError> {
    let damaged = Damaged::default();
    let mut reader = source(sides, topic, &damaged).await?;
    let starts: BTreeMap<u32, u64> = reader.positions().iter().map(|at| (at.partition, at.position)).collect();
    let here = Here::of(sides, topic);
    let mut copies = Copies::read(sides, topic, target, &starts).await?;
    let mut findings: Vec<Finding> = of_topic(topic, target).collect();
    let committed_in = |partition: u32| {
        let (epoch, position) = committed.get(&(topic.topic_id.to_string(), partition))?;
        topic.partitions.get(partition as usize).filter(|at| at.epoch == *epoch).map(|_| *position)
    };
    let (mut missing, mut different) = (Positions::new(), Positions::new());
    while let Some(message) = next(&mut reader).await? {
        let (partition, position) = (message.partition(), message.position());
        let Some(finding) = findings.get_mut(partition as usize) else { continue };
        // It came from there, and was not taken back.
        if here.is_left_out(&message, local_only) {
            finding.left_out += 1;
            continue;
        }
        let seen = copies.seen(partition);
        match seen.binary_search_by_key(&position, |(position, _)| *position) {
            Ok(at) if seen[at].1 == content(&message) => finding.messages += 1,
            Ok(_) => different.entry(partition).or_default().push(position),
            Err(at) => {
                let is_due = at < seen.len() || committed_in(partition).is_some_and(|committed| position < committed);
                match (is_due, copies.may_be_gone(partition, position)) {
                    (false, _) => finding.not_copied_yet += 1,
                    (true, true) => finding.gone_from_target += 1,
                    (true, false) => missing.entry(partition).or_default().push(position),
                }
            }
        }
    }
    let damaged = damaged.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for finding in &mut findings {
        let partition = finding.partition;
        finding.damaged = damaged.get(&partition).copied().unwrap_or(0);
        finding.duplicates = copies.duplicates(partition);
        finding.add("came to the target behind later ones", &copies.take_out_of_order(partition));
        finding.add("are missing in the target", missing.get(&partition).map_or(&[], |at| at));
        finding.add("are not the same in the target", different.get(&partition).map_or(&[], |at| at));
        if !copies.is_there && finding.not_copied_yet > 0 {
            finding.problems.push(format!("there is no topic {target} in the target"));
        }
        finding.tell_what_is_gone(&copies, starts.get(&partition).copied().unwrap_or(0), committed_in(partition));
    }
    Ok(findings)
}

async fn source(sides: &Sides, topic: &TopicInfo, damaged: &Damaged) -> Result<Consumer, CliError> {
    let damaged = damaged.clone();
    let note = move |skip: &Skip| {
        if skip.cause == SkipCause::Damage {
            *damaged.lock().unwrap_or_else(PoisonError::into_inner).entry(skip.partition).or_default() += 1;
        }
    };
    let reader = sides.source.consumer().topic(&topic.name).out_of_range(OutOfRange::Fail).until_end(true);
    Ok(reader.on_skip(note).build().await?)
}

impl Finding {
    /// Tells what cannot be compared any more, since the source or the target begins later.
    fn tell_what_is_gone(&mut self, copies: &Copies, start: u64, committed: Option<u64>) {
        if let Some(committed) = committed.filter(|committed| *committed < start) {
            let bytes = start - committed;
            self.problems.push(format!(
                "{bytes} bytes of the source were gone before they were copied: the group has come to {committed}, and the \
                 source begins at {start}"
            ));
        }
        if let Some((bytes, first)) = copies.gone_before_copied(self.partition, committed.unwrap_or(start).min(start)) {
            let words = format!("{bytes} bytes of the source were gone before they were copied, from {first} on");
            // Where messages are left out, or damaged, these may have been such.
            if self.left_out + self.damaged == 0 {
                self.problems.push(words);
            } else {
                self.notes.push(format!("{words}, unless they were left out or damaged"));
            }
        }
        if self.gone_from_target > 0 {
            let messages = self.gone_from_target;
            self.notes.push(format!(
                "the target begins later: whether it had {messages} messages of the source cannot be told"
            ));
        }
        if self.damaged > 0 {
            let messages = self.damaged;
            self.notes.push(format!("{messages} damaged messages of the source could not be compared"));
        }
    }
}
