//! What this broker holds against what the registry says: which topics are to be let go of, which to be changed, which
//! partitions to be made or opened; and what clients are told. Pure: `host` does what is planned here.

use std::collections::BTreeMap;
use std::sync::Arc;

use corelane_log::config::TopicConfig;
use corelane_proto::ids::{Epoch, TopicId, TopicName};
use corelane_proto::pb;

use super::topic_config;
use crate::messages::{IdMap, Metadata};
use crate::registry::placement::shard_of;
use crate::registry::records::{PartitionRecord, TopicRecord};
use crate::registry::view::View;

/// How a partition of this broker came up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// It serves this life of the log.
    Serving(Epoch),
    /// It is open, but the registry has yet to be told that this life was made: until then nobody is served.
    Unrecorded(Epoch),
    /// This life of it is not served, and an operator must look.
    Refused(Epoch, String),
    /// It could not be made; to be tried again.
    Failed(String),
    /// There was no room to make it; to be tried again.
    NoSpace(String),
}

impl Served {
    /// Whether it is to be tried again.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::NoSpace(_))
    }
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
    /// Partitions that are open here and that the registry gives to another broker, or to a later life, and why: to be let
    /// go of.
    pub(super) unled: Vec<(TopicId, u32, String)>,
    /// Partitions whose life on this disk the registry does not know as made: it is to be told.
    pub(super) unrecorded: BTreeMap<TopicId, Vec<(u32, Epoch)>>,
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
    let is_known = |id: &TopicId| known.contains_key(id) || view.deleted.contains_key(id);
    plan.vanished = hosted.keys().filter(|id| !is_known(id)).copied().collect();
    for (name, topic) in &view.topics {
        plan_topic(&mut plan, view, hosted.get(&topic.record.topic_id), (name, &topic.record), broker_id);
    }
    plan
}

/// Compares one topic.
fn plan_topic(
    plan: &mut Plan,
    view: &View,
    held: Option<&HostedTopic>,
    (name, record): (&TopicName, &TopicRecord),
    broker_id: u32,
) {
    let topic_id = record.topic_id;
    // Partitions are watched apart: those of a new topic may be yet to come.
    let is_complete = view.is_complete(record);
    if is_complete && held.is_some_and(|held| held.config != record.config || held.partition_count != record.partitions)
    {
        plan.changed.push((topic_id, record.clone()));
    }
    let mut to_host = Vec::new();
    for (number, partition) in view.partitions_of(record) {
        let (leader, epoch) = (partition.record.leader, partition.record.epoch);
        let served = held.and_then(|held| held.partitions.get(&number));
        match served {
            Some(Served::Serving(_) | Served::Unrecorded(_)) if leader != broker_id => {
                plan.unled.push((topic_id, number, format!("the registry gives this partition to broker {leader}")));
            }
            _ if leader != broker_id => {}
            Some(Served::Serving(here) | Served::Unrecorded(here)) if epoch > *here => {
                let reason = format!("the registry knows a newer life of this partition: epoch {epoch}, not {here}");
                plan.unled.push((topic_id, number, reason));
            }
            Some(Served::Serving(here) | Served::Unrecorded(here)) => {
                if (epoch, partition.record.made) != (*here, Some(*here)) {
                    plan.unrecorded.entry(topic_id).or_default().push((number, *here));
                }
            }
            Some(Served::Refused(refused, _)) if epoch <= *refused => {}
            None | Some(Served::Failed(_) | Served::NoSpace(_) | Served::Refused(..)) => {
                if is_complete || partition.record.made.is_some() {
                    to_host.push((number, partition.record.clone()));
                }
            }
        }
    }
    if !to_host.is_empty() {
        plan.host.push(ToHost { name: name.clone(), record: record.clone(), partitions: to_host });
    }
}

/// Who tells clients.
#[derive(Clone, Copy)]
pub(super) struct Teller<'t> {
    pub(super) broker_id: u32,
    pub(super) cluster_id: &'t str,
    /// The kind of registry.
    pub(super) registry: &'static str,
    /// Why this broker takes no publishes any more, if it does not.
    pub(super) displaced: Option<&'t str>,
}

/// What clients are told.
pub(super) fn metadata(view: &View, hosted: &Hosted, teller: Teller<'_>) -> Metadata {
    let mut metadata = Metadata {
        cluster_id: teller.cluster_id.to_owned(),
        registry: teller.registry,
        brokers: brokers(view, teller),
        topics: BTreeMap::new(),
        by_id: IdMap::default(),
        displaced: teller.displaced.map(Arc::from),
    };
    for (name, topic) in &view.topics {
        let record = &topic.record;
        // A topic that comes to be is told once it is whole; one that grows, or of which the registry lost something, as
        // far as it is known.
        let is_established = view.partitions_of(record).any(|(_, partition)| partition.record.made.is_some());
        if !is_established && !view.is_complete(record) {
            continue;
        }
        let held = hosted.get(&record.topic_id);
        let partitions = (0..record.partitions).map(|number| told_partition(view, held, record, number, teller));
        let told = pb::Topic {
            name: name.to_string(),
            topic_id: record.topic_id.to_vec(),
            config: Some(topic_config::to_pb(&record.config)),
            partitions: partitions.collect(),
            copy_of: record.copy_of.clone(),
        };
        let told = Arc::new(told);
        metadata.topics.insert(name.to_string(), Arc::clone(&told));
        metadata.by_id.insert(record.topic_id, told);
    }
    metadata
}

