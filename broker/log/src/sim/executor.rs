//! The seeded executor: tasks, timers, a virtual clock. Which ready task runs next, and whether time passes while tasks
//! are ready, is drawn from the seed; the clock stands still otherwise.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// 2024-01-01, where the wall clock of every history begins.
const WALL_START_MS: i64 = 1_704_067_200_000;

/// Waiting for a moment worth a crash takes at most so many times the steps.
const LINGER: u64 = 3;

/// The future given to `run` is task 0.
const ROOT: u64 = 0;

/// How long a run may go on.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Polls and events; the point of a crash is drawn this way.
    pub steps: u64,
    /// Virtual time that may pass during the run.
    pub time: Duration,
}

/// How a run ended.
#[derive(Debug)]
pub enum Run<T> {
    /// The root future is done.
    Done(T),
    /// The steps were used up.
    OutOfSteps,
    /// The time was used up: most likely something waits for what will never come. The text names the unfinished tasks.
    OutOfTime(String),
    /// Nothing is ready and nothing will ever be: the text names the unfinished tasks.
    Deadlock(String),
}

/// When an event fires: its time, then a drawn number, so that simultaneous ones come in any order; the last one makes
/// the key unique.
type EventKey = (Duration, u32, u64);

enum Event {
    Wake(Waker),
    Call(Box<dyn FnOnce()>),
}

struct Task {
    name: Rc<str>,
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
}

/// Tasks that were woken. Wakers must be `Send`, hence a mutex that is never contended.
type ReadyQueue = Arc<Mutex<Vec<u64>>>;

struct TaskWaker {
    task: u64,
    queued: AtomicBool,
    queue: ReadyQueue,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.queue.lock().expect("no task panics while it holds the queue").push(self.task);
        }
    }
}

/// Clock, randomness, tasks and events: what all parts of a simulation share.
pub(super) struct World {
    now: Cell<Duration>,
    wall_offset_ms: Cell<i64>,
    rng: RefCell<fastrand::Rng>,
    events: RefCell<BTreeMap<EventKey, Event>>,
    sequence: Cell<u64>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    wakers: RefCell<BTreeMap<u64, Arc<TaskWaker>>>,
    ready: ReadyQueue,
    /// How often time passes although tasks are ready, in 256ths.
    hurry: u8,
    trace: Cell<bool>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let hurry = [0, 8, 40, 120][rng.usize(..4)];
        Self {
            now: Cell::new(Duration::ZERO),
            wall_offset_ms: Cell::new(WALL_START_MS),
            rng: RefCell::new(rng),
            events: RefCell::default(),
            sequence: Cell::new(ROOT),
            tasks: RefCell::default(),
            wakers: RefCell::default(),
            ready: ReadyQueue::default(),
            hurry,
            trace: Cell::new(false),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.now.get()
    }

    pub(super) fn wall_ms(&self) -> i64 {
        self.wall_offset_ms.get() + self.now.get().as_millis() as i64
    }

    pub(super) fn jump_wall_ms(&self, by_ms: i64) {
        self.wall_offset_ms.set(self.wall_offset_ms.get() + by_ms);
    }

    pub(super) fn set_trace(&self, on: bool) {
        self.trace.set(on);
    }

    pub(super) fn trace(&self, line: impl FnOnce() -> String) {
        if self.trace.get() {
            eprintln!("{:>12?} {}", self.now.get(), line());
        }
    }

    pub(super) fn random(&self) -> u64 {
        self.rng.borrow_mut().u64(..)
    }

    /// A number below `n`.
    pub(super) fn below(&self, n: usize) -> usize {
        self.rng.borrow_mut().usize(..n)
    }

    /// True with probability `p`.
    pub(super) fn chance(&self, p: f64) -> bool {
        p > 0.0 && self.rng.borrow_mut().f64() < p
    }

    /// One of `choices`.
    pub(super) fn pick<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub(super) fn shuffle<T>(&self, items: &mut [T]) {
        self.rng.borrow_mut().shuffle(items);
    }

    /// A number that grows with each call: ids, and the order of what happens on the disk.
    pub(super) fn next(&self) -> u64 {
        let next = self.sequence.get() + 1;
        self.sequence.set(next);
        next
    }

    fn event_key(&self, after: Duration) -> EventKey {
        (self.now.get() + after, self.random() as u32, self.next())
    }

    /// Calls `f` after so much time, whatever becomes of the tasks.
    pub(super) fn call_after(&self, after: Duration, f: impl FnOnce() + 'static) {
        let key = self.event_key(after);
        self.events.borrow_mut().insert(key, Event::Call(Box::new(f)));
    }

