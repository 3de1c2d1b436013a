//! An open load: when each set is due, and a timer that is precise enough to measure microseconds.
//!
//! Tokio's timer has a resolution of a millisecond, longer than what is measured; a timerfd has none worth speaking of
//! and wakes the same event loop.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe;

/// When the sets of one connection are due.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    start: Instant,
    interval_s: f64,
    sets: u64,
}

impl Schedule {
    /// Of `rate` messages a second over all `connections`, what this connection publishes in sets of `set_messages`.
    /// The connections take turns: all together are as even as one would be.
    pub(crate) fn new(start: Instant, rate: f64, set_messages: u32, connection: u32, connections: u32) -> Self {
        let interval_s = f64::from(set_messages) * f64::from(connections) / rate;
        let stagger_s = interval_s * f64::from(connection) / f64::from(connections);
        Self { start: start + Duration::from_secs_f64(stagger_s), interval_s, sets: 0 }
    }

    /// When the next set is due. It does not depend on when the ones before were sent.
    pub(crate) fn next_due(&mut self) -> Instant {
        // Times the count instead of a running sum: no error builds up over hours.
        let due = self.start + Duration::from_secs_f64(self.interval_s * self.sets as f64);
        self.sets += 1;
        due
    }
}

/// A one-shot timer, used again and again.
///
/// To the event loop a timerfd is like the reading end of a pipe: it becomes readable, a read takes what there is, and
/// the next read would block. So tokio's pipe serves, whose constructor needs no unsafe code.
#[derive(Debug)]
pub(crate) struct PreciseTimer(pipe::Receiver);

impl PreciseTimer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self(pipe::Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Waits until `due`; returns at once if that has passed.
    pub(crate) async fn sleep_until(&self, due: Instant) -> io::Result<()> {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let in_time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let once = Itimerspec { it_interval: never, it_value: in_time };
        timerfd_settime(self.0.as_fd(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            self.0.readable().await?;
            let mut expirations = [0_u8; 8];
            match self.0.try_read(&mut expirations) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(|_| ()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_turns_and_no_error_builds_up() {
        let start = Instant::now();
        let due = |connection, index: usize| {
            let mut schedule = Schedule::new(start, 20_000.0, 50, connection, 2);
            (0..=index).map(|_| schedule.next_due()).last().unwrap().duration_since(start)
        };
        assert_eq!(due(0, 0), Duration::ZERO);
        assert_eq!(due(1, 0), Duration::from_micros(2_500));
        assert_eq!(due(0, 1), Duration::from_millis(5));
        assert_eq!(due(0, 2_000), Duration::from_secs(10));
    }

    #[test]
    fn the_timer_never_fires_early_and_can_be_used_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = PreciseTimer::new().unwrap();
            for microseconds in [0, 200, 50, 1_500] {
                let due = Instant::now() + Duration::from_micros(microseconds);
                timer.sleep_until(due).await.unwrap();
                assert!(Instant::now() >= due);
            }
        });
    }
}
