//! A lane while it is connected: sends sets as long as windows and socket take them, takes answers in, both from one task
//! that does not wait for the one while the other could go on.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use corelane_proto::frame::{self, Method};
use corelane_proto::ids::TopicId;
use corelane_proto::{pb, wrapper};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::accumulator::{Batch, Life};
use super::delivery::Outcome;
use super::error::DeliveryError;
use super::lane::{Lane, SenderState, TICK, TROUBLE};
use super::outgoing::Outgoing;
use super::shared::Ended;
use super::{Acks, Compression};
use crate::net::connect::Link;
use crate::net::incoming::Incoming;

/// Bytes that may wait for the socket; then nothing more is taken from the queues.
const OUTGOING_BYTES_MAX: usize = 1 << 20;
/// Sets taken from the queues at once.
const TAKEN_MAX: usize = 64;
/// Rounds before other tasks of the thread get their turn.
const ROUNDS_MAX: usize = 8;
/// With `acks = none`: how many of the latest sets a refusal can still be told of.
const UNCONFIRMED_KEPT: usize = 4096;
/// With `acks = none`: how long the end waits for refusals that may be under way.
const FAREWELL: Duration = Duration::from_secs(1);

/// A set that was sent, by its correlation id.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) partition: usize,
    pub(super) sequence: u64,
    pub(super) messages: u32,
    pub(super) at: Instant,
}

/// A set on its way to the socket that nobody will answer.
pub(super) struct Silent {
    pub(super) partition: usize,
    pub(super) sequence: u64,
    pub(super) ended: Ended,
}

/// A set taken from its queue.
struct Taken {
    partition: usize,
    number: u32,
    topic_id: TopicId,
    epoch: u32,
    batch: Batch,
}

pub(super) struct Exchange<'a> {
    pub(super) lane: &'a mut Lane,
    socket: TcpStream,
    pub(super) address: Arc<str>,
    incoming: Incoming,
    pub(super) outgoing: Outgoing<Silent>,
    /// What was sent and not answered, by correlation id from `first_correlation` on.
    pub(super) sent: VecDeque<Option<Sent>>,
    pub(super) first_correlation: u32,
    last_heard: Instant,
    pub(super) was_answered: bool,
    /// How long a silent broker is waited for.
    patience: Duration,
    timer: Pin<Box<Sleep>>,
    /// Partitions that got well, or fell ill, since the last look at the queues.
    pub(super) health: Vec<(usize, bool)>,
    over: bool,
}

