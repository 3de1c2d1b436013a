//! Arbitrary and damaged bytes: never a panic, no allocation by parser and checks, none by unpacking beyond the claimed
//! and allowed size; damage never passes.

use crate::support::{BYTES_MAX, OwnedParts, WRAPPERS, build, limits, set_parts};
use corelane_proto::codec::{Codec, CodecError};
use corelane_proto::frame::{FrameError, FrameHeader, Status};
use corelane_proto::message::{FormatError, HEADER_BYTES, Message, MessageHeader, encode_gap};
use corelane_proto::set::{InvalidMessage, InvalidReason, Reserved, SetInfo, check_set, walk};
use corelane_proto::wrapper::{self, UnwrapError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Runs every reader over the bytes; what they say must agree. Returns what the check says.
fn read_every_way(bytes: &[u8]) -> Result<SetInfo, InvalidMessage> {
    let mut checked = None;
    let allocated = allocation_counter::measure(|| {
        checked = Some(check_set(bytes, &limits(Reserved::Accept)));
        for message in walk(bytes, BYTES_MAX).flatten() {
            let fields = message.key().map_or(0, <[u8]>::len)
                + message.value().map_or(0, <[u8]>::len)
                + message.headers().map(|header| header.name.len()).sum::<usize>();
            assert!(fields <= message.bytes().len());
        }
    });
    assert_eq!(allocated.count_total, 0, "parsing allocates");
    let checked = checked.unwrap();
    let walked: Vec<_> = walk(bytes, BYTES_MAX).collect();
    if let Ok(info) = &checked {
        assert_eq!(walked.len(), info.messages as usize);
        assert!(walked.iter().all(Result::is_ok));
    }
    for message in walked.into_iter().flatten() {
        unwrap_within_bounds(&message);
    }
    checked
}

/// Unwraps; asserts what it may cost.
fn unwrap_within_bounds(message: &Message<'_>) {
    let Some(claims) = message.wrapper_claims() else { return };
    let mut unwrapped = None;
    let allocated = allocation_counter::measure(|| unwrapped = Some(wrapper::unwrap(message, BYTES_MAX)));
    let claimed = u64::from(claims.uncompressed_bytes.min(BYTES_MAX));
    // What the decoders need for themselves (gzip's window and tables, the text of an error) does not grow with claims.
    assert!(allocated.bytes_max <= claimed + (128 << 10), "{allocated:?} for a claim of {claims:?}");
    if let Some(Ok(set)) = unwrapped {
        assert_eq!(set.len(), claims.uncompressed_bytes as usize);
        assert!(!walk(&set, BYTES_MAX).flatten().any(|inside| inside.codec().is_wrapper()));
    }
}

/// Makes the CRC of each message right again, as far as lengths lead from one to the next.
fn reseal(bytes: &mut [u8]) {
    let mut at = 0;
    while let Ok(header) = MessageHeader::read(&bytes[at..], BYTES_MAX) {
        let Some(covered) = bytes.get(at + 8..at + header.crc_to()) else { return };
        let crc = crc32fast::hash(covered);
        bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        at += header.length as usize;
        if at > bytes.len() {
            return;
        }
    }
}

/// One change to some bytes.
#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    SetWord(Index, u32),
    Cut(Index),
    Insert(Index, Vec<u8>),
}

