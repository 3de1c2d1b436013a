//! `corelane log dump`: one line for each message, the bad ones included.

use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

use corelane_log::Shard;
use corelane_log::blocking::{self, BlockingDisk, BlockingEnv};
use corelane_log::inspect::{MessageState, Seen, SeenMessage, SegmentFile, SegmentWalk, SummaryState, summary};
use corelane_proto::ids::{Epoch, Position};
use corelane_proto::message::{MESSAGE_BYTES_LIMIT, Message};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::DumpArgs;
use super::directory::{Directory, PartitionPlace, data_dir_of, resolve};
use super::look::Look;
use crate::error::CliError;

/// A longer key is cut in the table.
const KEY_CHARACTERS_MAX: usize = 24;

pub(super) fn run(args: &DumpArgs, json: bool) -> Result<(), CliError> {
    let path = resolve(&args.path)?;
    let mut dump = Dump { out: BufWriter::new(io::stdout().lock()), json, from: Position(args.from), left: args.max };
    let written = if path.is_file() { dump.file(&path) } else { dump.directory(&args.path) };
    match written.and_then(|()| dump.out.flush().map_err(Failure::Output)) {
        Ok(()) => Ok(()),
        // Whoever reads has seen enough.
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(Failure::Output(error)) => Err(CliError::Output(error)),
        Err(Failure::Input(error)) => Err(error),
    }
}

/// Whose messages they are: a partition's, or those of a file that lies elsewhere.
enum Label {
    Partition(String, u32),
    File(String),
}

impl Label {
    fn of(place: &PartitionPlace) -> Self {
        Self::Partition(place.topic.name.to_string(), place.partition)
    }

    fn text(&self) -> String {
        match self {
            Self::Partition(topic, partition) => format!("{topic}/{partition}"),
            Self::File(name) => name.clone(),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Partition(topic, partition) => json!({ "topic": topic, "partition": partition }),
            Self::File(name) => json!({ "file": name }),
        }
    }
}

enum Failure {
    Input(CliError),
    Output(io::Error),
}

/// As [`Failure`], before it is told which file it was.
enum SegmentFailure {
    Input(io::Error),
    Output(io::Error),
}

impl SegmentFailure {
    fn of(self, path: &Path) -> Failure {
        match self {
            Self::Input(cause) => not_read(path, &cause).into(),
            Self::Output(cause) => Failure::Output(cause),
        }
    }
}

/// Whether a broker that runs has removed what was to be read.
fn has_gone(cause: &io::Error, is_running: bool) -> bool {
    is_running && cause.kind() == ErrorKind::NotFound
}

fn say_gone(path: &Path) {
    eprintln!("corelane: {} went away while it was looked at: it has expired, or was deleted", path.display());
}

impl From<CliError> for Failure {
    fn from(error: CliError) -> Self {
        Self::Input(error)
    }
}

struct Dump<W> {
    out: W,
    json: bool,
    from: Position,
    /// Messages that may still be printed; `None`: all.
    left: Option<u64>,
}

impl<W: Write> Dump<W> {
    fn directory(&mut self, path: &Path) -> Result<(), Failure> {
        let directory = Directory::read(path)?;
        for finding in &directory.findings {
            eprintln!("corelane: {}", finding.line());
        }
        self.heading()?;
        for place in &directory.partitions {
            match Look::at(&directory, place) {
                Ok(look) => self.partition(place, &look, None, directory.is_running)?,
                Err(cause) if has_gone(&cause, directory.is_running) => say_gone(&place.dir),
                Err(cause) => return Err(not_read(&place.dir, &cause).into()),
            }
        }
        Ok(())
    }

