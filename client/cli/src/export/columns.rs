//! Messages as Parquet: columns that every reader takes as they are, written a row group at a time by the low-level writers
//! (no Arrow). The file's own metadata says where the next file begins, what its last message is, and the checksum of the
//! rows' bytes: pages have none of their own.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;

use corelane_client::ConsumedMessage;
use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::{Field, Row};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::reading::Piece;
use super::record::Loaded;
use super::same::LastMessage;

/// What one row looks like. Signed numbers, since not every reader has others.
const SCHEMA: &str = "
message corelane {
  REQUIRED BYTE_ARRAY topic (STRING);
  REQUIRED INT32 partition;
  REQUIRED INT64 position;
  REQUIRED INT64 timestamp (TIMESTAMP(MILLIS,true));
  OPTIONAL BYTE_ARRAY key;
  REQUIRED GROUP headers (LIST) {
    REPEATED GROUP list {
      REQUIRED GROUP element {
        REQUIRED BYTE_ARRAY name (STRING);
        OPTIONAL BYTE_ARRAY value;
      }
    }
  }
  OPTIONAL BYTE_ARRAY value;
}";
/// The metadata that says where the next file begins.
const NEXT: &str = "corelane.next_position";
/// The metadata with the last message's position and checksum.
const LAST: &str = "corelane.last_message";
/// The metadata with how many bytes of the file lie before all metadata, and their CRC-32.
const CHECKSUM: &str = "corelane.checksum";
/// Bytes that are read at once for a checksum.
const CHECKED_BYTES: usize = 1 << 20;
/// A row group is written when it has so many bytes of messages, or so many messages.
const GROUP_BYTES: usize = 32 << 20;
const GROUP_MESSAGES: usize = 200_000;

/// A column whose values may be missing: those that are there, and for each row whether one is.
#[derive(Default)]
struct Optional {
    values: Vec<ByteArray>,
    levels: Vec<i16>,
}

impl Optional {
    fn push(&mut self, value: Option<ByteArray>, levels: (i16, i16)) {
        self.levels.push(if value.is_some() { levels.1 } else { levels.0 });
        self.values.extend(value);
    }
}

/// A row group that is being gathered.
#[derive(Default)]
struct Gathered {
    positions: Vec<i64>,
    timestamps: Vec<i64>,
    keys: Optional,
    /// By header: its name, whether it begins a row's list.
    names: Optional,
    header_values: Optional,
    begins: Vec<i16>,
    values: Optional,
    bytes: usize,
}

