//! The sending half of a connection: responses in the order of completion, gathered into as few calls as can be, one task.
//! Pieces of the log are sent from memory where they are there, read ahead where they are not; a reader that is stuck
//! keeps none of it in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use corelane_log::env::{BLOCK_BYTES, Chunk, File};
use corelane_log::{Piece, Shard as LogShard};
use corelane_proto::ids::Position;
use glommio::sync::{Semaphore, StaticPermit};

use super::activity::Activity;
use crate::io::arena::ShardSlice;
use crate::io::disk::ShardFile;
use crate::io::env::ShardEnv;
use crate::io::signal::Signal;
use crate::io::socket::Socket;
use crate::limits;
use crate::service::context::{LogBytes, Partition, Reply};

/// Slices that one call sends at most.
const SLICES_MAX: usize = 64;

/// What waits to be sent on one connection.
pub(super) struct Outgoing {
    socket: Socket,
    activity: Rc<Activity>,
    reader: Rc<FileReader>,
    queue: RefCell<Queue>,
    filled: Signal,
    /// Notified when the queue has become shorter.
    pub(super) drained: Signal,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The read that fetches what comes after the bytes that are being sent.
    ahead: Option<Ahead>,
}

enum Entry {
    Bytes(BytesMut),
    Log(LogPayload),
}

/// Bytes of the log that were promised.
struct LogPayload {
    partition: Partition,
    /// The next byte to send.
    at: Position,
    bytes: usize,
    /// What was read from the disk, next to be sent.
    staged: VecDeque<Staged>,
    /// Where the rest lies. Empty with `bytes` left: to be asked for again.
    pieces: VecDeque<Piece<ShardEnv>>,
}

struct Staged {
    slice: ShardSlice,
    _memory: StaticPermit,
}

struct Ahead {
    file: ShardFile,
    offset: u64,
    reading: Pin<Box<dyn Future<Output = io::Result<Staged>>>>,
}

impl Outgoing {
    pub(super) fn new(socket: Socket, activity: Rc<Activity>, reader: Rc<FileReader>) -> Self {
        Self {
            socket,
            activity,
            reader,
            queue: RefCell::default(),
            filled: Signal::default(),
            drained: Signal::default(),
        }
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.queue.borrow().bytes
    }

    /// Appends a head, or several.
    pub(super) fn push_heads(&self, encode: impl FnOnce(&mut BytesMut)) {
        let mut queue = self.queue.borrow_mut();
        self.note_start(&queue);
        if !matches!(queue.entries.back(), Some(Entry::Bytes(_))) {
            queue.entries.push_back(Entry::Bytes(BytesMut::new()));
        }
        let Some(Entry::Bytes(last)) = queue.entries.back_mut() else { unreachable!("pushed above") };
        let before = last.len();
        encode(last);
        let added = last.len() - before;
        queue.bytes += added;
        drop(queue);
        self.filled.notify();
    }

    /// Appends a response.
    pub(super) fn push(&self, correlation: u32, reply: Reply) {
        self.push_heads(|out| reply.encode_head(out, correlation));
        let Some(LogBytes { partition, begin, bytes, pieces }) = reply.payload else { return };
        if bytes > 0 {
            let payload = LogPayload { partition, at: begin, bytes, staged: VecDeque::new(), pieces: pieces.into() };
            let mut queue = self.queue.borrow_mut();
            queue.bytes += bytes;
            queue.entries.push_back(Entry::Log(payload));
        }
    }

    /// The time-out for a reader that is stuck begins when there is something for it.
    fn note_start(&self, queue: &Queue) {
        if queue.entries.is_empty() {
            self.activity.sent();
        }
    }

    /// Gives back the memory that a stuck reader holds: its bytes are looked up again when it goes on.
    pub(super) fn release_memory(&self) {
        let mut queue = self.queue.borrow_mut();
        queue.ahead = None;
        for entry in &mut queue.entries {
            if let Entry::Log(payload) = entry {
                payload.staged.clear();
                payload.pieces.clear();
            }
        }
    }

