//! Protobuf messages taken apart into fields, one of them changed, put together again: the change reaches the code behind the
//! parser, where noise would be refused by it.

use fastrand::Rng;

/// A field's value, by wire type.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(Vec<u8>),
    Fixed32([u8; 4]),
}

#[derive(Clone, Debug, PartialEq)]
struct Field {
    number: u64,
    value: Value,
}

/// How many kinds of change [`change`] knows.
pub(crate) const CHANGES: usize = 14;

/// Where fields begin to be awkward.
const BORDERS: [u64; 16] = [
    0,
    1,
    2,
    127,
    128,
    65_535,
    65_536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
    10_001,
];

/// How many fields a message has.
pub(crate) fn fields(message: &[u8]) -> usize {
    take_apart(message).map_or(0, |fields| fields.len())
}

/// The message with its field `at` changed in the way `kind`; the random numbers choose what is left open.
pub(crate) fn change(message: &[u8], at: usize, kind: usize, random: &mut Rng) -> Vec<u8> {
    let Some(mut fields) = take_apart(message).filter(|fields| !fields.is_empty()) else { return noise(random, 64) };
    let at = at % fields.len();
    match kind % CHANGES {
        0 => drop(fields.remove(at)),
        1 => fields.insert(at, fields[at].clone()),
        2 => fields[at].value = Value::Varint(BORDERS[random.usize(..BORDERS.len())]),
        3 => fields[at].value = Value::Bytes(Vec::new()),
        4 => fields[at].value = Value::Bytes(noise(random, 40)),
        5 => fields[at].value = Value::Bytes(vec![b'a'; random.usize(..60_000)]),
        6 => fields[at].value = Value::Bytes(awkward_text(random)),
        7 => fields[at].value = Value::Fixed64(random.u64(..).to_le_bytes()),
        8 => fields[at].value = Value::Fixed32(random.u32(..).to_le_bytes()),
        9 => fields[at].number = BORDERS[random.usize(1..10)].clamp(1, (1 << 29) - 1),
        10 => {
            // Inside a message in a message.
            if let Value::Bytes(inner) = &fields[at].value {
                let inner = change(inner, random.usize(..8), random.usize(..CHANGES), random);
                fields[at].value = Value::Bytes(inner);
            } else {
                random.shuffle(&mut fields);
            }
        }
        // Groups that begin and never end, as deep as they come.
        11 => return vec![0x0b; random.usize(1..2_000)],
        12 => {
            // A length beyond the message's end.
            let mut bytes = put_together(&fields);
            put_varint(&mut bytes, fields[at].number << 3 | 2);
            put_varint(&mut bytes, BORDERS[random.usize(2..BORDERS.len())]);
            return bytes;
        }
        _ => {
            let mut bytes = put_together(&fields);
            match random.usize(..3) {
                0 => bytes.truncate(random.usize(..=bytes.len())),
                1 => {
                    let at = random.usize(..bytes.len());
                    bytes[at] ^= 1 << random.u8(..8);
                }
                _ => bytes.extend(noise(random, 20)),
            }
            return bytes;
        }
    }
    put_together(&fields)
}

/// Up to `bytes` random bytes.
pub(crate) fn noise(random: &mut Rng, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; random.usize(..=bytes)];
    random.fill(&mut noise);
    noise
}

fn awkward_text(random: &mut Rng) -> Vec<u8> {
    let texts =
        ["", ".", "..", "/", "../../etc", "a/b", "a\0b", "\n", "~", "é", "日本", "-", " ", "a\u{202e}b", "%s%n"];
    let text = texts[random.usize(..texts.len())];
    text.repeat(random.usize(1..4)).into_bytes()
}

fn take_apart(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Value::Varint(take_varint(&mut bytes)?),
            1 => Value::Fixed64(take(&mut bytes, 8)?.try_into().ok()?),
            2 => {
                let length = usize::try_from(take_varint(&mut bytes)?).ok()?;
                Value::Bytes(take(&mut bytes, length)?.to_vec())
            }
            5 => Value::Fixed32(take(&mut bytes, 4)?.try_into().ok()?),
            _ => return None,
        };
        fields.push(Field { number: key >> 3, value });
    }
    Some(fields)
}

fn put_together(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for Field { number, value } in fields {
        let key = |wire_type: u64| number << 3 | wire_type;
        match value {
            Value::Varint(value) => {
                put_varint(&mut out, key(0));
                put_varint(&mut out, *value);
            }
            Value::Fixed64(bytes) => {
                put_varint(&mut out, key(1));
                out.extend(bytes);
            }
            Value::Bytes(bytes) => {
                put_varint(&mut out, key(2));
                put_varint(&mut out, bytes.len() as u64);
                out.extend(bytes);
            }
            Value::Fixed32(bytes) => {
                put_varint(&mut out, key(5));
                out.extend(bytes);
            }
        }
    }
    out
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[test]
fn what_is_put_together_is_what_was_taken_apart() {
    use prost::Message as _;
    let request = corelane_proto::pb::FetchRequest {
        topic_id: vec![7; 16],
        partition: 300,
        position: u64::MAX,
        ..Default::default()
    };
    let bytes = request.encode_to_vec();
    assert_eq!(fields(&bytes), 3);
    assert_eq!(put_together(&take_apart(&bytes).expect("whole")), bytes);
}