impl Damage {
    fn inflict(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Damage::Set(at, byte) => *at.get_mut(bytes) = *byte,
            Damage::SetWord(at, word) => {
                let at = at.index(bytes.len());
                let end = (at + 4).min(bytes.len());
                bytes[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
            }
            Damage::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Damage::Insert(at, more) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    // Places near the front are where the headers are.
    let place = any::<Index>;
    let word = prop_oneof![0..64_u32, Just(u32::MAX), Just(1 << 31), Just(BYTES_MAX), any::<u32>()];
    prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (place(), word).prop_map(|(at, word)| Damage::SetWord(at, word)),
        place().prop_map(Damage::Cut),
        (place(), vec(any::<u8>(), 1..9)).prop_map(|(at, more)| Damage::Insert(at, more)),
    ]
}

/// A set of one kind or another: plain, or wrapped.
fn any_set() -> impl Strategy<Value = Vec<u8>> {
    (set_parts(), proptest::option::of(wrapper_codec())).prop_map(|(messages, codec)| {
        let set = build(&messages);
        codec.map_or(set.to_vec(), |codec| wrapper::wrap(codec, &set, true).unwrap().to_vec())
    })
}

fn wrapper_codec() -> impl Strategy<Value = Codec> {
    proptest::sample::select(WRAPPERS.into_iter().filter(|codec| codec.is_enabled()).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 4))]

    #[test]
    fn arbitrary_bytes_are_refused(bytes in vec(any::<u8>(), 0..600)) {
        prop_assert!(read_every_way(&bytes).is_err());
    }

    #[test]
    fn arbitrary_bytes_behind_a_plausible_header_do_no_harm(
        attributes: u8, key_bytes in prop_oneof![Just(0_u16), 0..40_u16], headers_bytes in prop_oneof![Just(0_u32), 0..80_u32],
        body in vec(prop_oneof![Just(0_u8), 0..4_u8, any::<u8>()], 0..120),
    ) {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&((HEADER_BYTES + body.len()) as u32).to_le_bytes());
        bytes[8] = 1;
        bytes[9] = attributes;
        bytes[10..12].copy_from_slice(&key_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&headers_bytes.to_le_bytes());
        bytes.extend(body);
        reseal(&mut bytes);
        let _ = read_every_way(&bytes);
    }

    #[test]
    fn damage_never_passes(set in any_set(), at: Index, flip in 1..=u8::MAX) {
        let mut bytes = set.clone();
        *at.get_mut(&mut bytes) ^= flip;
        prop_assert!(read_every_way(&bytes).is_err());
    }

    #[test]
    fn damage_with_a_good_crc_does_no_harm(set in any_set(), damages in vec(damage(), 1..4)) {
        let mut bytes = set;
        for damage in &damages {
            damage.inflict(&mut bytes);
        }
        reseal(&mut bytes);
        let _ = read_every_way(&bytes);
    }

    #[test]
    fn a_hostile_header_of_a_good_message_does_no_harm(
        set in any_set(), at in 8..36_usize, byte in prop_oneof![0..32_u8, any::<u8>()],
    ) {
        let mut bytes = set;
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
        reseal(&mut bytes);
        let _ = read_every_way(&bytes);
    }

    #[test]
    fn a_frame_header_that_passes_adds_up(bytes: [u8; 16], small: bool, frame_bytes_max: u32) {
        let mut bytes = bytes;
        if small {
            bytes[2..4].fill(0);
            bytes[10..12].fill(0);
            bytes[14..16].fill(0);
        }
        if let Ok(header) = FrameHeader::decode(&bytes, frame_bytes_max) {
            prop_assert!(header.frame_bytes() <= u64::from(frame_bytes_max));
            prop_assert_eq!(header.frame_bytes(), 16 + u64::from(header.proto_bytes) + header.payload_bytes() as u64);
            prop_assert_eq!(header.encode(), bytes);
        }
    }
}

/// A set of one message of a megabyte of one byte: it packs to next to nothing.
fn bomb(codec: Codec) -> (Vec<u8>, usize) {
    let value = Some(vec![b'a'; BYTES_MAX as usize / 2]);
    let set = build(&[OwnedParts { timestamp_ms: 0, key: None, headers: vec![], value, producer: None }]);
    (wrapper::wrap(codec, &set, true).unwrap().to_vec(), set.len())
}

fn with_claim(bomb: &[u8], claim: u32) -> Vec<u8> {
    let mut bytes = bomb.to_vec();
    bytes[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&claim.to_le_bytes());
    reseal(&mut bytes);
    bytes
}

#[test]
fn a_decompression_bomb_goes_off_in_its_claimed_size() {
    for codec in WRAPPERS.into_iter().filter(|codec| codec.is_enabled()) {
        let (bomb, set_bytes) = bomb(codec);
        let set_bytes = set_bytes as u32;
        for claim in [24, 1000, set_bytes / 2, set_bytes - 1, set_bytes + 1, BYTES_MAX] {
            let bytes = with_claim(&bomb, claim);
            let message = Message::parse(&bytes, BYTES_MAX).unwrap();
            unwrap_within_bounds(&message);
            let error = wrapper::unwrap(&message, BYTES_MAX).unwrap_err();
            assert!(matches!(error, UnwrapError::Codec(CodecError::SizeDiffers { .. } | CodecError::Damaged { .. })));
        }
        let bytes = with_claim(&bomb, u32::MAX);
        let message = Message::parse(&bytes, BYTES_MAX).unwrap();
        let error = wrapper::unwrap(&message, BYTES_MAX).unwrap_err();
        assert_eq!(error, UnwrapError::TooLong { bytes: u32::MAX, limit: BYTES_MAX });
        let refused = check_set(&bytes, &limits(Reserved::Refuse)).unwrap_err();
        assert_eq!((refused.status(), refused.limit()), (Status::TooLarge, Some(BYTES_MAX)));
    }
}

