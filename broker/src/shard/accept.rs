//! From a new socket to a served connection: accept within the limit, read exactly the Hello, decide who serves it, hand
//! it over or displace the session's older connections and serve. Whatever does not speak the protocol is closed.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use corelane_proto::frame::{self, FrameHeader, HEADER_BYTES, Method, PROTOCOL_VERSION, Status};
use corelane_proto::pb;
use futures_util::future::{Either, select};
use prost::Message;

use super::activity::{Activity, Ending};
use super::admission::Place;
use super::connection::Connection;
use super::receiver::Receiver;
use super::state::{Attempt, HandOver, Shard};
use crate::figures::{Closing, Refusal};
use crate::io::socket::{Listener, Socket};
use crate::limits;
use crate::messages::Failure;

/// How long accepting rests when the system has no more descriptors or memory for a connection.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// What is told to something that speaks HTTP.
const HTTP_HINT: &str = "This port speaks the Corelane protocol. Pages are at the broker's --http address.\n";

/// Accepts connections until the shard stops.
pub(super) async fn accept_all(shard: Rc<Shard>, listener: Listener) {
    loop {
        match listener.accept().await {
            Ok(socket) => {
                shard.admission.accepted();
                match shard.admission.admit(socket.peer().map(|peer| peer.ip())) {
                    Ok(place) => drop(glommio::spawn_local(greet(Rc::clone(&shard), socket, place)).detach()),
                    Err(refusal) => shard.noise.warn(|| {
                        format!("closed a new connection from {}: {}", peer(&socket), shard.admission.explain(refusal))
                    }),
                }
            }
            Err(error) => {
                shard.noise.warn(|| format!("a connection cannot be accepted: {error}"));
                glommio::timer::sleep(ACCEPT_REST).await;
            }
        }
        // A storm of connections must not keep those that are served from their turn.
        shard.context.turns.pass().await;
    }
}

/// Serves connections that other shards accepted.
pub(super) async fn take_over_all(shard: Rc<Shard>, inbox: async_channel::Receiver<HandOver>) {
    while let Ok(HandOver { socket, correlation, hello }) = inbox.recv().await {
        match Socket::new(socket, shard.peer_timeout) {
            Ok(socket) => {
                let shard = Rc::clone(&shard);
                glommio::spawn_local(take_over(shard, socket, correlation, hello)).detach();
            }
            Err(error) => shard.noise.warn(|| format!("a connection cannot be taken over: {error}")),
        }
    }
}

async fn take_over(shard: Rc<Shard>, socket: Socket, correlation: u32, hello: pb::HelloRequest) {
    match shard.admission.admit(socket.peer().map(|peer| peer.ip())) {
        Ok(_place) => serve(&shard, socket, correlation, &hello).await,
        Err(refusal) => {
            let reason = shard.admission.explain(refusal);
            shard.noise.warn(|| format!("a connection from {} is not taken over: {reason}", peer(&socket)));
            answer(&shard, &socket, correlation, &Failure::new(Status::Busy, format!("{reason}; try again later")))
                .await;
        }
    }
}

/// What a new connection turned out to be.
enum First {
    Hello {
        correlation: u32,
        hello: pb::HelloRequest,
    },
    /// Something else; a reason for the log.
    Noise(&'static str),
    /// It left without a word.
    Nothing,
}

async fn greet(shard: Rc<Shard>, socket: Socket, _place: Place) {
    let first = within(limits::HELLO_MAX, read_hello(&shard, &socket)).await;
    let (correlation, hello) = match first {
        Some(Ok(First::Hello { correlation, hello })) => (correlation, hello),
        Some(Ok(First::Noise(what))) => {
            let peer = peer(&socket);
            shard.admission.closed(Closing::NotTheProtocol);
            shard.noise.warn(|| format!("closed a connection from {peer}: {what}"));
            return;
        }
        Some(Ok(First::Nothing) | Err(_)) => return,
        None => {
            let peer = peer(&socket);
            shard.admission.closed(Closing::NoHello);
            shard.noise.warn(|| format!("closed a connection from {peer}: no Hello within {:?}", limits::HELLO_MAX));
            return;
        }
    };
    match check_hello(&shard, &hello) {
        Err(failure) => answer(&shard, &socket, correlation, &failure).await,
        Ok(wanted) if wanted == shard.context.identity.shard => serve(&shard, socket, correlation, &hello).await,
        Ok(wanted) => hand_over(&shard, socket, wanted, correlation, hello).await,
    }
}

fn peer(socket: &Socket) -> String {
    socket.peer().map_or_else(|| "a peer that left".to_owned(), |peer| peer.to_string())
}

async fn within<T>(patience: Duration, work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(work), pin!(glommio::timer::sleep(patience))).await {
        Either::Left((outcome, _)) => Some(outcome),
        Either::Right(_) => None,
    }
}

