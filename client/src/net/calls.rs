//! A connection for calls: many requests under way, matched by correlation id. One task owns the socket; it ends when the
//! last handle is gone or the connection breaks. Calls have deadlines, so nothing waits for a silent broker.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use corelane_proto::frame::{FrameHeader, HEADER_BYTES, Method, PROTO_BYTES_MAX, Status};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

use crate::error::{CallError, Refusal};
use crate::net::connect::Link;
use crate::net::refusal;

/// Calls that wait for the connection's task; more make their callers wait.
const CALLS_QUEUED_MAX: usize = 64;
/// Calls without an answer on one connection; beyond it, those whose caller has left are forgotten.
const CALLS_UNANSWERED_MAX: usize = 1024;
/// An answer to a call carries no payload, so this bounds its frame.
const FRAME_BYTES_MAX: u32 = PROTO_BYTES_MAX + 64;

type Answer = Result<Result<Bytes, Refusal>, Arc<io::Error>>;

struct Call {
    method: Method,
    proto: Bytes,
    answer: oneshot::Sender<Answer>,
}

/// A handle of the connection.
#[derive(Debug, Clone)]
pub(crate) struct CallConnection {
    pub(crate) address: Arc<str>,
    calls: mpsc::Sender<Call>,
}

impl CallConnection {
    pub(crate) fn start(link: Link) -> Self {
        let (calls, queue) = mpsc::channel(CALLS_QUEUED_MAX);
        let address = link.address.clone();
        tokio::spawn(run(link, queue));
        Self { address, calls }
    }

    /// Whether the connection broke; a new one is needed.
    pub(crate) fn is_broken(&self) -> bool {
        self.calls.is_closed()
    }

    /// One call.
    pub(crate) async fn call<Q: Message, R: Message + Default>(
        &self,
        method: Method,
        request: &Q,
        timeout: Duration,
    ) -> Result<R, CallError> {
        let address = || self.address.to_string();
        let (answer, answered) = oneshot::channel();
        let call = Call { method, proto: request.encode_to_vec().into(), answer };
        let exchange = async {
            self.calls.send(call).await.map_err(|_| Arc::new(closed()))?;
            answered.await.unwrap_or_else(|_| Err(Arc::new(closed())))
        };
        let proto = match tokio::time::timeout(timeout, exchange).await {
            Err(_) => {
                return Err(CallError::TimedOut { address: address(), method: method_name(method), after: timeout });
            }
            Ok(Err(cause)) => return Err(CallError::Lost { address: address(), cause }),
            Ok(Ok(Err(refusal))) => return Err(CallError::Refused { address: address(), refusal: Box::new(refusal) }),
            Ok(Ok(Ok(proto))) => proto,
        };
        R::decode(proto).map_err(|error| CallError::Protocol { address: address(), detail: error.to_string() })
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was closed")
}

pub(crate) fn method_name(method: Method) -> &'static str {
    match method {
        Method::Hello => "Hello",
        Method::Metadata => "Metadata",
        Method::Publish => "Publish",
        Method::Fetch => "Fetch",
        Method::FindMessage => "FindMessage",
        Method::CreateTopic => "CreateTopic",
        Method::AlterTopic => "AlterTopic",
        Method::DeleteTopic => "DeleteTopic",
        Method::DescribeTopic => "DescribeTopic",
        Method::TrimTopic => "TrimTopic",
        Method::AddPartitions => "AddPartitions",
        Method::DescribeCluster => "DescribeCluster",
        Method::AcceptLoss => "AcceptLoss",
        Method::ForgetBroker => "ForgetBroker",
        Method::JoinGroup => "JoinGroup",
        Method::Heartbeat => "Heartbeat",
        Method::LeaveGroup => "LeaveGroup",
        Method::Claim => "Claim",
        Method::Release => "Release",
        Method::Commit => "Commit",
        Method::Committed => "Committed",
        Method::DescribeGroup => "DescribeGroup",
        Method::ListGroups => "ListGroups",
        Method::ResetGroup => "ResetGroup",
        Method::DeleteGroup => "DeleteGroup",
        _ => "a call",
    }
}

async fn run(link: Link, mut queue: mpsc::Receiver<Call>) {
    let (mut reader, mut writer) = link.stream.into_split();
    let mut unanswered: HashMap<u32, oneshot::Sender<Answer>> = HashMap::new();
    let mut correlation = 0_u32;
    let mut received = BytesMut::new();
    let error = loop {
        tokio::select! {
            call = queue.recv() => {
                let Some(call) = call else { return };
                correlation = correlation.wrapping_add(1);
                if unanswered.len() >= CALLS_UNANSWERED_MAX {
                    unanswered.retain(|_, answer| !answer.is_closed());
                }
                unanswered.insert(correlation, call.answer);
                if let Err(error) = write(&mut writer, call.method, correlation, &call.proto).await {
                    break error;
                }
            }
            frame = read(&mut reader, &mut received) => match frame {
                Ok((header, proto)) => {
                    let answer = if header.code == Status::Ok.code() {
                        Ok(proto)
                    } else {
                        Err(refusal::read(header.code, &proto))
                    };
                    if let Some(caller) = unanswered.remove(&header.correlation) {
                        // A caller that left does not want its answer any more.
                        let _ = caller.send(Ok(answer));
                    }
                }
                Err(error) => break error,
            },
        }
    };
    let error = Arc::new(error);
    for (_, caller) in unanswered {
        let _ = caller.send(Err(error.clone()));
    }
    queue.close();
    while let Ok(call) = queue.try_recv() {
        let _ = call.answer.send(Err(error.clone()));
    }
}

async fn write(writer: &mut OwnedWriteHalf, method: Method, correlation: u32, proto: &[u8]) -> io::Result<()> {
    let mut out = Vec::with_capacity(HEADER_BYTES + proto.len());
    out.extend_from_slice(&FrameHeader::new(method.code(), correlation, proto.len(), 0).encode());
    out.extend_from_slice(proto);
    writer.write_all(&out).await
}

/// Reads a frame. What was received stays in `received` when this future is dropped, so it may be cancelled.
async fn read(reader: &mut OwnedReadHalf, received: &mut BytesMut) -> io::Result<(FrameHeader, Bytes)> {
    loop {
        if let Some(head) = received.first_chunk::<HEADER_BYTES>() {
            let header = FrameHeader::decode(head, FRAME_BYTES_MAX)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let frame_bytes = header.frame_bytes() as usize;
            if received.len() >= frame_bytes {
                let mut frame = received.split_to(frame_bytes).freeze();
                frame.advance(HEADER_BYTES);
                frame.truncate(header.proto_bytes as usize);
                return Ok((header, frame));
            }
        }
        received.reserve(4096);
        if reader.read_buf(received).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the broker closed the connection"));
        }
    }
}
