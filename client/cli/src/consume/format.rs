//! How a consumed message looks: its value and a newline, a JSON object on a line, or a pattern of the user's.
//!
//! Keys, values and header values are written as they are, byte for byte; JSON alone encodes them. Nothing here
//! allocates per message, apart from the list of headers of a message that has some.

use std::io::Write;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use corelane_client::ConsumedMessage;

use crate::parse::escape::escape;

/// What is shown of one message.
pub(crate) struct Shown<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: u32,
    pub(crate) position: u64,
    pub(crate) timestamp_ms: i64,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) headers: Vec<(&'a str, Option<&'a [u8]>)>,
}

impl<'a> Shown<'a> {
    /// All of it that a format can show.
    pub(crate) fn of(message: &'a ConsumedMessage) -> Self {
        Self {
            topic: message.topic(),
            partition: message.partition(),
            position: message.position(),
            timestamp_ms: message.timestamp_ms(),
            key: message.key(),
            value: message.value(),
            headers: message.headers().collect(),
        }
    }
}

/// A format, compiled once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Format {
    Value,
    Json,
    Pattern(Vec<Part>),
}

/// A piece of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Text(Vec<u8>),
    Topic,
    Partition,
    Position,
    TimestampMs,
    Key,
    Value,
    Headers,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "value" => Ok(Format::Value),
            "json" => Ok(Format::Json),
            // A misspelt name would otherwise be printed once for each message.
            _ if !text.contains('%') => Err(format!(
                "`{text}` is neither value, nor json, nor a pattern; a pattern has at least one of {LETTERS}"
            )),
            _ => parse_pattern(text).map(Format::Pattern),
        }
    }
}

const LETTERS: &str = "%k (key) %v (value) %t (topic) %p (partition) %i (position) %d (time) %h (headers)";

fn parse_pattern(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut literal = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'\\' => {
                let (escaped, after) = escape(tail)?;
                literal.push(escaped);
                rest = after;
            }
            b'%' => {
                let Some((&letter, after)) = tail.split_first() else {
                    return Err(format!("the pattern ends with a lone %; write %% for a percent sign, or {LETTERS}"));
                };
                rest = after;
                if letter == b'%' {
                    literal.push(b'%');
                    continue;
                }
                let part = part_of(letter).ok_or_else(|| {
                    format!("%{} is unknown; write %% for a percent sign, or {LETTERS}", letter.escape_ascii())
                })?;
                if !literal.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut literal)));
                }
                parts.push(part);
            }
            _ => literal.push(byte),
        }
    }
    if !literal.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

fn part_of(letter: u8) -> Option<Part> {
    Some(match letter {
        b'k' => Part::Key,
        b'v' => Part::Value,
        b't' => Part::Topic,
        b'p' => Part::Partition,
        b'i' => Part::Position,
        b'd' => Part::TimestampMs,
        b'h' => Part::Headers,
        _ => return None,
    })
}

impl Format {
    /// Appends `message` to `out` in this format.
    pub(crate) fn write(&self, message: &Shown<'_>, out: &mut Vec<u8>) {
        match self {
            Format::Value => {
                out.extend_from_slice(message.value.unwrap_or_default());
                out.push(b'\n');
            }
            Format::Json => write_json(message, out),
            Format::Pattern(parts) => parts.iter().for_each(|part| part.write(message, out)),
        }
    }
}

impl Part {
    fn write(&self, message: &Shown<'_>, out: &mut Vec<u8>) {
        match self {
            Part::Text(text) => out.extend_from_slice(text),
            Part::Topic => out.extend_from_slice(message.topic.as_bytes()),
            Part::Partition => write_number(out, message.partition),
            Part::Position => write_number(out, message.position),
            Part::TimestampMs => write_number(out, message.timestamp_ms),
            Part::Key => out.extend_from_slice(message.key.unwrap_or_default()),
            Part::Value => out.extend_from_slice(message.value.unwrap_or_default()),
            Part::Headers => write_headers(&message.headers, out),
        }
    }
}

/// `name=value` pairs with commas between, as kcat prints them; a header without a value is its name alone.
fn write_headers(headers: &[(&str, Option<&[u8]>)], out: &mut Vec<u8>) {
    for (index, (name, value)) in headers.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(name.as_bytes());
        if let Some(value) = value {
            out.push(b'=');
            out.extend_from_slice(value);
        }
    }
}

