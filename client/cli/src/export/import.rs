//! `import`: the messages of exported files, published again, partition by partition in their order.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corelane_client::{Acks, FlushReport, PreparedSet, Producer, Record, SendError};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::args::{FileFormat, ImportArgs};
use super::reading::{Piece, read};
use super::record::Loaded;
use super::sources::{self, Source, Sources};
use crate::args::Shared;
use crate::begin;
use crate::error::CliError;
use crate::output::print_json;
use crate::parse::size::format_size;
use crate::produce::status;
use crate::signals::{Interruption, Signals};

/// Bytes that are read ahead of the producer.
const AHEAD_BYTES: usize = 16 << 20;
/// How long after a signal what was read may still take to be acknowledged; a second signal ends that too.
const INTERRUPTED_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Default, Serialize)]
struct Summary {
    topic: String,
    files: u64,
    /// Messages that were read.
    messages: u64,
    /// Of them; as long as not all are, a compressed set of a raw file counts as one.
    acknowledged: u64,
    /// Bytes of the files.
    bytes: u64,
    seconds: f64,
}

pub(super) async fn run(shared: &Shared, args: &ImportArgs) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(|cause| CliError::System { what: "signals", cause })?;
    let started = Instant::now();
    let sources = sources::find(args)?;
    let (producer, partitions) = tokio::select! {
        prepared = begin::patiently((args.delivery_timeout, "; --delivery-timeout says how long"), || prepare(shared, args)) => prepared?,
        interruption = signals.next() => return Err(CliError::Interrupted(interruption)),
    };
    sources.check(&args.topic, partitions, args.keep_partitions)?;
    let mut summary = Summary { topic: args.topic.clone(), ..Summary::default() };
    let bytes =
        sources.files.iter().filter_map(|file| fs::metadata(&file.path).ok()).map(|metadata| metadata.len()).sum();
    let style = ProgressStyle::with_template("{bar:30} {binary_bytes} of {binary_total_bytes}, {eta} to go");
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr())
        .with_style(style.expect("a constant template is valid"));
    let work = async {
        for source in &sources.files {
            let bytes = fs::metadata(&source.path).map_or(0, |metadata| metadata.len());
            publish(&producer, args, partitions, (&sources, source), &mut summary).await?;
            summary.files += 1;
            summary.bytes += bytes;
            bar.inc(bytes);
        }
        Ok::<(), CliError>(())
    };
    let result = tokio::select! {
        result = work => result,
        interruption = signals.next() => Err(CliError::Interrupted(interruption)),
    };
    let report = end(&producer, args.delivery_timeout, &mut signals, result.is_err()).await;
    let (report, result) = match report {
        Ok(report) => (report, result),
        Err(interruption) => (producer.close(Duration::ZERO).await, Err(CliError::Interrupted(interruption))),
    };
    bar.finish_and_clear();
    summary.acknowledged = if report.is_complete() { summary.messages } else { report.acknowledged };
    summary.seconds = started.elapsed().as_secs_f64();
    if shared.json {
        print_json(&summary)?;
    } else {
        let Summary { topic, files, messages, acknowledged, bytes, seconds } = &summary;
        let read = format!("{files} files ({}), {messages} messages", format_size(*bytes));
        eprintln!("{topic}: {read}, {acknowledged} acknowledged in {seconds:.1} s");
    }
    result?;
    if report.is_complete() {
        return Ok(());
    }
    let (failed, messages, error) = (report.published - report.acknowledged, summary.messages, report.last_error);
    let cause = error.as_ref().map_or_else(|| "no acknowledgement came in time".to_owned(), ToString::to_string);
    let (status, is_retryable) = (error.as_ref().and_then(status), error.is_none_or(|error| error.is_retryable()));
    Err(CliError::NotPublished { failed, messages, cause, status, is_retryable })
}

/// A producer, and how many partitions the topic has.
async fn prepare(shared: &Shared, args: &ImportArgs) -> Result<(Producer, u32), CliError> {
    let client = shared.connect().await?;
    let producer = client.producer().acks(Acks::Durable).delivery_timeout(args.delivery_timeout);
    let producer = producer.compression(args.compression.into()).build()?;
    let partitions = producer.prepare(&args.topic).await.map_err(|error| match error {
        SendError::Topic { cause, .. } => CliError::from(cause),
        other => CliError::Argument(other.to_string()),
    })?;
    Ok((producer, partitions))
}

