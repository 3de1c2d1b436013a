//! Looking into a partition's directory from outside, for the offline tools: which files there are, and what lies in a
//! segment from its base on, bad bytes passed the way readers are led around them. Reads only. It uses the scanner and
//! the layout of recovery, so that there is one opinion on what a good message is.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use corelane_proto::ids::{Epoch, Position};
use corelane_proto::message::MessageHeader;

use crate::env::{Disk, Env, File, OpenMode};
use crate::limits::SUMMARY_BYTES_MAX;
use crate::names;
use crate::recovery::layout::Layout;
use crate::recovery::walk::Reader;
use crate::scan::{Found, LengthSearch, Scanned, Scanner};
use crate::shard::{EnvFile, EnvSlice, Shard};
use crate::summary::Summary;

/// A partition's directory, sorted out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionFiles {
    /// By base; the last one is, or was, active.
    pub segments: Vec<SegmentFile>,
    /// Copies of what recoveries cut off.
    pub cuts: Vec<String>,
    /// Unfinished files and summaries without a segment, which the next start removes.
    pub leftovers: Vec<String>,
    /// Files that are not the log's.
    pub foreign: Vec<String>,
    /// The first bytes of the log that no segment has: from, to.
    pub gap: Option<(Position, Position)>,
}

/// A segment's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFile {
    /// Where it lies.
    pub path: PathBuf,
    /// The position of its first byte.
    pub base: Position,
    /// The life of the log that it belongs to.
    pub epoch: Epoch,
    /// Bytes of the file, allocated ahead included.
    pub file_bytes: u64,
    /// Where the next segment begins; `None`: it is the last.
    pub next: Option<Position>,
}

impl SegmentFile {
    /// Where its file ends, in positions.
    pub fn file_end(&self) -> Position {
        Position(self.base.0.saturating_add(self.file_bytes))
    }

    /// Reads base and epoch from the name of a segment, or of a copy of its cut tail.
    pub fn parse_name(name: &str) -> Option<(Position, Epoch)> {
        let stem = name.split_once(".log").map_or(name, |(stem, _)| stem);
        match names::classify(&format!("{stem}.log")) {
            names::FileKind::Segment(base, epoch) => Some((base, epoch)),
            _ => None,
        }
    }
}

/// Lists a partition's directory.
pub async fn partition_files<D: Disk>(disk: &D, dir: &Path) -> io::Result<PartitionFiles> {
    let layout = Layout::read(&disk.list(dir).await?);
    let gap = layout.missing_start().or_else(|| layout.gap()).map(|gap| (Position(gap.from), Position(gap.to)));
    let bases = layout.segments.iter().map(|segment| Position(segment.base));
    let nexts: Vec<Option<Position>> = bases.skip(1).map(Some).chain([None]).collect();
    let segments = layout.segments.iter().zip(nexts).map(|(segment, next)| SegmentFile {
        path: dir.join(segment.name()),
        base: Position(segment.base),
        epoch: segment.epoch,
        file_bytes: segment.bytes,
        next,
    });
    let segments = segments.collect();
    Ok(PartitionFiles { segments, cuts: layout.cuts, leftovers: layout.leftovers, foreign: layout.foreign, gap })
}

/// What a segment's summary says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SummaryState {
    /// There is none: it is made when first wanted.
    Missing,
    /// It is damaged, or no summary; as good as none.
    Unreadable(String),
    /// It can be believed.
    Read(SegmentSummary),
}

/// A segment's summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Bytes of the segment that it tells of: all of them, unless it was written while the segment was active.
    pub bytes: u64,
    /// When the first bytes arrived, in milliseconds since the Unix epoch.
    pub first_arrival_ms: i64,
    /// When the newest bytes arrived.
    pub last_arrival_ms: i64,
    /// Messages, as consumers see them.
    pub messages: u64,
    /// The largest timestamp.
    pub max_timestamp_ms: i64,
    /// Known message boundaries, ascending.
    pub boundaries: Vec<Position>,
}

