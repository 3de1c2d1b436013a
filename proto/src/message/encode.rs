//! The encoder of messages.

use bytes::{BufMut, BytesMut};

use super::{CRC_FROM, HEADER_BYTES, Header, KEY_BYTES_MAX, PRODUCER_BLOCK_BYTES, ProducerBlock, VERSION, attributes};
use crate::codec::Codec;

/// Where the CRC stands.
const CRC_AT: usize = 4;
/// Where the attributes stand.
const ATTRIBUTES_AT: usize = 9;

/// What a plain message is made of.
///
/// ```
/// use corelane_proto::message::{Message, MessageParts};
/// let mut out = bytes::BytesMut::new();
/// let parts = MessageParts { key: Some(b"k"), value: Some(b"hello"), ..MessageParts::default() };
/// parts.encode_into(true, &mut out).unwrap();
/// let message = Message::parse(&out, 1024).unwrap();
/// assert_eq!((message.key(), message.value()), (Some(&b"k"[..]), Some(&b"hello"[..])));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageParts<'a> {
    /// Milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
    /// The key, if any; at most 65,535 bytes.
    pub key: Option<&'a [u8]>,
    /// The headers; none of them makes a message without a headers block.
    pub headers: &'a [Header<'a>],
    /// The value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// The producer block; only on the first message of a set.
    pub producer: Option<ProducerBlock>,
}

/// Why parts do not make a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The key is too long.
    #[error("a key of {bytes} bytes is above the limit of {KEY_BYTES_MAX}")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A header's name is too long.
    #[error("a header's name of {bytes} bytes is above the limit of 65535")]
    HeaderNameTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The whole is too long for any message.
    #[error("a message of {bytes} bytes is above the limit of {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: u32,
    },
}

impl MessageParts<'_> {
    /// Bytes of the message that these parts make.
    pub fn encoded_bytes(&self) -> usize {
        HEADER_BYTES
            + self.producer.map_or(0, |_| PRODUCER_BLOCK_BYTES)
            + self.key.map_or(0, <[u8]>::len)
            + self.headers_bytes()
            + self.value.map_or(0, <[u8]>::len)
    }

    fn headers_bytes(&self) -> usize {
        self.headers.iter().map(Header::encoded_bytes).sum()
    }

    /// Appends the message to `out` and returns its length; on an error `out` is as it was. `last` ends the set.
    pub fn encode_into(&self, last: bool, out: &mut BytesMut) -> Result<usize, EncodeError> {
        let at = out.len();
        let bytes = self.encode_open(out)?;
        seal(&mut out[at..], last);
        Ok(bytes)
    }

    /// Appends the message but for its CRC, which [`seal`] adds once it is known whether the message is the last.
    pub(crate) fn encode_open(&self, out: &mut BytesMut) -> Result<usize, EncodeError> {
        let bytes = self.encoded_bytes();
        self.check(bytes)?;
        let flag = |bit, set| if set { bit } else { 0 };
        let attributes = flag(attributes::KEY, self.key.is_some())
            | flag(attributes::HEADERS, !self.headers.is_empty())
            | flag(attributes::TOMBSTONE, self.value.is_none())
            | flag(attributes::PRODUCER, self.producer.is_some());
        let key = self.key.unwrap_or_default();
        out.reserve(bytes);
        put_header(
            out,
            bytes as u32,
            attributes | Codec::Plain as u8,
            key.len() as u16,
            self.headers_bytes() as u32,
            self.timestamp_ms,
        );
        if let Some(producer) = self.producer {
            out.put_slice(&producer.encode());
        }
        out.put_slice(key);
        self.headers.iter().for_each(|header| header.encode_into(out));
        out.put_slice(self.value.unwrap_or_default());
        Ok(bytes)
    }

    fn check(&self, bytes: usize) -> Result<(), EncodeError> {
        if let Some(key) = self.key.filter(|key| key.len() > KEY_BYTES_MAX) {
            return Err(EncodeError::KeyTooLong { bytes: key.len() });
        }
        if let Some(header) = self.headers.iter().find(|header| header.name.len() > usize::from(u16::MAX)) {
            return Err(EncodeError::HeaderNameTooLong { bytes: header.name.len() });
        }
        if bytes > super::MESSAGE_BYTES_LIMIT as usize {
            return Err(EncodeError::TooLong { bytes, limit: super::MESSAGE_BYTES_LIMIT });
        }
        Ok(())
    }
}

/// Appends a gap of `length` bytes, at least 24: a header, then zeros, which the CRC does not cover.
pub fn encode_gap(length: u32, timestamp_ms: i64, last: bool, out: &mut BytesMut) {
    assert!(length as usize >= HEADER_BYTES, "a gap has at least a header, not {length} bytes");
    let at = out.len();
    put_header(out, length, Codec::Gap as u8, 0, length, timestamp_ms);
    seal(&mut out[at..], last);
    out.put_bytes(0, length as usize - HEADER_BYTES);
}

/// Appends a header with a CRC of 0.
pub(crate) fn put_header(
    out: &mut BytesMut,
    length: u32,
    attributes: u8,
    key_bytes: u16,
    headers_bytes: u32,
    timestamp_ms: i64,
) {
    let mut header = [0; HEADER_BYTES];
    header[0..4].copy_from_slice(&length.to_le_bytes());
    header[8] = VERSION;
    header[ATTRIBUTES_AT] = attributes;
    header[10..12].copy_from_slice(&key_bytes.to_le_bytes());
    header[12..16].copy_from_slice(&headers_bytes.to_le_bytes());
    header[16..24].copy_from_slice(&timestamp_ms.to_le_bytes());
    out.put_slice(&header);
}

/// Ends a message: the last-of-set bit, then the CRC. Of a gap only the header is given.
pub(crate) fn seal(message: &mut [u8], last: bool) {
    if last {
        message[ATTRIBUTES_AT] |= attributes::LAST;
    }
    let crc = crc32fast::hash(&message[CRC_FROM..]);
    message[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_le_bytes());
}
