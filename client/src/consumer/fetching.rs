//! A consumer's lane while it is connected. Payloads are received straight into the buffer of their stream; the next piece
//! is asked for as soon as the header of the one before is read, so that the pipe never runs dry.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use corelane_proto::frame::{self, FrameHeader, HEADER_BYTES, Method, Retry, Status};
use corelane_proto::pb;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::error::ConsumeError;
use super::finder::Why;
use super::joiner::{Bad, Joiner};
use super::lane::{Lane, Stream};
use super::piece::Piece;
use super::shared::Item;
use crate::error::CallError;
use crate::net::connect::Link;
use crate::net::refusal;
use crate::topic::millis;

/// Bytes of a head that are read at once: header, protobuf message, and little of the payload, which would be copied.
const HEAD_BYTES: usize = 128;
/// How often the lane looks whether the broker went silent.
const TICK: Duration = Duration::from_millis(500);
/// Rounds before other tasks of the thread get their turn.
const ROUNDS_MAX: usize = 8;

/// A fetch that was sent, by its correlation id.
struct Asked {
    partition: usize,
    stream: u64,
    at: Instant,
}

/// What comes next from the socket.
enum Reading {
    Head,
    /// So many bytes of a payload, for a stream or for nobody.
    Payload {
        stream: Option<usize>,
        remaining: usize,
    },
}

pub(super) struct Fetching<'a> {
    lane: &'a mut Lane,
    socket: TcpStream,
    address: String,
    head: Vec<u8>,
    head_filled: usize,
    reading: Reading,
    outgoing: BytesMut,
    asked: HashMap<u32, Asked>,
    correlation: u32,
    was_answered: bool,
    timer: Pin<Box<Sleep>>,
    is_over: bool,
}