    /// Sends what comes, for ever; ends with the first error.
    pub(super) async fn send_all(&self) -> io::Result<()> {
        loop {
            if self.queue.borrow().entries.is_empty() {
                self.filled.wait().await;
                continue;
            }
            if self.stage_front().await? {
                self.read_front().await?;
            }
            let sent = poll_fn(|context| {
                let queue = self.queue.borrow();
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let count = queue.gather(&mut slices);
                if count == 0 {
                    // The sweep has taken the memory back: look up again.
                    return std::task::Poll::Ready(Ok(0));
                }
                self.socket.poll_send(context, &slices[..count])
            });
            let sent = sent.await?;
            if sent > 0 {
                self.activity.sent();
                self.queue.borrow_mut().consume(sent);
                self.drained.notify();
            }
        }
    }

    /// Makes sure that it is known where the next bytes lie. Answers whether they must be read from the disk first.
    async fn stage_front(&self) -> io::Result<bool> {
        let unknown = self.queue.borrow().front_unknown();
        if let Some((partition, at, bytes)) = unknown {
            let pieces = partition.read(at, bytes).await.map_err(io::Error::other)?;
            if let Some(Entry::Log(payload)) = self.queue.borrow_mut().entries.front_mut() {
                payload.pieces = pieces.into();
            }
        }
        Ok(self.queue.borrow().front_in_file().is_some())
    }

    /// Reads the front piece from its file, and begins to read what follows.
    async fn read_front(&self) -> io::Result<()> {
        let Some((file, offset, bytes)) = self.queue.borrow().front_in_file() else { return Ok(()) };
        let ahead = self.queue.borrow_mut().ahead.take();
        let reading = match ahead {
            Some(ahead) if ahead.offset == offset && ahead.file.is_same(&file) => ahead.reading,
            _ => self.reader.start(file, offset, bytes),
        };
        let staged = reading.await?;
        let next = self.queue.borrow_mut().stage(staged, offset);
        if let Some((file, offset, bytes)) = next {
            let mut reading = self.reader.start(file.clone(), offset, bytes);
            // Polled once, so that the disk works while the socket does.
            let reading = match futures_util::poll!(&mut reading) {
                std::task::Poll::Ready(read) => Box::pin(std::future::ready(read)) as Pin<Box<_>>,
                std::task::Poll::Pending => reading,
            };
            self.queue.borrow_mut().ahead = Some(Ahead { file, offset, reading });
        }
        Ok(())
    }
}

impl Queue {
    /// Fills `slices` from the front with what is in memory; answers how many.
    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut count = 0;
        for entry in &self.entries {
            let (mut known, wanted) = (0, entry.bytes());
            for bytes in entry.in_memory() {
                if count == SLICES_MAX {
                    return count;
                }
                slices[count] = IoSlice::new(bytes);
                count += 1;
                known += bytes.len();
            }
            if known < wanted {
                break;
            }
        }
        count
    }

    /// Takes away what was sent.
    fn consume(&mut self, sent: usize) {
        self.bytes -= sent;
        let mut left = sent;
        while left > 0 {
            let front = self.entries.front_mut().expect("no more was sent than was there");
            let (taken, is_empty) = match front {
                Entry::Bytes(bytes) => {
                    let taken = left.min(bytes.len());
                    bytes.advance(taken);
                    (taken, bytes.is_empty())
                }
                Entry::Log(payload) => {
                    let taken = payload.consume(left);
                    (taken, payload.bytes == 0)
                }
            };
            left -= taken;
            if is_empty {
                self.entries.pop_front();
            }
        }
    }

    /// The next bytes, if it must be asked where they lie: as many as are sent before it is asked again.
    fn front_unknown(&self) -> Option<(Partition, Position, usize)> {
        match self.entries.front()? {
            Entry::Log(payload) if payload.staged.is_empty() && payload.pieces.is_empty() => {
                Some((payload.partition.clone(), payload.at, payload.bytes.min(limits::SEND_PIECE_BYTES)))
            }
            _ => None,
        }
    }

    /// The front piece, if it lies in a file: as much of it as is read at once.
    fn front_in_file(&self) -> Option<(ShardFile, u64, usize)> {
        match self.entries.front()? {
            Entry::Log(payload) if payload.staged.is_empty() => payload.first_in_file(),
            _ => None,
        }
    }

    /// Puts what was read in front of the rest of its piece; answers what to read next.
    fn stage(&mut self, staged: Staged, offset: u64) -> Option<(ShardFile, u64, usize)> {
        let Entry::Log(payload) = self.entries.front_mut()? else { return None };
        // The sweep may have taken the pieces away meanwhile: then the bytes are looked up again.
        match payload.pieces.front_mut() {
            Some(Piece::File { offset: at, bytes, .. }) if *at == offset => {
                *at += staged.slice.len() as u64;
                *bytes -= staged.slice.len();
                if *bytes == 0 {
                    payload.pieces.pop_front();
                }
                payload.staged.push_back(staged);
                payload.first_in_file()
            }
            _ => None,
        }
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Log(payload) => payload.bytes,
        }
    }

    /// What can be sent at once, up to the first byte that must be read or looked up.
    fn in_memory(&self) -> impl Iterator<Item = &[u8]> {
        let (head, payload) = match self {
            Self::Bytes(bytes) => (Some(&bytes[..]), None),
            Self::Log(payload) => (None, Some(payload)),
        };
        let staged = payload.into_iter().flat_map(|payload| payload.staged.iter().map(|staged| &staged.slice[..]));
        let pieces = payload.into_iter().flat_map(|payload| payload.pieces.iter());
        let pieces = pieces.map_while(|piece| match piece {
            Piece::Memory(slice) => Some(&slice[..]),
            Piece::File { .. } => None,
        });
        head.into_iter().chain(staged).chain(pieces)
    }
}

