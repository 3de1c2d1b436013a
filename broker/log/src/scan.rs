//! Walks over messages in bytes that come in pieces of any size: headers, CRCs, set ends. Holds a header, not a message.
//! Pure: whoever has the bytes feeds them.

use corelane_proto::message::{
    CRC_FROM, HEADER_BYTES, MESSAGE_BYTES_LIMIT, MessageHeader, PRODUCER_BLOCK_BYTES, VERSION,
};

/// A message that was fed whole, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// Where it begins.
    pub(crate) at: u64,
    pub(crate) header: MessageHeader,
    /// Whether its CRC holds.
    pub(crate) is_good: bool,
    /// As consumers see them: of a wrapper the count that it claims, of a gap none.
    pub(crate) messages: u64,
}

impl Scanned {
    /// Where the next one begins.
    pub(crate) fn end(&self) -> u64 {
        self.at + u64::from(self.header.length)
    }

    /// Whether it is good, but of a version that this program does not know.
    pub(crate) fn is_newer(&self) -> bool {
        self.is_good && self.header.version != VERSION
    }
}

/// What the scanner found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It wants more bytes.
    More,
    Message(Scanned),
    /// At this position lies no message: its length says so. The scanner stands still there.
    NoMessage {
        at: u64,
    },
}

/// See the file's beginning.
#[derive(Debug)]
pub(crate) struct Scanner {
    at: u64,
    /// Messages that would end beyond it are none.
    limit: u64,
    head: [u8; HEADER_BYTES],
    /// Bytes of this message that were fed.
    fed: u64,
    header: Option<MessageHeader>,
    crc: crc32fast::Hasher,
    claim: Claim,
    is_stuck: bool,
}

/// The count at the beginning of a wrapper's value.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    from: u64,
    bytes: [u8; 4],
    is_wanted: bool,
}

impl Scanner {
    /// A message begins at `at`; none ends beyond `limit`.
    pub(crate) fn new(at: u64, limit: u64) -> Self {
        Self {
            at,
            limit,
            head: [0; HEADER_BYTES],
            fed: 0,
            header: None,
            crc: crc32fast::Hasher::new(),
            claim: Claim::default(),
            is_stuck: false,
        }
    }

    /// Where the message in hand begins.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The position of the byte that is to be fed next.
    pub(crate) fn next_byte(&self) -> u64 {
        self.at + self.fed
    }

    /// Takes bytes from the front of `bytes`, up to the end of one message.
    pub(crate) fn feed(&mut self, bytes: &mut &[u8]) -> Found {
        if self.is_stuck || self.at + HEADER_BYTES as u64 > self.limit {
            return Found::NoMessage { at: self.at };
        }
        let Some(header) = self.feed_header(bytes) else {
            return if self.is_stuck { Found::NoMessage { at: self.at } } else { Found::More };
        };
        let length = u64::from(header.length);
        let take = (length - self.fed).min(bytes.len() as u64) as usize;
        let (body, rest) = bytes.split_at(take);
        *bytes = rest;
        let covered = (header.crc_to() as u64).saturating_sub(self.fed).min(take as u64) as usize;
        self.crc.update(&body[..covered]);
        self.note_claim(body);
        self.fed += take as u64;
        if self.fed < length {
            return Found::More;
        }
        Found::Message(self.finish(header))
    }

    /// The header, once all of it was fed.
    fn feed_header(&mut self, bytes: &mut &[u8]) -> Option<MessageHeader> {
        if self.header.is_some() {
            return self.header;
        }
        let have = self.fed as usize;
        let take = (HEADER_BYTES - have).min(bytes.len());
        let (front, rest) = bytes.split_at(take);
        self.head[have..have + take].copy_from_slice(front);
        *bytes = rest;
        self.fed += take as u64;
        if (self.fed as usize) < HEADER_BYTES {
            return None;
        }
        let header = MessageHeader::read(&self.head, MESSAGE_BYTES_LIMIT);
        match header {
            Ok(header) if self.at + u64::from(header.length) <= self.limit => {
                self.crc.update(&self.head[CRC_FROM..]);
                self.claim = Claim { from: value_at(&header), bytes: [0; 4], is_wanted: is_wrapper(&header) };
                self.header = Some(header);
                Some(header)
            }
            _ => {
                self.is_stuck = true;
                None
            }
        }
    }