impl<'a> Exchange<'a> {
    /// Talks until the connection breaks (the error), nothing is to be done any more (none), or the producer is over
    /// (none). Also says whether a publish was answered.
    pub(super) async fn run(lane: &'a mut Lane, link: Link) -> (Option<io::Error>, bool) {
        let patience = lane.shared.cluster.settings.request_timeout;
        let mut exchange = Exchange {
            lane,
            socket: link.stream,
            address: link.address,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            sent: VecDeque::new(),
            first_correlation: 1,
            last_heard: Instant::now(),
            was_answered: false,
            patience,
            timer: Box::pin(tokio::time::sleep(TICK)),
            health: Vec::new(),
            over: false,
        };
        let error = std::future::poll_fn(|cx| exchange.poll(cx)).await;
        if exchange.over && exchange.lane.shared.settings.acks == Acks::None {
            exchange.say_farewell().await;
        }
        exchange.lane.report();
        let was_answered = exchange.was_answered;
        exchange.keep_unwritten();
        (error, was_answered)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Error>> {
        for _ in 0..ROUNDS_MAX {
            match self.round(cx) {
                Ok(true) => {}
                Ok(false) if self.over => return Poll::Ready(None),
                Ok(false) => return Poll::Pending,
                Err(error) => return Poll::Ready(Some(error)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads, takes, writes. False: nothing can be done before something wakes the task.
    fn round(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = self.receive(cx)?;
        self.lane.report();
        let now = Instant::now();
        self.wake_rested(now);
        let (taken, wakes_at) = self.take(cx, now, progress);
        if self.over {
            return Ok(false);
        }
        progress |= !taken.is_empty();
        for set in taken {
            self.send(set, now);
        }
        while let Poll::Ready(written) = self.outgoing.poll_write(&mut self.socket, cx) {
            if written? == 0 {
                break;
            }
            progress = true;
        }
        self.confirm_written();
        self.lane.give_up_old(now);
        self.check_silence(now)?;
        if !progress {
            progress = self.arm(cx, wakes_at);
        }
        Ok(progress)
    }

    // ---- Sending -----------------------------------------------------------------------------------------------

    /// Takes sets from the queues, partition by partition in turn. When there is nothing to do at all, the task's waker
    /// stays with the queues. Also returns when the task must wake by itself.
    fn take(&mut self, cx: &mut Context<'_>, now: Instant, progress: bool) -> (Vec<Taken>, Option<Instant>) {
        let shared = self.lane.shared.clone();
        let mut accumulator = shared.accumulator();
        for (partition, troubled) in self.health.drain(..) {
            accumulator.partitions[partition].troubled_until = troubled.then(|| now + TROUBLE);
            let obstacle = self.lane.senders.get(&partition).and_then(|sender| sender.obstacle.clone());
            accumulator.counters.obstacle = obstacle;
        }
        if accumulator.life == Life::Over {
            self.over = true;
            return (Vec::new(), None);
        }
        let lane = &mut *self.lane;
        lane.take_listed(&mut accumulator, now);
        let mut taken: Vec<Taken> = Vec::new();
        let mut bytes = self.outgoing.bytes();
        while bytes < OUTGOING_BYTES_MAX && taken.len() < TAKEN_MAX {
            let Some(partition) = lane.turn.pop_front() else { break };
            let Some(sender) = lane.senders.get_mut(&partition) else { continue };
            let unsent = taken.iter().rev().filter(|other| other.partition == partition).count();
            let in_flight_max = shared.settings.in_flight_max.saturating_sub(unsent);
            // Without answers there is no window; the socket is the limit.
            if sender.leaves || !(shared.settings.acks == Acks::None || sender.window.has_room(in_flight_max)) {
                sender.state = SenderState::Parked;
                continue;
            }
            let again = sender.window.take_again();
            accumulator.counters.retries += u64::from(again.is_some());
            let Some(batch) = again.or_else(|| accumulator.take_ready(partition)) else {
                sender.state = SenderState::Idle;
                accumulator.partitions[partition].listed = false;
                continue;
            };
            lane.turn.push_back(partition);
            bytes += batch.set.len();
            let queue = &accumulator.partitions[partition];
            let topic = &accumulator.topics[queue.topic];
            let flush_interval = match shared.settings.acks {
                Acks::Durable => Duration::from_millis(topic.flush_interval_ms),
                Acks::Received | Acks::None => Duration::ZERO,
            };
            self.patience = self.patience.max(shared.cluster.settings.request_timeout + flush_interval);
            let (number, topic_id, epoch) = (queue.partition, topic.topic_id, queue.epoch);
            taken.push(Taken { partition, number, topic_id, epoch, batch });
        }
        let lingers = accumulator.lanes[lane.index].lingering.front().map(|&(due, ..)| due);
        let rests = lane.resting.iter().map(|&(until, _)| until).min();
        let tick = self.is_busy().then(|| now + TICK);
        let wakes_at = [lingers, rests, tick].into_iter().flatten().min();
        let queue = &mut accumulator.lanes[self.lane.index];
        if taken.is_empty() && !progress {
            queue.wakes_at = wakes_at;
            queue.sleeping = Some(cx.waker().clone());
        }
        (taken, wakes_at)
    }

    fn is_busy(&self) -> bool {
        let is_answered = self.lane.shared.settings.acks != Acks::None;
        (is_answered && !self.sent.is_empty())
            || self.outgoing.bytes() > 0
            || !self.lane.turn.is_empty()
            || !self.lane.resting.is_empty()
    }

    fn send(&mut self, taken: Taken, now: Instant) {
        let Taken { partition, number, topic_id, epoch, mut batch } = taken;
        let settings = self.lane.shared.settings.clone();
        pack(&mut batch, settings.compression);
        let sender = self.lane.senders.get_mut(&partition).expect("sets are taken for the lane's own partitions");
        let (set, messages, expected_id) = (batch.set.clone(), batch.messages, batch.expected_id);
        let acks = settings.acks;
        let (sequence, silent) = if acks == Acks::None {
            let sequence = sender.unconfirmed_next;
            sender.unconfirmed_next += 1;
            let (topic, outcome) = (sender.topic.clone(), Outcome::Unconfirmed);
            let ended = Ended { batch, topic, partition: number, outcome };
            (sequence, Some(Silent { partition, sequence, ended }))
        } else {
            (sender.window.send(batch), None)
        };
        let request = pb::PublishRequest {
            topic_id: topic_id.to_vec(),
            partition: number,
            epoch,
            acks: match acks {
                Acks::Durable => pb::Acks::Durable,
                Acks::Received => pb::Acks::Received,
                Acks::None => pb::Acks::None,
            }
            .into(),
            sequence,
            expected_id,
        };
        let correlation = self.first_correlation.wrapping_add(self.sent.len() as u32);
        let before = self.outgoing.queued();
        self.outgoing.push(|head| frame::encode_request(head, Method::Publish, correlation, &request, set.len()), &set);
        self.sent.push_back(Some(Sent { partition, sequence, messages, at: now }));
        if let Some(silent) = silent {
            self.outgoing.push_unconfirmed(self.outgoing.queued() - before, silent);
            if self.sent.len() > UNCONFIRMED_KEPT {
                self.sent.pop_front();
                self.first_correlation = self.first_correlation.wrapping_add(1);
            }
        }
    }

    /// Sets without acknowledgement end when they are written.
    fn confirm_written(&mut self) {
        while let Some(silent) = self.outgoing.pop_written() {
            self.lane.ended.push(silent.ended);
        }
        self.lane.report();
    }

    pub(super) fn end(&mut self, partition: usize, batch: Batch, outcome: Outcome) {
        let sender = &self.lane.senders[&partition];
        self.lane.ended.push(Ended { batch, topic: sender.topic.clone(), partition: sender.partition, outcome });
    }

    // ---- Receiving ---------------------------------------------------------------------------------------------

    fn receive(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = false;
        while let Poll::Ready(result) = self.incoming.poll_read(&mut self.socket, cx) {
            if result? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the broker closed it"));
            }
            progress = true;
            let mut incoming = std::mem::take(&mut self.incoming);
            while let Some((header, proto)) = incoming.next_frame()? {
                self.answer(header, proto)?;
            }
            self.incoming = incoming;
        }
        if progress {
            self.last_heard = Instant::now();
        }
        Ok(progress)
    }

    // ---- Time --------------------------------------------------------------------------------------------------

    fn wake_rested(&mut self, now: Instant) {
        let lane = &mut *self.lane;
        let rested: Vec<usize> =
            lane.resting.extract_if(.., |&mut (until, _)| until <= now).map(|(_, partition)| partition).collect();
        for partition in rested {
            if let Some(sender) = lane.senders.get_mut(&partition) {
                sender.state = SenderState::Idle;
                lane.give_turn(partition);
            }
        }
    }

    /// A connection on which nothing is answered for long is given up.
    fn check_silence(&self, now: Instant) -> io::Result<()> {
        if self.lane.shared.settings.acks == Acks::None {
            return Ok(());
        }
        let Some(Some(oldest)) = self.sent.front() else { return Ok(()) };
        if now.saturating_duration_since(oldest.at.max(self.last_heard)) < self.patience {
            return Ok(());
        }
        let waited = format!("nothing was answered within {} ms", self.patience.as_millis());
        Err(io::Error::new(io::ErrorKind::TimedOut, waited))
    }

    /// Sets the timer before the task sleeps. True: it is time already.
    fn arm(&mut self, cx: &mut Context<'_>, wakes_at: Option<Instant>) -> bool {
        let Some(wakes_at) = wakes_at else { return false };
        let wakes_at = tokio::time::Instant::from_std(wakes_at);
        if self.timer.deadline() != wakes_at {
            self.timer.as_mut().reset(wakes_at);
        }
        self.timer.as_mut().poll(cx).is_ready()
    }

    // ---- The end -----------------------------------------------------------------------------------------------

    /// With `acks = none` refusals may be under way: closing without reading them could also lose what is still on its
    /// way to the broker.
    async fn say_farewell(&mut self) {
        let farewell = async {
            let _ = self.socket.shutdown().await;
            std::future::poll_fn(|cx| match self.receive(cx) {
                Ok(_) => Poll::<()>::Pending,
                Err(_) => Poll::Ready(()),
            })
            .await;
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }

    /// With `acks = none`: what was not begun waits for the next connection, what was cut off is lost.
    fn keep_unwritten(mut self) {
        let mut waiting = Vec::new();
        let outgoing = std::mem::take(&mut self.outgoing);
        for (mut silent, begun) in outgoing.into_unwritten() {
            let was_refused = matches!(silent.ended.outcome, Outcome::Failed(_));
            if begun && !was_refused {
                silent.ended.outcome = Outcome::Failed(DeliveryError::Lost);
            }
            if begun || was_refused {
                self.lane.ended.push(silent.ended);
            } else {
                waiting.push(silent);
            }
        }
        for silent in waiting.into_iter().rev() {
            let sender = self.lane.senders.get_mut(&silent.partition);
            sender.expect("a lane knows its partitions").window.put_back(silent.ended.batch);
        }
        self.lane.report();
    }
}

/// Compresses a set once, if that pays.
fn pack(batch: &mut Batch, compression: Compression) {
    if batch.packed {
        return;
    }
    batch.packed = true;
    let Some(codec) = compression.codec() else { return };
    match wrapper::wrap(codec, &batch.set, true) {
        Ok(wrapped) if wrapped.len() < batch.set.len() => {
            batch.set = wrapped;
            batch.wrapped = true;
        }
        // It would be larger than it is: it goes as it is.
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "a set goes uncompressed"),
    }
}
