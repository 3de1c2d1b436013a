//! Waiting until a socket has something to receive, or room for what is to be sent, on the shard's ring. The executor's own
//! ring interrupts its thread for each socket that has news: on a virtual machine an exit to the hypervisor on two cores for
//! every few sets of a connection. The shard's ring leaves the news until the thread's next system call.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::ring::WeakRing;
use super::socket::Socket;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// Something to receive, the end included.
    Arrival,
    /// Room to send.
    Room,
}

impl Interest {
    /// The events of `poll(2)`; that the connection is broken is always among them.
    pub(super) fn events(self) -> u32 {
        let events = match self {
            Self::Arrival => libc::POLLIN | libc::POLLRDHUP,
            Self::Room => libc::POLLOUT,
        };
        events as u32
    }
}

/// A wait for one socket, as the ring knows it. It keeps the socket open until the kernel knows nothing of the wait.
pub(super) struct Watch {
    socket: Socket,
    interest: Interest,
    is_over: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Watch {
    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn interest(&self) -> Interest {
        self.interest
    }

    /// The socket is as was wished, or broken, or the wait was given up.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Where one half of a connection keeps its wait between two polls. Dropping it gives the wait up.
#[derive(Default)]
pub struct Wait(Option<UnderWay>);

struct UnderWay {
    watch: Rc<Watch>,
    number: usize,
    ring: WeakRing,
}

impl Wait {
    /// Begins a wait; there must be none.
    pub(super) fn begin(&mut self, ring: &WeakRing, socket: &Socket, interest: Interest, context: &Context<'_>) {
        let waker = Cell::new(Some(context.waker().clone()));
        let watch = Rc::new(Watch { socket: socket.clone(), interest, is_over: Cell::new(false), waker });
        let number = ring.watch(Rc::clone(&watch));
        let before = self.0.replace(UnderWay { watch, number, ring: ring.clone() });
        assert!(before.is_none(), "one wait at a time was expected");
    }

    /// Ready when nothing is waited for any more.
    pub(super) fn poll_over(&mut self, context: &Context<'_>) -> Poll<()> {
        if let Some(UnderWay { watch, .. }) = self.0.as_ref().filter(|under_way| !under_way.watch.is_over.get()) {
            watch.waker.set(Some(context.waker().clone()));
            return Poll::Pending;
        }
        self.0 = None;
        Poll::Ready(())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.watch.is_over.get() {
            self.watch.waker.set(None);
            self.ring.give_up(self.number);
        }
    }
}

#[cfg(test)]
mod tests;
