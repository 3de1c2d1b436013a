//! Wrappers: a message whose value is a message set, compressed or stored. The producer wraps, the broker checks the
//! claims and stores, the consumer unwraps. One level only; nothing is unpacked beyond what was claimed and allowed.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::{self, Codec, CodecError};
use crate::fields::u32_at;
use crate::message::{FormatError, HEADER_BYTES, MESSAGE_BYTES_LIMIT, Message, MessageHeader, put_header, seal};

/// Bytes of the claims in front of the packed set.
pub const CLAIMS_BYTES: usize = 12;

/// What a wrapper says about the set inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrapperClaims {
    /// Messages inside.
    pub messages: u32,
    /// Bytes of the set, unpacked.
    pub uncompressed_bytes: u32,
    /// Bytes of the set as it is stored.
    pub stored_bytes: u32,
}

impl WrapperClaims {
    /// Reads the claims at the beginning of a wrapper's value and checks them against each other and against the
    /// wrapper's length. Nothing is unpacked.
    pub(crate) fn read(value: &[u8], length: u32) -> Result<WrapperClaims, FormatError> {
        let bad = |reason| Err(FormatError::BadWrapper { reason });
        let Some((claims, rest)) = value.split_first_chunk::<CLAIMS_BYTES>() else {
            return bad("its value is too short");
        };
        let claims = WrapperClaims::decode(claims);
        let Some(padding) = rest.get(claims.stored_bytes as usize..) else {
            return bad("its set is longer than its value");
        };
        if claims.messages == 0 {
            return bad("it holds no message");
        }
        if claims.messages > length {
            return bad("it is shorter than its message count");
        }
        if u64::from(claims.messages) * HEADER_BYTES as u64 > u64::from(claims.uncompressed_bytes) {
            return bad("its messages cannot fit its set");
        }
        if padding.iter().any(|&byte| byte != 0) {
            return bad("its padding is not zero");
        }
        Ok(claims)
    }

    /// The claims of a message that was parsed.
    pub(crate) fn decode(claims: &[u8; CLAIMS_BYTES]) -> WrapperClaims {
        WrapperClaims {
            messages: u32_at(claims, 0),
            uncompressed_bytes: u32_at(claims, 4),
            stored_bytes: u32_at(claims, 8),
        }
    }
}

/// Why a set was not wrapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WrapError {
    /// The codec cannot.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The bytes are not a set of plain messages.
    #[error("what is wrapped is not a message set: {0}")]
    NotASet(#[from] FormatError),
    /// The set, or the wrapper, would be too long.
    #[error("a set or wrapper of {bytes} bytes is above the limit of {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: u32,
    },
}

/// Why a wrapper was not unwrapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnwrapError {
    /// The codec cannot, or the bytes are damaged.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// It claims to unpack to more than is allowed.
    #[error("a wrapper unpacks to {bytes} bytes, above the limit of {limit}")]
    TooLong {
        /// The claim.
        bytes: u32,
        /// The limit.
        limit: u32,
    },
    /// What is inside is not the set of plain messages that was claimed.
    #[error("what a wrapper holds is malformed: {0}")]
    Inside(#[from] FormatError),
}

