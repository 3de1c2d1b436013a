//! What a consumer's stream can report. After an error the stream goes on with the next call unless its partition ended.

use super::message::Source;
use crate::error::CallError;

/// An error in a consumer's stream.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumeError {
    /// The position lies outside what the partition retains, and the policy is to fail. The partition rests until it
    /// is sought to another position.
    #[error("position {position} of {topic}/{partition} is out of range, what is retained is {start} to {visible_end}")]
    OutOfRange {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// The position asked for.
        position: u64,
        /// The oldest position retained.
        start: u64,
        /// What consumers may read ends here.
        visible_end: u64,
    },
    /// The partition's log began again (an operator accepted the loss of its data), and the policy is to fail. The
    /// partition rests until it is sought to another position.
    #[error("the log of {topic}/{partition} began again: epoch {epoch} follows {expected}")]
    NewEpoch {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// The epoch that was read so far.
        expected: u32,
        /// The epoch of now.
        epoch: u32,
    },
    /// The topic was deleted; this partition is not read any more.
    #[error("topic {topic:?} was deleted")]
    TopicDeleted {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
    },
    /// A message is of a version of the format that this program does not know; a newer one reads it. It is no damage and
    /// is not skipped: the partition rests until it is sought to another position.
    #[error(
        "the message at {position} of {topic}/{partition} is of format version {version}, which this program does not \
         know: use a newer one, or go on behind it, at {next_position}"
    )]
    NewerVersion {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// The message's id.
        position: u64,
        /// Where the next good message begins.
        next_position: u64,
        /// The version.
        version: u8,
    },
    /// A compressed set cannot be unpacked though its CRC is right (an unknown codec, a claim that is not kept). It is
    /// skipped.
    #[error("the compressed set at {position} of {topic}/{partition} cannot be unpacked: {reason}")]
    Undecodable {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// The wrapper's id.
        position: u64,
        /// What is wrong.
        reason: String,
    },
    /// A partition's broker could not be reached, or refused, for longer than the client's time-out. If that may pass the
    /// consumer goes on trying, and the error comes again while it lasts.
    #[error("{topic}/{partition} cannot be read: {cause}")]
    Unavailable {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// What keeps the consumer from reading.
        #[source]
        cause: CallError,
    },
}

impl ConsumeError {
    pub(super) fn unavailable(source: &Source, cause: CallError) -> Self {
        Self::Unavailable { topic: source.topic.to_string(), partition: source.partition, cause }
    }

    /// Whether the stream goes on by itself.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { cause, .. } => cause.is_retryable(),
            Self::Undecodable { .. } => true,
            Self::OutOfRange { .. } | Self::NewEpoch { .. } | Self::TopicDeleted { .. } | Self::NewerVersion { .. } => {
                false
            }
        }
    }
}
