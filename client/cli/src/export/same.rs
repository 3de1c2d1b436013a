//! Whether a log is still the one that its newest file came from. A log that was restored from an older copy gives its
//! positions out again, so that what lies behind the file's end would be taken for what follows it. So the last message of
//! the file is compared with what lies there now, before anything is written behind it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use corelane_client::{ConsumeError, ConsumedMessage, Consumer, ConsumerBuilder, OutOfRange, Start};

use super::args::FileFormat;
use super::begin::damaged;
use super::file;
use super::load::Load;
use super::record::Loaded;
use crate::error::CliError;

/// How far before its end a raw file is looked at first, and then further by this factor: no message is longer than the last.
const TAIL_BYTES: u64 = 64 << 10;
const TAIL_FACTOR: u64 = 16;
const TAIL_BYTES_MAX: u64 = 16 << 20;

/// What is known of the last message of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastMessage {
    pub(super) position: u64,
    /// Of its content, as `Loaded::crc` computes it.
    pub(super) crc: u32,
}

/// What a comparison has found.
enum Same {
    Yes,
    /// From here on it is another log.
    No(u64),
    /// Retention has taken the message, it is damaged, or the file does not tell.
    Unknown,
}

impl Load<'_> {
    /// Refuses a log whose messages are not those before `next`, where the newest file ends, as far as it still has them.
    pub(super) async fn check_same(&self, path: &Path, next: u64, log_start: u64) -> Result<(), CliError> {
        let failed = |cause| damaged(path, &cause);
        let same = match self.args.format {
            FileFormat::Raw => self.compare_tail(path, next).await?,
            format => match file::last_message(path, format).map_err(failed)? {
                Some(last) if last.position >= log_start => self.compare_message(last).await?,
                _ => Same::Unknown,
            },
        };
        match same {
            Same::Yes | Same::Unknown => Ok(()),
            Same::No(position) => Err(self.another_log(&format!(
                "what lies at {position} of {}/{} is not what is in {}",
                self.args.topic,
                self.partition,
                path.display()
            ))),
        }
    }

    /// The refusal of a log that is not the one that was exported before.
    pub(super) fn another_log(&self, reason: &str) -> CliError {
        let group = if self.group.is_some() { " and with another --group" } else { "" };
        CliError::Argument(format!(
            "{reason}: the log was restored from an older copy, or it is another topic's; export it to another \
             directory{group}. Where it was the file that changed, put it back from a copy"
        ))
    }

    async fn compare_message(&self, last: LastMessage) -> Result<Same, CliError> {
        let mut consumer = self.reader(last.position).build().await?;
        match next(&mut consumer).await? {
            Some(message) if message.position() == last.position => {
                let is_same = Loaded::of(&message).crc() == last.crc;
                Ok(if is_same { Same::Yes } else { Same::No(last.position) })
            }
            Some(_) if consumer.stats().bad_messages == 0 => Ok(Same::No(last.position)),
            _ => Ok(Same::Unknown),
        }
    }

    /// Compares the end of a raw file with the message of the log that ends there.
    async fn compare_tail(&self, path: &Path, end: u64) -> Result<Same, CliError> {
        let mut bytes = TAIL_BYTES;
        loop {
            let mut consumer = self.reader(end.saturating_sub(bytes)).whole_sets().build().await?;
            let mut last: Option<ConsumedMessage> = None;
            while let Some(message) = next(&mut consumer).await?.filter(|message| message.position() < end) {
                last = Some(message);
            }
            match last {
                _ if consumer.stats().bad_messages > 0 => return Ok(Same::Unknown),
                Some(message) if message.next_position() == end => {
                    let frame = message.frame();
                    let failed = |cause| CliError::File { path: path.to_owned(), cause };
                    let is_same = tail(path, frame.len()).map_err(failed)? == **frame;
                    return Ok(if is_same { Same::Yes } else { Same::No(message.position()) });
                }
                Some(message) => return Ok(Same::No(message.position())),
                None if bytes >= TAIL_BYTES_MAX.min(end) => return Ok(Same::Unknown),
                None => bytes *= TAIL_FACTOR,
            }
        }
    }

    /// Reads a few messages from this position on.
    fn reader(&self, from: u64) -> ConsumerBuilder {
        let consumer = self.client.consumer();
        let consumer = consumer.partition_from(&self.args.topic, self.partition, Start::Position(from));
        let consumer = consumer.fetch_bytes(TAIL_BYTES as u32).prefetch_bytes(TAIL_BYTES as usize);
        consumer.out_of_range(OutOfRange::Earliest).until_end(true)
    }
}

/// The last bytes of a file; fewer if it is shorter.
fn tail(path: &Path, bytes: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes as u64)))?;
    let mut tail = Vec::with_capacity(bytes);
    file.read_to_end(&mut tail)?;
    Ok(tail)
}

/// The next message, if there is one that can be read.
async fn next(consumer: &mut Consumer) -> Result<Option<ConsumedMessage>, CliError> {
    match consumer.next().await.transpose() {
        Ok(message) => Ok(message),
        Err(ConsumeError::Undecodable { .. }) => Ok(None),
        Err(ConsumeError::Unavailable { cause, .. }) => Err(cause.into()),
        Err(error) => Err(CliError::Consume(error.to_string())),
    }
}
