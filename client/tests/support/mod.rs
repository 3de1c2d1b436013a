//! A broker for tests that keeps its logs in memory and misbehaves as it is told: it refuses, delays, falls silent, and
//! cuts connections before, after and in the middle of what it should do. It checks what the protocol demands of clients
//! and remembers what it saw.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod groups;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::BytesMut;
use corelane_client::{Client, ClientBuilder};
use corelane_proto::frame::{FrameHeader, HEADER_BYTES, Method, Status};
use corelane_proto::message::MESSAGE_BYTES_LIMIT;
use corelane_proto::pb;
use corelane_proto::set::{Reserved, SetLimits, check_set, walk};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// What the broker does about a request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// What it should.
    Properly,
    Refuse(Status, pb::Error),
    /// After a while, what it should. Later requests wait behind it.
    After(Duration),
    /// Nothing is done, and the connection is cut.
    Cut,
    /// It is done, but the connection is cut in the middle of the answer, after so many bytes.
    CutAnswerAt(usize),
    /// It is done, but the answer never comes.
    Silence,
    /// It is done, but the answer comes a while later.
    AnswerAfter(Duration),
}

impl Act {
    pub(crate) fn refuse(status: Status) -> Self {
        Self::Refuse(status, pb::Error::default())
    }
}

/// A request as the script sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) connection: u64,
    pub(crate) method: Method,
    pub(crate) partition: u32,
    pub(crate) sequence: u64,
    /// Counts the requests of this method.
    pub(crate) nth: usize,
    pub(crate) payload_bytes: usize,
    pub(crate) max_bytes: u32,
    /// Which broker was asked.
    pub(crate) broker_id: u32,
}

type Script = Box<dyn FnMut(Seen) -> Act + Send>;

pub(crate) struct Topic {
    pub(crate) id: [u8; 16],
    pub(crate) epoch: u32,
    pub(crate) config: pb::TopicConfig,
    pub(crate) logs: Vec<Log>,
    /// The shard that each partition is on.
    pub(crate) shards: Vec<u32>,
}

#[derive(Default, Clone)]
pub(crate) struct Log {
    pub(crate) start: u64,
    pub(crate) bytes: Vec<u8>,
    /// Where the messages begin, whatever became of their bytes.
    pub(crate) boundaries: Vec<u64>,
}

impl Log {
    pub(crate) fn end(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(crate) fn append(&mut self, set: &[u8]) -> u64 {
        let first = self.end();
        let mut at = first;
        for message in walk(set, MESSAGE_BYTES_LIMIT) {
            self.boundaries.push(at);
            at += u64::from(message.expect("a set is good").length());
        }
        self.bytes.extend_from_slice(set);
        first
    }

    fn boundary_at(&self, position: u64) -> u64 {
        let upper = self.boundaries.partition_point(|&boundary| boundary <= position);
        if position >= self.end() { self.end() } else { self.boundaries[upper - 1] }
    }

    /// The values of its plain messages.
    pub(crate) fn values(&self) -> Vec<Vec<u8>> {
        let values = walk(&self.bytes, MESSAGE_BYTES_LIMIT).map(|message| message.unwrap().value().unwrap().to_vec());
        values.collect()
    }
}

pub(crate) struct State {
    pub(crate) topics: HashMap<String, Topic>,
    pub(crate) cluster_id: String,
    pub(crate) seen: Vec<Seen>,
    pub(crate) hellos: Vec<pb::HelloRequest>,
    /// Breaches of the protocol by the client.
    pub(crate) complaints: Vec<String>,
    script: Script,
    counts: HashMap<Method, usize>,
    connections: u64,
    sessions: HashMap<(Vec<u8>, u32), (u64, AbortHandle)>,
    live: Vec<AbortHandle>,
    pub(crate) refuse_hello: Option<Status>,
    /// Bytes of the log that are damaged on their way, so many times each.
    pub(crate) damaged_on_the_way: HashMap<u64, u32>,
    pub(crate) group: groups::Group,
    /// The brokers and where they listen.
    brokers: Vec<(u32, String)>,
    /// Partitions that are on a broker that is down.
    pub(crate) down: Vec<u32>,
    /// As if one entry of a list were as long as an answer may be.
    pub(crate) tells_pages_of_one: bool,
}

#[derive(Clone)]
pub(crate) struct FakeBroker {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    pub(crate) address: String,
    listener: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl FakeBroker {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0", HashMap::new()).await
    }

