//! Operations in flight on the simulated disk, and the future through which their result arrives. An operation belongs to
//! the disk, not to whoever waits: it runs to its end when nobody does.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::arena::SimSlice;
use super::disk::SimDisk;
use super::file::Handle;
use super::volume::Block;

/// A write between its submission and its end.
pub(super) struct Write {
    pub(super) handle: Rc<Handle>,
    pub(super) first_block: u64,
    pub(super) blocks: Vec<Block>,
    pub(super) synchronous: bool,
    /// It will end with EIO; any of its blocks land.
    pub(super) fails: bool,
    /// Its process was killed; any of its blocks land.
    pub(super) orphan: bool,
    /// The memory that it is written from, held until the end of the write or of the process.
    pub(super) parts: Vec<SimSlice>,
    pub(super) completion: Completion<()>,
}

impl Write {
    pub(super) fn block_range(&self) -> std::ops::Range<u64> {
        self.first_block..self.first_block + self.blocks.len() as u64
    }
}

/// What takes effect at an operation's end.
pub(super) type Effect = Box<dyn FnOnce(&SimDisk)>;

/// An operation in flight.
pub(super) enum Flight {
    /// A write, whose blocks may land one by one.
    Write(Write),
    /// A change that a crash before its end leaves done or undone.
    Change(Effect),
    /// A read: a crash takes it away.
    Read(Effect),
}

struct Slot<T> {
    result: Option<io::Result<T>>,
    waker: Option<Waker>,
}

/// The result of an operation, once there is one.
pub(super) struct Completion<T> {
    slot: Rc<RefCell<Slot<T>>>,
}

impl<T> Clone for Completion<T> {
    fn clone(&self) -> Self {
        Self { slot: self.slot.clone() }
    }
}

impl<T> Completion<T> {
    pub(super) fn new() -> Self {
        Self { slot: Rc::new(RefCell::new(Slot { result: None, waker: None })) }
    }

    pub(super) fn finish(&self, result: io::Result<T>) {
        let mut slot = self.slot.borrow_mut();
        slot.result = Some(result);
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Future for Completion<T> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.slot.borrow_mut();
        if let Some(result) = slot.result.take() {
            return Poll::Ready(result);
        }
        slot.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