fn told_partition(
    view: &View,
    held: Option<&HostedTopic>,
    topic: &TopicRecord,
    number: u32,
    teller: Teller<'_>,
) -> pb::Partition {
    let partition = view.partitions.get(&topic.topic_id).and_then(|partitions| partitions.get(&number));
    let Some(PartitionRecord { leader, epoch, made, .. }) = partition.map(|partition| &partition.record) else {
        let reason = "the registry has not told where it is".to_owned();
        let state = pb::PartitionState::Unknown.into();
        return pb::Partition { partition: number, broker_id: NO_BROKER, state, reason, ..Default::default() };
    };
    let (state, reason, epoch) = if *leader == teller.broker_id {
        state_here(held.and_then(|held| held.partitions.get(&number)), *epoch, teller.displaced)
    } else {
        state_elsewhere(view, *leader, *epoch, *made == Some(*epoch))
    };
    let shards = view.brokers.get(leader).map_or(1, |broker| broker.shards.max(1));
    pb::Partition {
        partition: number,
        broker_id: *leader,
        shard: shard_of(topic.topic_id, number, shards),
        epoch: epoch.0,
        state: state.into(),
        reason,
    }
}

/// Stands for a broker that is not known.
const NO_BROKER: u32 = u32::MAX;

fn state_here(served: Option<&Served>, epoch: Epoch, displaced: Option<&str>) -> (pb::PartitionState, String, Epoch) {
    match (served, displaced) {
        (None | Some(Served::Unrecorded(_)), _) => (pb::PartitionState::Opening, String::new(), epoch),
        (Some(Served::Serving(epoch)), None) => (pb::PartitionState::Serving, String::new(), *epoch),
        (Some(Served::Serving(epoch)), Some(reason)) => {
            (pb::PartitionState::ClosedForWrites, reason.to_owned(), *epoch)
        }
        (Some(Served::Refused(_, reason) | Served::Failed(reason) | Served::NoSpace(reason)), _) => {
            (pb::PartitionState::Refused, reason.clone(), epoch)
        }
    }
}

/// A broker whose lease has ended may still serve, being cut from the registry only: clients may try it.
fn state_elsewhere(view: &View, leader: u32, epoch: Epoch, is_made: bool) -> (pb::PartitionState, String, Epoch) {
    if !view.alive.contains_key(&leader) {
        let reason = format!("broker {leader}, which holds it, is not known to run");
        (pb::PartitionState::Unknown, reason, epoch)
    } else if is_made {
        (pb::PartitionState::Serving, String::new(), epoch)
    } else {
        (pb::PartitionState::Opening, String::new(), epoch)
    }
}

