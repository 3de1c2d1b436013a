//! The partitions of a run, over all its topics, as one row of numbers (lanes): what streams, books and connections are
//! kept by.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::payload::place_of;

/// One partition of one topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane {
    /// Which topic.
    pub(crate) topic: u32,
    pub(crate) partition: u32,
    /// What its messages are checked against: a hash of the topic's name and the partition.
    pub(crate) place: u64,
}

/// The topics of a run and their lanes.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    names: Vec<String>,
    /// The number of each topic's first lane, and behind the last topic how many lanes there are.
    bases: Vec<u32>,
    lanes: Vec<Lane>,
    numbers: HashMap<String, u32, FixedState>,
}

impl Topics {
    /// Topics with how many partitions each has.
    pub(crate) fn new(topics: impl IntoIterator<Item = (String, u32)>) -> Self {
        let mut all = Self { bases: vec![0], ..Self::default() };
        for (name, partitions) in topics {
            let topic = all.names.len() as u32;
            let lane = |partition| Lane { topic, partition, place: place_of(&name, partition) };
            all.lanes.extend((0..partitions).map(lane));
            all.bases.push(all.lanes.len() as u32);
            all.numbers.insert(name.clone(), topic);
            all.names.push(name);
        }
        all
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// How many lanes there are.
    pub(crate) fn lanes(&self) -> u32 {
        self.lanes.len() as u32
    }

    pub(crate) fn lane(&self, number: u32) -> Lane {
        self.lanes[number as usize]
    }

    /// The topic of a lane.
    pub(crate) fn name(&self, number: u32) -> &str {
        &self.names[self.lane(number).topic as usize]
    }

    /// How many partitions a topic has.
    pub(crate) fn partitions(&self, topic: u32) -> u32 {
        self.bases[topic as usize + 1] - self.bases[topic as usize]
    }

    /// The number of a topic's partition.
    pub(crate) fn number(&self, topic: u32, partition: u32) -> u32 {
        self.bases[topic as usize] + partition
    }

    /// The same by name; none if it is not of this run.
    pub(crate) fn find(&self, name: &str, partition: u32) -> Option<u32> {
        let topic = match self.names.as_slice() {
            [only] if only == name => 0,
            _ => *self.numbers.get(name)?,
        };
        // A partition that was added meanwhile.
        (partition < self.partitions(topic)).then(|| self.number(topic, partition))
    }
}

/// The lanes of each of `workers`: none is left out, and with more workers than lanes they share.
pub(crate) fn share(lanes: u32, workers: u32, worker: u32) -> Vec<u32> {
    if workers <= lanes { (worker..lanes).step_by(workers as usize).collect() } else { vec![worker % lanes] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_has_a_worker_and_every_worker_a_lane() {
        for (lanes, workers) in [(1, 1), (8, 3), (3, 8), (4, 4), (1, 5)] {
            let shares: Vec<_> = (0..workers).map(|worker| share(lanes, workers, worker)).collect();
            assert!(shares.iter().all(|share| !share.is_empty()));
            assert!((0..lanes).all(|lane| shares.iter().any(|share| share.contains(&lane))));
            if workers <= lanes {
                assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), lanes as usize);
            }
        }
    }

    #[test]
    fn lanes_are_found_by_topic_and_partition() {
        let topics = Topics::new([("a".to_owned(), 2), ("b".to_owned(), 3)]);
        assert_eq!((topics.lanes(), topics.partitions(1), topics.name(4)), (5, 3, "b"));
        assert_eq!((topics.find("a", 1), topics.find("b", 2), topics.number(1, 2)), (Some(1), Some(4), 4));
        assert_eq!((topics.find("a", 2), topics.find("c", 0)), (None, None));
        assert_ne!(topics.lane(0).place, topics.lane(2).place, "partition 0 of either");
        assert_eq!(Topics::new([("a".to_owned(), 1)]).find("b", 0), None);
    }
}
