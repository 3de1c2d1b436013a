//! A blocking client that speaks frames and nothing else, and shards without a control thread: for tests of what goes over
//! the socket. The real client has retries, which would hide what these tests look at.
#![allow(dead_code, reason = "each test uses a part")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use bytes::BytesMut;
use corelane_broker::messages::{Answer, Metadata, ToControl, ToShard};
use corelane_broker::shard::boot::{BootOptions, Shards, start};
use corelane_log::config::PartitionOptions;
use corelane_proto::frame::{FrameHeader, HEADER_BYTES, Method, Status, encode_request};
use corelane_proto::ids::TopicId;
use corelane_proto::message::MessageParts;
use corelane_proto::pb;
use corelane_proto::set::SetBuilder;
use corelane_testkit::TestDir;
use prost::Message;

/// How long any one answer may take; far more than it does.
const PATIENCE: Duration = Duration::from_secs(30);

/// One connection.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    next: u32,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) correlation: u32,
    pub(crate) status: Status,
    pub(crate) proto: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Answered {
    /// The message of a success.
    pub(crate) fn ok<M: Message + Default>(&self) -> M {
        assert_eq!(self.status, Status::Ok, "{:?}", pb::Error::decode(&self.proto[..]));
        M::decode(&self.proto[..]).expect("a response parses")
    }

    /// The error of anything else.
    pub(crate) fn error(&self) -> pb::Error {
        assert_ne!(self.status, Status::Ok);
        pb::Error::decode(&self.proto[..]).expect("an error parses")
    }
}

impl Wire {
    /// Connects and says nothing.
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the broker listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has time-outs");
        stream.set_nodelay(true).expect("a socket has options");
        Self { stream, next: 0 }
    }

    /// Connects and is served by `shard`.
    pub(crate) fn greet(address: SocketAddr, shard: u32) -> Self {
        let mut wire = Self::open(address);
        let hello: pb::HelloResponse = wire.call(Method::Hello, &hello(Some(shard)), &[]).ok();
        assert_eq!(hello.shard, shard);
        wire
    }

    /// The same connection, for a thread that receives.
    pub(crate) fn share(&self) -> Self {
        Self { stream: self.stream.try_clone().expect("a second handle"), next: 0 }
    }

    /// Sends a request; answers its correlation id.
    pub(crate) fn send(&mut self, method: Method, message: &impl Message, payload: &[u8]) -> u32 {
        self.next += 1;
        let mut out = BytesMut::new();
        encode_request(&mut out, method, self.next, message, payload.len());
        out.extend_from_slice(payload);
        self.stream.write_all(&out).expect("the broker reads");
        self.next
    }

    /// Sends a request of a method that no broker knows; answers its correlation id.
    pub(crate) fn send_unknown(&mut self) -> u32 {
        self.next += 1;
        let mut out = BytesMut::new();
        encode_request(&mut out, Method::Metadata, self.next, &pb::MetadataRequest::default(), 0);
        out[8..10].copy_from_slice(&u16::MAX.to_le_bytes());
        self.stream.write_all(&out).expect("the broker reads");
        self.next
    }

    /// The next response.
    pub(crate) fn receive(&mut self) -> io::Result<Answered> {
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head)?;
        let header = FrameHeader::decode(&head, u32::MAX).expect("a response's header is right");
        let mut proto = vec![0; header.proto_bytes as usize];
        self.stream.read_exact(&mut proto)?;
        let mut payload = vec![0; header.payload_bytes()];
        self.stream.read_exact(&mut payload)?;
        let status = Status::try_from(header.code).expect("a status that we know");
        Ok(Answered { correlation: header.correlation, status, proto, payload })
    }

    /// Sends a request and waits for its response.
    pub(crate) fn call(&mut self, method: Method, message: &impl Message, payload: &[u8]) -> Answered {
        let correlation = self.send(method, message, payload);
        let answered = self.receive().expect("a response");
        assert_eq!(answered.correlation, correlation);
        answered
    }

    /// Whether the broker has closed the connection, with nothing sent before.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }
}

/// A Hello.
pub(crate) fn hello(shard: Option<u32>) -> pb::HelloRequest {
    pb::HelloRequest { protocol_version: 1, client_name: "test".to_owned(), shard, ..Default::default() }
}

