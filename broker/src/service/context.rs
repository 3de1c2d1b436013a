//! What a service function is given: the shard's state, and what a connection remembers. And what it gives back: a reply,
//! a head and pieces of the log. One thread; nothing here is shared with another.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use corelane_log::Piece;
use corelane_proto::frame::{self, Status};
use corelane_proto::ids::{Epoch, Position};
use prost::Message;

use crate::figures::{RequestCounts, RequestTimes};
use crate::io::env::ShardEnv;
use crate::io::turns::Turns;
use crate::limits::{ANSWER_PROTO_BYTES_MAX, SHARD_LONG_POLLS_MAX};
use crate::messages::{Failure, IdMap, Metadata, PartitionKey, ToControl};

/// A partition on this shard.
pub type Partition = corelane_log::Partition<ShardEnv>;

/// What a reader is promised of a partition's log.
pub type Promise = corelane_log::Promise<ShardEnv>;

/// Which broker and which shard this is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster's lasting id.
    pub cluster_id: String,
    /// The broker's number.
    pub broker_id: u32,
    /// This shard.
    pub shard: u32,
    /// Shards of this broker.
    pub shards: u32,
    /// The broker's version.
    pub version: &'static str,
}

/// A partition that this shard owns, and whether it serves.
#[derive(Clone)]
pub enum Owned {
    /// Being made or recovered.
    Opening,
    /// Serves.
    Serving {
        /// Its log.
        partition: Partition,
        /// Its epoch: requests must name it.
        epoch: Epoch,
    },
    /// Does not serve; an operator must look.
    Refused(String),
}

/// A shard's state, as the services see it.
pub struct ShardContext {
    /// Which shard this is.
    pub identity: Identity,
    /// The disk, the arena, the clocks.
    pub env: ShardEnv,
    /// Whose turn it is.
    pub turns: Turns,
    /// The partitions that this shard owns.
    pub partitions: RefCell<IdMap<PartitionKey, Owned>>,
    /// What clients are told.
    pub metadata: RefCell<Arc<Metadata>>,
    /// To the control thread. Full: answer BUSY, never wait.
    pub control: async_channel::Sender<ToControl>,
    /// Set when the shard stops: requests are answered STOPPING.
    pub is_stopping: Cell<bool>,
    /// Requests of all connections that wait for news.
    pub long_polls: LongPolls,
    /// Counters.
    pub counters: Counters,
}

impl ShardContext {
    /// Begins a wait for news, for one of the requests that `connection` counts; BUSY when too many wait on this shard.
    pub fn begin_long_poll(&self, connection: &LongPolls) -> Result<[LongPoll; 2], Failure> {
        if self.long_polls.count() >= SHARD_LONG_POLLS_MAX {
            Counters::add(&self.counters.busy, 1);
            let sentence = "too many requests wait for news here; ask again after a pause, or ask for no wait";
            return Err(Failure::new(Status::Busy, sentence));
        }
        Ok(self.count_long_poll(connection))
    }

    /// Counts a wait for news, however many there are.
    pub fn count_long_poll(&self, connection: &LongPolls) -> [LongPoll; 2] {
        [self.long_polls.begin(), connection.begin()]
    }

    /// What clients are told now.
    pub fn metadata(&self) -> Arc<Metadata> {
        Arc::clone(&self.metadata.borrow())
    }
}

/// What a shard counts since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes received in published sets.
    pub published_bytes: Cell<u64>,
    /// Sets published.
    pub published_sets: Cell<u64>,
    /// Bytes of the log sent to consumers.
    pub fetched_bytes: Cell<u64>,
    /// Fetches answered.
    pub fetches: Cell<u64>,
    /// Requests answered `BUSY` because a limit of the shard was reached.
    pub busy: Cell<u64>,
    /// Answers by method and status.
    pub requests: RequestCounts,
    /// How long requests took.
    pub times: RequestTimes,
    /// Bytes of the log sent to consumers, by partition.
    pub fetched_by_partition: RefCell<IdMap<PartitionKey, u64>>,
}

impl Counters {
    /// Adds to a counter.
    pub fn add(counter: &Cell<u64>, amount: u64) {
        counter.set(counter.get() + amount);
    }
}

/// A number that goes up and down, and the highest that it was since that was asked.
#[derive(Debug, Default)]
pub struct Level {
    now: Cell<usize>,
    highest: Cell<usize>,
}

impl Level {
    /// The number.
    pub fn get(&self) -> usize {
        self.now.get()
    }

    /// One more.
    pub fn rise(&self) {
        self.now.set(self.now.get() + 1);
        self.highest.set(self.highest.get().max(self.now.get()));
    }

    /// One less.
    pub fn fall(&self) {
        self.now.set(self.now.get() - 1);
    }

