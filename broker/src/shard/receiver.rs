//! The receiving half of a connection: a small buffer for heads and small frames, straight into the destination for what
//! is larger. A payload that does not fit the buffer costs one system call that also takes the next frame's head.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use corelane_log::Landing;
use futures_util::future::{Either, select};

use super::activity::Activity;
use super::budget::{Budget, Held};
use crate::io::env::ShardEnv;
use crate::io::socket::Socket;
use crate::limits;

/// A payload from this length on is large: then a receive takes little more than the next head into the buffer, since
/// what lands there of a payload is copied.
const LARGE_PAYLOAD_BYTES: usize = 4 << 10;
/// What a receive takes into the buffer while payloads are large, in bytes: a head and what usually comes with it.
const HEAD_ROOM_BYTES: usize = 512;

/// Receives frames from one socket.
pub(super) struct Receiver {
    socket: Socket,
    activity: Rc<Activity>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    payloads_are_large: Cell<bool>,
    /// What buffers longer than usual may take, of all connections of the shard.
    extra: Budget,
    /// What this one has of it, growing part by part.
    extra_held: Vec<Held>,
}

impl Receiver {
    pub(super) fn new(socket: Socket, activity: Rc<Activity>, extra: Budget) -> Self {
        let buffer = vec![0; limits::RECEIVE_BUFFER_BYTES_MIN];
        let payloads_are_large = Cell::new(false);
        Self { socket, activity, buffer, start: 0, end: 0, payloads_are_large, extra, extra_held: Vec::new() }
    }

    /// Receives until at least `bytes` bytes are buffered. `false`: the peer finished before the first of them.
    pub(super) async fn fill(&mut self, bytes: usize) -> io::Result<bool> {
        while self.end - self.start < bytes {
            if self.end > self.start {
                self.activity.begin_frame();
            }
            self.make_room(bytes).await?;
            let room = self.room(bytes);
            let (socket, activity) = (&self.socket, &self.activity);
            let space = &mut self.buffer[self.end..self.end + room];
            let received = poll_fn(|context| receive(socket, activity, context, space, &mut [])).await?;
            if received == 0 {
                return if self.start == self.end { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            self.end += received;
        }
        self.activity.end_frame();
        Ok(true)
    }

    /// Whether no bytes are buffered: the next ones have to be received.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Takes bytes that are buffered.
    pub(super) fn take(&mut self, bytes: usize) -> &[u8] {
        assert!(self.end - self.start >= bytes, "{bytes} bytes were expected in the buffer");
        self.start += bytes;
        &self.buffer[self.start - bytes..self.start]
    }

    /// Receives a payload to where it belongs.
    pub(super) async fn receive_into(&mut self, landing: &mut Landing<ShardEnv>) -> io::Result<()> {
        self.payloads_are_large.set(landing.remaining() >= LARGE_PAYLOAD_BYTES);
        self.start += landing.copy_from(&self.buffer[self.start..self.end]);
        self.activity.begin_frame();
        while landing.remaining() > 0 {
            // The buffer is empty: the payload took all of it.
            (self.start, self.end) = (0, 0);
            let room = self.room(0);
            let (socket, activity) = (&self.socket, &self.activity);
            let behind = &mut self.buffer[..room];
            let receiving =
                poll_fn(|context| landing.with_spare(|spare| receive(socket, activity, context, spare, behind)));
            let received = receiving.await?;
            if received == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let landed = received.min(landing.remaining());
            landing.advance(landed);
            self.end = received - landed;
        }
        self.activity.end_frame();
        Ok(())
    }

    /// Reads past `bytes` bytes.
    pub(super) async fn skip(&mut self, bytes: usize) -> io::Result<()> {
        let mut left = bytes;
        loop {
            let skipped = left.min(self.end - self.start);
            self.start += skipped;
            left -= skipped;
            if left == 0 {
                return Ok(());
            }
            (self.start, self.end) = (0, 0);
            self.payloads_are_large.set(false);
            if !self.fill(1).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// How many bytes the next receive may take into the buffer behind what is there; at least what makes `bytes`.
    fn room(&self, bytes: usize) -> usize {
        let wanted = if self.payloads_are_large.get() { HEAD_ROOM_BYTES } else { self.buffer.len() };
        (self.buffer.len() - self.end).min(wanted.max(bytes.saturating_sub(self.end - self.start)))
    }

    /// Makes room for more of `bytes` bytes from `start` on. The buffer grows while small frames come faster than it
    /// empties, and for a large request as its bytes come: a claim alone costs nothing.
    async fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        let is_full = self.end == self.buffer.len();
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let length = self.buffer.len();
        if bytes > length && self.end == length {
            self.take_extra(2 * length).await?;
            self.buffer.resize(2 * length, 0);
        } else if is_full && !self.payloads_are_large.get() && length < limits::RECEIVE_BUFFER_BYTES_MAX {
            self.buffer.resize(2 * length, 0);
        } else if self.end == 0 && length > limits::RECEIVE_BUFFER_BYTES_MAX {
            // A large request has passed.
            self.buffer = vec![0; limits::RECEIVE_BUFFER_BYTES_MAX];
            self.extra_held.clear();
        }
        Ok(())
    }

    /// Waits until the buffer may be `length` bytes long.
    async fn take_extra(&mut self, length: usize) -> io::Result<()> {
        let beyond = |length: usize| length.saturating_sub(limits::RECEIVE_BUFFER_BYTES_MAX);
        let bytes = beyond(length) - beyond(self.buffer.len());
        if bytes == 0 {
            return Ok(());
        }
        self.activity.hold_up(true);
        let taking = pin!(self.extra.take(bytes));
        let ending = pin!(self.activity.until_ending());
        let taken = match select(taking, ending).await {
            Either::Left((held, _)) => Ok(held),
            Either::Right(_) => Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
        };
        self.activity.hold_up(false);
        self.extra_held.push(taken?);
        Ok(())
    }
}

/// Receives unless the connection is ending.
fn receive(
    socket: &Socket,
    activity: &Activity,
    context: &mut Context<'_>,
    first: &mut [u8],
    second: &mut [u8],
) -> Poll<io::Result<usize>> {
    if activity.is_ending() {
        return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
    }
    let polled = socket.poll_receive(context, first, second);
    if let Poll::Ready(Ok(bytes)) = polled {
        activity.received(bytes);
    }
    polled
}
