//! `corelane produce`: a message for each line of a file or of standard input.
//!
//! The input is published as it comes. Ctrl-C or SIGTERM stops the reading: what was read is still published, within
//! the time-out, and the summary tells what became of it; a second signal gives up at once.

mod args;
mod lines;
mod summary;
mod watch;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corelane_client::{CallError, DeliveryError, FlushReport, Producer, Record, SendError, Status};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep_until;

use crate::args::Shared;
use crate::begin;
use crate::error::CliError;
use crate::signals::{Interruption, Signals};

pub(crate) use args::{CompressionArg, ProduceArgs};
use lines::{Block, lines_of, read_blocks};
use summary::{Progress, Summary};
pub(crate) use watch::{Sight, Watch};

/// The largest message that any topic may allow; a longer line is not even kept.
const LINE_BYTES_MAX: usize = 8 << 20;
/// How often the producer is looked at for what is to be told while it runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn run(shared: &Shared, args: ProduceArgs) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(|cause| CliError::System { what: "signals", cause })?;
    let (input, input_bytes) = open(args.file.as_deref())?;
    let failure = FirstFailure::default();
    let producer = tokio::select! {
        begun = begin::patiently((args.delivery_timeout, " (--delivery-timeout)"), || prepare(shared, &args, &failure)) => begun?,
        // Nothing was read yet.
        interruption = signals.next() => return Err(CliError::Interrupted(interruption)),
    };

    let mut blocks = read_blocks(input, LINE_BYTES_MAX).map_err(CliError::Input)?;
    let stop = Notify::new();
    let progress = Progress::start(input_bytes);
    let mut publisher = Publisher::new(&producer, &args, progress.clone(), failure.clone());
    let interruption = {
        let mut work = pin!(async {
            publisher.publish(&mut blocks, &stop).await;
            // Nothing that was taken is given up before its own time-out has decided about it.
            producer.close(args.delivery_timeout + shared.timeout).await
        });
        let mut first: Option<(Interruption, tokio::time::Instant)> = None;
        let mut watch = Watch::default();
        let mut looks = tokio::time::interval(LOOK_EVERY);
        loop {
            let deadline = first.map(|(_, deadline)| deadline);
            tokio::select! {
                _report = &mut work => break first.map(|(interruption, _)| interruption),
                interruption = signals.next() => match first {
                    None => {
                        first = Some((interruption, tokio::time::Instant::now() + shared.timeout));
                        stop.notify_one();
                    }
                    Some(_) => break Some(interruption),
                },
                _ = looks.tick() => {
                    for words in watch.look(sight(&producer, &failure), Instant::now()) {
                        progress.say(&words);
                    }
                }
                () = sleep_until(deadline.unwrap_or_else(tokio::time::Instant::now)), if deadline.is_some() => {
                    break first.map(|(interruption, _)| interruption);
                }
            }
        }
    };
    // The second close only reports, or gives up what the first was still waiting for.
    let report = producer.close(Duration::ZERO).await;
    publisher.end(&report, shared.json, interruption)
}

/// The input and, if it is known, its size in bytes.
fn open(path: Option<&Path>) -> Result<(Box<dyn Read + Send>, Option<u64>), CliError> {
    let Some(path) = path.filter(|path| path.as_os_str() != "-") else {
        return Ok((Box::new(io::stdin()), None));
    };
    let failed = |cause| CliError::File { path: path.to_owned(), cause };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}

/// A producer for a topic that is there.
async fn prepare(shared: &Shared, args: &ProduceArgs, failure: &FirstFailure) -> Result<Producer, CliError> {
    let producer = producer(&shared.connect().await?, args, failure)?;
    check_topic(&producer, args).await?;
    Ok(producer)
}

fn producer(
    client: &corelane_client::Client,
    args: &ProduceArgs,
    failure: &FirstFailure,
) -> Result<Producer, CliError> {
    let failure = failure.clone();
    let producer = client
        .producer()
        .acks(args.acks.into())
        .compression(args.compression.into())
        .delivery_timeout(args.delivery_timeout)
        .on_set(move |set| {
            if let Err(error) = &set.first {
                failure.note_error(error);
            }
        })
        .build()?;
    Ok(producer)
}

