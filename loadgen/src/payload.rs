//! What a value says about itself, so that a consumer can tell what it should have got and how long it took.
//!
//! | at | size | field |
//! | --- | --- | --- |
//! | 0 | u64 | run: a random number for each start of the generator |
//! | 8 | u32 | connection of that run that published it |
//! | 12 | u32 | check: a hash of the other fields and of the partition |
//! | 16 | u64 | sequence: counts this connection's messages to this partition, from 0 |
//! | 24 | u64 | time of publication, microseconds since the Unix epoch |
//! | 32 | | filler, the same for all |

use std::time::{SystemTime, UNIX_EPOCH};

/// The smallest value that can be verified.
pub(crate) const HEADER_BYTES: usize = 32;

/// The fields of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) run: u64,
    pub(crate) connection: u32,
    pub(crate) sequence: u64,
    pub(crate) published_us: u64,
}

/// What a value turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// As it was published.
    Whole(Header),
    /// One of ours whose filler is not what was published.
    Damaged,
    /// Not made by a load generator, or not for this partition.
    Foreign,
}

/// A buffer that holds one value; the filler is written once, the header for each message.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    bytes: Vec<u8>,
}

impl Payload {
    /// A value of `size_bytes`, at least [`HEADER_BYTES`].
    pub(crate) fn new(size_bytes: usize) -> Self {
        let mut bytes = vec![0; HEADER_BYTES.max(size_bytes)];
        // The same text at every start, half compressible as logs are: four random letters, then four blanks.
        let mut random = fastrand::Rng::with_seed(1);
        for (at, byte) in bytes[HEADER_BYTES..].iter_mut().enumerate() {
            *byte = if at % 8 < 4 { random.lowercase() as u8 } else { b' ' };
        }
        Self { bytes }
    }

    /// Makes it the value with this header, for this partition.
    pub(crate) fn write(&mut self, header: &Header, partition: u32) -> &[u8] {
        self.bytes[0..8].copy_from_slice(&header.run.to_le_bytes());
        self.bytes[8..12].copy_from_slice(&header.connection.to_le_bytes());
        self.bytes[12..16].copy_from_slice(&header.check(partition).to_le_bytes());
        self.bytes[16..24].copy_from_slice(&header.sequence.to_le_bytes());
        self.bytes[24..32].copy_from_slice(&header.published_us.to_le_bytes());
        &self.bytes
    }

    /// Reads a value of any size that came from `partition`; the filler is compared with this payload's own.
    pub(crate) fn read(&mut self, value: &[u8], partition: u32) -> Value {
        let Some((head, filler)) = value.split_first_chunk::<HEADER_BYTES>() else { return Value::Foreign };
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let header = Header { run: word(0), connection: word(8) as u32, sequence: word(16), published_us: word(24) };
        if header.check(partition) != (word(8) >> 32) as u32 {
            return Value::Foreign;
        }
        if value.len() > self.bytes.len() {
            *self = Self::new(value.len());
        }
        if self.bytes[HEADER_BYTES..value.len()] == *filler { Value::Whole(header) } else { Value::Damaged }
    }
}

impl Header {
    fn check(&self, partition: u32) -> u32 {
        let place = u64::from(self.connection) << 32 | u64::from(partition);
        let hash = mix(self.run ^ mix(place ^ mix(self.sequence ^ mix(self.published_us))));
        (hash >> 32) as u32
    }

    /// What this message adds to its partition's checksum. Sums do not depend on the order.
    pub(crate) fn checksum(&self) -> u64 {
        mix(self.run ^ mix(u64::from(self.connection) ^ mix(self.sequence)))
    }
}

/// The finalizer of `SplitMix64`: every bit of the input moves about half of the output's.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Microseconds since the Unix epoch.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { run: 7, connection: 3, sequence: 1 << 40, published_us: 1_782_900_000_000_000 };

    #[test]
    fn a_value_says_what_was_written() {
        for size_bytes in [HEADER_BYTES, 33, 200, 4096] {
            let value = Payload::new(size_bytes).write(&HEADER, 5).to_vec();
            assert_eq!(value.len(), size_bytes);
            assert_eq!(Payload::new(HEADER_BYTES).read(&value, 5), Value::Whole(HEADER));
        }
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let value = Payload::new(100).write(&HEADER, 5).to_vec();
        let mut reader = Payload::new(100);
        for at in 0..value.len() {
            let mut changed = value.clone();
            changed[at] ^= 1;
            let expected = if at < HEADER_BYTES { Value::Foreign } else { Value::Damaged };
            assert_eq!(reader.read(&changed, 5), expected, "byte {at}");
        }
        assert_eq!(reader.read(&value, 6), Value::Foreign, "another partition");
        assert_eq!(reader.read(&value[..31], 5), Value::Foreign);
    }
}