/// Reads the first frame and not a byte more: another shard may have to go on behind it.
async fn read_hello(shard: &Shard, socket: &Socket) -> io::Result<First> {
    let activity = Activity::new(Rc::clone(&shard.tick));
    let mut head = [0; HEADER_BYTES];
    if !receive_exactly(socket, &activity, &mut head).await? {
        return Ok(First::Nothing);
    }
    let header = match FrameHeader::decode(&head, frame::HELLO_BYTES_MAX) {
        Ok(header) if header.code == Method::Hello.code() && header.payload_bytes() == 0 => header,
        _ if is_http(&head) => {
            let answer = format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{HTTP_HINT}",
                HTTP_HINT.len()
            );
            send_all(socket, answer.as_bytes()).await?;
            return Ok(First::Noise("it speaks HTTP"));
        }
        _ if head[0] == 0x16 && head[1] == 0x03 => return Ok(First::Noise("it speaks TLS, which this port does not")),
        _ => return Ok(First::Noise("its first frame is not a Hello")),
    };
    let mut proto = vec![0; header.proto_bytes as usize];
    receive_exactly(socket, &activity, &mut proto).await?;
    match pb::HelloRequest::decode(&proto[..]) {
        Ok(hello) => Ok(First::Hello { correlation: header.correlation, hello }),
        Err(_) => Ok(First::Noise("its Hello cannot be parsed")),
    }
}

fn is_http(head: &[u8; HEADER_BYTES]) -> bool {
    [&b"GET "[..], b"POST ", b"HEAD ", b"PUT ", b"OPTIONS ", b"DELETE ", b"PRI * HTTP"]
        .iter()
        .any(|method| head.starts_with(method))
}