    pub(crate) async fn start_at(address: &str, topics: HashMap<String, Topic>) -> Self {
        let state = Arc::new(Mutex::new(State {
            topics,
            cluster_id: "fake".into(),
            seen: Vec::new(),
            hellos: Vec::new(),
            complaints: Vec::new(),
            script: Box::new(|_| Act::Properly),
            counts: HashMap::new(),
            connections: 0,
            sessions: HashMap::new(),
            live: Vec::new(),
            refuse_hello: None,
            damaged_on_the_way: HashMap::new(),
            group: groups::Group::new(),
            brokers: Vec::new(),
            down: Vec::new(),
            tells_pages_of_one: false,
        }));
        Self::listen(address, 7, state, Arc::new(Notify::new())).await
    }

    /// Another broker of the same cluster: number 8.
    pub(crate) async fn twin(&self) -> Self {
        Self::listen("127.0.0.1:0", 8, self.state.clone(), self.changed.clone()).await
    }

    async fn listen(address: &str, broker_id: u32, state: Arc<Mutex<State>>, changed: Arc<Notify>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        state.lock().unwrap().brokers.push((broker_id, address.clone()));
        let (accept_state, accept_changed) = (state.clone(), changed.clone());
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (state, changed) = (accept_state.clone(), accept_changed.clone());
                let connection = {
                    let mut state = state.lock().unwrap();
                    state.connections += 1;
                    state.connections
                };
                let (handle, own_handle) = tokio::sync::oneshot::channel();
                let task_state = state.clone();
                let task = tokio::spawn(async move {
                    let task = own_handle.await.unwrap();
                    let (state, next) = (task_state, HashMap::new());
                    let (socket, writer) = socket.into_split();
                    let writer = Arc::new(tokio::sync::Mutex::new(writer));
                    let polls = JoinSet::new();
                    Serving { state, changed, socket, writer, polls, connection, broker_id, task, next, shard: 0 }
                        .run()
                        .await;
                });
                state.lock().unwrap().live.push(task.abort_handle());
                handle.send(task.abort_handle()).unwrap();
            }
        });
        Self { state, changed, address, listener: Arc::new(Mutex::new(Some(task))) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Cuts every connection and listens no more. What it holds is returned for another life.
    pub(crate) async fn stop(&self) -> HashMap<String, Topic> {
        let listener = self.listener.lock().unwrap().take().unwrap();
        listener.abort();
        let _ = listener.await;
        self.cut_all();
        std::mem::take(&mut self.state().topics)
    }

    pub(crate) fn cut_all(&self) {
        for connection in self.state().live.drain(..) {
            connection.abort();
        }
    }

    pub(crate) fn topic(&self, name: &str, partitions: usize) {
        self.topic_with(name, partitions, pb::TopicConfig::default());
    }

    pub(crate) fn topic_with(&self, name: &str, partitions: usize, config: pb::TopicConfig) {
        let id = [self.state().topics.len() as u8 + 1; 16];
        let logs = vec![Log::default(); partitions];
        let shards = vec![0; partitions];
        self.state().topics.insert(name.to_owned(), Topic { id, epoch: 1, config, logs, shards });
        self.changed.notify_waiters();
    }

    pub(crate) fn script(&self, script: impl FnMut(Seen) -> Act + Send + 'static) {
        self.state().script = Box::new(script);
    }

    pub(crate) fn append(&self, topic: &str, partition: usize, set: &[u8]) -> u64 {
        let first = self.state().topics.get_mut(topic).unwrap().logs[partition].append(set);
        self.changed.notify_waiters();
        first
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) fn values(&self, topic: &str, partition: usize) -> Vec<String> {
        let values = self.state().topics[topic].logs[partition].values();
        values.into_iter().map(|value| String::from_utf8(value).unwrap()).collect()
    }

    pub(crate) fn builder(&self) -> ClientBuilder {
        Client::builder()
            .bootstrap(&self.address)
            .connect_timeout(Duration::from_secs(2))
            .request_timeout(Duration::from_secs(5))
            .backoff(Duration::from_millis(1), Duration::from_millis(20))
    }

    pub(crate) async fn client(&self) -> Client {
        self.builder().build().await.unwrap()
    }

    pub(crate) fn assert_no_complaints(&self) {
        assert_eq!(self.state().complaints, Vec::<String>::new());
    }
}