    fn note_claim(&mut self, body: &[u8]) {
        if !self.claim.is_wanted {
            return;
        }
        for (index, byte) in self.claim.bytes.iter_mut().enumerate() {
            let wanted = (self.claim.from + index as u64).checked_sub(self.fed);
            if let Some(found) = wanted.and_then(|at| body.get(at as usize)) {
                *byte = *found;
            }
        }
    }

    fn finish(&mut self, header: MessageHeader) -> Scanned {
        let crc = std::mem::take(&mut self.crc).finalize();
        let messages = match (self.claim.is_wanted, header.is_gap()) {
            (true, _) => u64::from(u32::from_le_bytes(self.claim.bytes)),
            (false, true) => 0,
            (false, false) => 1,
        };
        // The CRC of a gap does not cover its length, which therefore stands in it twice.
        let is_good = crc == header.crc && (!header.is_gap() || header.headers_bytes == header.length);
        let scanned = Scanned { at: self.at, header, is_good, messages };
        self.at += u64::from(header.length);
        self.fed = 0;
        self.header = None;
        scanned
    }
}

/// Looks for a length at which a bad message's CRC holds, other than the one that it claims. Where there is one, it is the
/// length that was hurt, and what it leads to may lie inside a value. (In a message that was hurt elsewhere there is one by
/// chance: once in 2^32 lengths.)
#[derive(Debug)]
pub(crate) struct LengthSearch {
    next_byte: u64,
    to: u64,
    first_end: u64,
    claimed_end: u64,
    stored: u32,
    crc: crc32fast::Hasher,
}

impl LengthSearch {
    /// For the message `bad`, which cannot end beyond `to`. At most `bytes_max` are looked at.
    pub(crate) fn new(bad: &Scanned, to: u64, bytes_max: u64) -> Self {
        let bytes_max = bytes_max.min(u64::from(MESSAGE_BYTES_LIMIT));
        Self {
            next_byte: bad.at + CRC_FROM as u64,
            to: to.min(bad.at + bytes_max),
            first_end: bad.at + HEADER_BYTES as u64,
            claimed_end: bad.end(),
            stored: bad.header.crc,
            crc: crc32fast::Hasher::new(),
        }
    }

    /// The position of the byte that is to be fed next; `None` when there is no other length.
    pub(crate) fn next_byte(&self) -> Option<u64> {
        (self.next_byte < self.to).then_some(self.next_byte)
    }

    /// Says whether another length was found.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> bool {
        let wanted = bytes.len().min((self.to - self.next_byte) as usize);
        for byte in &bytes[..wanted] {
            self.crc.update(std::slice::from_ref(byte));
            self.next_byte += 1;
            let is_another = self.next_byte >= self.first_end && self.next_byte != self.claimed_end;
            if is_another && self.crc.clone().finalize() == self.stored {
                return true;
            }
        }
        false
    }
}

fn is_wrapper(header: &MessageHeader) -> bool {
    (1..=5).contains(&(header.attributes & 0b111))
}

/// Where the value begins: wrappers have neither key nor headers.
fn value_at(header: &MessageHeader) -> u64 {
    let producer_bytes = if header.attributes & (1 << 6) == 0 { 0 } else { PRODUCER_BLOCK_BYTES as u64 };
    HEADER_BYTES as u64 + producer_bytes
}

#[cfg(test)]
mod tests {
    use corelane_proto::message::{MessageParts, encode_gap};
    use corelane_proto::set::SetBuilder;

    use super::*;

    fn set(values: &[&[u8]]) -> Vec<u8> {
        let mut builder = SetBuilder::new();
        for (index, value) in values.iter().enumerate() {
            let parts = MessageParts { value: Some(value), timestamp_ms: index as i64, ..MessageParts::default() };
            builder.push(&parts).unwrap();
        }
        builder.finish().to_vec()
    }

