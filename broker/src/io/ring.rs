//! A shard's own `io_uring`, beside the private one of its executor. Operations are gathered and submitted once a turn of
//! the executor; completions are reaped after a submission and when the ring's eventfd says so. Each operation owns the
//! memory and the descriptor that the kernel uses, until its last completion, whoever still waits for it. The result of a
//! zero-copy send is not its last completion: the operation is held until the kernel says that it reads the memory no more.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use glommio::io::BufferedFile;
use io_uring::squeue::Entry;
use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use slab::Slab;

use super::arena::ShardArena;
use super::signal::Signal;

/// Entries of the submission queue.
const SUBMISSIONS_MAX: u32 = 256;
/// Operations under way at a time; later ones wait. At most half the completion queue, so that it never overflows:
/// closing a descriptor is let in beyond it.
const OPERATIONS_MAX: usize = 1024;
/// Operations whose result is known and that are held until the kernel has let go of their memory; they keep no other from
/// being let in, and nothing more is sent by zero copy beyond them.
const HELD_MAX: usize = 1024;
/// Entries of the completion queue.
const COMPLETIONS_MAX: u32 = 4096;

const _: () =
    assert!(OPERATIONS_MAX + HELD_MAX <= COMPLETIONS_MAX as usize / 2, "the completion queue never overflows");

/// One operation: what to ask of the kernel, and what to make of its answer.
pub(super) trait Operation: 'static {
    /// The request. Memory that it names is owned by `self` (which does not move until the last completion) or by
    /// something that `self` keeps alive, and nobody else reaches it in a way that would conflict with the kernel.
    fn entry(&mut self) -> Entry;
    /// A completion: the result, negative for an error number.
    fn complete(&mut self, result: i32) -> Step;
    /// The kernel has let go of the memory that it kept beyond the result, which had the flag `IORING_CQE_F_MORE`.
    fn released(&mut self, _usage: i32) {}
}

/// What follows a completion.
pub(super) enum Step {
    /// The operation is over.
    Done(io::Result<u32>),
    /// Ask for the rest: `entry` is called again.
    Again,
}

/// The usual step for an operation that is never asked for twice.
pub(super) fn once(result: i32) -> Step {
    Step::Done(u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)))
}

/// Whether a failed completion says "ask again".
pub(super) fn is_transient(result: i32) -> bool {
    const EINTR: i32 = rustix::io::Errno::INTR.raw_os_error();
    const EAGAIN: i32 = rustix::io::Errno::AGAIN.raw_os_error();
    result == -EINTR || result == -EAGAIN
}

/// The state shared by an operation's future and the ring.
struct Task<O: ?Sized> {
    waker: Cell<Option<Waker>>,
    result: Cell<Option<io::Result<u32>>>,
    operation: RefCell<O>,
}

/// A shard's ring. Clones share it. The last one to go waits for what is under way.
#[derive(Clone)]
pub struct Ring(Rc<State>);

/// A reference that keeps no ring alive.
#[derive(Clone)]
pub(super) struct WeakRing(Weak<State>);

struct State {
    uring: RefCell<IoUring>,
    tasks: RefCell<Slab<Rc<Task<dyn Operation>>>>,
    /// How many of these have their result and are held until the kernel lets go of their memory.
    held: Cell<usize>,
    /// Requests that the next turn submits.
    gathered: RefCell<VecDeque<Entry>>,
    /// Wakes the task that submits.
    submit_due: Signal,
    /// Wakes those who wait for room.
    room: Signal,
    /// Where the registered buffer lies, if it could be registered.
    registered: Option<(usize, usize)>,
    /// Whether the kernel has sends by zero copy on a ring.
    has_zero_copy: bool,
}

/// A ring that interrupts its thread as little as the kernel allows: since 5.19 completions wait for the thread's next
/// system call, since 6.0 the kernel may rely on there being one thread.
fn set_up() -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(COMPLETIONS_MAX);
    let plain = builder.clone();
    let modern = builder.setup_coop_taskrun().setup_single_issuer().build(SUBMISSIONS_MAX);
    match modern {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => plain.build(SUBMISSIONS_MAX),
        outcome => outcome,
    }
}

