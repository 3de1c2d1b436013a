//! Sends of the arena's memory by reference (`SEND_ZC` on the shard's ring): the network card reads it, nobody copies it. For
//! peers on other machines; what goes to this one is copied by the kernel in any case. What cannot go this way, or not now,
//! is left to the socket's plain send, which a connection never has under way at the same time.
//!
//! Nothing here waits for a peer. The request carries `MSG_DONTWAIT`: then the kernel tries once, inside the submission, as a
//! plain send would, and a full socket answers `EAGAIN`. Without it the ring would wait for room, whether the socket is
//! `O_NONBLOCK` or not, and bytes could go out after the connection had been given up, or overtake others.
//!
//! The memory: the first completion tells what the socket took, the second (`IORING_CQE_F_NOTIF`) that the kernel has
//! forgotten it, which is when the peer has acknowledged it, or the socket was reset. The operation owns the slice until
//! then, and bytes below a chunk's fill mark never change. It owns the socket until the first one only: until then the
//! descriptor's number must not become another connection's, after it the connection must be free to be closed, or a peer
//! that acknowledges nothing would keep its own connection open.
//!
//! What a peer does not acknowledge cannot be taken back, so both what one connection and what the shard has out are bounded.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};

use super::arena::{PinnedSlice, ShardArena, ShardSlice};
use super::ring::{Operation, Ring, Step, is_transient, once};
use super::socket::Socket;
use crate::limits;

/// Asks to be told whether the kernel copied after all (`IORING_SEND_ZC_REPORT_USAGE`, since Linux 6.2), and how it tells
/// (`IORING_NOTIF_USAGE_ZC_COPIED`).
const REPORT_USAGE: u16 = 1 << 3;
const USAGE_COPIED: i32 = i32::MIN;

/// The zero-copy sends of one shard. Clones share it.
#[derive(Clone)]
pub struct ZeroCopy(Rc<State>);

struct State {
    ring: Ring,
    arena: ShardArena,
    is_on: Cell<bool>,
    flags: u16,
    pinned_bytes_max: usize,
    sent_bytes: Cell<u64>,
}

/// What became of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// So many bytes went.
    Bytes(usize),
    /// The socket takes nothing now: it is to be waited for.
    Full,
    /// These bytes cannot go this way: they are to be copied.
    Declined,
}

impl ZeroCopy {
    /// On where the kernel has such sends and the arena could be registered with the ring: pinning pages anew for each send
    /// costs what is to be saved.
    pub fn new(ring: &Ring, arena: &ShardArena) -> Self {
        Self::with_flags(ring, arena, REPORT_USAGE)
    }

    fn with_flags(ring: &Ring, arena: &ShardArena, flags: u16) -> Self {
        let pinned_bytes_max = arena.region().1 / limits::ZERO_COPY_ARENA_PART;
        let is_on = Cell::new(ring.has_zero_copy() && ring.has_registered_arena());
        let (ring, arena) = (ring.clone(), arena.clone());
        Self(Rc::new(State { ring, arena, is_on, flags, pinned_bytes_max, sent_bytes: Cell::new(0) }))
    }

    /// Whether anything is sent this way.
    pub fn is_on(&self) -> bool {
        self.0.is_on.get()
    }

    /// Bytes that were sent this way.
    pub fn sent_bytes(&self) -> u64 {
        self.0.sent_bytes.get()
    }

    /// The way for one connection. Open only if the peer is on another machine.
    pub fn lane(&self, socket: &Socket) -> Lane {
        self.lane_to(socket, !socket.is_peer_local())
    }

    fn lane_to(&self, socket: &Socket, is_far: bool) -> Lane {
        Lane { zero_copy: self.clone(), socket: socket.clone(), is_far, out: Rc::default() }
    }
}

/// One connection's sends by zero copy.
pub struct Lane {
    zero_copy: ZeroCopy,
    socket: Socket,
    is_far: bool,
    out: Rc<Out>,
}

/// What is out of one connection. Shared with its operations.
#[derive(Default)]
struct Out {
    /// Bytes that the kernel holds by reference.
    bytes: Cell<usize>,
    /// Sends one after the other that the kernel copied all the same.
    in_vain: Cell<u32>,
}

