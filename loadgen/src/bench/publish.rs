//! A publisher that costs as little as one can: sets that are made once and sent again and again, answers that are counted.
//! Where the load generator's core is full before the broker's is, this one still shows what the broker takes.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use corelane_client::{Client, ConsumeError, NewTopic, Start, TopicInfo};
use corelane_proto::frame::{FrameHeader, HEADER_BYTES, Method, PROTOCOL_VERSION, Status, encode_request};
use corelane_proto::pb;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::consume::{Outcome, on_runtime};
use crate::raw;

/// Sets sent with one call at most.
const SETS_A_CALL_MAX: u32 = 32;
/// The answers of a connection that are read with one call.
const ANSWERS_BYTES: usize = 16 << 10;
/// How long a consumer may take for the rest when everything was acknowledged ...
const CONSUMED_WITHIN: Duration = Duration::from_secs(30);
/// ... and how often that is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// What is published, durably: each connection to the partition of its number, beginning again with the first one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) connections: u32,
    pub(crate) partitions: u32,
    pub(crate) set_messages: u32,
    /// Sets that each connection has under way.
    pub(crate) in_flight: u32,
    pub(crate) seconds: u32,
}

/// What was published, and what a consumer had of it meanwhile.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flow {
    pub(crate) published: f64,
    pub(crate) consumed: f64,
    /// Until the last answer.
    pub(crate) publishing_s: f64,
    /// Until the last message was consumed.
    pub(crate) consuming_s: f64,
}

/// Publishes to the topic `bench`, which is created if it is not there.
pub(crate) fn publish(address: &str, offer: Offer) -> Result<Flow, String> {
    on_runtime(LocalSet::new().run_until(async {
        let (_, topic) = prepare(address, offer).await?;
        let begun = Instant::now();
        let published = offer_sets(address, &topic, offer).await?;
        Ok(Flow { published: published as f64, publishing_s: begun.elapsed().as_secs_f64(), ..Flow::default() })
    }))
}

