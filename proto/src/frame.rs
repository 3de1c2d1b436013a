//! Frames: a fixed header, a protobuf message, a raw payload; the same in both directions. The header is checked against
//! the limits here, before anything is allocated for what it claims. No I/O.

use bytes::{BufMut, BytesMut};
use prost::Message;

use crate::fields::{u16_at, u32_at};
pub use crate::method::{Method, UnknownMethod};
pub use crate::status::{Retry, Status, UnknownStatus};

/// The version of the protocol that this crate speaks; Hello carries it.
pub const PROTOCOL_VERSION: u32 = 1;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the longest protobuf message in a frame.
pub const PROTO_BYTES_MAX: u32 = 4 << 20;
/// Bytes of the longest protobuf message in a request; a broker refuses more.
pub const REQUEST_PROTO_BYTES_MAX: u32 = 64 << 10;
/// Bytes of the longest Hello, header included. So small that the first bytes of an HTTP request or of a TLS handshake,
/// read as a frame's length, are far above it.
pub const HELLO_BYTES_MAX: u32 = 4096;

/// Bytes of the header that the length field counts.
const COUNTED_HEADER_BYTES: u32 = HEADER_BYTES as u32 - 4;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the frame after the first 4.
    pub body_bytes: u32,
    /// Chosen by the client, echoed by the broker.
    pub correlation: u32,
    /// The method's number in a request, the status in a response.
    pub code: u16,
    /// Always 0 in this version.
    pub flags: u16,
    /// Bytes of the protobuf message.
    pub proto_bytes: u32,
}

/// Why a frame's header is refused. After any of these but `UnknownFlags` the connection is of no use any more: where
/// the next frame begins is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is longer than the receiver allows.
    #[error("a frame of {bytes} bytes is above the limit of {limit}")]
    TooLarge {
        /// Bytes of the whole frame.
        bytes: u64,
        /// The most allowed.
        limit: u32,
    },
    /// The length does not even cover the header.
    #[error("a frame's length of {body_bytes} is less than its header")]
    TooShort {
        /// The length field.
        body_bytes: u32,
    },
    /// The protobuf message is longer than any may be.
    #[error("a protobuf message of {bytes} bytes is above the limit of {limit}")]
    ProtoTooLarge {
        /// Its claimed length.
        bytes: u32,
        /// The most allowed.
        limit: u32,
    },
    /// The protobuf message would end beyond the frame.
    #[error("a protobuf message of {proto_bytes} bytes does not fit its frame of {body_bytes}")]
    ProtoBeyondFrame {
        /// Its claimed length.
        proto_bytes: u32,
        /// The frame's length field.
        body_bytes: u32,
    },
    /// Flags that this version does not know. The frame can be skipped: its length holds.
    #[error("frame flags {flags:#06x} are unknown")]
    UnknownFlags {
        /// The flags.
        flags: u16,
        /// For the answer.
        correlation: u32,
        /// How many bytes follow the header.
        rest_bytes: u32,
    },
}

impl FrameHeader {
    /// The header of a frame of which the parts are known. Panics above 4 GiB: senders keep to the receiver's limit.
    pub fn new(code: u16, correlation: u32, proto_bytes: usize, payload_bytes: usize) -> FrameHeader {
        let body_bytes = u32::try_from(COUNTED_HEADER_BYTES as usize + proto_bytes + payload_bytes)
            .expect("a frame that is sent is below 4 GiB");
        FrameHeader { body_bytes, correlation, code, flags: 0, proto_bytes: proto_bytes as u32 }
    }

    /// The 16 bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.correlation.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.code.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.proto_bytes.to_le_bytes());
        bytes
    }

    /// Reads and checks a header; `frame_bytes_max` is the most that the whole frame, header included, may have.
    pub fn decode(bytes: &[u8; HEADER_BYTES], frame_bytes_max: u32) -> Result<FrameHeader, FrameError> {
        let header = FrameHeader {
            body_bytes: u32_at(bytes, 0),
            correlation: u32_at(bytes, 4),
            code: u16_at(bytes, 8),
            flags: u16_at(bytes, 10),
            proto_bytes: u32_at(bytes, 12),
        };
        let FrameHeader { body_bytes, proto_bytes, flags, correlation, .. } = header;
        if body_bytes < COUNTED_HEADER_BYTES {
            return Err(FrameError::TooShort { body_bytes });
        }
        let frame_bytes = u64::from(body_bytes) + 4;
        if frame_bytes > u64::from(frame_bytes_max) {
            return Err(FrameError::TooLarge { bytes: frame_bytes, limit: frame_bytes_max });
        }
        let rest_bytes = body_bytes - COUNTED_HEADER_BYTES;
        if proto_bytes > rest_bytes {
            return Err(FrameError::ProtoBeyondFrame { proto_bytes, body_bytes });
        }
        if flags != 0 {
            return Err(FrameError::UnknownFlags { flags, correlation, rest_bytes });
        }
        if proto_bytes > PROTO_BYTES_MAX {
            return Err(FrameError::ProtoTooLarge { bytes: proto_bytes, limit: PROTO_BYTES_MAX });
        }
        Ok(header)
    }

    /// Bytes of the payload behind the protobuf message.
    pub fn payload_bytes(&self) -> usize {
        (self.body_bytes - COUNTED_HEADER_BYTES - self.proto_bytes) as usize
    }

    /// Bytes of the whole frame.
    pub fn frame_bytes(&self) -> u64 {
        u64::from(self.body_bytes) + 4
    }
}

/// Appends a request's header and protobuf message to `out`; the caller sends `payload_bytes` bytes behind them.
///
/// ```
/// use corelane_proto::{frame::{self, FrameHeader, Method}, pb};
/// let mut out = bytes::BytesMut::new();
/// frame::encode_request(&mut out, Method::Metadata, 7, &pb::MetadataRequest { topics: vec!["t".into()], ..Default::default() }, 0);
/// let header = FrameHeader::decode(out[..16].try_into().unwrap(), 1024).unwrap();
/// assert_eq!((header.correlation, Method::try_from(header.code)), (7, Ok(Method::Metadata)));
/// assert_eq!(out.len(), 16 + header.proto_bytes as usize);
/// ```
pub fn encode_request(
    out: &mut BytesMut,
    method: Method,
    correlation: u32,
    message: &impl Message,
    payload_bytes: usize,
) {
    encode_head(out, method.code(), correlation, message, payload_bytes);
}

/// Appends a response's header and protobuf message to `out`; the caller sends `payload_bytes` bytes behind them. With
/// another status than OK the message is a [`pb::Error`](crate::pb::Error).
pub fn encode_response(
    out: &mut BytesMut,
    status: Status,
    correlation: u32,
    message: &impl Message,
    payload_bytes: usize,
) {
    encode_head(out, status.code(), correlation, message, payload_bytes);
}

fn encode_head(out: &mut BytesMut, code: u16, correlation: u32, message: &impl Message, payload_bytes: usize) {
    let proto_bytes = message.encoded_len();
    out.reserve(HEADER_BYTES + proto_bytes);
    out.put_slice(&FrameHeader::new(code, correlation, proto_bytes, payload_bytes).encode());
    message.encode(out).expect("a BytesMut grows to hold the message");
}
