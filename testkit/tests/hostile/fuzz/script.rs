//! What one connection sends: requests of every method, whole or changed in one place, in one piece or in many, to the end or
//! cut off. And what may come back for it.

use std::collections::HashMap;

use corelane_proto::frame::{FrameHeader, Method, Status};
use corelane_proto::pb;
use fastrand::Rng;
use prost::Message;

use super::{protobuf, sets};
use crate::wire::hello;

/// Names of the topics that the fuzzer creates and deletes.
pub(crate) const NAMES: [&str; 6] = ["fuzz-0", "fuzz-1", "fuzz-2", "fuzz-3", "fuzz-4", "fuzz-5"];
/// Names of its groups.
const GROUPS: [&str; 3] = ["group-0", "group-1", "group-2"];
const METHODS: u16 = 23;
/// Every change of each of the first so many fields of each method is made once, before chance chooses.
const FIELDS_MAX: usize = 12;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It sends no more and reads to the end.
    HalfClose,
    /// It goes at once, answers unread.
    Close,
    /// It stays open and silent for a while.
    Linger,
}

/// What is expected for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// One answer.
    Answer,
    /// An answer at most: it may wait for news, or success is silent.
    Perhaps,
}

/// What one connection does.
#[derive(Debug)]
pub(crate) struct Script {
    /// Hello and what follows.
    pub(crate) bytes: Vec<u8>,
    /// Where the pieces end that are sent at once.
    pub(crate) cuts: Vec<usize>,
    pub(crate) end: End,
    /// By correlation id.
    pub(crate) sent: HashMap<u32, (Method, Expected)>,
    /// From some frame on nothing is a frame for sure: then only the form of what comes back is known.
    pub(crate) is_noise: bool,
    pub(crate) frames: usize,
}

/// One change of the systematic part: (method, field, kind).
pub(crate) type Change = (u16, usize, usize);

/// All of them.
pub(crate) fn systematic() -> Vec<Change> {
    let mut all = Vec::new();
    for method in 2..=METHODS {
        for field in 0..FIELDS_MAX {
            all.extend((0..protobuf::CHANGES).map(|kind| (method, field, kind)));
        }
    }
    all
}