/// Reads the summary of a segment.
pub async fn summary<D: Disk>(disk: &D, segment: &SegmentFile) -> io::Result<SummaryState> {
    let path = segment.path.with_file_name(names::summary(segment.base, segment.epoch));
    let content = match disk.read_small(&path, SUMMARY_BYTES_MAX).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(SummaryState::Missing),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            return Ok(SummaryState::Unreadable(format!("it is too large: {error}")));
        }
        content => content?,
    };
    Ok(match Summary::decode(&content) {
        None => SummaryState::Unreadable("its checksum is wrong".to_owned()),
        Some(summary) if summary.base != segment.base.0 => {
            SummaryState::Unreadable(format!("it is the summary of the segment at {}", summary.base))
        }
        Some(summary) => SummaryState::Read(SegmentSummary {
            bytes: summary.bytes,
            first_arrival_ms: summary.first_arrival_ms,
            last_arrival_ms: summary.last_arrival_ms,
            messages: summary.index.messages,
            max_timestamp_ms: summary.index.max_timestamp_ms,
            boundaries: summary.index.stretches.iter().map(|stretch| segment.base + stretch.offset).collect(),
        }),
    })
}

/// What lies at a place of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A message.
    Message(SeenMessage),
    /// No message begins at `from`, or none that leads on: readers go on at `to`, the next known boundary.
    Damage {
        /// The first byte.
        from: Position,
        /// The byte behind the last.
        to: Position,
        /// All of it is zeros.
        is_zeros: bool,
    },
}

/// A message, as its header and its CRC tell of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenMessage {
    /// Its id.
    pub at: Position,
    /// Its header.
    pub header: MessageHeader,
    /// Whether it can be believed.
    pub state: MessageState,
    /// As consumers see it: of a wrapper the count that it claims, of a gap none.
    pub messages: u64,
}

/// Whether a message can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// Its CRC holds.
    Good,
    /// Its CRC does not hold; its length does.
    BadCrc,
    /// Its CRC holds, and its version is one that this program does not know.
    Newer,
}

/// Goes through one segment from a boundary on.
pub struct SegmentWalk<'a, E: Env> {
    shard: &'a Shard<E>,
    file: EnvFile<E>,
    base: u64,
    file_bytes: u64,
    to: u64,
    /// Places at which a message is known to begin, ascending; the last one is `to`.
    boundaries: Vec<u64>,
    scanner: Scanner,
    stretch_end: u64,
    /// Whether the bad messages of this stretch are led over by the lengths that they claim, once that was asked.
    leads_on: Option<bool>,
    /// Bytes that were read and not fed yet.
    piece: Option<(EnvSlice<E>, usize)>,
}

impl<'a, E: Env> SegmentWalk<'a, E> {
    /// Opens `segment` for a walk over [`from`, `to`), both boundaries that its file holds. `known` are boundaries inside,
    /// from its summary, or the checkpoint's.
    pub async fn open(
        shard: &'a Shard<E>,
        segment: &SegmentFile,
        from: Position,
        to: Position,
        known: impl IntoIterator<Item = Position>,
    ) -> io::Result<Self> {
        let file = shard.env().disk().open(&segment.path, OpenMode::Read).await?;
        let file_bytes = file.bytes().await?;
        let to = to.0.min(segment.base.0.saturating_add(file_bytes)).max(from.0);
        let inside = known.into_iter().map(|at| at.0).filter(|at| (from.0 + 1..to).contains(at));
        let mut boundaries: Vec<u64> = inside.chain([to]).collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        let stretch_end = boundaries[0];
        Ok(Self {
            shard,
            file,
            base: segment.base.0,
            file_bytes,
            to,
            boundaries,
            scanner: Scanner::new(from.0, stretch_end),
            stretch_end,
            leads_on: None,
            piece: None,
        })
    }

    /// Where the walk stands.
    pub fn at(&self) -> Position {
        Position(self.scanner.at())
    }

