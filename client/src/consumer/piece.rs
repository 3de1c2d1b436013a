//! Walking over a run of checked messages: plain ones are handed out as they lie, compressed sets are unpacked when their
//! turn comes, so that only one is unpacked at a time.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corelane_proto::codec::Codec;
use corelane_proto::message::{FormatError, MESSAGE_BYTES_LIMIT, Message};
use corelane_proto::wrapper;

use super::message::{ConsumedMessage, Source};

/// Messages with lower numbers are not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct From {
    pub(super) position: u64,
    /// Of the first wrapper, what is older than this is not wanted either.
    pub(super) time_ms: Option<i64>,
}

/// A run of messages with a place to go on.
#[derive(Debug)]
pub(super) struct Piece {
    source: Arc<Source>,
    bytes: Bytes,
    /// The log position of the first byte.
    position: u64,
    offset: usize,
    from: From,
    /// Whether compressed sets are handed out as they lie.
    whole_sets: bool,
    inside: Option<Inside>,
    /// How long unpacking has taken since the piece had its turn last.
    unpacking: Duration,
}

/// An unpacked set.
#[derive(Debug)]
struct Inside {
    bytes: Bytes,
    offset: usize,
    index: u64,
    wrapper: u64,
    wrapper_end: u64,
    not_before_ms: Option<i64>,
}

/// What a walk meets.
#[derive(Debug)]
pub(super) enum Step {
    Message(ConsumedMessage),
    /// A message inside a compressed set whose CRC is wrong.
    Bad,
    /// A compressed set that cannot be unpacked, or a message inside one that is of a version not known here.
    Undecodable {
        position: u64,
        reason: String,
    },
}

impl Piece {
    pub(super) fn new(source: Arc<Source>, bytes: Bytes, position: u64, from: From, whole_sets: bool) -> Self {
        Self { source, bytes, position, offset: 0, from, whole_sets, inside: None, unpacking: Duration::ZERO }
    }

    /// How long unpacking has taken in this turn.
    pub(super) fn unpacking(&self) -> Duration {
        self.unpacking
    }

    /// Others have their turn. A set that is not handed out to its end is unpacked again in the next one, so that only
    /// one is unpacked at a time.
    pub(super) fn rest(&mut self) {
        self.unpacking = Duration::ZERO;
        let Some(inside) = self.inside.take().filter(|inside| inside.offset < inside.bytes.len()) else { return };
        self.offset -= (inside.wrapper_end - inside.wrapper) as usize;
        self.from.position = inside.wrapper + inside.index;
        self.from.time_ms = self.from.time_ms.filter(|_| inside.not_before_ms.is_some());
    }

    /// The log position behind the last message.
    pub(super) fn end(&self) -> u64 {
        self.position + self.bytes.len() as u64
    }

