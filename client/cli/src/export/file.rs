//! One exported file: how each format is written, and what it says about where the next one begins.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use corelane_client::ConsumedMessage;
use corelane_proto::message::Message;
use parquet::errors::ParquetError;

use super::args::FileFormat;
use super::columns::{self, ParquetWriter};
use super::names::First;
use super::reading::refuse_empty;
use super::record::from_json;
use super::same::LastMessage;
use crate::consume::{Format, Shown};

/// A file's bytes, as its format wants them.
pub(super) enum Writer {
    Parquet(Box<ParquetWriter>),
    Lines { file: BufWriter<File>, line: Vec<u8> },
    Raw(BufWriter<File>),
}

impl Writer {
    pub(super) fn new(format: FileFormat, file: BufWriter<File>, topic: &str, partition: u32) -> io::Result<Self> {
        Ok(match format {
            FileFormat::Parquet => {
                Self::Parquet(Box::new(ParquetWriter::new(file, topic, partition).map_err(in_words)?))
            }
            FileFormat::Jsonl => Self::Lines { file, line: Vec::new() },
            FileFormat::Raw => Self::Raw(file),
        })
    }

    pub(super) fn write(&mut self, message: &ConsumedMessage) -> io::Result<()> {
        match self {
            Self::Parquet(parquet) => parquet.write(message).map_err(in_words),
            Self::Lines { file, line } => {
                line.clear();
                Format::Json.write(&Shown::of(message), line);
                file.write_all(line)
            }
            Self::Raw(file) => file.write_all(message.frame()),
        }
    }

    /// Writes the rest; the next file begins at `next`.
    pub(super) fn finish(self, next: u64) -> io::Result<()> {
        match self {
            Self::Parquet(parquet) => parquet.finish(next).map_err(in_words),
            Self::Lines { mut file, .. } | Self::Raw(mut file) => file.flush(),
        }
    }
}

fn in_words(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(cause) => io::Error::other(cause),
        },
        error => io::Error::other(error),
    }
}

/// Where the file behind this one begins.
pub(super) fn next_position(path: &Path, first: First, format: FileFormat) -> io::Result<u64> {
    refuse_empty(path)?;
    match format {
        FileFormat::Parquet => columns::next_position(path).map_err(in_words),
        // A position behind the last message's own means the next message, wherever that lies.
        FileFormat::Jsonl => {
            let line = last_line(&mut File::open(path)?)?;
            from_json(&line).map(|(position, _)| position + 1).map_err(io::Error::other)
        }
        FileFormat::Raw => Ok(first.position + File::open(path)?.metadata()?.len()),
    }
}

/// The last message of a file, if that is known. Raw files say nothing but their bytes.
pub(super) fn last_message(path: &Path, format: FileFormat) -> io::Result<Option<LastMessage>> {
    match format {
        FileFormat::Parquet => columns::last_message(path).map_err(in_words),
        FileFormat::Jsonl => {
            let (position, message) = from_json(&last_line(&mut File::open(path)?)?).map_err(io::Error::other)?;
            Ok(Some(LastMessage { position, crc: message.crc() }))
        }
        FileFormat::Raw => Ok(None),
    }
}

/// The last line of a file, without its end.
fn last_line(file: &mut File) -> io::Result<Vec<u8>> {
    let bytes = file.metadata()?.len();
    let mut wanted = 64 << 10;
    loop {
        let from = bytes.saturating_sub(wanted);
        file.seek(SeekFrom::Start(from))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        if tail.last() == Some(&b'\n') {
            tail.pop();
        }
        match memchr::memrchr(b'\n', &tail) {
            Some(at) => return Ok(tail.split_off(at + 1)),
            None if from == 0 => return Ok(tail),
            None => wanted *= 4,
        }
    }
}

/// How many messages a message of a whole set stands for: a wrapper for those inside.
pub(super) fn messages_inside(message: &Message<'_>) -> u64 {
    message.wrapper_claims().map_or(1, |claims| u64::from(claims.messages))
}

/// Whether this message ends a set.
pub(super) fn ends_set(message: &ConsumedMessage) -> bool {
    Message::view(message.frame()).is_ok_and(|message| message.is_last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_found_however_long_the_lines_are() {
        let path = tempfile::NamedTempFile::new().unwrap();
        for (text, last) in [
            ("one\n".to_owned(), "one".to_owned()),
            ("one\ntwo\n".to_owned(), "two".to_owned()),
            (format!("one\n{}\n", "x".repeat(300_000)), "x".repeat(300_000)),
            (format!("{}\nlast\n", "x".repeat(300_000)), "last".to_owned()),
        ] {
            std::fs::write(path.path(), text).unwrap();
            assert!(last_line(&mut File::open(path.path()).unwrap()).unwrap() == last.as_bytes());
        }
    }
}
