//! What can go wrong when a message is handed over, and what can become of it afterwards.

use crate::error::{CallError, Refusal, plural};

/// Why the producer did not take a message. The message was not published and is counted nowhere.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message alone is larger than the topic allows.
    #[error("the message has {bytes} bytes, the limit of topic {topic:?} is {limit}")]
    TooLarge {
        /// The topic.
        topic: String,
        /// The size of the message, its frame included.
        bytes: usize,
        /// The topic's limit.
        limit: usize,
    },
    /// A part of the message breaks a rule of the format.
    #[error("{reason}")]
    Invalid {
        /// Which rule.
        reason: String,
    },
    /// The topic has no such partition.
    #[error("topic {topic:?} has {partitions} partition{}, so there is no partition {partition}", plural(*partitions))]
    NoSuchPartition {
        /// The topic.
        topic: String,
        /// The partition asked for.
        partition: u32,
        /// How many there are.
        partitions: u32,
    },
    /// The topic cannot be looked up.
    #[error("topic {topic:?} cannot be looked up: {cause}")]
    Topic {
        /// The topic.
        topic: String,
        /// Why.
        #[source]
        cause: CallError,
    },
    /// The producer is closed.
    #[error("the producer is closed")]
    Closed,
}

impl SendError {
    /// Whether the same message may be taken later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Topic { cause, .. } if cause.is_retryable() || matches!(cause, CallError::UnknownTopic { .. }))
    }
}

/// Why [`Producer::try_send`](crate::Producer::try_send), `try_post` or `post_many` did not take a message.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// `buffer_bytes` are waiting to be sent or acknowledged already.
    #[error("the producer's buffer is full")]
    Full,
    /// The topic is being looked up: try again, or await [`Producer::prepare`](crate::Producer::prepare) first.
    #[error("the topic is being looked up")]
    NotReady,
    /// The message cannot be taken.
    #[error(transparent)]
    Rejected(#[from] SendError),
}

impl TrySendError {
    /// Whether the same message may be taken later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Full | Self::NotReady => true,
            Self::Rejected(error) => error.is_retryable(),
        }
    }
}

/// Why a message that the producer had taken was not acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DeliveryError {
    /// The delivery time-out passed. The message may have been published all the same if it was under way.
    #[error("not acknowledged in time{}", cause_suffix(cause.as_deref()))]
    TimedOut {
        /// The last obstacle met.
        cause: Option<std::sync::Arc<str>>,
    },
    /// The broker refused it for good.
    #[error("{0}")]
    Refused(#[source] std::sync::Arc<Refusal>),
    /// With `Acks::None` nothing is sent twice: the connection broke while the message was being written.
    #[error("the connection broke while it was being sent")]
    Lost,
    /// The set could not be made.
    #[error("the set could not be encoded: {0}")]
    Encoding(std::sync::Arc<str>),
    /// The topic went away.
    #[error("the topic was deleted")]
    TopicDeleted,
    /// The producer was closed before the message was acknowledged.
    #[error("the producer was closed first")]
    Closed,
}

fn cause_suffix(cause: Option<&str>) -> String {
    cause.map(|cause| format!(": {cause}")).unwrap_or_default()
}

impl DeliveryError {
    /// Whether publishing the message again may succeed. It may then be there twice, and after later ones.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::Lost | Self::Closed => true,
            Self::Refused(refusal) => refusal.is_retryable(),
            Self::Encoding(_) | Self::TopicDeleted => false,
        }
    }
}
