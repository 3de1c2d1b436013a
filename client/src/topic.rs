//! Topics, partitions and brokers as the cluster describes them, and what a topic can be created with.

use std::time::Duration;

use corelane_proto::pb;

pub use corelane_proto::ids::TopicId;

/// A topic's settings. A setting that is `None` takes the broker's default at creation and stays as it is at an
/// alteration; in what the cluster tells, every setting is present.
///
/// ```
/// use corelane_client::TopicSettings;
/// use std::time::Duration;
/// let settings = TopicSettings::new().retention(Duration::from_secs(3600)).flush_messages(10_000);
/// assert_eq!(settings.retention_ms, Some(3_600_000));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicSettings {
    /// How long messages are kept, in milliseconds; 0: for ever.
    pub retention_ms: Option<u64>,
    /// How many bytes of a partition are kept; 0: no limit.
    pub retention_bytes: Option<u64>,
    /// The size of a segment.
    pub segment_bytes: Option<u64>,
    /// The age at which a segment is closed, in milliseconds.
    pub segment_ms: Option<u64>,
    /// Flush after so many messages; 0: not by count.
    pub flush_messages: Option<u64>,
    /// Flush after so long, in milliseconds; 0: continuously, unless `flush_messages` is set.
    pub flush_interval_ms: Option<u64>,
    /// The largest message.
    pub message_bytes_max: Option<u32>,
    /// The largest message set.
    pub set_bytes_max: Option<u32>,
}

impl TopicSettings {
    /// No setting at all: the broker's defaults, or no change.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long messages are kept; zero: for ever.
    pub fn retention(mut self, age: Duration) -> Self {
        self.retention_ms = Some(millis(age));
        self
    }

    /// How many bytes of each partition are kept; 0: no limit.
    pub fn retention_bytes(mut self, bytes: u64) -> Self {
        self.retention_bytes = Some(bytes);
        self
    }

    /// The size of a segment.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = Some(bytes);
        self
    }

    /// The age at which a segment is closed.
    pub fn segment_age(mut self, age: Duration) -> Self {
        self.segment_ms = Some(millis(age));
        self
    }

    /// Flush after so many messages; 0: not by count.
    pub fn flush_messages(mut self, messages: u64) -> Self {
        self.flush_messages = Some(messages);
        self
    }

    /// Flush after so long; zero: continuously, unless `flush_messages` is set.
    pub fn flush_interval(mut self, interval: Duration) -> Self {
        self.flush_interval_ms = Some(millis(interval));
        self
    }

    /// The largest message that the topic takes.
    pub fn message_bytes_max(mut self, bytes: u32) -> Self {
        self.message_bytes_max = Some(bytes);
        self
    }

    /// The largest message set that the topic takes.
    pub fn set_bytes_max(mut self, bytes: u32) -> Self {
        self.set_bytes_max = Some(bytes);
        self
    }
}

/// A topic to create; see [`Admin::create_topic`](crate::Admin::create_topic).
#[derive(Debug, Clone)]
pub struct NewTopic {
    pub(crate) name: String,
    pub(crate) partitions: u32,
    pub(crate) settings: TopicSettings,
    pub(crate) if_not_exists: bool,
    pub(crate) starts: Vec<u64>,
    pub(crate) copy_of: Vec<String>,
}

impl NewTopic {
    /// A topic of one partition with the broker's default settings.
    pub fn named(name: impl Into<String>) -> Self {
        let settings = TopicSettings::default();
        let name = name.into();
        Self { name, partitions: 1, settings, if_not_exists: false, starts: Vec::new(), copy_of: Vec::new() }
    }

    /// How many partitions (default 1).
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// The topic's settings.
    pub fn settings(mut self, settings: TopicSettings) -> Self {
        self.settings = settings;
        self
    }

    /// A topic of this name and partition count that exists already is a success.
    pub fn if_not_exists(mut self, yes: bool) -> Self {
        self.if_not_exists = yes;
        self
    }

    /// Where the log of each partition begins (default: all at 0): for a copy of a topic whose oldest messages are gone. A
    /// topic that exists already keeps the starts that it has.
    pub fn starts(mut self, positions: Vec<u64>) -> Self {
        self.starts = positions;
        self
    }

