//! From the pieces of a partition's byte stream to whole, checked messages. A piece may begin and end inside a message;
//! it is received into the buffer where the rest of its message lies already. Pure: it is told how much was received.

use std::sync::Arc;

use bytes::Bytes;
use corelane_proto::message::{FormatError, MESSAGE_BYTES_LIMIT, Message, MessageHeader};

use super::pool::Pool;

/// Messages that are handed on are copied out of their buffer when they are so few that keeping it would be a waste.
const COPIED_BYTES_MAX: usize = 32 << 10;

/// The stream of one partition.
#[derive(Debug)]
pub(super) struct Joiner {
    pool: Arc<Pool>,
    buffer: Vec<u8>,
    /// The log position of the buffer's first byte.
    base: u64,
    /// Bytes received into the buffer.
    filled: usize,
    /// Bytes of whole, checked messages at its beginning.
    checked: usize,
    /// Bytes that the message behind the checked ones needs, as far as known.
    needed: usize,
}

/// Whole, checked messages.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) bytes: Bytes,
    /// The log position of the first one.
    pub(super) position: u64,
    /// Memory that they hold.
    pub(super) charge: usize,
}

/// A message that cannot be right, or that this program is too old to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bad {
    /// Where it begins.
    pub(super) position: u64,
    /// Its format's version, where that is not known here. Its CRC is right.
    pub(super) newer: Option<u8>,
}

impl Joiner {
    /// A stream that begins with the byte at `base`.
    pub(super) fn new(pool: Arc<Pool>, base: u64) -> Self {
        Self { pool, buffer: Vec::new(), base, filled: 0, checked: 0, needed: 0 }
    }

    /// The log position of the next byte to be received.
    pub(super) fn next(&self) -> u64 {
        self.base + self.filled as u64
    }

    /// The log position of the first message that was not handed on.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// How many bytes the message that is incomplete still lacks; 0 if that is not known or none is.
    pub(super) fn lacks(&self) -> usize {
        self.needed.saturating_sub(self.filled - self.checked)
    }

    /// Room for `bytes` more, all of which will be received.
    pub(super) fn expect(&mut self, bytes: usize) {
        if self.filled + bytes <= self.buffer.len() {
            return;
        }
        let mut larger = self.pool.take(self.filled + bytes);
        larger[..self.filled].copy_from_slice(&self.buffer[..self.filled]);
        self.pool.give_back(std::mem::replace(&mut self.buffer, larger));
    }

    /// Where the next bytes go.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..]
    }

    /// Takes in that `bytes` were received, and checks the messages that are whole now. `visible_end`: no message ends
    /// beyond it.
    pub(super) fn received(&mut self, bytes: usize, visible_end: u64) -> Result<(), Bad> {
        self.filled += bytes;
        if self.filled - self.checked < self.needed {
            return Ok(());
        }
        loop {
            let rest = &self.buffer[self.checked..self.filled];
            let position = self.base + self.checked as u64;
            if rest.is_empty() {
                self.needed = 0;
                return Ok(());
            }
            match Message::parse(rest, MESSAGE_BYTES_LIMIT) {
                Ok(message) => self.checked += message.length() as usize,
                Err(FormatError::Truncated { needed, .. }) => {
                    let header = MessageHeader::read(rest, MESSAGE_BYTES_LIMIT);
                    // What is visible ends at the end of a set: a length that leads beyond it is wrong.
                    if header.is_ok_and(|header| position + u64::from(header.length) > visible_end) {
                        return Err(Bad { position, newer: None });
                    }
                    self.needed = needed;
                    return Ok(());
                }
                Err(FormatError::UnknownVersion { version }) => return Err(Bad { position, newer: Some(version) }),
                Err(_) => return Err(Bad { position, newer: None }),
            }
        }
    }

    /// Hands the whole messages on. What is left of the buffer is the beginning of the next message.
    pub(super) fn take_run(&mut self) -> Option<Run> {
        if self.checked == 0 {
            return None;
        }
        let position = self.base;
        let rest = self.checked..self.filled;
        let run = if self.checked <= COPIED_BYTES_MAX {
            let bytes = Bytes::copy_from_slice(&self.buffer[..self.checked]);
            self.buffer.copy_within(rest.clone(), 0);
            Run { bytes, position, charge: self.checked }
        } else {
            let mut next = Vec::new();
            if !rest.is_empty() {
                next = self.pool.take(rest.len());
                next[..rest.len()].copy_from_slice(&self.buffer[rest.clone()]);
            }
            let buffer = std::mem::replace(&mut self.buffer, next);
            let charge = buffer.len();
            Run { bytes: self.pool.lend(buffer, self.checked), position, charge }
        };
        self.base += self.checked as u64;
        self.filled = rest.len();
        self.checked = 0;
        Some(run)
    }
}

