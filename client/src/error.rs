//! What can go wrong between the client and the brokers. Each error names the address and the cause, and says whether
//! trying again can help. Errors are cheap to clone, because one cause may belong to many messages.

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use corelane_proto::frame::Status;

/// Why one address could not be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{address}: {cause}")]
pub struct ConnectError {
    /// The address as it was configured, or as the cluster told it.
    pub address: String,
    /// What happened there.
    #[source]
    pub cause: ConnectCause,
}

/// The cause inside a [`ConnectError`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectCause {
    /// The host name has no address.
    #[error("the name cannot be resolved: {0}")]
    UnknownName(#[source] Arc<io::Error>),
    /// The connection was refused or broke.
    #[error("{0}")]
    Io(#[source] Arc<io::Error>),
    /// Nothing answered in time.
    #[error("no answer within {} ms", after.as_millis())]
    TimedOut {
        /// How long the client waited.
        after: Duration,
    },
    /// Something answered, but it does not speak this protocol.
    #[error("this is not a Corelane broker: {detail}")]
    NotCorelane {
        /// What was received instead.
        detail: String,
    },
    /// The broker answered the greeting with a refusal.
    #[error("{0}")]
    Refused(#[source] Box<Refusal>),
    /// A broker of another cluster answered.
    #[error("belongs to the cluster {found}, not to {expected}")]
    OtherCluster {
        /// The cluster that the client is connected to.
        expected: String,
        /// The cluster that this broker belongs to.
        found: String,
    },
}

impl ConnectError {
    /// Whether trying again later can help.
    pub fn is_retryable(&self) -> bool {
        match &self.cause {
            ConnectCause::UnknownName(_) | ConnectCause::Io(_) | ConnectCause::TimedOut { .. } => true,
            ConnectCause::NotCorelane { .. } | ConnectCause::OtherCluster { .. } => false,
            ConnectCause::Refused(refusal) => refusal.is_retryable(),
        }
    }
}

/// A broker's answer with another status than OK.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", status.name())]
#[non_exhaustive]
pub struct Refusal {
    /// The status; its name is stable.
    pub status: Status,
    /// The broker's sentence.
    pub message: String,
    /// The oldest position retained, with `OUT_OF_RANGE`.
    pub start: Option<u64>,
    /// The end of the log, with `OUT_OF_RANGE` and `UNEXPECTED_END`.
    pub end: Option<u64>,
    /// The limit in bytes, with `TOO_LARGE`.
    pub limit: Option<u64>,
    /// Which message of the set is bad, from 0, with `INVALID_MESSAGE`.
    pub index: Option<u32>,
    /// The broker that serves the partition, with `NOT_HERE`.
    pub broker_id: Option<u32>,
    /// The shard that serves the partition, with `NOT_HERE`.
    pub shard: Option<u32>,
    /// The offending field, with `INVALID_REQUEST`.
    pub field: Option<String>,
    /// The number expected, with `OUT_OF_SEQUENCE`.
    pub sequence: Option<u64>,
    /// The partition's epoch, with `WRONG_EPOCH`.
    pub epoch: Option<u32>,
}

impl Refusal {
    /// Whether trying again, here or elsewhere, can help.
    pub fn is_retryable(&self) -> bool {
        self.status.retry() != corelane_proto::frame::Retry::No
    }
}

/// Why a call to the cluster (metadata, topics, look-ups) failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No broker could be reached; every address with its cause.
    #[error("no broker can be reached: {}", join(causes))]
    NoBroker {
        /// One entry for each address tried.
        causes: Vec<ConnectError>,
    },
    /// The broker that was to be asked cannot be reached.
    #[error("{} cannot be reached: {}", whom(*broker_id), reasons(causes))]
    Unreachable {
        /// Its id; the largest number: the cluster knows of none that holds the partition.
        broker_id: u32,
        /// One entry for each address tried; none: the cluster has not told where it is.
        causes: Vec<ConnectError>,
    },
    /// A broker was reached and did not answer in time.
    #[error("{address}: no answer to {method} within {} ms", after.as_millis())]
    TimedOut {
        /// The broker.
        address: String,
        /// What was asked.
        method: &'static str,
        /// How long the client waited.
        after: Duration,
    },
    /// The connection broke before the answer.
    #[error("{address}: the connection broke: {cause}")]
    Lost {
        /// The broker.
        address: String,
        /// Why it broke.
        #[source]
        cause: Arc<io::Error>,
    },
    /// The broker refused.
    #[error("{address}: {refusal}")]
    Refused {
        /// The broker.
        address: String,
        /// What it said.
        #[source]
        refusal: Box<Refusal>,
    },
    /// There is no such topic.
    #[error("there is no topic {topic:?}")]
    UnknownTopic {
        /// Its name.
        topic: String,
    },
    /// There is no such group.
    #[error("there is no group {group:?}")]
    UnknownGroup {
        /// Its name.
        group: String,
    },
    /// The topic has no such partition.
    #[error("topic {topic:?} has {partitions} partition{}, so there is no partition {partition}", plural(*partitions))]
    NoSuchPartition {
        /// The topic's name.
        topic: String,
        /// The partition asked for.
        partition: u32,
        /// How many there are.
        partitions: u32,
    },
    /// Nobody serves the partition at the moment.
    #[error("partition {partition} of topic {topic:?} is not served: {reason}")]
    Unavailable {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: u32,
        /// Why, as far as the cluster knows.
        reason: String,
    },
    /// An argument or a setting makes no sense; nothing was sent.
    #[error("{field}: {reason}")]
    Invalid {
        /// The argument or setting.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The broker's answer cannot be understood.
    #[error("{address}: the answer cannot be understood: {detail}")]
    Protocol {
        /// The broker.
        address: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// The `s` of a plural.
pub(crate) fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn join(causes: &[ConnectError]) -> String {
    causes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// What brokers answer for the broker of a partition of which no registry has a record.
const NO_BROKER: u32 = u32::MAX;

fn whom(broker_id: u32) -> String {
    if broker_id == NO_BROKER { "the partition's broker".to_owned() } else { format!("broker {broker_id}") }
}

fn reasons(causes: &[ConnectError]) -> String {
    if causes.is_empty() { "the cluster has not told where it is".to_owned() } else { join(causes) }
}

impl CallError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoBroker { causes } => causes.iter().any(ConnectError::is_retryable),
            Self::Unreachable { causes, .. } => causes.is_empty() || causes.iter().any(ConnectError::is_retryable),
            Self::TimedOut { .. } | Self::Lost { .. } | Self::Unavailable { .. } => true,
            Self::Refused { refusal, .. } => refusal.is_retryable(),
            Self::UnknownTopic { .. }
            | Self::UnknownGroup { .. }
            | Self::NoSuchPartition { .. }
            | Self::Invalid { .. }
            | Self::Protocol { .. }
            | Self::Closed => false,
        }
    }

    /// The broker's refusal, if this is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}