/// A message set of these values.
pub(crate) fn set_of<V: AsRef<[u8]>>(values: &[V]) -> Vec<u8> {
    let mut builder = SetBuilder::new();
    for value in values {
        builder.push(&MessageParts { value: Some(value.as_ref()), ..Default::default() }).expect("it fits");
    }
    builder.finish().to_vec()
}

/// A publish of the topic that `Bench` makes.
pub(crate) fn publish(partition: u32, sequence: u64, acks: pb::Acks) -> pb::PublishRequest {
    let topic_id = TOPIC_ID.to_vec();
    pb::PublishRequest { topic_id, partition, epoch: 1, acks: acks.into(), sequence, expected_id: None }
}

/// A fetch of the topic that `Bench` makes.
pub(crate) fn fetch(partition: u32, position: u64, max_wait_ms: u32) -> pb::FetchRequest {
    let topic_id = TOPIC_ID.to_vec();
    pb::FetchRequest { topic_id, partition, epoch: 1, position, continues: true, max_bytes: 4 << 20, max_wait_ms }
}

/// Connections of each shard.
pub(crate) const CONNECTIONS_MAX: usize = 100;
/// The topic's id.
pub(crate) const TOPIC_ID: TopicId = TopicId([7; 16]);

/// Shards without a control thread, and one topic: partition p on shard p.
pub(crate) struct Bench {
    pub(crate) shards: Shards,
    pub(crate) dir: TestDir,
    _control: Receiver<ToControl>,
}

impl Bench {
    /// Starts `count` shards with one partition each.
    pub(crate) fn start(count: usize) -> Self {
        let dir = TestDir::new("shards");
        let (control, inbox) = async_channel::bounded(8);
        let options = BootOptions {
            shards: count,
            cores: Vec::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data_dir: dir.path().to_owned(),
            cluster_id: "cluster".to_owned(),
            broker_id: 1,
            version: "test",
            starts: 1,
            arena_bytes: 32 << 20,
            floors: Vec::new(),
            connections_max: CONNECTIONS_MAX,
            connections_per_address_max: CONNECTIONS_MAX,
            peer_timeout: PATIENCE,
            // These tests run on busy machines: nothing that they hold up for long is to be closed for it.
            send_max_s: u32::MAX,
            idle_max_s: u32::MAX,
            stall_warning: None,
            control,
        };
        let shards = start(&options).expect("shards start");
        let bench = Self { shards, dir, _control: inbox };
        let topic_dir = bench.dir.join("topic~07070707");
        std::fs::create_dir(&topic_dir).expect("a topic's directory");
        let place =
            |shard: u32| pb::Partition { partition: shard, broker_id: 1, shard, epoch: 1, ..Default::default() };
        let topic = Arc::new(pb::Topic {
            name: "topic".to_owned(),
            topic_id: TOPIC_ID.to_vec(),
            config: None,
            partitions: (0..count as u32).map(place).collect(),
            copy_of: Vec::new(),
        });
        let metadata = Arc::new(Metadata {
            cluster_id: "cluster".to_owned(),
            topics: [(topic.name.clone(), Arc::clone(&topic))].into(),
            by_id: [(TOPIC_ID, topic)].into_iter().collect(),
            ..Default::default()
        });
        for shard in 0..count {
            let options = PartitionOptions::new("topic".parse().expect("a name"), TOPIC_ID, shard as u32);
            let topic_dir = topic_dir.clone();
            bench.ask(shard, |answer| ToShard::Create { topic_dir, options, answer }).expect("a partition is made");
            bench.tell(shard, ToShard::Metadata(Arc::clone(&metadata)));
            bench.tell(shard, ToShard::Serve);
        }
        bench
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.shards.address
    }

    pub(crate) fn tell(&self, shard: usize, message: ToShard) {
        self.shards.senders[shard].send_blocking(message).expect("the shard runs");
    }

    pub(crate) fn ask<T>(&self, shard: usize, message: impl FnOnce(Answer<T>) -> ToShard) -> T {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.tell(shard, message(answer));
        answered.blocking_recv().expect("the shard answers")
    }

    /// Stops in order; whether every shard stopped clean.
    pub(crate) fn stop(self) -> bool {
        let count = self.shards.senders.len();
        let is_clean = (0..count).all(|shard| self.ask(shard, |answer| ToShard::Stop { answer }));
        self.shards.join().expect("the shards end");
        is_clean
    }
}
