//! Tasks that end with whoever began them.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A task that runs for as long as this is held. Once it is dropped, the executor drops the task's future at its next turn.
///
/// The executor's own task does the same, but counts a reference too many to a task that is cancelled, so that its memory
/// is never freed (glommio 0.9, `JoinHandle::cancel`): two such tasks a connection would fill the memory in weeks.
#[must_use = "the task ends when this is dropped"]
pub struct TiedTask(Rc<Tie>);

#[derive(Default)]
struct Tie {
    is_cut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl TiedTask {
    /// Begins to run `future`. Must be called on a glommio executor.
    pub fn spawn(future: impl Future<Output = ()> + 'static) -> Self {
        let tie = Rc::new(Tie::default());
        let tied = Rc::clone(&tie);
        glommio::spawn_local(async move {
            let mut future = pin!(future);
            poll_fn(|context| if tied.is_cut(context) { Poll::Ready(()) } else { future.as_mut().poll(context) }).await;
        })
        .detach();
        Self(tie)
    }
}

impl Drop for TiedTask {
    fn drop(&mut self) {
        self.0.is_cut.set(true);
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }
}

impl Tie {
    /// Asked by the task, which is woken when that changes.
    fn is_cut(&self, context: &Context<'_>) -> bool {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        self.is_cut.get()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use glommio::LocalExecutorBuilder;

    use super::*;

    /// Runs `test` on an executor of this thread.
    fn run(test: impl AsyncFnOnce()) {
        LocalExecutorBuilder::default().make().expect("an executor").run(test());
    }

    #[test]
    fn a_task_runs_until_it_is_let_go_of_and_drops_what_it_holds_then() {
        run(async || {
            let held = Rc::new(());
            let holds = Rc::clone(&held);
            let task = TiedTask::spawn(async move {
                pending::<()>().await;
                drop(holds);
            });
            glommio::yield_if_needed().await;
            assert_eq!(Rc::strong_count(&held), 2);
            drop(task);
            glommio::executor().yield_task_queue_now().await;
            assert_eq!(Rc::strong_count(&held), 1);
            drop(TiedTask::spawn(async {}));
        });
    }

    #[test]
    fn tasks_that_were_let_go_of_leave_no_memory() {
        // What an executor itself leaves is the same for any number of tasks.
        let left = |tasks: i64| {
            let run_them = async || {
                for _ in 0..tasks {
                    drop(TiedTask::spawn(pending()));
                    glommio::executor().yield_task_queue_now().await;
                }
            };
            allocation_counter::measure(|| run(run_them)).bytes_current
        };
        let (few, many) = (left(1_000), left(3_000));
        assert!(many < few + 2_000, "{few} bytes are left of 1,000 tasks, {many} of 3,000");
    }
}