/// Makes scripts from what is known of the broker.
pub(crate) struct Writer<'a> {
    pub(crate) random: &'a mut Rng,
    pub(crate) topics: &'a [pb::Topic],
    pub(crate) shards: u32,
    sequences: HashMap<(Vec<u8>, u32), u64>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(random: &'a mut Rng, topics: &'a [pb::Topic], shards: u32) -> Self {
        Self { random, topics, shards, sequences: HashMap::new() }
    }

    /// A connection that makes `changes`, or whatever chance says.
    pub(crate) fn script(mut self, changes: &[Change]) -> Script {
        let mut script = Script {
            bytes: Vec::new(),
            cuts: Vec::new(),
            end: [End::HalfClose, End::HalfClose, End::Close, End::Linger][self.random.usize(..4)],
            sent: HashMap::new(),
            is_noise: false,
            frames: 0,
        };
        self.greet(&mut script, changes.is_empty());
        let count = if changes.is_empty() { self.random.usize(..40) } else { changes.len() };
        for at in 0..count {
            let method = Method::try_from(changes.get(at).map_or_else(|| self.method(), |change| change.0));
            let method = method.expect("a method that exists");
            let (mut proto, payload) = self.request(method);
            if let Some((_, field, kind)) = changes.get(at) {
                proto = protobuf::change(&proto, *field, *kind, self.random);
            } else if self.random.u8(..3) == 0 {
                let fields = protobuf::fields(&proto).max(1);
                let (field, kind) = (self.random.usize(..fields), self.random.usize(..protobuf::CHANGES));
                proto = protobuf::change(&proto, field, kind, self.random);
            }
            self.frame(&mut script, method, &proto, &payload, changes.is_empty());
        }
        if changes.is_empty() && self.random.u8(..8) == 0 {
            script.bytes.extend(protobuf::noise(self.random, 300));
            script.is_noise = true;
        }
        if changes.is_empty() && self.random.u8(..6) == 0 {
            script.bytes.truncate(self.random.usize(..=script.bytes.len()));
            script.is_noise = true;
        }
        self.cut(&mut script);
        script
    }

    fn greet(&mut self, script: &mut Script, may_break: bool) {
        let mut proto = hello(self.random.u32(..self.shards));
        if may_break && self.random.u8(..4) == 0 {
            // A session of few: attempts displace each other.
            proto.session = vec![self.random.u8(..3); 16];
            proto.attempt = self.random.u64(..1_000);
            script.is_noise = true;
        }
        let mut proto = proto.encode_to_vec();
        if may_break && self.random.u8(..8) == 0 {
            let (field, kind) = (self.random.usize(..4), self.random.usize(..protobuf::CHANGES));
            proto = protobuf::change(&proto, field, kind, self.random);
            script.is_noise = true;
        }
        self.frame(script, Method::Hello, &proto, &[], false);
    }

    fn frame(&mut self, script: &mut Script, method: Method, proto: &[u8], payload: &[u8], may_break: bool) {
        script.frames += 1;
        let correlation = script.frames as u32;
        let mut header = FrameHeader::new(method.code(), correlation, proto.len(), payload.len());
        if may_break && self.random.u8(..40) == 0 {
            let border = [0, 1, 11, 12, 13, 65_536, 8 << 20, 1 << 31, u32::MAX][self.random.usize(..9)];
            match self.random.u8(..6) {
                0 => header.body_bytes = border,
                1 => header.proto_bytes = border,
                2 => header.body_bytes = header.body_bytes.wrapping_add(self.random.u32(..4)).wrapping_sub(2),
                3 => header.flags = self.random.u16(..),
                4 => header.code = self.random.u16(..),
                _ => header.correlation = self.random.u32(..3),
            }
            script.is_noise = true;
        }
        script.sent.insert(correlation, (method, expected(method, proto)));
        script.bytes.extend(header.encode());
        script.bytes.extend(proto);
        script.bytes.extend(payload);
    }

    /// In one piece, in a few, or byte for byte.
    fn cut(&mut self, script: &mut Script) {
        let longest =
            [usize::MAX, 5_000, 100, 17, 1][self.random.choice([0, 0, 0, 0, 1, 1, 2, 3, 4]).expect("a choice")];
        let most = if longest == 1 { 400 } else { 2_000 };
        let mut at = 0;
        while at < script.bytes.len() {
            let left = script.bytes.len() - at;
            at += if script.cuts.len() < most { self.random.usize(1..=longest.min(left)).max(1) } else { left };
            if longest == usize::MAX {
                at = script.bytes.len();
            }
            script.cuts.push(at);
        }
    }

    fn method(&mut self) -> u16 {
        // Mostly the data path; a topic call costs the disk.
        match self.random.u8(..20) {
            0..=6 => Method::Publish.code(),
            7..=11 => Method::Fetch.code(),
            12 | 13 => Method::FindMessage.code(),
            14 | 15 => Method::Metadata.code(),
            _ => self.random.u16(1..=METHODS),
        }
    }

    /// A request as a client could send it: its message and its payload.
    fn request(&mut self, method: Method) -> (Vec<u8>, Vec<u8>) {
        let name = NAMES[self.random.usize(..NAMES.len())].to_owned();
        let (topic_id, partition, epoch) = self.place();
        let highest = [1, 1_000, 1 << 20, u64::MAX][self.random.usize(..4)];
        let position = self.random.u64(..highest);
        let proto = match method {
            Method::Hello => hello(0).encode_to_vec(),
            Method::Metadata => {
                let topics = (0..self.random.usize(..3)).map(|_| name.clone()).collect();
                pb::MetadataRequest { topics, ..Default::default() }.encode_to_vec()
            }
            Method::Publish => return self.publish(topic_id, partition, epoch),
            Method::Fetch => pb::FetchRequest {
                topic_id,
                partition,
                epoch,
                position,
                continues: self.random.bool(),
                max_bytes: [0, 1, 100, 1 << 20, u32::MAX][self.random.usize(..5)],
                max_wait_ms: [0, 0, 0, 10, 60_000, u32::MAX][self.random.usize(..6)],
            }
            .encode_to_vec(),
            Method::FindMessage => self.find(topic_id, partition, epoch, position),
            Method::CreateTopic => pb::CreateTopicRequest {
                name,
                partitions: self.random.u32(1..4),
                config: Some(self.config()),
                if_not_exists: self.random.bool(),
                starts: (0..self.random.usize(..4)).map(|_| [0, 1, 4095, u64::MAX][self.random.usize(..4)]).collect(),
                copy_of: (0..self.random.usize(..20)).map(|_| "c/t/00c0ffee".repeat(self.random.usize(..50))).collect(),
            }
            .encode_to_vec(),
            Method::AlterTopic => pb::AlterTopicRequest { name, config: Some(self.config()) }.encode_to_vec(),
            Method::DeleteTopic => pb::DeleteTopicRequest { name, topic_id }.encode_to_vec(),
            Method::DescribeTopic => pb::DescribeTopicRequest { name }.encode_to_vec(),
            Method::TrimTopic => pb::TrimTopicRequest { topic_id, partition, epoch, position }.encode_to_vec(),
            _ => self.of_a_group(&name),
        };
        (proto, Vec::new())
    }

    fn place(&mut self) -> (Vec<u8>, u32, u32) {
        match self.random.choice(self.topics) {
            Some(topic) => {
                let partition = self.random.choice(&topic.partitions).cloned().unwrap_or_default();
                (topic.topic_id.clone(), partition.partition, partition.epoch)
            }
            None => (vec![1; 16], 0, 1),
        }
    }

    fn publish(&mut self, topic_id: Vec<u8>, partition: u32, epoch: u32) -> (Vec<u8>, Vec<u8>) {
        let sequence = self.sequences.entry((topic_id.clone(), partition)).or_default();
        let mut request = pb::PublishRequest {
            topic_id,
            partition,
            epoch,
            acks: self.random.i32(0..3),
            sequence: *sequence,
            expected_id: None,
        };
        // A refusal may not use the number up: that the next one is out of sequence then is well.
        *sequence += 1;
        if self.random.u8(..10) == 0 {
            request.expected_id = Some(self.random.u64(..1_000));
        }
        let set = if self.random.u8(..3) == 0 { sets::broken(self.random) } else { sets::whole(self.random) };
        (request.encode_to_vec(), set)
    }

    fn find(&mut self, topic_id: Vec<u8>, partition: u32, epoch: u32, position: u64) -> Vec<u8> {
        use pb::find_message_request::Target;
        let target = match self.random.u8(..7) {
            0 => None,
            1 => Some(Target::Earliest(true)),
            2 => Some(Target::Latest(true)),
            3 => Some(Target::Containing(position)),
            4 => Some(Target::TimeMs(self.random.i64(..))),
            5 => Some(Target::LastMessages(position)),
            _ => Some(Target::GoodAfter(position)),
        };
        pb::FindMessageRequest { topic_id, partition, epoch, target }.encode_to_vec()
    }

    fn config(&mut self) -> pb::TopicConfig {
        let mut some = |most: u64| self.random.bool().then(|| self.random.u64(..most));
        pb::TopicConfig {
            retention_ms: some(1 << 40),
            retention_bytes: some(1 << 40),
            segment_bytes: some(8 << 20),
            segment_ms: some(1 << 40),
            flush_messages: some(100),
            flush_interval_ms: some(100),
            message_bytes_max: some(1 << 20).map(|bytes| bytes as u32),
            set_bytes_max: some(4 << 20).map(|bytes| bytes as u32),
        }
    }

    /// The calls about groups and clusters begin with a name or two; the rest is numbers.
    fn of_a_group(&mut self, topic: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let group = GROUPS[self.random.usize(..GROUPS.len())];
        for (number, text) in [(1_u8, group), (2, topic), (3, "member")] {
            out.extend([number << 3 | 2, text.len() as u8]);
            out.extend(text.as_bytes());
        }
        for number in 4..12_u8 {
            out.extend([number << 3, self.random.u8(..128)]);
        }
        out
    }
}

