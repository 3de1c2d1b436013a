//! What a program hands to the producer: a message that borrows its parts, which are encoded where they will be sent
//! from, so that nothing is allocated for a message.

use corelane_proto::message::Header;

/// A message to publish. It borrows its parts; the producer copies them once, into the set that will be sent.
///
/// ```
/// use corelane_client::Record;
/// let record = Record::to("orders").key(b"customer-17").value(b"3 apples").header("source", Some(b"web"));
/// # let _ = record;
/// ```
#[derive(Debug, Clone)]
pub struct Record<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: Option<u32>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) headers: Vec<Header<'a>>,
    pub(crate) timestamp_ms: Option<i64>,
}

impl<'a> Record<'a> {
    /// A message for a topic, with an empty value so far.
    pub fn to(topic: &'a str) -> Self {
        Self { topic, partition: None, key: None, value: Some(b""), headers: Vec::new(), timestamp_ms: None }
    }

    /// The value.
    pub fn value(mut self, value: &'a [u8]) -> Self {
        self.value = Some(value);
        self
    }

    /// No value at all, which says "this key is gone".
    pub fn tombstone(mut self) -> Self {
        self.value = None;
        self
    }

    /// The key; messages of one key go to one partition. An empty key is a key. At most 65,535 bytes.
    pub fn key(mut self, key: &'a [u8]) -> Self {
        self.key = Some(key);
        self
    }

    /// Adds a header. The name has at most 65,535 bytes.
    pub fn header(mut self, name: &'a str, value: Option<&'a [u8]>) -> Self {
        self.headers.push(Header { name, value });
        self
    }

    /// The partition, instead of the partitioner's choice.
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// The time of the message in milliseconds since the Unix epoch (default: now).
    pub fn timestamp_ms(mut self, milliseconds: i64) -> Self {
        self.timestamp_ms = Some(milliseconds);
        self
    }
}
