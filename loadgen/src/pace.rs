//! An open load: when each set is due, and a timer that is precise enough to measure microseconds.
//!
//! Tokio's timer has a resolution of a millisecond, longer than what is measured; a timerfd has none worth speaking of
//! and wakes the same event loop.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Exp1};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe;

use crate::parse::Ramp;

/// How many messages a second are offered in the course of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rate {
    Steady(f64),
    /// The ramp's first rate for some seconds, then the ramp, then its last rate.
    Ramp {
        ramp: Ramp,
        after_s: f64,
    },
}

impl Rate {
    /// How many messages are due within so many seconds of the start.
    pub(crate) fn due(self, seconds: f64) -> f64 {
        match self {
            Self::Steady(rate) => rate * seconds,
            Self::Ramp { ramp: Ramp { from, to, over }, after_s } => {
                let over_s = over.as_secs_f64();
                let before_s = seconds.min(after_s);
                let in_ramp_s = (seconds - after_s).clamp(0.0, over_s);
                let beyond_s = (seconds - after_s - over_s).max(0.0);
                from * before_s + in_ramp_s * (from + (to - from) * in_ramp_s / over_s / 2.0) + to * beyond_s
            }
        }
    }

    /// When so many messages have become due: seconds after the start. The inverse of [`Rate::due`].
    pub(crate) fn when(self, messages: f64) -> f64 {
        if messages <= 0.0 {
            return match self {
                Self::Ramp { ramp, after_s } if ramp.from == 0.0 => after_s,
                _ => 0.0,
            };
        }
        match self {
            Self::Steady(rate) => messages / rate,
            Self::Ramp { ramp: Ramp { from, to, over }, after_s } => {
                let over_s = over.as_secs_f64();
                let before = from * after_s;
                if messages < before {
                    return messages / from;
                }
                let in_ramp = messages - before;
                let ramp_messages = f64::midpoint(from, to) * over_s;
                if in_ramp >= ramp_messages {
                    return after_s + over_s + (in_ramp - ramp_messages) / to;
                }
                // from t + slope t^2 / 2 = n, solved so that neither a slope of nothing nor `from` of nothing divides by 0.
                let slope = (to - from) / over_s;
                after_s + 2.0 * in_ramp / (from + (from * from + 2.0 * slope * in_ramp).max(0.0).sqrt())
            }
        }
    }
}

/// How sets follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arrivals {
    /// At equal distances
    Even,
    /// At random, as from many users that know nothing of each other (a Poisson process)
    Poisson,
}

/// When the sets of one connection are due.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    start: Instant,
    rate: Rate,
    /// Messages of all connections between two sets of this one.
    stride: f64,
    /// Messages due before this connection's first set.
    offset: f64,
    sets: u64,
    random: Option<Random>,
}

/// What makes arrivals irregular.
#[derive(Debug, Clone)]
struct Random {
    source: SmallRng,
    /// In mean strides: how far the sets have come.
    at: f64,
}

impl Schedule {
    /// Of `rate` over all `connections`, what this connection publishes in sets of `set_messages`. The connections take
    /// turns: all together are as even as one would be. `seed` matters for random arrivals.
    pub(crate) fn new(
        start: Instant,
        rate: Rate,
        arrivals: Arrivals,
        set_messages: u32,
        (connection, connections): (u32, u32),
        seed: u64,
    ) -> Self {
        let random = (arrivals == Arrivals::Poisson)
            .then(|| Random { source: SmallRng::seed_from_u64(seed ^ u64::from(connection)), at: 0.0 });
        Self {
            start,
            rate,
            stride: f64::from(set_messages) * f64::from(connections),
            offset: f64::from(set_messages) * f64::from(connection),
            sets: 0,
            random,
        }
    }

    /// How many sets are due within so long of the start and were not asked for. With random arrivals: the mean.
    pub(crate) fn behind(&self, elapsed: Duration) -> u64 {
        let due = self.rate.due(elapsed.as_secs_f64());
        let next = match &self.random {
            None => self.offset + self.stride * self.sets as f64,
            Some(random) => self.stride * (random.at + 1.0),
        };
        if due >= next { ((due - next) / self.stride) as u64 + 1 } else { 0 }
    }

    /// When the next set is due. It does not depend on when the ones before were sent.
    pub(crate) fn next_due(&mut self) -> Instant {
        let messages = match &mut self.random {
            // Times the count instead of a running sum: no error builds up over hours.
            None => self.offset + self.stride * self.sets as f64,
            Some(random) => {
                let gap: f64 = Exp1.sample(&mut random.source);
                random.at += gap;
                self.stride * random.at
            }
        };
        self.sets += 1;
        // A rate so low that the next set is due in centuries.
        let seconds = self.rate.when(messages).min(1e9);
        self.start + Duration::from_secs_f64(seconds)
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
            let rate = Rate::Steady(20_000.0);
            let mut schedule = Schedule::new(start, rate, Arrivals::Even, 50, (connection, 2), 0);
            (0..=index).map(|_| schedule.next_due()).last().unwrap().duration_since(start)
        };
        assert_eq!(due(0, 0), Duration::ZERO);
        assert_eq!(due(1, 0), Duration::from_micros(2_500));
        assert_eq!(due(0, 1), Duration::from_millis(5));
        assert_eq!(due(0, 2_000), Duration::from_secs(10));
    }

    #[test]
    fn what_was_due_and_not_asked_for_is_behind() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, Rate::Steady(1_000.0), Arrivals::Even, 10, (1, 2), 0);
        let at = Duration::from_millis;
        // Its sets are due at 10, 30, 50 ms and so on.
        assert_eq!([9, 11, 29, 31, 111].map(|ms| schedule.behind(at(ms))), [0, 1, 1, 2, 6]);
        for _ in 0..4 {
            schedule.next_due();
        }
        assert_eq!([71, 89, 91, 111].map(|ms| schedule.behind(at(ms))), [0, 0, 1, 2]);
    }

    #[test]
    fn a_ramp_offers_what_lies_under_its_line() {
        let over = Duration::from_secs(10);
        for (from, to, after_s) in [(100.0, 900.0, 0.0), (900.0, 100.0, 3.0), (0.0, 50.0, 2.0), (70.0, 70.0, 1.0)] {
            let rate = Rate::Ramp { ramp: Ramp { from, to, over }, after_s };
            let in_all = from * after_s + 10.0 * (from + to) / 2.0;
            assert!((rate.due(after_s + 10.0) - in_all).abs() < 1e-6);
            assert!((rate.due(after_s + 15.0) - in_all - 5.0 * to).abs() < 1e-6, "it goes on at the last rate");
            for step in 1..200 {
                let seconds = f64::from(step) * 0.1;
                let due = rate.due(seconds);
                if due > 0.0 {
                    assert!((rate.when(due) - seconds).abs() < 1e-6, "{from}..{to} after {after_s} at {seconds}");
                }
            }
        }
        let from_nothing = Rate::Ramp { ramp: Ramp { from: 0.0, to: 50.0, over }, after_s: 2.0 };
        assert!((from_nothing.when(0.0) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn random_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, Rate::Steady(1_000.0), Arrivals::Poisson, 1, (0, 1), 5);
        let mut before = start;
        let gaps: Vec<f64> = (0..50_000)
            .map(|_| {
                let due = schedule.next_due();
                let gap = due.duration_since(before).as_secs_f64();
                before = due;
                gap
            })
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // The gaps' standard deviation equals their mean.
        assert!((mean - 1e-3).abs() < 3e-5 && (variance.sqrt() / mean - 1.0).abs() < 0.03, "{mean} {variance}");
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
