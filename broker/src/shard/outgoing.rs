//! The sending half of a connection: responses in the order of completion, gathered into as few calls as can be, one task.
//! Pieces of the log are sent from memory where they are there, read ahead where they are not; a reader that is stuck
//! keeps none of it in memory, but for a bounded part that the kernel may hold by reference. Each send's result is known
//! before the next one begins, whichever way it goes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Buf, BytesMut};
use corelane_log::Piece;
use corelane_proto::ids::Position;

use super::activity::Activity;
use super::file_reader::{FileReader, Reading, Staged};
use super::state::Shard;
use crate::io::arena::ShardSlice;
use crate::io::disk::ShardFile;
use crate::io::env::ShardEnv;
use crate::io::pipe::Pipe;
use crate::io::signal::Signal;
use crate::io::socket::Socket;
use crate::io::turns::Turns;
use crate::io::zero_copy::{Lane, Sent};
use crate::limits;
use crate::service::context::{LogBytes, Promise, Reply};

/// Slices that one call sends at most.
const SLICES_MAX: usize = 64;
/// Bytes after which one call takes no further slice: copying them keeps the shard for so long.
const SEND_BYTES_MAX: usize = 2 * limits::SEND_PIECE_BYTES;
/// What is copied of a piece that is to be sent by reference when the socket is full, in bytes: something must be, to wait.
const WAIT_BYTES: usize = 16 << 10;

/// The least that is read at a time for a peer that did not take what was read for it before.
const READ_PIECE_BYTES_MIN: usize = 16 << 10;

/// What waits to be sent on one connection.
pub(super) struct Outgoing {
    socket: Socket,
    lane: Lane,
    activity: Rc<Activity>,
    reader: Rc<FileReader>,
    turns: Turns,
    queue: RefCell<Queue>,
    /// The socket takes no more: it is the peer that is waited for, and not the disk, or memory to read into.
    is_blocked: Cell<bool>,
    /// How much is read at a time: for a peer that did not take what was read, what it takes, or most is read again and again.
    piece_bytes: Cell<usize>,
    /// What was sent since the last read began.
    taken_bytes: Cell<usize>,
    /// The bytes held in the queues of all connections of the shard.
    shard_heads: Rc<Cell<usize>>,
    filled: Signal,
    /// Notified when the queue has become shorter.
    pub(super) drained: Signal,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Of these, bytes that are held here; the others lie in the log.
    head_bytes: usize,
    payloads: u64,
    /// The read of the first bytes that are not in memory.
    ahead: Option<Ahead>,
    /// When the last of what was read came, or its read began.
    read_at: Option<Instant>,
}

enum Entry {
    Bytes(BytesMut),
    Log(LogPayload),
}

/// Bytes of the log that were promised.
struct LogPayload {
    number: u64,
    promise: Rc<Promise>,
    /// The next byte to send.
    at: Position,
    bytes: usize,
    /// What was read from the disk, next to be sent.
    staged: VecDeque<Staged>,
    /// Where what follows lies. With more `bytes` left than these have: to be asked for again.
    pieces: VecDeque<Piece<ShardEnv>>,
}

/// A read that is under way for a payload, of the first piece of it that lies in a file.
struct Ahead {
    number: u64,
    offset: u64,
    reading: Reading,
}

impl Outgoing {
    pub(super) fn new(socket: Socket, activity: Rc<Activity>, shard: &Shard) -> Self {
        Self {
            lane: shard.zero_copy.lane(&socket),
            socket,
            activity,
            reader: Rc::clone(&shard.file_reader),
            turns: shard.context.turns.clone(),
            queue: RefCell::default(),
            is_blocked: Cell::new(false),
            piece_bytes: Cell::new(limits::READ_PIECE_BYTES),
            taken_bytes: Cell::new(0),
            shard_heads: Rc::clone(&shard.outgoing_heads),
            filled: Signal::default(),
            drained: Signal::default(),
        }
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.queue.borrow().bytes
    }

    /// Of these, bytes that do not lie in the log.
    pub(super) fn head_bytes(&self) -> usize {
        self.queue.borrow().head_bytes
    }

