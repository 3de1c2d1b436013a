//! What `produce` tells: a progress bar while it runs, on a terminal only, and how it went at the end.

use std::time::Instant;

use corelane_client::FlushReport;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::args::AcksArg;
use crate::error::CliError;
use crate::output::print_json;

/// A bar over the file, or a counter where the size is unknown. Draws nothing unless standard error is a terminal.
#[derive(Clone)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn start(input_bytes: Option<u64>) -> Self {
        let template = match input_bytes {
            Some(_) => "{bar:30} {binary_bytes} of {binary_total_bytes} ({binary_bytes_per_sec}), {msg}, {eta} to go",
            None => "{spinner} {binary_bytes} ({binary_bytes_per_sec}), {msg}, {elapsed}",
        };
        let style = ProgressStyle::with_template(template).expect("a constant template is valid");
        let bar = ProgressBar::with_draw_target(input_bytes, ProgressDrawTarget::stderr()).with_style(style);
        Self(bar.with_message("0 messages"))
    }

    /// So many more bytes of input are done, and so many messages in all.
    pub(super) fn advance(&self, bytes: u64, messages: u64) {
        self.0.inc(bytes);
        if !self.0.is_hidden() {
            self.0.set_message(format!("{messages} messages"));
        }
    }

    /// Says something while the bar is there.
    pub(super) fn say(&self, words: &str) {
        self.0.suspend(|| eprintln!("corelane: {words}"));
    }

    /// Takes the bar away.
    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// The counts at the end: `acknowledged + failed + unsent == messages`.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    topic: String,
    /// Lines read.
    pub(super) messages: u64,
    acknowledged: u64,
    /// Failed for good, refused by the producer included.
    pub(super) failed: u64,
    /// Neither is known.
    pub(super) unsent: u64,
    /// Lines that the producer did not take.
    #[serde(skip)]
    pub(super) rejected: u64,
    /// Bytes of the lines that the producer took, keys included.
    pub(super) bytes: u64,
    seconds: f64,
    messages_per_s: f64,
    #[serde(skip)]
    started: Instant,
}

impl Summary {
    pub(super) fn new(topic: String, started: Instant) -> Self {
        Self {
            topic,
            messages: 0,
            acknowledged: 0,
            failed: 0,
            unsent: 0,
            rejected: 0,
            bytes: 0,
            seconds: 0.0,
            messages_per_s: 0.0,
            started,
        }
    }

    /// Takes over what the producer has counted.
    pub(super) fn count(&mut self, report: &FlushReport, now: Instant) {
        self.acknowledged = report.acknowledged;
        self.failed = report.failed + self.rejected;
        self.unsent = self.messages.saturating_sub(self.acknowledged + self.failed);
        self.seconds = now.duration_since(self.started).as_secs_f64();
        self.messages_per_s = if self.seconds > 0.0 { self.acknowledged as f64 / self.seconds } else { 0.0 };
    }

    /// Prints it: on standard error for people, on standard output as JSON.
    pub(super) fn print(&self, json: bool, acks: AcksArg) -> Result<(), CliError> {
        if json {
            return print_json(self);
        }
        eprintln!("{}", self.sentence(acks));
        Ok(())
    }

    fn sentence(&self, acks: AcksArg) -> String {
        let acknowledged = if acks == AcksArg::None { "sent without acknowledgement" } else { "acknowledged" };
        let unsent = if self.unsent > 0 { format!(", {} not sent", self.unsent) } else { String::new() };
        format!(
            "{}: {} messages read, {} {acknowledged}, {} failed{unsent} in {:.2} s ({:.0} messages/s, {:.1} MB/s)",
            self.topic,
            self.messages,
            self.acknowledged,
            self.failed,
            self.seconds,
            self.messages_per_s,
            if self.seconds > 0.0 { self.bytes as f64 / self.seconds / 1e6 } else { 0.0 },
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_line_is_accounted_for() {
        let started = Instant::now();
        let mut summary = Summary::new("t".to_owned(), started);
        (summary.messages, summary.rejected, summary.bytes) = (100, 3, 4_000_000);
        let mut report = FlushReport::default();
        (report.acknowledged, report.failed) = (90, 2);
        summary.count(&report, started + Duration::from_secs(2));
        assert_eq!((summary.acknowledged, summary.failed, summary.unsent), (90, 5, 5));
        assert_eq!(
            summary.sentence(AcksArg::Durable),
            "t: 100 messages read, 90 acknowledged, 5 failed, 5 not sent in 2.00 s (45 messages/s, 2.0 MB/s)"
        );
    }
}
