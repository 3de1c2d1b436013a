//! A wake-up on one thread: whoever waits goes on after the next notification. Not a counter, not a queue.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Notifies the waiting tasks of one thread. Clones share it.
#[derive(Clone, Default)]
pub struct Signal(Rc<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Set by a notification that found nobody waiting: the next wait ends at once.
    pending: Cell<bool>,
    rounds: Cell<u64>,
    wakers: RefCell<Vec<Waker>>,
}

impl Signal {
    /// Ends the waits under way, or else the next one.
    pub fn notify(&self) {
        self.0.rounds.set(self.0.rounds.get().wrapping_add(1));
        let wakers = self.0.wakers.take();
        self.0.pending.set(wakers.is_empty());
        for waker in wakers {
            waker.wake();
        }
    }

    /// Completes at the next notification, or at once when one came while nobody waited.
    pub fn wait(&self) -> impl Future<Output = ()> + 'static + use<> {
        let waiting = Rc::clone(&self.0);
        let seen = waiting.rounds.get();
        poll_fn(move |context| {
            if waiting.pending.replace(false) || waiting.rounds.get() != seen {
                return Poll::Ready(());
            }
            let mut wakers = waiting.wakers.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
    }
}