    /// What the topic is to be an exact copy of, position by position: `CLUSTER/TOPIC/TOPIC-ID` for each step, the first
    /// original first (default: of nothing; 16 at most). The cluster keeps it and tells it ([`TopicInfo::copy_of`]), so that
    /// no mirror takes the copy back to where it came from. A topic that exists already keeps what it has.
    pub fn copy_of(mut self, steps: Vec<String>) -> Self {
        self.copy_of = steps;
        self
    }
}

/// What became of a creation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CreatedTopic {
    /// The topic, made now or before.
    pub topic: TopicInfo,
    /// Whether this call made it.
    pub created: bool,
}

/// A topic as the cluster knows it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TopicInfo {
    /// Its name.
    pub name: String,
    /// Its lasting random id: a topic that is deleted and created again has another one.
    pub topic_id: TopicId,
    /// Its settings, all present.
    pub settings: TopicSettings,
    /// Its partitions, in order from 0.
    pub partitions: Vec<PartitionInfo>,
    /// What it was made to be an exact copy of, the first original first; see [`NewTopic::copy_of`].
    pub copy_of: Vec<String>,
}

/// Where a partition is served.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PartitionInfo {
    /// Its number.
    pub partition: u32,
    /// The broker that serves it.
    pub broker_id: u32,
    /// The shard inside that broker.
    pub shard: u32,
    /// Which life of its log this is; positions of different epochs cannot be compared.
    pub epoch: u32,
    /// Whether it serves.
    pub state: PartitionState,
    /// Why it does not serve as it should; empty when it does.
    pub reason: String,
}

/// Whether a partition serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartitionState {
    /// The broker did not say.
    Unknown,
    /// It takes and gives messages.
    Serving,
    /// It gives messages but takes none.
    ClosedForWrites,
    /// It could not be opened.
    Refused,
    /// It is being opened.
    Opening,
}

impl PartitionState {
    /// A word for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Serving => "serving",
            Self::ClosedForWrites => "closed for writes",
            Self::Refused => "refused",
            Self::Opening => "opening",
        }
    }
}

/// A topic with the state of its partitions' logs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TopicDescription {
    /// The topic.
    pub topic: TopicInfo,
    /// The partitions that answered.
    pub details: Vec<PartitionDetail>,
}

/// The state of a partition's log.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PartitionDetail {
    /// The partition.
    pub partition: u32,
    /// The oldest position retained.
    pub start: u64,
    /// What consumers may read ends here.
    pub visible_end: u64,
    /// What is on stable storage ends here.
    pub durable_end: u64,
    /// The id that the next message will get.
    pub end: u64,
    /// How many segment files there are.
    pub segments: u64,
    /// The space taken on disk, what is allocated ahead included.
    pub bytes_on_disk: u64,
    /// Damaged messages found since the broker started.
    pub bad_messages: u64,
}

/// A broker as the cluster knows it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BrokerInfo {
    /// Its number in the cluster.
    pub broker_id: u32,
    /// Where it listens.
    pub host: String,
    /// The port that it listens on.
    pub port: u16,
    /// How many shards it runs.
    pub shards: u32,
    /// Whether it is up.
    pub alive: bool,
    /// Its version.
    pub version: String,
}

/// A partition whose log begins anew, its loss having been accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcceptedLoss {
    /// The life of its log that begins.
    pub epoch: u32,
    /// The broker that holds it now.
    pub broker_id: u32,
}

/// A broker that was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForgottenBroker {
    /// Whether the cluster knew it until now.
    pub was_known: bool,
    /// Deleted topics whose data on it counts as deleted now.
    pub tombstones: u32,
    /// Partitions that count as its own until their loss is accepted.
    pub partitions: u32,
}

/// The cluster at a glance.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClusterDescription {
    /// The cluster's lasting id.
    pub cluster_id: String,
    /// What the brokers agree through: `embedded` or `etcd`.
    pub registry: String,
    /// The brokers.
    pub brokers: Vec<BrokerInfo>,
    /// How many topics there are.
    pub topics: u32,
    /// How many partitions there are.
    pub partitions: u32,
}