/// Makes a wrapper of a message set, which [`SetBuilder`](crate::set::SetBuilder) has made; its timestamp is the largest
/// inside. `last` marks the wrapper as the last message of the set that it will be published in.
///
/// ```
/// use corelane_proto::codec::Codec;
/// use corelane_proto::message::{Message, MessageParts};
/// use corelane_proto::{set::SetBuilder, wrapper};
/// let mut builder = SetBuilder::new();
/// builder.push(&MessageParts { value: Some(b"hello"), timestamp_ms: 5, ..MessageParts::default() }).unwrap();
/// let set = builder.finish();
/// let wrapped = wrapper::wrap(Codec::StoredSet, &set, true).unwrap();
/// let message = Message::parse(&wrapped, 1024).unwrap();
/// assert_eq!(message.timestamp_ms(), 5);
/// assert_eq!(wrapper::unwrap(&message, 1024).unwrap(), &set[..]);
/// ```
pub fn wrap(codec: Codec, set: &[u8], last: bool) -> Result<Bytes, WrapError> {
    if set.len() > MESSAGE_BYTES_LIMIT as usize {
        return Err(WrapError::TooLong { bytes: set.len(), limit: MESSAGE_BYTES_LIMIT });
    }
    let (messages, max_timestamp_ms) = survey(set)?;
    let mut packed = Vec::new();
    codec::pack(codec, set, &mut packed)?;
    let value_bytes = CLAIMS_BYTES + packed.len();
    // Messages inside are addressed by the wrapper's id + their index, so it spans at least as many ids.
    let bytes = (HEADER_BYTES + value_bytes).max(messages as usize);
    if bytes > MESSAGE_BYTES_LIMIT as usize {
        return Err(WrapError::TooLong { bytes, limit: MESSAGE_BYTES_LIMIT });
    }
    let mut out = BytesMut::with_capacity(bytes);
    put_header(&mut out, bytes as u32, codec as u8, 0, 0, max_timestamp_ms);
    out.put_u32_le(messages);
    out.put_u32_le(set.len() as u32);
    out.put_u32_le(packed.len() as u32);
    out.put_slice(&packed);
    out.put_bytes(0, bytes - out.len());
    seal(&mut out, last);
    Ok(out.freeze())
}

/// Unpacks a wrapper's set, never beyond `uncompressed_bytes_max` nor beyond what it claims. A stored set is borrowed
/// as it lies in the message. That the set consists of as many whole plain messages as claimed is checked; their CRCs
/// are for the walk over it.
pub fn unwrap<'a>(message: &Message<'a>, uncompressed_bytes_max: u32) -> Result<Cow<'a, [u8]>, UnwrapError> {
    let claims = message.wrapper_claims().ok_or(CodecError::NotAWrapper(message.codec()))?;
    if claims.uncompressed_bytes > uncompressed_bytes_max {
        return Err(UnwrapError::TooLong { bytes: claims.uncompressed_bytes, limit: uncompressed_bytes_max });
    }
    let claimed = claims.uncompressed_bytes as usize;
    let value = message.value().unwrap_or_default();
    let stored = &value[CLAIMS_BYTES..CLAIMS_BYTES + claims.stored_bytes as usize];
    let set = if message.codec() == Codec::StoredSet {
        if stored.len() != claimed {
            return Err(CodecError::SizeDiffers { codec: Codec::StoredSet, claimed }.into());
        }
        Cow::Borrowed(stored)
    } else {
        Cow::Owned(codec::unpack(message.codec(), stored, claimed)?)
    };
    let (messages, _) = survey(&set)?;
    if messages != claims.messages {
        return Err(FormatError::BadWrapper { reason: "it holds another number of messages than it says" }.into());
    }
    Ok(set)
}

/// Counts a set's messages and finds their largest timestamp, by their headers alone.
fn survey(set: &[u8]) -> Result<(u32, i64), FormatError> {
    let mut messages = 0;
    let mut max_timestamp_ms = i64::MIN;
    let mut rest = set;
    loop {
        let header = MessageHeader::read(rest, MESSAGE_BYTES_LIMIT)?;
        let needed = header.length as usize;
        if needed > rest.len() {
            return Err(FormatError::Truncated { needed, available: rest.len() });
        }
        if Codec::from_bits(header.attributes & 0b111).is_some_and(Codec::is_wrapper) {
            return Err(FormatError::BadWrapper { reason: "it holds a wrapper" });
        }
        messages += 1;
        max_timestamp_ms = max_timestamp_ms.max(header.timestamp_ms);
        rest = &rest[needed..];
        if header.is_last() != rest.is_empty() {
            return Err(FormatError::BadWrapper {
                reason: "not the last message of its set, or another, is marked so",
            });
        }
        if rest.is_empty() {
            return Ok((messages, max_timestamp_ms));
        }
    }
}
