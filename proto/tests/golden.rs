//! Golden bytes: every field of every header of the formats, pinned. The CRCs were computed by another program (zlib's
//! crc32). When one of these tests fails, the format has changed: old logs and other clients would not be read any more.

use bytes::BytesMut;
use corelane_proto::codec::Codec;
use corelane_proto::frame::{FrameHeader, Method, Status, encode_request, encode_response};
use corelane_proto::message::{Header, Message, MessageHeader, MessageParts, ProducerBlock, encode_gap};
use corelane_proto::pb;
use corelane_proto::set::SetBuilder;
use corelane_proto::wrapper::{self, WrapperClaims};

const LIMIT: u32 = 1 << 20;

/// Bytes from lines of hex; what follows a `|` explains.
fn hex(text: &str) -> Vec<u8> {
    text.lines()
        .flat_map(|line| line.split('|').next().unwrap_or_default().split_whitespace())
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

fn encode(parts: &MessageParts<'_>, last: bool) -> Vec<u8> {
    let mut out = BytesMut::new();
    assert_eq!(parts.encode_into(last, &mut out), Ok(parts.encoded_bytes()));
    out.to_vec()
}

/// The worked example of docs/format.md.
const EXAMPLE: &str = "
    1e 00 00 00              | length: 30
    79 97 2f e0              | CRC-32 of the 22 bytes that follow
    01                       | version: 1
    88                       | attributes: plain, has key, last of its set
    01 00                    | key length: 1
    00 00 00 00              | headers length: 0
    00 68 e5 cf 8b 01 00 00  | timestamp: 1700000000000
    6b                       | key: k
    68 65 6c 6c 6f           | value: hello
";

#[test]
fn the_worked_example_is_what_is_encoded() {
    let parts =
        MessageParts { timestamp_ms: 1_700_000_000_000, key: Some(b"k"), value: Some(b"hello"), ..Default::default() };
    assert_eq!(encode(&parts, true), hex(EXAMPLE));
}

/// The worked example of docs/protocol.md.
const FRAME_EXAMPLE: &str = "
    25 00 00 00  07 00 00 00  05 00  00 00  19 00 00 00
    0a 10 ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab  | topic_id
    10 03                                                  | partition
    18 01                                                  | epoch
    30 ac 02                                               | containing
";

#[test]
fn the_worked_examples_stand_in_the_documentation() {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (page, example) in [("format.md", EXAMPLE), ("protocol.md", FRAME_EXAMPLE)] {
        let text = std::fs::read_to_string(format!("{}/../docs/{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert!(squeeze(&text).contains(&squeeze(example)), "docs/{page} has another worked example than this test");
    }
}

#[test]
fn every_field_of_a_message_has_its_place() {
    let headers = [Header { name: "trace", value: Some(&[1, 2]) }, Header { name: "none", value: None }];
    let parts = MessageParts {
        timestamp_ms: 0x0191_2345_6789,
        key: Some(b"user-7"),
        headers: &headers,
        value: Some(b"hello"),
        producer: None,
    };
    let bytes = hex("
        3a 00 00 00              | length: 58
        dd 6a 4a bb              | CRC
        01                       | version
        98                       | attributes: bit 3 key, bit 4 headers, bit 7 last of its set
        06 00                    | key length
        17 00 00 00              | headers length: 23
        89 67 45 23 91 01 00 00  | timestamp
        75 73 65 72 2d 37        | key
        05 00 74 72 61 63 65     | header: name
        02 00 00 00 01 02        | header: value
        04 00 6e 6f 6e 65        | header: name
        ff ff ff ff              | header: no value
        68 65 6c 6c 6f           | value
    ");
    assert_eq!(encode(&parts, true), bytes);

    let message = Message::parse(&bytes, LIMIT).unwrap();
    assert_eq!(
        *message.header(),
        MessageHeader {
            length: 58,
            crc: 0xbb4a_6add,
            version: 1,
            attributes: 0x98,
            key_bytes: 6,
            headers_bytes: 23,
            timestamp_ms: 0x0191_2345_6789
        }
    );
    assert_eq!(message.key(), parts.key);
    assert_eq!(message.value(), parts.value);
    assert_eq!(message.headers().collect::<Vec<_>>(), headers);
    assert_eq!((message.codec(), message.producer(), message.is_last()), (Codec::Plain, None, true));
}

#[test]
fn a_producer_block_stands_between_header_and_key() {
    let producer = ProducerBlock { producer_id: 0x1122_3344_5566_7788, epoch: 0x99aa, sequence: 0xbbcc_ddee };
    let parts = MessageParts { timestamp_ms: -1, value: Some(b"v"), producer: Some(producer), ..Default::default() };
    let bytes = hex("
        27 00 00 00              | length: 39
        7e 69 af a7              | CRC
        01                       | version
        c0                       | attributes: bit 6 producer block, bit 7 last of its set
        00 00                    | key length
        00 00 00 00              | headers length
        ff ff ff ff ff ff ff ff  | timestamp: -1
        88 77 66 55 44 33 22 11  | producer id
        aa 99                    | producer epoch
        ee dd cc bb              | sequence
        76                       | value
    ");
    assert_eq!(encode(&parts, true), bytes);
    let message = Message::parse(&bytes, LIMIT).unwrap();
    assert_eq!(message.producer(), Some(producer));
    assert_eq!((message.key(), message.value(), message.timestamp_ms()), (None, Some(&b"v"[..]), -1));
}

#[test]
fn a_tombstone_and_an_empty_key_are_bits_not_lengths() {
    let parts = MessageParts { key: Some(b""), value: None, ..Default::default() };
    let bytes = hex("
        18 00 00 00              | length: 24
        dd 28 9f 05              | CRC
        01                       | version
        28                       | attributes: bit 3 key, bit 5 no value
        00 00                    | key length
        00 00 00 00              | headers length
        00 00 00 00 00 00 00 00  | timestamp
    ");
    assert_eq!(encode(&parts, false), bytes);
    let message = Message::parse(&bytes, LIMIT).unwrap();
    assert_eq!((message.key(), message.value(), message.is_last()), (Some(&b""[..]), None, false));

    let parts = MessageParts { timestamp_ms: 1, value: Some(b""), ..Default::default() };
    let bytes = hex("18 00 00 00  5a da 79 8e  01  00  00 00  00 00 00 00  01 00 00 00 00 00 00 00");
    assert_eq!(encode(&parts, false), bytes);
    let message = Message::parse(&bytes, LIMIT).unwrap();
    assert_eq!((message.key(), message.value()), (None, Some(&b""[..])));
}

#[test]
fn a_gap_is_a_header_and_bytes_that_do_not_matter() {
    let mut bytes = hex("
        20 00 00 00              | length: 32
        e0 f9 41 cd              | CRC, of bytes 8..24 only
        01                       | version
        87                       | attributes: codec 7, bit 7 last of its set
        00 00                    | key length
        20 00 00 00              | headers length: the length again
        02 00 00 00 00 00 00 00  | timestamp
        00 00 00 00 00 00 00 00  | anything
    ");
    let mut out = BytesMut::new();
    encode_gap(32, 2, true, &mut out);
    assert_eq!(out, bytes);
    bytes[24..].fill(0xee);
    let gap = Message::parse(&bytes, LIMIT).unwrap();
    assert_eq!((gap.codec(), gap.length(), gap.is_last(), gap.value()), (Codec::Gap, 32, true, None));
}

#[test]
fn a_wrapper_is_claims_and_a_set() {
    let mut builder = SetBuilder::new();
    builder.push(&MessageParts { timestamp_ms: 10, value: Some(b"a"), ..Default::default() }).unwrap();
    builder.push(&MessageParts { timestamp_ms: 9, value: Some(b"bc"), ..Default::default() }).unwrap();
    let set = builder.finish();
    let bytes = hex("
        57 00 00 00              | length: 87
        b7 1b 70 09              | CRC
        01                       | version
        85                       | attributes: codec 5, stored set; bit 7 last of its set
        00 00                    | key length
        00 00 00 00              | headers length
        0a 00 00 00 00 00 00 00  | timestamp: the largest inside
        02 00 00 00              | messages inside
        33 00 00 00              | bytes uncompressed: 51
        33 00 00 00              | bytes stored: 51
        19 00 00 00  ae e1 d2 e1  01  00  00 00  00 00 00 00  0a 00 00 00 00 00 00 00  61
        1a 00 00 00  49 a0 a0 4d  01  80  00 00  00 00 00 00  09 00 00 00 00 00 00 00  62 63
    ");
    assert_eq!(wrapper::wrap(Codec::StoredSet, &set, true).unwrap(), bytes);
    let message = Message::parse(&bytes, LIMIT).unwrap();
    assert_eq!(message.wrapper_claims(), Some(WrapperClaims { messages: 2, uncompressed_bytes: 51, stored_bytes: 51 }));
    assert_eq!(wrapper::unwrap(&message, LIMIT).unwrap(), &set[..]);
}

#[test]
fn codec_numbers_are_pinned() {
    let names = (0..8).map(|bits| Codec::from_bits(bits).map_or("none", Codec::name)).collect::<Vec<_>>();
    assert_eq!(names, ["plain", "lz4", "zstd", "snappy", "gzip", "stored-set", "none", "gap"]);
}

#[test]
fn every_field_of_a_frame_header_has_its_place() {
    let header = FrameHeader {
        body_bytes: 0x0403_0201,
        correlation: 0x0807_0605,
        code: 0x0a09,
        flags: 0,
        proto_bytes: 0x000d_0c0b,
    };
    let bytes = hex("
        01 02 03 04  | bytes after this field
        05 06 07 08  | correlation id
        09 0a        | method or status
        00 00        | flags
        0b 0c 0d 00  | bytes of the protobuf message
    ");
    assert_eq!(header.encode(), bytes[..]);
    assert_eq!(FrameHeader::decode(bytes[..].try_into().unwrap(), u32::MAX), Ok(header));
    assert_eq!(header.payload_bytes(), 0x0403_0201 - 12 - 0x000d_0c0b);
}

#[test]
fn a_request_and_a_response_are_pinned() {
    let mut out = BytesMut::new();
    let request = pb::FindMessageRequest {
        topic_id: vec![0xab; 16],
        partition: 3,
        epoch: 1,
        target: Some(pb::find_message_request::Target::Containing(300)),
    };
    encode_request(&mut out, Method::FindMessage, 7, &request, 0);
    assert_eq!(out, hex(FRAME_EXAMPLE));
    out.clear();
    let error = pb::Error { message: "no".into(), end: Some(5), ..Default::default() };
    encode_response(&mut out, Status::UnexpectedEnd, 7, &error, 2);
    assert_eq!(
        out,
        hex("
            14 00 00 00  07 00 00 00  0d 00  00 00  06 00 00 00
            0a 02 6e 6f  | message
            18 05        | end
        ")
    );
}
