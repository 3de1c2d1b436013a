//! The messages of an exported file, one after the other. Each error names the place in the file.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use corelane_proto::message::{MESSAGE_BYTES_LIMIT, Message};

use super::args::FileFormat;
use super::columns;
use super::file::messages_inside;
use super::record::{Loaded, from_json};

/// No log has larger sets.
const SET_BYTES_LIMIT: usize = 8 << 20;

/// What a file gives.
#[derive(Debug)]
pub(super) enum Piece {
    Message(Loaded),
    /// A set as it is, and how many messages it holds.
    Set(Vec<u8>, u64),
}

impl Piece {
    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Piece::Message(message) => message.bytes(),
            Piece::Set(bytes, _) => bytes.len(),
        }
    }
}

/// Reads a file until it ends or `each` wants no more.
pub(super) fn read(path: &Path, format: FileFormat, each: impl FnMut(Piece) -> bool) -> io::Result<()> {
    refuse_empty(path)?;
    match format {
        FileFormat::Parquet => columns::read(path, each),
        FileFormat::Jsonl => read_lines(&mut BufReader::new(File::open(path)?), each),
        FileFormat::Raw => read_sets(&mut BufReader::with_capacity(1 << 20, File::open(path)?), each),
    }
}

/// No file is written for no message.
pub(super) fn refuse_empty(path: &Path) -> io::Result<()> {
    let is_empty = std::fs::metadata(path)?.len() == 0;
    if is_empty { Err(io::Error::other("it is empty, which no exported file is: it was cut short")) } else { Ok(()) }
}

fn read_lines(reader: &mut impl BufRead, mut each: impl FnMut(Piece) -> bool) -> io::Result<()> {
    let (mut line, mut number) = (Vec::new(), 0_u64);
    while reader.read_until(b'\n', &mut line)? > 0 {
        number += 1;
        let message = from_json(&line).map_err(|error| io::Error::other(format!("line {number}: {error}")))?.1;
        line.clear();
        if !each(Piece::Message(message)) {
            break;
        }
    }
    Ok(())
}

/// Reads sets, message by message.
fn read_sets(reader: &mut impl BufRead, mut each: impl FnMut(Piece) -> bool) -> io::Result<()> {
    // The set that is being gathered, where it begins, and what it holds.
    let (mut set, mut begin, mut messages) = (Vec::new(), 0, 0);
    while !reader.fill_buf()?.is_empty() {
        let from = set.len();
        let failed = |reason: &str| io::Error::other(format!("byte {}: {reason}", begin + from as u64));
        let ends = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => failed("it ends in the middle of a message"),
            _ => error,
        };
        set.resize(from + 4, 0);
        reader.read_exact(&mut set[from..]).map_err(ends)?;
        let length = u32::from_le_bytes(set[from..].try_into().expect("four bytes"));
        if !(4..=MESSAGE_BYTES_LIMIT).contains(&length) {
            return Err(failed(&format!("a message cannot have {length} bytes")));
        }
        if from + length as usize > SET_BYTES_LIMIT {
            return Err(failed(&format!("the set that begins at {begin} is larger than {SET_BYTES_LIMIT} bytes")));
        }
        set.resize(from + length as usize, 0);
        reader.read_exact(&mut set[from + 4..]).map_err(ends)?;
        let message = Message::parse(&set[from..], MESSAGE_BYTES_LIMIT).map_err(|error| failed(&error.to_string()))?;
        messages += messages_inside(&message);
        if message.is_last() {
            begin += set.len() as u64;
            if !each(Piece::Set(std::mem::take(&mut set), std::mem::take(&mut messages))) {
                return Ok(());
            }
        }
    }
    if set.is_empty() { Ok(()) } else { Err(io::Error::other(format!("byte {begin}: it ends in the middle of a set"))) }
}

#[cfg(test)]
mod tests {
    use corelane_proto::set::SetBuilder;

    use super::*;

    fn pieces(bytes: &[u8]) -> (usize, Option<String>) {
        let mut pieces = 0;
        let mut count = |_| {
            pieces += 1;
            true
        };
        let result = match bytes.first() {
            Some(b'{') => read_lines(&mut &*bytes, &mut count),
            _ => read_sets(&mut &*bytes, &mut count),
        };
        (pieces, result.err().map(|error| error.to_string()))
    }

    #[test]
    fn an_error_in_json_lines_names_its_line() {
        let line = "{\"position\":0,\"timestamp_ms\":1,\"key\":null,\"value\":\"v\"}\n";
        assert_eq!(pieces(line.repeat(3).as_bytes()), (3, None));
        let broken = format!("{}{{\"position\":x}}\n{line}", line.repeat(3));
        assert_eq!(pieces(broken.as_bytes()), (3, Some("line 4: expected value, column 13".to_owned())));
        let short = format!("{line}{{\"position\":1");
        let (read, error) = pieces(short.as_bytes());
        assert!(read == 1 && error.unwrap().starts_with("line 2: EOF"));
    }

    #[test]
    fn an_error_in_sets_names_its_byte() {
        let mut builder = SetBuilder::new();
        for value in [&b"one"[..], b"two"] {
            builder.push(&corelane_proto::message::MessageParts { value: Some(value), ..Default::default() }).unwrap();
        }
        let set = builder.finish();
        let bytes = set.len();
        assert_eq!(pieces(&set.repeat(2)), (2, None));
        let first = bytes / 2;
        for (file, position, reason) in [
            ([&set[..], &set[..first]].concat(), bytes, "it ends in the middle of a set"),
            ([&set[..], &set[..bytes - 1]].concat(), bytes + first, "it ends in the middle of a message"),
            ([&set[..], &[0xff; 40]].concat(), bytes, "a message cannot have 4294967295 bytes"),
        ] {
            assert_eq!(pieces(&file), (1, Some(format!("byte {position}: {reason}"))));
        }
        // However long it goes on without an end.
        let endless = set[..first].repeat(SET_BYTES_LIMIT / first + 1);
        assert!(pieces(&endless).1.unwrap().contains("is larger than"));
    }
}
