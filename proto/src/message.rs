//! One message: the view that parses it and the parts that encode it. Both borrow; neither allocates per message. The
//! byte layout is in docs/format.md, and `tests/golden.rs` pins it.

mod encode;
mod error;
mod headers;

pub use encode::{EncodeError, MessageParts, encode_gap};
pub(crate) use encode::{put_header, seal};
pub use error::FormatError;
pub use headers::{Header, Headers};

use crate::codec::Codec;
use crate::fields::{i64_at, u16_at, u32_at, u64_at};
use crate::wrapper::WrapperClaims;

/// Bytes of a message's fixed header; no message is shorter.
pub const HEADER_BYTES: usize = 24;
/// The version of the format.
pub const VERSION: u8 = 1;
/// Bytes of a producer block.
pub const PRODUCER_BLOCK_BYTES: usize = 14;
/// Bytes of the longest key.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// No topic allows messages, nor sets, wrapped or not, above this; so a reader that knows no better limit can use it.
pub const MESSAGE_BYTES_LIMIT: u32 = 64 << 20;

/// Where the bytes that the CRC covers begin.
pub const CRC_FROM: usize = 8;
/// Where the CRC of a gap ends.
const GAP_CRC_TO: usize = HEADER_BYTES;

/// Bits of the attributes.
pub(crate) mod attributes {
    pub(crate) const CODEC: u8 = 0b0000_0111;
    pub(crate) const KEY: u8 = 1 << 3;
    pub(crate) const HEADERS: u8 = 1 << 4;
    pub(crate) const TOMBSTONE: u8 = 1 << 5;
    pub(crate) const PRODUCER: u8 = 1 << 6;
    pub(crate) const LAST: u8 = 1 << 7;
}

/// What the first 24 bytes of a message say, unchecked but for the length: enough to walk from message to message, to
/// know how many bytes to read, and which of them the CRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// Bytes of the whole message.
    pub length: u32,
    /// The CRC that it claims.
    pub crc: u32,
    /// The version that it claims.
    pub version: u8,
    /// The attribute bits.
    pub attributes: u8,
    /// Bytes of the key.
    pub key_bytes: u16,
    /// Bytes of the headers block.
    pub headers_bytes: u32,
    /// Milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
}

