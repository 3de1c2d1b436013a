//! Where a set's bytes go while they arrive: straight into the partition's tail for one receiver at a time, into a buffer
//! of its own for the others. A receiver in place that is overtaken is moved out: its bytes so far are copied.

use std::cell::RefCell;
use std::rc::Rc;

use crate::env::{Chunk, Env};
use crate::partition::Inner;
use crate::shard::EnvChunk;

/// Room for one set.
pub(crate) struct Place<E: Env> {
    pub(crate) chunk: EnvChunk<E>,
    /// Where in the chunk the set begins.
    pub(crate) at: usize,
    /// Bytes that have arrived.
    pub(crate) received: usize,
    /// Bytes of the set.
    pub(crate) bytes: usize,
    /// Whether the place is the partition's tail.
    pub(crate) in_tail: bool,
}

impl<E: Env> Place<E> {
    /// Lends the bytes that have arrived.
    pub(crate) fn with_received<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        self.chunk.with_spare(self.at..self.at + self.received, |bytes| f(bytes))
    }

    /// Moves to a chunk of its own.
    pub(crate) fn move_out(&mut self, chunk: EnvChunk<E>) {
        self.with_received(|from| chunk.with_spare(0..from.len(), |to| to.copy_from_slice(from)));
        self.chunk = chunk;
        self.at = 0;
        self.in_tail = false;
    }
}

/// Where one set's bytes go while they arrive: [`Partition::landing`](crate::Partition::landing) makes it,
/// [`Partition::append`](crate::Partition::append) takes it. It may change its memory between two polls, so each receive asks again:
/// `poll_fn(|cx| landing.with_spare(|buffer| stream.poll_read(cx, buffer)))`. Dropping it gives the room back.
pub struct Landing<E: Env> {
    pub(crate) partition: Rc<Inner<E>>,
    pub(crate) place: Rc<RefCell<Place<E>>>,
}

impl<E: Env> Landing<E> {
    /// Bytes of the set, in all.
    pub fn bytes(&self) -> usize {
        self.place.borrow().bytes
    }

    /// Bytes that have yet to arrive.
    pub fn remaining(&self) -> usize {
        let place = self.place.borrow();
        place.bytes - place.received
    }

    /// Whether the bytes arrive straight in the partition's tail.
    pub fn is_in_place(&self) -> bool {
        self.place.borrow().in_tail
    }

    /// Lends the room for the bytes that have yet to arrive. Must not be kept, nor used across an await.
    pub fn with_spare<R>(&mut self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let place = self.place.borrow();
        place.chunk.with_spare(place.at + place.received..place.at + place.bytes, f)
    }

    /// So many more bytes have arrived.
    pub fn advance(&mut self, bytes: usize) {
        let mut place = self.place.borrow_mut();
        assert!(place.received + bytes <= place.bytes, "no more bytes than the set has were expected");
        place.received += bytes;
    }

    /// Copies bytes in, as many as there is room for, and says how many.
    pub fn copy_from(&mut self, bytes: &[u8]) -> usize {
        let copied = bytes.len().min(self.remaining());
        self.with_spare(|spare| spare[..copied].copy_from_slice(&bytes[..copied]));
        self.advance(copied);
        copied
    }
}

impl<E: Env> Drop for Landing<E> {
    fn drop(&mut self) {
        self.partition.release_place(&self.place);
    }
}
