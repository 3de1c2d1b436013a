//! A message as it comes back from a file, whatever the format; and JSON lines, which are read here.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use corelane_client::ConsumedMessage;
use crc32fast::Hasher;
use serde_json::Value;

/// Names and values, in their order.
type Headers = Vec<(String, Option<Vec<u8>>)>;

/// See the head of this file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Loaded {
    pub(super) timestamp_ms: i64,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Headers,
}

impl Loaded {
    /// What a message holds.
    pub(super) fn of(message: &ConsumedMessage) -> Self {
        let headers = message.headers();
        Self {
            timestamp_ms: message.timestamp_ms(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.value().map(<[u8]>::to_vec),
            headers: headers.map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec))).collect(),
        }
    }

    /// A checksum of all of it, the same whatever format it went through.
    pub(super) fn crc(&self) -> u32 {
        fn add(hasher: &mut Hasher, bytes: Option<&[u8]>) {
            // None is not empty, and where one ends and the next begins counts.
            hasher.update(&bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
            hasher.update(bytes.unwrap_or_default());
        }
        let mut hasher = Hasher::new();
        hasher.update(&self.timestamp_ms.to_le_bytes());
        add(&mut hasher, self.key.as_deref());
        add(&mut hasher, self.value.as_deref());
        for (name, value) in &self.headers {
            add(&mut hasher, Some(name.as_bytes()));
            add(&mut hasher, value.as_deref());
        }
        hasher.finalize()
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let of = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers: usize = self.headers.iter().map(|(name, value)| size_of_val(name) + name.len() + of(value)).sum();
        size_of_val(self) + of(&self.key) + of(&self.value) + headers
    }
}

/// Reads a line of a JSON file: position and message. An error is a sentence.
pub(super) fn from_json(line: &[u8]) -> Result<(u64, Loaded), String> {
    let object: Value = serde_json::from_slice(line).map_err(|error| {
        // It takes the line for a whole text, whose first line it is.
        let (text, place) = (error.to_string(), format!(" at line {} column {}", error.line(), error.column()));
        format!("{}, column {}", text.strip_suffix(&place).unwrap_or(&text), error.column())
    })?;
    let position = object["position"].as_u64().ok_or("it has no position")?;
    let timestamp_ms = object["timestamp_ms"].as_i64().ok_or("it has no timestamp_ms")?;
    let headers = headers(&object["headers"])?;
    let has_value = ["value", "value_base64"].iter().any(|name| object.get(name).is_some());
    if !has_value {
        return Err("it has neither value nor value_base64; of a tombstone value is null".to_owned());
    }
    let (key, value) = (bytes(&object, "key", "key_base64")?, bytes(&object, "value", "value_base64")?);
    Ok((position, Loaded { timestamp_ms, key, value, headers }))
}

/// A list of objects with name and value; none at all: no headers.
fn headers(headers: &Value) -> Result<Headers, String> {
    let list = match headers {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        _ => return Err("headers is no list of objects with name and value".to_owned()),
    };
    let header = |header: &Value| {
        let name = header["name"].as_str().ok_or("a header has no name")?;
        Ok((name.to_owned(), bytes(header, "value", "value_base64")?))
    };
    list.iter().map(header).collect()
}

fn bytes(object: &Value, text: &str, base64: &str) -> Result<Option<Vec<u8>>, String> {
    match (&object[text], &object[base64]) {
        (Value::String(text), Value::Null) => Ok(Some(text.clone().into_bytes())),
        (Value::Null, Value::String(encoded)) => {
            STANDARD.decode(encoded).map(Some).map_err(|error| format!("{base64}: {error}"))
        }
        (Value::Null, Value::Null) => Ok(None),
        _ => Err(format!("{text} is neither text nor null")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_its_bytes() {
        let line = br#"{"topic":"t","partition":1,"position":7,"timestamp_ms":5,"key_base64":"AP8=","value":"v","headers":[{"name":"a","value":null}]}"#;
        let expected = Loaded {
            timestamp_ms: 5,
            key: Some(vec![0, 0xff]),
            value: Some(b"v".to_vec()),
            headers: vec![("a".to_owned(), None)],
        };
        assert_eq!(from_json(line), Ok((7, expected)));
        for other in ["", "{}", r#"{"position":1}"#, r#"{"position":1,"timestamp_ms":2,"key":3}"#] {
            assert!(from_json(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn what_is_missing_is_no_tombstone_and_headers_of_another_shape_are_refused() {
        let line = |rest: &str| from_json(format!("{{\"position\":1,\"timestamp_ms\":2,{rest}}}").as_bytes());
        assert_eq!(line(r#""value":null"#).unwrap().1.value, None);
        assert!(line(r#""val":"v""#).unwrap_err().contains("neither value nor value_base64"));
        for headers in
            [r#"{"a":"b"}"#, r#""a""#, r#"["a"]"#, r#"[{"a":"b"}]"#, r#"[["a","b"]]"#, r#"[{"name":"a","value":1}]"#]
        {
            assert!(line(&format!(r#""value":"v","headers":{headers}"#)).is_err(), "{headers}");
        }
    }

    #[test]
    fn the_checksum_tells_what_is_none_from_what_is_empty() {
        let message = |key: Option<&[u8]>, value: Option<&[u8]>| Loaded {
            key: key.map(<[u8]>::to_vec),
            value: value.map(<[u8]>::to_vec),
            ..Loaded::default()
        };
        let kinds = [
            message(None, None),
            message(Some(b""), None),
            message(None, Some(b"")),
            message(Some(b"a"), Some(b"bc")),
            message(Some(b"ab"), Some(b"c")),
        ];
        let sums: std::collections::BTreeSet<u32> = kinds.iter().map(Loaded::crc).collect();
        assert_eq!(sums.len(), kinds.len());
    }
}
