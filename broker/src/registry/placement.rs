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
}

/// The broker of each of `partitions` new partitions of one topic: spread over the brokers per topic first, then where
/// the fewest lie, then by number. Empty when there is no broker.
pub fn place(partitions: u32, candidates: &[Candidate]) -> Vec<u32> {
    let mut load: Vec<(u32, u32, u32)> = candidates.iter().map(|c| (0, c.partitions, c.broker_id)).collect();
    let mut places = Vec::new();
    for _ in 0..partitions {
        let Some(least) = load.iter_mut().min() else { return Vec::new() };
        least.0 += 1;
        least.1 = least.1.saturating_add(1);
        places.push(least.2);
    }
    places
}

/// The shard of a partition, by rendezvous hashing: with one shard more, only the partitions that go to it move. Panics
/// without shards.
pub fn shard_of(topic_id: TopicId, partition: u32, shards: u32) -> u32 {
    let weight = |shard: u32| {
        let (high, low) = topic_id.0.split_at(8);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let seed =
            mix(half(high)) ^ mix(half(low).rotate_left(32)) ^ mix(u64::from(partition) << 32 | u64::from(shard));
        mix(seed)
    };
    (0..shards).max_by_key(|shard| (weight(*shard), *shard)).expect("a broker has at least one shard")
}

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
        let broker = |broker_id, partitions| Candidate { broker_id, partitions };
        assert_eq!(place(3, &[broker(1, 0)]), [1, 1, 1]);
        assert_eq!(place(4, &[broker(1, 100), broker(2, 0)]), [2, 1, 2, 1], "per topic first");
        assert_eq!(place(1, &[broker(1, 5), broker(2, 4), broker(3, 4)]), [2]);
        assert!(place(1, &[]).is_empty());
        assert!(place(0, &[broker(1, 0)]).is_empty());
    }

    /// A broker of another version, or a client, must come to the same answer: these are never to change.
    #[test]
    fn the_shard_of_a_partition_is_pinned() {
        let shards: Vec<u32> = (0..16).map(|partition| shard_of(id(1), partition, 4)).collect();
        assert_eq!(shards, PINNED);
        assert_eq!(shard_of(TopicId([0; 16]), 0, 1), 0);
    }

    const PINNED: [u32; 16] = [3, 3, 1, 3, 0, 3, 3, 1, 2, 2, 3, 3, 0, 2, 0, 2];

    #[test]
    fn partitions_are_spread_evenly_and_few_move_when_a_shard_is_added() {
        let (mut counts, mut moved) = ([0_u32; 4], 0);
        for topic in 0..100 {
            for partition in 0..100 {
                let shard = shard_of(id(topic), partition, 4);
                counts[shard as usize] += 1;
                let of_five = shard_of(id(topic), partition, 5);
                moved += u32::from(of_five != shard);
                assert!(of_five == shard || of_five == 4, "a partition moves to the new shard only");
            }
        }
        assert!(counts.iter().all(|count| (2_300..2_700).contains(count)), "{counts:?}");
        assert!((1_800..2_200).contains(&moved), "{moved}");
    }
}
