//! Messages of every shape for the property tests.

use bytes::{Bytes, BytesMut};
use corelane_proto::codec::Codec;
use corelane_proto::message::{Header, Message, MessageParts, ProducerBlock};
use corelane_proto::set::{Reserved, SetBuilder, SetLimits};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

pub(crate) const BYTES_MAX: u32 = 1 << 20;
pub(crate) const WRAPPERS: [Codec; 5] = [Codec::StoredSet, Codec::Lz4, Codec::Zstd, Codec::Snappy, Codec::Gzip];

pub(crate) fn limits(reserved: Reserved) -> SetLimits {
    SetLimits { message_bytes_max: BYTES_MAX, set_bytes_max: BYTES_MAX, uncompressed_bytes_max: BYTES_MAX, reserved }
}

/// The parts of a message, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedParts {
    pub(crate) timestamp_ms: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) producer: Option<ProducerBlock>,
}

impl OwnedParts {
    /// What a parsed message is made of.
    pub(crate) fn of(message: &Message<'_>) -> OwnedParts {
        OwnedParts {
            timestamp_ms: message.timestamp_ms(),
            key: message.key().map(<[u8]>::to_vec),
            headers: message
                .headers()
                .map(|header| (header.name.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect(),
            value: message.value().map(<[u8]>::to_vec),
            producer: message.producer(),
        }
    }

    /// Lends the borrowed form.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&MessageParts<'_>) -> R) -> R {
        let headers: Vec<_> =
            self.headers.iter().map(|(name, value)| Header { name, value: value.as_deref() }).collect();
        f(&MessageParts {
            timestamp_ms: self.timestamp_ms,
            key: self.key.as_deref(),
            headers: &headers,
            value: self.value.as_deref(),
            producer: self.producer,
        })
    }

    pub(crate) fn encode(&self, last: bool) -> Bytes {
        let mut out = BytesMut::new();
        self.with(|parts| parts.encode_into(last, &mut out)).unwrap();
        out.freeze()
    }
}

fn bytes_below(limit: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..limit), (0..limit).prop_map(|length| vec![b'a'; length])]
}

/// A message without a producer block.
pub(crate) fn parts() -> impl Strategy<Value = OwnedParts> {
    let headers = vec((".{0,6}", option::of(bytes_below(20))), 0..4);
    (any::<i64>(), option::of(bytes_below(20)), headers, option::of(bytes_below(300))).prop_map(
        |(timestamp_ms, key, headers, value)| OwnedParts { timestamp_ms, key, headers, value, producer: None },
    )
}

pub(crate) fn producer() -> impl Strategy<Value = ProducerBlock> {
    any::<(u64, u16, u32)>().prop_map(|(producer_id, epoch, sequence)| ProducerBlock { producer_id, epoch, sequence })
}

/// The messages of a set.
pub(crate) fn set_parts() -> impl Strategy<Value = Vec<OwnedParts>> {
    vec(parts(), 1..12)
}

pub(crate) fn build(messages: &[OwnedParts]) -> Bytes {
    let mut builder = SetBuilder::new();
    for message in messages {
        message.with(|parts| builder.push(parts)).unwrap();
    }
    builder.finish()
}
