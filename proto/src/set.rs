//! Message sets, the unit of publishing: the broker's check (its hot path: one pass, the CRCs taken in place, no
//! allocation), the walk from message to message, the builder.

use crate::codec::Codec;
use crate::frame::Status;
use crate::message::{FormatError, Message};
pub use crate::set_builder::SetBuilder;

/// What a set must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetLimits {
    /// Bytes of the longest message.
    pub message_bytes_max: u32,
    /// Bytes of the longest set.
    pub set_bytes_max: u32,
    /// Bytes that a wrapper may claim to unpack to.
    pub uncompressed_bytes_max: u32,
    /// What to do with the parts of the format that publishers may not use yet.
    pub reserved: Reserved,
}

/// What to do with producer blocks and gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// Refuse them: a publish.
    Refuse,
    /// Accept them: what is stored already.
    Accept,
}

/// What a check found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetInfo {
    /// Messages in the set, a wrapper counted as one.
    pub messages: u32,
    /// Messages in the set as consumers will see them: a wrapper counted as what it claims to hold, a gap as none.
    pub messages_inside: u64,
    /// The largest timestamp.
    pub max_timestamp_ms: i64,
    /// Where the last message begins, in bytes from the set's beginning.
    pub last_offset: u32,
    /// The last message's length in bytes.
    pub last_length: u32,
    /// The last message's CRC.
    pub last_crc: u32,
}

/// Why a set is refused: nothing of it may be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message {index} of the set: {reason}")]
pub struct InvalidMessage {
    /// Which message, from 0.
    pub index: u32,
    /// What is wrong.
    pub reason: InvalidReason,
}

/// What is wrong with a message of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidReason {
    /// It is no message.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// There is nothing at all.
    #[error("the set is empty")]
    EmptySet,
    /// The whole set is too long.
    #[error("a set of {bytes} bytes is above the limit of {limit}")]
    SetTooLong {
        /// Bytes of the set.
        bytes: usize,
        /// The limit.
        limit: u32,
    },
    /// It says that it is the last of the set, but more bytes follow.
    #[error("it is marked as the last of its set, but more follows")]
    LastTooEarly,
    /// It is the last of the set, but does not say so.
    #[error("it ends the set, but is not marked as its last")]
    LastNotMarked,
    /// A wrapper claims to unpack to too much.
    #[error("it unpacks to {bytes} bytes, above the limit of {limit}")]
    UnpacksTooLong {
        /// The claim.
        bytes: u32,
        /// The limit.
        limit: u32,
    },
    /// Only the first message of a set may have a producer block.
    #[error("it has a producer block, but is not the first of its set")]
    ProducerBlockNotFirst,
    /// Producer blocks are not accepted yet.
    #[error("producer blocks are not supported at publish")]
    ProducerBlock,
    /// Gaps are made by the broker, not by publishers.
    #[error("gaps are not supported at publish")]
    Gap,
}

impl InvalidMessage {
    /// The status that a publish with this set is answered with.
    pub fn status(&self) -> Status {
        match self.reason {
            InvalidReason::ProducerBlock
            | InvalidReason::Gap
            | InvalidReason::Format(FormatError::UnknownVersion { .. } | FormatError::UnknownCodec { .. }) => {
                Status::Unsupported
            }
            _ if self.limit().is_some() => Status::TooLarge,
            _ => Status::InvalidMessage,
        }
    }

    /// The limit that was exceeded, if that is what is wrong.
    pub fn limit(&self) -> Option<u32> {
        match self.reason {
            InvalidReason::SetTooLong { limit, .. }
            | InvalidReason::UnpacksTooLong { limit, .. }
            | InvalidReason::Format(FormatError::TooLong { limit, .. }) => Some(limit),
            _ => None,
        }
    }
}

