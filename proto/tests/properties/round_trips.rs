//! What is encoded is parsed back, for messages, sets, wrappers and frames of every shape.

use crate::support::{BYTES_MAX, OwnedParts, WRAPPERS, build, limits, parts, producer, set_parts};
use corelane_proto::codec::{Codec, CodecError};
use corelane_proto::frame::{FrameError, FrameHeader, PROTO_BYTES_MAX};
use corelane_proto::message::{EncodeError, FormatError, Header, KEY_BYTES_MAX, Message, MessageParts};
use corelane_proto::set::{InvalidReason, Reserved, SetBuilder, check_set, walk};
use corelane_proto::wrapper::{self, UnwrapError, WrapError};
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_message_is_parsed_as_it_was_encoded(
        mut parts in parts(), producer in proptest::option::of(producer()), last: bool, behind in any::<[u8; 3]>(),
    ) {
        parts.producer = producer;
        let mut bytes = parts.encode(last).to_vec();
        let length = bytes.len();
        bytes.extend(behind);
        let message = Message::parse(&bytes, BYTES_MAX).unwrap();
        prop_assert_eq!(message.bytes(), &bytes[..length]);
        prop_assert_eq!(message.is_last(), last);
        prop_assert_eq!(message.codec(), Codec::Plain);
        prop_assert_eq!(OwnedParts::of(&message), parts);
        for end in 0..length {
            let cut = matches!(Message::parse(&bytes[..end], BYTES_MAX), Err(FormatError::Truncated { needed, available })
                if available == end && needed > end && needed <= length);
            prop_assert!(cut, "cut at {} of {}", end, length);
        }
    }

    #[test]
    fn a_set_is_checked_and_walked_as_it_was_built(messages in set_parts()) {
        let set = build(&messages);
        let info = check_set(&set, &limits(Reserved::Refuse)).unwrap();
        prop_assert_eq!(info.messages as usize, messages.len());
        prop_assert_eq!(info.messages_inside as usize, messages.len());
        prop_assert_eq!(Some(info.max_timestamp_ms), messages.iter().map(|message| message.timestamp_ms).max());

        let mut walk = walk(&set, BYTES_MAX);
        let walked: Vec<_> = walk.by_ref().map(|message| message.unwrap()).collect();
        prop_assert_eq!(walk.offset(), set.len());
        prop_assert_eq!(walked.iter().map(OwnedParts::of).collect::<Vec<_>>(), messages);
        let last = walked.last().unwrap();
        prop_assert!(walked.iter().all(|message| message.is_last() == (message.bytes().as_ptr() == last.bytes().as_ptr())));
        prop_assert_eq!(info.last_offset as usize, set.len() - last.bytes().len());
        prop_assert_eq!((info.last_length, info.last_crc), (last.length(), last.header().crc));
    }

    #[test]
    fn a_set_that_is_not_whole_is_refused(messages in set_parts(), more in set_parts()) {
        let set = build(&messages);
        for end in 0..set.len() {
            prop_assert!(check_set(&set[..end], &limits(Reserved::Refuse)).is_err());
        }
        let twice = [&set[..], &build(&more)[..]].concat();
        let error = check_set(&twice, &limits(Reserved::Refuse)).unwrap_err();
        prop_assert_eq!((error.index as usize, error.reason), (messages.len() - 1, InvalidReason::LastTooEarly));
    }

    #[test]
    fn a_wrapper_gives_its_set_back(messages in set_parts(), last: bool) {
        let set = build(&messages);
        for codec in WRAPPERS {
            let wrapped = match wrapper::wrap(codec, &set, last) {
                Err(WrapError::Codec(CodecError::Disabled(disabled))) if !codec.is_enabled() => {
                    prop_assert_eq!(disabled, codec);
                    continue;
                }
                wrapped => wrapped.unwrap(),
            };
            let message = Message::parse(&wrapped, BYTES_MAX).unwrap();
            prop_assert_eq!((message.codec(), message.is_last(), message.length() as usize), (codec, last, wrapped.len()));
            prop_assert_eq!(Some(message.timestamp_ms()), messages.iter().map(|message| message.timestamp_ms).max());
            prop_assert_eq!(wrapper::unwrap(&message, set.len() as u32).unwrap(), &set[..]);
            let refused = wrapper::unwrap(&message, set.len() as u32 - 1);
            prop_assert_eq!(refused, Err(UnwrapError::TooLong { bytes: set.len() as u32, limit: set.len() as u32 - 1 }));
            if last {
                let info = check_set(&wrapped, &limits(Reserved::Refuse)).unwrap();
                prop_assert_eq!((info.messages, info.messages_inside as usize), (1, messages.len()));
            }
        }
    }

    #[test]
    fn a_frame_header_is_decoded_as_it_was_encoded(
        code: u16, correlation: u32, proto_bytes in 0..=PROTO_BYTES_MAX as usize, payload_bytes in 0..1_usize << 26,
    ) {
        let header = FrameHeader::new(code, correlation, proto_bytes, payload_bytes);
        let frame_bytes = 16 + proto_bytes + payload_bytes;
        prop_assert_eq!(header.frame_bytes(), frame_bytes as u64);
        prop_assert_eq!(header.payload_bytes(), payload_bytes);
        prop_assert_eq!(FrameHeader::decode(&header.encode(), frame_bytes as u32), Ok(header));
        prop_assert_eq!(
            FrameHeader::decode(&header.encode(), frame_bytes as u32 - 1),
            Err(FrameError::TooLarge { bytes: frame_bytes as u64, limit: frame_bytes as u32 - 1 })
        );
    }
}