async fn receive_exactly(socket: &Socket, activity: &Activity, into: &mut [u8]) -> io::Result<bool> {
    let mut at = 0;
    while at < into.len() {
        let rest = &mut into[at..];
        let received = std::future::poll_fn(|context| socket.poll_receive(context, rest, &mut [])).await?;
        if received == 0 {
            return if at == 0 { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        activity.received(received);
        at += received;
    }
    Ok(true)
}

async fn send_all(socket: &Socket, bytes: &[u8]) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_empty() {
        let slices = [io::IoSlice::new(left)];
        let sent = std::future::poll_fn(|context| socket.poll_send(context, &slices, false)).await?;
        left = &left[sent..];
    }
    Ok(())
}

/// The shard that is to serve, or why none can.
fn check_hello(shard: &Shard, hello: &pb::HelloRequest) -> Result<u32, Failure> {
    let identity = &shard.context.identity;
    if shard.context.is_stopping.get() {
        return Err(Failure::new(Status::Stopping, "this broker is stopping"));
    }
    if hello.protocol_version != PROTOCOL_VERSION {
        let sentence = format!("this broker speaks protocol version {PROTOCOL_VERSION}");
        return Err(Failure::new(Status::UnsupportedVersion, sentence));
    }
    let not_here = |sentence: String| {
        let mut failure = Failure::new(Status::NotHere, sentence);
        failure.error.broker_id = Some(identity.broker_id);
        failure
    };
    if hello.cluster_id.as_ref().is_some_and(|cluster| *cluster != identity.cluster_id) {
        return Err(not_here(format!("this broker belongs to cluster {}", identity.cluster_id)));
    }
    if hello.broker_id.is_some_and(|broker| broker != identity.broker_id) {
        return Err(not_here(format!("this is broker {}", identity.broker_id)));
    }
    if !matches!(hello.session.len(), 0 | 16) {
        let mut failure = Failure::new(Status::InvalidRequest, "a session is named by 16 bytes");
        failure.error.field = Some("session".to_owned());
        return Err(failure);
    }
    match hello.shard {
        Some(wanted) if wanted >= identity.shards => {
            Err(not_here(format!("this broker has shards 0 to {}", identity.shards - 1)))
        }
        wanted => Ok(wanted.unwrap_or(identity.shard)),
    }
}

async fn answer(shard: &Shard, socket: &Socket, correlation: u32, failure: &Failure) {
    shard.context.counters.requests.add(Some(Method::Hello), failure.status, 1);
    let mut out = BytesMut::new();
    frame::encode_response(&mut out, failure.status, correlation, &failure.error, 0);
    // Whoever asked may be gone; there is nothing else to do for it.
    let _ = within(limits::HELLO_MAX, send_all(socket, &out)).await;
}

async fn hand_over(shard: &Shard, socket: Socket, wanted: u32, correlation: u32, hello: pb::HelloRequest) {
    let sent = socket.duplicate().map_err(|error| error.to_string()).and_then(|duplicate| {
        let hand_over = HandOver { socket: duplicate, correlation, hello };
        let sent = shard.peers[wanted as usize].try_send(hand_over);
        sent.map_err(|_| shard.admission.explain(shard.admission.refuse(Refusal::HandOvers)))
    });
    if let Err(reason) = sent {
        shard.noise.warn(|| format!("a connection cannot be handed to shard {wanted}: {reason}"));
        let failure = Failure::new(Status::Busy, "the shard cannot take the connection now; try again");
        answer(shard, &socket, correlation, &failure).await;
    }
}

/// Serves a connection from the answer to its Hello until its end.
async fn serve(shard: &Rc<Shard>, socket: Socket, correlation: u32, hello: &pb::HelloRequest) {
    if shard.context.is_stopping.get() {
        answer(shard, &socket, correlation, &Failure::new(Status::Stopping, "this broker is stopping")).await;
        return;
    }
    let connection = Connection::new(Rc::clone(shard), socket.clone());
    let key = shard.connections.borrow_mut().insert(Rc::clone(&connection));
    match displace(shard, hello, &connection).await {
        Ok(()) => {
            tracing::debug!(peer = connection.peer(), client = hello.client_name, "a connection is served");
            shard.context.counters.requests.add(Some(Method::Hello), Status::Ok, 1);
            connection.outgoing.push_heads(|out| {
                frame::encode_response(out, Status::Ok, correlation, &hello_response(shard), 0);
            });
            // For as long as the connection lives.
            let _ahead = shard.let_send_ahead(&socket);
            let mut receiver = Receiver::new(socket, Rc::clone(&connection.activity), shard.receive_extra.clone());
            connection.serve(&mut receiver).await;
        }
        Err(failure) => answer(shard, &socket, correlation, &failure).await,
    }
    connection.end(Ending::AtOnce);
    shard.connections.borrow_mut().remove(key);
    shard.connection_left.notify();
    forget_session(shard, hello, &connection);
}

/// Ends the session's connections of lower attempts and waits until nothing that they sent can be taken any more.
async fn displace(shard: &Shard, hello: &pb::HelloRequest, connection: &Rc<Connection>) -> Result<(), Failure> {
    if hello.session.is_empty() {
        return Ok(());
    }
    let older: Vec<Rc<Connection>> = {
        let mut sessions = shard.sessions.borrow_mut();
        let known = sessions.entry(hello.session.clone()).or_default();
        if known.iter().any(|attempt| attempt.number >= hello.attempt) {
            return Err(Failure::new(Status::Fenced, "a later connection of this session is served"));
        }
        let older = known.iter().map(|attempt| Rc::clone(&attempt.connection)).collect();
        known.push(Attempt { number: hello.attempt, connection: Rc::clone(connection) });
        older
    };
    for connection in older {
        connection.end(Ending::AtOnce);
        connection.until_ended().await;
    }
    Ok(())
}

fn forget_session(shard: &Shard, hello: &pb::HelloRequest, connection: &Rc<Connection>) {
    let mut sessions = shard.sessions.borrow_mut();
    if let Some(known) = sessions.get_mut(&hello.session) {
        known.retain(|attempt| !Rc::ptr_eq(&attempt.connection, connection));
        if known.is_empty() {
            sessions.remove(&hello.session);
        }
    }
}

fn hello_response(shard: &Shard) -> pb::HelloResponse {
    let identity = &shard.context.identity;
    pb::HelloResponse {
        cluster_id: identity.cluster_id.clone(),
        broker_id: identity.broker_id,
        shard: identity.shard,
        shards: identity.shards,
        broker_version: identity.version.to_owned(),
        frame_bytes_max: limits::FRAME_BYTES_MAX as u32,
    }
}