fn is_of_groups(method: Method) -> bool {
    (Method::JoinGroup..=Method::DeleteGroup).contains(&method)
}

struct Serving {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    socket: OwnedReadHalf,
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    /// What is answered beside the requests that follow.
    polls: JoinSet<()>,
    connection: u64,
    broker_id: u32,
    task: AbortHandle,
    /// The next sequence number of each partition.
    next: HashMap<(Vec<u8>, u32), u64>,
    shard: u32,
}

type Answer = (Status, Vec<u8>, Vec<u8>);

fn ok(message: &impl Message) -> Answer {
    (Status::Ok, message.encode_to_vec(), Vec::new())
}

#[allow(clippy::needless_pass_by_value, reason = "it reads better where it is used")]
fn refuse(status: Status, error: pb::Error) -> Answer {
    (status, error.encode_to_vec(), Vec::new())
}

impl Serving {
    async fn run(&mut self) {
        let mut is_greeted = false;
        while let Some((header, proto, payload)) = self.read_frame().await {
            let method = Method::try_from(header.code).expect("a known method");
            if is_greeted == (method == Method::Hello) {
                self.complain("Hello is the first request and no other");
            }
            is_greeted = true;
            let seen = self.seen(method, &proto, payload.len());
            let act = (self.state.lock().unwrap().script)(seen);
            if is_of_groups(method) && !matches!(act, Act::Cut) {
                self.answer_beside(method, header.correlation, proto, act);
                continue;
            }
            let answer = match &act {
                Act::Refuse(status, error) => {
                    if status.uses_up_sequence() {
                        self.use_up(method, &proto);
                    }
                    // What is out of sequence is so whatever is wrong with it.
                    match self.out_of_sequence(method, &proto) {
                        Some(answer) if !status.uses_up_sequence() => Some(answer),
                        _ => Some(refuse(*status, error.clone())),
                    }
                }
                Act::Cut => return,
                Act::After(pause) => {
                    tokio::time::sleep(*pause).await;
                    self.answer(method, &proto, &payload).await
                }
                Act::Properly | Act::CutAnswerAt(_) | Act::Silence | Act::AnswerAfter(_) => {
                    self.answer(method, &proto, &payload).await
                }
            };
            let Some((status, proto, payload)) = answer else { continue };
            if matches!(act, Act::Silence) {
                continue;
            }
            let head = FrameHeader::new(status.code(), header.correlation, proto.len(), payload.len());
            let mut out = BytesMut::from(&head.encode()[..]);
            out.extend_from_slice(&proto);
            out.extend_from_slice(&payload);
            if let Act::CutAnswerAt(bytes) = act {
                let _ = self.writer.lock().await.write_all(&out[..bytes.min(out.len())]).await;
                return;
            }
            if self.writer.lock().await.write_all(&out).await.is_err() {
                return;
            }
        }
    }

    /// Calls of a group are long polls: others go on meanwhile.
    fn answer_beside(&mut self, method: Method, correlation: u32, proto: Vec<u8>, act: Act) {
        let (state, changed, writer) = (self.state.clone(), self.changed.clone(), self.writer.clone());
        self.polls.spawn(async move {
            if let Act::After(pause) = act {
                tokio::time::sleep(pause).await;
            }
            let (status, proto, _) = match &act {
                Act::Refuse(status, error) => refuse(*status, error.clone()),
                _ => groups::answer(state, changed, method, proto).await,
            };
            match act {
                Act::Silence => return,
                Act::AnswerAfter(pause) => tokio::time::sleep(pause).await,
                _ => {}
            }
            let mut out = FrameHeader::new(status.code(), correlation, proto.len(), 0).encode().to_vec();
            out.extend_from_slice(&proto);
            let _ = writer.lock().await.write_all(&out).await;
        });
    }

