//! One connection that publishes: sets of prepared values to its partitions, as fast as they go, each at its time, or so
//! many unanswered at a time. What a message costs is a size from a table, perhaps a key, a header and the producer's copy;
//! clocks are read and books are kept once for a set, and nothing is allocated.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corelane_client::{CallError, Client, Producer, Record, SendError, SetReport, TrySendError};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::{Semaphore, watch};

use crate::keys::{KEY_BYTES, KeyTable};
use crate::ledger::{Ledger, Totals, delivery_kind, lock, send_kind};
use crate::pace::{PreciseTimer, Schedule};
use crate::payload::{Header, Payload, now_us};
use crate::plan::Load;
use crate::sizes::Sizes;
use crate::topics::Topics;

/// After so many bytes the other tasks of this thread (sockets, consumers) get their turn.
const TURN_BYTES: usize = 64 * 1024;
/// What all producers of a run may hold in memory; each has room for a set at least.
const BUFFERS_BYTES_MAX: usize = 1 << 30;

/// What was due for less than this when a run ends is not behind: its turn had just come.
const BEHIND_MIN: Duration = Duration::from_millis(100);

/// What all connections of a run share.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) id: u64,
    pub(crate) start: Instant,
    pub(crate) load: Rc<Load>,
    pub(crate) topics: Arc<Topics>,
    pub(crate) sizes: Arc<Sizes>,
    /// By topic; empty if messages have no keys.
    pub(crate) keys: Rc<[Rc<KeyTable>]>,
    pub(crate) payload: Rc<RefCell<Payload>>,
    pub(crate) totals: Arc<Mutex<Totals>>,
    /// Messages that may still be published.
    pub(crate) left: Rc<Cell<u64>>,
    /// Turns true when the run is to end.
    pub(crate) stop: watch::Receiver<bool>,
}

/// One connection.
pub(crate) struct Publisher {
    run: Run,
    producer: Producer,
    connection: u32,
    lanes: Vec<u32>,
    ledger: Arc<Mutex<Ledger>>,
    permits: Option<Arc<Semaphore>>,
    /// Holds a message while the producer has no room for it.
    waiting: Vec<u8>,
}

/// Why a connection publishes no more.
enum End {
    /// The run is over.
    Stopped,
    Failed(String),
}

impl Publisher {
    pub(crate) fn new(client: &Client, run: Run, connection: u32, lanes: Vec<u32>) -> Result<Self, CallError> {
        let load = &run.load;
        let permits = load.outstanding.map(|sets| Arc::new(Semaphore::new(sets as usize)));
        let (sizes, totals) = (Arc::clone(&run.sizes), Arc::clone(&run.totals));
        let ledger = Ledger::new((run.id, connection), &lanes, sizes, totals, permits.clone());
        let ledger = Arc::new(Mutex::new(ledger));
        let (settled, topics) = (Arc::clone(&ledger), Arc::clone(&run.topics));
        let set_bytes_max = load.set as usize * load.log_bytes(run.sizes.max() as f64) as usize;
        let set_bytes = load.set as usize * load.log_bytes(run.sizes.mean()) as usize;
        let in_flight = load.sets_in_flight(run.sizes.mean());
        // Twice what is under way: enough to keep the window full, little enough that latencies are the broker's.
        let buffer_bytes = (2 * in_flight * set_bytes * lanes.len()).min(256 << 20);
        let buffer_bytes = buffer_bytes.min(BUFFERS_BYTES_MAX / load.producers as usize).max(2 * set_bytes_max);
        let producer = client
            .producer()
            .acks(load.acks())
            .compression(load.compression())
            .batch_messages_max(load.set)
            .batch_bytes(set_bytes_max)
            // A set is full when it is handed over, but for the last one of a run.
            .linger(Duration::from_millis(5))
            .in_flight_max(in_flight)
            .buffer_bytes(buffer_bytes)
            .delivery_timeout(load.timeout)
            .on_set(move |set| settle(&settled, &topics, set))
            .build()?;
        Ok(Self { run, producer, connection, lanes, ledger, permits, waiting: Vec::new() })
    }

    /// The books, also while it runs.
    pub(crate) fn ledger(&self) -> Arc<Mutex<Ledger>> {
        Arc::clone(&self.ledger)
    }