impl LogPayload {
    fn first_in_file(&self) -> Option<(ShardFile, u64, usize)> {
        match self.pieces.front()? {
            Piece::File { file, offset, bytes } => {
                Some((file.clone(), *offset, (*bytes).min(limits::SEND_PIECE_BYTES)))
            }
            Piece::Memory(_) => None,
        }
    }

    /// Takes up to `sent` bytes away from the front; answers how many.
    fn consume(&mut self, sent: usize) -> usize {
        let mut left = sent.min(self.bytes);
        let taken = left;
        self.bytes -= taken;
        self.at += taken as u64;
        while left > 0 {
            if let Some(staged) = self.staged.front_mut() {
                let part = left.min(staged.slice.len());
                staged.slice = staged.slice.part(part..staged.slice.len());
                if staged.slice.is_empty() {
                    self.staged.pop_front();
                }
                left -= part;
            } else if let Some(Piece::Memory(slice)) = self.pieces.front_mut() {
                let part = left.min(slice.len());
                *slice = slice.part(part..slice.len());
                if slice.is_empty() {
                    self.pieces.pop_front();
                }
                left -= part;
            } else {
                // The sweep took the memory back after the bytes had gone.
                return taken;
            }
        }
        taken
    }
}

/// Reads the log's files for the connections of a shard, within a bound of memory.
pub(super) struct FileReader {
    log: LogShard<ShardEnv>,
    memory: Rc<Semaphore>,
}

impl FileReader {
    pub(super) fn new(log: LogShard<ShardEnv>, bytes_max: usize) -> Self {
        let least = limits::SEND_PIECE_BYTES + 2 * BLOCK_BYTES;
        Self { log, memory: Rc::new(Semaphore::new(bytes_max.max(least) as u64)) }
    }

    /// Reads `bytes` bytes at `offset`.
    fn start(&self, file: ShardFile, offset: u64, bytes: usize) -> Pin<Box<dyn Future<Output = io::Result<Staged>>>> {
        let (log, memory) = (self.log.clone(), Rc::clone(&self.memory));
        Box::pin(async move {
            let skip = (offset % BLOCK_BYTES as u64) as usize;
            let whole = (skip + bytes).next_multiple_of(BLOCK_BYTES);
            let permit = memory.acquire_static_permit(whole as u64).await.map_err(io::Error::from)?;
            let chunk = log.allocate_for_reading(whole).await;
            let read = file.read(&chunk, 0, whole, offset - skip as u64).await?;
            if read < skip + bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(Staged { slice: chunk.slice(skip..skip + bytes), _memory: permit })
        })
    }
}
