//! Both logs of a partition side by side, as far as both reach.

use corelane_client::{CallError, Find, Found, TopicInfo};

use super::super::Sides;
use super::super::compare::{self, Place};
use super::{Finding, of_topic};
use crate::error::CliError;

/// Compares the logs themselves.
pub(super) async fn compare(sides: &Sides, topic: &TopicInfo, target: &str) -> Result<Vec<Finding>, CliError> {
    let mut findings: Vec<Finding> = of_topic(topic, target).collect();
    for finding in &mut findings {
        let partition = finding.partition;
        let source = sides.source.admin().find(&topic.name, partition, Find::Latest).await?;
        match sides.target.admin().find(target, partition, Find::Latest).await {
            Ok(copy) => {
                finding.take_bounds(&source, &copy);
                let places = [
                    Place { client: &sides.source, topic: &topic.name, partition },
                    Place { client: &sides.target, topic: target, partition },
                ];
                let (from, until) = (source.start.max(copy.start), source.visible_end.min(copy.visible_end));
                let compared = compare::places(places, from, until).await?;
                finding.messages = compared.messages;
                finding.problems.extend(compared.difference);
            }
            Err(CallError::UnknownTopic { .. } | CallError::NoSuchPartition { .. }) => {
                finding.problems.push("the target does not have this partition".to_owned());
            }
            Err(error) => return Err(error.into()),
        }
    }
    let (of_source, of_target) = (topic.partitions.len(), partitions(sides, target).await?);
    if let Some(last) = findings.last_mut().filter(|_| of_target > of_source) {
        last.problems
            .push(format!("the target has {of_target} partitions, the source {of_source}: it is no exact copy"));
    }
    Ok(findings)
}

/// How many partitions a topic of the target has; 0: it is not there.
async fn partitions(sides: &Sides, topic: &str) -> Result<usize, CliError> {
    match sides.target.admin().describe_topic(topic).await {
        Ok(described) => Ok(described.topic.partitions.len()),
        Err(CallError::UnknownTopic { .. }) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

impl Finding {
    fn take_bounds(&mut self, source: &Found, copy: &Found) {
        self.not_copied_yet = source.visible_end.saturating_sub(copy.visible_end);
        if copy.visible_end > source.visible_end {
            let (there, here) = (copy.visible_end, source.visible_end);
            self.problems.push(format!("the target ends at {there}, the source at {here}"));
        }
        if copy.start > source.start {
            let (there, here) = (copy.start, source.start);
            self.notes.push(format!(
                "the target begins at {there}, the source at {here}: what lies before {there} cannot be compared"
            ));
        }
    }
}
