//! Candidates for messages in bytes that are damaged, written into another directory. In place no boundary is ever
//! guessed: a value may contain whole messages, so each candidate is for a person to judge. A chain of candidates that
//! leads exactly to a place where a message is known to begin is good evidence, and is marked.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use corelane_log::Shard;
use corelane_log::blocking::{self, BlockingDisk, BlockingEnv};
use corelane_log::inspect::{Seen, SegmentFile, SegmentWalk, SummaryState, summary};
use corelane_log::limits::SET_BYTES_LIMIT;
use corelane_proto::ids::Position;
use corelane_proto::message::{Message, MessageHeader, VERSION};
use serde::Serialize;
use serde_json::json;

use super::directory::{Directory, PartitionPlace};
use super::look::Look;
use crate::error::CliError;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Salvaged {
    /// Bytes that were looked into.
    pub(super) damaged_bytes: u64,
    pub(super) candidates: u64,
    /// Those whose chain leads on.
    pub(super) connected: u64,
}

/// A candidate: where in the bytes it begins, and whether its chain leads to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    at: usize,
    bytes: usize,
    is_connected: bool,
}

pub(super) struct Salvage<'a> {
    to: &'a Path,
    list: BufWriter<File>,
    salvaged: Salvaged,
}

impl<'a> Salvage<'a> {
    /// Looks into everything that is damaged in `directory`. Makes `to`: one file of messages, back to back, for each
    /// damaged range, and `candidates.jsonl`, a line for each candidate.
    pub(super) fn run(directory: &Directory, to: &'a Path) -> Result<Salvaged, CliError> {
        let failed = |cause: io::Error| CliError::File { path: to.to_owned(), cause };
        fs::create_dir(to).map_err(failed)?;
        let list = BufWriter::new(File::create(to.join("candidates.jsonl")).map_err(failed)?);
        let mut salvage = Self { to, list, salvaged: Salvaged::default() };
        for place in &directory.partitions {
            let outcome = Look::at(directory, place).and_then(|look| salvage.partition(place, &look));
            outcome.map_err(|cause| CliError::File { path: place.dir.clone(), cause })?;
        }
        salvage.list.flush().map_err(failed)?;
        Ok(salvage.salvaged)
    }

    fn partition(&mut self, place: &PartitionPlace, look: &Look) -> io::Result<()> {
        let shard = Shard::new(BlockingEnv::default());
        let floor = look.floor.map(|floor| floor.durable_end);
        for segment in &look.files.segments {
            blocking::run(self.segment(&shard, place, segment, look.segment_end(segment), floor))?;
        }
        let Some(newest) = look.files.segments.last() else { return Ok(()) };
        if let Some(Ok(recovered)) = &look.recovery
            && let Some((_, bytes)) = recovered.cut
        {
            let (from, to) = (recovered.end, recovered.end + bytes);
            let walk = blocking::run(SegmentWalk::open(&shard, newest, from, to, []))?;
            let tail = blocking::run(walk.copy(from, to))?;
            self.range(place, from, &tail)?;
        }
        Ok(())
    }

    async fn segment(
        &mut self,
        shard: &Shard<BlockingEnv>,
        place: &PartitionPlace,
        segment: &SegmentFile,
        end: Position,
        floor: Option<Position>,
    ) -> io::Result<()> {
        let known = match summary(&BlockingDisk, segment).await? {
            SummaryState::Read(summary) => summary.boundaries,
            _ => Vec::new(),
        };
        let known = known.into_iter().chain(floor);
        let mut walk = SegmentWalk::open(shard, segment, segment.base, end, known).await?;
        while let Some(seen) = walk.next().await? {
            // Of a bad message between two known places nothing else can be told than that it is bad.
            if let Seen::Damage { from, to, is_zeros: false } = seen {
                let bytes = walk.copy(from, to).await?;
                self.range(place, from, &bytes)?;
            }
        }
        Ok(())
    }

    /// Looks into the damaged bytes from `from` on.
    fn range(&mut self, place: &PartitionPlace, from: Position, bytes: &[u8]) -> io::Result<()> {
        self.salvaged.damaged_bytes += bytes.len() as u64;
        let found = candidates(bytes);
        if found.is_empty() {
            return Ok(());
        }
        let name = format!("{}-{}-{:020}.messages", place.topic.name, place.partition, from.0);
        let mut messages = BufWriter::new(File::create(self.to.join(&name))?);
        for candidate in found {
            let raw = &bytes[candidate.at..candidate.at + candidate.bytes];
            messages.write_all(raw)?;
            let message = Message::view(raw).expect("a candidate was parsed");
            let line = json!({
                "partition": place.label(),
                "position": from.0 + candidate.at as u64,
                "bytes": candidate.bytes,
                "leads_on": candidate.is_connected,
                "timestamp_ms": message.timestamp_ms(),
                "codec": message.codec().to_string(),
                "key": message.key().map(|key| key.escape_ascii().to_string()),
                "value_bytes": message.value().map(<[u8]>::len),
                "file": name,
            });
            writeln!(self.list, "{line}")?;
            self.salvaged.candidates += 1;
            self.salvaged.connected += u64::from(candidate.is_connected);
        }
        messages.flush()
    }
}

/// What could be messages in `bytes`, the first from the front, then from behind its end on.
fn candidates(bytes: &[u8]) -> Vec<Candidate> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match candidate_bytes(&bytes[at..]) {
            Some(length) => {
                found.push(Candidate { at, bytes: length, is_connected: false });
                at += length;
            }
            None => at += 1,
        }
    }
    let mut chain_begins = bytes.len();
    for candidate in found.iter_mut().rev() {
        if candidate.at + candidate.bytes == chain_begins {
            candidate.is_connected = true;
            chain_begins = candidate.at;
        }
    }
    found
}

fn candidate_bytes(bytes: &[u8]) -> Option<usize> {
    // Cheap first: a checksum of megabytes at each byte would take hours.
    let header = MessageHeader::read(bytes, SET_BYTES_LIMIT).ok()?;
    if header.version != VERSION {
        return None;
    }
    Message::parse(bytes, SET_BYTES_LIMIT).ok().map(|message| message.length() as usize)
}

#[cfg(test)]
mod tests {
    use corelane_proto::message::MessageParts;
    use corelane_proto::set::SetBuilder;

    use super::*;

    fn message(value: &[u8]) -> Vec<u8> {
        let mut builder = SetBuilder::new();
        builder.push(&MessageParts { value: Some(value), ..MessageParts::default() }).unwrap();
        builder.finish().to_vec()
    }

    #[test]
    fn a_chain_that_leads_to_the_end_is_told_from_a_message_inside_a_value() {
        let inner = message(b"inner");
        // The outer message's header is hit: what is inside its value is found, and is no message of the log.
        let mut outer = message(&[b"some text", &inner[..], b"more text"].concat());
        outer[0] ^= 0x40;
        let (one, two) = (message(b"one"), message(b"two"));
        let bytes = [&outer[..], &one, &two].concat();
        let found = candidates(&bytes);
        let places: Vec<(usize, bool)> = found.iter().map(|found| (found.at, found.is_connected)).collect();
        assert_eq!(places, [(24 + 9, false), (outer.len(), true), (outer.len() + one.len(), true)]);
    }

    #[test]
    fn nothing_is_found_in_zeros_and_in_less_than_a_header() {
        assert_eq!(candidates(&[0; 5000]), []);
        assert_eq!(candidates(&[1; 23]), []);
    }
}
