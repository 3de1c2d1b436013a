//! Finds the partition that a data request names, or says why it is not served here and where it is.

use corelane_log::{ClosedReason, ReadError};
use corelane_proto::frame::Status;
use corelane_proto::ids::{Epoch, TopicId};
use corelane_proto::pb;

use super::context::{Owned, Partition, ShardContext};
use super::{invalid_field, stopping};
use crate::messages::{Failure, PartitionKey};

/// The partition that a request names by topic id, number and epoch.
pub(super) fn locate(
    context: &ShardContext,
    topic_id: &[u8],
    partition: u32,
    epoch: u32,
) -> Result<(PartitionKey, Partition), Failure> {
    if context.is_stopping.get() {
        return Err(stopping());
    }
    let topic_id = TopicId::try_from(topic_id).map_err(|error| invalid_field("topic_id", error.to_string()))?;
    let key = (topic_id, partition);
    match context.partitions.borrow().get(&key) {
        Some(Owned::Serving { partition, epoch: current }) if *current == Epoch(epoch) => {
            if is_told(context, key) {
                Ok((key, partition.clone()))
            } else {
                Err(opening())
            }
        }
        Some(Owned::Serving { epoch: current, .. }) => {
            let message = format!("the partition is at epoch {current}, not {epoch}; ask for Metadata");
            let mut failure = Failure::new(Status::WrongEpoch, message);
            failure.error.epoch = Some(current.0);
            Err(failure)
        }
        Some(Owned::Opening) => Err(opening()),
        Some(Owned::Refused(reason)) => Err(Failure::new(Status::PartitionRefused, reason.clone())),
        None => Err(not_on_this_shard(context, key)),
    }
}

/// Whether clients are told that the partition is there. They are once the registry knows that it was made: nothing in it
/// may be acknowledged before, or a log that is lost could be taken for one that never was.
fn is_told(context: &ShardContext, (topic_id, partition): PartitionKey) -> bool {
    let metadata = context.metadata.borrow();
    let told = metadata.by_id.get(&topic_id).and_then(|topic| topic.partitions.get(partition as usize));
    told.is_some_and(|told| told.state() != pb::PartitionState::Opening)
}

fn opening() -> Failure {
    Failure::new(Status::Busy, "the partition is being opened; try again after a pause")
}

/// Why a partition is not on this shard, by what clients are told.
fn not_on_this_shard(context: &ShardContext, (topic_id, partition): PartitionKey) -> Failure {
    let metadata = context.metadata();
    let Some(topic) = metadata.by_id.get(&topic_id) else { return unknown_topic() };
    let Some(place) = topic.partitions.get(partition as usize) else {
        let message =
            format!("topic {} has {} partitions, there is no {partition}", topic.name, topic.partitions.len());
        return Failure::new(Status::UnknownPartition, message);
    };
    let identity = &context.identity;
    if (place.broker_id, place.shard) == (identity.broker_id, identity.shard) {
        return opening();
    }
    let message = format!("broker {} serves this partition, on its shard {}", place.broker_id, place.shard);
    let mut failure = Failure::new(Status::NotHere, message);
    failure.error.broker_id = Some(place.broker_id);
    failure.error.shard = Some(place.shard);
    failure
}

pub(super) fn unknown_topic() -> Failure {
    Failure::new(
        Status::UnknownTopic,
        "no topic has this id; ask for Metadata: it may be new, deleted, or created again",
    )
}

/// What a partition that has gone away answers.
pub(super) fn closed(reason: &ClosedReason) -> Failure {
    match reason {
        ClosedReason::Stopping => stopping(),
        ClosedReason::Deleted => unknown_topic(),
        reason => Failure::new(Status::ClosedForWrites, reason.to_string()),
    }
}

pub(super) fn out_of_range(start: u64, end: u64) -> Failure {
    let message = format!("the position is out of range: the log has {start} to {end}; go on at one of these");
    let mut failure = Failure::new(Status::OutOfRange, message);
    (failure.error.start, failure.error.end) = (Some(start), Some(end));
    failure
}

pub(super) fn read_failure(error: &ReadError) -> Failure {
    match error {
        ReadError::OutOfRange { start, end } => out_of_range(start.0, end.0),
        ReadError::Gone(reason) => closed(reason),
        other => Failure::new(Status::Internal, other.to_string()),
    }
}
