//! One connection after its Hello: its read loop takes requests in order and hands each to its service; responses go out
//! in the order of completion. A publish's payload is received where the log wants it. What waits (a flush, a long poll)
//! waits beside the loop; when the bounds are reached the loop stops reading, so that the socket pushes back.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use bytes::BytesMut;
use corelane_proto::frame::{FrameError, FrameHeader, HEADER_BYTES, Method, Status};
use corelane_proto::pb;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use prost::Message;
use tokio::sync::Semaphore;

use super::activity::{Activity, Ending};
use super::durable::DurableQueue;
use super::outgoing::Outgoing;
use super::receiver::Receiver;
use super::state::Shard;
use crate::figures::Closing;
use crate::io::signal::Signal;
use crate::io::socket::Socket;
use crate::io::task::TiedTask;
use crate::limits;
use crate::messages::{Failure, IdMap, PartitionKey};
use crate::service;
use crate::service::context::{Counters, LongPolls, Reply, Sequences};

type Work = Pin<Box<dyn Future<Output = ()>>>;
/// A request on its way to its reply.
type Answering = Pin<Box<dyn Future<Output = Reply>>>;

/// A connection of this shard.
pub(super) struct Connection {
    pub(super) shard: Rc<Shard>,
    pub(super) activity: Rc<Activity>,
    pub(super) outgoing: Outgoing,
    socket: Socket,
    sequences: Sequences,
    /// Requests that were read and are not answered.
    in_flight: Cell<usize>,
    /// Of these, publishes.
    publishes: Cell<usize>,
    /// Of the others, those that wait for news.
    long_polls: LongPolls,
    /// What waits beside the read loop.
    work: RefCell<FuturesUnordered<Work>>,
    work_waker: Cell<Option<Waker>>,
    durable: RefCell<IdMap<PartitionKey, Rc<DurableQueue>>>,
    /// Set when the read loop has ended: nothing of this connection is taken any more.
    has_ended: Cell<bool>,
    ended: Signal,
}

impl Connection {
    pub(super) fn new(shard: Rc<Shard>, socket: Socket) -> Rc<Self> {
        let activity = Rc::new(Activity::new(Rc::clone(&shard.tick)));
        let outgoing = Outgoing::new(socket.clone(), Rc::clone(&activity), &shard);
        Rc::new(Self {
            shard,
            activity,
            outgoing,
            socket,
            sequences: Sequences::default(),
            in_flight: Cell::new(0),
            publishes: Cell::new(0),
            long_polls: LongPolls::default(),
            work: RefCell::default(),
            work_waker: Cell::new(None),
            durable: RefCell::default(),
            has_ended: Cell::new(false),
            ended: Signal::default(),
        })
    }

    /// Ends the connection; what was received but not read is dropped.
    pub(super) fn end(&self, ending: Ending) {
        self.activity.end(ending);
        match ending {
            Ending::No => {}
            // Wakes the read loop; responses still go out.
            Ending::Orderly => self.socket.finish_receiving(),
            Ending::AtOnce => self.socket.shutdown(),
        }
        self.outgoing.drained.notify();
    }

    /// Completes when no request of this connection will be taken any more.
    pub(super) async fn until_ended(&self) {
        while !self.has_ended.get() {
            self.ended.wait().await;
        }
    }

    /// What a request that waits beside the loop does when it is answered.
    fn answer(&self, correlation: u32, method: Method, reply: Reply) {
        self.note_reply(correlation, method, &reply);
        self.outgoing.push(correlation, reply);
        self.finish_requests(1);
    }

    fn note_reply(&self, correlation: u32, method: Method, reply: &Reply) {
        self.note_answer(correlation, Some(method), reply.status, || {
            pb::Error::decode(&reply.proto[..]).map(|error| error.message).unwrap_or_default()
        });
    }

