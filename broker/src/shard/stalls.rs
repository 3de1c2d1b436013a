//! Watches that the shard's executor comes back to its rings: nothing on a shard may block, and no task may keep the
//! others waiting. Off unless it is asked for, since watching wakes the thread hundreds of times a second.
//!
//! A timer that rings late tells: the executor was not back in time. What the thread spent waiting for its core meanwhile
//! is the machine's doing and is subtracted; what it spent running, or waiting in the kernel for a disk, is not.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How often the executor is expected to come back.
const INTERVAL: Duration = Duration::from_millis(2);

/// Calls `stalled` with every time of at least `limit` that this thread's executor did not come back for. For ever; ends
/// with an error when the kernel does not tell how long the thread waits for its core.
pub(super) async fn watch(limit: Duration, mut stalled: impl FnMut(Duration)) -> io::Result<()> {
    let waits = CoreWaits::of_this_thread()?;
    loop {
        let (due, waited_before) = (Instant::now() + INTERVAL, waits.read()?);
        glommio::timer::sleep(INTERVAL).await;
        let late = due.elapsed();
        let stall = late.saturating_sub(waits.read()?.saturating_sub(waited_before));
        if stall >= limit {
            stalled(stall);
        }
    }
}

/// How long a thread has been ready to run without a core.
struct CoreWaits(File);

impl CoreWaits {
    fn of_this_thread() -> io::Result<Self> {
        Ok(Self(File::open("/proc/thread-self/schedstat")?))
    }

    /// In all, since the thread began.
    fn read(&self) -> io::Result<Duration> {
        let mut text = [0; 128];
        let bytes = self.0.read_at(&mut text, 0)?;
        // Nanoseconds that it ran, nanoseconds that it waited, how often it ran.
        let waited =
            std::str::from_utf8(&text[..bytes]).ok().and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
        waited.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use glommio::LocalExecutor;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);

    /// What the watch says of an executor on which `work` runs.
    fn stalls_of(work: impl Future<Output = ()> + 'static) -> Vec<Duration> {
        LocalExecutor::default().run(async {
            let stalls = Rc::new(RefCell::new(Vec::new()));
            let told = Rc::clone(&stalls);
            let watching = glommio::spawn_local(watch(LIMIT, move |stall| told.borrow_mut().push(stall)));
            glommio::timer::sleep(5 * INTERVAL).await;
            work.await;
            glommio::timer::sleep(5 * INTERVAL).await;
            watching.cancel().await;
            stalls.take()
        })
    }

    #[test]
    fn a_task_that_blocks_or_does_not_yield_is_noticed() {
        let blocked = stalls_of(async { std::thread::sleep(5 * LIMIT) });
        assert!(blocked.iter().any(|stall| *stall >= 4 * LIMIT), "{blocked:?}");
        let kept = stalls_of(async {
            let waits = CoreWaits::of_this_thread().unwrap();
            let (begun, waited) = (Instant::now(), waits.read().unwrap());
            while begun.elapsed() < 5 * LIMIT + waits.read().unwrap().saturating_sub(waited) {}
        });
        assert!(kept.iter().any(|stall| *stall >= 4 * LIMIT), "{kept:?}");
    }

    #[test]
    fn an_executor_that_waits_is_not_stalled() {
        assert_eq!(stalls_of(glommio::timer::sleep(5 * LIMIT)), []);
    }
}