/// Keeps the checksum of what passes through.
struct Summed {
    file: BufWriter<File>,
    sum: crc32fast::Hasher,
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// See the head of this file.
pub(super) struct ParquetWriter {
    file: SerializedFileWriter<Summed>,
    topic: ByteArray,
    partition: i32,
    gathered: Gathered,
    last: Option<ConsumedMessage>,
}

impl ParquetWriter {
    pub(super) fn new(file: BufWriter<File>, topic: &str, partition: u32) -> Result<Self, ParquetError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("corelane ", env!("CARGO_PKG_VERSION")).to_owned())
            // A dictionary of what differs in each row is work for nothing.
            .set_column_dictionary_enabled(ColumnPath::from("position"), false)
            .set_column_dictionary_enabled(ColumnPath::from("value"), false)
            .build();
        let file = Summed { file, sum: crc32fast::Hasher::new() };
        let file = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        let partition = i32::try_from(partition).unwrap_or(i32::MAX);
        Ok(Self { file, topic: topic.as_bytes().to_vec().into(), partition, gathered: Gathered::default(), last: None })
    }

    pub(super) fn write(&mut self, message: &ConsumedMessage) -> Result<(), ParquetError> {
        let gathered = &mut self.gathered;
        gathered.positions.push(i64::try_from(message.position()).unwrap_or(i64::MAX));
        gathered.timestamps.push(message.timestamp_ms());
        gathered.keys.push(message.key_bytes().map(ByteArray::from), (0, 1));
        gathered.values.push(message.value_bytes().map(ByteArray::from), (0, 1));
        let mut is_empty = true;
        for (name, value) in message.headers() {
            gathered.begins.push(i16::from(!is_empty));
            is_empty = false;
            gathered.names.push(Some(name.as_bytes().to_vec().into()), (0, 1));
            gathered.header_values.push(value.map(|value| value.to_vec().into()), (1, 2));
        }
        if is_empty {
            gathered.begins.push(0);
            gathered.names.push(None, (0, 1));
            gathered.header_values.push(None, (0, 2));
        }
        gathered.bytes += message.frame().len();
        self.last = Some(message.clone());
        if gathered.bytes >= GROUP_BYTES || gathered.positions.len() >= GROUP_MESSAGES {
            self.write_group()?;
        }
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let gathered = std::mem::take(&mut self.gathered);
        let rows = gathered.positions.len();
        if rows == 0 {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        let mut index = 0;
        while let Some(mut column) = group.next_column()? {
            match (index, column.untyped()) {
                (0, ColumnWriter::ByteArrayColumnWriter(to)) => {
                    to.write_batch(&vec![self.topic.clone(); rows], None, None)?
                }
                (1, ColumnWriter::Int32ColumnWriter(to)) => to.write_batch(&vec![self.partition; rows], None, None)?,
                (2, ColumnWriter::Int64ColumnWriter(to)) => to.write_batch(&gathered.positions, None, None)?,
                (3, ColumnWriter::Int64ColumnWriter(to)) => to.write_batch(&gathered.timestamps, None, None)?,
                (4, ColumnWriter::ByteArrayColumnWriter(to)) => {
                    to.write_batch(&gathered.keys.values, Some(&gathered.keys.levels), None)?
                }
                (5, ColumnWriter::ByteArrayColumnWriter(to)) => {
                    to.write_batch(&gathered.names.values, Some(&gathered.names.levels), Some(&gathered.begins))?
                }
                (6, ColumnWriter::ByteArrayColumnWriter(to)) => {
                    let levels = &gathered.header_values.levels;
                    to.write_batch(&gathered.header_values.values, Some(levels), Some(&gathered.begins))?
                }
                (7, ColumnWriter::ByteArrayColumnWriter(to)) => {
                    to.write_batch(&gathered.values.values, Some(&gathered.values.levels), None)?
                }
                _ => unreachable!("the schema has eight columns of these kinds"),
            };
            column.close()?;
            index += 1;
        }
        group.close()?;
        Ok(())
    }

    /// Writes the rest; the next file begins at `next`.
    pub(super) fn finish(mut self, next: u64) -> Result<(), ParquetError> {
        self.write_group()?;
        self.file.flush()?;
        let (bytes, sum) = (self.file.bytes_written(), self.file.inner().sum.clone().finalize());
        let mut entries = vec![(NEXT, next.to_string()), (CHECKSUM, format!("{bytes} {sum:08x}"))];
        if let Some(last) = &self.last {
            entries.push((LAST, format!("{} {:08x}", last.position(), Loaded::of(last).crc())));
        }
        for (key, value) in entries {
            self.file.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
        }
        self.file.into_inner()?.flush()?;
        Ok(())
    }
}

fn open(path: &Path) -> Result<SerializedFileReader<File>, ParquetError> {
    SerializedFileReader::new(File::open(path)?)
}

/// Where the file behind this one begins.
pub(super) fn next_position(path: &Path) -> Result<u64, ParquetError> {
    let next = entry(&open(path)?, NEXT).and_then(|next| next.parse().ok());
    next.ok_or_else(|| ParquetError::General("it does not say where the next file begins".to_owned()))
}