    /// Publishes until the run is to end, then waits for what is on its way.
    pub(crate) async fn run(mut self, start: Instant) {
        self.run.start = start;
        if let Err(End::Failed(kind)) = self.publish().await {
            lock(&self.run.totals).count_error(&kind, 1);
        }
        self.producer.close(self.run.load.timeout).await;
        lock(&self.ledger).close();
    }

    async fn publish(&mut self) -> Result<(), End> {
        let load = Rc::clone(&self.run.load);
        let mut schedule = load.rate.map(|rate| {
            let turn = (self.connection, load.producers);
            Schedule::new(self.run.start, rate, load.arrivals, load.set, turn, load.seed)
        });
        let published = self.publish_sets(&load, schedule.as_mut()).await;
        if let (Err(End::Stopped), Some(schedule)) = (&published, schedule) {
            let sets = schedule.behind(self.run.start.elapsed().saturating_sub(BEHIND_MIN));
            lock(&self.run.totals).behind += sets * u64::from(load.set);
        }
        published
    }

    async fn publish_sets(&mut self, load: &Load, mut schedule: Option<&mut Schedule>) -> Result<(), End> {
        for name in self.run.topics.names() {
            self.producer.prepare(name).await.map_err(|error| End::Failed(send_kind(&error)))?;
        }
        let timer = PreciseTimer::new().map_err(|error| timer_failed(&error))?;
        let mut picker = Picker::new(&self.run, self.connection, &self.lanes);
        let mut sequences = vec![0; self.lanes.len()];
        let mut bytes_in_turn = 0;
        loop {
            let due = self.wait_for_turn(&timer, schedule.as_deref_mut()).await?;
            let messages = self.run.left.get().min(u64::from(load.set));
            if messages == 0 {
                return Ok(());
            }
            if *self.run.stop.borrow() {
                return Err(End::Stopped);
            }
            self.run.left.set(self.run.left.get() - messages);
            let lane = picker.next_lane();
            bytes_in_turn += self.hand_over_set(due, lane, &mut sequences[lane], messages, &mut picker).await?;
            if bytes_in_turn >= TURN_BYTES {
                bytes_in_turn = 0;
                tokio::task::yield_now().await;
            }
        }
    }

    /// Waits until a set may be handed over, and tells when it was due; none: no time is set.
    async fn wait_for_turn(
        &mut self,
        timer: &PreciseTimer,
        schedule: Option<&mut Schedule>,
    ) -> Result<Option<Instant>, End> {
        if let Some(schedule) = schedule {
            let due = schedule.next_due();
            tokio::select! {
                slept = timer.sleep_until(due) => slept.map_err(|error| timer_failed(&error))?,
                _ = self.run.stop.wait_for(|stop| *stop) => return Err(End::Stopped),
            }
            return Ok(Some(due));
        }
        if let Some(permits) = &self.permits {
            tokio::select! {
                permit = permits.acquire() => permit.expect("nobody closes it").forget(),
                _ = self.run.stop.wait_for(|stop| *stop) => return Err(End::Stopped),
            }
        }
        Ok(None)
    }

    /// Hands a set to the producer; returns its bytes.
    async fn hand_over_set(
        &mut self,
        due: Option<Instant>,
        own_lane: usize,
        sequence: &mut u64,
        messages: u64,
        picker: &mut Picker,
    ) -> Result<usize, End> {
        let number = self.lanes[own_lane];
        let lane = self.run.topics.lane(number);
        let salt = Ledger::salt(self.connection, number);
        let end = *sequence + messages;
        let (now, now_us) = (Instant::now(), now_us());
        let due = due.unwrap_or(now).min(now);
        let published_us = now_us - (now - due).as_micros() as u64;
        lock(&self.ledger).hand_over(number, *sequence..end, due, now);
        let (run, connection) = (self.run.id, self.connection);
        let header = |sequence| Header { run, connection, sequence, published_us };
        let mut bytes = 0;
        while *sequence < end {
            let (run, topics) = (&self.run, &*self.run.topics);
            // How they end is settled in the ledger, for the whole set.
            let posted = self.producer.post_many(|posting| {
                let mut payload = run.payload.borrow_mut();
                while *sequence < end {
                    let (header, key) = (header(*sequence), picker.key(own_lane));
                    let size_bytes = run.sizes.get(salt, *sequence);
                    let key = key.as_ref().map(<[u8; KEY_BYTES]>::as_slice);
                    let value = payload.write(&header, lane.place, key, size_bytes);
                    posting.try_post(&record(topics, number, &header, key, value))?;
                    *sequence += 1;
                    bytes += size_bytes;
                }
                Ok(())
            });
            let handed_over = match posted {
                Ok(()) => break,
                Err(TrySendError::Rejected(error)) => Err(refused(&error)),
                Err(_full) => {
                    let (header, key) = (header(*sequence), picker.key(own_lane));
                    let size_bytes = self.run.sizes.get(salt, *sequence);
                    bytes += size_bytes;
                    self.hand_over_waiting(number, &header, lane.place, key, size_bytes).await
                }
            };
            if let Err(end) = handed_over {
                lock(&self.ledger).cut(number, *sequence);
                return Err(end);
            }
            *sequence += 1;
        }
        Ok(bytes)
    }