impl Drop for Joiner {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corelane_proto::message::MessageParts;
    use corelane_proto::set::SetBuilder;

    fn log(messages: usize, value_bytes: impl Fn(usize) -> usize) -> Vec<u8> {
        let mut log = Vec::new();
        for index in 0..messages {
            let mut set = SetBuilder::new();
            let value = vec![index as u8; value_bytes(index)];
            set.push(&MessageParts { value: Some(&value), ..MessageParts::default() }).unwrap();
            log.extend_from_slice(&set.finish());
        }
        log
    }

    fn feed(joiner: &mut Joiner, bytes: &[u8], visible_end: u64) -> Result<(), Bad> {
        joiner.expect(bytes.len());
        joiner.room()[..bytes.len()].copy_from_slice(bytes);
        joiner.received(bytes.len(), visible_end)
    }

    #[test]
    fn pieces_of_any_size_join_to_the_log_as_it_was() {
        let log = log(200, |index| index * 37 % 3000);
        for piece_bytes in [1, 7, 100, 1000, 40_000, 100_000, log.len()] {
            let mut joiner = Joiner::new(Pool::new(1 << 20), 5000);
            let mut joined = Vec::new();
            for piece in log.chunks(piece_bytes) {
                assert_eq!(joiner.next(), 5000 + (joined.len() + joiner.filled) as u64);
                feed(&mut joiner, piece, 5000 + log.len() as u64).unwrap();
                while let Some(run) = joiner.take_run() {
                    assert_eq!(run.position, 5000 + joined.len() as u64);
                    joined.extend_from_slice(&run.bytes);
                }
            }
            assert!(joined == log, "pieces of {piece_bytes}");
        }
    }

    #[test]
    fn a_large_message_says_what_it_lacks_and_is_not_copied_with_each_piece() {
        let log = log(1, |_| 1_000_000);
        let mut joiner = Joiner::new(Pool::new(1 << 20), 0);
        feed(&mut joiner, &log[..1024], log.len() as u64).unwrap();
        assert_eq!(joiner.lacks(), log.len() - 1024);
        assert!(joiner.take_run().is_none());
        feed(&mut joiner, &log[1024..], log.len() as u64).unwrap();
        assert_eq!(joiner.lacks(), 0);
        assert_eq!(&joiner.take_run().unwrap().bytes[..], &log[..]);
    }

    #[test]
    fn a_flipped_bit_is_reported_where_its_message_begins_and_what_is_before_it_is_good() {
        let whole = log(10, |_| 100);
        let message_bytes = whole.len() / 10;
        for at in 3 * message_bytes..4 * message_bytes {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let mut joiner = Joiner::new(Pool::new(1 << 20), 0);
            let bad = feed(&mut joiner, &damaged, damaged.len() as u64).unwrap_err();
            assert_eq!(bad.position, 3 * message_bytes as u64, "flipped at {at}");
            assert_eq!(joiner.take_run().unwrap().bytes, &whole[..3 * message_bytes]);
        }
    }

    #[test]
    fn a_length_beyond_the_visible_end_is_bad_and_not_waited_for() {
        let mut log = log(1, |_| 100);
        log[2] = 1;
        let mut joiner = Joiner::new(Pool::new(1 << 20), 0);
        assert_eq!(feed(&mut joiner, &log, log.len() as u64), Err(Bad { position: 0, newer: None }));
    }
}
