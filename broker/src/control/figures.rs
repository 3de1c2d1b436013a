//! Gathers what the pages tell: the shards are asked, the rest is known here. Nothing is kept but the groups' positions.

use std::collections::{BTreeMap, HashMap, HashSet};

use corelane_proto::pb;

use super::{Control, others};
use crate::figures::{PartitionFigures, ShardFigures};
use crate::messages::{PartitionKey, ToShard};
use crate::registry::groups::admin::GroupPosition;
use crate::registry::store::Store;
use crate::telemetry::process::ProcessFigures;
use crate::telemetry::snapshot::{BrokerFigures, LagFigures, Readiness, RegistryFigures, Snapshot, TopicFigures};

impl<S: Store> Control<S> {
    /// Everything.
    pub(super) async fn snapshot(&self) -> Snapshot {
        let shard_queues = self.shards.iter().map(|shard| shard.len() as u64).collect();
        let shards = self.shard_figures().await;
        let (mut groups, positions) = self.groups.figures().await;
        let readiness = self.readiness_by(&shards);
        let (view, standing) = (self.view.borrow(), self.standing.borrow());
        let topics: HashMap<_, _> = view
            .topics
            .iter()
            .map(|(name, topic)| {
                let (name, partitions) = (name.as_str().to_owned(), u64::from(topic.record.partitions));
                (topic.record.topic_id, TopicFigures { name, partitions })
            })
            .collect();
        groups.lags = lags(&positions, &shards, &topics);
        // Of one that was deleted since they were read nothing is told.
        let known: HashSet<&String> = groups.groups.iter().map(|group| &group.name).collect();
        groups.lags.retain(|(group, _), _| known.contains(group));
        Snapshot {
            version: env!("CARGO_PKG_VERSION"),
            broker_id: self.broker_id,
            cluster: self.config.cluster.clone(),
            cluster_id: self.cluster_id.clone(),
            uptime: self.since.elapsed(),
            readiness,
            brokers: self.broker_figures(),
            registry: RegistryFigures {
                kind: self.metadata.borrow().registry,
                is_up: standing.away.is_none() && standing.failing.is_none(),
                is_displaced: standing.displaced.is_some(),
                revision: view.revision,
                warnings: standing.warnings.len() as u64,
            },
            process: ProcessFigures::read(&self.config.data),
            directories_set_aside: self.directories_set_aside().0,
            checkpoints_unreadable: self.floors.unreadable.len() as u64,
            silent_shards: (self.shards.len() - shards.len()) as u64,
            shard_queues,
            shards,
            topics,
            groups,
        }
    }

    async fn shard_figures(&self) -> Vec<ShardFigures> {
        self.ask_shards(|answer| ToShard::Figures { answer }).await
    }

    fn broker_figures(&self) -> Vec<BrokerFigures> {
        let view = self.view.borrow();
        let mut partitions = HashMap::<u32, u32>::new();
        for partition in view.partitions.values().flat_map(BTreeMap::values) {
            *partitions.entry(partition.record.leader).or_default() += 1;
        }
        let brokers = view.brokers.iter().map(|(id, record)| BrokerFigures {
            id: *id,
            address: record.listeners.first().map_or_else(String::new, |at| format!("{}:{}", at.host, at.port)),
            shards: record.shards,
            partitions: partitions.get(id).copied().unwrap_or(0),
            is_running: view.alive.contains_key(id),
        });
        brokers.collect()
    }

    /// Whether the broker is ready to serve all that it should, and what else an operator should know. A registry that is
    /// away is none of its faults: what is known is served, and every broker would be found unready at once.
    pub(super) async fn readiness(&self) -> Readiness {
        self.readiness_by(&self.shard_figures().await)
    }

    fn readiness_by(&self, shards: &[ShardFigures]) -> Readiness {
        let standing = self.standing.borrow();
        let away = standing.away.as_ref().map(|reason| format!("the registry is not used now: {reason}"));
        let failing =
            || standing.failing.as_ref().map(|reason| format!("the registry does not do what it is asked: {reason}"));
        let told = away.or_else(failing).into_iter();
        let mut warnings: Vec<String> = told.chain(standing.warnings.iter().cloned()).collect();
        // Who runs is not known while the registry does not say.
        if standing.away.is_none() && standing.failing.is_none() {
            warnings.extend(others::missing(&self.broker_figures(), self.broker_id));
        }
        warnings.extend(self.directories_set_aside().1);
        warnings.extend(full_disk(shards));
        let mut reasons: Vec<String> = standing.displaced.iter().cloned().collect();
        for shard in 0..self.shards.len() as u32 {
            if !shards.iter().any(|figures| figures.shard == shard) {
                reasons.push(format!("shard {shard} does not answer"));
            }
        }
        let metadata = self.metadata.borrow();
        for topic in metadata.topics.values() {
            for partition in topic.partitions.iter().filter(|partition| partition.broker_id == self.broker_id) {
                if partition.state() != pb::PartitionState::Serving {
                    let state = partition.state().as_str_name().trim_start_matches("PARTITION_STATE_").to_lowercase();
                    let reason = if partition.reason.is_empty() { &state } else { &partition.reason };
                    reasons.push(format!("{}/{}: {reason}", topic.name, partition.partition));
                }
            }
        }
        for partition in shards.iter().flat_map(|shard| &shard.partitions).filter(|partition| partition.is_closed) {
            if let Some(topic) = metadata.by_id.get(&partition.topic_id) {
                let (topic, partition) = (&topic.name, partition.partition);
                reasons.push(format!("{topic}/{partition}: takes no publishes until a restart; the log says why"));
            }
        }
        Readiness { reasons, warnings }
    }
}

