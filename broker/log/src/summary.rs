//! The sidecar of a closed segment: when its bytes arrived and what is known of its inside. Never needed: what is lost or
//! bad is rebuilt by a scan. Pure.

use crate::index::{Index, Stretch};
use crate::limits;

const MAGIC: [u8; 8] = *b"CLSUM\0\0\x01";
const HEAD_BYTES: usize = 8 + 8 + 8 + 8 + 8 + 8 + 8 + 4;
const STRETCH_BYTES: usize = 24;
const _: () = assert!(
    HEAD_BYTES as u64 + (limits::SEGMENT_BYTES_LIMIT / limits::STRETCH_BYTES + 1) * STRETCH_BYTES as u64
        <= limits::SUMMARY_BYTES_MAX as u64,
    "the summary of the largest segment can be read back"
);

/// What a summary says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// The segment's base and length: another segment's summary is of no use.
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// Milliseconds since the Unix epoch.
    pub(crate) first_arrival_ms: i64,
    pub(crate) last_arrival_ms: i64,
    pub(crate) index: Index,
}

impl Summary {
    /// magic | base | bytes | first arrival | last arrival | messages | largest timestamp | stretches (u32) |
    /// stretches: offset, messages before, largest timestamp before | CRC-32 of all before it
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Index { messages, max_timestamp_ms, stretches, .. } = &self.index;
        let mut out = Vec::with_capacity(HEAD_BYTES + stretches.len() * STRETCH_BYTES + 4);
        out.extend(MAGIC);
        out.extend(self.base.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.first_arrival_ms.to_le_bytes());
        out.extend(self.last_arrival_ms.to_le_bytes());
        out.extend(messages.to_le_bytes());
        out.extend(max_timestamp_ms.to_le_bytes());
        out.extend((stretches.len() as u32).to_le_bytes());
        for stretch in stretches {
            out.extend(stretch.offset.to_le_bytes());
            out.extend(stretch.messages_before.to_le_bytes());
            out.extend(stretch.max_timestamp_before_ms.to_le_bytes());
        }
        out.extend(crc32fast::hash(&out).to_le_bytes());
        out
    }

    /// Reads what `encode` wrote; `None` for anything else.
    pub(crate) fn decode(content: &[u8]) -> Option<Summary> {
        let (body, crc) = content.split_last_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut words = body.strip_prefix(&MAGIC)?;
        let mut next = || {
            let (word, rest) = words.split_first_chunk::<8>()?;
            words = rest;
            Some(u64::from_le_bytes(*word))
        };
        let (base, bytes) = (next()?, next()?);
        let (first_arrival_ms, last_arrival_ms) = (next()? as i64, next()? as i64);
        let (messages, max_timestamp_ms) = (next()?, next()? as i64);
        let (count, rest) = words.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count);
        let (stretches, rest) = rest.as_chunks::<STRETCH_BYTES>();
        if !rest.is_empty() || stretches.len() != count as usize {
            return None;
        }
        let word = |entry: &[u8; STRETCH_BYTES], at: usize| {
            u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes make a word"))
        };
        let stretches = stretches.iter().map(|entry| Stretch {
            offset: word(entry, 0),
            messages_before: word(entry, 8),
            max_timestamp_before_ms: word(entry, 16) as i64,
        });
        let stretches = stretches.collect();
        let index = Index {
            stretch_bytes: limits::STRETCH_BYTES,
            known_from: 0,
            end: bytes,
            messages,
            max_timestamp_ms,
            stretches,
        };
        Some(Summary { base, bytes, first_arrival_ms, last_arrival_ms, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Run;

    fn summary() -> Summary {
        let mut index = Index::new(0, limits::STRETCH_BYTES);
        for time in 0..5 {
            index.append(Run { bytes: 70_000, messages: 3, max_timestamp_ms: time });
        }
        Summary { base: 7, bytes: 350_000, first_arrival_ms: 1, last_arrival_ms: 2, index }
    }

    #[test]
    fn a_summary_reads_as_it_was_written() {
        assert_eq!(Summary::decode(&summary().encode()), Some(summary()));
    }

    #[test]
    fn a_summary_that_was_hurt_is_not_believed() {
        let good = summary().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(Summary::decode(&bad), None, "byte {at}");
            assert_eq!(Summary::decode(&good[..at]), None, "cut at {at}");
        }
    }
}