fn expected(method: Method, proto: &[u8]) -> Expected {
    let may_wait = match method {
        Method::Publish => pb::PublishRequest::decode(proto).is_ok_and(|request| request.acks == pb::Acks::None as i32),
        Method::Fetch => pb::FetchRequest::decode(proto).is_ok_and(|request| request.max_wait_ms > 0),
        Method::Heartbeat | Method::Claim | Method::JoinGroup => true,
        _ => false,
    };
    if may_wait { Expected::Perhaps } else { Expected::Answer }
}

/// What is wrong about an answer's message, if anything.
pub(crate) fn fault_of_answer(method: Option<Method>, status: Status, proto: &[u8], payload: &[u8]) -> Option<String> {
    let parses = match (status, method) {
        (Status::Ok, Some(Method::Hello)) => pb::HelloResponse::decode(proto).is_ok(),
        (Status::Ok, Some(Method::Metadata)) => pb::MetadataResponse::decode(proto).is_ok(),
        (Status::Ok, Some(Method::Publish)) => pb::PublishResponse::decode(proto).is_ok(),
        (Status::Ok, Some(Method::Fetch)) => pb::FetchResponse::decode(proto).is_ok(),
        (Status::Ok, Some(Method::FindMessage)) => pb::FindMessageResponse::decode(proto).is_ok(),
        (Status::Ok, Some(Method::CreateTopic)) => pb::CreateTopicResponse::decode(proto).is_ok(),
        (Status::Ok, Some(Method::DescribeTopic)) => pb::DescribeTopicResponse::decode(proto).is_ok(),
        (Status::Ok, _) => true,
        _ => pb::Error::decode(proto).is_ok_and(|error| !error.message.is_empty() && !error.message.contains('\n')),
    };
    if !parses {
        return Some(format!("the message of a {status:?} to {method:?} is not as it should be: {proto:02x?}"));
    }
    let may_have_payload = status == Status::Ok && matches!(method, Some(Method::Fetch) | None);
    (!may_have_payload && !payload.is_empty()).then(|| format!("a {status:?} to {method:?} has a payload"))
}