/// The last message of a file, if it was written by a version that says so.
pub(super) fn last_message(path: &Path) -> Result<Option<LastMessage>, ParquetError> {
    let last = entry(&open(path)?, LAST).and_then(number_and_sum);
    Ok(last.map(|(position, crc)| LastMessage { position, crc }))
}

/// One of the file's own metadata.
fn entry<'r>(reader: &'r SerializedFileReader<File>, key: &str) -> Option<&'r str> {
    let entries = reader.metadata().file_metadata().key_value_metadata();
    entries.into_iter().flatten().find(|entry| entry.key == key).and_then(|entry| entry.value.as_deref())
}

fn number_and_sum(text: &str) -> Option<(u64, u32)> {
    let (number, sum) = text.split_once(' ')?;
    Some((number.parse().ok()?, u32::from_str_radix(sum, 16).ok()?))
}

/// Refuses a file whose rows are not as they were written; one without a checksum is another program's.
fn check_sum(path: &Path, reader: &SerializedFileReader<File>) -> io::Result<()> {
    let Some((bytes, expected)) = entry(reader, CHECKSUM).and_then(number_and_sum) else { return Ok(()) };
    let (mut file, mut sum) = (File::open(path)?.take(bytes), crc32fast::Hasher::new());
    let mut buffer = vec![0; CHECKED_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 if sum.clone().finalize() == expected => return Ok(()),
            0 => return Err(io::Error::other("it is damaged: its checksum is not that of its rows")),
            read => sum.update(&buffer[..read]),
        }
    }
}

/// Refuses a file that lacks what no message is without: it would become tombstones of 1970.
fn check_columns(reader: &SerializedFileReader<File>) -> io::Result<()> {
    let fields = reader.metadata().file_metadata().schema().get_fields();
    for (column, what) in [("value", "binary, null for a tombstone"), ("timestamp", "timestamp in milliseconds")] {
        if !fields.iter().any(|field| field.name() == column) {
            return Err(io::Error::other(format!("it has no column {column} ({what})")));
        }
    }
    Ok(())
}

/// Reads the messages of a file, one after the other.
pub(super) fn read(path: &Path, mut each: impl FnMut(Piece) -> bool) -> io::Result<()> {
    let reader = open(path).map_err(io::Error::other)?;
    check_columns(&reader)?;
    check_sum(path, &reader)?;
    for (number, row) in (1_u64..).zip(reader.get_row_iter(None).map_err(io::Error::other)?) {
        let row = row.map_err(|error| io::Error::other(format!("row {number}: {error}")))?;
        let foreign = |Foreign| io::Error::other(format!("row {number}: this is no exported message: {row}"));
        if !each(Piece::Message(loaded(&row).map_err(foreign)?)) {
            break;
        }
    }
    Ok(())
}

/// The columns are not those of an exported message.
struct Foreign;

fn loaded(row: &Row) -> Result<Loaded, Foreign> {
    let mut message = Loaded::default();
    for (name, field) in row.get_column_iter() {
        match (name.as_str(), field) {
            ("timestamp", Field::TimestampMillis(ms)) => message.timestamp_ms = *ms,
            ("key", field) => message.key = bytes(field)?,
            ("value", field) => message.value = bytes(field)?,
            ("headers", Field::ListInternal(list)) => {
                for element in list.elements() {
                    let Field::Group(header) = element else { return Err(Foreign) };
                    let mut fields = header.get_column_iter();
                    let (Some((_, Field::Str(name))), Some((_, value))) = (fields.next(), fields.next()) else {
                        return Err(Foreign);
                    };
                    message.headers.push((name.clone(), bytes(value)?));
                }
            }
            ("topic" | "partition" | "position", _) => {}
            _ => return Err(Foreign),
        }
    }
    Ok(message)
}

fn bytes(field: &Field) -> Result<Option<Vec<u8>>, Foreign> {
    match field {
        Field::Null => Ok(None),
        Field::Bytes(bytes) => Ok(Some(bytes.data().to_vec())),
        _ => Err(Foreign),
    }
}
