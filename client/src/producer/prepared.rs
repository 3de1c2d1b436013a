//! A message set that goes out as it is: for mirrors, which repeat the sets of another log, and for programs that append
//! only if nobody else has appended meanwhile.

use bytes::Bytes;
use corelane_proto::message::MESSAGE_BYTES_LIMIT;
use corelane_proto::set::{Reserved, SetBuilder, SetInfo, SetLimits, check_set};

use super::accumulator::parts;
use super::error::SendError;
use super::record::Record;

/// A whole message set for one partition of a topic; see [`Producer::send_set`](crate::Producer::send_set).
///
/// ```
/// # fn main() -> Result<(), corelane_client::SendError> {
/// use corelane_client::{PreparedSet, Record};
/// // Appended only if 4711 is the end, that is, if nobody else was faster.
/// let records = [Record::to("accounts").key(b"ada").value(b"+5"), Record::to("accounts").key(b"bob").value(b"-5")];
/// let set = PreparedSet::of("accounts", 0, &records)?.expected_id(4711);
/// assert_eq!(set.messages(), 2);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct PreparedSet {
    pub(super) topic: String,
    pub(super) partition: u32,
    pub(super) bytes: Bytes,
    pub(super) info: SetInfo,
    pub(super) expected_id: Option<u64>,
}

impl PreparedSet {
    /// A set as it lies in a log or came from a builder: whole messages, the last one marked as the last.
    ///
    /// # Errors
    /// [`SendError::Invalid`] with the index of the first bad message.
    pub fn new(topic: impl Into<String>, partition: u32, bytes: impl Into<Bytes>) -> Result<Self, SendError> {
        let limits = SetLimits {
            message_bytes_max: MESSAGE_BYTES_LIMIT,
            set_bytes_max: MESSAGE_BYTES_LIMIT,
            uncompressed_bytes_max: MESSAGE_BYTES_LIMIT,
            reserved: Reserved::Refuse,
        };
        let bytes = bytes.into();
        let info = check_set(&bytes, &limits).map_err(|error| SendError::Invalid { reason: error.to_string() })?;
        Ok(Self { topic: topic.into(), partition, bytes, info, expected_id: None })
    }

    /// A set of these messages, in this order. What they say of topic and partition does not matter.
    ///
    /// # Errors
    /// [`SendError::Invalid`] when there is none, or when one breaks a rule of the format.
    pub fn of(topic: impl Into<String>, partition: u32, records: &[Record<'_>]) -> Result<Self, SendError> {
        let mut builder = SetBuilder::new();
        let now_ms = super::now_ms();
        for record in records {
            let pushed = builder.push(&parts(record, now_ms));
            pushed.map_err(|error| SendError::Invalid { reason: error.to_string() })?;
        }
        Self::new(topic, partition, builder.finish())
    }

    /// Append it only if this is the end of the log, that is, if its first message gets this id. If not, the delivery
    /// fails with `UNEXPECTED_END` and the end. After a broken connection that may be because the set was appended and
    /// the answer lost: then the end is this id plus [`PreparedSet::bytes`], unless others append too.
    pub fn expected_id(mut self, id: u64) -> Self {
        self.expected_id = Some(id);
        self
    }

    /// How many messages it has; a compressed set counts as one.
    pub fn messages(&self) -> u32 {
        self.info.messages
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}
