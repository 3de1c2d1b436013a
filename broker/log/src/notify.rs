//! Waking tasks of the same thread: "something changed" and "the end passed this position". No task is ever woken twice
//! for one change, and a wait that is given up leaves nothing behind.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Says that something changed, to whoever waits.
#[derive(Clone, Default)]
pub(crate) struct Notify {
    inner: Rc<NotifyInner>,
}

#[derive(Default)]
struct NotifyInner {
    changes: Cell<u64>,
    waiters: WaitList,
}

impl Notify {
    /// Wakes everybody who waits.
    pub(crate) fn notify(&self) {
        self.inner.changes.set(self.inner.changes.get() + 1);
        self.inner.waiters.wake_all();
    }

    /// Completes at the first change after this call (not after its first poll).
    pub(crate) fn changed(&self) -> Changed {
        Changed { inner: self.inner.clone(), seen: self.inner.changes.get(), ticket: None }
    }
}

/// See [`Notify::changed`].
pub(crate) struct Changed {
    inner: Rc<NotifyInner>,
    seen: u64,
    ticket: Option<Ticket>,
}

impl Future for Changed {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.inner.changes.get() != self.seen {
            return Poll::Ready(());
        }
        let ticket = self.inner.waiters.register(0, self.ticket, cx.waker());
        self.ticket = Some(ticket);
        Poll::Pending
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.inner.waiters.forget(ticket);
        }
    }
}

/// A place in a [`WaitList`].
pub(crate) type Ticket = (u64, u64);

/// Tasks that wait until a position is reached, each with its own.
#[derive(Default)]
pub(crate) struct WaitList {
    waiters: RefCell<BTreeMap<Ticket, Waker>>,
    tickets: Cell<u64>,
}

impl WaitList {
    /// Registers a waker for `target`; a wait that registers again hands in the ticket that it has.
    pub(crate) fn register(&self, target: u64, ticket: Option<Ticket>, waker: &Waker) -> Ticket {
        let ticket = ticket.unwrap_or_else(|| {
            self.tickets.set(self.tickets.get() + 1);
            (target, self.tickets.get())
        });
        let mut waiters = self.waiters.borrow_mut();
        match waiters.get_mut(&ticket) {
            Some(known) => known.clone_from(waker),
            None => drop(waiters.insert(ticket, waker.clone())),
        }
        ticket
    }

    /// Gives a wait up.
    pub(crate) fn forget(&self, ticket: Ticket) {
        self.waiters.borrow_mut().remove(&ticket);
    }

    /// Wakes those whose target is at or below `reached`.
    pub(crate) fn wake_up_to(&self, reached: u64) {
        loop {
            // A waker may run anything, so it is not woken under the borrow.
            let mut waiters = self.waiters.borrow_mut();
            let Some(first) = waiters.first_entry() else { return };
            if first.key().0 > reached {
                return;
            }
            let waker = first.remove();
            drop(waiters);
            waker.wake();
        }
    }

    /// Wakes everybody.
    pub(crate) fn wake_all(&self) {
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        waiters.into_values().for_each(Waker::wake);
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.waiters.borrow().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_change_after_the_call_is_not_missed() {
        let notify = Notify::default();
        let mut changed = pin!(notify.changed());
        notify.notify();
        assert!(poll(changed.as_mut()).is_ready());
        let mut next = pin!(notify.changed());
        assert!(poll(next.as_mut()).is_pending());
        notify.notify();
        assert!(poll(next.as_mut()).is_ready());
    }

    #[test]
    fn a_wait_given_up_leaves_nothing_behind() {
        let notify = Notify::default();
        for _ in 0..100 {
            let mut changed = Box::pin(notify.changed());
            assert!(poll(changed.as_mut()).is_pending());
            assert!(poll(changed.as_mut()).is_pending());
        }
        assert!(notify.inner.waiters.is_empty());
    }

    #[test]
    fn only_those_whose_target_is_reached_wake() {
        let list = WaitList::default();
        let tickets = [30, 10, 20].map(|target| list.register(target, None, Waker::noop()));
        list.wake_up_to(20);
        assert_eq!(list.waiters.borrow().keys().copied().collect::<Vec<_>>(), [tickets[0]]);
        list.wake_all();
        assert!(list.is_empty());
    }
}