impl Ring {
    /// Makes a ring and spawns the two tasks that drive it; must be called on a glommio executor. `arena` is registered
    /// with the ring when the memlock limit allows it.
    ///
    /// # Errors
    /// When the kernel refuses `io_uring`, or a ring of this size.
    pub fn new(arena: &ShardArena) -> io::Result<Self> {
        let uring = set_up()?;
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC)?;
        uring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        let (base, bytes) = arena.region();
        let region = libc::iovec { iov_base: base.cast(), iov_len: bytes };
        // SAFETY: the arena's mapping outlives the ring: operations hold slices and grants of it, and the kernel itself
        // keeps the pages of a registered buffer pinned until the ring is gone, even if they were unmapped before.
        let registered = unsafe { uring.submitter().register_buffers(&[region]) }.is_ok();
        let mut probe = Probe::new();
        let has_zero_copy =
            uring.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(opcode::SendZc::CODE);
        let ring = Self(Rc::new(State {
            uring: RefCell::new(uring),
            tasks: RefCell::new(Slab::new()),
            held: Cell::new(0),
            gathered: RefCell::new(VecDeque::new()),
            submit_due: Signal::default(),
            room: Signal::default(),
            registered: registered.then_some((base as usize, bytes)),
            has_zero_copy,
        }));
        glommio::spawn_local(submit_gathered(ring.downgrade())).detach();
        glommio::spawn_local(reap_notified(ring.downgrade(), eventfd)).detach();
        Ok(ring)
    }

    pub(super) fn downgrade(&self) -> WeakRing {
        WeakRing(Rc::downgrade(&self.0))
    }

    /// Whether the arena is registered with the ring.
    pub fn has_registered_arena(&self) -> bool {
        self.0.registered.is_some()
    }

    /// Whether the kernel has sends by zero copy on a ring.
    pub(super) fn has_zero_copy(&self) -> bool {
        self.0.has_zero_copy
    }

    /// The index of the registered buffer, when the bytes lie in it.
    pub(super) fn registered_index(&self, pointer: *const u8, bytes: usize) -> Option<u16> {
        let (base, length) = self.0.registered?;
        let at = (pointer as usize).checked_sub(base)?;
        (at + bytes <= length).then_some(0)
    }

    /// Runs an operation: waits for room, starts it and waits for its result. Once started it runs to its end, also when
    /// the future is dropped. `read_out` takes what it found out of the ended operation.
    pub(super) fn run<O: Operation, T>(
        &self,
        operation: O,
        read_out: impl FnOnce(u32, &mut O) -> T + 'static,
    ) -> impl Future<Output = io::Result<T>> + 'static
    where
        T: 'static,
    {
        let ring = self.clone();
        async move {
            while ring.operations() >= OPERATIONS_MAX {
                ring.0.room.wait().await;
            }
            let task =
                Rc::new(Task { waker: Cell::new(None), result: Cell::new(None), operation: RefCell::new(operation) });
            ring.0.start(task.clone());
            let ended = poll_fn(|context| {
                if let Some(result) = task.result.take() {
                    return Poll::Ready(result);
                }
                task.waker.set(Some(context.waker().clone()));
                Poll::Pending
            });
            let result = ended.await?;
            let mut operation = task.operation.borrow_mut();
            Ok(read_out(result, &mut operation))
        }
    }

    /// Starts an operation for whose end nobody waits, a hint to the kernel, while half of the ring is free for what is
    /// waited for.
    pub(super) fn hint(&self, operation: impl Operation) {
        if self.operations() < OPERATIONS_MAX / 2 {
            self.0.start_unwatched(operation);
        }
    }

    /// Completes when nothing is under way. What is held only waits for peers, which may take their time.
    pub async fn idle(&self) {
        while self.operations() > 0 {
            self.0.room.wait().await;
        }
    }

    /// Takes the completions that are there, at the price of a look into memory: for tasks that keep the executor busy.
    pub fn reap(&self) {
        self.0.reap();
    }

    /// Operations under way: their results are not known yet.
    pub fn operations(&self) -> usize {
        self.0.operations()
    }

    /// Whether another operation may be held beyond its result.
    pub(super) fn may_hold(&self) -> bool {
        self.0.held.get() < HELD_MAX
    }
}

impl WeakRing {
    /// Closes a descriptor off the executor's thread: the last close of an unlinked file frees its blocks, which takes
    /// milliseconds. Without a ring it is closed here.
    pub(super) fn close(&self, descriptor: OwnedFd) {
        if let Some(state) = self.0.upgrade() {
            state.start_unwatched(Close(descriptor.into_raw_fd()));
        }
    }
}

struct Close(RawFd);

impl Operation for Close {
    fn entry(&mut self) -> Entry {
        opcode::Close::new(types::Fd(self.0)).build().flags(squeue::Flags::ASYNC)
    }

    fn complete(&mut self, result: i32) -> Step {
        // The descriptor is gone whatever close answers.
        once(result)
    }
}

impl State {
    fn start_unwatched(&self, operation: impl Operation) {
        let operation = RefCell::new(operation);
        self.start(Rc::new(Task { waker: Cell::new(None), result: Cell::new(None), operation }));
    }

    fn operations(&self) -> usize {
        self.tasks.borrow().len() - self.held.get()
    }

