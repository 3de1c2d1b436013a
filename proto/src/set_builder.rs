//! Builds message sets, each message encoded straight into the set's buffer.

use bytes::{Bytes, BytesMut};

use crate::message::{EncodeError, MessageParts, seal};

/// Encodes messages into a set. A message's CRC is taken when the next one comes or the set is finished, since only then
/// it is known whether the message is the last. The builder can be used again after [`SetBuilder::finish`].
#[derive(Debug)]
pub struct SetBuilder {
    buffer: BytesMut,
    /// Bytes of the message at the buffer's end that has no CRC yet; 0: there is none.
    open_bytes: usize,
    messages: u32,
    max_timestamp_ms: i64,
}

impl Default for SetBuilder {
    fn default() -> SetBuilder {
        SetBuilder::new()
    }
}

impl SetBuilder {
    /// An empty builder.
    pub fn new() -> SetBuilder {
        SetBuilder::with_capacity(0)
    }

    /// An empty builder with room for a set of `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> SetBuilder {
        SetBuilder { buffer: BytesMut::with_capacity(bytes), open_bytes: 0, messages: 0, max_timestamp_ms: i64::MIN }
    }

    /// Appends a message and returns where it begins in the set. On an error the set is as it was.
    pub fn push(&mut self, parts: &MessageParts<'_>) -> Result<usize, EncodeError> {
        let offset = self.buffer.len();
        let bytes = parts.encode_open(&mut self.buffer)?;
        if self.open_bytes > 0 {
            seal(&mut self.buffer[offset - self.open_bytes..offset], false);
        }
        self.open_bytes = bytes;
        self.messages += 1;
        self.max_timestamp_ms = self.max_timestamp_ms.max(parts.timestamp_ms);
        Ok(offset)
    }

    /// Bytes of the set so far.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Messages in the set so far.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Whether there is no message yet.
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// The largest timestamp so far; `i64::MIN` without messages.
    pub fn max_timestamp_ms(&self) -> i64 {
        self.max_timestamp_ms
    }

    /// Ends the set: marks its last message. Without messages: no bytes. The builder is empty afterwards.
    pub fn finish(&mut self) -> Bytes {
        if self.open_bytes > 0 {
            let at = self.buffer.len() - self.open_bytes;
            seal(&mut self.buffer[at..], true);
        }
        self.open_bytes = 0;
        self.messages = 0;
        self.max_timestamp_ms = i64::MIN;
        self.buffer.split().freeze()
    }
}
