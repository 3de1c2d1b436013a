//! Watches that the shard's executor comes back to its rings: nothing on a shard may block, and no task may keep the
//! others waiting. Off unless it is asked for, since watching wakes the thread hundreds of times a second.
//!
//! A timer that rings late tells: the executor was not back in time. What the thread spent waiting for its core meanwhile,
//! and what a hypervisor took from the machine, is not the broker's doing and is subtracted; what the thread spent running,
//! or waiting in the kernel for a disk, is not.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;

/// How often the executor is expected to come back.
const INTERVAL: Duration = Duration::from_millis(2);

/// A time that an executor did not come back for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stall {
    pub(super) time: Duration,
    /// Of it, what the thread spent running; the rest it spent waiting in the kernel.
    pub(super) ran: Duration,
}

/// Calls `stalled` with every stall of at least `limit` of this thread's executor. For ever; ends with an error when the
/// kernel does not tell how long the thread runs and waits for its core.
pub(super) async fn watch(limit: Duration, mut stalled: impl FnMut(Stall)) -> io::Result<()> {
    let clocks = Clocks::of_this_thread()?;
    loop {
        let (due, before) = (Instant::now() + INTERVAL, clocks.read()?);
        glommio::timer::sleep(INTERVAL).await;
        let late = due.elapsed();
        // Most turns end here, without the reads behind it.
        if late < limit {
            continue;
        }
        let stall = clocks.read()?.stall_since(&before, late);
        if stall.time >= limit {
            stalled(stall);
        }
    }
}

/// The kernel's accounts from which it follows what a thread did with a time.
struct Clocks {
    /// Of the thread: how long it has run, and how long it has been ready to run without a core.
    thread: File,
    /// Of the machine: among others, what a hypervisor gave to others.
    machine: File,
    tick: Duration,
}

/// Readings, since the thread or the machine began.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    ran: Duration,
    waited: Duration,
    /// Of all cores; counted in whole ticks, so up to one less than it is.
    stolen: Duration,
    tick: Duration,
}

impl Clocks {
    fn of_this_thread() -> io::Result<Self> {
        Ok(Self {
            thread: File::open("/proc/thread-self/schedstat")?,
            machine: File::open("/proc/stat")?,
            tick: Duration::from_secs(1) / clock_ticks_per_second() as u32,
        })
    }

    fn read(&self) -> io::Result<Times> {
        // Nanoseconds that it ran (without what was stolen meanwhile), nanoseconds that it waited, how often it ran.
        let [ran, waited] = numbers(&self.thread, [0, 1])?.map(Duration::from_nanos);
        // "cpu", user, nice, system, idle, iowait, irq, softirq, steal.
        let [stolen] = numbers(&self.machine, [8])?;
        Ok(Times { ran, waited, stolen: self.tick.saturating_mul(stolen as u32), tick: self.tick })
    }
}

impl Times {
    /// How long the thread was kept from coming back when it was `late` for something due after `before`.
    fn stall_since(&self, before: &Self, late: Duration) -> Stall {
        let kept = late.saturating_sub(self.waited.saturating_sub(before.waited));
        let ran = kept.min(self.ran.saturating_sub(before.ran));
        let stolen = self.stolen.saturating_sub(before.stolen);
        // Where something was taken, as much more as the account may not show yet.
        let stolen = if stolen.is_zero() { stolen } else { stolen + self.tick };
        Stall { time: ran + kept.saturating_sub(ran).saturating_sub(stolen), ran }
    }
}

/// Some words of a file's first line, which are numbers.
fn numbers<const N: usize>(file: &File, words: [usize; N]) -> io::Result<[u64; N]> {
    let mut text = [0; 256];
    let bytes = file.read_at(&mut text, 0)?;
    let line = std::str::from_utf8(&text[..bytes]).ok().and_then(|text| text.lines().next()).unwrap_or_default();
    let mut numbers = [0; N];
    for (number, word) in numbers.iter_mut().zip(words) {
        let read = line.split_whitespace().nth(word).and_then(|word| word.parse().ok());
        *number = read.ok_or(io::ErrorKind::InvalidData)?;
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use glommio::LocalExecutor;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);

    /// What the watch says of an executor on which `work` runs.
    fn stalls_of(work: impl Future<Output = ()> + 'static) -> Vec<Stall> {
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
        // Long, and half of it enough: what is stolen meanwhile from any core is subtracted.
        let blocked = stalls_of(async { std::thread::sleep(10 * LIMIT) });
        assert!(blocked.iter().any(|stall| stall.time >= 5 * LIMIT), "{blocked:?}");
        let kept = stalls_of(async {
            let clocks = Clocks::of_this_thread().unwrap();
            let before = clocks.read().unwrap();
            while clocks.read().unwrap().ran.saturating_sub(before.ran) < 5 * LIMIT {}
        });
        assert!(kept.iter().any(|stall| stall.ran >= 4 * LIMIT), "{kept:?}");
    }

    #[test]
    fn an_executor_that_waits_is_not_stalled() {
        assert_eq!(stalls_of(glommio::timer::sleep(5 * LIMIT)), []);
    }

    #[test]
    fn what_the_machine_did_is_not_counted_and_what_the_thread_did_is() {
        let ms = Duration::from_millis;
        let times = |ran, waited, stolen| Times { ran: ms(ran), waited: ms(waited), stolen: ms(stolen), tick: ms(10) };
        let before = times(100, 50, 1000);
        let stall = |after: Times| after.stall_since(&before, ms(30)).time;
        assert_eq!(stall(times(130, 50, 1000)), ms(30), "it ran");
        assert_eq!(stall(times(100, 50, 1000)), ms(30), "it waited in the kernel");
        assert_eq!(stall(times(102, 78, 1000)), ms(2), "it had no core");
        assert_eq!(stall(times(101, 50, 1020)), ms(1), "the core was taken away");
        assert_eq!(stall(times(125, 50, 1010)), ms(25), "only what it did not run can have been taken");
        assert_eq!(stall(times(150, 50, 1000)), ms(30), "no longer than it was late");
    }
}
