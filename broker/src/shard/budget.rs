//! A bound on memory that a shard's connections share: taken in parts, each given back when it is dropped. Those who wait get
//! theirs in the order in which they came, so that small parts do not overtake a large one for ever.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::io::signal::Signal;

/// Memory that may be held. Clones share it.
#[derive(Clone)]
pub(super) struct Budget(Rc<State>);

struct State {
    bytes_max: u32,
    /// A permit is a byte.
    free: Arc<Semaphore>,
    waiting: Cell<usize>,
    /// Notified when somebody begins to wait.
    awaited: Signal,
}

/// A part of a budget, until dropped.
pub(super) struct Held {
    _permit: OwnedSemaphorePermit,
}

impl Budget {
    /// `bytes_max`: 4 GiB at most.
    pub(super) fn new(bytes_max: usize) -> Self {
        let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX);
        let free = Arc::new(Semaphore::new(bytes_max as usize));
        Self(Rc::new(State { bytes_max, free, waiting: Cell::default(), awaited: Signal::default() }))
    }

    /// Bytes that are held, those included that somebody who waited has been given.
    pub(super) fn held_bytes(&self) -> usize {
        self.0.bytes_max as usize - self.0.free.available_permits()
    }

    /// Whether somebody waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.0.waiting.get() > 0
    }

    /// Completes while somebody waits.
    pub(super) async fn until_awaited(&self) {
        while !self.is_awaited() {
            self.0.awaited.wait().await;
        }
    }

    /// Takes `bytes` bytes, at most all there are, if they are free and nobody waits for them.
    pub(super) fn try_take(&self, bytes: usize) -> Option<Held> {
        let permit = Arc::clone(&self.0.free).try_acquire_many_owned(self.permits(bytes)).ok()?;
        Some(Held { _permit: permit })
    }

    /// Waits until `bytes` bytes are free, at most all there are, and takes them.
    pub(super) async fn take(&self, bytes: usize) -> Held {
        if let Some(held) = self.try_take(bytes) {
            return held;
        }
        let _waiting = Waiting::begin(&self.0);
        let taken = Arc::clone(&self.0.free).acquire_many_owned(self.permits(bytes)).await;
        Held { _permit: taken.expect("the semaphore is never closed") }
    }

    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.0.bytes_max)
    }
}

/// Somebody waits, until dropped.
struct Waiting<'a>(&'a State);

impl<'a> Waiting<'a> {
    fn begin(state: &'a State) -> Self {
        state.waiting.set(state.waiting.get() + 1);
        state.awaited.notify();
        Self(state)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll_once<T>(work: impl Future<Output = T>) -> Option<T> {
        match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn what_is_held_is_never_more_than_the_budget_and_comes_back_in_order() {
        let budget = Budget::new(100);
        let first = poll_once(budget.take(60)).expect("there is room");
        let mut second = pin!(budget.take(60));
        assert!(poll_once(budget.until_awaited()).is_none());
        assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(budget.is_awaited() && poll_once(budget.until_awaited()).is_some());
        assert!(budget.try_take(40).is_none() && poll_once(budget.take(40)).is_none(), "somebody came before");
        drop(first);
        let second = poll_once(second).expect("it is its turn");
        assert!(!budget.is_awaited());
        assert_eq!(budget.held_bytes(), 60);
        let third = budget.try_take(40).expect("nobody waits");
        assert_eq!(budget.held_bytes(), 100);
        drop((second, third));
        assert_eq!(budget.held_bytes(), 0);
        assert!(poll_once(budget.take(1_000)).is_some(), "more than all there is is all there is");
    }
}