impl<'a> Fetching<'a> {
    /// Fetches until the connection breaks (the error) or the consumer is over (none). Also says whether a fetch was
    /// answered.
    pub(super) async fn run(lane: &'a mut Lane, link: Link) -> (Option<io::Error>, bool) {
        for stream in lane.streams.values_mut() {
            // What was under way is lost with the connection, also if it was all that was still wanted.
            stream.is_asked = false;
            stream.is_hungry = false;
        }
        lane.to_ask = lane.streams.keys().copied().collect();
        let mut fetching = Fetching {
            lane,
            socket: link.stream,
            address: link.address.to_string(),
            head: vec![0; HEAD_BYTES],
            head_filled: 0,
            reading: Reading::Head,
            outgoing: BytesMut::new(),
            asked: HashMap::new(),
            correlation: 0,
            was_answered: false,
            timer: Box::pin(tokio::time::sleep(TICK)),
            is_over: false,
        };
        let error = std::future::poll_fn(|cx| fetching.poll(cx)).await;
        (error, fetching.was_answered)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Error>> {
        for _ in 0..ROUNDS_MAX {
            match self.round(cx) {
                Ok(true) => {}
                Ok(false) if self.is_over => return Poll::Ready(None),
                Ok(false) => return Poll::Pending,
                Err(error) => return Poll::Ready(Some(error)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes streams, asks, writes, reads. False: nothing can be done before something wakes the task.
    fn round(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        self.is_over = self.lane.take_orders(Some(cx));
        if self.is_over {
            return Ok(false);
        }
        self.ask_all();
        let mut progress = false;
        while let Poll::Ready(written) = self.write(cx) {
            progress |= written? > 0;
            if self.outgoing.is_empty() {
                break;
            }
        }
        progress |= self.receive(cx)?;
        if !progress && self.timer.as_mut().poll(cx).is_ready() {
            self.check_silence()?;
            self.timer.as_mut().reset(tokio::time::Instant::now() + TICK);
            progress = true;
        }
        Ok(progress)
    }

    // ---- Asking ------------------------------------------------------------------------------------------------

    fn ask_all(&mut self) {
        while let Some(partition) = self.lane.to_ask.pop() {
            let is_ready = |stream: &Stream| !stream.is_asked && !stream.is_hungry;
            if self.lane.streams.get(&partition).is_some_and(is_ready) {
                self.ask(partition, 0);
            }
        }
    }

    /// Asks for the next piece of a stream if the program's queue has room for it and for the `arriving` bytes that are
    /// still to be received; else the queue tells when it has.
    fn ask(&mut self, partition: usize, arriving: usize) {
        let shared = &self.lane.shared;
        let Some(stream) = self.lane.streams.get_mut(&partition) else { return };
        let mut state = shared.state();
        let (share, fetch_bytes) = (shared.share(state.active()), shared.fetch_bytes(state.active()));
        let at = &mut state.partitions[partition];
        if at.generation != stream.order.generation {
            self.lane.streams.remove(&partition);
            return;
        }
        let position = stream.joiner.as_ref().map(|joiner| joiner.next() + arriving as u64);
        if position.zip(at.until).is_some_and(|(position, until)| position >= until) {
            // Everything that is wanted is here or under way.
            stream.is_hungry = true;
            return;
        }
        // A message that is incomplete must come, whatever waits before it.
        let lacks = stream.joiner.as_ref().map_or(0, Joiner::lacks).saturating_sub(arriving);
        if lacks == 0 && !state.has_room(partition, share.saturating_sub(arriving)) {
            stream.is_hungry = true;
            state.partitions[partition].hungry = Some(self.lane.index);
            return;
        }
        let number = state.partitions[partition].source.partition;
        drop(state);
        stream.is_asked = true;
        let request = pb::FetchRequest {
            topic_id: stream.order.topic_id.to_vec(),
            partition: number,
            epoch: stream.order.epoch,
            position: position.unwrap_or(stream.order.from.position),
            continues: position.is_some(),
            max_bytes: u32::try_from(fetch_bytes.max(lacks)).unwrap_or(u32::MAX),
            max_wait_ms: u32::try_from(millis(shared.settings.max_wait)).unwrap_or(u32::MAX),
        };
        self.correlation = self.correlation.wrapping_add(1);
        self.asked.insert(self.correlation, Asked { partition, stream: stream.id, at: Instant::now() });
        frame::encode_request(&mut self.outgoing, Method::Fetch, self.correlation, &request, 0);
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.outgoing.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let written = ready!(Pin::new(&mut self.socket).poll_write(cx, &self.outgoing))?;
        self.outgoing.advance(written);
        Poll::Ready(if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) })
    }

    // ---- Receiving ---------------------------------------------------------------------------------------------

    fn receive(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = false;
        loop {
            let read = match self.reading {
                Reading::Head => {
                    if self.take_head()? {
                        progress = true;
                        // The next piece is asked for before this one is read.
                        let _ = self.write(cx)?;
                        continue;
                    }
                    poll_read(&mut self.socket, cx, &mut self.head[self.head_filled..])
                }
                Reading::Payload { stream, remaining: 0 } => {
                    self.reading = Reading::Head;
                    if let Some(partition) = stream {
                        self.hand_on(partition);
                    }
                    return Ok(true);
                }
                Reading::Payload { stream, remaining } => self.read_payload(cx, stream, remaining),
            };
            match read {
                Poll::Pending => return Ok(progress),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(0)) => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the broker closed it"));
                }
                Poll::Ready(Ok(bytes)) => {
                    progress = true;
                    match self.reading {
                        Reading::Head => self.head_filled += bytes,
                        Reading::Payload { .. } => self.payload_received(bytes),
                    }
                }
            }
        }
    }

    fn read_payload(
        &mut self,
        cx: &mut Context<'_>,
        stream: Option<usize>,
        remaining: usize,
    ) -> Poll<io::Result<usize>> {
        let joiner = stream.and_then(|partition| self.lane.streams.get_mut(&partition)?.joiner.as_mut());
        if let Some(joiner) = joiner {
            return poll_read(&mut self.socket, cx, &mut joiner.room()[..remaining]);
        }
        // Nobody wants it any more.
        let mut sink = [0; 4096];
        let bytes = remaining.min(sink.len());
        poll_read(&mut self.socket, cx, &mut sink[..bytes])
    }

    /// Takes in that bytes of the payload are in their stream's buffer (or nowhere).
    fn payload_received(&mut self, bytes: usize) {
        let Reading::Payload { stream, remaining } = &mut self.reading else { return };
        *remaining -= bytes;
        let Some(partition) = *stream else { return };
        let Some(at) = self.lane.streams.get_mut(&partition) else { return };
        let Some(joiner) = &mut at.joiner else { return };
        if let Err(bad) = joiner.received(bytes, at.visible_end) {
            *stream = None;
            self.leave(partition, bad);
        }
    }

    /// What is good before a message that cannot be read is handed on; the finder decides how to go on.
    fn leave(&mut self, partition: usize, bad: Bad) {
        self.hand_on(partition);
        let Some(stream) = self.lane.streams.remove(&partition) else { return };
        let from = super::piece::From { position: bad.position, time_ms: None };
        self.lane.shared.go_on(stream.order, from, bad.newer.map_or(Why::BadMessage, Why::NewerVersion));
    }

    /// Hands whole messages on to the program.
    fn hand_on(&mut self, partition: usize) {
        let Some(stream) = self.lane.streams.get_mut(&partition) else { return };
        let (from, epoch) = (stream.order.from, stream.order.epoch);
        let whole_sets = self.lane.shared.settings.whole_sets;
        let Some(run) = stream.joiner.as_mut().and_then(Joiner::take_run) else { return };
        stream.order.failures = 0;
        let mut state = self.lane.shared.state();
        let at = &mut state.partitions[partition];
        if at.generation != stream.order.generation {
            self.lane.streams.remove(&partition);
            return;
        }
        at.visible_end = stream.visible_end;
        let piece = Piece::new(at.source.clone(), run.bytes, run.position, from, whole_sets);
        let generation = at.generation;
        state.push(partition, Item::Piece { piece, charge: run.charge, epoch, generation });
    }

    // ---- Heads -------------------------------------------------------------------------------------------------

    /// Takes a head if it is there as a whole.
    fn take_head(&mut self) -> io::Result<bool> {
        let Some(header) = self.head[..self.head_filled].first_chunk::<HEADER_BYTES>() else { return Ok(false) };
        let header =
            FrameHeader::decode(header, u32::MAX).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let head_bytes = HEADER_BYTES + header.proto_bytes as usize;
        if self.head_filled < head_bytes {
            if self.head.len() < head_bytes {
                self.head.resize(head_bytes, 0);
            }
            return Ok(false);
        }
        let head = std::mem::take(&mut self.head);
        self.reading = Reading::Payload { stream: None, remaining: header.payload_bytes() };
        let taken = self.answer(header, &head[HEADER_BYTES..head_bytes]);
        self.head = head;
        taken?;
        // What was read beyond the head: the beginning of the payload, and perhaps of the next head.
        let surplus = self.head_filled - head_bytes;
        let payload = surplus.min(header.payload_bytes());
        if payload > 0 {
            if let Reading::Payload { stream: Some(partition), .. } = self.reading
                && let Some(joiner) = self.lane.streams.get_mut(&partition).and_then(|at| at.joiner.as_mut())
            {
                joiner.room()[..payload].copy_from_slice(&self.head[head_bytes..head_bytes + payload]);
            }
            self.payload_received(payload);
        }
        self.head.copy_within(head_bytes + payload..self.head_filled, 0);
        self.head_filled = surplus - payload;
        self.head.truncate(HEAD_BYTES);
        Ok(true)
    }

    /// Takes an answer in: prepares its payload's place and asks for the next piece.
    fn answer(&mut self, header: FrameHeader, proto: &[u8]) -> io::Result<()> {
        let Some(asked) = self.asked.remove(&header.correlation) else { return Err(nonsense()) };
        let partition = asked.partition;
        let stream = self.lane.streams.get_mut(&partition).filter(|stream| stream.id == asked.stream);
        let Some(stream) = stream else { return Ok(()) };
        stream.is_asked = false;
        if header.code != Status::Ok.code() {
            self.refused(partition, header.code, proto);
            return Ok(());
        }
        self.was_answered = true;
        let response = pb::FetchResponse::decode(proto).map_err(io::Error::other)?;
        let payload_bytes = header.payload_bytes();
        stream.visible_end = response.visible_end;
        if payload_bytes > 0 {
            let pool = &self.lane.shared.pool;
            let joiner = stream.joiner.get_or_insert_with(|| Joiner::new(pool.clone(), response.begin));
            if joiner.next() != response.begin {
                return Err(nonsense());
            }
            joiner.expect(payload_bytes);
            self.reading = Reading::Payload { stream: Some(partition), remaining: payload_bytes };
        }
        let mut state = self.lane.shared.state();
        state.counters.bytes += payload_bytes as u64;
        state.partitions[partition].visible_end = response.visible_end;
        drop(state);
        self.ask(partition, payload_bytes);
        Ok(())
    }

    fn refused(&mut self, partition: usize, code: u16, proto: &[u8]) {
        let refusal = Box::new(refusal::read(code, proto));
        let Some(stream) = self.lane.streams.remove(&partition) else { return };
        let from = stream.resume();
        let shared = &self.lane.shared;
        let why = match refusal.status {
            Status::OutOfRange => Why::OutOfRange,
            Status::UnknownTopic | Status::UnknownPartition => Why::Stale(refusal),
            status if status.retry() != Retry::No => Why::Stale(refusal),
            _ => {
                let cause = CallError::Refused { address: self.address.clone(), refusal };
                let mut state = shared.state();
                if state.partitions[partition].generation == stream.order.generation {
                    let error = ConsumeError::unavailable(&state.partitions[partition].source, cause);
                    state.push(partition, Item::Error { error, is_last: true });
                }
                return;
            }
        };
        shared.go_on(stream.order, from, why);
    }

    /// A broker answers a fetch after `max_wait` at the latest.
    fn check_silence(&self) -> io::Result<()> {
        let settings = &self.lane.shared.settings;
        let patience = settings.max_wait + self.lane.shared.cluster.settings.request_timeout;
        if self.asked.values().any(|asked| asked.at.elapsed() > patience) {
            let waited = format!("nothing was answered within {} ms", patience.as_millis());
            return Err(io::Error::new(io::ErrorKind::TimedOut, waited));
        }
        Ok(())
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the broker answered what was not asked")
}

fn poll_read(socket: &mut TcpStream, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
    let mut into = ReadBuf::new(into);
    ready!(Pin::new(socket).poll_read(cx, &mut into))?;
    Poll::Ready(Ok(into.filled().len()))
}