fn write_number(out: &mut Vec<u8>, number: impl std::fmt::Display) {
    write!(out, "{number}").expect("a Vec takes every write");
}

/// One object on one line. Field names: `topic`, `partition`, `position`, `timestamp_ms`, `key`, `value`, `headers`;
/// `key_base64` or `value_base64` instead where the bytes are not UTF-8; null for no key and for a tombstone's value.
fn write_json(message: &Shown<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"topic\":");
    write_json_text(message.topic, out);
    out.extend_from_slice(b",\"partition\":");
    write_number(out, message.partition);
    out.extend_from_slice(b",\"position\":");
    write_number(out, message.position);
    out.extend_from_slice(b",\"timestamp_ms\":");
    write_number(out, message.timestamp_ms);
    out.push(b',');
    write_json_bytes("key", message.key, out);
    out.push(b',');
    write_json_bytes("value", message.value, out);
    out.extend_from_slice(b",\"headers\":[");
    for (index, (name, value)) in message.headers.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"{\"name\":" } else { b",{\"name\":" });
        write_json_text(name, out);
        out.push(b',');
        write_json_bytes("value", *value, out);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}\n");
}

fn write_json_text(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a Vec takes every write");
}

fn write_json_bytes(name: &str, bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => out.extend_from_slice(b"\":null"),
        Some((_, Ok(text))) => {
            out.extend_from_slice(b"\":");
            write_json_text(text, out);
        }
        Some((bytes, Err(_))) => {
            out.extend_from_slice(b"_base64\":\"");
            write_base64(bytes, out);
            out.push(b'"');
        }
    }
}

fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    let at = out.len();
    out.resize(at + bytes.len().div_ceil(3) * 4, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[at..]).expect("four characters for three bytes");
    out.truncate(at + written);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Shown<'static> {
        Shown {
            topic: "orders",
            partition: 3,
            position: 4096,
            timestamp_ms: 1_782_907_200_123,
            key: Some(b"k\"1"),
            value: Some(b"a\r\xff"),
            headers: vec![("trace", Some(b"7")), ("empty", None)],
        }
    }

    fn written(format: &str, message: &Shown<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        format.parse::<Format>().unwrap().write(message, &mut out);
        out
    }

    #[test]
    fn a_value_is_written_as_it_is_and_ended_by_a_newline() {
        assert_eq!(written("value", &sample()), b"a\r\xff\n");
        assert_eq!(written("value", &Shown { value: None, ..sample() }), b"\n");
    }

    #[test]
    fn a_pattern_writes_each_part_and_nothing_more() {
        let pattern = r"%t/%p@%i %d %k=%v %h%%\t\x41\n";
        let expected = b"orders/3@4096 1782907200123 k\"1=a\r\xff trace=7,empty%\tA\n";
        assert_eq!(written(pattern, &sample()), expected);
        assert_eq!(written("%k|%h", &Shown { key: None, headers: vec![], ..sample() }), b"|");
    }

    #[test]
    fn json_has_base64_where_bytes_are_not_utf8() {
        let line = written("json", &sample());
        assert_eq!(line.last(), Some(&b'\n'));
        let object: serde_json::Value = serde_json::from_slice(&line).unwrap();
        let expected = serde_json::json!({
            "topic": "orders", "partition": 3, "position": 4096, "timestamp_ms": 1_782_907_200_123_i64,
            "key": "k\"1", "value_base64": "YQ3/",
            "headers": [{"name": "trace", "value": "7"}, {"name": "empty", "value": null}],
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn json_tells_nothing_from_empty() {
        let message = Shown { key: Some(b""), value: None, headers: vec![], ..sample() };
        let object: serde_json::Value = serde_json::from_slice(&written("json", &message)).unwrap();
        assert_eq!((&object["key"], &object["value"]), (&serde_json::json!(""), &serde_json::Value::Null));
    }

    #[test]
    fn what_is_no_format_is_refused_with_the_letters() {
        for text in ["vlaue", "", "%q", "100%", r"%v\q"] {
            assert!(text.parse::<Format>().is_err(), "{text}");
        }
        assert!("%o".parse::<Format>().unwrap_err().contains("%i (position)"));
    }
}
