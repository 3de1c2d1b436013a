//! A lane: the task that owns a producer's connection to one shard of one broker, for all partitions served there. It
//! connects when there is something to send, keeps each partition's window, gives up what is too old, hands partitions
//! on when they move, and sends what was unanswered again after a break. The talking itself is in `exchange`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::accumulator::{Accumulator, Batch, Life};
use super::delivery::Outcome;
use super::error::DeliveryError;
use super::exchange::Exchange;
use super::shared::{Ended, Shared};
use super::window::Window;
use crate::cluster::Place;
use crate::net::backoff::Backoff;
use crate::net::connect::Greeting;

/// How long messages without a key avoid a partition after an obstacle; while it lasts, the time begins anew.
pub(super) const TROUBLE: Duration = Duration::from_secs(5);
/// How often sets that wait are looked at for their age.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// A partition on this lane.
pub(super) struct Sender {
    pub(super) window: Window<Batch>,
    /// The next number with `acks = none`, where nothing is kept in the window.
    pub(super) unconfirmed_next: u64,
    pub(super) topic: Arc<str>,
    pub(super) partition: u32,
    pub(super) state: SenderState,
    /// It moves away, or its topic is gone: nothing is sent any more.
    pub(super) leaves: bool,
    pub(super) troubled: bool,
    pub(super) backoff: Backoff,
    /// The last obstacle, for the error when time is up.
    pub(super) obstacle: Option<Arc<str>>,
}

/// Where a partition stands in the lane's turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SenderState {
    /// Nothing to send.
    Idle,
    /// In the lane's `turn`.
    InTurn,
    /// Its window is full or shut: an answer brings it back.
    Parked,
    /// In the lane's `resting`, after a refusal.
    Resting,
}

pub(super) struct Lane {
    pub(super) shared: Arc<Shared>,
    pub(super) index: usize,
    pub(super) place: Place,
    pub(super) senders: HashMap<usize, Sender>,
    /// Partitions that may send, in turn.
    pub(super) turn: VecDeque<usize>,
    pub(super) resting: Vec<(Instant, usize)>,
    /// Sets that ended since the last report.
    pub(super) ended: Vec<Ended>,
    attempt: u64,
    next_tick: Instant,
}

