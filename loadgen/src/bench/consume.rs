//! Consumers of the bench: the client's iterator that only counts, and a receiver that asks for pieces of the log and
//! discards what comes.

use std::io::{self, Read, Write};
use std::time::Instant;

use bytes::BytesMut;
use corelane_client::{Client, Start};
use corelane_proto::frame::{FrameHeader, HEADER_BYTES, Method, PROTOCOL_VERSION, Status, encode_request};
use corelane_proto::pb;

use crate::raw;

/// What one fetch of the discarding receiver asks for, as the client's consumer does.
const FETCH_BYTES: u32 = 1 << 20;
/// What a receiver that discards takes at a time.
const BUFFER_BYTES: usize = 256 << 10;

/// What was consumed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Consumed {
    /// Messages; not known where nothing is parsed.
    pub(crate) messages: f64,
    /// Bytes of the log.
    pub(crate) bytes: f64,
    pub(crate) seconds: f64,
}

impl Consumed {
    pub(crate) fn mb_per_s(&self) -> f64 {
        self.bytes / 1e6 / self.seconds
    }
}

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

pub(crate) fn on_runtime<T>(work: impl Future<Output = Outcome<T>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(|error| error.to_string())?.block_on(work);
    outcome.map_err(|error| format!("a client of the bench: {error}"))
}

/// Everything that the topic has, through the client's iterator: every CRC is checked, every value is looked at.
pub(crate) fn iterate(address: &str) -> Result<Consumed, String> {
    on_runtime(async {
        let client = Client::builder().bootstrap(address).build().await?;
        let begun = Instant::now();
        let mut consumer = client.consumer().topic("bench").start(Start::Earliest).until_end(true).build().await?;
        let (mut messages, mut value_bytes) = (0_u64, 0_u64);
        while let Some(message) = consumer.next().await {
            let message = message?;
            messages += 1;
            value_bytes += message.value().map_or(0, |value| value.len() as u64);
        }
        assert!(value_bytes > 0, "the log is not empty");
        let stats = consumer.stats();
        if stats.bad_messages > 0 {
            return Err(format!("{} bad messages", stats.bad_messages).into());
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Consumed { messages: messages as f64, bytes: stats.bytes as f64, seconds })
    })
}

/// Everything that the topic has, by `readers` connections that each get all of it; the bytes of all together.
pub(crate) fn drain(address: &str, readers: usize) -> Result<Consumed, String> {
    let (request, end) = on_runtime(async {
        let client = Client::builder().bootstrap(address).build().await?;
        let described = client.admin().describe_topic("bench").await?;
        let (topic, detail) = (&described.topic, &described.details[0]);
        let request = pb::FetchRequest {
            topic_id: topic.topic_id.0.to_vec(),
            partition: 0,
            epoch: topic.partitions[0].epoch,
            position: detail.start,
            continues: false,
            max_bytes: FETCH_BYTES,
            max_wait_ms: 0,
        };
        Ok((request, detail.visible_end))
    })?;
    let begun = Instant::now();
    let bytes: u64 = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..readers).map(|_| scope.spawn(|| discard(address, request.clone(), end))).collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader does not panic")).sum::<io::Result<u64>>()
    })
    .map_err(|error| format!("a receiver of the bench: {error}"))?;
    Ok(Consumed { messages: 0.0, bytes: bytes as f64, seconds: begun.elapsed().as_secs_f64() })
}

/// Reads up to `end`, one piece asked for ahead; answers how many bytes came.
fn discard(address: &str, mut request: pb::FetchRequest, end: u64) -> io::Result<u64> {
    let mut socket = raw::connect(address)?;
    let mut out = BytesMut::new();
    let hello = pb::HelloRequest { protocol_version: PROTOCOL_VERSION, shard: Some(0), ..Default::default() };
    encode_request(&mut out, Method::Hello, 0, &hello, 0);
    encode_request(&mut out, Method::Fetch, 1, &request, 0);
    socket.write_all(&out)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let (from, mut correlation, mut bytes) = (request.position, 1, 0);
    while from + bytes < end {
        let mut head = [0; HEADER_BYTES];
        socket.read_exact(&mut head)?;
        let header = FrameHeader::decode(&head, u32::MAX).map_err(io::Error::other)?;
        socket.read_exact(&mut buffer[..header.proto_bytes as usize])?;
        if header.code != Status::Ok.code() {
            return Err(io::Error::other(format!("a fetch was answered with status {}", header.code)));
        }
        let mut left = header.payload_bytes();
        request.position += left as u64;
        request.continues = true;
        if header.correlation == correlation && left > 0 && request.position < end {
            // The next piece is on its way while this one is received.
            correlation += 1;
            out.clear();
            encode_request(&mut out, Method::Fetch, correlation, &request, 0);
            socket.write_all(&out)?;
        }
        bytes += left as u64;
        while left > 0 {
            let room = left.min(buffer.len());
            match socket.read(&mut buffer[..room])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left -= read,
            }
        }
    }
    Ok(bytes)
}
