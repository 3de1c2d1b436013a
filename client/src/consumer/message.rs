//! A consumed message: views of the buffer that was received, parsed when asked for, nothing copied.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// Where messages come from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: u32,
}

/// A message as a consumer gets it. It is a view of the received piece: keeping one keeps the piece (about
/// [`fetch_bytes`](crate::ConsumerBuilder::fetch_bytes)) in memory; copy what is to live long.
#[derive(Clone)]
pub struct ConsumedMessage {
    pub(crate) source: Arc<Source>,
    /// The whole message as it lies in the log, its parts found by the offsets below.
    pub(crate) bytes: Bytes,
    pub(crate) position: u64,
    pub(crate) next_position: u64,
    pub(crate) timestamp_ms: i64,
    pub(crate) key_at: u32,
    pub(crate) headers_at: u32,
    pub(crate) value_at: u32,
    pub(crate) has_key: bool,
    pub(crate) has_value: bool,
}

impl ConsumedMessage {
    /// The topic.
    pub fn topic(&self) -> &str {
        &self.source.topic
    }

    /// The partition.
    pub fn partition(&self) -> u32 {
        self.source.partition
    }

    /// The message's number in its partition: its id, or inside a compressed set the set's id plus its index.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Where to go on after this message.
    pub fn next_position(&self) -> u64 {
        self.next_position
    }

    /// Milliseconds since the Unix epoch, as the producer set them.
    pub fn timestamp_ms(&self) -> i64 {
        self.timestamp_ms
    }

    /// The key; an empty key is not the same as none.
    pub fn key(&self) -> Option<&[u8]> {
        self.has_key.then(|| &self.bytes[self.key_at as usize..self.headers_at as usize])
    }

    /// The value; none for a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        self.has_value.then(|| &self.bytes[self.value_at as usize..])
    }

    /// The key as a view that can be kept.
    pub fn key_bytes(&self) -> Option<Bytes> {
        self.has_key.then(|| self.bytes.slice(self.key_at as usize..self.headers_at as usize))
    }

    /// The value as a view that can be kept.
    pub fn value_bytes(&self) -> Option<Bytes> {
        self.has_value.then(|| self.bytes.slice(self.value_at as usize..))
    }

    /// The headers, in the producer's order.
    pub fn headers(&self) -> Headers<'_> {
        Headers { block: &self.bytes[self.headers_at as usize..self.value_at as usize] }
    }

    /// The message as it lies in the log, frame included.
    pub fn frame(&self) -> &Bytes {
        &self.bytes
    }
}

impl fmt::Debug for ConsumedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumedMessage")
            .field("topic", &self.source.topic)
            .field("partition", &self.source.partition)
            .field("position", &self.position)
            .field("timestamp_ms", &self.timestamp_ms)
            .field("key", &self.key())
            .field("value_bytes", &self.value().map(<[u8]>::len))
            .finish_non_exhaustive()
    }
}

/// The headers of a message: pairs of a name and a value.
#[derive(Debug, Clone)]
pub struct Headers<'a> {
    block: &'a [u8],
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        let (name_bytes, rest) = self.block.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*name_bytes)))?;
        let (value_bytes, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = match u32::from_le_bytes(*value_bytes) {
            u32::MAX => (None, rest),
            bytes => {
                let (value, rest) = rest.split_at_checked(bytes as usize)?;
                (Some(value), rest)
            }
        };
        self.block = rest;
        Some((std::str::from_utf8(name).ok()?, value))
    }
}
