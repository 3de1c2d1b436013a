//! What a test does to etcd as an operator would: look at keys, remove and write them, fill it up and make room again.
//! Through its JSON gateway, so that the test kit needs no client of etcd's.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::Etcd;

const PATIENCE: Duration = Duration::from_secs(30);

/// A key of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdKey {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The lease with which it goes; 0: none.
    pub lease: i64,
}

impl Etcd {
    /// All keys with this prefix.
    #[track_caller]
    pub fn keys(&self, prefix: &str) -> Vec<EtcdKey> {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().expect("a prefix is not empty") += 1;
        let range = format!(r#"{{"key":"{}","range_end":"{}"}}"#, encode(prefix.as_bytes()), encode(&end));
        let answer = self.post("/v3/kv/range", &range);
        let mut keys = Vec::new();
        for entry in answer.split(r#"{"key":""#).skip(1) {
            let field = |name: &str| {
                let rest = entry.split_once(&format!(r#""{name}":""#))?.1;
                Some(rest.split_once('"')?.0)
            };
            let key = entry.split_once('"').expect("a key ends").0;
            let text = |base64: &str| String::from_utf8(decode(base64)).expect("the keys and values of tests are text");
            keys.push(EtcdKey {
                key: text(key),
                value: text(field("value").unwrap_or_default()),
                lease: field("lease").map_or(0, |lease| lease.parse().expect("a lease is a number")),
            });
        }
        keys
    }

    /// The only key with this prefix, if there is one.
    #[track_caller]
    pub fn key(&self, prefix: &str) -> Option<EtcdKey> {
        let mut keys = self.keys(prefix);
        assert!(keys.len() <= 1, "{keys:?}");
        keys.pop()
    }

    /// Removes all keys with this prefix.
    #[track_caller]
    pub fn delete(&self, prefix: &str) {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().expect("a prefix is not empty") += 1;
        let range = format!(r#"{{"key":"{}","range_end":"{}"}}"#, encode(prefix.as_bytes()), encode(&end));
        self.post("/v3/kv/deleterange", &range);
    }

    /// Writes a key.
    #[track_caller]
    pub fn put(&self, key: &str, value: &str) {
        let (key, value) = (encode(key.as_bytes()), encode(value.as_bytes()));
        self.post("/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
    }

    /// Raises the alarm of a database that has reached its quota: it takes no writes and no leases any more.
    #[track_caller]
    pub fn raise_alarm(&self) {
        self.post("/v3/maintenance/alarm", r#"{"action":"ACTIVATE","memberID":"0","alarm":"NOSPACE"}"#);
    }

    /// Disarms it.
    #[track_caller]
    pub fn disarm_alarm(&self) {
        self.post("/v3/maintenance/alarm", r#"{"action":"DEACTIVATE","memberID":"0","alarm":"NOSPACE"}"#);
    }

    #[track_caller]
    fn post(&self, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.addr()).expect("etcd takes connections");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has time-outs");
        let (host, length) = (self.addr(), body.len());
        let request = format!("POST {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).expect("etcd reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("etcd answers");
        assert!(answer.starts_with("HTTP/1.0 200"), "{path} {body}: {answer}");
        answer
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for digit in text.bytes().take_while(|digit| *digit != b'=') {
        let value = DIGITS.iter().position(|known| *known == digit).expect("etcd's answers are base64");
        (bits, count) = (bits << 6 | value as u32, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_reads_back() {
        for (text, encoded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar~", "Zm9vYmFyfg==")] {
            assert_eq!(encode(text.as_bytes()), encoded);
            assert_eq!(decode(encoded), text.as_bytes());
        }
    }
}