    /// Whether the peer does not take what there is for it.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.get()
    }

    /// Whether the kernel holds memory of the log for this connection, which only the peer, or its end, gives back.
    pub(super) fn has_memory_out(&self) -> bool {
        self.lane.has_out()
    }

    /// Whether it is the peer that is waited for: to take more, or to acknowledge the last of what it was sent.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.is_blocked() || self.bytes() == 0 && self.has_memory_out()
    }

    /// Whether so much waits that no more should be asked for.
    pub(super) fn is_full(&self) -> bool {
        let queue = self.queue.borrow();
        queue.bytes >= limits::OUTGOING_BYTES_MAX || queue.head_bytes >= limits::OUTGOING_HEAD_BYTES_MAX
    }

    /// Appends a head, or several.
    pub(super) fn push_heads(&self, encode: impl FnOnce(&mut BytesMut)) {
        let mut queue = self.queue.borrow_mut();
        if !matches!(queue.entries.back(), Some(Entry::Bytes(_))) {
            queue.entries.push_back(Entry::Bytes(BytesMut::new()));
        }
        let Some(Entry::Bytes(last)) = queue.entries.back_mut() else { unreachable!("pushed above") };
        let before = last.len();
        encode(last);
        let added = last.len() - before;
        queue.bytes += added;
        queue.head_bytes += added;
        drop(queue);
        self.shard_heads.set(self.shard_heads.get() + added);
        self.filled.notify();
    }

    /// Appends a response.
    pub(super) fn push(&self, correlation: u32, reply: Reply) {
        self.push_heads(|out| reply.encode_head(out, correlation));
        let Some(LogBytes { promise, begin, bytes, pieces }) = reply.payload else { return };
        if bytes > 0 {
            let mut queue = self.queue.borrow_mut();
            queue.payloads += 1;
            let (number, promise, pieces) = (queue.payloads, Rc::new(promise), pieces.into());
            let payload = LogPayload { number, promise, at: begin, bytes, staged: VecDeque::new(), pieces };
            queue.bytes += bytes;
            queue.entries.push_back(Entry::Log(payload));
        }
    }

    /// Gives back the memory of what was read some time ago and is not taken: others wait for it.
    pub(super) fn give_way(&self) {
        if self.is_blocked() && self.queue.borrow().read_at.is_some_and(|at| at.elapsed() >= limits::READ_HELD_MAX) {
            self.release_memory();
            self.piece_bytes.set((2 * self.taken_bytes.get()).clamp(READ_PIECE_BYTES_MIN, limits::READ_PIECE_BYTES));
        }
    }

    /// Gives back the memory that a stuck reader holds: its bytes are looked up again when it goes on.
    pub(super) fn release_memory(&self) {
        let mut queue = self.queue.borrow_mut();
        (queue.ahead, queue.read_at) = (None, None);
        for entry in &mut queue.entries {
            if let Entry::Log(payload) = entry {
                payload.staged.clear();
                payload.pieces.clear();
            }
        }
    }

    /// Sends what comes, for ever; ends with the first error.
    pub(super) async fn send_all(&self) -> io::Result<()> {
        let mut since_turn = 0;
        loop {
            if self.queue.borrow().entries.is_empty() {
                self.filled.wait().await;
                continue;
            }
            self.turns.take().await;
            self.look_up().await?;
            self.read_ahead();
            let sent = self.send_next().await?;
            if sent == 0 {
                self.finish_read().await?;
                continue;
            }
            self.activity.sent();
            self.taken_bytes.set(self.taken_bytes.get() + sent);
            let heads_sent = self.queue.borrow_mut().consume(sent);
            self.shard_heads.set(self.shard_heads.get() - heads_sent);
            self.drained.notify();
            since_turn += sent;
            if since_turn >= limits::SEND_PIECE_BYTES {
                since_turn = 0;
                self.turns.pass().await;
            }
        }
    }

    /// Sends what is next: a large piece of memory by reference where that pays, else what is in memory from the front on.
    /// 0: nothing is.
    async fn send_next(&self) -> io::Result<usize> {
        let mut bytes_max = usize::MAX;
        let by_reference = if self.lane.is_open() { self.queue.borrow().front_by_reference() } else { None };
        if let Some(slice) = by_reference {
            match self.lane.send(&slice).await? {
                Sent::Bytes(sent) => {
                    self.is_blocked.set(false);
                    return Ok(sent);
                }
                Sent::Full => bytes_max = WAIT_BYTES,
                Sent::Declined => {}
            }
        }
        poll_fn(|context| self.poll_send(context, bytes_max)).await
    }

    /// Sends what is in memory from the front on, up to what is to be sent by reference, `bytes_max` bytes at most. 0: nothing
    /// is.
    fn poll_send(&self, context: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<usize>> {
        let polled = {
            let mut queue = self.queue.borrow_mut();
            if let Some((pipe, taken)) = queue.front_pipe() {
                self.socket.poll_send_pipe(context, pipe, taken, limits::SEND_PIECE_BYTES)
            } else {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let by_reference_min = if self.lane.is_open() { limits::ZERO_COPY_BYTES_MIN } else { usize::MAX };
                let (count, more) = queue.gather(&mut slices, bytes_max, by_reference_min);
                if count == 0 {
                    return Poll::Ready(Ok(0));
                }
                self.socket.poll_send(context, &slices[..count], more)
            }
        };
        if polled.is_pending() {
            // The log's memory is not held for a reader that is slower than the socket's buffer.
            self.queue.borrow_mut().forget_memory();
            if !self.is_blocked.replace(true) {
                self.activity.sent();
            }
        } else {
            self.is_blocked.set(false);
        }
        polled
    }

    /// Makes sure that it is known where the first bytes of the log lie, those behind a head included.
    async fn look_up(&self) -> io::Result<()> {
        let unknown = self.queue.borrow_mut().first_payload().and_then(|payload| payload.unknown());
        if let Some((promise, at, bytes)) = unknown {
            let pieces = promise.read(at, bytes).await.map_err(io::Error::other)?;
            if pieces.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(payload) = self.queue.borrow_mut().first_payload() {
                payload.pieces = pieces.into();
            }
        }
        Ok(())
    }

    /// Begins to read the first bytes that are not in memory, so that the disk works while the socket does.
    fn read_ahead(&self) {
        if self.queue.borrow().ahead.is_some() {
            return;
        }
        let Some((number, (file, offset, bytes))) = self.queue.borrow().first_in_file() else { return };
        let bytes = bytes.min(self.piece_bytes.get());
        let Some(mut reading) = self.reader.try_start(file, offset, bytes) else { return };
        // An operation starts when its future is polled, and needs nobody to go on.
        let begun = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(outcome) = begun {
            reading = Box::pin(std::future::ready(outcome));
        }
        let mut queue = self.queue.borrow_mut();
        queue.ahead = Some(Ahead { number, offset, reading });
        queue.read_at = Some(Instant::now());
    }

    /// Waits for the read that is under way, or for one that could not begin before, and puts its bytes in their place.
    async fn finish_read(&self) -> io::Result<()> {
        let ahead = self.queue.borrow_mut().ahead.take();
        let (number, offset, staged) = if let Some(Ahead { number, offset, reading }) = ahead {
            (number, offset, reading.await?)
        } else {
            let first = self.queue.borrow().first_in_file();
            let Some((number, (file, offset, bytes))) = first else { return Ok(()) };
            (number, offset, self.reader.read(file, offset, bytes.min(self.piece_bytes.get())).await?)
        };
        self.piece_bytes.set((2 * self.piece_bytes.get()).min(limits::READ_PIECE_BYTES));
        self.taken_bytes.set(0);
        self.queue.borrow_mut().stage(number, offset, staged);
        Ok(())
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.shard_heads.set(self.shard_heads.get() - self.queue.get_mut().head_bytes);
    }
}

