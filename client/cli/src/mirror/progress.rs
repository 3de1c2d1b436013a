//! How far a mirror is: a line that is redrawn on a terminal, else a line now and then (JSON on standard output with
//! `--json`), a file of metrics, and the summary at the end.

use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::error::CliError;
use crate::output::print_json;
use crate::parse::size::format_size;

/// How often a terminal is redrawn and the file of metrics is written.
const OFTEN: Duration = Duration::from_secs(1);

/// What was done since the command began.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Counts {
    /// Messages that were handed to the target.
    pub(super) messages: u64,
    /// Their bytes in the source.
    pub(super) bytes: u64,
    /// Messages that were not copied since they had been in the target's cluster, or come from elsewhere.
    pub(super) skipped: u64,
    /// Messages of the source that are damaged.
    pub(super) damaged: u64,
    /// Bytes that retention had taken in the source before they were copied.
    pub(super) lost_bytes: u64,
    /// Partitions of which the target has nothing of what the group has copied.
    pub(super) partitions_without_copies: u64,
    /// Times that something failed and was tried again.
    pub(super) errors: u64,
    /// Handed over and not acknowledged yet.
    pub(super) on_their_way: u64,
    /// Source partitions that this process copies.
    pub(super) partitions: u64,
    /// How far these are behind the source; none while that is not known, or there are none.
    pub(super) lag_bytes: Option<u64>,
    /// What keeps the target from taking what is on its way.
    pub(super) obstacle: Option<String>,
    seconds: f64,
    /// Whether this is the summary at the end.
    done: bool,
}

/// See the head of this file.
pub(super) struct Progress {
    pub(super) counts: Counts,
    started: Instant,
    bar: ProgressBar,
    json: bool,
    interval: Duration,
    metrics: Option<PathBuf>,
    /// Whether the last attempt to write the metrics failed.
    is_metrics_failing: bool,
    next: Instant,
    next_line: Instant,
    line_before: (Instant, u64),
}

impl Progress {
    pub(super) fn start(json: bool, interval: Duration, metrics: Option<PathBuf>) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg}").expect("a constant template is valid");
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
        let now = Instant::now();
        Self {
            counts: Counts::default(),
            started: now,
            bar,
            json,
            interval,
            metrics,
            is_metrics_failing: false,
            next: now + OFTEN,
            next_line: now + interval,
            line_before: (now, 0),
        }
    }

    /// Whether it is time to [`tell`](Self::tell).
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Until it is.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// Tells what the counts say now, wherever it is wanted.
    pub(super) fn tell(&mut self, now: Instant) -> Result<(), CliError> {
        self.next = now + OFTEN;
        self.counts.seconds = now.duration_since(self.started).as_secs_f64();
        self.write_metrics();
        self.bar.set_message(self.line(now));
        self.bar.tick();
        if now < self.next_line {
            return Ok(());
        }
        self.next_line = now + self.interval;
        if self.json {
            print_json(&self.counts)?;
        } else if !std::io::stderr().is_terminal() {
            eprintln!("{}", self.line(now));
        }
        self.line_before = (now, self.counts.bytes);
        Ok(())
    }

    /// The summary.
    pub(super) fn finish(mut self) -> Result<(), CliError> {
        self.bar.finish_and_clear();
        self.counts.seconds = self.started.elapsed().as_secs_f64();
        self.counts.done = true;
        self.write_metrics();
        if self.json {
            return print_json(&self.counts);
        }
        let Counts { messages, bytes, skipped, damaged, lost_bytes, on_their_way, seconds, .. } = &self.counts;
        let mut sentence = format!("{messages} messages copied ({}) in {seconds:.1} s", format_size(*bytes));
        for (count, what) in [
            (skipped, "skipped"),
            (damaged, "damaged in the source"),
            (lost_bytes, "bytes lost to retention before they were copied"),
            (&self.counts.partitions_without_copies, "partitions without what was copied before"),
            (on_their_way, "not acknowledged, to be copied again"),
        ] {
            if *count > 0 {
                write!(sentence, ", {count} {what}").expect("a string takes what is written");
            }
        }
        eprintln!("{sentence}");
        Ok(())
    }

    fn line(&self, now: Instant) -> String {
        let (since, bytes) = self.line_before;
        let seconds = now.duration_since(since).as_secs_f64().max(0.001);
        let per_s = (self.counts.bytes - bytes) as f64 / seconds;
        let obstacle =
            self.counts.obstacle.as_ref().map_or_else(String::new, |obstacle| format!(", waits: {obstacle}"));
        format!(
            "{} messages, {} ({}/s), {} on their way, {} partitions, {}{obstacle}",
            self.counts.messages,
            format_size(self.counts.bytes),
            format_size(per_s as u64),
            self.counts.on_their_way,
            self.counts.partitions,
            self.counts.lag_bytes.map_or("lag not known".to_owned(), |lag| format!("{} behind", format_size(lag))),
        )
    }

    /// A file of metrics that cannot be written holds nothing up: it is told once, and tried again.
    fn write_metrics(&mut self) {
        let Some(path) = &self.metrics else { return };
        let written = write_whole(path, &metrics(&self.counts, SystemTime::now()));
        match (&written, self.is_metrics_failing) {
            (Err(error), false) => {
                eprintln!("corelane: {}: {error}; the metrics there are old until it can be written", path.display());
            }
            (Ok(()), true) => eprintln!("corelane: {}: the metrics are written again", path.display()),
            _ => {}
        }
        self.is_metrics_failing = written.is_err();
    }
}