    async fn read_frame(&mut self) -> Option<(FrameHeader, Vec<u8>, Vec<u8>)> {
        let mut head = [0; HEADER_BYTES];
        self.socket.read_exact(&mut head).await.ok()?;
        let header = FrameHeader::decode(&head, 128 << 20).expect("a good header");
        let mut proto = vec![0; header.proto_bytes as usize];
        self.socket.read_exact(&mut proto).await.ok()?;
        let mut payload = vec![0; header.payload_bytes()];
        self.socket.read_exact(&mut payload).await.ok()?;
        Some((header, proto, payload))
    }

    fn complain(&self, complaint: &str) {
        self.state.lock().unwrap().complaints.push(complaint.to_owned());
    }

    fn seen(&self, method: Method, proto: &[u8], payload_bytes: usize) -> Seen {
        let mut state = self.state.lock().unwrap();
        let count = state.counts.entry(method).or_default();
        *count += 1;
        let nth = *count;
        let (mut partition, mut sequence, mut max_bytes) = (0, 0, 0);
        if method == Method::Publish {
            let request = pb::PublishRequest::decode(proto).unwrap();
            (partition, sequence) = (request.partition, request.sequence);
        } else if method == Method::Fetch {
            let request = pb::FetchRequest::decode(proto).unwrap();
            (partition, max_bytes) = (request.partition, request.max_bytes);
        }
        let connection = self.connection;
        let broker_id = self.broker_id;
        let seen = Seen { connection, method, partition, sequence, nth, payload_bytes, max_bytes, broker_id };
        state.seen.push(seen);
        seen
    }

    fn out_of_sequence(&self, method: Method, proto: &[u8]) -> Option<Answer> {
        if method != Method::Publish {
            return None;
        }
        let request = pb::PublishRequest::decode(proto).unwrap();
        let next = self.next.get(&(request.topic_id, request.partition)).copied().unwrap_or_default();
        if request.sequence == next {
            return None;
        }
        let error = pb::Error { sequence: Some(next), ..pb::Error::default() };
        Some(refuse(Status::OutOfSequence, error))
    }

    fn use_up(&mut self, method: Method, proto: &[u8]) {
        if method == Method::Publish && self.out_of_sequence(method, proto).is_none() {
            let request = pb::PublishRequest::decode(proto).unwrap();
            *self.next.entry((request.topic_id, request.partition)).or_default() += 1;
        }
    }

    async fn answer(&mut self, method: Method, proto: &[u8], payload: &[u8]) -> Option<Answer> {
        match method {
            Method::Hello => Some(self.hello(pb::HelloRequest::decode(proto).unwrap())),
            Method::Metadata => Some(self.metadata(&pb::MetadataRequest::decode(proto).unwrap())),
            Method::Publish => self.publish(proto, payload),
            Method::Fetch => Some(self.fetch(pb::FetchRequest::decode(proto).unwrap()).await),
            Method::FindMessage => Some(self.find(&pb::FindMessageRequest::decode(proto).unwrap())),
            _ => Some(refuse(Status::Unsupported, pb::Error::default())),
        }
    }

    fn hello(&mut self, request: pb::HelloRequest) -> Answer {
        self.shard = request.shard.unwrap_or_default();
        let mut state = self.state.lock().unwrap();
        state.hellos.push(request.clone());
        if let Some(status) = state.refuse_hello {
            return refuse(status, pb::Error::default());
        }
        if !request.session.is_empty() {
            let older = state.sessions.insert((request.session, self.shard), (request.attempt, self.task.clone()));
            if let Some((attempt, older)) = older {
                older.abort();
                if attempt >= request.attempt {
                    state.complaints.push(format!("attempt {} after {attempt}", request.attempt));
                }
            }
        }
        ok(&pb::HelloResponse {
            cluster_id: state.cluster_id.clone(),
            broker_id: self.broker_id,
            shard: self.shard,
            shards: 2,
            broker_version: "fake".into(),
            frame_bytes_max: 64 << 20,
        })
    }