/// A message of these bytes behind the CRC, whose length and CRC are right.
fn sealed(rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend_from_slice(rest);
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    reseal(&mut bytes);
    bytes
}

/// The rest of a header: version, attributes, key length, headers length, timestamp 0.
fn header_rest(version: u8, attributes: u8, key_bytes: u16, headers_bytes: u32) -> Vec<u8> {
    let mut rest = vec![version, attributes];
    rest.extend(key_bytes.to_le_bytes());
    rest.extend(headers_bytes.to_le_bytes());
    rest.extend([0; 8]);
    rest
}

#[test]
fn each_rule_of_the_format_has_its_error() {
    let parse = |rest: &[u8]| Message::parse(&sealed(rest), BYTES_MAX).unwrap_err();
    let with = |version, attributes, key_bytes, headers_bytes, body: &[u8]| {
        parse(&[&header_rest(version, attributes, key_bytes, headers_bytes)[..], body].concat())
    };
    assert_eq!(with(2, 0, 0, 0, b""), FormatError::UnknownVersion { version: 2 });
    assert_eq!(with(1, 6, 0, 0, b""), FormatError::UnknownCodec { codec: 6 });
    assert_eq!(with(1, 0, 1, 0, b"k"), FormatError::UnexpectedKey { key_bytes: 1 });
    assert_eq!(with(1, 0, 0, 1, b"h"), FormatError::UnexpectedHeaders { headers_bytes: 1 });
    assert_eq!(with(1, 0x08, 2, 0, b"k"), FormatError::FieldsTooLong { fields_bytes: 26, length: 25 });
    assert_eq!(
        with(1, 0x10, 0, u32::MAX, b""),
        FormatError::FieldsTooLong { fields_bytes: u64::from(u32::MAX) + 24, length: 24 }
    );
    assert_eq!(with(1, 0x40, 0, 0, b""), FormatError::FieldsTooLong { fields_bytes: 38, length: 24 });
    assert_eq!(with(1, 0x20, 0, 0, b"v"), FormatError::TombstoneWithValue { value_bytes: 1 });
    for block in [&b"\x01"[..], b"\x02\0n", b"\x01\0n\0\0\0", b"\x01\0n\x01\0\0\0", b"\x01\0\xff\0\0\0\0"] {
        assert!(matches!(with(1, 0x10, 0, block.len() as u32, block), FormatError::BadHeaders { .. }), "{block:?}");
    }
    assert_eq!(with(1, 7, 0, 25, b""), FormatError::BadGap { length: 24, repeated: 25 });
    assert_eq!(with(1, 7 | 0x20, 0, 24, b""), FormatError::BadGap { length: 24, repeated: 24 });

    let wrapper = |messages: u32, uncompressed: u32, stored: u32, rest: &[u8]| {
        let claims = [messages, uncompressed, stored].map(u32::to_le_bytes).concat();
        with(1, 5, 0, 0, &[&claims, rest].concat())
    };
    let bad = |reason| FormatError::BadWrapper { reason };
    assert_eq!(with(1, 5, 0, 0, &[0; 11]), bad("its value is too short"));
    assert_eq!(with(1, 5 | 0x08, 0, 0, &[0; 12]), bad("it has a key, headers or no value"));
    assert_eq!(wrapper(1, 24, 25, &[0; 24]), bad("its set is longer than its value"));
    assert_eq!(wrapper(0, 24, 24, &[0; 24]), bad("it holds no message"));
    assert_eq!(wrapper(61, u32::MAX, 24, &[0; 24]), bad("it is shorter than its message count"));
    assert_eq!(wrapper(2, 47, 24, &[0; 24]), bad("its messages cannot fit its set"));
    assert_eq!(wrapper(1, 24, 23, &[1; 24]), bad("its padding is not zero"));
}