/// Written beside and renamed, so that nobody reads half of it.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    fs::write(&beside, text)?;
    fs::rename(&beside, path)
}

/// The text format of Prometheus.
fn metrics(counts: &Counts, now: SystemTime) -> String {
    let now_s = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // What is known only while it runs is not told of one that has ended.
    let (partitions, lag_bytes) = if counts.done { (None, None) } else { (Some(counts.partitions), counts.lag_bytes) };
    let mut text = String::new();
    for (name, kind, help, value) in [
        ("messages_total", "counter", "Messages handed to the target", Some(counts.messages)),
        ("bytes_total", "counter", "Bytes of these messages in the source", Some(counts.bytes)),
        ("skipped_total", "counter", "Messages not copied for where they come from", Some(counts.skipped)),
        ("damaged_total", "counter", "Damaged messages met in the source", Some(counts.damaged)),
        ("lost_bytes_total", "counter", "Bytes that retention took before they were copied", Some(counts.lost_bytes)),
        ("errors_total", "counter", "Failures that were tried again", Some(counts.errors)),
        ("on_their_way", "gauge", "Messages not acknowledged yet", Some(counts.on_their_way)),
        (
            "partitions_without_copies",
            "gauge",
            "Source partitions of which the target has nothing of what the group has copied",
            Some(counts.partitions_without_copies),
        ),
        ("up", "gauge", "1 while the mirror runs, 0 when it has ended in order", Some(u64::from(!counts.done))),
        ("last_write_timestamp_seconds", "gauge", "When this file was written", Some(now_s)),
        ("partitions", "gauge", "Source partitions that this process copies", partitions),
        ("lag_bytes", "gauge", "Bytes that these are behind the source", lag_bytes),
    ] {
        // No value is better than a wrong one: an alert on the lag must not see the best one at the worst moment.
        let Some(value) = value else { continue };
        let name = format!("corelane_mirror_{name}");
        write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n").expect("a string takes it");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_whole_in_prometheus_text_format() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mirror.prom");
        let mut progress = Progress::start(false, Duration::from_hours(1), Some(path.clone()));
        progress.counts.messages = 42;
        progress.tell(Instant::now()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let expected = "# HELP corelane_mirror_messages_total Messages handed to the target\n\
                        # TYPE corelane_mirror_messages_total counter\ncorelane_mirror_messages_total 42\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(!text.contains("lag_bytes"), "nothing is known of it: {text}");
        progress.counts.lag_bytes = Some(7);
        progress.tell(Instant::now()).unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with("\ncorelane_mirror_lag_bytes 7\n"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn metrics_of_a_mirror_that_has_ended_say_so_and_a_write_that_failed_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later").join("mirror.prom");
        let mut progress = Progress::start(true, Duration::from_hours(1), Some(path.clone()));
        progress.counts.lag_bytes = Some(7);
        progress.tell(Instant::now()).unwrap();
        fs::create_dir(dir.path().join("later")).unwrap();
        progress.tell(Instant::now()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("\ncorelane_mirror_up 1\n") && text.contains("\ncorelane_mirror_lag_bytes 7\n"),
            "{text}"
        );
        let written = |text: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix("corelane_mirror_last_write_timestamp_seconds "));
            line.unwrap().parse().unwrap()
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert!(now - written(&text) < 60, "{text}");
        progress.finish().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\ncorelane_mirror_up 0\n"), "{text}");
        assert!(!text.contains("lag_bytes") && !text.contains("corelane_mirror_partitions "), "{text}");
    }
}