fn sight(producer: &Producer, failure: &FirstFailure) -> Sight {
    Sight {
        obstacle: producer.obstacle().map(|obstacle| obstacle.to_string()),
        failed: producer.stats().failed,
        first_failure: failure.get(),
    }
}

/// Fails before anything is read when the topic or the partition is not there.
async fn check_topic(producer: &Producer, args: &ProduceArgs) -> Result<(), CliError> {
    let partitions = producer.prepare(&args.topic).await.map_err(|error| match error {
        SendError::Topic { cause, .. } => CliError::from(cause),
        other => CliError::Argument(other.to_string()),
    })?;
    match args.partition {
        Some(partition) if partition >= partitions => {
            Err(CallError::NoSuchPartition { topic: args.topic.clone(), partition, partitions }.into())
        }
        _ => Ok(()),
    }
}

/// Why the first message failed, whoever finds out: one reason is enough to act upon.
#[derive(Debug, Clone, Default)]
struct FirstFailure(Arc<Mutex<Option<Failure>>>);

/// A failure in words, and for programs.
#[derive(Debug, Clone)]
struct Failure {
    reason: String,
    status: Option<&'static str>,
    is_retryable: bool,
}

impl FirstFailure {
    /// What no retry can help.
    fn note(&self, reason: impl FnOnce() -> String) {
        self.first(|| Failure { reason: reason(), status: None, is_retryable: false });
    }

    /// What became of a message that the producer had taken.
    fn note_error(&self, error: &DeliveryError) {
        self.first(|| Failure { reason: error.to_string(), status: status(error), is_retryable: error.is_retryable() });
    }

    fn first(&self, failure: impl FnOnce() -> Failure) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(failure);
    }

    fn get(&self) -> Option<String> {
        let failure = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map(|failure| failure.reason.clone())
    }

    /// How the command ends.
    fn not_published(&self, failed: u64, messages: u64) -> CliError {
        let failure = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let failure = failure.unwrap_or_else(|| Failure {
            reason: "no acknowledgement came in time".to_owned(),
            status: None,
            is_retryable: true,
        });
        let Failure { reason: cause, status, is_retryable } = failure;
        CliError::NotPublished { failed, messages, cause, status, is_retryable }
    }
}

/// The broker's status, if it has refused the message, or did so until the time was up.
pub(crate) fn status(error: &DeliveryError) -> Option<&'static str> {
    match error {
        DeliveryError::Refused(refusal) => Some(refusal.status.name()),
        DeliveryError::TimedOut { cause: Some(cause) } => {
            let mut names = Status::all().map(Status::name);
            names.find(|name| cause.split(": ").any(|part| part == *name))
        }
        _ => None,
    }
}

/// Hands lines to the producer and counts.
struct Publisher<'a> {
    producer: &'a Producer,
    args: &'a ProduceArgs,
    failure: FirstFailure,
    progress: Progress,
    summary: Summary,
    /// The input could not be read to its end.
    input_failure: Option<CliError>,
}

impl<'a> Publisher<'a> {
    fn new(producer: &'a Producer, args: &'a ProduceArgs, progress: Progress, failure: FirstFailure) -> Self {
        let summary = Summary::new(args.topic.clone(), Instant::now());
        Self { producer, args, failure, progress, summary, input_failure: None }
    }

    /// Publishes blocks until the input ends. After `stop` no more is read, but what was read is published.
    async fn publish(&mut self, blocks: &mut mpsc::Receiver<io::Result<Block>>, stop: &Notify) {
        loop {
            let block = tokio::select! {
                biased;
                () = stop.notified() => {
                    blocks.close();
                    continue;
                }
                block = blocks.recv() => block,
            };
            match block {
                None => return,
                Some(Ok(Block::Lines(block))) => {
                    for line in lines_of(&block) {
                        self.summary.messages += 1;
                        if !self.publish_line(line).await {
                            return;
                        }
                    }
                    self.progress.advance(block.len() as u64, self.summary.messages);
                }
                Some(Ok(Block::TooLong(bytes))) => {
                    self.summary.messages += 1;
                    self.reject(&format!("it has {bytes} bytes, more than any message may have"));
                    self.progress.advance(bytes, self.summary.messages);
                }
                Some(Err(error)) => {
                    self.input_failure = Some(CliError::Input(error));
                    return;
                }
            }
        }
    }

