//! What this broker holds against what the registry says: which topics are to be let go of, which to be changed, which
//! partitions to be made or opened; and what clients are told. Pure: `host` does what is planned here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use corelane_log::config::TopicConfig;
use corelane_proto::ids::{Epoch, TopicId, TopicName};
use corelane_proto::pb;

use super::topic_config;
use crate::messages::Metadata;
use crate::registry::placement::shard_of;
use crate::registry::records::{PartitionRecord, TopicRecord};
use crate::registry::view::View;

/// How a partition of this broker came up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// It serves this life of the log.
    Serving(Epoch),
    /// It does not, and an operator must look.
    Refused(String),
    /// It could not be made; to be tried again.
    Failed(String),
}

/// A topic of which this broker holds partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostedTopic {
    pub(super) name: TopicName,
    /// The partition count that the topic's directory knows.
    pub(super) partition_count: u32,
    pub(super) config: TopicConfig,
    pub(super) partitions: BTreeMap<u32, Served>,
}

/// The topics of which this broker holds partitions.
pub(super) type Hosted = BTreeMap<TopicId, HostedTopic>;

/// A topic with partitions to be made or opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToHost {
    pub(super) name: TopicName,
    pub(super) record: TopicRecord,
    pub(super) partitions: Vec<(u32, PartitionRecord)>,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Held, and no longer in the registry: to be refused, unless there is a tombstone after all.
    pub(super) vanished: Vec<TopicId>,
    /// A tombstone names this broker: its data is to be deleted, and that confirmed.
    pub(super) deleted: Vec<(TopicId, TopicName)>,
    /// The configuration, or the partition count, is another one.
    pub(super) changed: Vec<(TopicId, TopicRecord)>,
    /// Partitions that this broker leads and does not hold yet.
    pub(super) host: Vec<ToHost>,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Compares.
pub(super) fn plan(view: &View, hosted: &Hosted, broker_id: u32) -> Plan {
    let mut plan = Plan::default();
    let known: BTreeMap<TopicId, &TopicName> =
        view.topics.iter().map(|(name, topic)| (topic.record.topic_id, name)).collect();
    for (id, tombstone) in &view.deleted {
        if tombstone.holders.contains(&broker_id) && !known.contains_key(id) {
            plan.deleted.push((*id, tombstone.name.clone()));
        }
    }
    let is_served = |topic: &HostedTopic| topic.partitions.values().any(|p| !matches!(p, Served::Refused(_)));
    plan.vanished = hosted
        .iter()
        .filter(|(id, topic)| !known.contains_key(id) && !view.deleted.contains_key(id) && is_served(topic))
        .map(|(id, _)| *id)
        .collect();
    for (name, topic) in &view.topics {
        let record = &topic.record;
        // Partitions are watched apart: they may be yet to come.
        if !view.is_complete(record) {
            continue;
        }
        let held = hosted.get(&record.topic_id);
        if held.is_some_and(|held| held.config != record.config || held.partition_count != record.partitions) {
            plan.changed.push((record.topic_id, record.clone()));
        }
        let partitions: Vec<_> = view
            .partitions_of(record)
            .filter(|(_, partition)| partition.record.leader == broker_id)
            .filter(|(number, _)| {
                let served = held.and_then(|held| held.partitions.get(number));
                matches!(served, None | Some(Served::Failed(_)))
            })
            .map(|(number, partition)| (number, partition.record.clone()))
            .collect();
        if !partitions.is_empty() {
            plan.host.push(ToHost { name: name.clone(), record: record.clone(), partitions });
        }
    }
    plan
}