    /// A segment where it belongs, or any file that holds messages from its beginning on.
    fn file(&mut self, path: &Path) -> Result<(), Failure> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let dir = path.parent().unwrap_or(Path::new("/"));
        let data = data_dir_of(dir);
        if data != dir
            && let Ok(directory) = Directory::read(dir)
            && let Some(place) = directory.partitions.first()
        {
            let look = Look::at(&directory, place).map_err(|cause| not_read(dir, &cause))?;
            if look.files.segments.iter().any(|segment| segment.path == path) {
                self.heading()?;
                return self.partition(place, &look, Some(path), directory.is_running);
            }
        }
        let file_bytes = path.metadata().map_err(|cause| not_read(path, &cause))?.len();
        let (base, epoch) = match SegmentFile::parse_name(&name) {
            Some((base, epoch)) if path.extension().is_some_and(|extension| extension == "log") => (base, epoch),
            _ => (Position::ZERO, Epoch(0)),
        };
        let segment = SegmentFile { path: path.to_owned(), base, epoch, file_bytes, next: None };
        self.heading()?;
        self.segment(&Label::File(name), &segment, segment.file_end(), None).map_err(|error| error.of(path))
    }

    fn partition(
        &mut self,
        place: &PartitionPlace,
        look: &Look,
        only: Option<&Path>,
        is_running: bool,
    ) -> Result<(), Failure> {
        if self.from > look.end {
            eprintln!("corelane: {} ends at {}, and {} lies beyond", place.label(), look.end, self.from);
        }
        let floor = look.floor.map(|floor| floor.durable_end);
        for segment in &look.files.segments {
            let end = look.segment_end(segment);
            if end > self.from && only.is_none_or(|only| only == segment.path) {
                match self.segment(&Label::of(place), segment, end, floor) {
                    Err(SegmentFailure::Input(cause)) if has_gone(&cause, is_running) => say_gone(&segment.path),
                    done => done.map_err(|error| error.of(&segment.path))?,
                }
            }
        }
        if let Some(Ok(recovered)) = &look.recovery
            && let Some((_, bytes)) = recovered.cut
        {
            let (label, end) = (place.label(), recovered.end);
            eprintln!(
                "corelane: {label}: behind {end} lies a torn tail of {bytes} bytes, which the next start cuts off"
            );
        }
        Ok(())
    }

    fn segment(
        &mut self,
        label: &Label,
        segment: &SegmentFile,
        end: Position,
        floor: Option<Position>,
    ) -> Result<(), SegmentFailure> {
        let shard = Shard::new(BlockingEnv::default());
        let failed = SegmentFailure::Input;
        let known = match blocking::run(summary(&BlockingDisk, segment)).map_err(failed)? {
            SummaryState::Read(summary) => summary.boundaries,
            _ => Vec::new(),
        };
        let known: Vec<Position> = known.into_iter().chain(floor).collect();
        // The walk begins where a message is known to begin.
        let start = known.iter().copied().filter(|at| *at >= segment.base && *at <= self.from).max();
        let start = start.unwrap_or(segment.base);
        let walk = SegmentWalk::open(&shard, segment, start, end, known);
        let mut walk = blocking::run(walk).map_err(failed)?;
        while self.left != Some(0) {
            let Some(seen) = blocking::run(walk.next()).map_err(failed)? else { break };
            match seen {
                Seen::Message(message) => {
                    let to = message.at + u64::from(message.header.length);
                    if to <= self.from {
                        continue;
                    }
                    let bytes = blocking::run(walk.copy(message.at, to)).map_err(failed)?;
                    self.message(label, &message, &bytes).map_err(SegmentFailure::Output)?;
                    self.left = self.left.map(|left| left - 1);
                }
                // Behind the last message of a file lies what was allocated ahead.
                Seen::Damage { to, is_zeros: true, .. } if segment.next.is_none() && to == walk.at() && to >= end => {}
                Seen::Damage { from, to, is_zeros } if to > self.from => {
                    self.damage(label, from, to, is_zeros).map_err(SegmentFailure::Output)?;
                }
                Seen::Damage { .. } => {}
            }
        }
        Ok(())
    }

    fn heading(&mut self) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        let columns = ["PARTITION", "POSITION", "BYTES", "TIME", "VALUE", "CODEC", "SET", "CRC", "KEY"];
        self.row(&columns.map(str::to_owned)).map_err(Failure::Output)
    }

    fn row(&mut self, cells: &[String; 9]) -> io::Result<()> {
        let [partition, position, bytes, time, value, codec, set, crc, key] = cells;
        let mut line = String::new();
        let _ = write!(
            line,
            "{partition:<16} {position:>12} {bytes:>8}  {time:<24} {value:>8}  {codec:<10} {set:<5} {crc:<5} {key}"
        );
        writeln!(self.out, "{}", line.trim_end())
    }

    fn message(&mut self, label: &Label, message: &SeenMessage, bytes: &[u8]) -> io::Result<()> {
        let header = &message.header;
        let crc = match message.state {
            MessageState::Good => "good",
            MessageState::BadCrc => "BAD",
            MessageState::Newer => "newer",
        };
        // What a damaged message says of itself is not shown.
        let parsed = Message::parse(bytes, MESSAGE_BYTES_LIMIT);
        if self.json {
            return writeln!(self.out, "{}", message_json(label, message, parsed.as_ref().ok()));
        }
        let is_last = if header.is_last() { "last" } else { "" };
        let mut cells = [
            label.text(),
            message.at.to_string(),
            header.length.to_string(),
            String::new(),
            String::new(),
            String::new(),
            is_last.to_owned(),
            crc.to_owned(),
            String::new(),
        ];
        match &parsed {
            Ok(parsed) => {
                cells[3] = time(parsed.timestamp_ms());
                cells[4] = parsed.value().map_or_else(|| "none".to_owned(), |value| value.len().to_string());
                cells[5] = codec(parsed, message.messages);
                cells[8] = parsed.key().map_or_else(|| "-".to_owned(), key_text);
            }
            Err(error) => cells[8] = error.to_string(),
        }
        self.row(&cells)
    }

    fn damage(&mut self, label: &Label, from: Position, to: Position, is_zeros: bool) -> io::Result<()> {
        let what = if is_zeros { "zeros" } else { "no message can be told apart here" };
        if self.json {
            let damage = json!({ "position": from.0, "bytes": to - from, "crc": "damaged", "text": what });
            let line = joined(label.to_json(), damage);
            return writeln!(self.out, "{line}");
        }
        let cells = [&label.text(), &from.to_string(), &(to - from).to_string(), "", "", "", "", "BAD", what];
        self.row(&cells.map(str::to_owned))
    }
}

