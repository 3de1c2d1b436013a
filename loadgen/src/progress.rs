//! A line on a terminal that tells, every second, how the run goes.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::results::Moment;

/// The line. Draws nothing unless standard error is a terminal.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn start() -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg}").expect("a constant template is valid");
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
        bar.enable_steady_tick(Duration::from_millis(250));
        Self(bar)
    }

    pub(crate) fn show(&self, moment: &Moment) {
        self.0.set_message(line(moment));
    }

    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

fn line(moment: &Moment) -> String {
    let rate = |messages: u64| messages as f64 / moment.seconds.max(0.001);
    let mut line = format!(
        "{:.0} s{}: published {:.0}/s, consumed {:.0}/s",
        moment.at_s,
        if moment.warm_up { " (warm-up)" } else { "" },
        rate(moment.published),
        rate(moment.consumed)
    );
    if let Some(offered) = moment.offered {
        let _ = write!(line, ", offered {:.0}/s", offered / moment.seconds.max(0.001));
    }
    for (name, latencies) in [("ack", moment.ack_us), ("end to end", moment.end_to_end_us)] {
        line += &latencies.map_or(String::new(), |brief| format!(", {name} p50 {} p99 {} us", brief.p50, brief.p99));
    }
    if moment.errors > 0 {
        let _ = write!(line, ", errors {}", moment.errors);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Brief;

    #[test]
    fn rates_are_those_of_the_interval() {
        let moment = Moment {
            at_s: 7.0,
            seconds: 0.5,
            published: 2_000,
            consumed: 500,
            errors: 2,
            ack_us: Some(Brief { p50: 80, p99: 900, max: 1_000 }),
            ..Moment::default()
        };
        let expected = "7 s: published 4000/s, consumed 1000/s, ack p50 80 p99 900 us, errors 2";
        assert_eq!(line(&moment), expected);
        let warm_up = Moment { warm_up: true, offered: Some(100.0), ..moment };
        assert!(line(&warm_up).starts_with("7 s (warm-up): published 4000/s, consumed 1000/s, offered 200/s, ack"));
    }
}
