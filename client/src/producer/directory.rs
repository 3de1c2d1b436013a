//! The accumulator's topics, partitions and lanes: how fresh knowledge of the cluster changes them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use super::accumulator::{Accumulator, LaneQueue, PartitionQueue, SET_CAPACITY_FIRST, TopicQueue};
use super::error::DeliveryError;
use crate::cluster::{PartitionPlace, Place, TopicPlaces};

impl Accumulator {
    pub(super) fn has_topic(&self, name: &str) -> Option<u32> {
        self.names.get(name).map(|&topic| self.topics[topic].partitions.len() as u32)
    }

    /// Takes fresh knowledge of a topic in. Returns the lanes that are new, and the tasks to wake.
    pub(super) fn learn(&mut self, places: &TopicPlaces) -> (Vec<(usize, Place)>, Vec<Waker>) {
        let (mut new_lanes, mut woken) = (Vec::new(), Vec::new());
        let topic = match self.names.get(&places.name) {
            Some(&topic) => topic,
            None => self.add_topic(places),
        };
        let at = &mut self.topics[topic];
        at.topic_id = places.topic_id;
        at.message_bytes_max = places.message_bytes_max;
        at.set_bytes_max = places.set_bytes_max;
        at.flush_interval_ms = places.flush_interval_ms;
        for (number, place) in places.partitions.iter().enumerate() {
            let lane = self.lane(place.place, &mut new_lanes);
            let Some(&index) = self.topics[topic].partitions.get(number) else {
                self.add_partition(topic, number as u32, place, lane);
                continue;
            };
            let queue = &mut self.partitions[index];
            queue.epoch = place.epoch;
            queue.is_down = !place.takes_messages;
            let target = queue.next_lane.unwrap_or(queue.lane);
            if target != lane {
                queue.next_lane = Some(lane);
                let old = &mut self.lanes[queue.lane];
                old.leaving.push(index);
                woken.extend(old.sleeping.take());
            }
        }
        // A topic that was created again under its name may have fewer partitions.
        let surplus = self.topics[topic].partitions.split_off(places.partitions.len());
        woken.extend(self.give_up(&surplus));
        (new_lanes, woken)
    }

    fn add_topic(&mut self, places: &TopicPlaces) -> usize {
        let topic = self.topics.len();
        self.topics.push(TopicQueue {
            name: places.name.clone(),
            topic_id: places.topic_id,
            message_bytes_max: places.message_bytes_max,
            set_bytes_max: places.set_bytes_max,
            flush_interval_ms: places.flush_interval_ms,
            partitions: Vec::new(),
            // Producers that begin together shall not all begin with the same partition.
            sticky: fastrand::u32(..(places.partitions.len() as u32).max(1)),
            sticky_closed_sets: 0,
        });
        self.names.insert(places.name.clone(), topic);
        topic
    }

    fn add_partition(&mut self, topic: usize, partition: u32, place: &PartitionPlace, lane: usize) {
        self.topics[topic].partitions.push(self.partitions.len());
        self.partitions.push(PartitionQueue {
            topic,
            partition,
            epoch: place.epoch,
            lane,
            next_lane: None,
            gone: None,
            is_down: !place.takes_messages,
            troubled_until: None,
            listed: false,
            open: None,
            ready: VecDeque::new(),
            closed_sets: 0,
            capacity: SET_CAPACITY_FIRST,
        });
    }

    fn lane(&mut self, place: Place, new_lanes: &mut Vec<(usize, Place)>) -> usize {
        *self.lane_of.entry(place).or_insert_with(|| {
            self.lanes.push(LaneQueue::default());
            new_lanes.push((self.lanes.len() - 1, place));
            self.lanes.len() - 1
        })
    }

    /// A topic is gone: what waits for it fails, and its name is looked up again when it is used again.
    pub(super) fn forget(&mut self, name: &str) -> Vec<Waker> {
        let Some(topic) = self.names.remove(name) else { return Vec::new() };
        let partitions = std::mem::take(&mut self.topics[topic].partitions);
        self.topics[topic].name = Arc::from("");
        self.give_up(&partitions)
    }

    fn give_up(&mut self, partitions: &[usize]) -> Vec<Waker> {
        let mut woken = Vec::new();
        for &partition in partitions {
            let _ = self.close_set(partition);
            let queue = &mut self.partitions[partition];
            queue.gone = Some(DeliveryError::TopicDeleted);
            let lane = &mut self.lanes[queue.lane];
            lane.leaving.push(partition);
            woken.extend(lane.sleeping.take());
        }
        woken
    }
}