    /// The next message that is wanted; `None`: the piece is done.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Step> {
        loop {
            if self.inside.is_some() {
                match self.next_inside() {
                    Some(step) => return Some(step),
                    None => self.inside = None,
                }
            }
            let rest = self.bytes.get(self.offset..).filter(|rest| !rest.is_empty())?;
            let message = Message::view(rest).expect("a run consists of checked messages");
            let bytes = message.length() as usize;
            let id = self.position + self.offset as u64;
            let codec = message.codec();
            match codec {
                Codec::Plain if id >= self.from.position => {
                    let timestamp_ms = message.timestamp_ms();
                    return Some(self.hand_out(id, bytes, timestamp_ms));
                }
                Codec::Plain | Codec::Gap => self.offset += bytes,
                _ if id + bytes as u64 <= self.from.position => self.offset += bytes,
                _ if self.whole_sets => {
                    let timestamp_ms = message.timestamp_ms();
                    return Some(self.hand_out(id, bytes, timestamp_ms));
                }
                _ => {
                    let began = Instant::now();
                    let unpacked = self.unpack(&message, id);
                    self.offset += bytes;
                    match unpacked {
                        Ok(inside) => self.inside = Some(inside),
                        Err(reason) => return Some(Step::Undecodable { position: id, reason }),
                    }
                    // What was handed out in an earlier turn is passed over.
                    let step = self.next_inside();
                    self.unpacking += began.elapsed();
                    if step.is_some() {
                        return step;
                    }
                    self.inside = None;
                }
            }
        }
    }

    /// The message at the offset, as it lies.
    #[inline]
    fn hand_out(&mut self, id: u64, bytes: usize, timestamp_ms: i64) -> Step {
        let view = self.bytes.slice(self.offset..self.offset + bytes);
        self.offset += bytes;
        Step::Message(ConsumedMessage {
            source: self.source.clone(),
            bytes: view,
            position: id,
            next_position: id + bytes as u64,
            timestamp_ms,
        })
    }

    fn unpack(&self, message: &Message<'_>, wrapper: u64) -> Result<Inside, String> {
        let set = wrapper::unwrap(message, MESSAGE_BYTES_LIMIT).map_err(|error| error.to_string())?;
        let bytes = match set {
            Cow::Borrowed(set) => self.bytes.slice_ref(set),
            Cow::Owned(set) => Bytes::from(set),
        };
        Ok(Inside {
            bytes,
            offset: 0,
            index: 0,
            wrapper,
            wrapper_end: wrapper + u64::from(message.length()),
            // Only the wrapper that a look-up by time has found begins with messages that are too old.
            not_before_ms: self.from.time_ms.filter(|_| wrapper <= self.from.position),
        })
    }

    fn next_inside(&mut self) -> Option<Step> {
        let inside = self.inside.as_mut()?;
        loop {
            let rest = inside.bytes.get(inside.offset..).filter(|rest| !rest.is_empty())?;
            let position = inside.wrapper + inside.index;
            inside.index += 1;
            // How the set is cut into messages was checked when it was unpacked; their CRCs were not.
            let parsed = Message::parse(rest, MESSAGE_BYTES_LIMIT);
            let message = match parsed {
                Ok(message) => message,
                Err(error) => {
                    let length = rest.first_chunk::<4>().map_or(rest.len(), |at| u32::from_le_bytes(*at) as usize);
                    inside.offset += length.clamp(1, rest.len());
                    let is_newer = matches!(error, FormatError::UnknownVersion { .. });
                    return Some(if is_newer {
                        Step::Undecodable { position, reason: error.to_string() }
                    } else {
                        Step::Bad
                    });
                }
            };
            let from = inside.offset;
            inside.offset += message.length() as usize;
            let is_last = inside.offset == inside.bytes.len();
            let timestamp_ms = message.timestamp_ms();
            if position < self.from.position || inside.not_before_ms.is_some_and(|not_before| timestamp_ms < not_before)
            {
                continue;
            }
            inside.not_before_ms = None;
            return Some(Step::Message(ConsumedMessage {
                source: self.source.clone(),
                bytes: inside.bytes.slice(from..inside.offset),
                position,
                next_position: if is_last { inside.wrapper_end } else { position + 1 },
                timestamp_ms,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corelane_proto::message::MessageParts;
    use corelane_proto::set::SetBuilder;

    fn source() -> Arc<Source> {
        Arc::new(Source { topic: "t".into(), partition: 0 })
    }

    fn set(values: &[&str], time_ms: i64) -> Bytes {
        let mut builder = SetBuilder::new();
        for (index, value) in values.iter().enumerate() {
            let timestamp_ms = time_ms + index as i64;
            let value = Some(value.as_bytes());
            builder.push(&MessageParts { value, timestamp_ms, ..MessageParts::default() }).unwrap();
        }
        builder.finish()
    }

    fn numbers(piece: &mut Piece) -> Vec<(u64, u64, String)> {
        let mut numbers = Vec::new();
        while let Some(step) = piece.next() {
            let Step::Message(message) = step else { panic!("{step:?}") };
            let value = String::from_utf8(message.value().unwrap().to_vec()).unwrap();
            numbers.push((message.position(), message.next_position(), value));
        }
        numbers
    }

    #[test]
    fn messages_of_a_wrapper_are_numbered_from_its_id_and_the_last_one_leads_behind_it() {
        let wrapped = wrapper::wrap(Codec::StoredSet, &set(&["a", "b", "c"], 0), true).unwrap();
        let mut log = wrapped.to_vec();
        log.extend_from_slice(&set(&["d"], 9));
        let end = 100 + wrapped.len() as u64;
        let expected = [(100, 101, "a"), (101, 102, "b"), (102, end, "c"), (end, end + 25, "d")]
            .map(|(number, next, value)| (number, next, value.to_owned()));
        for from in 0..4 {
            let position = expected[from].0;
            let from_position = From { position, time_ms: None };
            let mut piece = Piece::new(source(), log.clone().into(), 100, from_position, false);
            assert_eq!(numbers(&mut piece), expected[from..]);
            assert_eq!(piece.end(), end + 25);
        }
    }

    #[test]
    fn a_piece_that_rests_after_each_message_goes_on_where_it_was() {
        let wrapped = |values: &[&str], time_ms| wrapper::wrap(Codec::StoredSet, &set(values, time_ms), true).unwrap();
        let mut log = wrapped(&["old", "a", "b", "c"], 10).to_vec();
        log.extend_from_slice(&set(&["d", "e"], 5));
        log.extend_from_slice(&wrapped(&["f", "g"], 5));
        let new = || Piece::new(source(), log.clone().into(), 100, From { position: 100, time_ms: Some(11) }, false);
        let expected = numbers(&mut new());
        assert_eq!(expected.iter().map(|(.., value)| &**value).collect::<String>(), "abcdefg");
        let (mut piece, mut found) = (new(), Vec::new());
        piece.rest();
        while let Some(step) = piece.next() {
            let Step::Message(message) = step else { panic!("{step:?}") };
            let value = String::from_utf8(message.value().unwrap().to_vec()).unwrap();
            found.push((message.position(), message.next_position(), value));
            piece.rest();
            piece.rest();
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_start_by_time_skips_what_is_older_inside_the_wrapper_it_found_only() {
        let mut log = wrapper::wrap(Codec::StoredSet, &set(&["a", "b", "c"], 10), true).unwrap().to_vec();
        log.extend_from_slice(&wrapper::wrap(Codec::StoredSet, &set(&["old", "d"], 5), true).unwrap());
        let mut piece = Piece::new(source(), log.into(), 0, From { position: 0, time_ms: Some(11) }, false);
        let values: Vec<String> = numbers(&mut piece).into_iter().map(|(.., value)| value).collect();
        assert_eq!(values, ["b", "c", "old", "d"]);
    }

    #[test]
    fn a_program_that_asks_for_whole_sets_gets_the_log_as_it_lies() {
        let mut log = set(&["a"], 1).to_vec();
        let wrapper_at = log.len() as u64;
        log.extend_from_slice(&wrapper::wrap(Codec::StoredSet, &set(&["b", "c"], 2), true).unwrap());
        log.extend_from_slice(&set(&["d", "e"], 3));
        for (from, first) in [(0, 0), (wrapper_at, wrapper_at), (wrapper_at + 1, wrapper_at)] {
            let from = From { position: from, time_ms: None };
            let mut piece = Piece::new(source(), log.clone().into(), 0, from, true);
            let (mut bytes, mut next) = (Vec::new(), first);
            while let Some(step) = piece.next() {
                let Step::Message(message) = step else { panic!("{step:?}") };
                assert_eq!(message.position(), next);
                next = message.next_position();
                bytes.extend_from_slice(message.frame());
            }
            assert_eq!(bytes, log[first as usize..]);
        }
    }

    #[test]
    fn what_cannot_be_unpacked_is_reported_and_the_rest_goes_on() {
        let mut builder = SetBuilder::new();
        builder.push(&MessageParts { value: Some(b"x"), ..MessageParts::default() }).unwrap();
        let inner = builder.finish();
        let mut damaged = inner.to_vec();
        damaged[24] ^= 1;
        let mut log = wrapper::wrap(Codec::StoredSet, &damaged, true).unwrap().to_vec();
        log.extend_from_slice(&set(&["good"], 0));
        let mut piece = Piece::new(source(), log.into(), 0, From::default(), false);
        assert!(matches!(piece.next(), Some(Step::Bad)));
        assert!(matches!(piece.next(), Some(Step::Message(message)) if message.value() == Some(b"good")));
        assert!(piece.next().is_none());
    }
}