    /// Hands a message to the producer, as a copy: the text that values are cut from is everybody's, and it has to wait.
    async fn hand_over_waiting(
        &mut self,
        lane: u32,
        header: &Header,
        place: u64,
        key: Option<[u8; KEY_BYTES]>,
        size_bytes: usize,
    ) -> Result<(), End> {
        let key = key.as_ref().map(<[u8; KEY_BYTES]>::as_slice);
        self.waiting.clear();
        self.waiting.extend_from_slice(self.run.payload.borrow_mut().write(header, place, key, size_bytes));
        let sending = self.producer.post(record(&self.run.topics, lane, header, key, &self.waiting));
        tokio::select! {
            sent = sending => sent.map_err(|error| refused(&error)),
            _ = self.run.stop.wait_for(|stop| *stop) => Err(End::Stopped),
        }
    }
}

/// The message as the producer takes it.
fn record<'a>(topics: &'a Topics, lane: u32, header: &Header, key: Option<&'a [u8]>, value: &'a [u8]) -> Record<'a> {
    let record = Record::to(topics.name(lane)).partition(topics.lane(lane).partition);
    let record = record.value(value).timestamp_ms((header.published_us / 1_000) as i64);
    match key {
        Some(key) => record.key(key),
        None => record,
    }
}

fn refused(error: &SendError) -> End {
    End::Failed(send_kind(error))
}

fn timer_failed(error: &std::io::Error) -> End {
    End::Failed(format!("timer: {error}"))
}

/// The producer says that a set has ended.
fn settle(ledger: &Mutex<Ledger>, topics: &Topics, set: &SetReport) {
    let lane = topics.find(&set.topic, set.partition).expect("a producer publishes to the run's topics");
    let failure = set.first.as_ref().err().map(delivery_kind);
    lock(ledger).settle(lane, u64::from(set.messages), failure.as_deref(), Instant::now());
}

/// Chooses where sets go, and the keys of their messages.
struct Picker {
    random: SmallRng,
    /// The connection's own lanes are counted from 0.
    next: usize,
    own: usize,
    keyed: Option<Keyed>,
}

/// With keys, a connection publishes to all partitions: the topics in turn, their partitions by their keys.
struct Keyed {
    topics: Arc<Topics>,
    tables: Rc<[Rc<KeyTable>]>,
}

impl Picker {
    fn new(run: &Run, connection: u32, lanes: &[u32]) -> Self {
        let keyed = || Keyed { topics: Arc::clone(&run.topics), tables: Rc::clone(&run.keys) };
        Self {
            random: SmallRng::seed_from_u64(run.load.seed.wrapping_add(u64::from(connection))),
            next: 0,
            own: lanes.len(),
            keyed: (!run.keys.is_empty()).then(keyed),
        }
    }

    /// The lane of the next set, among the connection's own.
    fn next_lane(&mut self) -> usize {
        let Some(Keyed { topics, tables }) = &self.keyed else {
            let lane = self.next;
            self.next = (self.next + 1) % self.own;
            return lane;
        };
        let topic = self.next;
        self.next = (self.next + 1) % tables.len();
        topics.number(topic as u32, tables[topic].partition(&mut self.random)) as usize
    }

    /// The key of a message to that lane.
    fn key(&mut self, own_lane: usize) -> Option<[u8; KEY_BYTES]> {
        let Keyed { topics, tables } = self.keyed.as_ref()?;
        let lane = topics.lane(own_lane as u32);
        Some(tables[lane.topic as usize].key(lane.partition, &mut self.random))
    }
}
