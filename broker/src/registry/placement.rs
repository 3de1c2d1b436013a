//! Which broker holds a new partition, and which of its shards serves it. Pure: the same on every broker and in every
//! version, since clients and brokers must agree without asking.

use corelane_proto::ids::TopicId;

/// A broker that can take partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its number.
    pub broker_id: u32,
    /// How many partitions lie on it.
    pub partitions: u32,
    /// How many it takes at most.
    pub partitions_max: u32,
}

impl Candidate {
    /// How many more it takes.
    pub fn room(&self) -> u32 {
        self.partitions_max.saturating_sub(self.partitions)
    }
}

/// The broker of each of `partitions` new partitions of one topic: spread over the brokers per topic first, then where
/// the fewest lie, then by number; full ones are passed over. Empty when they have no room for all.
pub fn place(partitions: u32, candidates: &[Candidate]) -> Vec<u32> {
    let mut load: Vec<(u32, Candidate)> = candidates.iter().map(|candidate| (0, *candidate)).collect();
    let mut places = Vec::new();
    for _ in 0..partitions {
        let with_room = load.iter_mut().filter(|(_, candidate)| candidate.room() > 0);
        let least = with_room.min_by_key(|(of_topic, there)| (*of_topic, there.partitions, there.broker_id));
        let Some((of_topic, candidate)) = least else { return Vec::new() };
        *of_topic += 1;
        candidate.partitions += 1;
        places.push(candidate.broker_id);
    }
    places
}

/// The shard of a partition: a topic's partitions go round the shards, beginning at a place of the topic's own, so that
/// few of them lie evenly. Each round begins a little elsewhere: else a broker that holds every second partition of a
/// topic would use every second shard only. Panics without shards.
pub fn shard_of(topic_id: TopicId, partition: u32, shards: u32) -> u32 {
    let (high, low) = topic_id.0.split_at(8);
    let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let topic_place = mix(half(high) ^ mix(half(low))) % u64::from(shards);
    // Multiples of the golden ratio, modulo one, stay far from each other however many are left out in between.
    let round = u64::from((partition / shards).wrapping_mul(GOLDEN_RATIO));
    let round_place = (round * u64::from(shards)) >> 32;
    ((topic_place + u64::from(partition) + round_place) % u64::from(shards)) as u32
}

/// The golden ratio's part behind the point, in units of 2^-32 (Knuth, "The Art of Computer Programming" 3, 6.4).
const GOLDEN_RATIO: u32 = 0x9e37_79b9;

/// The finalizer of `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seed: u8) -> TopicId {
        TopicId(std::array::from_fn(|i| seed.wrapping_mul(31).wrapping_add(i as u8 * 7)))
    }

    #[test]
    fn partitions_spread_per_topic_first_then_where_the_fewest_lie() {
        let broker = |broker_id, partitions| Candidate { broker_id, partitions, partitions_max: 100 };
        assert_eq!(place(3, &[broker(1, 0)]), [1, 1, 1]);
        assert_eq!(place(4, &[broker(1, 90), broker(2, 0)]), [2, 1, 2, 1], "per topic first");
        assert_eq!(place(1, &[broker(1, 5), broker(2, 4), broker(3, 4)]), [2]);
        assert!(place(1, &[]).is_empty());
        assert!(place(0, &[broker(1, 0)]).is_empty());
    }

    #[test]
    fn full_brokers_are_passed_over() {
        let broker = |broker_id, partitions| Candidate { broker_id, partitions, partitions_max: 10 };
        assert_eq!(place(4, &[broker(1, 9), broker(2, 0), broker(3, 10), broker(4, 11)]), [2, 1, 2, 2]);
        assert!(place(3, &[broker(1, 9), broker(2, 9)]).is_empty(), "there is room for two");
    }

    /// A broker of another version must come to the same answer: these are never to change.
    #[test]
    fn the_shard_of_a_partition_is_pinned() {
        let shards: Vec<u32> = (0..16).map(|partition| shard_of(id(1), partition, 4)).collect();
        assert_eq!(shards, PINNED);
        assert_eq!(shard_of(TopicId([0; 16]), 0, 1), 0);
        assert_eq!(shard_of(TopicId([0xff; 16]), u32::MAX, 256), PINNED_LAST);
    }

    const PINNED: [u32; 16] = [1, 2, 3, 0, 3, 0, 1, 2, 1, 2, 3, 0, 0, 1, 2, 3];
    const PINNED_LAST: u32 = 79;

    fn per_shard(topic_id: TopicId, partitions: impl Iterator<Item = u32>, shards: u32) -> Vec<u32> {
        let mut counts = vec![0; shards as usize];
        for partition in partitions {
            counts[shard_of(topic_id, partition, shards) as usize] += 1;
        }
        counts
    }

    #[test]
    fn a_topics_partitions_spread_over_the_shards_as_evenly_as_their_number_allows() {
        for (topic, shards) in (0..50).flat_map(|topic| [1, 2, 3, 4, 7, 16, 256].map(|shards| (topic, shards))) {
            for partitions in [1, 2, 3, shards, shards + 1, 2 * shards, 5 * shards, 1_000] {
                let counts = per_shard(id(topic), 0..partitions, shards);
                let (least, most) = (counts.iter().min().expect("a shard"), counts.iter().max().expect("a shard"));
                // The last round may be a part of one, and begin where the one before ended.
                let even = if partitions <= shards || partitions % shards == 0 { 1 } else { 2 };
                assert!(most - least <= even, "{partitions} partitions on {shards} shards: {counts:?}");
            }
        }
    }

    #[test]
    fn topics_of_one_partition_spread_over_the_shards() {
        let mut counts = [0_u32; 4];
        for topic in 0..=255 {
            counts[shard_of(id(topic), 0, 4) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (40..90).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_partitions_that_one_of_several_brokers_holds_spread_over_its_shards_too() {
        for (brokers, shards) in (1..=9).flat_map(|brokers| [2, 3, 4, 8, 16].map(|shards| (brokers, shards))) {
            for first in 0..brokers {
                let held = (0..2 * shards).map(|at| first + at * brokers);
                let counts = per_shard(id(9), held, shards);
                let most = *counts.iter().max().expect("a shard");
                assert!(most <= 5, "one of {brokers} brokers, {shards} shards: {counts:?}");
            }
        }
    }
}