impl MessageHeader {
    /// Reads the header at the beginning of `bytes` and checks its length against 24 and `message_bytes_max`, and
    /// nothing else.
    #[inline]
    pub fn read(bytes: &[u8], message_bytes_max: u32) -> Result<MessageHeader, FormatError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(FormatError::Truncated { needed: HEADER_BYTES, available: bytes.len() });
        };
        let header = MessageHeader {
            length: u32_at(bytes, 0),
            crc: u32_at(bytes, 4),
            version: bytes[8],
            attributes: bytes[9],
            key_bytes: u16_at(bytes, 10),
            headers_bytes: u32_at(bytes, 12),
            timestamp_ms: i64_at(bytes, 16),
        };
        if header.length < HEADER_BYTES as u32 {
            return Err(FormatError::TooShort { length: header.length });
        }
        if header.length > message_bytes_max {
            return Err(FormatError::TooLong { length: header.length, limit: message_bytes_max });
        }
        Ok(header)
    }

    /// Where the bytes that the CRC covers end; they begin at [`CRC_FROM`].
    #[inline]
    pub fn crc_to(&self) -> usize {
        if self.is_gap() { GAP_CRC_TO } else { self.length as usize }
    }

    /// Whether it claims to be a gap.
    #[inline]
    pub fn is_gap(&self) -> bool {
        self.attributes & attributes::CODEC == Codec::Gap as u8
    }

    /// Whether it claims to be the last of its set.
    #[inline]
    pub fn is_last(&self) -> bool {
        self.attributes & attributes::LAST != 0
    }

    /// Whether it claims to have a producer block: the first message of a set may.
    #[inline]
    pub fn has_producer_block(&self) -> bool {
        self.has(attributes::PRODUCER)
    }

    #[inline]
    fn has(&self, bit: u8) -> bool {
        self.attributes & bit != 0
    }

    #[inline]
    fn producer_bytes(&self) -> usize {
        if self.has(attributes::PRODUCER) { PRODUCER_BLOCK_BYTES } else { 0 }
    }

    /// Version, bits and lengths against each other; the codec.
    #[inline]
    fn check(&self) -> Result<Codec, FormatError> {
        if self.version != VERSION {
            return Err(FormatError::UnknownVersion { version: self.version });
        }
        let codec_bits = self.attributes & attributes::CODEC;
        let codec = Codec::from_bits(codec_bits).ok_or(FormatError::UnknownCodec { codec: codec_bits })?;
        if self.key_bytes != 0 && !self.has(attributes::KEY) {
            return Err(FormatError::UnexpectedKey { key_bytes: self.key_bytes });
        }
        if codec == Codec::Gap {
            let fields = attributes::KEY | attributes::HEADERS | attributes::TOMBSTONE | attributes::PRODUCER;
            if self.has(fields) || self.headers_bytes != self.length {
                return Err(FormatError::BadGap { length: self.length, repeated: self.headers_bytes });
            }
            return Ok(codec);
        }
        if self.headers_bytes != 0 && !self.has(attributes::HEADERS) {
            return Err(FormatError::UnexpectedHeaders { headers_bytes: self.headers_bytes });
        }
        if codec.is_wrapper() && self.has(attributes::KEY | attributes::HEADERS | attributes::TOMBSTONE) {
            return Err(FormatError::BadWrapper { reason: "it has a key, headers or no value" });
        }
        let value_at =
            (HEADER_BYTES + self.producer_bytes() + usize::from(self.key_bytes)) as u64 + u64::from(self.headers_bytes);
        if value_at > u64::from(self.length) {
            return Err(FormatError::FieldsTooLong { fields_bytes: value_at, length: self.length });
        }
        if self.has(attributes::TOMBSTONE) && value_at < u64::from(self.length) {
            return Err(FormatError::TombstoneWithValue { value_bytes: self.length - value_at as u32 });
        }
        Ok(codec)
    }
}

/// Who sent a set: on the first message of a set only, known to the format, not yet accepted at publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProducerBlock {
    /// The producer.
    pub producer_id: u64,
    /// Counts its lives.
    pub epoch: u16,
    /// The sequence number of the set's first message.
    pub sequence: u32,
}