    fn metadata(&self, request: &pb::MetadataRequest) -> Answer {
        let state = self.state.lock().unwrap();
        let broker = |broker_id: u32, address: &str, alive: bool| {
            let (host, port) = address.rsplit_once(':').unwrap();
            let (host, port, version) = (host.into(), port.parse().unwrap(), "fake".into());
            pb::Broker { broker_id, host, port, shards: 2, alive, version }
        };
        let mut brokers: Vec<pb::Broker> = state.brokers.iter().map(|(id, at)| broker(*id, at, true)).collect();
        // Nobody listens there.
        brokers.push(broker(9, "127.0.0.1:1", false));
        let wanted = |name: &String| request.topics.is_empty() || request.topics.contains(name);
        let topics = state.topics.iter().filter(|(name, _)| wanted(name)).map(|(name, topic)| pb::Topic {
            name: name.clone(),
            topic_id: topic.id.to_vec(),
            config: Some(topic.config),
            partitions: (0..topic.logs.len() as u32)
                .map(|partition| pb::Partition {
                    partition,
                    broker_id: if state.down.contains(&partition) { 9 } else { 7 },
                    shard: topic.shards[partition as usize],
                    epoch: topic.epoch,
                    state: pb::PartitionState::Serving.into(),
                    reason: String::new(),
                })
                .collect(),
            copy_of: Vec::new(),
        });
        let mut topics: Vec<pb::Topic> = topics.filter(|topic| topic.name > request.after).collect();
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        let more = state.tells_pages_of_one && request.limit > 0 && topics.len() > 1;
        topics.truncate(if more { 1 } else { usize::MAX });
        ok(&pb::MetadataResponse { cluster_id: state.cluster_id.clone(), brokers, topics, more })
    }

    /// The topic's name if partition, place and epoch are right.
    fn locate(&self, topic_id: &[u8], partition: u32, epoch: u32) -> Result<String, Answer> {
        let state = self.state.lock().unwrap();
        let Some((name, topic)) = state.topics.iter().find(|(_, topic)| topic.id == topic_id) else {
            return Err(refuse(Status::UnknownTopic, pb::Error::default()));
        };
        if partition as usize >= topic.logs.len() {
            return Err(refuse(Status::UnknownPartition, pb::Error::default()));
        }
        let shard = topic.shards[partition as usize];
        if shard != self.shard {
            let error = pb::Error { broker_id: Some(7), shard: Some(shard), ..pb::Error::default() };
            return Err(refuse(Status::NotHere, error));
        }
        if epoch != topic.epoch {
            return Err(refuse(Status::WrongEpoch, pb::Error { epoch: Some(topic.epoch), ..pb::Error::default() }));
        }
        Ok(name.clone())
    }

    fn publish(&mut self, proto: &[u8], payload: &[u8]) -> Option<Answer> {
        let request = pb::PublishRequest::decode(proto).unwrap();
        let name = match self.locate(&request.topic_id, request.partition, request.epoch) {
            Ok(name) => name,
            Err(answer) => return Some(answer),
        };
        if let Some(answer) = self.out_of_sequence(Method::Publish, proto) {
            return Some(answer);
        }
        if let Some(expected) = request.expected_id {
            let end = self.state.lock().unwrap().topics[&name].logs[request.partition as usize].end();
            if end != expected {
                return Some(refuse(Status::UnexpectedEnd, pb::Error { end: Some(end), ..pb::Error::default() }));
            }
        }
        self.use_up(Method::Publish, proto);
        let limit = |bytes: Option<u32>| bytes.unwrap_or(MESSAGE_BYTES_LIMIT);
        let mut state = self.state.lock().unwrap();
        let topic = state.topics.get_mut(&name).unwrap();
        let limits = SetLimits {
            message_bytes_max: limit(topic.config.message_bytes_max),
            set_bytes_max: limit(topic.config.set_bytes_max),
            uncompressed_bytes_max: MESSAGE_BYTES_LIMIT,
            reserved: Reserved::Refuse,
        };
        if let Err(invalid) = check_set(payload, &limits) {
            let error = pb::Error { index: Some(invalid.index), message: invalid.to_string(), ..pb::Error::default() };
            return Some(refuse(invalid.status(), error));
        }
        let log = &mut topic.logs[request.partition as usize];
        let first_id = log.append(payload);
        let next_id = log.end();
        drop(state);
        self.changed.notify_waiters();
        let silent = request.acks() == pb::Acks::None;
        (!silent).then(|| ok(&pb::PublishResponse { first_id, next_id, durable_end: next_id }))
    }

