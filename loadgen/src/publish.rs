//! One connection that publishes: sets of prepared values to its partitions in turn, as fast as they go or each at its
//! time.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corelane_client::{CallError, Client, Producer, Record, SendError, TrySendError};
use tokio::sync::watch;

use crate::args::Args;
use crate::ledger::{Ledger, send_kind};
use crate::pace::{PreciseTimer, Schedule};
use crate::payload::{Header, Payload, now_us};

/// After so many bytes the other tasks of this thread (sockets, consumers) get their turn.
const TURN_BYTES: usize = 64 * 1024;

/// What all connections of a run share.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) id: u64,
    pub(crate) start: Instant,
    /// Messages that may still be published.
    pub(crate) left: Rc<Cell<u64>>,
    /// Turns true when the run is to end.
    pub(crate) stop: watch::Receiver<bool>,
}

/// One connection.
pub(crate) struct Publisher {
    args: Rc<Args>,
    producer: Producer,
    connection: u32,
    partitions: Vec<u32>,
    ledger: Arc<Mutex<Ledger>>,
}

/// A ledger whose holder has panicked is as good as before: every change to it is complete in itself.
pub(crate) fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Publisher {
    pub(crate) fn new(
        client: &Client,
        args: &Rc<Args>,
        run: u64,
        connection: u32,
        partitions: Vec<u32>,
    ) -> Result<Self, CallError> {
        let ledger = Arc::new(Mutex::new(Ledger::new(run, connection, &partitions)));
        let settled = Arc::clone(&ledger);
        let (set_bytes, in_flight) = (args.set_bytes(), args.sets_in_flight());
        let producer = client
            .producer()
            .acks(args.acks())
            .compression(args.compression())
            .batch_messages_max(args.set)
            .batch_bytes(set_bytes)
            // A set is full when it is handed over, but for the last one of a run.
            .linger(Duration::from_millis(5))
            .in_flight_max(in_flight)
            // Twice what is under way: enough to keep the window full, little enough that latencies are the broker's.
            .buffer_bytes((2 * in_flight * set_bytes * partitions.len()).min(256 << 20))
            .delivery_timeout(args.timeout)
            .on_set(move |set| lock(&settled).settle(set, Instant::now()))
            .build()?;
        Ok(Self { args: Rc::clone(args), producer, connection, partitions, ledger })
    }

    /// The books, also while it runs.
    pub(crate) fn ledger(&self) -> Arc<Mutex<Ledger>> {
        Arc::clone(&self.ledger)
    }

    /// Publishes until the run is to end, then waits for what is on its way.
    pub(crate) async fn run(self, mut run: Run) {
        if let Err(kind) = self.publish(&mut run).await {
            lock(&self.ledger).count_error(&kind, 1);
        }
        self.producer.close(self.args.timeout).await;
        lock(&self.ledger).close();
    }

    async fn publish(&self, run: &mut Run) -> Result<(), String> {
        self.producer.prepare(&self.args.topic).await.map_err(|error| send_kind(&error))?;
        let timer = PreciseTimer::new().map_err(|error| format!("timer: {error}"))?;
        let mut schedule = self
            .args
            .rate
            .map(|rate| Schedule::new(run.start, rate, self.args.set, self.connection, self.args.connections));
        let mut payload = Payload::new(self.args.size as usize);
        let mut lanes: Vec<(u32, u64)> = self.partitions.iter().map(|partition| (*partition, 0)).collect();
        let mut bytes_in_turn = 0;
        for lane in (0..lanes.len()).cycle() {
            let mut late = Duration::ZERO;
            if let Some(schedule) = &mut schedule {
                let due = schedule.next_due();
                tokio::select! {
                    slept = timer.sleep_until(due) => slept.map_err(|error| format!("timer: {error}"))?,
                    _ = run.stop.wait_for(|stop| *stop) => return Ok(()),
                }
                late = due.elapsed();
            }
            let messages = run.left.get().min(u64::from(self.args.set));
            if messages == 0 || *run.stop.borrow() {
                return Ok(());
            }
            run.left.set(run.left.get() - messages);
            let (partition, sequence) = &mut lanes[lane];
            let end = *sequence + messages;
            lock(&self.ledger).hand_over(*partition, *sequence..end, late);
            let published_us = now_us() - late.as_micros() as u64;
            while *sequence < end {
                let header = Header { run: run.id, connection: self.connection, sequence: *sequence, published_us };
                let value = payload.write(&header, *partition);
                match self.hand_over(*partition, value, published_us, run).await {
                    Ok(true) => *sequence += 1,
                    Ok(false) => {
                        lock(&self.ledger).cut(*partition, *sequence);
                        return Ok(());
                    }
                    Err(error) => {
                        lock(&self.ledger).cut(*partition, *sequence);
                        return Err(send_kind(&error));
                    }
                }
            }
            bytes_in_turn += self.args.set_bytes();
            if bytes_in_turn >= TURN_BYTES {
                bytes_in_turn = 0;
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Hands a message to the producer. False: the run ended while the producer had no room for it.
    async fn hand_over(
        &self,
        partition: u32,
        value: &[u8],
        published_us: u64,
        run: &mut Run,
    ) -> Result<bool, SendError> {
        let timestamp_ms = (published_us / 1_000) as i64;
        let record = Record::to(&self.args.topic).partition(partition).value(value).timestamp_ms(timestamp_ms);
        match self.producer.try_send(&record) {
            // The set's end is settled in the ledger.
            Ok(delivery) => drop(delivery),
            Err(TrySendError::Rejected(error)) => return Err(error),
            Err(_full) => tokio::select! {
                sent = self.producer.send(record) => drop(sent?),
                _ = run.stop.wait_for(|stop| *stop) => return Ok(false),
            },
        }
        Ok(true)
    }
}