/// What a look at the queues found.
pub(super) enum Work {
    /// Something waits.
    Some,
    /// Nothing waits; the lane may sleep.
    None,
    /// The producer is over.
    Over,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>, index: usize, place: Place) -> Self {
        Self {
            shared,
            index,
            place,
            senders: HashMap::new(),
            turn: VecDeque::new(),
            resting: Vec::new(),
            ended: Vec::new(),
            attempt: 0,
            next_tick: Instant::now(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut backoff = self.shared.cluster.backoff();
        while self.wait_for_work().await {
            let greeting = self.greeting();
            let (shared, place) = (self.shared.clone(), self.place);
            let connecting = shared.cluster.connect_place(place, &greeting, shared.cluster.settings.connect_timeout);
            let Some(connected) = self.unless_idle(connecting).await else { continue };
            let obstacle = match connected {
                Ok(link) => {
                    self.shared.accumulator().counters.connections += 1;
                    let (error, was_answered) = Exchange::run(&mut self, link).await;
                    if was_answered {
                        backoff.reset();
                    }
                    let Some(error) = error else { continue };
                    format!("{}: the connection broke: {error}", self.shared.cluster.address_of(self.place.broker_id))
                }
                Err(error) => error.to_string(),
            };
            tracing::debug!(broker = self.place.broker_id, shard = self.place.shard, obstacle, "a producer waits");
            self.meet_obstacle(&obstacle.into());
            let pause = backoff.pause();
            self.unless_idle(tokio::time::sleep(pause)).await;
        }
        self.give_everything_up();
    }

    fn greeting(&mut self) -> Greeting {
        self.attempt += 1;
        Greeting {
            session: self.shared.session.to_vec(),
            attempt: self.attempt,
            ..self.shared.cluster.greeting(Some(self.place))
        }
    }

    /// Sleeps until something is to be sent. False: the producer is over.
    async fn wait_for_work(&mut self) -> bool {
        std::future::poll_fn(|cx| match self.look(Some(cx)) {
            Work::Some => Poll::Ready(true),
            Work::Over => Poll::Ready(false),
            Work::None => Poll::Pending,
        })
        .await
    }

    /// Awaits something while the lane is not connected, keeping house meanwhile. `None`: there is nothing to send any
    /// more, or the producer is over.
    async fn unless_idle<T>(&mut self, doing: impl Future<Output = T>) -> Option<T> {
        let mut doing = std::pin::pin!(doing);
        loop {
            tokio::select! {
                done = &mut doing => return Some(done),
                () = tokio::time::sleep(TICK) => {
                    self.give_up_old(Instant::now());
                    if !matches!(self.look(None), Work::Some) {
                        return None;
                    }
                }
            }
        }
    }

    /// Looks at the queues while not connected; with `cx` it goes to sleep if there is nothing.
    fn look(&mut self, cx: Option<&mut Context<'_>>) -> Work {
        let shared = self.shared.clone();
        let mut accumulator = shared.accumulator();
        let now = Instant::now();
        self.take_listed(&mut accumulator, now);
        let life = accumulator.life;
        self.drop_idle(&mut accumulator);
        let waits = !accumulator.lanes[self.index].lingering.is_empty() || !self.turn.is_empty();
        if let Some(cx) = cx
            && life != Life::Over
            && !waits
        {
            let lane = &mut accumulator.lanes[self.index];
            lane.wakes_at = None;
            lane.sleeping = Some(cx.waker().clone());
        }
        drop(accumulator);
        self.report();
        match (life, waits) {
            (Life::Over, _) => Work::Over,
            (_, true) => Work::Some,
            (_, false) => Work::None,
        }
    }

    /// Takes partitions that have nothing to send out of the turn.
    fn drop_idle(&mut self, accumulator: &mut Accumulator) {
        let senders = &mut self.senders;
        self.turn.retain(|partition| {
            let Some(sender) = senders.get_mut(partition) else { return false };
            let waits = sender.window.has_again() || accumulator.has_sets(*partition);
            if !waits {
                sender.state = SenderState::Idle;
                accumulator.partitions[*partition].listed = false;
            }
            waits
        });
    }

    /// Takes from the accumulator what concerns this lane: partitions with something new, sets that lingered long enough,
    /// partitions that leave.
    pub(super) fn take_listed(&mut self, accumulator: &mut Accumulator, now: Instant) {
        while let Some(&(due, partition, number)) = accumulator.lanes[self.index].lingering.front() {
            if due > now {
                break;
            }
            accumulator.lanes[self.index].lingering.pop_front();
            accumulator.close_lingering(partition, number);
        }
        self.take_new(accumulator);
        for partition in std::mem::take(&mut accumulator.lanes[self.index].leaving) {
            self.sender(accumulator, partition).leaves = true;
        }
        let leaving: Vec<usize> =
            self.senders.iter().filter(|(_, sender)| sender.leaves).map(|(&partition, _)| partition).collect();
        for partition in leaving {
            self.part_with(accumulator, partition);
        }
        // One that was to leave and came back meanwhile is new here; nobody would wake this lane for it.
        self.take_new(accumulator);
    }

    fn take_new(&mut self, accumulator: &mut Accumulator) {
        while let Some(partition) = accumulator.lanes[self.index].listed.pop_front() {
            self.sender(accumulator, partition);
            self.give_turn(partition);
        }
    }

    fn sender(&mut self, accumulator: &Accumulator, partition: usize) -> &mut Sender {
        self.senders.entry(partition).or_insert_with(|| {
            let queue = &accumulator.partitions[partition];
            Sender {
                window: Window::default(),
                unconfirmed_next: 0,
                topic: accumulator.topics[queue.topic].name.clone(),
                partition: queue.partition,
                state: SenderState::Idle,
                leaves: false,
                troubled: false,
                backoff: self.shared.cluster.backoff(),
                obstacle: None,
            }
        })
    }

    /// A partition that may have something to send waits for its turn, unless it is waiting for something else.
    pub(super) fn give_turn(&mut self, partition: usize) {
        if let Some(sender) = self.senders.get_mut(&partition)
            && sender.state == SenderState::Idle
        {
            sender.state = SenderState::InTurn;
            self.turn.push_back(partition);
        }
    }

    /// Lets a leaving partition go once nothing of it is under way: what waits fails when its topic is gone; else it goes
    /// to the next lane, the oldest first, so that its order is kept.
    fn part_with(&mut self, accumulator: &mut Accumulator, partition: usize) {
        let Some(sender) = self.senders.get_mut(&partition) else { return };
        if !sender.window.is_landed() {
            return;
        }
        let again = sender.window.drain_again();
        // The numbers of this connection go on, should the partition come back while it lasts.
        sender.leaves = false;
        sender.state = SenderState::Idle;
        let queue = &mut accumulator.partitions[partition];
        if let Some(error) = queue.gone.clone() {
            for batch in again.into_iter().chain(queue.ready.drain(..)) {
                let (topic, outcome) = (sender.topic.clone(), Outcome::Failed(error.clone()));
                self.ended.push(Ended { batch, topic, partition: sender.partition, outcome });
            }
            queue.listed = false;
        } else {
            for batch in again.into_iter().rev() {
                queue.ready.push_front(batch);
            }
            if let Some(lane) = queue.next_lane.take() {
                queue.lane = lane;
            }
            // Its set that lingers goes along at once: this lane knows when it is due, the next one does not.
            queue.listed = false;
            let _ = accumulator.close_set(partition);
            if !accumulator.partitions[partition].ready.is_empty()
                && let Some(waker) = accumulator.list(partition)
            {
                waker.wake();
            }
        }
        self.turn.retain(|&other| other != partition);
        self.resting.retain(|&(_, other)| other != partition);
    }

    /// The connection is gone, or could not be made: what was under way waits again, and messages without a key go
    /// elsewhere meanwhile.
    fn meet_obstacle(&mut self, obstacle: &Arc<str>) {
        self.turn.clear();
        self.resting.clear();
        let shared = self.shared.clone();
        let mut accumulator = shared.accumulator();
        let now = Instant::now();
        accumulator.counters.obstacle = Some(obstacle.clone());
        for (&partition, sender) in &mut self.senders {
            sender.window.disconnect();
            sender.unconfirmed_next = 0;
            sender.state = SenderState::Idle;
            let queue = &mut accumulator.partitions[partition];
            if queue.lane == self.index && (sender.window.has_again() || queue.listed) {
                sender.obstacle = Some(obstacle.clone());
                sender.troubled = true;
                queue.troubled_until = Some(now + TROUBLE);
                sender.state = SenderState::InTurn;
                self.turn.push_back(partition);
            }
        }
        drop(accumulator);
        let waiting = self.turn.iter().filter_map(|partition| self.senders.get(partition));
        let mut topics: Vec<&Arc<str>> = waiting.map(|sender| &sender.topic).collect();
        topics.sort_unstable();
        topics.dedup();
        for topic in topics {
            shared.ask_about(topic);
        }
    }

    /// Fails the sets that are too old. Those under way keep their numbers.
    pub(super) fn give_up_old(&mut self, now: Instant) {
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        let shared = self.shared.clone();
        let timeout = shared.settings.delivery_timeout;
        let is_old = |batch: &Batch| now.saturating_duration_since(batch.opened) >= timeout;
        let mut accumulator = shared.accumulator();
        for (&partition, sender) in &mut self.senders {
            let mut old = sender.window.give_up(is_old);
            let ready = &mut accumulator.partitions[partition].ready;
            while ready.front().is_some_and(is_old) {
                old.extend(ready.pop_front());
            }
            for batch in old {
                let outcome = Outcome::Failed(DeliveryError::TimedOut { cause: sender.obstacle.clone() });
                self.ended.push(Ended { batch, topic: sender.topic.clone(), partition: sender.partition, outcome });
            }
        }
        drop(accumulator);
        self.report();
    }

    pub(super) fn report(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        self.shared.finish(&mut ended);
        self.ended = ended;
    }

    /// The producer is over: nothing waits any longer.
    fn give_everything_up(&mut self) {
        let shared = self.shared.clone();
        let mut accumulator = shared.accumulator();
        for partition in 0..accumulator.partitions.len() {
            if accumulator.partitions[partition].lane != self.index {
                continue;
            }
            let _ = accumulator.close_set(partition);
            let sender = self.sender(&accumulator, partition);
            sender.window.disconnect();
            let again = sender.window.drain_again();
            let (topic, partition_number) = (sender.topic.clone(), sender.partition);
            for batch in again.into_iter().chain(accumulator.partitions[partition].ready.drain(..)) {
                let outcome = Outcome::Failed(DeliveryError::Closed);
                self.ended.push(Ended { batch, topic: topic.clone(), partition: partition_number, outcome });
            }
        }
        drop(accumulator);
        self.report();
    }
}