/// What to look for in a partition; see [`Admin::find`](crate::Admin::find).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Find {
    /// The oldest message retained.
    Earliest,
    /// The visible end: where the next visible message will begin.
    Latest,
    /// The message that contains this position.
    Containing(u64),
    /// The first message whose timestamp (milliseconds since the Unix epoch) is at or after this; if there is none, the
    /// visible end.
    TimeMs(i64),
    /// The place from which at least so many visible messages follow; all, if there are fewer.
    LastMessages(u64),
    /// Where to go on after a bad message at this position.
    GoodAfter(u64),
}

/// The answer to a [`Find`], with the bounds of the partition's log at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// What was looked for.
    pub position: u64,
    /// The oldest position retained.
    pub start: u64,
    /// What consumers may read ends here.
    pub visible_end: u64,
    /// The id that the next message will get.
    pub end: u64,
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

// ---- From and to the protocol's messages ---------------------------------------------------------------------------

impl TopicSettings {
    pub(crate) fn to_pb(&self) -> pb::TopicConfig {
        pb::TopicConfig {
            retention_ms: self.retention_ms,
            retention_bytes: self.retention_bytes,
            segment_bytes: self.segment_bytes,
            segment_ms: self.segment_ms,
            flush_messages: self.flush_messages,
            flush_interval_ms: self.flush_interval_ms,
            message_bytes_max: self.message_bytes_max,
            set_bytes_max: self.set_bytes_max,
        }
    }

    fn from_pb(config: pb::TopicConfig) -> Self {
        Self {
            retention_ms: config.retention_ms,
            retention_bytes: config.retention_bytes,
            segment_bytes: config.segment_bytes,
            segment_ms: config.segment_ms,
            flush_messages: config.flush_messages,
            flush_interval_ms: config.flush_interval_ms,
            message_bytes_max: config.message_bytes_max,
            set_bytes_max: config.set_bytes_max,
        }
    }
}

impl TopicInfo {
    /// `None`: the topic id is not 16 bytes.
    pub(crate) fn from_pb(topic: pb::Topic) -> Option<Self> {
        Some(Self {
            topic_id: TopicId::try_from(&topic.topic_id[..]).ok()?,
            name: topic.name,
            settings: TopicSettings::from_pb(topic.config.unwrap_or_default()),
            partitions: topic.partitions.into_iter().map(PartitionInfo::from_pb).collect(),
            copy_of: topic.copy_of,
        })
    }
}

impl PartitionInfo {
    fn from_pb(partition: pb::Partition) -> Self {
        let state = match partition.state() {
            pb::PartitionState::Unknown => PartitionState::Unknown,
            pb::PartitionState::Serving => PartitionState::Serving,
            pb::PartitionState::ClosedForWrites => PartitionState::ClosedForWrites,
            pb::PartitionState::Refused => PartitionState::Refused,
            pb::PartitionState::Opening => PartitionState::Opening,
        };
        Self {
            partition: partition.partition,
            broker_id: partition.broker_id,
            shard: partition.shard,
            epoch: partition.epoch,
            state,
            reason: partition.reason,
        }
    }
}

impl PartitionDetail {
    pub(crate) fn from_pb(detail: &pb::PartitionDetail) -> Self {
        Self {
            partition: detail.partition,
            start: detail.start,
            visible_end: detail.visible_end,
            durable_end: detail.durable_end,
            end: detail.end,
            segments: detail.segments,
            bytes_on_disk: detail.bytes_on_disk,
            bad_messages: detail.bad_messages,
        }
    }
}

impl BrokerInfo {
    pub(crate) fn from_pb(broker: pb::Broker) -> Self {
        Self {
            broker_id: broker.broker_id,
            host: broker.host,
            port: broker.port as u16,
            shards: broker.shards,
            alive: broker.alive,
            version: broker.version,
        }
    }
}

impl Find {
    pub(crate) fn to_pb(self) -> pb::find_message_request::Target {
        use pb::find_message_request::Target;
        match self {
            Self::Earliest => Target::Earliest(true),
            Self::Latest => Target::Latest(true),
            Self::Containing(position) => Target::Containing(position),
            Self::TimeMs(time) => Target::TimeMs(time),
            Self::LastMessages(messages) => Target::LastMessages(messages),
            Self::GoodAfter(position) => Target::GoodAfter(position),
        }
    }
}

impl Found {
    pub(crate) fn from_pb(found: pb::FindMessageResponse) -> Self {
        Self { position: found.id, start: found.start, visible_end: found.visible_end, end: found.end }
    }
}
