//! Watches a run from outside: what happened in each interval, when the warm-up ends, and what counts in the end.
//! It owns the figures; it starts and ends nothing.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::consume::Reading;
use crate::ledger::{Totals, lock};
use crate::pace::Rate;
use crate::payload::now_us;
use crate::results::{Flow, Generator, Moment};

/// An interval that is cut off by the end gets a place in the time line if it is at least this part of a whole one:
/// rates of less are noise.
const LAST_INTERVAL_MIN: f64 = 0.25;

/// Counters at a moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) published: u64,
    pub(crate) published_bytes: u64,
    pub(crate) consumed: u64,
    pub(crate) consumed_bytes: u64,
    pub(crate) errors: u64,
    cpu: Duration,
}

/// What is measured of a run.
pub(crate) struct Watch {
    totals: Arc<Mutex<Totals>>,
    readings: Vec<Rc<RefCell<Reading>>>,
    rate: Option<Rate>,
    start: Instant,
    /// When publishing was told to stop: nothing is offered from then on.
    offered_until: Option<Instant>,
    /// While the warm-up lasts: its end.
    warm_until: Option<Instant>,
    interval: Duration,
    /// Where the running interval began.
    since: (Instant, Counters),
    /// Where the measurement began.
    measured_from: (Instant, Counters),
    pub(crate) timeline: Vec<Moment>,
}

impl Watch {
    pub(crate) fn start(
        totals: Arc<Mutex<Totals>>,
        readings: Vec<Rc<RefCell<Reading>>>,
        rate: Option<Rate>,
        warm_up: Option<Duration>,
        interval: Duration,
        now: Instant,
    ) -> Self {
        let begin = (now, Counters { cpu: cpu_time(), ..Counters::default() });
        let warm_until = warm_up.map(|warm_up| now + warm_up);
        Self {
            totals,
            readings,
            rate,
            start: now,
            offered_until: None,
            warm_until,
            interval,
            since: begin,
            measured_from: begin,
            timeline: Vec::new(),
        }
    }

    /// When it wants to be told that an interval is over.
    pub(crate) fn next(&self) -> Instant {
        let end = self.since.0 + self.interval;
        self.warm_until.map_or(end, |warm_until| end.min(warm_until))
    }

    /// Publishing is told to stop.
    pub(crate) fn stop_offering(&mut self, now: Instant) {
        self.offered_until.get_or_insert(now);
    }

    /// An interval is over.
    pub(crate) fn end_interval(&mut self, now: Instant) -> &Moment {
        let moment = self.moment(now);
        self.timeline.push(moment);
        if self.warm_until.is_some_and(|warm_until| now >= warm_until) {
            self.warm_until = None;
            self.measured_from = self.since;
            // Perhaps a little later than it should be: what was due in between has been counted as warm-up.
            lock(&self.totals).measured_from = Some(now);
            for reading in &self.readings {
                reading.borrow_mut().measured_from_us = now_us();
            }
        }
        self.timeline.last().expect("one was just added")
    }

    /// The run is over: the last interval counts in the sums, and in the time line if it is long enough to tell anything.
    pub(crate) fn end(&mut self, now: Instant) {
        let moment = self.moment(now);
        if self.warm_until.is_some() {
            // It ended before anything was measured.
            self.measured_from = self.since;
        }
        if moment.seconds >= self.interval.as_secs_f64() * LAST_INTERVAL_MIN {
            self.timeline.push(moment);
        }
    }

    fn moment(&mut self, now: Instant) -> Moment {
        let (since, before) = self.since;
        let counters = self.counters();
        self.since = (now, counters);
        let warm_up = self.warm_until.is_some();
        let due_by = |rate: Rate, at: Instant| {
            let at = self.offered_until.map_or(at, |until| at.min(until));
            rate.due((at - self.start).as_secs_f64())
        };
        let due = |rate: Rate| due_by(rate, now) - due_by(rate, since);
        let mut totals = lock(&self.totals);
        let ack_us = totals.ack.end_interval(!warm_up);
        totals.service.end_interval(!warm_up);
        totals.late.end_interval(!warm_up);
        drop(totals);
        // The worst of several audiences: they see the same messages.
        let briefs = self.readings.iter().filter_map(|reading| reading.borrow_mut().end_to_end.end_interval(!warm_up));
        Moment {
            at_s: (now - self.start).as_secs_f64(),
            seconds: (now - since).as_secs_f64(),
            warm_up,
            offered: self.rate.map(due),
            published: counters.published - before.published,
            published_bytes: counters.published_bytes - before.published_bytes,
            consumed: counters.consumed - before.consumed,
            consumed_bytes: counters.consumed_bytes - before.consumed_bytes,
            errors: counters.errors - before.errors,
            ack_us,
            end_to_end_us: briefs.max_by_key(|brief| brief.p99),
        }
    }

