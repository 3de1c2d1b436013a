//! What can be wrong with the bytes of a message.

/// Why bytes are not a message. Bytes from a socket or a disk may earn any of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes end inside the message: the rest may still come, or never was written.
    #[error("a message of at least {needed} bytes ends after {available}")]
    Truncated {
        /// Bytes needed from the message's beginning to parse on.
        needed: usize,
        /// Bytes there are.
        available: usize,
    },
    /// The length is less than a header's; 0 is what an end that was allocated ahead looks like.
    #[error("a message's length of {length} is less than its header's 24")]
    TooShort {
        /// The length.
        length: u32,
    },
    /// The length is above the limit.
    #[error("a message of {length} bytes is above the limit of {limit}")]
    TooLong {
        /// The length.
        length: u32,
        /// The limit.
        limit: u32,
    },
    /// The CRC does not match: the message is damaged.
    #[error("a message's CRC is {computed:08x}, not {stored:08x} as it says")]
    BadCrc {
        /// What the message says.
        stored: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// The version is unknown.
    #[error("message format version {version} is unknown, this program knows version 1")]
    UnknownVersion {
        /// The version.
        version: u8,
    },
    /// The codec is unknown.
    #[error("codec {codec} is unknown")]
    UnknownCodec {
        /// The codec's bits.
        codec: u8,
    },
    /// There is a key's length, but no key.
    #[error("a message without a key has a key length of {key_bytes}")]
    UnexpectedKey {
        /// The key's length.
        key_bytes: u16,
    },
    /// There is a headers' length, but no headers.
    #[error("a message without headers has a headers length of {headers_bytes}")]
    UnexpectedHeaders {
        /// The headers' length.
        headers_bytes: u32,
    },
    /// The fields together are longer than the message.
    #[error("a message's fields take {fields_bytes} bytes, but its length is {length}")]
    FieldsTooLong {
        /// Header, producer block, key and headers, in bytes.
        fields_bytes: u64,
        /// The message's length.
        length: u32,
    },
    /// A tombstone has no value bytes.
    #[error("a tombstone has a value of {value_bytes} bytes")]
    TombstoneWithValue {
        /// The value's length.
        value_bytes: u32,
    },
    /// The headers block is not a run of whole headers.
    #[error("a message's headers are malformed: {reason}")]
    BadHeaders {
        /// What is wrong.
        reason: &'static str,
    },
    /// A gap has no fields, and repeats its length.
    #[error("a gap of {length} bytes repeats its length as {repeated}, or has fields")]
    BadGap {
        /// The message's length.
        length: u32,
        /// The length repeated.
        repeated: u32,
    },
    /// A wrapper's shape or claims are impossible.
    #[error("a wrapper is malformed: {reason}")]
    BadWrapper {
        /// What is wrong.
        reason: &'static str,
    },
}