impl Queue {
    /// The pipe whose bytes are next.
    fn front_pipe(&mut self) -> Option<(&mut Pipe, &mut BytesMut)> {
        match self.entries.front_mut() {
            Some(Entry::Log(payload)) => match payload.staged.front_mut() {
                Some(Staged::Pipe { pipe, taken }) => Some((pipe, taken)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The memory of the log at the front, if there is so much in one piece that it is sent by reference.
    fn front_by_reference(&self) -> Option<ShardSlice> {
        let Some(Entry::Log(payload)) = self.entries.front() else { return None };
        match (payload.staged.front(), payload.pieces.front()) {
            (Some(Staged::Memory { slice, .. }), _) | (None, Some(Piece::Memory(slice)))
                if slice.len() >= limits::ZERO_COPY_BYTES_MIN =>
            {
                Some(slice.clone())
            }
            _ => None,
        }
    }

    /// Fills `slices` from the front with what is in memory, `bytes_max` bytes at most; answers how many. Behind the first
    /// one it ends before a piece of the log of at least `by_reference_min` bytes, and says so.
    fn gather<'a>(
        &'a self,
        slices: &mut [IoSlice<'a>; SLICES_MAX],
        bytes_max: usize,
        by_reference_min: usize,
    ) -> (usize, bool) {
        let (mut count, mut gathered) = (0, 0);
        for entry in &self.entries {
            let (mut known, wanted) = (0, entry.bytes());
            for bytes in entry.in_memory() {
                if count == SLICES_MAX || gathered >= SEND_BYTES_MAX.min(bytes_max) {
                    return (count, false);
                }
                if count > 0 && matches!(entry, Entry::Log(_)) && bytes.len() >= by_reference_min {
                    return (count, true);
                }
                slices[count] = IoSlice::new(&bytes[..bytes.len().min(bytes_max - gathered)]);
                count += 1;
                known += bytes.len();
                gathered += bytes.len();
            }
            if known < wanted {
                break;
            }
        }
        (count, false)
    }

    /// Takes away what was sent; answers how much of it was held here.
    fn consume(&mut self, sent: usize) -> usize {
        let heads_before = self.head_bytes;
        self.bytes -= sent;
        let mut left = sent;
        while left > 0 {
            let front = self.entries.front_mut().expect("no more was sent than was there");
            let (taken, is_empty) = match front {
                Entry::Bytes(bytes) => {
                    let taken = left.min(bytes.len());
                    bytes.advance(taken);
                    self.head_bytes -= taken;
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
        heads_before - self.head_bytes
    }

    /// The payload at the front, or right behind a head.
    fn first_payload(&mut self) -> Option<&mut LogPayload> {
        self.entries.iter_mut().take(2).find_map(|entry| match entry {
            Entry::Log(payload) => Some(payload),
            Entry::Bytes(_) => None,
        })
    }

    /// The first piece that is not in memory, as much of it as is read at once, and the payload that it belongs to.
    fn first_in_file(&self) -> Option<(u64, (ShardFile, u64, usize))> {
        for entry in &self.entries {
            if let Entry::Log(payload) = entry {
                if let Some(piece) = payload.first_in_file() {
                    return Some((payload.number, piece));
                }
                if payload.known_bytes() < payload.bytes {
                    return None;
                }
            }
        }
        None
    }

    /// Puts what was read in front of the rest of its piece, if that is still wanted.
    fn stage(&mut self, number: u64, offset: u64, staged: Staged) {
        let payload = self.entries.iter_mut().find_map(|entry| match entry {
            Entry::Log(payload) if payload.number == number => Some(payload),
            _ => None,
        });
        let Some(payload) = payload else { return };
        // They may have been taken away meanwhile, for others: then the bytes are looked up again.
        let Some(Piece::File { offset: at, bytes, .. }) = payload.pieces.front_mut() else { return };
        if *at != offset {
            return;
        }
        *at += staged.bytes() as u64;
        *bytes -= staged.bytes();
        if *bytes == 0 {
            payload.pieces.pop_front();
        }
        payload.staged.push_back(staged);
        self.read_at = Some(Instant::now());
    }

    /// Lets go of the hot tail's memory; what lies in files stays promised.
    fn forget_memory(&mut self) {
        for entry in &mut self.entries {
            if let Entry::Log(payload) = entry {
                while payload.pieces.pop_back_if(|piece| matches!(piece, Piece::Memory(_))).is_some() {}
            }
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
        let staged = payload.into_iter().flat_map(|payload| payload.staged.iter());
        let has_pipe = payload.is_some_and(LogPayload::has_pipe);
        let staged = staged.map_while(|staged| match staged {
            Staged::Memory { slice, .. } => Some(&slice[..]),
            Staged::Pipe { .. } => None,
        });
        let pieces = payload.filter(|_| !has_pipe).into_iter().flat_map(|payload| payload.pieces.iter());
        let pieces = pieces.map_while(|piece| match piece {
            Piece::Memory(slice) => Some(&slice[..]),
            Piece::File { .. } => None,
        });
        head.into_iter().chain(staged).chain(pieces)
    }
}

impl LogPayload {
    /// Bytes of which it is known where they lie.
    fn known_bytes(&self) -> usize {
        let staged: usize = self.staged.iter().map(Staged::bytes).sum();
        staged + self.pieces.iter().map(Piece::bytes).sum::<usize>()
    }

    /// The next bytes, if it must be asked where they lie: as many as are sent before it is asked again.
    fn unknown(&self) -> Option<(Rc<Promise>, Position, usize)> {
        let is_unknown = self.staged.is_empty() && self.pieces.is_empty();
        is_unknown.then(|| (Rc::clone(&self.promise), self.at, self.bytes.min(SEND_BYTES_MAX)))
    }

    fn first_in_file(&self) -> Option<(ShardFile, u64, usize)> {
        match self.pieces.front()? {
            Piece::File { file, offset, bytes } => Some((file.clone(), *offset, *bytes)),
            Piece::Memory(_) => None,
        }
    }

    /// Whether some of what is staged lies in a pipe.
    fn has_pipe(&self) -> bool {
        self.staged.iter().any(|staged| matches!(staged, Staged::Pipe { .. }))
    }

    /// Takes up to `sent` bytes away from the front; answers how many.
    fn consume(&mut self, sent: usize) -> usize {
        let mut left = sent.min(self.bytes);
        let taken = left;
        self.bytes -= taken;
        self.at += taken as u64;
        if let Some(Staged::Pipe { pipe, taken }) = self.staged.front() {
            // What was sent has left the pipe already, and nothing else was sent with it.
            if taken.is_empty() && pipe.bytes() == 0 {
                self.staged.pop_front();
            }
            left = 0;
        }
        while left > 0 {
            if let Some(Staged::Memory { slice, .. }) = self.staged.front_mut() {
                let part = left.min(slice.len());
                *slice = slice.part(part..slice.len());
                if slice.is_empty() {
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
            } else if self.staged.is_empty() && self.pieces.is_empty() {
                // Taken away for others while it was sent by reference; what follows is looked up again.
                left = 0;
            } else {
                unreachable!("no more was sent than was in memory, {left} bytes were");
            }
        }
        taken
    }
}
