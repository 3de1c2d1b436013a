//! What a group's stream can report. Most of it is told and lived with: the stream goes on unless it says otherwise.

use crate::consumer::ConsumeError;
use crate::error::CallError;

/// An error in the stream, or of a call, of a group's member.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The membership ended: the lease ran out unrenewed, a limit was passed, or another process took the membership
    /// over. What was being processed may be processed by another member too. The stream goes on as a new member.
    #[error("the membership in group {group:?} ended: {reason}")]
    MembershipEnded {
        /// The group.
        group: String,
        /// Why, as far as it is known.
        reason: String,
    },
    /// The group has no position in this partition, and the policy is to fail. The partition rests; it goes on after
    /// [`GroupConsumer::rewind`](crate::GroupConsumer::rewind), or after a reset and with another policy.
    #[error("group {group:?} has no committed position in {topic}/{partition}; set one with: corelane group reset")]
    NoCommittedPosition {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
    },
    /// The committed position lies beyond the end of the log, which only a mistake can cause. The partition rests.
    #[error(
        "the position {position} that group {group:?} has committed in {topic}/{partition} lies beyond the end {end}; \
         stop the group and set it with: corelane group reset"
    )]
    AheadOfEnd {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// What is committed.
        position: u64,
        /// The end of the log.
        end: u64,
    },
    /// These partitions were not committed: they are not owned any more, or time was up.
    #[error("not committed: {}", list(partitions))]
    NotCommitted {
        /// Topic and partition of each.
        partitions: Vec<(String, u32)>,
    },
    /// This member does not own the partition.
    #[error("this member does not own {topic}/{partition}")]
    NotOwned {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
    },
    /// The group could not be reached for longer than the client's time-out, or it refused. After a refusal that no
    /// retry can help the stream ends.
    #[error("group {group:?}: {cause}")]
    Call {
        /// The group.
        group: String,
        /// What went wrong.
        #[source]
        cause: CallError,
    },
    /// An error of one partition's stream.
    #[error(transparent)]
    Consume(#[from] ConsumeError),
    /// The consumer is closed.
    #[error("the consumer is closed")]
    Closed,
}

fn list(partitions: &[(String, u32)]) -> String {
    let names: Vec<String> = partitions.iter().map(|(topic, partition)| format!("{topic}/{partition}")).collect();
    names.join(", ")
}

impl GroupError {
    /// Whether the stream goes on by itself, or the call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::MembershipEnded { .. } | Self::NotCommitted { .. } => true,
            Self::Call { cause, .. } => cause.is_retryable(),
            Self::Consume(error) => error.is_retryable(),
            Self::NoCommittedPosition { .. } | Self::AheadOfEnd { .. } | Self::NotOwned { .. } | Self::Closed => false,
        }
    }
}
