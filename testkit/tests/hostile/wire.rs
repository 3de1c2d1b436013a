//! A connection that speaks frames and nothing else: it sees what the real client hides behind its retries. And what these
//! tests ask a broker besides: topics, metrics.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::BytesMut;
use corelane_proto::frame::{FrameHeader, HEADER_BYTES, Method, Status, encode_request};
use corelane_proto::message::MessageParts;
use corelane_proto::pb;
use corelane_proto::set::SetBuilder;
use corelane_testkit::{Broker, http_get, wait_until};
use prost::Message;

/// How long any one thing may take on a busy machine before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// One connection.
#[derive(Debug)]
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
    #[track_caller]
    pub(crate) fn ok<M: Message + Default>(&self) -> M {
        assert_eq!(self.status, Status::Ok, "{:?}", pb::Error::decode(&self.proto[..]));
        M::decode(&self.proto[..]).expect("a response parses")
    }
}

impl Wire {
    /// Speaks over a connected socket.
    pub(crate) fn over(stream: TcpStream) -> Wire {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has time-outs");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket has time-outs");
        stream.set_nodelay(true).expect("a socket has options");
        Wire { stream, next: 0 }
    }

    /// Connects and says nothing.
    pub(crate) fn open(addr: SocketAddr) -> Wire {
        Wire::over(TcpStream::connect(addr).expect("the broker listens"))
    }

    /// Connects and is served by `shard`.
    pub(crate) fn greet(addr: SocketAddr, shard: u32) -> Wire {
        Wire::try_greet(addr, shard).expect("the broker takes a connection")
    }

    /// As `greet`, where the broker may refuse.
    pub(crate) fn try_greet(addr: SocketAddr, shard: u32) -> io::Result<Wire> {
        let mut wire = Wire::over(TcpStream::connect(addr)?);
        wire.send(Method::Hello, &hello(shard), &[])?;
        match wire.receive()?.status {
            Status::Ok => Ok(wire),
            status => Err(io::Error::other(format!("{status:?}"))),
        }
    }

    /// Sends a request; answers its correlation id.
    pub(crate) fn send(&mut self, method: Method, message: &impl Message, payload: &[u8]) -> io::Result<u32> {
        self.next += 1;
        self.stream.write_all(&frame(method, self.next, message, payload))?;
        Ok(self.next)
    }

    /// The next response.
    pub(crate) fn receive(&mut self) -> io::Result<Answered> {
        receive(&mut self.stream)
    }

    /// Sends a request and waits for its response.
    #[track_caller]
    pub(crate) fn call(&mut self, method: Method, message: &impl Message, payload: &[u8]) -> Answered {
        let correlation = self.send(method, message, payload).expect("the broker reads");
        let answered = self.receive().expect("a response");
        assert_eq!(answered.correlation, correlation);
        answered
    }

    /// Waits until the broker closes the connection; answers what came before.
    pub(crate) fn until_closed(&mut self) -> Vec<u8> {
        let mut before = Vec::new();
        match self.stream.read_to_end(&mut before) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the connection stays open: {error}"),
        }
        before
    }
}

/// The next response from `stream`: anything but a frame as the protocol has them is an error of kind `InvalidData`.
pub(crate) fn receive(stream: &mut impl Read) -> io::Result<Answered> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head)?;
    let header = FrameHeader::decode(&head, 64 << 20).map_err(|error| invalid(error.to_string()))?;
    let status = Status::try_from(header.code).map_err(|_| invalid(format!("there is no status {}", header.code)))?;
    let mut proto = vec![0; header.proto_bytes as usize];
    stream.read_exact(&mut proto)?;
    let mut payload = vec![0; header.payload_bytes()];
    stream.read_exact(&mut payload)?;
    Ok(Answered { correlation: header.correlation, status, proto, payload })
}

/// A request's bytes.
pub(crate) fn frame(method: Method, correlation: u32, message: &impl Message, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    encode_request(&mut out, method, correlation, message, payload.len());
    out.extend_from_slice(payload);
    out.to_vec()
}

pub(crate) fn hello(shard: u32) -> pb::HelloRequest {
    pb::HelloRequest { protocol_version: 1, client_name: "test".to_owned(), shard: Some(shard), ..Default::default() }
}

/// A message set of these values.
pub(crate) fn set_of<V: AsRef<[u8]>>(values: &[V]) -> Vec<u8> {
    let mut builder = SetBuilder::new();
    for value in values {
        builder.push(&MessageParts { value: Some(value.as_ref()), ..Default::default() }).expect("it fits");
    }
    builder.finish().to_vec()
}

/// Creates a topic.
pub(crate) fn create_topic(addr: SocketAddr, name: &str, partitions: u32) -> pb::Topic {
    let request = pb::CreateTopicRequest { name: name.to_owned(), partitions, ..Default::default() };
    let created: pb::CreateTopicResponse = Wire::greet(addr, 0).call(Method::CreateTopic, &request, &[]).ok();
    created.topic.expect("the topic that was created")
}

pub(crate) fn publish(topic: &pb::Topic, partition: u32, sequence: u64) -> pb::PublishRequest {
    pb::PublishRequest {
        topic_id: topic.topic_id.clone(),
        partition,
        epoch: topic.partitions[partition as usize].epoch,
        sequence,
        ..Default::default()
    }
}

pub(crate) fn fetch(topic: &pb::Topic, partition: u32, position: u64, max_wait_ms: u32) -> pb::FetchRequest {
    pb::FetchRequest {
        topic_id: topic.topic_id.clone(),
        partition,
        epoch: topic.partitions[partition as usize].epoch,
        position,
        continues: true,
        max_bytes: 4 << 20,
        max_wait_ms,
    }
}

/// The sum over all shards of the metric `name`, of those lines that hold `label`. A page leaves out a shard that is too
/// busy to answer in time: then the next one tells.
pub(crate) fn metric(broker: &Broker, name: &str, label: &str) -> u64 {
    let wanted =
        |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).expect("a count");
    let mut sum = None;
    wait_until(&format!("the metric {name} with {label:?}"), PATIENCE, || {
        let page = http_get(broker.http_addr(), "/metrics", PATIENCE).expect("the metrics page comes");
        sum = page.body.lines().filter(wanted).map(value).reduce(|sum, value| sum + value);
        sum.is_some()
    });
    sum.expect("waited for")
}

/// How many connections the broker closed for this reason.
pub(crate) fn closed(broker: &Broker, reason: &str) -> u64 {
    metric(broker, "corelane_connections_closed_total", &format!("reason=\"{reason}\""))
}
