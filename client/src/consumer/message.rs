//! A consumed message: a view of the buffer that was received, taken apart when asked for, nothing copied.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use corelane_proto::message::{self, Message};

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
    /// The whole message as it lies in the log, checked when it was received.
    pub(crate) bytes: Bytes,
    pub(crate) position: u64,
    pub(crate) next_position: u64,
    pub(crate) timestamp_ms: i64,
}

impl ConsumedMessage {
    fn view(&self) -> Message<'_> {
        Message::view(&self.bytes).expect("a message that is handed out was checked before")
    }

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
        self.view().key()
    }

    /// The value; none for a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        self.view().value()
    }

    /// The key as a view that can be kept.
    pub fn key_bytes(&self) -> Option<Bytes> {
        self.key().map(|key| self.bytes.slice_ref(key))
    }

    /// The value as a view that can be kept.
    pub fn value_bytes(&self) -> Option<Bytes> {
        self.value().map(|value| self.bytes.slice_ref(value))
    }

    /// The headers, in the producer's order: a name, and a value or none.
    pub fn headers(&self) -> Headers<'_> {
        Headers { headers: self.view().headers() }
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
#[derive(Clone)]
pub struct Headers<'a> {
    headers: message::Headers<'a>,
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        self.headers.next().map(|header| (header.name, header.value))
    }
}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}