    async fn fetch(&self, request: pb::FetchRequest) -> Answer {
        let deadline = tokio::time::Instant::now() + Duration::from_millis(u64::from(request.max_wait_ms));
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let name = match self.locate(&request.topic_id, request.partition, request.epoch) {
                Ok(name) => name,
                Err(answer) => return answer,
            };
            {
                let State { topics, damaged_on_the_way, .. } = &mut *self.state.lock().unwrap();
                let log = &topics[&name].logs[request.partition as usize];
                if request.position < log.start || request.position > log.end() {
                    let error = pb::Error { start: Some(log.start), end: Some(log.end()), ..pb::Error::default() };
                    return refuse(Status::OutOfRange, error);
                }
                let begin = if request.continues { request.position } else { log.boundary_at(request.position) };
                let rest = &log.bytes[begin as usize..];
                if !rest.is_empty() || tokio::time::Instant::now() >= deadline {
                    let mut payload = rest[..rest.len().min(request.max_bytes as usize)].to_vec();
                    for (at, times) in damaged_on_the_way.iter_mut().filter(|(_, times)| **times > 0) {
                        if let Some(byte) = at.checked_sub(begin).and_then(|at| payload.get_mut(at as usize)) {
                            *byte ^= 1;
                            *times -= 1;
                        }
                    }
                    let response = pb::FetchResponse { start: log.start, visible_end: log.end(), begin };
                    return (Status::Ok, response.encode_to_vec(), payload);
                }
            }
            let _ = tokio::time::timeout_at(deadline, changed).await;
        }
    }

    fn find(&self, request: &pb::FindMessageRequest) -> Answer {
        use pb::find_message_request::Target;
        let name = match self.locate(&request.topic_id, request.partition, request.epoch) {
            Ok(name) => name,
            Err(answer) => return answer,
        };
        let state = self.state.lock().unwrap();
        let log = &state.topics[&name].logs[request.partition as usize];
        let id = match request.target.unwrap() {
            Target::Earliest(_) => log.start,
            Target::Latest(_) => log.end(),
            Target::Containing(position) => log.boundary_at(position),
            Target::TimeMs(time) => {
                let messages = walk(&log.bytes, MESSAGE_BYTES_LIMIT).map(Result::unwrap);
                let mut found = log.boundaries.iter().zip(messages);
                found.find(|(_, message)| message.timestamp_ms() >= time).map_or(log.end(), |(&at, _)| at)
            }
            Target::LastMessages(count) => {
                // Like a broker that knows the boundaries of a few messages only: at least so many.
                let index = log.boundaries.len().saturating_sub(count as usize) / 8 * 8;
                log.boundaries.get(index).copied().unwrap_or(log.end())
            }
            Target::GoodAfter(position)
                if log.boundaries.contains(&position)
                    && walk(&log.bytes[position as usize..], MESSAGE_BYTES_LIMIT)
                        .next()
                        .is_some_and(|it| it.is_ok()) =>
            {
                position
            }
            Target::GoodAfter(position) => {
                let next = log.boundaries.partition_point(|&boundary| boundary <= position);
                log.boundaries.get(next).copied().unwrap_or(log.end())
            }
        };
        ok(&pb::FindMessageResponse { id, start: log.start, visible_end: log.end(), end: log.end() })
    }
}

/// A set of plain messages with these values.
pub(crate) fn set_of(values: &[&str]) -> bytes::Bytes {
    let mut builder = corelane_proto::set::SetBuilder::new();
    for value in values {
        let parts = corelane_proto::message::MessageParts { value: Some(value.as_bytes()), ..Default::default() };
        builder.push(&parts).unwrap();
    }
    builder.finish()
}

/// A seed from `CORELANE_SEED`, or a random one; printed, so that a failure can be replayed.
pub(crate) fn seed(test: &str) -> u64 {
    let seed =
        std::env::var("CORELANE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("{test}: CORELANE_SEED={seed}");
    seed
}
