//! Reading segments at a start: set by set, from a boundary on; whether zeros follow; whether the checkpoint agrees.

use std::io;

use corelane_proto::message::VERSION;

use crate::checkpoint::CheckpointEntry;
use crate::coverage::LastMessage;
use crate::env::{BLOCK_BYTES, Chunk, Env};
use crate::index::{Index, Run};
use crate::plan::{ceil_block, floor_block};
use crate::scan::{Found, Scanner};
use crate::shard::{EnvFile, EnvSlice, Shard, read_chunk};

/// Reads one segment's file from front to back.
pub(crate) struct Reader<'a, E: Env> {
    pub(crate) shard: &'a Shard<E>,
    pub(crate) file: &'a EnvFile<E>,
    pub(crate) base: u64,
    /// Bytes of its file.
    pub(crate) bytes: u64,
}

/// What a disk writes, and loses, as a whole.
const SECTOR_BYTES: u64 = 512;

/// How far whole good sets reach.
#[derive(Debug)]
pub(super) struct Walked {
    /// The end of the last whole good set; where the walk began if there is none.
    pub(super) end: u64,
    /// The last message before the end, if the walk met one.
    pub(super) last: Option<LastMessage>,
    /// The last message of the set that ends at the place watched for, if one does.
    pub(super) at_watched: Option<LastMessage>,
    /// What is known of the inside, from where the walk began.
    pub(super) index: Index,
    /// A good message of a newer version ended the walk: where, and which.
    pub(super) newer: Option<(u64, u8)>,
}

impl<E: Env> Reader<'_, E> {
    /// The bytes at position `at`, at least one, none at or beyond `to`, which must lie within the file.
    pub(crate) async fn bytes_at(&self, at: u64, to: u64) -> io::Result<EnvSlice<E>> {
        let offset = at - self.base;
        let from = floor_block(offset);
        let skip = (offset - from) as usize;
        let wanted = ceil_block(to - self.base - from).min(self.shard.tuning().walk_bytes as u64) as usize;
        let (chunk, read) = read_chunk(self.shard, self.file, from, wanted.max(BLOCK_BYTES)).await?;
        let until = read.min((to - self.base - from) as usize);
        if until <= skip {
            let reason = format!("it ends at byte {}, {} were expected", from + read as u64, self.bytes);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        Ok(chunk.slice(skip..until))
    }

    /// Walks set by set from `from`, a boundary, up to `limit`, and notes the set that ends at `watched`.
    pub(super) async fn walk_sets(&self, from: u64, limit: u64, watched: u64) -> io::Result<Walked> {
        let mut walked = Walked {
            end: from,
            last: None,
            at_watched: None,
            index: Index::new(from - self.base, self.shard.tuning().stretch_bytes),
            newer: None,
        };
        let mut scanner = Scanner::new(from, limit);
        let mut set: Vec<Run> = Vec::new();
        while scanner.next_byte() < limit {
            let piece = self.bytes_at(scanner.next_byte(), limit).await?;
            let mut bytes = &piece[..];
            loop {
                let message = match scanner.feed(&mut bytes) {
                    Found::More => break,
                    Found::NoMessage { .. } => return Ok(walked),
                    Found::Message(message) => message,
                };
                if message.is_newer() {
                    walked.newer = Some((message.at, message.header.version));
                }
                if !message.is_good || message.is_newer() {
                    return Ok(walked);
                }
                set.push(Run {
                    bytes: u64::from(message.header.length),
                    messages: message.messages,
                    max_timestamp_ms: message.header.timestamp_ms,
                });
                if message.header.is_last() {
                    set.drain(..).for_each(|run| walked.index.append(run));
                    walked.end = message.end();
                    walked.last = Some(LastMessage { bytes: message.header.length, crc: message.header.crc });
                    if walked.end == watched {
                        walked.at_watched = walked.last;
                    }
                }
            }
        }
        Ok(walked)
    }

    /// Whether a closed segment that ends at `place` has bytes behind it that are not zeros. A sector that rotted across
    /// the border is no second log, so that much is passed over.
    pub(super) async fn overlaps(&self, place: u64) -> io::Result<bool> {
        let from = self.base + ceil_block(place - self.base) + SECTOR_BYTES;
        let to = self.base + self.bytes;
        Ok(from < to && last_not_zero(&self.bytes_at(from, to).await?).is_some())
    }

    /// Where the last byte from `from` on that is not zero ends, if there is one.
    pub(super) async fn content_end(&self, from: u64) -> io::Result<Option<u64>> {
        let mut end = None;
        let mut at = from;
        let file_end = self.base + self.bytes;
        while at < file_end {
            let piece = self.bytes_at(at, file_end).await?;
            if let Some(last) = last_not_zero(&piece) {
                end = Some(at + last as u64 + 1);
            }
            at += piece.len() as u64;
        }
        Ok(end)
    }

    /// Whether the message that the checkpoint names lies where it says, whole and good.
    pub(super) async fn agrees_with(&self, floor: &CheckpointEntry, limit: u64) -> io::Result<bool> {
        let end = floor.durable_end.0;
        let at = end - u64::from(floor.last.bytes);
        if end > limit {
            return Ok(false);
        }
        let mut scanner = Scanner::new(at, end);
        while scanner.next_byte() < end {
            let piece = self.bytes_at(scanner.next_byte(), end).await?;
            let mut bytes = &piece[..];
            match scanner.feed(&mut bytes) {
                Found::More => {}
                Found::NoMessage { .. } => return Ok(false),
                Found::Message(message) => {
                    let header = message.header;
                    let is_the_one = message.end() == end && header.crc == floor.last.crc && header.version == VERSION;
                    return Ok(message.is_good && is_the_one);
                }
            }
        }
        Ok(false)
    }

    /// The bytes from `from` up to `to`, for a copy.
    pub(crate) async fn copy(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let mut copy = Vec::with_capacity((to - from) as usize);
        while copy.len() < (to - from) as usize {
            let piece = self.bytes_at(from + copy.len() as u64, to).await?;
            copy.extend_from_slice(&piece);
        }
        Ok(copy)
    }
}

fn last_not_zero(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<64>();
    if let Some(last) = rest.iter().rposition(|byte| *byte != 0) {
        return Some(words.len() * 64 + last);
    }
    let word = words.iter().rposition(|word| *word != [0; 64])?;
    words[word].iter().rposition(|byte| *byte != 0).map(|last| word * 64 + last)
}

#[cfg(test)]
mod tests {
    use super::last_not_zero;

    #[test]
    fn the_last_byte_that_is_not_zero_is_found() {
        let mut bytes = vec![0; 200];
        assert_eq!(last_not_zero(&bytes), None);
        for at in [0, 63, 64, 150, 199] {
            bytes[at] = 1;
            assert_eq!(last_not_zero(&bytes), Some(at));
        }
        assert_eq!(last_not_zero(&[]), None);
    }
}
