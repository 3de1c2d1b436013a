//! What the control thread and the shards say to each other, over bounded channels: small messages, each with its own
//! way to answer. Nothing here is shared after it was sent but `Metadata`, which never changes.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use corelane_log::PartitionStats;
use corelane_log::checkpoint::CheckpointEntry;
use corelane_log::config::{PartitionOptions, TopicConfig};
use corelane_proto::frame::{Method, Status};
use corelane_proto::ids::TopicId;
use corelane_proto::pb;
use tokio::sync::oneshot;

use crate::figures::ShardFigures;

/// The one answer to a message. Works on every executor; whoever asked may be gone.
pub type Answer<T> = oneshot::Sender<T>;

/// A partition's name within this broker.
pub type PartitionKey = (TopicId, u32);

/// A map by ids that this broker or the registry has made up, or by a part of them: an attacker has no hold on the keys that
/// are in it, so the hash need not be a keyed one. Every request looks some of these up.
pub type IdMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// A status other than OK, and what a response carries with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The status.
    pub status: Status,
    /// The rest of it.
    pub error: Box<pb::Error>,
}

impl Failure {
    /// A failure with a sentence that says what to do.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, error: Box::new(pb::Error { message: message.into(), ..Default::default() }) }
    }
}

/// What clients are told about the cluster; replaced whole when something changes.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// The cluster's lasting id.
    pub cluster_id: String,
    /// The kind of registry: "embedded" or "etcd".
    pub registry: &'static str,
    /// All brokers.
    pub brokers: Vec<pb::Broker>,
    /// All topics, by name.
    pub topics: BTreeMap<String, Arc<pb::Topic>>,
    /// The same topics, by id: what a shard serves by. A partition that is not told here is not served yet.
    pub by_id: IdMap<TopicId, Arc<pb::Topic>>,
    /// Why this broker takes no publishes any more, if it does not: the registry knows another one in its place.
    pub displaced: Option<Arc<str>>,
}

/// A partition that a shard shall open.
#[derive(Debug)]
pub struct OpenPartition {
    /// The topic's directory.
    pub topic_dir: PathBuf,
    /// The partition, as the registry and the identity file have it.
    pub options: PartitionOptions,
    /// What the checkpoints say of it.
    pub floor: Option<CheckpointEntry>,
    /// Whether the last stop was orderly.
    pub is_clean: bool,
}

/// How a partition came up.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Which.
    pub partition: PartitionKey,
    /// Why it does not serve, if it does not.
    pub refused: Option<String>,
    /// Whether that was for want of room on the disk only.
    pub is_no_space: bool,
}

/// To a shard, from the control thread.
#[derive(Debug)]
pub enum ToShard {
    /// Open these partitions, a few at a time. One that cannot be opened is refused, the others serve.
    Open {
        /// Which.
        partitions: Vec<OpenPartition>,
        /// All of them, opened or refused.
        answer: Answer<Vec<Opened>>,
    },
    /// Make a partition in a topic directory that exists, and serve it.
    Create {
        /// The topic's directory.
        topic_dir: PathBuf,
        /// The partition.
        options: PartitionOptions,
        /// After its directory is durable.
        answer: Answer<Result<(), Failure>>,
    },
    /// Serve a partition no longer, with this reason: its directory does not belong to what the registry says.
    Refuse {
        /// Which.
        partition: PartitionKey,
        /// Why, for whoever asks for it.
        reason: String,
    },
    /// A topic's configuration has changed.
    Configure {
        /// The topic.
        topic_id: TopicId,
        /// All of it.
        config: TopicConfig,
    },
    /// Let go of the shard's partitions of a topic: waits end, new requests are refused. Their directory goes as a whole,
    /// which is the control thread's business.
    Delete {
        /// The topic.
        topic_id: TopicId,
        /// When nothing of them is open any more.
        answer: Answer<()>,
    },
    /// What clients are told from now on.
    Metadata(Arc<Metadata>),
    /// The state of a topic's partitions on this shard.
    Describe {
        /// The topic.
        topic_id: TopicId,
        /// Those that serve.
        answer: Answer<Vec<PartitionReport>>,
    },
    /// The shard's figures.
    Figures {
        /// The figures.
        answer: Answer<ShardFigures>,
    },
    /// Accept connections from now on.
    Serve,
    /// Stop in order: accept no more, flush, checkpoint, end.
    Stop {
        /// When everything is flushed: whether every partition stopped clean.
        answer: Answer<bool>,
    },
}

/// One partition's state.
#[derive(Clone, Debug)]
pub struct PartitionReport {
    /// Its number.
    pub partition: u32,
    /// What it holds.
    pub detail: pb::PartitionDetail,
    /// Why it takes no publishes, if it does not.
    pub closed: Option<String>,
    /// Its counters.
    pub stats: PartitionStats,
}

/// To the control thread, from a shard, on behalf of a client.
#[derive(Debug)]
pub enum ToControl {
    /// Create a topic.
    CreateTopic {
        /// As the client sent it.
        request: pb::CreateTopicRequest,
        /// When its partitions serve.
        answer: Answer<Result<pb::CreateTopicResponse, Failure>>,
    },
    /// Change a topic's configuration.
    AlterTopic {
        /// As the client sent it.
        request: pb::AlterTopicRequest,
        /// When it is in force.
        answer: Answer<Result<pb::AlterTopicResponse, Failure>>,
    },
    /// Add partitions to a topic.
    AddPartitions {
        /// As the client sent it.
        request: pb::AddPartitionsRequest,
        /// When they serve.
        answer: Answer<Result<pb::AddPartitionsResponse, Failure>>,
    },
    /// Begin a partition's log anew.
    AcceptLoss {
        /// As the client sent it.
        request: pb::AcceptLossRequest,
        /// When the registry knows.
        answer: Answer<Result<pb::AcceptLossResponse, Failure>>,
    },
    /// Forget a broker.
    ForgetBroker {
        /// As the client sent it.
        request: pb::ForgetBrokerRequest,
        /// When it is forgotten.
        answer: Answer<Result<pb::ForgetBrokerResponse, Failure>>,
    },
    /// Delete a topic.
    DeleteTopic {
        /// As the client sent it.
        request: pb::DeleteTopicRequest,
        /// When it is gone.
        answer: Answer<Result<pb::DeleteTopicResponse, Failure>>,
    },
    /// Describe a topic, the positions of its partitions included.
    DescribeTopic {
        /// As the client sent it.
        request: pb::DescribeTopicRequest,
        /// What is known.
        answer: Answer<Result<pb::DescribeTopicResponse, Failure>>,
    },
    /// A call of a consumer group.
    Group {
        /// Which.
        method: Method,
        /// The request as the client sent it.
        proto: Vec<u8>,
        /// Where the client connected from.
        host: String,
        /// The encoded response; a heartbeat's comes when there is something to tell.
        answer: Answer<Result<Vec<u8>, Failure>>,
    },
    /// Describe the cluster.
    DescribeCluster {
        /// What is known.
        answer: Answer<Result<pb::DescribeClusterResponse, Failure>>,
    },
}