    pub(super) fn sleep(self: &Rc<Self>, duration: Duration) -> Sleep {
        Sleep { world: self.clone(), duration, key: None }
    }

    pub(super) fn spawn(&self, name: &str, future: Pin<Box<dyn Future<Output = ()>>>) {
        let id = self.next();
        let waker = self.waker(id);
        waker.wake_by_ref();
        self.tasks.borrow_mut().insert(id, Task { name: name.into(), future, waker });
    }

    fn waker(&self, task: u64) -> Waker {
        let waker = Arc::new(TaskWaker { task, queued: AtomicBool::new(false), queue: self.ready.clone() });
        self.wakers.borrow_mut().insert(task, waker.clone());
        waker.into()
    }

    /// Drops all tasks, as the end of their process does. Their destructors may spawn and wake, which means nothing then.
    pub(super) fn drop_tasks(&self) {
        loop {
            let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
            if tasks.is_empty() {
                break;
            }
            drop(tasks);
        }
        self.wakers.borrow_mut().clear();
        self.ready.lock().expect("no task panics while it holds the queue").clear();
        self.events.borrow_mut().retain(|_, event| matches!(event, Event::Call(_)));
    }

    /// The end of the world.
    pub(super) fn forget_events(&self) {
        drop(self.events.take());
    }

    pub(super) fn run_to<T>(
        &self,
        root: impl Future<Output = T>,
        limit: Limit,
        mut moment: impl FnMut() -> bool,
    ) -> Run<T> {
        let mut root = pin!(root);
        let root_waker = self.waker(ROOT);
        root_waker.wake_by_ref();
        let deadline = self.now.get() + limit.time;
        for step in 0..limit.steps * LINGER {
            if step >= limit.steps && moment() {
                break;
            }
            if self.now.get() > deadline {
                return Run::OutOfTime(self.unfinished());
            }
            let time_passes = self.ready_count() == 0 || self.random() as u8 > u8::MAX - self.hurry;
            if time_passes && self.fire_next_event() {
                continue;
            }
            let Some(id) = self.take_ready() else {
                return Run::Deadlock(self.unfinished());
            };
            if id == ROOT {
                if let Poll::Ready(value) = root.as_mut().poll(&mut Context::from_waker(&root_waker)) {
                    return Run::Done(value);
                }
            } else {
                self.poll_task(id);
            }
        }
        Run::OutOfSteps
    }

    fn ready_count(&self) -> usize {
        self.ready.lock().expect("no task panics while it holds the queue").len()
    }

    fn take_ready(&self) -> Option<u64> {
        let mut ready = self.ready.lock().expect("no task panics while it holds the queue");
        if ready.is_empty() {
            return None;
        }
        let index = self.below(ready.len());
        let id = ready.swap_remove(index);
        if let Some(waker) = self.wakers.borrow().get(&id) {
            waker.queued.store(false, Ordering::Relaxed);
        }
        Some(id)
    }

    fn poll_task(&self, id: u64) {
        // Out of the table while it runs: it may spawn others.
        let Some(mut task) = self.tasks.borrow_mut().remove(&id) else { return };
        let waker = task.waker.clone();
        if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.tasks.borrow_mut().insert(id, task);
        } else {
            self.wakers.borrow_mut().remove(&id);
        }
    }

    fn fire_next_event(&self) -> bool {
        let Some(((at, _, _), event)) = self.events.borrow_mut().pop_first() else { return false };
        self.now.set(self.now.get().max(at));
        match event {
            Event::Wake(waker) => waker.wake(),
            Event::Call(f) => f(),
        }
        true
    }

    fn unfinished(&self) -> String {
        let names: Vec<Rc<str>> = self.tasks.borrow().values().map(|task| task.name.clone()).collect();
        format!("at {:?}, waiting beside the root: {names:?}", self.now.get())
    }
}

/// Sleeps by the virtual clock; dropped, it leaves no timer behind.
pub(super) struct Sleep {
    world: Rc<World>,
    duration: Duration,
    key: Option<EventKey>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.key {
            None => {
                let key = self.world.event_key(self.duration);
                self.world.events.borrow_mut().insert(key, Event::Wake(cx.waker().clone()));
                self.key = Some(key);
                Poll::Pending
            }
            Some(key) => match self.world.events.borrow_mut().get_mut(&key) {
                Some(event) => {
                    *event = Event::Wake(cx.waker().clone());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            },
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.world.events.borrow_mut().remove(&key);
        }
    }
}