/// What clients are told.
pub(super) fn metadata(
    view: &View,
    hosted: &Hosted,
    broker_id: u32,
    cluster_id: &str,
    registry: &'static str,
) -> Metadata {
    let mut metadata = Metadata {
        cluster_id: cluster_id.to_owned(),
        registry,
        brokers: brokers(view),
        topics: BTreeMap::new(),
        by_id: HashMap::new(),
    };
    for (name, topic) in &view.topics {
        let record = &topic.record;
        if !view.is_complete(record) {
            continue;
        }
        let held = hosted.get(&record.topic_id);
        let partitions = view
            .partitions_of(record)
            .map(|(number, partition)| {
                let leader = partition.record.leader;
                let shards = view.brokers.get(&leader).map_or(1, |broker| broker.shards.max(1));
                let served = held.and_then(|held| held.partitions.get(&number));
                let (state, reason, epoch) = if leader == broker_id {
                    state_here(served, partition.record.epoch)
                } else {
                    state_elsewhere(view, leader, partition.record.epoch)
                };
                pb::Partition {
                    partition: number,
                    broker_id: leader,
                    shard: shard_of(record.topic_id, number, shards),
                    epoch: epoch.0,
                    state: state.into(),
                    reason,
                }
            })
            .collect();
        let told = pb::Topic {
            name: name.to_string(),
            topic_id: record.topic_id.to_vec(),
            config: Some(topic_config::to_pb(&record.config)),
            partitions,
        };
        let told = Arc::new(told);
        metadata.topics.insert(name.to_string(), Arc::clone(&told));
        metadata.by_id.insert(record.topic_id, told);
    }
    metadata
}

fn state_here(served: Option<&Served>, epoch: Epoch) -> (pb::PartitionState, String, Epoch) {
    match served {
        None => (pb::PartitionState::Opening, String::new(), epoch),
        Some(Served::Serving(epoch)) => (pb::PartitionState::Serving, String::new(), *epoch),
        Some(Served::Refused(reason) | Served::Failed(reason)) => (pb::PartitionState::Refused, reason.clone(), epoch),
    }
}

fn state_elsewhere(view: &View, leader: u32, epoch: Epoch) -> (pb::PartitionState, String, Epoch) {
    if view.alive.contains_key(&leader) {
        (pb::PartitionState::Serving, String::new(), epoch)
    } else {
        (pb::PartitionState::Unknown, format!("broker {leader}, which holds it, does not run"), epoch)
    }
}