    fn scan(bytes: &[u8], piece: usize, at: u64, limit: u64) -> Vec<Found> {
        let mut scanner = Scanner::new(at, limit);
        let mut found = Vec::new();
        for mut piece in bytes.chunks(piece) {
            loop {
                match scanner.feed(&mut piece) {
                    Found::More => break,
                    Found::NoMessage { at } => {
                        found.push(Found::NoMessage { at });
                        return found;
                    }
                    message @ Found::Message(_) => found.push(message),
                }
            }
        }
        found
    }

    fn messages(found: &[Found]) -> Vec<(u64, u64, bool, bool)> {
        let message = |found: &Found| match found {
            Found::Message(scanned) => Some((scanned.at, scanned.end(), scanned.is_good, scanned.header.is_last())),
            _ => None,
        };
        found.iter().filter_map(message).collect()
    }

    #[test]
    fn messages_are_found_however_the_bytes_are_cut() {
        let bytes = set(&[b"one", &[7; 5000], b"three"]);
        let expected = [(100, 127, true, false), (127, 5151, true, false), (5151, 5180, true, true)];
        for piece in [1, 2, 23, 24, 25, 4096, 1 << 20] {
            let found = scan(&bytes, piece, 100, u64::MAX);
            assert_eq!(messages(&found), expected, "pieces of {piece} bytes");
        }
    }

    #[test]
    fn a_hurt_message_is_found_bad_and_the_next_one_good() {
        let mut bytes = set(&[b"one", b"two", b"three"]);
        bytes[27 + 25] ^= 1;
        let good: Vec<_> = messages(&scan(&bytes, 10, 0, u64::MAX)).iter().map(|message| message.2).collect();
        assert_eq!(good, [true, false, true]);
    }

    #[test]
    fn zeros_and_what_crosses_the_limit_are_no_messages() {
        assert_eq!(scan(&[0; 100], 7, 50, u64::MAX), [Found::NoMessage { at: 50 }]);
        let bytes = set(&[b"one", b"two"]);
        let found = scan(&bytes, 5, 0, 53);
        assert_eq!(messages(&found).len(), 1);
        assert_eq!(found.last(), Some(&Found::NoMessage { at: 27 }));
        assert_eq!(scan(&bytes, 5, 0, 23), [Found::NoMessage { at: 0 }]);
    }

    #[test]
    fn the_rest_of_a_gap_is_not_looked_at() {
        let mut bytes = bytes::BytesMut::new();
        encode_gap(100, 5, true, &mut bytes);
        bytes[24..].fill(0xee);
        let found = scan(&bytes, 9, 0, u64::MAX);
        let [Found::Message(gap)] = found[..] else { panic!("one gap was expected, found {found:?}") };
        assert!(gap.is_good && gap.messages == 0);
        bytes[0] = 90;
        let found = scan(&bytes, 9, 0, u64::MAX);
        let [Found::Message(gap), ..] = found[..] else { panic!("one gap was expected, found {found:?}") };
        assert!(!gap.is_good, "a gap whose length was hurt is no good message");
    }

    #[test]
    fn a_hurt_length_is_told_from_a_hurt_value() {
        let bytes = set(&[&[9; 69], &[8; 200], b"three"]);
        let is_another = |bytes: &[u8], piece: usize, to: u64| {
            let bad = Scanned {
                at: 0,
                header: MessageHeader::read(bytes, MESSAGE_BYTES_LIMIT).unwrap(),
                is_good: false,
                messages: 1,
            };
            let mut search = LengthSearch::new(&bad, to, u64::MAX);
            while let Some(at) = search.next_byte() {
                let at = at as usize;
                if search.feed(&bytes[at..(at + piece).min(bytes.len())]) {
                    return true;
                }
            }
            false
        };
        let all = bytes.len() as u64;
        for piece in [1, 7, 1000] {
            assert!(!is_another(&bytes, piece, all), "the length that it claims is not another one");
            for bit in [1, 2, 4, 8, 32, 64] {
                let mut hurt = bytes.clone();
                hurt[0] ^= bit;
                assert!(is_another(&hurt, piece, all), "93 is found though {} is claimed", hurt[0]);
                assert!(!is_another(&hurt, piece, 92), "none is looked for beyond the limit");
                hurt[50] ^= 1;
                assert!(!is_another(&hurt, piece, all), "both were hurt: nothing tells");
            }
        }
    }
}
