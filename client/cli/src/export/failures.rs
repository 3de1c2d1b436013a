//! What could not be exported. A partition that is refused, whose broker is away, or whose log is not the one of its files
//! does not keep the others from being exported; at the end it is named. What concerns the directory ends all.

use std::collections::BTreeMap;

use corelane_client::{CallError, PartitionInfo};

use crate::error::CliError;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Failures {
    by_partition: BTreeMap<u32, String>,
    /// Brokers that did not answer, and why: none is waited for twice.
    away: BTreeMap<u32, String>,
    /// The first failure, whole.
    first: Option<CliError>,
}

impl Failures {
    /// Takes note of the failure of a partition; gives back what the others would meet as well.
    pub(super) fn note(&mut self, partition: &PartitionInfo, error: CliError) -> Result<(), CliError> {
        let is_of_partition = matches!(error, CliError::Call(_) | CliError::Consume(_) | CliError::Argument(_));
        if !is_of_partition {
            return Err(error);
        }
        let reason = error.to_string();
        let is_away = matches!(error, CliError::Call(CallError::Unreachable { .. } | CallError::TimedOut { .. }));
        if is_away {
            self.away.entry(partition.broker_id).or_insert_with(|| reason.clone());
        }
        self.by_partition.insert(partition.partition, reason);
        self.first.get_or_insert(error);
        Ok(())
    }

    /// Whether the broker of this partition did not answer before; takes note of the partition then.
    pub(super) fn is_away(&mut self, partition: &PartitionInfo) -> bool {
        let reason = self.away.get(&partition.broker_id);
        self.by_partition.extend(reason.map(|reason| (partition.partition, reason.clone())));
        reason.is_some()
    }

    /// The end of the run.
    pub(super) fn result(self, topic: &str, partitions: usize) -> Result<(), CliError> {
        let Some(first) = self.first else { return Ok(()) };
        if partitions == 1 {
            return Err(first);
        }
        let failed = self.by_partition.len();
        let reasons: Vec<String> =
            self.by_partition.iter().map(|(partition, reason)| format!("{topic}/{partition}: {reason}")).collect();
        let verb = if failed == 1 { "was" } else { "were" };
        Err(CliError::Consume(format!(
            "{failed} of {partitions} partitions {verb} not exported to the end: {}",
            reasons.join("; ")
        )))
    }
}
