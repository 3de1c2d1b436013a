//! What a value says about itself, so that a consumer can tell what it should have got and how long it took.
//!
//! | at | size | field |
//! | --- | --- | --- |
//! | 0 | u64 | run: a random number for each start of the generator |
//! | 8 | u32 | connection of that run that published it |
//! | 12 | u32 | check: a hash of the other fields, the topic, the partition, the key and the value's length |
//! | 16 | u64 | sequence: counts this connection's messages to this partition, from 0 |
//! | 24 | u64 | time of publication, microseconds since the Unix epoch |
//! | 32 | | filler: a piece of one long text, another one for each message |

use std::time::{SystemTime, UNIX_EPOCH};

/// The smallest value that can be verified.
pub(crate) const HEADER_BYTES: usize = 32;
/// So long is the text that fillers are cut from, beside the longest value: as much as compressors look back, and it stays
/// in a core's cache.
const TEXT_BYTES: usize = 256 << 10;

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
    /// One of a run, but not what was published for this place with this key.
    Damaged { run: Option<u64> },
    /// Too short to be made by a load generator.
    Foreign,
}

/// The text that values are cut from. The header of a value is written into the text itself, and undone for the next one:
/// so a value is one piece, and nothing but its header is copied.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    text: Vec<u8>,
    /// What the header that is written now covers.
    covered_at: usize,
    covered: [u8; HEADER_BYTES],
}

impl Payload {
    /// For values of up to `size_bytes_max`.
    pub(crate) fn new(size_bytes_max: usize) -> Self {
        let mut text = vec![0; TEXT_BYTES + size_bytes_max.max(HEADER_BYTES)];
        // The same text at every start, half compressible as logs are: four random letters, then four blanks.
        let mut random = fastrand::Rng::with_seed(1);
        for (at, byte) in text.iter_mut().enumerate() {
            *byte = if at % 8 < 4 { random.lowercase() as u8 } else { b' ' };
        }
        let covered = *text.first_chunk().expect("the text is longer than a header");
        Self { text, covered_at: 0, covered }
    }

    /// The value of `size_bytes` with this header, for this place and key.
    pub(crate) fn write(&mut self, header: &Header, place: u64, key: Option<&[u8]>, size_bytes: usize) -> &[u8] {
        self.text[self.covered_at..self.covered_at + HEADER_BYTES].copy_from_slice(&self.covered);
        let at = begin(header.sequence, size_bytes);
        let value = &mut self.text[at..at + size_bytes];
        let head: &mut [u8; HEADER_BYTES] = value.first_chunk_mut().expect("a value has a header");
        (self.covered_at, self.covered) = (at, *head);
        head[0..8].copy_from_slice(&header.run.to_le_bytes());
        head[8..12].copy_from_slice(&header.connection.to_le_bytes());
        head[12..16].copy_from_slice(&header.check(place, key, size_bytes).to_le_bytes());
        head[16..24].copy_from_slice(&header.sequence.to_le_bytes());
        head[24..32].copy_from_slice(&header.published_us.to_le_bytes());
        value
    }

    /// Reads a value of any size that came from `place` with `key`. Must not be the payload that writes.
    pub(crate) fn read(&mut self, value: &[u8], place: u64, key: Option<&[u8]>) -> Value {
        let Some((head, filler)) = value.split_first_chunk::<HEADER_BYTES>() else { return Value::Foreign };
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let header = Header { run: word(0), connection: word(8) as u32, sequence: word(16), published_us: word(24) };
        if header.check(place, key, value.len()) != (word(8) >> 32) as u32 {
            return Value::Damaged { run: None };
        }
        if TEXT_BYTES + value.len() > self.text.len() {
            *self = Self::new(value.len());
        }
        let at = begin(header.sequence, value.len());
        let is_whole = self.text[at + HEADER_BYTES..at + value.len()] == *filler;
        if is_whole { Value::Whole(header) } else { Value::Damaged { run: Some(header.run) } }
    }
}

/// Where in the text a value begins: behind the one before it, so that neighbours in a set have nothing in common.
fn begin(sequence: u64, size_bytes: usize) -> usize {
    let step = (size_bytes as u64).next_multiple_of(8);
    (sequence.wrapping_mul(step) % TEXT_BYTES as u64) as usize
}

/// The number of the run that a value claims to be of, whatever else it is.
pub(crate) fn claimed_run(value: &[u8]) -> Option<u64> {
    value.first_chunk().map(|run| u64::from_le_bytes(*run))
}

impl Header {
    fn check(&self, place: u64, key: Option<&[u8]>, size_bytes: usize) -> u32 {
        // Three words that can be mixed side by side.
        let where_to = mix(self.run ^ place ^ key.map_or(0, fold) ^ u64::from(self.connection) << 32);
        let which = mix(self.sequence);
        let what = mix(self.published_us ^ (size_bytes as u64).rotate_left(48));
        (mix(where_to ^ which.rotate_left(21) ^ what.rotate_left(42)) >> 32) as u32
    }
}

/// A hash of a topic's partition.
pub(crate) fn place_of(topic: &str, partition: u32) -> u64 {
    mix(fold(topic.as_bytes()) ^ u64::from(partition))
}

/// A hash of a few bytes.
fn fold(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let folded = words.iter().fold(bytes.len() as u64, |hash, word| mix(hash ^ u64::from_le_bytes(*word)));
    rest.iter().fold(folded, |hash, byte| mix(hash ^ u64::from(*byte)))
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
    const KEY: Option<&[u8]> = Some(b"key-000000000007");

    #[test]
    fn a_value_says_what_was_written() {
        let mut payload = Payload::new(4096);
        let mut reader = Payload::new(HEADER_BYTES);
        let place = place_of("t", 5);
        for sequence in 0..10_000 {
            let size_bytes = [HEADER_BYTES, 33, 200, 4096][sequence as usize % 4];
            let header = Header { sequence, ..HEADER };
            let value = payload.write(&header, place, KEY, size_bytes);
            assert_eq!(value.len(), size_bytes);
            assert_eq!(reader.read(value, place, KEY), Value::Whole(header));
        }
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let place = place_of("t", 5);
        let value = Payload::new(100).write(&HEADER, place, KEY, 100).to_vec();
        let mut reader = Payload::new(100);
        for at in 0..value.len() {
            let mut changed = value.clone();
            changed[at] ^= 1;
            let run = (at >= HEADER_BYTES).then_some(HEADER.run);
            assert_eq!(reader.read(&changed, place, KEY), Value::Damaged { run }, "byte {at}");
        }
        let damaged = Value::Damaged { run: None };
        assert_eq!(reader.read(&value, place_of("t", 6), KEY), damaged, "another partition");
        assert_eq!(reader.read(&value, place_of("u", 5), KEY), damaged, "another topic");
        assert_eq!(reader.read(&value, place, Some(b"key-000000000008")), damaged, "another key");
        assert_eq!(reader.read(&value, place, None), damaged, "no key");
        assert_eq!(reader.read(&value[..99], place, KEY), damaged, "cut short");
        assert_eq!(reader.read(&value[..31], place, KEY), Value::Foreign);
        assert_eq!(claimed_run(&value), Some(HEADER.run));
    }

    #[test]
    fn neighbours_have_different_fillers() {
        let mut payload = Payload::new(200);
        let mut filler = |sequence| {
            let value = payload.write(&Header { sequence, ..HEADER }, 0, None, 200);
            value[HEADER_BYTES..].to_vec()
        };
        let first = filler(0);
        assert!((1..1_000).all(|sequence| filler(sequence) != first));
    }
}