    /// Publishes one line. False: no further line can be published either.
    async fn publish_line(&mut self, line: &[u8]) -> bool {
        let record = self.args.record(line);
        match self.producer.send(record).await {
            Ok(delivery) => {
                // Its fate is counted by the producer.
                drop(delivery);
                self.summary.bytes += line.len() as u64;
                true
            }
            Err(error @ (SendError::TooLarge { .. } | SendError::Invalid { .. })) => {
                self.reject(&error.to_string());
                true
            }
            Err(error) => {
                self.reject(&error.to_string());
                false
            }
        }
    }

    /// Counts a line that the producer does not take.
    fn reject(&mut self, reason: &str) {
        self.summary.rejected += 1;
        let line = self.summary.messages;
        self.failure.note(|| format!("line {line}: {reason}"));
    }

    /// Prints the summary and decides how the command ends.
    fn end(mut self, report: &FlushReport, json: bool, interruption: Option<Interruption>) -> Result<(), CliError> {
        self.progress.clear();
        self.summary.count(report, Instant::now());
        self.summary.print(json, self.args.acks)?;
        if let Some(error) = self.input_failure {
            return Err(error);
        }
        let not_published = self.summary.failed + self.summary.unsent;
        if let Some(interruption) = interruption {
            return Err(CliError::Interrupted(interruption));
        }
        if not_published > 0 {
            return Err(self.failure.not_published(not_published, self.summary.messages));
        }
        Ok(())
    }
}

impl ProduceArgs {
    /// The message that a line becomes.
    fn record<'a>(&'a self, line: &'a [u8]) -> Record<'a> {
        let (key, value) = match &self.key_separator {
            Some(separator) => split_key(line, separator),
            None => (self.key.as_ref().map(String::as_bytes), line),
        };
        let mut record = Record::to(&self.topic);
        if let Some(key) = key {
            record = record.key(key);
        }
        record =
            if self.tombstone && key.is_some() && value.is_empty() { record.tombstone() } else { record.value(value) };
        if let Some(partition) = self.partition {
            record = record.partition(partition);
        }
        for header in &self.header {
            record = header.add_to(record);
        }
        record
    }
}

/// Key and value around the first separator; a line without one has no key.
fn split_key<'a>(line: &'a [u8], separator: &[u8]) -> (Option<&'a [u8]>, &'a [u8]) {
    match memchr::memmem::find(line, separator) {
        Some(at) => (Some(&line[..at]), &line[at + separator.len()..]),
        None => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_separator_ends_the_key() {
        assert_eq!(split_key(b"k:v:w", b":"), (Some(&b"k"[..]), &b"v:w"[..]));
        assert_eq!(split_key(b"k::v", b"::"), (Some(&b"k"[..]), &b"v"[..]));
        assert_eq!(split_key(b":v", b":"), (Some(&b""[..]), &b"v"[..]));
        assert_eq!(split_key(b"k:", b":"), (Some(&b"k"[..]), &b""[..]));
        assert_eq!(split_key(b"no key", b":"), (None, &b"no key"[..]));
    }

    #[test]
    fn a_refusal_that_lasted_until_the_time_was_up_keeps_its_status() {
        let timed_out = |cause: &str| DeliveryError::TimedOut { cause: Some(cause.into()) };
        assert_eq!(status(&timed_out("NO_SPACE: the disk is full")), Some("NO_SPACE"));
        assert_eq!(status(&timed_out("broker 2 cannot be reached")), None);
    }

    #[test]
    fn the_first_failure_is_the_one_that_is_told() {
        let failure = FirstFailure::default();
        failure.note(|| "one".to_owned());
        failure.note(|| unreachable!("a reason is known already"));
        assert_eq!(failure.get().as_deref(), Some("one"));
    }
}