/// Checks that `bytes` is one whole message set: every message parses, every CRC holds, the last message and no other is
/// marked as the last, every limit is kept. One pass; allocates nothing.
///
/// ```
/// use corelane_proto::message::MessageParts;
/// use corelane_proto::set::{Reserved, SetBuilder, SetLimits, check_set};
/// let limits = SetLimits {
///     message_bytes_max: 1 << 20,
///     set_bytes_max: 1 << 20,
///     uncompressed_bytes_max: 1 << 20,
///     reserved: Reserved::Refuse,
/// };
/// let mut builder = SetBuilder::new();
/// builder.push(&MessageParts { value: Some(b"one"), ..MessageParts::default() }).unwrap();
/// builder.push(&MessageParts { value: Some(b"two"), ..MessageParts::default() }).unwrap();
/// let set = builder.finish();
/// assert_eq!(check_set(&set, &limits).unwrap().messages, 2);
/// assert_eq!(check_set(&set[..set.len() - 1], &limits).unwrap_err().index, 1);
/// ```
pub fn check_set(bytes: &[u8], limits: &SetLimits) -> Result<SetInfo, InvalidMessage> {
    if bytes.is_empty() {
        return Err(InvalidMessage { index: 0, reason: InvalidReason::EmptySet });
    }
    if bytes.len() > limits.set_bytes_max as usize {
        let reason = InvalidReason::SetTooLong { bytes: bytes.len(), limit: limits.set_bytes_max };
        return Err(InvalidMessage { index: 0, reason });
    }
    let mut info = SetInfo {
        messages: 0,
        messages_inside: 0,
        max_timestamp_ms: i64::MIN,
        last_offset: 0,
        last_length: 0,
        last_crc: 0,
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        let index = info.messages;
        let invalid = |reason| InvalidMessage { index, reason };
        let message = Message::parse(rest, limits.message_bytes_max).map_err(|error| invalid(error.into()))?;
        let messages_inside = check_in_set(&message, index, limits).map_err(invalid)?;
        let offset = bytes.len() - rest.len();
        rest = &rest[message.length() as usize..];
        if message.is_last() != rest.is_empty() {
            let too_early = message.is_last();
            return Err(invalid(if too_early { InvalidReason::LastTooEarly } else { InvalidReason::LastNotMarked }));
        }
        info.messages += 1;
        info.messages_inside += messages_inside;
        info.max_timestamp_ms = info.max_timestamp_ms.max(message.timestamp_ms());
        info.last_offset = offset as u32;
        info.last_length = message.length();
        info.last_crc = message.header().crc;
    }
    Ok(info)
}

/// What a message may be in this set, and how many messages it stands for.
#[inline]
fn check_in_set(message: &Message<'_>, index: u32, limits: &SetLimits) -> Result<u64, InvalidReason> {
    if message.producer().is_some() {
        if limits.reserved == Reserved::Refuse {
            return Err(InvalidReason::ProducerBlock);
        }
        if index > 0 {
            return Err(InvalidReason::ProducerBlockNotFirst);
        }
    }
    match message.codec() {
        Codec::Plain => return Ok(1),
        Codec::Gap if limits.reserved == Reserved::Refuse => return Err(InvalidReason::Gap),
        _ => {}
    }
    let Some(claims) = message.wrapper_claims() else { return Ok(0) };
    if claims.uncompressed_bytes > limits.uncompressed_bytes_max {
        let limit = limits.uncompressed_bytes_max;
        return Err(InvalidReason::UnpacksTooLong { bytes: claims.uncompressed_bytes, limit });
    }
    Ok(u64::from(claims.messages))
}

/// Walks from message to message, each checked whole. An error ends the walk; [`Walk::offset`] then is where the message
/// in question begins. Bytes that end inside a message earn [`FormatError::Truncated`].
pub fn walk(bytes: &[u8], message_bytes_max: u32) -> Walk<'_> {
    Walk { bytes, offset: 0, message_bytes_max, failed: false }
}

/// See [`walk`].
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    bytes: &'a [u8],
    offset: usize,
    message_bytes_max: u32,
    failed: bool,
}

impl Walk<'_> {
    /// Where the next message begins: the sum of the lengths of those walked over.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Result<Message<'a>, FormatError>;
    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.bytes[self.offset..];
        if self.failed || rest.is_empty() {
            return None;
        }
        let parsed = Message::parse(rest, self.message_bytes_max);
        match &parsed {
            Ok(message) => self.offset += message.length() as usize,
            Err(_) => self.failed = true,
        }
        Some(parsed)
    }
}