    /// What was published since the measurement began, by the acknowledgements.
    pub(crate) fn produced(&self) -> Flow {
        let (from, before) = self.measured_from;
        let (_, now) = self.since;
        let took = lock(&self.totals).last_settled.map_or(Duration::ZERO, |last| last.saturating_duration_since(from));
        Flow::new(now.published - before.published, now.published_bytes - before.published_bytes, took)
    }

    /// What was consumed since the measurement began: from the first message to the last.
    pub(crate) fn consumed(&self) -> Flow {
        let (from, before) = self.measured_from;
        let (_, now) = self.since;
        let first = self.readings.iter().filter_map(|reading| reading.borrow().first).min();
        let last = self.readings.iter().filter_map(|reading| reading.borrow().last).max();
        let took =
            first.zip(last).map_or(Duration::ZERO, |(first, last)| last.saturating_duration_since(first.max(from)));
        Flow::new(now.consumed - before.consumed, now.consumed_bytes - before.consumed_bytes, took)
    }

    /// What measuring took.
    pub(crate) fn generator(&self) -> Generator {
        let ((_, before), (_, now)) = (self.measured_from, self.since);
        let cpu_s = now.cpu.saturating_sub(before.cpu).as_secs_f64();
        let messages = (now.published - before.published) + (now.consumed - before.consumed);
        Generator { cpu_s, cpu_us_per_message: if messages > 0 { cpu_s * 1e6 / messages as f64 } else { 0.0 } }
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters { cpu: cpu_time(), ..Counters::default() };
        {
            let totals = lock(&self.totals);
            counters.published = totals.acknowledged;
            counters.published_bytes = totals.acknowledged_bytes;
            counters.errors = totals.errors.values().sum();
        }
        for reading in &self.readings {
            let reading = reading.borrow();
            counters.consumed += reading.messages;
            counters.consumed_bytes += reading.bytes;
            counters.errors += reading.errors.values().sum::<u64>();
        }
        counters
    }
}

/// What this process has used so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_is_in_the_time_line_and_not_in_the_figures() {
        let totals = Arc::new(Mutex::new(Totals::default()));
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let warm_up = Some(Duration::from_millis(1500));
        let rate = Some(Rate::Steady(100.0));
        let mut watch = Watch::start(Arc::clone(&totals), Vec::new(), rate, warm_up, second, start);
        let publish = |messages: u64, at: Instant| {
            let mut totals = lock(&totals);
            totals.acknowledged += messages;
            totals.acknowledged_bytes += messages * 10;
            totals.ack.record(Duration::from_micros(messages), messages);
            totals.last_settled = Some(at);
        };
        publish(500, start);
        assert_eq!(watch.next(), start + second);
        assert!(watch.end_interval(start + second).warm_up);
        publish(300, start);
        let warm = start + second * 3 / 2;
        assert_eq!(watch.next(), warm, "the warm-up's end cuts an interval");
        assert!(watch.end_interval(warm).warm_up);
        assert_eq!(lock(&totals).measured_from, Some(warm));
        publish(200, start + second * 2);
        assert_eq!(watch.next(), warm + second);
        let measured = watch.end_interval(warm + second).clone();
        assert!(!measured.warm_up && (measured.offered.unwrap() - 100.0).abs() < 1e-6 && measured.published == 200);
        watch.stop_offering(warm + second);
        // The tail is too short for a rate; its messages count.
        publish(7, start + second * 3);
        watch.end(warm + second + second / 10);
        assert_eq!(watch.timeline.len(), 3);
        watch.end(warm + second * 2);
        assert_eq!(watch.timeline.last().and_then(|moment| moment.offered), Some(0.0), "nothing is asked for any more");
        let produced = watch.produced();
        assert_eq!((produced.messages, produced.bytes, produced.seconds), (207, 2_070, 1.5));
        assert_eq!(lock(&totals).ack.total().percentiles().map(|all| all.count), Some(207));
    }

    #[test]
    fn a_run_that_ends_in_its_warm_up_has_measured_nothing() {
        let totals = Arc::new(Mutex::new(Totals::default()));
        let start = Instant::now();
        let minute = Some(Duration::from_mins(1));
        let mut watch = Watch::start(Arc::clone(&totals), Vec::new(), None, minute, Duration::from_secs(1), start);
        lock(&totals).acknowledged = 5;
        watch.end(start + Duration::from_secs(1));
        assert_eq!((watch.produced().messages, watch.timeline.len()), (0, 1));
    }
}
