//! What is known of topics and brokers, and how fresh knowledge is merged into it. Pure: no connections here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use corelane_proto::ids::TopicId;
use corelane_proto::message::MESSAGE_BYTES_LIMIT;
use corelane_proto::pb;

use crate::error::CallError;
use crate::net::address;

/// A topic as producers and consumers need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicPlaces {
    pub(crate) name: Arc<str>,
    pub(crate) topic_id: TopicId,
    pub(crate) message_bytes_max: usize,
    pub(crate) set_bytes_max: usize,
    pub(crate) flush_interval_ms: u64,
    pub(crate) partitions: Vec<PartitionPlace>,
    pub(crate) fetched: Instant,
}

/// Where a partition is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartitionPlace {
    pub(crate) place: Place,
    pub(crate) epoch: u32,
    /// Why it does not serve; empty: it does.
    pub(crate) reason: String,
    /// As far as the broker that was asked knows: its broker is up, and it serves. What is cut off from the
    /// others only may take messages all the same.
    pub(crate) takes_messages: bool,
}

/// A shard of a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) broker_id: u32,
    pub(crate) shard: u32,
}

impl TopicPlaces {
    pub(crate) fn partition(&self, partition: u32) -> Result<&PartitionPlace, CallError> {
        self.partitions.get(partition as usize).ok_or_else(|| CallError::NoSuchPartition {
            topic: self.name.to_string(),
            partition,
            partitions: self.partitions.len() as u32,
        })
    }

    fn read(topic: pb::Topic, down: &BTreeSet<u32>, fetched: Instant) -> Option<Self> {
        let config = topic.config.unwrap_or_default();
        let limit = |bytes: Option<u32>| bytes.filter(|&bytes| bytes > 0).unwrap_or(MESSAGE_BYTES_LIMIT) as usize;
        Some(Self {
            name: topic.name.into(),
            topic_id: TopicId::try_from(&topic.topic_id[..]).ok()?,
            message_bytes_max: limit(config.message_bytes_max),
            set_bytes_max: limit(config.set_bytes_max),
            flush_interval_ms: config.flush_interval_ms.unwrap_or_default(),
            partitions: topic.partitions.into_iter().map(|partition| PartitionPlace::read(partition, down)).collect(),
            fetched,
        })
    }
}

impl PartitionPlace {
    fn read(partition: pb::Partition, down: &BTreeSet<u32>) -> Self {
        let state = partition.state();
        Self {
            place: Place { broker_id: partition.broker_id, shard: partition.shard },
            epoch: partition.epoch,
            takes_messages: state == pb::PartitionState::Serving && !down.contains(&partition.broker_id),
            reason: partition.reason,
        }
    }
}

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    pub(crate) cluster_id: Option<String>,
    /// The addresses of the brokers as they tell them.
    pub(crate) brokers: BTreeMap<u32, String>,
    pub(crate) topics: HashMap<String, Arc<TopicPlaces>>,
}

impl Metadata {
    /// Takes an answer in. `asked` are the topics asked for (empty: all): those that did not come back do not exist.
    pub(crate) fn merge(&mut self, answer: pb::MetadataResponse, asked: &[String], now: Instant) {
        if !answer.cluster_id.is_empty() {
            self.cluster_id = Some(answer.cluster_id);
        }
        let down = answer.brokers.iter().filter(|broker| !broker.alive).map(|broker| broker.broker_id).collect();
        // A broker that is down keeps its address: it may be back before the next answer says so.
        for broker in answer.brokers {
            self.brokers.insert(broker.broker_id, address::of_broker(&broker.host, broker.port as u16));
        }
        let mut fresh: HashMap<String, TopicPlaces> = answer
            .topics
            .into_iter()
            .filter_map(|topic| TopicPlaces::read(topic, &down, now))
            .map(|topic| (topic.name.to_string(), topic))
            .collect();
        if asked.is_empty() {
            self.topics.retain(|name, _| fresh.contains_key(name));
        }
        for name in asked {
            if !fresh.contains_key(name) {
                self.topics.remove(name);
            }
        }
        for (name, topic) in fresh.drain() {
            self.insert(name, topic);
        }
    }

    /// A topic never loses partitions: an answer with fewer comes from a broker that is behind.
    fn insert(&mut self, name: String, mut fresh: TopicPlaces) {
        if let Some(known) = self.topics.get(&name)
            && known.topic_id == fresh.topic_id
            && known.partitions.len() > fresh.partitions.len()
        {
            fresh.partitions.extend_from_slice(&known.partitions[fresh.partitions.len()..]);
        }
        self.topics.insert(name, Arc::new(fresh));
    }

    /// What a `NOT_HERE` said: somewhere else, until the next answer.
    pub(crate) fn correct(&mut self, topic: &str, topic_id: TopicId, partition: u32, place: Place) {
        let Some(known) = self.topics.get_mut(topic).filter(|known| known.topic_id == topic_id) else { return };
        if let Some(at) = Arc::make_mut(known).partitions.get_mut(partition as usize) {
            at.place = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str, id: u8, partitions: u32) -> pb::Topic {
        let partitions = (0..partitions).map(|partition| pb::Partition { partition, ..Default::default() });
        pb::Topic {
            name: name.into(),
            topic_id: vec![id; 16],
            config: None,
            partitions: partitions.collect(),
            copy_of: Vec::new(),
        }
    }

    fn answer(topics: Vec<pb::Topic>) -> pb::MetadataResponse {
        pb::MetadataResponse { cluster_id: "c".into(), topics, ..Default::default() }
    }

    #[test]
    fn partition_counts_are_never_lowered_except_by_a_new_topic() {
        let mut metadata = Metadata::default();
        metadata.merge(answer(vec![topic("t", 1, 4)]), &["t".into()], Instant::now());
        metadata.merge(answer(vec![topic("t", 1, 2)]), &["t".into()], Instant::now());
        assert_eq!(metadata.topics["t"].partitions.len(), 4);
        metadata.merge(answer(vec![topic("t", 2, 2)]), &["t".into()], Instant::now());
        assert_eq!(metadata.topics["t"].partitions.len(), 2);
    }

    #[test]
    fn a_topic_that_was_asked_for_and_did_not_come_is_gone() {
        let mut metadata = Metadata::default();
        metadata.merge(answer(vec![topic("a", 1, 1), topic("b", 2, 1)]), &[], Instant::now());
        metadata.merge(answer(vec![]), &["a".into()], Instant::now());
        assert!(!metadata.topics.contains_key("a") && metadata.topics.contains_key("b"));
        metadata.merge(answer(vec![]), &[], Instant::now());
        assert!(metadata.topics.is_empty());
    }

    #[test]
    fn a_hint_moves_one_partition_of_that_topic_only() {
        let mut metadata = Metadata::default();
        metadata.merge(answer(vec![topic("t", 1, 2)]), &[], Instant::now());
        let place = Place { broker_id: 3, shard: 1 };
        metadata.correct("t", TopicId([9; 16]), 1, place);
        assert_eq!(metadata.topics["t"].partitions[1].place.broker_id, 0);
        metadata.correct("t", TopicId([1; 16]), 1, place);
        assert_eq!(metadata.topics["t"].partitions[1].place, place);
        assert_eq!(metadata.topics["t"].partitions[0].place.broker_id, 0);
    }
}