#[test]
fn a_wrapper_is_never_shorter_than_its_message_count() {
    let mut builder = SetBuilder::new();
    for _ in 0..10_000 {
        builder.push(&MessageParts { value: Some(b""), ..Default::default() }).unwrap();
    }
    let set = builder.finish();
    for codec in WRAPPERS.into_iter().filter(|codec| codec.is_enabled()) {
        let wrapped = wrapper::wrap(codec, &set, true).unwrap();
        assert!(wrapped.len() >= 10_000, "{codec}: {}", wrapped.len());
        let message = Message::parse(&wrapped, BYTES_MAX).unwrap();
        assert_eq!(wrapper::unwrap(&message, BYTES_MAX).unwrap(), &set[..], "{codec}");
    }
}

#[test]
fn wrappers_are_not_nested() {
    let set = build(&[OwnedParts { timestamp_ms: 0, key: None, headers: vec![], value: None, producer: None }]);
    let wrapped = wrapper::wrap(Codec::StoredSet, &set, true).unwrap();
    let nested = wrapper::wrap(Codec::StoredSet, &wrapped, true);
    assert_eq!(nested, Err(WrapError::NotASet(FormatError::BadWrapper { reason: "it holds a wrapper" })));
}

#[test]
fn a_codec_that_is_not_built_in_is_named() {
    let set = build(&[OwnedParts { timestamp_ms: 0, key: None, headers: vec![], value: None, producer: None }]);
    for codec in WRAPPERS.into_iter().filter(|codec| !codec.is_enabled()) {
        let error = wrapper::wrap(codec, &set, true).unwrap_err();
        let expected = format!("codec {codec} is not built in: enable the feature \"{codec}\" of corelane-proto");
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(wrapper::wrap(Codec::Plain, &set, true), Err(WrapError::Codec(CodecError::NotAWrapper(Codec::Plain))));
}

#[test]
fn what_no_message_can_hold_is_refused_and_leaves_the_set_as_it_was() {
    let long = "x".repeat(KEY_BYTES_MAX + 1);
    let headers = [Header { name: &long, value: None }];
    let mut builder = SetBuilder::new();
    builder.push(&MessageParts { key: Some(&long.as_bytes()[1..]), ..Default::default() }).unwrap();
    let bytes = builder.bytes();
    assert_eq!(
        builder.push(&MessageParts { key: Some(long.as_bytes()), ..Default::default() }),
        Err(EncodeError::KeyTooLong { bytes: KEY_BYTES_MAX + 1 })
    );
    assert_eq!(
        builder.push(&MessageParts { headers: &headers, ..Default::default() }),
        Err(EncodeError::HeaderNameTooLong { bytes: KEY_BYTES_MAX + 1 })
    );
    assert_eq!((builder.bytes(), builder.messages()), (bytes, 1));
    assert_eq!(check_set(&builder.finish(), &limits(Reserved::Refuse)).unwrap().messages, 1);
    assert!(builder.is_empty() && builder.finish().is_empty());
}