/// The same, while a client's iterator reads the topic as it grows and checks every CRC.
pub(crate) fn publish_and_consume(address: &str, offer: Offer) -> Result<Flow, String> {
    on_runtime(LocalSet::new().run_until(async {
        let (client, topic) = prepare(address, offer).await?;
        let mut consumer = client.consumer().topic("bench").start(Start::Latest).build().await?;
        let consumed = Rc::new(Cell::new(0));
        let counter = Rc::clone(&consumed);
        let reading = tokio::task::spawn_local(async move {
            while let Some(message) = consumer.next().await {
                message?;
                counter.set(counter.get() + 1);
            }
            Ok::<(), ConsumeError>(())
        });
        let begun = Instant::now();
        let published = offer_sets(address, &topic, offer).await?;
        let sent = Instant::now();
        while consumed.get() < published {
            if reading.is_finished() {
                reading.await??;
                return Err("the consumer ended before the topic did".into());
            }
            if sent.elapsed() > CONSUMED_WITHIN {
                return Err(format!("{} of {published} messages were consumed", consumed.get()).into());
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        reading.abort();
        Ok(Flow {
            published: published as f64,
            consumed: published as f64,
            publishing_s: (sent - begun).as_secs_f64(),
            consuming_s: begun.elapsed().as_secs_f64(),
        })
    }))
}

async fn prepare(address: &str, offer: Offer) -> Outcome<(Client, TopicInfo)> {
    let client = Client::builder().bootstrap(address).build().await?;
    let topic = NewTopic::named("bench").partitions(offer.partitions).if_not_exists(true);
    let topic = client.admin().create_topic(topic).await?.topic;
    Ok((client, topic))
}

/// Answers how many messages were acknowledged: all that were sent.
async fn offer_sets(address: &str, topic: &TopicInfo, offer: Offer) -> Outcome<u64> {
    let set: Rc<[u8]> = raw::set(u64::from(offer.set_messages)).into();
    let until = Instant::now() + Duration::from_secs(u64::from(offer.seconds));
    let connections: Vec<_> = (0..offer.connections)
        .map(|number| {
            let partition = &topic.partitions[(number % offer.partitions) as usize];
            let request = pb::PublishRequest {
                topic_id: topic.topic_id.0.to_vec(),
                partition: partition.partition,
                epoch: partition.epoch,
                acks: pb::Acks::Durable.into(),
                sequence: 0,
                expected_id: None,
            };
            let socket = raw::connect(address)?;
            socket.set_nonblocking(true)?;
            let (answers, requests) = tokio::net::TcpStream::from_std(socket)?.into_split();
            let window = Rc::new(Window { under_way: Cell::new(0), limit: offer.in_flight, changed: Notify::new() });
            let sending = send(requests, request, Rc::clone(&set), Rc::clone(&window), until);
            let counting = count_answers(answers, window);
            Ok(tokio::task::spawn_local(async move {
                let (sent, answered) = tokio::try_join!(sending, counting)?;
                assert_eq!(sent, answered, "every set is answered once");
                io::Result::Ok(answered)
            }))
        })
        .collect::<io::Result<_>>()?;
    let mut sets = 0;
    for connection in connections {
        sets += connection.await??;
    }
    Ok(sets * u64::from(offer.set_messages))
}

/// The sets of a connection that are not answered.
struct Window {
    under_way: Cell<u32>,
    limit: u32,
    changed: Notify,
}

/// Sends sets until it is time to end, then ends the sending side; answers how many.
async fn send(
    mut to: OwnedWriteHalf,
    mut request: pb::PublishRequest,
    set: Rc<[u8]>,
    window: Rc<Window>,
    until: Instant,
) -> io::Result<u64> {
    let mut heads = BytesMut::new();
    let hello = pb::HelloRequest { protocol_version: PROTOCOL_VERSION, shard: Some(0), ..Default::default() };
    encode_request(&mut heads, Method::Hello, 0, &hello, 0);
    to.write_all(&heads).await?;
    // The answer to it is counted as the others are: nothing is sent before.
    window.under_way.set(window.limit);
    while Instant::now() < until {
        let room = (window.limit - window.under_way.get()).min(SETS_A_CALL_MAX);
        if room == 0 {
            window.changed.notified().await;
            continue;
        }
        heads.clear();
        let mut ends = [0; SETS_A_CALL_MAX as usize];
        for end in &mut ends[..room as usize] {
            encode_request(&mut heads, Method::Publish, 0, &request, set.len());
            request.sequence += 1;
            *end = heads.len();
        }
        let mut slices = [IoSlice::new(&[]); 2 * SETS_A_CALL_MAX as usize];
        let mut begin = 0;
        for (pair, end) in slices.chunks_exact_mut(2).zip(&ends[..room as usize]) {
            pair[0] = IoSlice::new(&heads[begin..*end]);
            pair[1] = IoSlice::new(&set);
            begin = *end;
        }
        window.under_way.set(window.under_way.get() + room);
        let mut left = &mut slices[..2 * room as usize];
        while !left.is_empty() {
            let sent = to.write_vectored(left).await?;
            IoSlice::advance_slices(&mut left, sent);
        }
    }
    to.shutdown().await?;
    Ok(request.sequence)
}

/// Counts the answers until the broker closes the connection, because everything is answered.
async fn count_answers(from: OwnedReadHalf, window: Rc<Window>) -> io::Result<u64> {
    let mut from = BufReader::with_capacity(ANSWERS_BYTES, from);
    let (mut answers, mut body) = (0, Vec::new());
    loop {
        let mut head = [0; HEADER_BYTES];
        match from.read_exact(&mut head).await {
            Ok(_) => {}
            // All but the one to Hello.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(answers - 1),
            Err(error) => return Err(error),
        }
        let header = FrameHeader::decode(&head, u32::MAX).map_err(io::Error::other)?;
        body.resize(header.proto_bytes as usize, 0);
        from.read_exact(&mut body).await?;
        if header.code != Status::Ok.code() {
            let said = pb::Error::decode(&body[..]).unwrap_or_default().message;
            return Err(io::Error::other(format!("the broker answered with status {}: {said}", header.code)));
        }
        let answered = if answers == 0 { window.limit } else { 1 };
        window.under_way.set(window.under_way.get() - answered);
        answers += 1;
        if from.buffer().is_empty() {
            window.changed.notify_one();
        }
    }
}
