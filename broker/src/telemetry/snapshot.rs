//! What the pages tell, gathered once for each that is asked for. Plain data.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use corelane_log::PartitionStats;
use corelane_proto::ids::TopicId;

use super::process::ProcessFigures;
use crate::figures::{ShardFigures, add_stats};

/// A broker at a moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The broker's version.
    pub version: &'static str,
    /// Its number.
    pub broker_id: u32,
    /// The cluster's name.
    pub cluster: String,
    /// The cluster's lasting id.
    pub cluster_id: String,
    /// Since the broker was ready.
    pub uptime: Duration,
    /// Whether it is ready to serve all that it should.
    pub readiness: Readiness,
    /// Every broker that is known.
    pub brokers: Vec<BrokerFigures>,
    /// The registry.
    pub registry: RegistryFigures,
    /// The process, and the disk under its data.
    pub process: ProcessFigures,
    /// Topics' directories that are kept and not served.
    pub directories_set_aside: u64,
    /// Checkpoints that the start could not read.
    pub checkpoints_unreadable: u64,
    /// Each shard that answered.
    pub shards: Vec<ShardFigures>,
    /// Messages that wait for each shard, by its number.
    pub shard_queues: Vec<u64>,
    /// Shards that did not answer in time.
    pub silent_shards: u64,
    /// Every topic.
    pub topics: HashMap<TopicId, TopicFigures>,
    /// The consumer groups.
    pub groups: GroupsFigures,
}

/// Whether the broker is ready, and what else an operator should know.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    /// Why it is not; empty: it is.
    pub reasons: Vec<String>,
    /// What does not keep it from serving.
    pub warnings: Vec<String>,
}

/// A broker of the cluster.
#[derive(Clone, Debug, Default)]
pub struct BrokerFigures {
    /// Its number.
    pub id: u32,
    /// Where clients reach it.
    pub address: String,
    /// Its shards.
    pub shards: u32,
    /// Its partitions, as the registry has it.
    pub partitions: u32,
    /// Whether it runs.
    pub is_running: bool,
}

/// The registry, as this broker sees it.
#[derive(Clone, Debug, Default)]
pub struct RegistryFigures {
    /// "embedded" or "etcd".
    pub kind: &'static str,
    /// Whether it answers, and is this cluster's.
    pub is_up: bool,
    /// Whether another broker has taken this one's place, so that it takes no publishes.
    pub is_displaced: bool,
    /// Its revision, as far as it was seen.
    pub revision: u64,
    /// What the log says that an operator should change about it.
    pub warnings: u64,
}

/// A topic.
#[derive(Clone, Debug, Default)]
pub struct TopicFigures {
    /// Its name.
    pub name: String,
    /// Its partitions, on whichever brokers.
    pub partitions: u64,
}

/// The consumer groups, as this broker sees them.
#[derive(Clone, Debug, Default)]
pub struct GroupsFigures {
    /// Each group.
    pub groups: Vec<GroupFigures>,
    /// Calls under way here.
    pub calls: u64,
    /// Positions that wait to be committed here.
    pub commits_waiting: u64,
    /// How far each group is behind in each topic, in the partitions that this broker serves.
    pub lags: BTreeMap<(String, String), LagFigures>,
    /// How old the positions are that this was computed from; none: they were not read yet.
    pub positions_age: Option<Duration>,
    /// Whether there were too many positions to look at all of them.
    pub is_partial: bool,
}

/// A consumer group.
#[derive(Clone, Debug, Default)]
pub struct GroupFigures {
    /// Its name.
    pub name: String,
    /// Its members.
    pub members: u64,
    /// Partitions that its members shall own.
    pub partitions: u64,
    /// Those of them that nobody owns now.
    pub unowned: u64,
    /// The number of the last assignment.
    pub generation: u64,
}

/// How far a group is behind in a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LagFigures {
    /// Bytes between its committed positions and the visible ends.
    pub bytes: u64,
    /// Partitions that were counted.
    pub partitions: u64,
}

impl Snapshot {
    /// What this broker's partitions of each topic have and have counted, their number, and the bytes sent of them.
    pub fn by_topic(&self) -> HashMap<TopicId, (PartitionStats, u64, u64)> {
        let mut by_topic = HashMap::<TopicId, (PartitionStats, u64, u64)>::new();
        for partition in self.shards.iter().flat_map(|shard| &shard.partitions) {
            let (stats, count, fetched_bytes) = by_topic.entry(partition.topic_id).or_default();
            add_stats(stats, &partition.stats);
            *count += 1;
            *fetched_bytes += partition.fetched_bytes;
        }
        by_topic
    }

    /// A topic's name; its id where it is being deleted.
    pub fn topic_name(&self, id: TopicId) -> String {
        self.topics.get(&id).map_or_else(|| id.to_string(), |topic| topic.name.clone())
    }
}