    /// Counts an answer. Of what the broker did not foresee a line is logged, with the request's name: where it came from
    /// and its number there, which the client has too.
    fn note_answer(&self, correlation: u32, method: Option<Method>, status: Status, message: impl FnOnce() -> String) {
        self.shard.context.counters.requests.add(method, status, 1);
        if status == Status::Internal {
            self.shard.noise.warn(|| {
                let method = method.map_or_else(String::new, |method| format!("{method:?}"));
                format!("request {}#{correlation} {method} failed: {}", self.peer(), message())
            });
        }
    }

    /// Publishes whose requests came at these times have this outcome.
    pub(super) fn count_publishes(&self, status: Status, began: impl Iterator<Item = Instant>) {
        let (counters, now) = (&self.shard.context.counters, Instant::now());
        let mut count = 0;
        for began in began {
            count += 1;
            counters.times.publish.record(now.duration_since(began));
        }
        counters.requests.add(Some(Method::Publish), status, count);
    }

    /// Requests that were read and are not answered.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    pub(super) fn answer_publishes(&self, count: usize, encode: impl FnOnce(&mut BytesMut)) {
        self.outgoing.push_heads(encode);
        self.finish_requests(count);
        self.publishes.set(self.publishes.get() - count);
    }

    fn finish_requests(&self, count: usize) {
        let (before, waits) = (self.in_flight.get(), self.waits());
        self.in_flight.set(before - count);
        if before >= limits::REQUESTS_IN_FLIGHT_MAX || waits >= limits::WAITS_MAX || self.activity.is_ending() {
            self.outgoing.drained.notify();
        }
    }

    /// Requests in flight that are not publishes.
    fn waits(&self) -> usize {
        self.in_flight.get() - self.publishes.get()
    }

    /// Once a second: memory and patience of a connection that does not move.
    pub(super) fn sweep(&self) {
        let is_awaited = self.shard.is_memory_awaited();
        if self.activity.is_frame_late(is_awaited) {
            if is_awaited {
                self.shard.be_wary();
            }
            self.close(Closing::FrameLate, "a frame does not arrive");
        } else if self.outgoing.bytes() > 0 || self.outgoing.has_memory_out() {
            let stuck_s = if self.outgoing.waits_for_peer() { self.activity.unsent_s() } else { 0 };
            if stuck_s >= limits::STUCK_AFTER_S {
                self.outgoing.release_memory();
            }
            if stuck_s >= self.patience_s(is_awaited) {
                if self.outgoing.has_memory_out() {
                    self.socket.drop_unsent_when_closed();
                }
                self.close(Closing::Stuck, "it reads nothing");
            }
        } else if self.in_flight.get() == 0 && self.activity.silent_s() >= self.shard.idle_max_s {
            self.close(Closing::Idle, "nothing happens on it");
        }
    }

    /// How long the peer may take nothing, in seconds: less when it holds up others.
    fn patience_s(&self, is_memory_awaited: bool) -> u32 {
        if self.shard.is_outgoing_full() && self.outgoing.head_bytes() > 0 {
            limits::STUCK_AFTER_S
        } else if is_memory_awaited && self.outgoing.has_memory_out() {
            limits::ZERO_COPY_STUCK_MAX_S.min(self.shard.send_max_s)
        } else {
            self.shard.send_max_s
        }
    }

    /// Ends the connection at once, with a line in the log and a count.
    fn close(&self, why: Closing, what: &str) {
        if self.activity.ending() < Ending::AtOnce {
            self.shard.admission.closed(why);
            self.shard.noise.warn(|| format!("closed a connection from {}: {what}", self.peer()));
            self.end(Ending::AtOnce);
        }
    }

    /// Serves requests until the peer finishes, something fails or the connection is ended.
    pub(super) async fn serve(self: &Rc<Self>, receiver: &mut Receiver) {
        let sending = Rc::clone(self);
        let sender = TiedTask::spawn(async move {
            if let Err(error) = sending.outgoing.send_all().await {
                tracing::debug!(%error, "a connection cannot be sent to");
            }
            sending.end(Ending::AtOnce);
        });
        let working = Rc::clone(self);
        let worker = TiedTask::spawn(async move { working.run_work().await });
        let outcome = self.read_requests(receiver).await;
        self.has_ended.set(true);
        self.ended.notify();
        if let Err(error) = &outcome {
            tracing::debug!(%error, "a connection ends");
            if error.kind() == io::ErrorKind::TimedOut {
                self.shard.admission.closed(Closing::PeerGone);
            }
        }
        if outcome.is_ok() || self.activity.ending() == Ending::Orderly {
            self.finish_answers().await;
        }
        // Long polls and waits for flushes go with their tasks.
        drop((sender, worker));
        drop(self.work.take());
        drop(self.durable.take());
    }

    /// The peer sends no more, but may still read: all is answered but what waits for news.
    async fn finish_answers(&self) {
        let finished = async {
            while (self.in_flight.get() > self.long_polls.count() || self.outgoing.bytes() > 0)
                && self.activity.ending() != Ending::AtOnce
            {
                self.outgoing.drained.wait().await;
            }
        };
        let patience = glommio::timer::sleep(limits::FINISH_ANSWERS_MAX);
        select(pin!(finished), pin!(patience)).await;
        self.socket.finish();
    }

    async fn read_requests(self: &Rc<Self>, receiver: &mut Receiver) -> io::Result<()> {
        let mut since_yield = 0;
        loop {
            self.until_room().await;
            if receiver.is_empty() {
                self.shard.context.turns.take().await;
            }
            if !receiver.fill(HEADER_BYTES).await? {
                return Ok(());
            }
            let frame_bytes = self.read_request(receiver).await?;
            // A socket that always has more must not keep the others from their turn.
            since_yield += limits::YIELD_COST_BYTES + frame_bytes;
            if since_yield >= limits::YIELD_AFTER_BYTES {
                since_yield = 0;
                self.shard.context.turns.pass().await;
            }
        }
    }

    /// Waits until the connection may take another request.
    async fn until_room(&self) {
        while self.in_flight.get() >= limits::REQUESTS_IN_FLIGHT_MAX
            || self.waits() >= limits::WAITS_MAX
            || self.outgoing.is_full()
        {
            if self.activity.is_ending() {
                return;
            }
            self.outgoing.drained.wait().await;
        }
    }

    /// Reads one frame and sees to it. Answers its length.
    async fn read_request(self: &Rc<Self>, receiver: &mut Receiver) -> io::Result<usize> {
        let head: &[u8; HEADER_BYTES] = receiver.take(HEADER_BYTES).try_into().expect("as long as asked");
        let header = match FrameHeader::decode(head, limits::FRAME_BYTES_MAX as u32) {
            Ok(header) => header,
            Err(FrameError::UnknownFlags { flags, correlation, rest_bytes }) => {
                receiver.skip(rest_bytes as usize).await?;
                self.refuse(
                    correlation,
                    None,
                    Failure::new(Status::Unsupported, format!("flags {flags:#06x} mean nothing yet")),
                );
                return Ok(rest_bytes as usize);
            }
            Err(error) => return Err(self.bad_frame(&error.to_string())),
        };
        let (proto_bytes, payload_bytes) = (header.proto_bytes as usize, header.payload_bytes());
        if proto_bytes > limits::REQUEST_PROTO_BYTES_MAX {
            return Err(self.bad_frame(&format!("a request message of {proto_bytes} bytes")));
        }
        if !receiver.fill(proto_bytes).await? && proto_bytes > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let proto = receiver.take(proto_bytes);
        let method = Method::try_from(header.code);
        if method == Ok(Method::Publish) {
            let request = pb::PublishRequest::decode(proto);
            self.publish(receiver, header.correlation, request.ok(), payload_bytes).await?;
        } else {
            let method = method.ok();
            let request = self.request(method, proto, payload_bytes);
            receiver.skip(payload_bytes).await?;
            match (request, method) {
                (Ok(request), Some(method)) => self.start(header.correlation, method, request),
                (Ok(_), None) => unreachable!("a method that is not known has no request"),
                (Err(failure), method) => self.refuse(header.correlation, method, failure),
            }
        }
        Ok(header.frame_bytes() as usize)
    }

    fn bad_frame(&self, what: &str) -> io::Error {
        self.close(Closing::BadFrame, what);
        io::ErrorKind::InvalidData.into()
    }

    pub(super) fn peer(&self) -> String {
        self.socket.peer().map_or_else(|| "a peer that left".to_owned(), |peer| peer.to_string())
    }

    fn refuse(&self, correlation: u32, method: Option<Method>, failure: Failure) {
        self.note_answer(correlation, method, failure.status, || failure.error.message.clone());
        self.outgoing.push(correlation, failure.into());
    }

    /// The future that answers a request other than Publish.
    fn request(&self, method: Option<Method>, proto: &[u8], payload_bytes: usize) -> Result<Answering, Failure> {
        let invalid = |what: &str| Failure::new(Status::InvalidRequest, what);
        if payload_bytes > 0 {
            return Err(invalid("only Publish carries a payload"));
        }
        let context = Rc::clone(&self.shard.context);
        match method {
            None => Err(Failure::new(Status::Unsupported, "this broker does not know the method; it may be older")),
            Some(Method::Hello) => Err(invalid("a connection says Hello once, first")),
            Some(Method::Fetch) => {
                let request =
                    pb::FetchRequest::decode(proto).map_err(|_| invalid("the request message cannot be parsed"))?;
                Ok(Box::pin(service::fetch::fetch(context, self.long_polls.clone(), request)))
            }
            Some(method) if method != Method::FindMessage && self.shard.is_outgoing_full() => {
                Err(outgoing_full(&context.counters))
            }
            Some(method) => {
                let answer: Answering = if service::groups::answers(method) {
                    let waits = self.long_polls.clone();
                    Box::pin(service::groups::call(context, waits, method, proto.to_vec(), self.peer()))
                } else {
                    Box::pin(service::call(context, method, proto.to_vec()))
                };
                Ok(match self.shard.seats(method) {
                    Some(seats) => Box::pin(describe(Rc::clone(&self.shard), Arc::clone(seats), answer)),
                    None => answer,
                })
            }
        }
    }

    /// Runs a request; what is not answered at once waits beside the loop.
    fn start(self: &Rc<Self>, correlation: u32, method: Method, mut request: Answering) {
        self.in_flight.set(self.in_flight.get() + 1);
        let mut context = std::task::Context::from_waker(Waker::noop());
        match request.as_mut().poll(&mut context) {
            Poll::Ready(reply) => self.answer(correlation, method, reply),
            Poll::Pending => {
                let (connection, began) = (Rc::downgrade(self), Instant::now());
                self.push_work(Box::pin(async move {
                    let reply = request.await;
                    if let Some(connection) = connection.upgrade() {
                        if method == Method::Commit {
                            connection.shard.context.counters.times.commit.record(began.elapsed());
                        }
                        connection.answer(correlation, method, reply);
                    }
                }));
            }
        }
    }

    pub(super) fn push_work(&self, work: Work) {
        self.work.borrow_mut().push(work);
        if let Some(waker) = self.work_waker.take() {
            waker.wake();
        }
    }

    async fn run_work(&self) {
        loop {
            self.shard.context.turns.take().await;
            let has_ended = poll_fn(|context| {
                self.work_waker.set(Some(context.waker().clone()));
                Poll::Ready(matches!(self.work.borrow_mut().poll_next_unpin(context), Poll::Ready(Some(()))))
            });
            if !has_ended.await {
                until_woken().await;
            }
        }
    }

    async fn publish(
        self: &Rc<Self>,
        receiver: &mut Receiver,
        correlation: u32,
        request: Option<pb::PublishRequest>,
        set_bytes: usize,
    ) -> io::Result<()> {
        let began = Instant::now();
        let admitted = request
            .ok_or_else(|| Failure::new(Status::InvalidRequest, "the request message cannot be parsed"))
            .and_then(|request| service::publish::admit(&self.shard.context, &self.sequences, &request, set_bytes));
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(failure) => return self.read_past(receiver, correlation, set_bytes, failure).await,
        };
        let proof_bytes = self.proof_bytes(set_bytes);
        if proof_bytes > 0 && !receiver.fill(proof_bytes).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let landing = match select(pin!(service::publish::landing(&admitted)), pin!(self.activity.until_ending())).await
        {
            Either::Left((landing, _)) => landing,
            Either::Right(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let mut landing = match landing {
            Ok(landing) => landing,
            Err(failure) => return self.read_past(receiver, correlation, set_bytes, failure).await,
        };
        receiver.receive_into(&mut landing).await?;
        let key = admitted.partition_key();
        match service::publish::append(&self.shard.context, &self.sequences, admitted, landing).await {
            service::publish::Published::Silent => self.count_publishes(Status::Ok, std::iter::once(began)),
            service::publish::Published::Reply(reply) => {
                if reply.status == Status::Ok {
                    self.count_publishes(Status::Ok, std::iter::once(began));
                } else {
                    self.note_reply(correlation, Method::Publish, &reply);
                }
                self.outgoing.push(correlation, reply);
            }
            service::publish::Published::WhenDurable { partition, first, next } => {
                self.in_flight.set(self.in_flight.get() + 1);
                self.publishes.set(self.publishes.get() + 1);
                if let Some(queue) = self.durable.borrow().get(&key) {
                    queue.push(correlation, first, next, began);
                    return Ok(());
                }
                let queue = Rc::new(DurableQueue::new(key, partition));
                queue.push(correlation, first, next, began);
                self.push_work(Box::pin(Rc::clone(&queue).answer_all(Rc::downgrade(self))));
                self.durable.borrow_mut().insert(key, queue);
            }
        }
        Ok(())
    }

    /// How much of a set must have come before memory of the log's is set aside for it.
    fn proof_bytes(&self, set_bytes: usize) -> usize {
        if set_bytes <= limits::CLAIM_PROVEN_BYTES || !self.shard.log.is_memory_scarce() {
            0
        } else if self.shard.is_wary() {
            set_bytes
        } else {
            limits::CLAIM_PROVEN_BYTES
        }
    }

    pub(super) fn forget_durable(&self, key: &PartitionKey) {
        self.durable.borrow_mut().remove(key);
    }

    async fn read_past(
        &self,
        receiver: &mut Receiver,
        correlation: u32,
        set_bytes: usize,
        failure: Failure,
    ) -> io::Result<()> {
        receiver.skip(set_bytes).await?;
        self.refuse(correlation, Some(Method::Publish), failure);
        Ok(())
    }
}

/// Ends when the task is woken: whatever was polled before it has something to do.
async fn until_woken() {
    let mut has_waited = false;
    poll_fn(|_| if std::mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Answers with what may be megabytes once there is a seat for it. Many may have waited for one, so it is asked again
/// whether more can be held.
async fn describe(shard: Rc<Shard>, seats: Arc<Semaphore>, answer: Answering) -> Reply {
    let _seat = seats.acquire().await.expect("the semaphore is never closed");
    if shard.is_outgoing_full() {
        return outgoing_full(&shard.context.counters).into();
    }
    answer.await
}

fn outgoing_full(counters: &Counters) -> Failure {
    Counters::add(&counters.busy, 1);
    Failure::new(Status::Busy, "too much waits to be sent here; try again after a pause")
}
