//! Which partition a message goes to. Keys go where Kafka's Java client sends them, so that programs of both worlds
//! agree on the place of a key.

use std::fmt;
use std::sync::Arc;

/// How partitions are chosen for messages that do not name one.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Partitioner {
    /// By the key's murmur2 hash; without a key, a partition gets a whole batch, then the next one has its turn.
    #[default]
    ByKey,
    /// Round-robin batch by batch, whatever the key.
    RoundRobin,
    /// Random for each message, whatever the key.
    Random,
    /// The program's own choice; see [`Partitioner::custom`].
    Custom(Arc<dyn Fn(&PartitionChoice<'_>) -> u32 + Send + Sync>),
}

/// What a program's own partitioner may look at.
#[derive(Debug)]
#[non_exhaustive]
pub struct PartitionChoice<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The message's key.
    pub key: Option<&'a [u8]>,
    /// The message's value.
    pub value: Option<&'a [u8]>,
    /// How many partitions the topic has.
    pub partitions: u32,
}

impl Partitioner {
    /// The program's own choice. A result that is no partition of the topic is an error for that message.
    ///
    /// ```
    /// use corelane_client::Partitioner;
    /// let by_length = Partitioner::custom(|choice| choice.value.map_or(0, <[u8]>::len) as u32 % choice.partitions);
    /// # let _ = by_length;
    /// ```
    pub fn custom(choose: impl Fn(&PartitionChoice<'_>) -> u32 + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(choose))
    }
}

impl fmt::Debug for Partitioner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ByKey => "ByKey",
            Self::RoundRobin => "RoundRobin",
            Self::Random => "Random",
            Self::Custom(_) => "Custom",
        })
    }
}

/// The partition of a key among `partitions` (at least 1): `(murmur2(key) & 0x7fffffff) % partitions`, as in Kafka's Java client.
///
/// ```
/// assert_eq!(corelane_client::partition_for_key(b"21", 1000), (-973_932_308_i32 as u32 & 0x7fff_ffff) % 1000);
/// ```
pub fn partition_for_key(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions
}

/// `MurmurHash2`, 32 bits, with the seed of Kafka's `Utils.murmur2`.
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        k = k.wrapping_mul(M);
        k ^= k >> R;
        k = k.wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of Kafka's own `UtilsTest.testMurmur2`.
    #[test]
    fn keys_hash_as_in_kafkas_java_client() {
        let vectors: [(&[u8], i32); 7] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 275_646_681),
        ];
        for (key, hash) in vectors {
            assert_eq!(murmur2(key) as i32, hash, "{:?}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn a_negative_hash_still_names_a_partition() {
        assert_eq!(partition_for_key(b"21", 7), 0x45f2_f8ec % 7);
    }
}
