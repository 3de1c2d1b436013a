//! How the tasks of a shard share it: none keeps the executor from its reactor for long, which alone sees new input,
//! connections and timers. A task asks for its turn before a piece of work, and passes when it has had enough; once the
//! reactor is due, those who ask wait for it, and go on one after the other.
//!
//! glommio's own means is its preempt timer. But when that has expired before the executor looks at its tasks for the
//! first time after arming it (the thread lost its core in between), glommio 0.9 takes "time to yield" for "nothing to do"
//! and sleeps until something else happens, with tasks ready to run. So the timer is set far beyond what a thread loses
//! its core for, and the tasks see to the reactor's turn themselves.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::ring::Ring;

/// The reactor has its turn after so much work.
const REACTOR_AFTER: Duration = Duration::from_micros(500);
/// A timer so short that it has expired when the reactor has had its turn, and so long that it has not before.
const REACTOR_TIMER: Duration = Duration::from_micros(5);

/// The turns of one shard's tasks. Clones share them.
#[derive(Clone)]
pub struct Turns(Rc<State>);

struct State {
    ring: Ring,
    /// When the reactor is known to have had its turn ...
    reactor_at: Cell<Instant>,
    /// ... and how long the thread had run then.
    ran: Cell<Duration>,
    waiting: RefCell<VecDeque<Rc<Turn>>>,
    /// Whether a task sees to those who wait.
    is_seen_to: Cell<bool>,
}

/// Somebody's turn.
#[derive(Default)]
struct Turn {
    has_come: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Turns {
    /// Turns of the tasks of this thread, which must be a glommio executor's.
    pub fn new(ring: Ring) -> Self {
        Self(Rc::new(State {
            ring,
            reactor_at: Cell::new(Instant::now()),
            ran: Cell::new(ran()),
            waiting: RefCell::default(),
            is_seen_to: Cell::new(false),
        }))
    }

    /// To be awaited before work: goes on at once, unless the reactor is due.
    pub async fn take(&self) {
        if self.0.is_reactor_due() {
            self.wait().await;
        }
    }

    /// To be awaited in the middle of long work: goes on when the others have had their turn.
    pub async fn pass(&self) {
        self.0.ring.reap();
        if self.0.waiting.borrow().is_empty() && !self.0.is_reactor_due() {
            glommio::executor().yield_now().await;
        } else {
            self.wait().await;
        }
    }

    async fn wait(&self) {
        let turn = Rc::new(Turn::default());
        self.0.waiting.borrow_mut().push_back(Rc::clone(&turn));
        if !self.0.is_seen_to.replace(true) {
            glommio::spawn_local(see_to_all(Rc::clone(&self.0))).detach();
        }
        poll_fn(|context| {
            if turn.has_come.get() {
                return Poll::Ready(());
            }
            turn.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl State {
    /// By the clock, and by the time that the thread has run: where it slept, the reactor has had its turn.
    fn is_reactor_due(&self) -> bool {
        self.reactor_at.get().elapsed() >= REACTOR_AFTER && ran().saturating_sub(self.ran.get()) >= REACTOR_AFTER
    }
}

/// Gives those who wait their turns, the reactor between them when it is due; ends when nobody waits.
async fn see_to_all(turns: Rc<State>) {
    loop {
        // Nothing but the reactor ends this wait.
        glommio::timer::sleep(REACTOR_TIMER).await;
        turns.reactor_at.set(Instant::now());
        turns.ran.set(ran());
        while !turns.is_reactor_due() {
            let Some(turn) = turns.waiting.borrow_mut().pop_front() else {
                turns.is_seen_to.set(false);
                return;
            };
            turn.has_come.set(true);
            // None: whoever waited has given up.
            if let Some(waker) = turn.waker.take() {
                waker.wake();
                // It works now, and who else is ready.
                glommio::executor().yield_now().await;
            }
        }
    }
}

/// How long this thread has run.
fn ran() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use glommio::LocalExecutor;
    use glommio::timer::sleep;

    use super::*;
    use crate::io::arena::ShardArena;

    fn work(time: Duration) {
        let begun = ran();
        while ran().saturating_sub(begun) < time {}
    }

    fn on_executor<T>(test: impl AsyncFnOnce(Turns) -> T) -> T {
        LocalExecutor::default().run(async {
            let arena = ShardArena::new(1 << 20).expect("an arena");
            test(Turns::new(Ring::new(&arena).expect("a ring"))).await
        })
    }

    /// A hundred tasks that are all ready, with work for half a second: a timer rings in time all the same.
    #[test]
    fn the_reactor_has_its_turn_however_many_tasks_are_ready() {
        on_executor(async |turns| {
            let done = Rc::new(Cell::new(0));
            for _ in 0..100 {
                let (turns, done) = (turns.clone(), Rc::clone(&done));
                glommio::spawn_local(async move {
                    for _ in 0..25 {
                        turns.take().await;
                        work(Duration::from_micros(200));
                    }
                    done.set(done.get() + 1);
                })
                .detach();
            }
            let mut rounds = 0;
            while done.get() < 100 {
                let before = ran();
                sleep(Duration::from_micros(100)).await;
                let kept = ran().saturating_sub(before);
                assert!(kept < Duration::from_millis(10), "kept for {kept:?}");
                rounds += 1;
            }
            assert!(rounds > 100, "{rounds}");
        });
    }

    #[test]
    fn those_who_pass_go_on_in_turn() {
        on_executor(async |turns| {
            let order = Rc::new(RefCell::new(Vec::new()));
            let tasks: Vec<_> = (0..3)
                .map(|task| {
                    let (turns, order) = (turns.clone(), Rc::clone(&order));
                    glommio::spawn_local(async move {
                        for _ in 0..4 {
                            work(2 * REACTOR_AFTER);
                            order.borrow_mut().push(task);
                            turns.pass().await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            assert_eq!(*order.borrow(), [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
        });
    }

    #[test]
    fn who_gives_up_holds_up_nobody() {
        on_executor(async |turns| {
            for _ in 0..10 {
                work(2 * REACTOR_AFTER);
                let mut given_up = Box::pin(turns.take());
                assert!(futures_util::poll!(given_up.as_mut()).is_pending());
                drop(given_up);
                turns.take().await;
            }
            sleep(REACTOR_AFTER).await;
            assert!(turns.0.waiting.borrow().is_empty() && !turns.0.is_seen_to.get());
        });
    }
}
