//! Message sets of random shapes: many of equal size, some nothing but zeros, some with whole valid sets as values, so that
//! whoever guesses a boundary, or takes an old tail for a new one, guesses wrong.

use bytes::BytesMut;
use corelane_proto::codec::Codec;
use corelane_proto::message::MessageParts;
use corelane_proto::set::SetBuilder;
use corelane_proto::wrapper;

use crate::dice::Dice;

/// Where producers' timestamps begin; they are not ordered.
pub(crate) const TIMESTAMP_MS: i64 = 1_700_000_000_000;
/// How far they spread.
pub(crate) const TIMESTAMPS: usize = 500;

/// Makes the sets of one history.
pub(crate) struct SetMaker {
    /// In such histories every message has this many bytes of value.
    equal: Option<usize>,
    /// In such histories most sets span blocks.
    bulky: bool,
    bytes_max: usize,
    counter: u64,
}

impl SetMaker {
    pub(crate) fn new(dice: &Dice, bytes_max: usize) -> Self {
        let equal = dice.chance(0.4).then(|| dice.pick(&[8, 40, 1000, 4096 - 24, 2048 - 24]));
        Self { equal: equal.filter(|bytes| bytes + 24 <= bytes_max), bulky: dice.chance(0.5), bytes_max, counter: 0 }
    }

    /// The next set, not empty and at most `bytes_max` long.
    pub(crate) fn make(&mut self, dice: &Dice) -> Vec<u8> {
        self.counter += 1;
        if self.equal.is_none() && dice.chance(0.1) {
            let inner = self.plain(dice, self.bytes_max / 2);
            let wrapped = wrapper::wrap(Codec::StoredSet, &inner, true).expect("a small set can be wrapped");
            return wrapped.to_vec();
        }
        self.plain(dice, self.bytes_max)
    }

    fn plain(&self, dice: &Dice, bytes_max: usize) -> Vec<u8> {
        let messages = if self.equal.is_some() { dice.pick(&[1, 1, 2]) } else { dice.pick(&[1, 1, 1, 2, 3, 20]) };
        let mut builder = SetBuilder::new();
        for index in 0..messages {
            let tag = (self.counter * 64 + index).to_le_bytes();
            let value = self.value(dice, &tag);
            let key = dice.chance(0.2).then_some(&tag[..]);
            let parts = MessageParts {
                timestamp_ms: TIMESTAMP_MS + dice.below(TIMESTAMPS) as i64,
                key: key.filter(|_| self.equal.is_none()),
                value: Some(&value).filter(|_| self.equal.is_some() || !dice.chance(0.05)).map(Vec::as_slice),
                ..MessageParts::default()
            };
            if builder.bytes() + parts.encoded_bytes() > bytes_max {
                break;
            }
            builder.push(&parts).expect("small parts make a message");
        }
        if builder.is_empty() {
            let parts = MessageParts { value: Some(b"small"), timestamp_ms: TIMESTAMP_MS, ..MessageParts::default() };
            builder.push(&parts).expect("small parts make a message");
        }
        builder.finish().to_vec()
    }

    fn value(&self, dice: &Dice, tag: &[u8]) -> Vec<u8> {
        if let Some(bytes) = self.equal {
            let mut value = tag.to_vec();
            value.resize(bytes, 0x55);
            return value;
        }
        let mut value = match dice.below(if self.bulky { 20 } else { 10 }) {
            0 => Vec::new(),
            1 => vec![0; dice.below(3 * 4096)],
            2 => [tag, &vec![0; dice.below(600)]].concat(),
            3 => whole_set(tag),
            4 => [tag, &whole_set(tag), &whole_set(b"again")].concat(),
            5 => vec![dice.below(256) as u8; dice.pick(&[4096 - 24, 512 - 24, 4096 + 1])],
            6 => (0..dice.below(2000)).map(|_| dice.below(256) as u8).collect(),
            7..10 => [tag, b"the common size of many"].concat(),
            _ => [tag, &vec![0xEE; dice.scale(8_000)]].concat(),
        };
        value.truncate(self.bytes_max / 2);
        value
    }
}

/// One message that is a whole valid set.
fn whole_set(value: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    let parts = MessageParts { value: Some(value), timestamp_ms: TIMESTAMP_MS, ..MessageParts::default() };
    parts.encode_into(true, &mut out).expect("small parts make a message");
    out.to_vec()
}
