//! Virtual time and the executor that goes with it: one thread, tasks run in the order in which they were woken, and when
//! none can go on, the clock jumps to the next timer. So a history takes as long as its work, and a seed is a history.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::ops::Add;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use corelane_broker::control::groups::Clock;
use futures_util::future::{Either, LocalBoxFuture, select};

/// A time of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(HISTORY.with(|history| history.now.get()))
    }

    /// How long before this another was.
    pub(crate) fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

#[derive(Default)]
struct History {
    now: Cell<Duration>,
    timers: RefCell<BTreeMap<(Duration, u64), Waker>>,
    numbers: Cell<u64>,
    spawned: RefCell<Vec<LocalBoxFuture<'static, ()>>>,
}

thread_local! {
    static HISTORY: Rc<History> = Rc::default();
}

impl History {
    fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }
}

/// Wakes a task by putting it into the queue, once.
struct Ready {
    task: usize,
    queue: Arc<Mutex<VecDeque<usize>>>,
    is_queued: Mutex<bool>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        if !std::mem::replace(&mut *self.is_queued.lock().expect("not poisoned"), true) {
            self.queue.lock().expect("not poisoned").push_back(self.task);
        }
    }
}

/// Runs a history from its time 0 until its main task has ended; what else it spawned ends with it.
pub(crate) fn run<T>(main: impl Future<Output = T>) -> T {
    let history = HISTORY.with(Rc::clone);
    history.now.set(Duration::ZERO);
    history.numbers.set(0);
    let queue = Arc::new(Mutex::new(VecDeque::new()));
    let ready = |task| Arc::new(Ready { task, queue: Arc::clone(&queue), is_queued: Mutex::new(false) });
    let mut main = pin!(main);
    let main_ready = ready(0);
    Arc::clone(&main_ready).wake();
    let mut tasks: BTreeMap<usize, (LocalBoxFuture<'static, ()>, Arc<Ready>)> = BTreeMap::new();
    let mut next_task = 1;
    let outcome = loop {
        let task = queue.lock().expect("not poisoned").pop_front();
        match task {
            Some(0) => {
                *main_ready.is_queued.lock().expect("not poisoned") = false;
                let waker = Waker::from(Arc::clone(&main_ready));
                if let Poll::Ready(outcome) = main.as_mut().poll(&mut Context::from_waker(&waker)) {
                    break outcome;
                }
            }
            Some(number) => {
                if let Some((task, ready)) = tasks.get_mut(&number) {
                    *ready.is_queued.lock().expect("not poisoned") = false;
                    let waker = Waker::from(Arc::clone(ready));
                    if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                        tasks.remove(&number);
                    }
                }
            }
            None => {
                let first = history.timers.borrow_mut().pop_first();
                let ((at, _), waker) = first.expect("the history goes on");
                history.now.set(history.now.get().max(at));
                waker.wake();
            }
        }
        for spawned in history.spawned.take() {
            let ready = ready(next_task);
            Arc::clone(&ready).wake();
            tasks.insert(next_task, (spawned, ready));
            next_task += 1;
        }
    };
    drop(tasks);
    history.timers.borrow_mut().clear();
    history.spawned.borrow_mut().clear();
    outcome
}

/// Begins a task of the history.
pub(crate) fn spawn(task: impl Future<Output = ()> + 'static) {
    HISTORY.with(|history| history.spawned.borrow_mut().push(Box::pin(task)));
}

/// Completes at a time.
pub(crate) struct Sleep {
    at: Duration,
    timer: Option<u64>,
}

pub(crate) fn sleep_until(at: Instant) -> Sleep {
    Sleep { at: at.0, timer: None }
}

pub(crate) fn sleep(duration: Duration) -> Sleep {
    sleep_until(Instant::now() + duration)
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        HISTORY.with(|history| {
            if history.now.get() >= self.at {
                return Poll::Ready(());
            }
            let number = *self.timer.get_or_insert_with(|| history.number());
            history.timers.borrow_mut().insert((self.at, number), context.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.timer {
            // Of a history that has ended, there is none.
            HISTORY.with(|history| history.timers.borrow_mut().remove(&(self.at, number)));
        }
    }
}

/// `None`: it took too long.
pub(crate) async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    match select(pin!(future), pin!(sleep(limit))).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

/// The same time, for a manager.
pub(crate) struct VirtualClock;

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Instant::now().0
    }

    fn sleep_until(&self, at: Duration) -> LocalBoxFuture<'static, ()> {
        Box::pin(sleep_until(Instant(at)))
    }
}
