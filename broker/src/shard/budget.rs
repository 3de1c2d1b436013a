//! A bound on memory that the connections of a shard share: taken in parts, each given back when it is dropped; whoever
//! finds too little left waits.

use std::cell::Cell;
use std::rc::Rc;

use crate::io::signal::Signal;

/// Memory that may be held. Clones share it.
#[derive(Clone)]
pub(super) struct Budget(Rc<State>);

struct State {
    bytes_max: usize,
    free_bytes: Cell<usize>,
    given_back: Signal,
    waiting: Cell<usize>,
}

/// A part of a budget, until dropped.
pub(super) struct Held {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Rc::new(State {
            bytes_max,
            free_bytes: Cell::new(bytes_max),
            given_back: Signal::default(),
            waiting: Cell::default(),
        }))
    }

    /// Bytes that are held.
    pub(super) fn held_bytes(&self) -> usize {
        self.0.bytes_max - self.0.free_bytes.get()
    }

    /// Whether somebody waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.0.waiting.get() > 0
    }

    /// Waits until `bytes` bytes are free, at most all there are, and takes them.
    pub(super) async fn take(&self, bytes: usize) -> Held {
        let bytes = bytes.min(self.0.bytes_max);
        while self.0.free_bytes.get() < bytes {
            let _waiting = Waiting::new(&self.0.waiting);
            self.0.given_back.wait().await;
        }
        self.0.free_bytes.set(self.0.free_bytes.get() - bytes);
        Held { budget: self.clone(), bytes }
    }
}

/// Counts somebody who waits, as long as it lives.
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let state = &self.budget.0;
        state.free_bytes.set(state.free_bytes.get() + self.bytes);
        state.given_back.notify();
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
    fn what_is_held_is_never_more_than_the_budget_and_comes_back() {
        let budget = Budget::new(100);
        let first = poll_once(budget.take(60)).expect("there is room");
        let mut third = pin!(budget.take(60));
        assert!(third.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(budget.is_awaited());
        let second = poll_once(budget.take(40)).expect("there is room");
        assert_eq!(budget.held_bytes(), 100);
        drop(first);
        assert_eq!(budget.held_bytes(), 40);
        assert!(poll_once(third).is_some() && !budget.is_awaited());
        drop(second);
        assert_eq!(budget.held_bytes(), 0);
        assert!(poll_once(budget.take(1_000)).is_some(), "more than all there is is all there is");
    }
}
