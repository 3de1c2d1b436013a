//! A message as it comes back from a file, whatever the format; and JSON lines, which are read here.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// See the head of this file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Loaded {
    pub(super) timestamp_ms: i64,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Loaded {
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
    let mut headers = Vec::new();
    for header in object["headers"].as_array().into_iter().flatten() {
        let name = header["name"].as_str().ok_or("a header has no name")?;
        headers.push((name.to_owned(), bytes(header, "value", "value_base64")?));
    }
    let (key, value) = (bytes(&object, "key", "key_base64")?, bytes(&object, "value", "value_base64")?);
    Ok((position, Loaded { timestamp_ms, key, value, headers }))
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
}