fn brokers(view: &View, teller: Teller<'_>) -> Vec<pb::Broker> {
    let told = |(id, broker): (&u32, &crate::registry::records::BrokerRecord)| {
        let listener = broker.listeners.first();
        let is_this = *id == teller.broker_id && teller.displaced.is_none();
        pb::Broker {
            broker_id: *id,
            host: listener.map_or_else(String::new, |listener| listener.host.clone()),
            port: listener.map_or(0, |listener| u32::from(listener.port)),
            shards: broker.shards,
            alive: is_this || view.alive.contains_key(id),
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
        let record = TopicRecord { topic_id: ID, partitions: 2, config: TopicConfig::default(), copy_of: Vec::new() };
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
                instance: "i".to_owned(),
                listeners: vec![listener],
                shards: 2,
                version: "v".to_owned(),
            };
            view.brokers.insert(id, record);
        }
        let (instance, uuid) = ("i".to_owned(), "u".to_owned());
        view.alive.insert(1, AliveRecord { instance, uuid, ..AliveRecord::default() });
        view
    }

    /// The same, its partitions made.
    fn made() -> View {
        let mut view = view();
        for partition in view.partitions.get_mut(&ID).expect("there").values_mut() {
            partition.record.made = Some(Epoch(1));
        }
        view
    }

    const TELLER: Teller<'static> = Teller { broker_id: 1, cluster_id: "c", registry: "etcd", displaced: None };

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
        assert!(plan(&made(), &hosted(Served::Serving(Epoch(1))), 1).is_empty());
        assert!(plan(&view(), &hosted(Served::Refused(Epoch(1), "lost".to_owned())), 1).is_empty());
        assert_eq!(plan(&view(), &hosted(Served::Failed("no space".to_owned())), 1).host.len(), 1);
        assert!(plan(&view(), &Hosted::new(), 3).is_empty());
    }

    #[test]
    fn the_registry_is_told_what_it_does_not_know_of_this_disk() {
        for (served, view) in [
            (Served::Unrecorded(Epoch(1)), view()),
            (Served::Serving(Epoch(1)), view()),
            (Served::Serving(Epoch(3)), made()),
        ] {
            let (Served::Serving(epoch) | Served::Unrecorded(epoch)) = served else { unreachable!() };
            let planned = plan(&view, &hosted(served), 1);
            let unrecorded = [(ID, vec![(0, epoch)])].into();
            assert_eq!(planned, Plan { unrecorded, ..Plan::default() });
        }
    }

    #[test]
    fn what_another_leads_or_a_later_life_replaces_is_let_go_of() {
        let mut moved = made();
        moved.partitions.get_mut(&ID).expect("there").insert(0, partition(2));
        let mut newer = made();
        newer.partitions.get_mut(&ID).and_then(|all| all.get_mut(&0)).expect("there").record.epoch = Epoch(2);
        for (view, says) in [(&moved, "to broker 2"), (&newer, "epoch 2, not 1")] {
            let planned = plan(view, &hosted(Served::Serving(Epoch(1))), 1);
            let [(ID, 0, reason)] = &planned.unled[..] else { panic!("{planned:?}") };
            assert!(reason.contains(says) && planned.host.is_empty(), "{planned:?}");
        }
        let refused = hosted(Served::Refused(Epoch(1), "lost".to_owned()));
        assert_eq!(plan(&newer, &refused, 1).host.len(), 1, "a loss was accepted");
        assert!(plan(&moved, &refused, 1).is_empty());
    }

    #[test]
    fn a_topic_waits_until_all_its_partitions_were_seen() {
        let mut view = view();
        view.partitions.get_mut(&ID).expect("there").remove(&1);
        assert!(plan(&view, &Hosted::new(), 1).is_empty());
        assert!(metadata(&view, &Hosted::new(), TELLER).topics.is_empty());
        view.partitions.get_mut(&ID).and_then(|all| all.get_mut(&0)).expect("there").record.made = Some(Epoch(1));
        assert_eq!(plan(&view, &Hosted::new(), 1).host.len(), 1, "what was made before is served");
        let told = metadata(&view, &Hosted::new(), TELLER).topics["views"].partitions.clone();
        assert_eq!((told.len(), told[1].state(), told[1].broker_id), (2, pb::PartitionState::Unknown, NO_BROKER));
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
        let mut view = made();
        view.topics.get_mut(&name()).expect("there").record.config.retention_ms = 5;
        let changed = plan(&view, &held, 1).changed;
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].1.config.retention_ms, 5);
    }

    #[test]
    fn clients_are_told_where_each_partition_is_and_in_what_state() {
        let told = |view: &View, served: Option<Served>, teller: Teller<'_>| {
            let held = served.map(hosted).unwrap_or_default();
            metadata(view, &held, teller).topics["views"].partitions.clone()
        };
        let state = |partition: &pb::Partition| partition.state();
        let opening = told(&view(), None, TELLER);
        assert_eq!(opening.len(), 2);
        assert_eq!((state(&opening[0]), opening[0].broker_id), (pb::PartitionState::Opening, 1));
        assert_eq!((state(&opening[1]), opening[1].broker_id), (pb::PartitionState::Unknown, 2), "broker 2 is down");
        let unrecorded = told(&view(), Some(Served::Unrecorded(Epoch(1))), TELLER);
        assert_eq!(state(&unrecorded[0]), pb::PartitionState::Opening, "not before the registry knows");
        let serving = told(&view(), Some(Served::Serving(Epoch(4))), TELLER);
        assert_eq!((state(&serving[0]), serving[0].epoch), (pb::PartitionState::Serving, 4));
        let refused = told(&view(), Some(Served::Refused(Epoch(1), "why".to_owned())), TELLER);
        assert_eq!((state(&refused[0]), refused[0].reason.as_str()), (pb::PartitionState::Refused, "why"));
        let displaced = Teller { displaced: Some("another one runs"), ..TELLER };
        let closed = told(&view(), Some(Served::Serving(Epoch(4))), displaced);
        assert_eq!(state(&closed[0]), pb::PartitionState::ClosedForWrites);
        let told_brokers = metadata(&view(), &Hosted::new(), TELLER);
        assert_eq!(told_brokers.brokers.iter().map(|broker| broker.alive).collect::<Vec<_>>(), [true, false]);
        assert_eq!(told_brokers.by_id[&ID].name, "views");
        let of_2 = Teller { broker_id: 3, ..TELLER };
        assert_eq!(state(&told(&view(), None, of_2)[0]), pb::PartitionState::Opening, "broker 1 has yet to make it");
        assert_eq!(state(&told(&made(), None, of_2)[0]), pb::PartitionState::Serving);
    }
}
