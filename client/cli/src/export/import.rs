//! `import`: the messages of exported files, published again, partition by partition in their order.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use corelane_client::{Acks, PreparedSet, Producer, Record, SendError};
use corelane_proto::message::{MESSAGE_BYTES_LIMIT, Message};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tokio::sync::mpsc;

use super::args::{FileFormat, ImportArgs};
use super::columns;
use super::names;
use super::record::{Loaded, from_json};
use crate::args::Shared;
use crate::error::CliError;
use crate::output::print_json;
use crate::parse::size::format_size;
use crate::signals::Signals;

/// Messages that are read ahead of the producer.
const AHEAD: usize = 1024;
/// How long a message may take to be acknowledged, at the end all of them.
const PATIENCE: Duration = Duration::from_mins(5);

/// What a file gives.
enum Piece {
    Message(Loaded),
    /// A set as it is.
    Set(Vec<u8>),
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    topic: String,
    files: u64,
    /// Messages; of raw files, a compressed set counts as one.
    messages: u64,
    acknowledged: u64,
    /// Bytes of the files.
    bytes: u64,
    seconds: f64,
}

pub(super) async fn run(shared: &Shared, args: &ImportArgs) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(|cause| CliError::System { what: "signals", cause })?;
    let started = Instant::now();
    let files = files(&args.directory)?;
    let client = shared.connect().await?;
    let producer = client.producer().acks(Acks::Durable).delivery_timeout(PATIENCE);
    let producer = producer.compression(args.compression.into()).build()?;
    let partitions = producer.prepare(&args.topic).await.map_err(|error| match error {
        SendError::Topic { cause, .. } => CliError::from(cause),
        other => CliError::Argument(other.to_string()),
    })?;
    let mut summary = Summary { topic: args.topic.clone(), ..Summary::default() };
    let bytes = files.iter().filter_map(|file| fs::metadata(&file.path).ok()).map(|metadata| metadata.len()).sum();
    let style = ProgressStyle::with_template("{bar:30} {binary_bytes} of {binary_total_bytes}, {eta} to go");
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr())
        .with_style(style.expect("a constant template is valid"));
    let work = async {
        for file in files {
            let bytes = fs::metadata(&file.path).map_or(0, |metadata| metadata.len());
            publish(&producer, &args.topic, partitions, file, &mut summary).await?;
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
    let report = producer.close(PATIENCE).await;
    bar.finish_and_clear();
    summary.acknowledged = report.acknowledged;
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
    let cause =
        report.last_error.map_or_else(|| "no acknowledgement came in time".to_owned(), |error| error.to_string());
    let failed = report.published - report.acknowledged;
    Err(CliError::NotPublished { failed, messages: summary.messages, cause })
}

/// A file to import.
struct Source {
    path: PathBuf,
    format: FileFormat,
    partition: u32,
}

/// All files, by topic and partition, in order; a topic was exported in one format.
fn files(directory: &Path) -> Result<Vec<Source>, CliError> {
    let mut sources = Vec::new();
    for format in [FileFormat::Parquet, FileFormat::Jsonl, FileFormat::Raw] {
        let found =
            names::find(directory, format).map_err(|cause| CliError::File { path: directory.to_owned(), cause })?;
        for (names::Exported { partition, .. }, files) in found {
            sources.extend(files.into_values().map(|path| Source { path, format, partition }));
        }
    }
    if sources.is_empty() {
        let reason = format!("{}: there are no exported files in it", directory.display());
        return Err(CliError::Argument(reason));
    }
    Ok(sources)
}

/// Publishes one file. It is read by a thread of its own, a bounded number of messages ahead.
async fn publish(
    producer: &Producer,
    topic: &str,
    partitions: u32,
    source: Source,
    summary: &mut Summary,
) -> Result<(), CliError> {
    let Source { path, format, partition } = source;
    let (sender, mut pieces) = mpsc::channel(AHEAD);
    let of_file = path.clone();
    let reading =
        tokio::task::spawn_blocking(move || read(&of_file, format, |piece| sender.blocking_send(piece).is_ok()));
    let place = (partition < partitions).then_some(partition);
    while let Some(piece) = pieces.recv().await {
        let sent = match piece {
            Piece::Message(message) => {
                summary.messages += 1;
                producer.send(record(topic, place, &message)).await
            }
            Piece::Set(bytes) => {
                let Some(partition) = place else {
                    return Err(CliError::Argument(format!(
                        "{}: {topic} has {partitions} partitions, and raw files go back to their own, {partition}",
                        path.display()
                    )));
                };
                match PreparedSet::new(topic, partition, bytes) {
                    Ok(set) => {
                        summary.messages += u64::from(set.messages());
                        producer.send_set(set).await
                    }
                    Err(error) => Err(error),
                }
            }
        };
        // Its fate is counted by the producer.
        drop(sent.map_err(|error| CliError::Argument(format!("{}: {error}", path.display())))?);
    }
    let read = reading.await.expect("a reader neither panics nor is cancelled");
    read.map_err(|cause| CliError::File { path, cause })
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

/// Reads a file until it ends or `each` wants no more.
fn read(path: &Path, format: FileFormat, mut each: impl FnMut(Piece) -> bool) -> io::Result<()> {
    match format {
        FileFormat::Parquet => columns::read(path, |message| each(Piece::Message(message))).map_err(io::Error::other),
        FileFormat::Jsonl => {
            let mut reader = BufReader::new(File::open(path)?);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line)? > 0 {
                let (_, message) = from_json(&line).map_err(io::Error::other)?;
                line.clear();
                if !each(Piece::Message(message)) {
                    break;
                }
            }
            Ok(())
        }
        FileFormat::Raw => read_sets(&mut BufReader::with_capacity(1 << 20, File::open(path)?), each),
    }
}

/// Reads sets, message by message.
fn read_sets(reader: &mut impl BufRead, mut each: impl FnMut(Piece) -> bool) -> io::Result<()> {
    let mut set = Vec::new();
    while !reader.fill_buf()?.is_empty() {
        let from = set.len();
        set.resize(from + 4, 0);
        reader.read_exact(&mut set[from..])?;
        let length = u32::from_le_bytes(set[from..].try_into().expect("four bytes"));
        if !(4..=MESSAGE_BYTES_LIMIT).contains(&length) {
            return Err(io::Error::other(format!("a message cannot have {length} bytes")));
        }
        set.resize(from + length as usize, 0);
        reader.read_exact(&mut set[from + 4..])?;
        let message = Message::parse(&set[from..], MESSAGE_BYTES_LIMIT).map_err(io::Error::other)?;
        if message.is_last() && !each(Piece::Set(std::mem::take(&mut set))) {
            return Ok(());
        }
    }
    if set.is_empty() { Ok(()) } else { Err(io::Error::other("it ends in the middle of a set")) }
}