impl ProducerBlock {
    /// The 14 bytes.
    pub fn encode(&self) -> [u8; PRODUCER_BLOCK_BYTES] {
        let mut bytes = [0; PRODUCER_BLOCK_BYTES];
        bytes[0..8].copy_from_slice(&self.producer_id.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[10..14].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// From the 14 bytes.
    pub fn decode(bytes: [u8; PRODUCER_BLOCK_BYTES]) -> ProducerBlock {
        ProducerBlock { producer_id: u64_at(&bytes, 0), epoch: u16_at(&bytes, 8), sequence: u32_at(&bytes, 10) }
    }
}

/// A message that was checked whole: length, CRC, version, every field. A view of its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    bytes: &'a [u8],
    header: MessageHeader,
    codec: Codec,
}

impl<'a> Message<'a> {
    /// Parses the message at the beginning of `bytes`; more bytes may follow it. The CRC is checked before the version,
    /// so that a torn header is not taken for a newer version. [`FormatError::Truncated`] says how many bytes the
    /// message needs when `bytes` ends inside it.
    pub fn parse(bytes: &'a [u8], message_bytes_max: u32) -> Result<Message<'a>, FormatError> {
        let header = MessageHeader::read(bytes, message_bytes_max)?;
        let Some(bytes) = bytes.get(..header.length as usize) else {
            return Err(FormatError::Truncated { needed: header.length as usize, available: bytes.len() });
        };
        let computed = crc32fast::hash(&bytes[CRC_FROM..header.crc_to()]);
        if computed != header.crc {
            return Err(FormatError::BadCrc { stored: header.crc, computed });
        }
        let codec = header.check()?;
        let message = Message { bytes, header, codec };
        if header.has(attributes::HEADERS) {
            headers::check(message.headers_block())?;
        }
        if codec.is_wrapper() {
            WrapperClaims::read(message.value().unwrap_or_default(), header.length)?;
        }
        Ok(message)
    }

    /// The view of a message that [`parse`](Message::parse) has passed before: its CRC, headers and claims are not looked
    /// at again, so that a reader may check messages as they arrive and take them apart when they are wanted. Of bytes that
    /// were never checked it may show nonsense, but it never panics.
    #[inline]
    pub fn view(bytes: &'a [u8]) -> Result<Message<'a>, FormatError> {
        let header = MessageHeader::read(bytes, u32::MAX)?;
        let Some(bytes) = bytes.get(..header.length as usize) else {
            return Err(FormatError::Truncated { needed: header.length as usize, available: bytes.len() });
        };
        Ok(Message { bytes, header, codec: header.check()? })
    }

    /// All of its bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its header.
    #[inline]
    pub fn header(&self) -> &MessageHeader {
        &self.header
    }

    /// Its length in bytes; the next message's id is this one's plus it.
    #[inline]
    pub fn length(&self) -> u32 {
        self.header.length
    }

    /// What the value is.
    #[inline]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Milliseconds since the Unix epoch, as the producer set them; of a wrapper, the largest inside.
    #[inline]
    pub fn timestamp_ms(&self) -> i64 {
        self.header.timestamp_ms
    }

    /// Whether it ends its set.
    #[inline]
    pub fn is_last(&self) -> bool {
        self.header.is_last()
    }

    /// Who sent its set, if it says so.
    pub fn producer(&self) -> Option<ProducerBlock> {
        if !self.header.has(attributes::PRODUCER) {
            return None;
        }
        self.bytes[HEADER_BYTES..].first_chunk().copied().map(ProducerBlock::decode)
    }

    #[inline]
    fn key_at(&self) -> usize {
        HEADER_BYTES + self.header.producer_bytes()
    }

    #[inline]
    fn headers_at(&self) -> usize {
        self.key_at() + usize::from(self.header.key_bytes)
    }

    /// The key; an empty key is not the same as none.
    #[inline]
    pub fn key(&self) -> Option<&'a [u8]> {
        self.header.has(attributes::KEY).then(|| &self.bytes[self.key_at()..self.headers_at()])
    }

    fn headers_block(&self) -> &'a [u8] {
        if !self.header.has(attributes::HEADERS) {
            return &[];
        }
        let at = self.headers_at();
        &self.bytes[at..at + self.header.headers_bytes as usize]
    }

    /// The headers, in order.
    pub fn headers(&self) -> Headers<'a> {
        Headers::new(self.headers_block())
    }

    /// The value; `None` is a tombstone (or a gap, which has nothing at all). Of a wrapper: claims, packed set, padding.
    #[inline]
    pub fn value(&self) -> Option<&'a [u8]> {
        if self.header.has(attributes::TOMBSTONE) || self.codec == Codec::Gap {
            return None;
        }
        Some(&self.bytes[self.headers_at() + self.header.headers_bytes as usize..])
    }

    /// What a wrapper says about the set inside; `None` for other messages.
    pub fn wrapper_claims(&self) -> Option<WrapperClaims> {
        if !self.codec.is_wrapper() {
            return None;
        }
        self.value()?.first_chunk().map(WrapperClaims::decode)
    }
}

impl std::fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("length", &self.header.length)
            .field("codec", &self.codec)
            .field("is_last", &self.is_last())
            .field("timestamp_ms", &self.header.timestamp_ms)
            .field("producer", &self.producer())
            .field("key", &self.key())
            .field("headers", &self.headers())
            .field("value", &self.value())
            .finish()
    }
}