fn not_read(path: &Path, cause: &io::Error) -> CliError {
    CliError::NotSeen(format!("{}: {cause}", path.display()))
}

fn time(timestamp_ms: i64) -> String {
    Timestamp::from_millisecond(timestamp_ms).map_or_else(|_| timestamp_ms.to_string(), |time| format!("{time:.3}"))
}

/// The codec, and of a wrapper how many messages it claims to hold.
fn codec(message: &Message<'_>, messages: u64) -> String {
    let name = message.codec().to_string();
    if message.codec().is_wrapper() { format!("{name} x{messages}") } else { name }
}

fn key_text(key: &[u8]) -> String {
    let text = key.escape_ascii().to_string();
    match text.char_indices().nth(KEY_CHARACTERS_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

fn message_json(label: &Label, seen: &SeenMessage, parsed: Option<&Message<'_>>) -> Value {
    let crc = match seen.state {
        MessageState::Good => "good",
        MessageState::BadCrc => "bad",
        MessageState::Newer => "newer",
    };
    let line = json!({
        "position": seen.at.0,
        "bytes": seen.header.length,
        "version": seen.header.version,
        "crc": crc,
        "last_of_set": seen.header.is_last(),
    });
    let line = joined(label.to_json(), line);
    let Some(message) = parsed else { return line };
    let headers = message.headers().count();
    let fields = json!({
        "timestamp_ms": message.timestamp_ms(),
        "codec": message.codec().to_string(),
        "messages": seen.messages,
        "key_bytes": message.key().map(<[u8]>::len),
        "key": message.key().map(|key| key.escape_ascii().to_string()),
        "headers": headers,
        "value_bytes": message.value().map(<[u8]>::len),
    });
    joined(line, fields)
}

/// Two objects as one.
fn joined(mut first: Value, second: Value) -> Value {
    if let (Value::Object(first), Value::Object(second)) = (&mut first, second) {
        first.extend(second);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_as_text_and_not_at_any_length() {
        assert_eq!(key_text(b"user-1"), "user-1");
        assert_eq!(key_text(b"\x00\xff"), "\\x00\\xff");
        assert_eq!(key_text(&[b'x'; 30]), format!("{}...", "x".repeat(24)));
    }

    #[test]
    fn times_beyond_the_calendar_are_shown_as_numbers() {
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(i64::MAX), i64::MAX.to_string());
    }
}