#[test]
fn the_crc_is_checked_before_the_version() {
    let mut bytes = sealed(&header_rest(9, 0, 0, 0));
    assert_eq!(Message::parse(&bytes, BYTES_MAX), Err(FormatError::UnknownVersion { version: 9 }));
    bytes[20] ^= 1;
    assert!(matches!(Message::parse(&bytes, BYTES_MAX), Err(FormatError::BadCrc { .. })));
}

#[test]
fn a_length_is_from_24_to_the_limit() {
    let mut bytes = vec![0; 100];
    for (length, expected) in [
        (0, FormatError::TooShort { length: 0 }),
        (23, FormatError::TooShort { length: 23 }),
        (65, FormatError::TooLong { length: 65, limit: 64 }),
        (u32::MAX, FormatError::TooLong { length: u32::MAX, limit: 64 }),
    ] {
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(Message::parse(&bytes, 64), Err(expected));
    }
}

#[test]
fn producer_blocks_and_gaps_are_refused_at_publish_and_known_in_the_log() {
    let with_block = OwnedParts {
        timestamp_ms: 0,
        key: None,
        headers: vec![],
        value: Some(b"v".to_vec()),
        producer: Some(corelane_proto::message::ProducerBlock { producer_id: 1, epoch: 2, sequence: 3 }),
    };
    let mut gap = bytes::BytesMut::new();
    encode_gap(100, 0, true, &mut gap);
    for (bytes, reason, messages_inside) in [
        (build(std::slice::from_ref(&with_block)), InvalidReason::ProducerBlock, 1),
        (gap.freeze(), InvalidReason::Gap, 0),
    ] {
        let refused = check_set(&bytes, &limits(Reserved::Refuse)).unwrap_err();
        assert_eq!(refused, InvalidMessage { index: 0, reason });
        assert_eq!(refused.status(), Status::Unsupported);
        let info = check_set(&bytes, &limits(Reserved::Accept)).unwrap();
        assert_eq!((info.messages, info.messages_inside), (1, messages_inside));
    }
    let twice = build(&[with_block.clone(), with_block]);
    let refused = check_set(&twice, &limits(Reserved::Accept)).unwrap_err();
    assert_eq!(refused, InvalidMessage { index: 1, reason: InvalidReason::ProducerBlockNotFirst });
}

#[test]
fn set_ends_and_limits_have_their_errors() {
    let value = Some(b"value".to_vec());
    let parts = OwnedParts { timestamp_ms: 0, key: None, headers: vec![], value, producer: None };
    let (open, end) = (parts.encode(false), parts.encode(true));
    let check = |bytes: &[u8]| check_set(bytes, &limits(Reserved::Refuse)).map_err(|e| (e.index, e.reason, e.status()));
    let invalid = Status::InvalidMessage;
    assert_eq!(check(&[]), Err((0, InvalidReason::EmptySet, invalid)));
    assert_eq!(check(&open), Err((0, InvalidReason::LastNotMarked, invalid)));
    assert_eq!(check(&[&open[..], &open].concat()), Err((1, InvalidReason::LastNotMarked, invalid)));
    assert_eq!(check(&[&end[..], &end].concat()), Err((0, InvalidReason::LastTooEarly, invalid)));

    let mut small = limits(Reserved::Refuse);
    small.set_bytes_max = end.len() as u32 - 1;
    let refused = check_set(&end, &small).unwrap_err();
    assert_eq!((refused.status(), refused.limit()), (Status::TooLarge, Some(small.set_bytes_max)));
    small.set_bytes_max += 1;
    small.message_bytes_max = end.len() as u32 - 1;
    let refused = check_set(&end, &small).unwrap_err();
    assert_eq!((refused.status(), refused.limit()), (Status::TooLarge, Some(small.message_bytes_max)));
}

#[test]
fn what_is_not_this_protocol_is_far_above_the_first_frame_s_limit() {
    use corelane_proto::frame::HELLO_BYTES_MAX;
    for noise in [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcde", b"SSH-2.0-OpenSSH_"] {
        let refused = FrameHeader::decode(noise, HELLO_BYTES_MAX);
        assert!(matches!(refused, Err(FrameError::TooLarge { .. })), "{refused:?}");
    }
}
