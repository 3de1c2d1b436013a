//! What can be paused and killed as one: a broker, a member's process. And the note of which call a change comes from.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::clock::{Instant, Sleep, sleep_until, spawn};
use super::store::Who;

thread_local! {
    static CALLER: Cell<Who> = const { Cell::new(None) };
}

/// Whose call is being worked on now.
pub(crate) fn caller() -> Who {
    CALLER.get()
}

/// A process.
pub(crate) struct Process {
    life: Cell<u64>,
    pub(crate) is_alive: Cell<bool>,
    pub(crate) paused_until: Cell<Instant>,
}

impl Process {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { life: Cell::new(0), is_alive: Cell::new(true), paused_until: Cell::new(Instant::now()) })
    }

    pub(crate) fn pause(&self, until: Instant) {
        self.paused_until.set(self.paused_until.get().max(until));
    }

    pub(crate) fn kill(&self) {
        self.life.set(self.life.get() + 1);
        self.is_alive.set(false);
    }

    pub(crate) fn spawn(self: &Rc<Self>, work: impl Future<Output = ()> + 'static) {
        let within = self.within(None, work);
        spawn(async move {
            // Killed, or done.
            let _ = within.await;
        });
    }

    /// The same, but it goes on only while the process is there and not paused; `None`: it was killed.
    pub(crate) fn within<F: Future>(self: &Rc<Self>, who: Who, inner: F) -> Within<F> {
        Within { process: Rc::clone(self), life: self.life.get(), who, inner: Box::pin(inner), pause: None }
    }
}

/// Work of a process.
pub(crate) struct Within<F> {
    process: Rc<Process>,
    life: u64,
    who: Who,
    inner: Pin<Box<F>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<F: Future> Future for Within<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if self.process.life.get() != self.life {
                return Poll::Ready(None);
            }
            if let Some(pause) = &mut self.pause {
                if pause.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.pause = None;
            }
            let until = self.process.paused_until.get();
            if until <= Instant::now() {
                break;
            }
            self.pause = Some(Box::pin(sleep_until(until)));
        }
        let before = CALLER.replace(self.who);
        let polled = self.inner.as_mut().poll(context).map(Some);
        CALLER.set(before);
        polled
    }
}