    /// What comes next; `None` at the end.
    pub async fn next(&mut self) -> io::Result<Option<Seen>> {
        while self.scanner.next_byte() < self.to {
            if self.scanner.next_byte() >= self.stretch_end {
                self.begin_stretch(self.stretch_end);
            }
            let (bytes, from) = match self.piece.take() {
                Some(piece) => piece,
                None => (self.reader().bytes_at(self.scanner.next_byte(), self.stretch_end).await?, 0),
            };
            let mut rest = &bytes[from..];
            let found = self.scanner.feed(&mut rest);
            let fed = bytes.len() - rest.len();
            match found {
                Found::More => {}
                Found::NoMessage { at } => return self.damage(at).await.map(Some),
                Found::Message(message) => {
                    if fed < bytes.len() {
                        self.piece = Some((bytes, fed));
                    }
                    if !message.is_good && !self.is_led_on(message.at).await? {
                        return self.damage(message.at).await.map(Some);
                    }
                    return Ok(Some(Seen::Message(seen(&message))));
                }
            }
        }
        Ok(None)
    }

    /// The bytes from `from` up to `to`, whatever they are.
    pub async fn copy(&self, from: Position, to: Position) -> io::Result<Vec<u8>> {
        self.reader().copy(from.0, to.0).await
    }

    fn reader(&self) -> Reader<'_, E> {
        Reader { shard: self.shard, file: &self.file, base: self.base, bytes: self.file_bytes }
    }

    fn begin_stretch(&mut self, at: u64) {
        let next = self.boundaries.partition_point(|boundary| *boundary <= at);
        self.stretch_end = self.boundaries.get(next).copied().unwrap_or(self.to);
        self.scanner = Scanner::new(at, self.stretch_end);
        self.leads_on = None;
        self.piece = None;
    }

    /// Everything up to the next boundary is passed over.
    async fn damage(&mut self, from: u64) -> io::Result<Seen> {
        let to = self.stretch_end;
        let is_zeros = self.is_zero(from, to).await?;
        self.begin_stretch(to);
        Ok(Seen::Damage { from: Position(from), to: Position(to), is_zeros })
    }

    /// Whether the lengths that are claimed from the bad message at `at` on lead to the next boundary.
    async fn is_led_on(&mut self, at: u64) -> io::Result<bool> {
        if let Some(known) = self.leads_on {
            return Ok(known);
        }
        let mut scanner = Scanner::new(at, self.stretch_end);
        let mut doubts = self.stretch_end - at;
        let mut reached = None;
        while reached.is_none() && scanner.next_byte() < self.stretch_end {
            let bytes = self.reader().bytes_at(scanner.next_byte(), self.stretch_end).await?;
            let mut rest = &bytes[..];
            reached = loop {
                match scanner.feed(&mut rest) {
                    Found::More => break None,
                    Found::NoMessage { at } => break Some(at),
                    Found::Message(message) if message.is_good => {}
                    Found::Message(bad) => {
                        if self.has_another_length(&bad, &mut doubts).await? {
                            break Some(bad.at);
                        }
                    }
                }
            };
        }
        let leads_on = match reached {
            None => true,
            Some(at) => self.is_zero(at, self.stretch_end).await?,
        };
        self.leads_on = Some(leads_on);
        Ok(leads_on)
    }

    /// Whether the CRC of a bad message holds for another length than it claims. Takes the bytes looked at from `doubts`.
    async fn has_another_length(&self, bad: &Scanned, doubts: &mut u64) -> io::Result<bool> {
        let mut search = LengthSearch::new(bad, self.stretch_end, *doubts);
        while let Some(at) = search.next_byte() {
            let bytes = self.reader().bytes_at(at, self.stretch_end).await?;
            *doubts = doubts.saturating_sub(bytes.len() as u64);
            if search.feed(&bytes) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn is_zero(&self, from: u64, to: u64) -> io::Result<bool> {
        let mut at = from;
        while at < to {
            let bytes = self.reader().bytes_at(at, to).await?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += bytes.len() as u64;
        }
        Ok(true)
    }
}

fn seen(message: &Scanned) -> SeenMessage {
    let state = match (message.is_good, message.is_newer()) {
        (false, _) => MessageState::BadCrc,
        (true, true) => MessageState::Newer,
        (true, false) => MessageState::Good,
    };
    SeenMessage { at: Position(message.at), header: message.header, state, messages: message.messages }
}