/// What there is to say of partitions that have no room.
fn full_disk(shards: &[ShardFigures]) -> Option<String> {
    let full = shards.iter().flat_map(|shard| &shard.partitions).filter(|partition| partition.lacks_space).count();
    let partitions = if full == 1 { "1 partition takes" } else { &format!("{full} partitions take") };
    let remedy = "give topics a shorter retention, trim or delete some, or make the disk larger";
    (full > 0).then(|| format!("the disk is full: {partitions} no publishes until there is room; {remedy}"))
}

/// How far each group is behind in each topic that exists, in the partitions that are served here. Positions of an earlier
/// life of a log mean nothing in it: all of it is ahead of them.
fn lags(
    positions: &[GroupPosition],
    shards: &[ShardFigures],
    topics: &HashMap<corelane_proto::ids::TopicId, TopicFigures>,
) -> BTreeMap<(String, String), LagFigures> {
    let mut lags = BTreeMap::<(String, String), LagFigures>::new();
    if positions.is_empty() {
        return lags;
    }
    let here: HashMap<PartitionKey, &PartitionFigures> = shards
        .iter()
        .flat_map(|shard| &shard.partitions)
        .map(|partition| ((partition.topic_id, partition.partition), partition))
        .collect();
    for GroupPosition { group, partition, epoch, position } in positions {
        let (Some(figures), Some(topic)) = (here.get(partition), topics.get(&partition.0)) else { continue };
        let bounds = &figures.bounds;
        let from = if *epoch == bounds.epoch { (*position).max(bounds.start) } else { bounds.start };
        let lag = lags.entry((group.clone(), topic.name.clone())).or_default();
        lag.bytes += bounds.visible_end.0.saturating_sub(from.0);
        lag.partitions += 1;
    }
    lags
}

#[cfg(test)]
mod tests {
    use corelane_log::{Bounds, PartitionStats};
    use corelane_proto::ids::{Epoch, Position, TopicId};

    use super::*;

    #[test]
    fn a_lag_is_what_is_visible_and_not_committed_in_the_partitions_here() {
        let id = |byte| TopicId([byte; 16]);
        let served = |partition, start, end| PartitionFigures {
            topic_id: id(1),
            partition,
            bounds: Bounds {
                start: Position(start),
                visible_end: Position(end),
                durable_end: Position(end),
                end: Position(end + 7),
                epoch: Epoch(2),
            },
            is_closed: false,
            lacks_space: false,
            fetched_bytes: 0,
            stats: PartitionStats::default(),
        };
        let shards = [
            ShardFigures { partitions: vec![served(0, 0, 1_000)], ..ShardFigures::default() },
            ShardFigures { partitions: vec![served(1, 300, 500), served(2, 10, 20)], ..ShardFigures::default() },
        ];
        let topics = HashMap::from([(id(1), TopicFigures { name: "views".to_owned(), partitions: 4 })]);
        let at = |group: &str, topic, partition, epoch, position| GroupPosition {
            group: group.to_owned(),
            partition: (id(topic), partition),
            epoch: Epoch(epoch),
            position: Position(position),
        };
        let lag = |positions: &[GroupPosition]| {
            let lags = lags(positions, &shards, &topics);
            lags.into_iter().map(|((group, _), lag)| (group, lag.bytes, lag.partitions)).collect::<Vec<_>>()
        };
        assert_eq!(lag(&[at("a", 1, 0, 2, 400), at("b", 1, 0, 2, 1_000)]), [("a".into(), 600, 1), ("b".into(), 0, 1)]);
        assert_eq!(lag(&[at("a", 1, 0, 2, 400), at("a", 1, 1, 2, 450)]), [("a".into(), 650, 2)]);
        assert_eq!(lag(&[at("a", 1, 1, 2, 100)]), [("a".into(), 200, 1)], "what retention took is not behind");
        assert_eq!(lag(&[at("a", 1, 2, 1, 900)]), [("a".into(), 10, 1)], "the log began anew");
        assert_eq!(lag(&[at("a", 1, 3, 2, 0), at("a", 9, 0, 2, 0)]), [], "elsewhere, or no more");
    }
}
