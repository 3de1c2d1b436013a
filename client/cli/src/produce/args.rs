//! The arguments of `produce`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use corelane_client::{Acks, Compression, Record};

use crate::parse::duration::parse_timeout;
use crate::parse::escape::unescape;

#[derive(Debug, Args)]
#[command(after_help = "\
A line ends at a newline alone: a carriage return belongs to the message, an empty line is an empty message, and a last \
line without a newline is a message too. The summary goes to standard error (with --json: to standard output). Ctrl-C \
stops the reading, publishes what was read and reports; a second Ctrl-C gives up at once.

Examples:
  corelane produce access-log --file access.log --compression zstd
  tail -F access.log | corelane produce access-log --header host=web-1
  printf 'user-7\\tlogin\\n' | corelane produce events --key-separator '\\t'
  printf 'user-7\\t\\n' | corelane produce events --key-separator '\\t' --tombstone")]
pub(crate) struct ProduceArgs {
    /// The topic; it must exist
    pub(crate) topic: String,

    /// Read this file instead of standard input (`-`)
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Give every message this key
    #[arg(long, value_name = "KEY", group = "keyed")]
    pub(crate) key: Option<String>,

    /// Split each line at its first SEPARATOR into key and value; a line without it has no key (\t, \x1f... are understood)
    #[arg(long, value_name = "SEPARATOR", value_parser = Separator::from_str, group = "keyed")]
    pub(crate) key_separator: Option<Separator>,

    /// Give every message a header; may be repeated. NAME alone is a header without a value
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) header: Vec<Header>,

    /// Publish an empty value as a tombstone: no value at all, "this key is gone". A line without a key stays an empty
    /// message
    #[arg(long, requires = "keyed")]
    pub(crate) tombstone: bool,

    /// How message sets are compressed
    #[arg(long, value_enum, value_name = "CODEC", default_value_t = CompressionArg::None)]
    pub(crate) compression: CompressionArg,

    /// When the broker acknowledges
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = AcksArg::Durable)]
    pub(crate) acks: AcksArg,

    /// Publish to this partition instead of by key, or in turn
    #[arg(long, value_name = "P")]
    pub(crate) partition: Option<u32>,

    /// How long to go on trying to deliver a message, and to find a broker at the start
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_timeout)]
    pub(crate) delivery_timeout: Duration,
}

/// What stands between key and value: at least one byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Separator(Vec<u8>);

impl FromStr for Separator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match unescape(text)? {
            bytes if bytes.is_empty() => Err("the separator is empty; write for example : or \\t".to_owned()),
            bytes => Ok(Self(bytes)),
        }
    }
}

impl std::ops::Deref for Separator {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// A header: its name and, after the first `=`, its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    name: String,
    value: Option<String>,
}

impl Header {
    /// Adds this header to a message.
    pub(crate) fn add_to<'a>(&'a self, record: Record<'a>) -> Record<'a> {
        record.header(&self.name, self.value.as_deref().map(str::as_bytes))
    }
}

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        if name.is_empty() {
            return Err(format!("`{text}` has no name; write NAME=VALUE"));
        }
        Ok(Self { name: name.to_owned(), value })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum CompressionArg {
    #[default]
    None,
    Lz4,
    Zstd,
    Snappy,
    Gzip,
}

impl From<CompressionArg> for Compression {
    fn from(arg: CompressionArg) -> Self {
        match arg {
            CompressionArg::None => Compression::None,
            CompressionArg::Lz4 => Compression::Lz4,
            CompressionArg::Zstd => Compression::Zstd,
            CompressionArg::Snappy => Compression::Snappy,
            CompressionArg::Gzip => Compression::Gzip,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AcksArg {
    /// Never
    None,
    /// When the broker has the message in memory
    Received,
    /// When the message is on stable storage
    Durable,
}

impl From<AcksArg> for Acks {
    fn from(arg: AcksArg) -> Self {
        match arg {
            AcksArg::None => Acks::None,
            AcksArg::Received => Acks::Received,
            AcksArg::Durable => Acks::Durable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_split_at_its_first_equals_sign() {
        let header =
            |name: &str, value: Option<&str>| Header { name: name.to_owned(), value: value.map(str::to_owned) };
        for (text, expected) in [
            ("a=b", header("a", Some("b"))),
            ("a=b=c", header("a", Some("b=c"))),
            ("a=", header("a", Some(""))),
            ("a", header("a", None)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert!("=b".parse::<Header>().is_err());
    }

    #[test]
    fn a_separator_has_escapes_and_is_not_empty() {
        assert_eq!(*r"\t".parse::<Separator>().unwrap(), *b"\t");
        assert_eq!(*"::".parse::<Separator>().unwrap(), *b"::");
        assert!("".parse::<Separator>().is_err());
    }
}