    fn start(&self, task: Rc<Task<dyn Operation>>) {
        let entry = task.operation.borrow_mut().entry();
        let index = self.tasks.borrow_mut().insert(task);
        self.gather(index, entry);
    }

    fn gather(&self, index: usize, entry: Entry) {
        self.gathered.borrow_mut().push_back(entry.user_data(index as u64));
        self.submit_due.notify();
    }

    /// Submits what is gathered, as far as the queue has room. Answers whether something is left.
    fn submit(&self) -> io::Result<bool> {
        let mut uring = self.uring.borrow_mut();
        let mut gathered = self.gathered.borrow_mut();
        loop {
            {
                let mut queue = uring.submission();
                while let Some(entry) = gathered.front() {
                    // SAFETY: the entry was built by the operation of a task in `tasks`, which stays there until its
                    // last completion and owns what the entry names, by the contract of `Operation::entry`.
                    if unsafe { queue.push(entry) }.is_err() {
                        break;
                    }
                    gathered.pop_front();
                }
                if queue.is_empty() {
                    return Ok(false);
                }
            }
            match uring.submit() {
                Ok(_) => {
                    if gathered.is_empty() {
                        return Ok(false);
                    }
                }
                // The kernel is short of memory, or wants completions reaped first.
                Err(error) if error.raw_os_error().is_some_and(|number| is_transient(-number)) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the completions that are there.
    fn reap(&self) {
        loop {
            let Some((index, result, flags)) = ({
                let mut uring = self.uring.borrow_mut();
                uring.completion().next().map(|entry| (entry.user_data() as usize, entry.result(), entry.flags()))
            }) else {
                return;
            };
            let task = Rc::clone(self.tasks.borrow().get(index).expect("a completion belongs to a task"));
            if cqueue::notif(flags) {
                task.operation.borrow_mut().released(result);
                self.held.set(self.held.get() - 1);
                self.forget(index);
                continue;
            }
            let step = task.operation.borrow_mut().complete(result);
            match step {
                Step::Again => {
                    let entry = task.operation.borrow_mut().entry();
                    self.gather(index, entry);
                }
                Step::Done(result) => {
                    if cqueue::more(flags) {
                        // The kernel still reads the operation's memory; it keeps its number until that has ended.
                        self.held.set(self.held.get() + 1);
                    } else {
                        self.forget(index);
                    }
                    task.result.set(Some(result));
                    if let Some(waker) = task.waker.take() {
                        waker.wake();
                    }
                    self.room.notify();
                }
            }
        }
    }

    /// The kernel knows nothing of the operation any more.
    fn forget(&self, index: usize) {
        // Dropped after the borrow: the operation may own a file whose end starts another operation.
        let task = self.tasks.borrow_mut().remove(index);
        drop(task);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The kernel may still write into memory that the operations own, so they must end before they go.
        while self.operations() > 0 {
            let submitted = self.submit();
            let waited = self.uring.borrow().submit_and_wait(1);
            if submitted.is_err() || waited.is_err_and(|error| error.kind() != io::ErrorKind::Interrupted) {
                // Cannot know what the kernel still does: leaking is sound, freeing is not.
                std::mem::forget(std::mem::take(&mut *self.tasks.borrow_mut()));
                return;
            }
            self.reap();
        }
        // What is held, the kernel only reads, for as long as a peer does not acknowledge it: that is not waited for. The
        // pages stay pinned with the registered buffer until then, whatever becomes of the ring; leaked here, the slices
        // keep the arena from being written anew, so that what is sent once more is what was sent at first.
        if self.held.get() > 0 {
            std::mem::forget(std::mem::take(&mut *self.tasks.borrow_mut()));
        }
    }
}

/// Submits once a turn: whoever starts an operation wakes this task, which runs behind all that are ready now.
async fn submit_gathered(ring: WeakRing) {
    loop {
        let Some(due) = ring.0.upgrade().map(|state| state.submit_due.wait()) else { return };
        due.await;
        let Some(state) = ring.0.upgrade() else { return };
        match state.submit() {
            Ok(left) => {
                state.reap();
                if left {
                    state.submit_due.notify();
                    drop(state);
                    glommio::executor().yield_now().await;
                }
            }
            Err(error) => panic!("io_uring no longer accepts operations: {error}"),
        }
    }
}

/// Reaps when the kernel signals completions.
async fn reap_notified(ring: WeakRing, eventfd: OwnedFd) {
    // SAFETY: the descriptor is owned here and given up to the file, which closes it.
    let notifications = unsafe { BufferedFile::from_raw_fd(eventfd.into_raw_fd()) };
    loop {
        if let Err(error) = notifications.read_at(0, size_of::<u64>()).await {
            panic!("the ring's eventfd cannot be read: {error}");
        }
        let Some(state) = ring.0.upgrade() else { return };
        state.reap();
    }
}