fn brokers(view: &View) -> Vec<pb::Broker> {
    let told = |(id, broker): (&u32, &crate::registry::records::BrokerRecord)| {
        let listener = broker.listeners.first();
        pb::Broker {
            broker_id: *id,
            host: listener.map_or_else(String::new, |listener| listener.host.clone()),
            port: listener.map_or(0, |listener| u32::from(listener.port)),
            shards: broker.shards,
            alive: view.alive.contains_key(id),
            version: broker.version.clone(),
        }
    };
    view.brokers.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use corelane_proto::ids::Position;

    use super::*;
    use crate::registry::records::{AliveRecord, BrokerRecord, ListenerRecord, TombstoneRecord};
    use crate::registry::view::Versioned;

    const ID: TopicId = TopicId([1; 16]);

    fn name() -> TopicName {
        TopicName::new("views").expect("a name")
    }

    fn partition(leader: u32) -> Versioned<PartitionRecord> {
        let record =
            PartitionRecord { replicas: vec![leader], leader, epoch: Epoch(1), made: None, start: Position::ZERO };
        Versioned { record, revision: 1 }
    }

    /// Topic `views` with partitions 0 on broker 1 and 1 on broker 2.
    fn view() -> View {
        let record = TopicRecord { topic_id: ID, partitions: 2, config: TopicConfig::default() };
        let mut view = View::default();
        view.topics.insert(name(), Versioned { record, revision: 1 });
        view.partitions.insert(ID, [(0, partition(1)), (1, partition(2)), (2, partition(1))].into());
        for id in [1, 2] {
            let listener = ListenerRecord {
                name: "default".to_owned(),
                security: "plain".to_owned(),
                host: format!("b{id}"),
                port: 9400,
            };
            let record = BrokerRecord {
                uuid: "u".to_owned(),
                starts: 1,
                listeners: vec![listener],
                shards: 2,
                version: "v".to_owned(),
            };
            view.brokers.insert(id, record);
        }
        view.alive
            .insert(1, AliveRecord { instance: "i".to_owned(), uuid: "u".to_owned(), started_ms: 0, partitions: 0 });
        view
    }

    fn hosted(served: Served) -> Hosted {
        let topic = HostedTopic {
            name: name(),
            partition_count: 2,
            config: TopicConfig::default(),
            partitions: [(0, served)].into(),
        };
        [(ID, topic)].into()
    }

    #[test]
    fn a_broker_hosts_its_own_partitions_that_count_and_no_others() {
        let plan = plan(&view(), &Hosted::new(), 1);
        assert_eq!(plan.host.len(), 1);
        assert_eq!(plan.host[0].partitions.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0]);
        assert!(plan.deleted.is_empty() && plan.vanished.is_empty() && plan.changed.is_empty());
    }

    #[test]
    fn what_is_held_needs_nothing_and_what_failed_is_tried_again() {
        assert!(plan(&view(), &hosted(Served::Serving(Epoch(1))), 1).is_empty());
        assert!(plan(&view(), &hosted(Served::Refused("lost".to_owned())), 1).is_empty());
        assert_eq!(plan(&view(), &hosted(Served::Failed("no space".to_owned())), 1).host.len(), 1);
        assert!(plan(&view(), &Hosted::new(), 3).is_empty());
    }

    #[test]
    fn a_topic_waits_until_all_its_partitions_were_seen() {
        let mut view = view();
        view.partitions.get_mut(&ID).expect("there").remove(&1);
        assert!(plan(&view, &Hosted::new(), 1).is_empty());
        assert!(metadata(&view, &Hosted::new(), 1, "c", "embedded").topics.is_empty());
    }

    #[test]
    fn data_goes_by_a_tombstone_only() {
        let mut view = view();
        view.topics.clear();
        let held = hosted(Served::Serving(Epoch(1)));
        assert_eq!(plan(&view, &held, 1), Plan { vanished: vec![ID], ..Plan::default() });
        view.deleted.insert(ID, TombstoneRecord { name: name(), holders: vec![1] });
        assert_eq!(plan(&view, &held, 1), Plan { deleted: vec![(ID, name())], ..Plan::default() });
        assert_eq!(plan(&view, &Hosted::new(), 1).deleted.len(), 1, "also when it is not open");
        view.deleted.insert(ID, TombstoneRecord { name: name(), holders: vec![2] });
        assert!(plan(&view, &Hosted::new(), 1).is_empty());
    }

    #[test]
    fn a_new_configuration_or_count_is_a_change() {
        let held = hosted(Served::Serving(Epoch(1)));
        let mut view = view();
        view.topics.get_mut(&name()).expect("there").record.config.retention_ms = 5;
        let changed = plan(&view, &held, 1).changed;
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].1.config.retention_ms, 5);
    }

    #[test]
    fn clients_are_told_where_each_partition_is_and_in_what_state() {
        let told = |served: Option<Served>| {
            let held = served.map(hosted).unwrap_or_default();
            let metadata = metadata(&view(), &held, 1, "c", "embedded");
            metadata.topics["views"].partitions.clone()
        };
        let state = |partition: &pb::Partition| partition.state();
        let opening = told(None);
        assert_eq!(opening.len(), 2);
        assert_eq!((state(&opening[0]), opening[0].broker_id), (pb::PartitionState::Opening, 1));
        assert_eq!((state(&opening[1]), opening[1].broker_id), (pb::PartitionState::Unknown, 2), "broker 2 is down");
        let serving = told(Some(Served::Serving(Epoch(4))));
        assert_eq!((state(&serving[0]), serving[0].epoch), (pb::PartitionState::Serving, 4));
        let refused = told(Some(Served::Refused("why".to_owned())));
        assert_eq!((state(&refused[0]), refused[0].reason.as_str()), (pb::PartitionState::Refused, "why"));
        let metadata = metadata(&view(), &Hosted::new(), 1, "c", "embedded");
        assert_eq!(metadata.brokers.iter().map(|broker| broker.alive).collect::<Vec<_>>(), [true, false]);
        assert_eq!(metadata.by_id[&ID].name, "views");
    }
}
