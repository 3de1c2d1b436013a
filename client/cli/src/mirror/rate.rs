//! `--rate`: at most so many bytes a second, with up to a second's worth at once. Pure: the time is passed in.

use std::time::{Duration, Instant};

/// How much may be copied now.
#[derive(Debug)]
pub(super) struct Rate {
    bytes_per_s: f64,
    /// Below 0: copied ahead of its time.
    allowance: f64,
    at: Instant,
}

impl Rate {
    /// Begins with a second's worth.
    pub(super) fn new(bytes_per_s: u64, now: Instant) -> Self {
        Self { bytes_per_s: bytes_per_s as f64, allowance: bytes_per_s as f64, at: now }
    }

    /// Takes so many bytes; returns how long to wait before they are copied.
    pub(super) fn take(&mut self, bytes: usize, now: Instant) -> Duration {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.bytes_per_s;
        self.allowance = (self.allowance + gained).min(self.bytes_per_s) - bytes as f64;
        self.at = now;
        if self.allowance >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-self.allowance / self.bytes_per_s) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_any_time_no_more_than_the_rate_and_one_second_s_worth_is_let_through() {
        let begin = Instant::now();
        let mut now = begin;
        let mut rate = Rate::new(1_000, begin);
        let mut copied = 0;
        while now < begin + Duration::from_mins(1) {
            now += rate.take(300, now);
            copied += 300;
        }
        assert!((60_000..=61_300).contains(&copied), "{copied}");
    }

    #[test]
    fn a_pause_saves_up_no_more_than_a_second() {
        let begin = Instant::now();
        let mut rate = Rate::new(1_000, begin);
        let later = begin + Duration::from_hours(1);
        assert_eq!(rate.take(1_000, later), Duration::ZERO);
        assert_eq!(rate.take(500, later), Duration::from_millis(500));
    }
}