impl Lane {
    /// Whether a piece that is long enough would go this way now.
    pub fn is_open(&self) -> bool {
        self.is_far
            && self.zero_copy.is_on()
            && self.out.in_vain.get() < limits::ZERO_COPY_IN_VAIN_MAX
            && self.out.bytes.get() + limits::ZERO_COPY_BYTES_MIN <= limits::ZERO_COPY_CONNECTION_BYTES_MAX
            && self.zero_copy.0.ring.may_hold()
    }

    /// Whether the kernel holds memory of the arena for this connection.
    pub fn has_out(&self) -> bool {
        self.out.bytes.get() > 0
    }

    /// Sends from the front of `slice`, some of it or nothing. Nothing else may be sent on the connection until it is known.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn send(&self, slice: &ShardSlice) -> io::Result<Sent> {
        let state = &*self.zero_copy.0;
        let left = limits::ZERO_COPY_CONNECTION_BYTES_MAX - self.out.bytes.get();
        let bytes = slice.len().min(limits::SEND_PIECE_BYTES).min(left);
        let is_too_much = bytes == 0 || state.arena.pinned_bytes() + slice.bytes_to_pin() > state.pinned_bytes_max;
        let registered = state.ring.registered_index(slice.as_ptr(), bytes);
        let (false, Some(registered)) = (is_too_much, registered) else { return Ok(Sent::Declined) };
        self.out.bytes.set(self.out.bytes.get() + bytes);
        let send = SendPinned {
            socket: Some(self.socket.clone()),
            slice: slice.part(0..bytes).pin(),
            registered,
            flags: state.flags,
            counted: bytes,
            out: Rc::clone(&self.out),
        };
        let outcome = state.ring.run(send, |sent, _| sent as usize).await;
        match outcome {
            Ok(sent) => {
                state.sent_bytes.set(state.sent_bytes.get() + sent as u64);
                Ok(Sent::Bytes(sent))
            }
            Err(error) => self.explain(error),
        }
    }

    /// What it means that nothing was sent.
    fn explain(&self, error: io::Error) -> io::Result<Sent> {
        match error.raw_os_error() {
            Some(number) if is_transient(-number) => Ok(Sent::Full),
            // Of memory, or of what the socket may have for its notifications: a copy may go all the same.
            Some(libc::ENOMEM | libc::ENOBUFS) => Ok(Sent::Declined),
            // The probe knew the operation, the kernel not all that is asked of it, or the network below cannot do it.
            Some(libc::EINVAL | libc::EOPNOTSUPP) => {
                if self.zero_copy.0.is_on.replace(false) {
                    tracing::info!(%error, "the kernel takes no zero-copy sends; this shard copies from now on");
                }
                Ok(Sent::Declined)
            }
            _ => Err(error),
        }
    }
}

/// Sends pinned bytes of the registered arena.
struct SendPinned {
    /// Until the result is known.
    socket: Option<Socket>,
    slice: PinnedSlice,
    registered: u16,
    flags: u16,
    /// Those of the slice's bytes that are counted as out.
    counted: usize,
    out: Rc<Out>,
}

impl SendPinned {
    fn count(&mut self, bytes: usize) {
        self.out.bytes.set(self.out.bytes.get() - self.counted + bytes);
        self.counted = bytes;
    }
}

impl Operation for SendPinned {
    fn entry(&mut self) -> Entry {
        let socket = types::Fd(self.socket.as_ref().expect("held until the result is known").raw());
        opcode::SendZc::new(socket, self.slice.as_ptr(), self.slice.len() as u32)
            .buf_index(Some(self.registered))
            .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            .zc_flags(self.flags)
            .build()
    }

    fn complete(&mut self, result: i32) -> Step {
        self.socket = None;
        self.count(usize::try_from(result).unwrap_or(0));
        once(result)
    }

    fn released(&mut self, usage: i32) {
        if self.counted > 0 {
            let in_vain = if usage & USAGE_COPIED == 0 { 0 } else { self.out.in_vain.get().saturating_add(1) };
            self.out.in_vain.set(in_vain);
        }
    }
}

impl Drop for SendPinned {
    fn drop(&mut self) {
        self.count(0);
    }
}

#[cfg(test)]
mod tests;
