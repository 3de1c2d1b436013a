//! Making a connection: name resolution, TCP, greeting, all within one time-out. Whatever is on the other side (nothing,
//! silence, another service), the outcome is an error that names the address and the cause.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use corelane_proto::frame::{self, FrameHeader, HEADER_BYTES, Method, PROTOCOL_VERSION, Status};
use corelane_proto::pb;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::{ConnectCause, ConnectError};
use crate::net::refusal;

/// An answer to the greeting is small; what claims to be larger is not from a broker.
const HELLO_RESPONSE_BYTES_MAX: u32 = 64 << 10;

/// What the greeting says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Greeting {
    pub(crate) client_name: String,
    pub(crate) cluster_id: Option<String>,
    pub(crate) broker_id: Option<u32>,
    pub(crate) shard: Option<u32>,
    /// 16 random bytes of a producer or a consumer; empty: none.
    pub(crate) session: Vec<u8>,
    /// Grows with each connection of the session to this shard.
    pub(crate) attempt: u64,
}

/// A connection after its greeting.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) address: Arc<str>,
    pub(crate) hello: pb::HelloResponse,
}

/// A session's id. Two that are alike would displace each other's connections, so it comes from the system's randomness,
/// which the standard library draws for its hash maps.
pub(crate) fn new_session() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let draw = || RandomState::new().hash_one(std::time::SystemTime::now());
    (u128::from(draw()) << 64 | u128::from(draw())).to_le_bytes()
}

/// Connects to `address` (`host:port`) and greets, within `timeout`.
pub(crate) async fn connect(address: &str, greeting: &Greeting, timeout: Duration) -> Result<Link, ConnectError> {
    let attempt = tokio::time::timeout(timeout, connect_and_greet(address, greeting)).await;
    let cause = match attempt {
        Ok(Ok(link)) => return Ok(link),
        Ok(Err(cause)) => cause,
        Err(_) => ConnectCause::TimedOut { after: timeout },
    };
    Err(ConnectError { address: address.to_owned(), cause })
}

async fn connect_and_greet(address: &str, greeting: &Greeting) -> Result<Link, ConnectCause> {
    let mut stream = open(address).await?;
    let request = pb::HelloRequest {
        protocol_version: PROTOCOL_VERSION,
        client_name: greeting.client_name.clone(),
        cluster_id: greeting.cluster_id.clone(),
        broker_id: greeting.broker_id,
        shard: greeting.shard,
        session: greeting.session.clone(),
        attempt: greeting.attempt,
    };
    let mut out = BytesMut::new();
    frame::encode_request(&mut out, Method::Hello, 0, &request, 0);
    stream.write_all(&out).await.map_err(io_cause)?;
    let hello = read_hello(&mut stream).await?;
    match &greeting.cluster_id {
        Some(expected) if *expected != hello.cluster_id => {
            Err(ConnectCause::OtherCluster { expected: expected.clone(), found: hello.cluster_id })
        }
        _ => Ok(Link { stream, address: address.into(), hello }),
    }
}

/// Tries every address that the name has; the last failure counts.
async fn open(address: &str) -> Result<TcpStream, ConnectCause> {
    let resolved =
        tokio::net::lookup_host(address).await.map_err(|error| ConnectCause::UnknownName(Arc::new(error)))?;
    let mut last = None;
    for socket_address in resolved {
        match TcpStream::connect(socket_address).await {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(io_cause)?;
                #[cfg(target_os = "linux")]
                super::local::prepare(&stream);
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(match last {
        Some(error) => io_cause(error),
        None => ConnectCause::UnknownName(Arc::new(io::Error::new(io::ErrorKind::NotFound, "it has no address"))),
    })
}

async fn read_hello(stream: &mut TcpStream) -> Result<pb::HelloResponse, ConnectCause> {
    let mut head = [0; HEADER_BYTES];
    let mut have = 0;
    while have < HEADER_BYTES {
        let read = stream.read(&mut head[have..]).await.map_err(io_cause)?;
        if read == 0 {
            return Err(match have {
                0 => io_cause(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the connection was closed before the greeting was answered",
                )),
                _ => not_corelane(&head[..have]),
            });
        }
        have += read;
    }
    let header = FrameHeader::decode(&head, HELLO_RESPONSE_BYTES_MAX).map_err(|_| not_corelane(&head))?;
    if header.correlation != 0 || header.payload_bytes() != 0 {
        return Err(not_corelane(&head));
    }
    let mut proto = vec![0; header.proto_bytes as usize];
    stream.read_exact(&mut proto).await.map_err(io_cause)?;
    if header.code != Status::Ok.code() {
        return Err(ConnectCause::Refused(Box::new(refusal::read(header.code, &proto))));
    }
    pb::HelloResponse::decode(&proto[..]).map_err(|_| not_corelane(&head))
}

fn not_corelane(received: &[u8]) -> ConnectCause {
    ConnectCause::NotCorelane { detail: format!("it answered \"{}\"", received.escape_ascii()) }
}

fn io_cause(error: io::Error) -> ConnectCause {
    ConnectCause::Io(Arc::new(error))
}