/// Waits for what is under way; a signal leaves it a short time only, the next one none.
async fn end(
    producer: &Producer,
    patience: Duration,
    signals: &mut Signals,
    is_cut_short: bool,
) -> Result<FlushReport, Interruption> {
    let mut first = None;
    if !is_cut_short {
        tokio::select! {
            report = producer.close(patience) => return Ok(report),
            interruption = signals.next() => first = Some(interruption),
        }
    }
    tokio::select! {
        report = producer.close(INTERRUPTED_PATIENCE) => match first {
            Some(interruption) if !report.is_complete() => Err(interruption),
            _ => Ok(report),
        },
        interruption = signals.next() => Err(interruption),
    }
}

/// Publishes one file. It is read by a thread of its own, a bounded number of bytes ahead.
async fn publish(
    producer: &Producer,
    args: &ImportArgs,
    partitions: u32,
    (sources, source): (&Sources, &Source),
    summary: &mut Summary,
) -> Result<(), CliError> {
    let Source { path, format, partition } = source;
    let mut pieces = read_ahead(path.clone(), *format);
    while let Some((piece, _memory)) = pieces.recv().await {
        let sent = match piece.map_err(|cause| CliError::File { path: path.clone(), cause })? {
            Piece::Message(message) => {
                summary.messages += 1;
                let place = sources.place(*partition, message.key.is_some(), partitions, args.keep_partitions);
                producer.send(record(&args.topic, place, &message)).await
            }
            Piece::Set(bytes, messages) => {
                summary.messages += messages;
                match PreparedSet::new(&args.topic, *partition, bytes) {
                    Ok(set) => producer.send_set(set).await,
                    Err(error) => Err(error),
                }
            }
        };
        // Its fate is counted by the producer.
        drop(sent.map_err(|error| CliError::Argument(format!("{}: {error}", path.display())))?);
    }
    Ok(())
}

/// A piece of a file, or why there is none; and its share of the memory for what is read ahead.
type Ahead = (io::Result<Piece>, Option<OwnedSemaphorePermit>);

/// Reads a file on a thread of its own, which ends when nobody receives any more.
fn read_ahead(path: PathBuf, format: FileFormat) -> mpsc::UnboundedReceiver<Ahead> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (memory, runtime) = (Arc::new(Semaphore::new(AHEAD_BYTES)), Handle::current());
    tokio::task::spawn_blocking(move || {
        let read = read(&path, format, |piece| {
            let bytes = piece.bytes().clamp(1, AHEAD_BYTES);
            let permit = memory.clone().acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
            let permit = runtime.block_on(permit).expect("nobody closes it");
            sender.send((Ok(piece), Some(permit))).is_ok()
        });
        if let Err(error) = read {
            // Whoever has left does not want to know.
            let _ = sender.send((Err(error), None));
        }
    });
    receiver
}

fn record<'a>(topic: &'a str, partition: Option<u32>, message: &'a Loaded) -> Record<'a> {
    let mut record = Record::to(topic).timestamp_ms(message.timestamp_ms);
    record = match &message.value {
        Some(value) => record.value(value),
        None => record.tombstone(),
    };
    if let Some(key) = &message.key {
        record = record.key(key);
    }
    if let Some(partition) = partition {
        record = record.partition(partition);
    }
    for (name, value) in &message.headers {
        record = record.header(name, value.as_deref());
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_read_ahead_is_bounded_by_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large.jsonl");
        let value = "x".repeat(1 << 20);
        let line = format!("{{\"position\":0,\"timestamp_ms\":1,\"key\":null,\"value\":\"{value}\"}}\n");
        fs::write(&path, line.repeat(40)).unwrap();
        let mut pieces = read_ahead(path, FileFormat::Jsonl);
        let mut held = Vec::new();
        // Nothing more comes while these are held.
        while let Ok(piece) = tokio::time::timeout(Duration::from_millis(300), pieces.recv()).await {
            held.push(piece.unwrap());
        }
        let bytes: usize = held.iter().map(|(piece, _)| piece.as_ref().unwrap().bytes()).sum();
        assert!(!held.is_empty() && bytes <= AHEAD_BYTES, "{bytes}");
        let mut count = held.len();
        drop(held);
        while let Some((piece, _memory)) = pieces.recv().await {
            piece.unwrap();
            count += 1;
        }
        assert_eq!(count, 40);
    }
}