    /// The highest since the last call.
    pub fn take_highest(&self) -> usize {
        self.highest.replace(self.now.get())
    }
}

/// Counts requests that wait for news. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct LongPolls(Rc<Level>);

/// One request that waits for news, as long as it lives.
#[derive(Debug)]
pub struct LongPoll(Rc<Level>);

impl LongPolls {
    /// How many wait.
    pub fn count(&self) -> usize {
        self.0.get()
    }

    /// How many waited at most since the last call.
    pub fn take_highest(&self) -> usize {
        self.0.take_highest()
    }

    fn begin(&self) -> LongPoll {
        self.0.rise();
        LongPoll(Rc::clone(&self.0))
    }
}

impl Drop for LongPoll {
    fn drop(&mut self) {
        self.0.fall();
    }
}

/// What a connection remembers between requests: the sequence number expected next, per partition.
#[derive(Debug, Default)]
pub struct Sequences {
    /// The next publish's number.
    pub expected: RefCell<IdMap<PartitionKey, u64>>,
}

/// A response but for its correlation id.
pub struct Reply {
    /// The status.
    pub status: Status,
    /// The protobuf message, encoded.
    pub proto: Vec<u8>,
    /// What follows it: bytes of the log.
    pub payload: Option<LogBytes>,
}

/// Bytes of the log that a response carries.
pub struct LogBytes {
    /// They stay readable by it.
    pub promise: Promise,
    /// The first one's position.
    pub begin: Position,
    /// How many.
    pub bytes: usize,
    /// Where they lie now. A reader that is stuck lets go of them; they are looked up again when it goes on.
    pub pieces: Vec<Piece<ShardEnv>>,
}

impl Reply {
    /// Success.
    pub fn ok(message: &impl Message) -> Self {
        Self::of_bytes(message.encoded_len(), || message.encode_to_vec())
    }

    /// Success, with a message that is encoded already.
    pub fn encoded(proto: Vec<u8>) -> Self {
        Self::of_bytes(proto.len(), || proto)
    }

    /// A message above what any answer may have would end its connection: it is refused instead.
    fn of_bytes(bytes: usize, proto: impl FnOnce() -> Vec<u8>) -> Self {
        if bytes > ANSWER_PROTO_BYTES_MAX {
            let message = format!(
                "the answer would have {bytes} bytes, above the limit of {ANSWER_PROTO_BYTES_MAX}: ask for less at once; \
                 a newer client asks for such lists in pages"
            );
            let mut failure = Failure::new(Status::TooLarge, message);
            failure.error.limit = Some(ANSWER_PROTO_BYTES_MAX as u64);
            return failure.into();
        }
        Self { status: Status::Ok, proto: proto(), payload: None }
    }

    /// Success, with bytes of the log.
    pub fn with_payload(message: &impl Message, payload: LogBytes) -> Self {
        Self { payload: Some(payload), ..Self::ok(message) }
    }

    /// The length of the payload, in bytes.
    pub fn payload_bytes(&self) -> usize {
        self.payload.as_ref().map_or(0, |payload| payload.bytes)
    }

    /// Appends frame header and protobuf message to `out`.
    pub fn encode_head(&self, out: &mut BytesMut, correlation: u32) {
        let header = frame::FrameHeader::new(self.status.code(), correlation, self.proto.len(), self.payload_bytes());
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(&self.proto);
    }
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        Self { status: failure.status, proto: failure.error.encode_to_vec(), payload: None }
    }
}

impl<M: Message> From<Result<M, Failure>> for Reply {
    fn from(result: Result<M, Failure>) -> Self {
        match result {
            Ok(message) => Self::ok(&message),
            Err(failure) => failure.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use corelane_proto::pb;

    use super::*;

    #[test]
    fn an_answer_that_no_client_would_take_is_refused_with_what_helps() {
        // A field's tag and length take five bytes.
        let metadata = |bytes| pb::MetadataResponse { cluster_id: "c".repeat(bytes - 5), ..Default::default() };
        let (largest, larger) = (metadata(ANSWER_PROTO_BYTES_MAX), metadata(ANSWER_PROTO_BYTES_MAX + 1));
        assert_eq!(Reply::ok(&largest).proto.len(), ANSWER_PROTO_BYTES_MAX);
        for reply in [Reply::ok(&larger), Reply::encoded(larger.encode_to_vec())] {
            assert_eq!(reply.status, Status::TooLarge);
            let error = pb::Error::decode(&reply.proto[..]).expect("an error");
            assert_eq!(error.limit, Some(ANSWER_PROTO_BYTES_MAX as u64));
            assert!(error.message.contains("in pages"), "{}", error.message);
        }
        assert_eq!(Reply::encoded(largest.encode_to_vec()).status, Status::Ok);
    }
}
