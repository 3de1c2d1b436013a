//! A line on a terminal that tells, every second, how the run goes.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Totals at a moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) published: u64,
    pub(crate) consumed: u64,
    pub(crate) errors: u64,
}

/// The line. Draws nothing unless standard error is a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    before: Totals,
    before_at: Instant,
}

impl Progress {
    pub(crate) fn start(now: Instant) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg}").expect("a constant template is valid");
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, start: now, before: Totals::default(), before_at: now }
    }

    pub(crate) fn show(&mut self, totals: Totals, now: Instant) {
        self.bar.set_message(line(self.before, totals, now - self.before_at, now - self.start));
        (self.before, self.before_at) = (totals, now);
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

fn line(before: Totals, now: Totals, interval: Duration, since_start: Duration) -> String {
    let rate = |before: u64, now: u64| (now - before) as f64 / interval.as_secs_f64().max(0.001);
    format!(
        "{:.0} s: published {} ({:.0}/s), consumed {} ({:.0}/s), errors {}",
        since_start.as_secs_f64(),
        now.published,
        rate(before.published, now.published),
        now.consumed,
        rate(before.consumed, now.consumed),
        now.errors
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_interval() {
        let before = Totals { published: 1_000, consumed: 0, errors: 0 };
        let now = Totals { published: 3_000, consumed: 500, errors: 2 };
        let line = line(before, now, Duration::from_millis(500), Duration::from_secs(7));
        assert_eq!(line, "7 s: published 3000 (4000/s), consumed 500 (1000/s), errors 2");
    }
}
