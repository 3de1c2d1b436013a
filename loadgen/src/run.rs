//! A run from its beginning to its report: makes the topic, starts consumers before producers, ends them in the other
//! order, and compares.
//!
//! Everything runs on one thread: a load generator that needs more than a core would measure itself.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corelane_client::{CallError, Client, NewTopic};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::args::Args;
use crate::consume::{DAMAGED, Reader, Reading};
use crate::latency::Latencies;
use crate::ledger::Ledger;
use crate::progress::{Progress, Totals};
use crate::publish::{Publisher, Run, lock};
use crate::report::{DUPLICATES, Flow, Report};

/// How often the end of a run is looked for.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How often the progress line changes.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("there is no topic {topic:?}; create it with --create-partitions N")]
    UnknownTopic { topic: String },
    #[error("{0}")]
    Call(CallError),
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
}

impl From<CallError> for RunError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::UnknownTopic { topic } => RunError::UnknownTopic { topic },
            other => RunError::Call(other),
        }
    }
}

/// What is under way.
struct Work {
    args: Rc<Args>,
    start: Instant,
    ledgers: Vec<Arc<Mutex<Ledger>>>,
    readings: Vec<Rc<RefCell<Reading>>>,
    publishers: Vec<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
    stop_publishing: watch::Sender<bool>,
    stop_reading: watch::Sender<bool>,
}

/// Runs and reports. Must be called inside a `LocalSet`.
pub(crate) async fn run(args: Args) -> Result<Report, RunError> {
    let signals = Interrupt::listen().map_err(RunError::Signals)?;
    let args = Rc::new(args);
    let client = Client::builder()
        .bootstrap(args.broker.join(","))
        .client_name("corelane-loadgen")
        .connect_timeout(args.timeout)
        .request_timeout(args.timeout)
        .build()
        .await?;
    let partitions = prepare_topic(&client, &args).await?;
    let mut work = Work::start(&client, &args, partitions).await?;
    work.go_on(signals).await;
    Ok(work.report())
}

/// Makes the topic if that was asked for, and tells how many partitions it has.
async fn prepare_topic(client: &Client, args: &Args) -> Result<u32, RunError> {
    let admin = client.admin();
    let existing = admin.describe_topic(&args.topic).await;
    let topic = match (existing, args.create_partitions) {
        (Err(CallError::UnknownTopic { .. }), Some(partitions)) => {
            let topic = NewTopic::named(&args.topic).partitions(partitions).if_not_exists(true);
            admin.create_topic(topic).await?.topic
        }
        (existing, _) => existing?.topic,
    };
    Ok(topic.partitions.len() as u32)
}

/// The partitions of each of `workers`: none is left out, and with more workers than partitions they share.
fn share(partitions: u32, workers: u32, worker: u32) -> Vec<u32> {
    if workers <= partitions {
        (worker..partitions).step_by(workers as usize).collect()
    } else {
        vec![worker % partitions]
    }
}

impl Work {
    async fn start(client: &Client, args: &Rc<Args>, partitions: u32) -> Result<Self, RunError> {
        let id = fastrand::u64(..);
        let (stop_publishing, stop) = watch::channel(false);
        let (stop_reading, stop_readers) = watch::channel(false);
        let mut publishers = Vec::new();
        for connection in 0..if args.publishes() { args.connections } else { 0 } {
            let own = share(partitions, args.connections, connection);
            publishers.push(Publisher::new(client, args, id, connection, own)?);
        }
        let ledgers: Vec<_> = publishers.iter().map(Publisher::ledger).collect();
        let mut readers = Vec::new();
        let consumers = if args.consumes() { args.connections.min(partitions) } else { 0 };
        for consumer in 0..consumers {
            let own = share(partitions, consumers, consumer);
            let reader = Reader::new(client, args, id, &own).await?;
            for ledger in &ledgers {
                let expected = lock(ledger);
                let streams = expected.streams().filter(|(stream, _)| own.contains(&stream.partition));
                streams.for_each(|(stream, _)| reader.reading().borrow_mut().expect(stream));
            }
            readers.push(reader);
        }
        let readings = readers.iter().map(Reader::reading).collect();
        // Producers begin when every consumer stands at the end of its partitions: nothing is published before.
        let start = Instant::now();
        let run = Run { id, start, left: Rc::new(Cell::new(args.count.unwrap_or(u64::MAX))), stop };
        Ok(Self {
            args: Rc::clone(args),
            start,
            ledgers,
            readings,
            readers: readers.into_iter().map(|one| tokio::task::spawn_local(one.run(stop_readers.clone()))).collect(),
            publishers: publishers.into_iter().map(|one| tokio::task::spawn_local(one.run(run.clone()))).collect(),
            stop_publishing,
            stop_reading,
        })
    }

    /// Lets everything run until it is over. An interruption ends the publishing, a second one the waiting for the rest.
    async fn go_on(&mut self, mut interrupt: Interrupt) {
        let mut progress = Progress::start(self.start);
        let mut next_progress = self.start + PROGRESS_INTERVAL;
        let run_until = self.args.run_time().map(|run_time| self.start + run_time);
        let mut ending = false;
        let mut interruptions = 0;
        let mut idle_since = Instant::now();
        let mut before = self.totals();
        loop {
            tokio::select! {
                () = interrupt.next() => interruptions += 1,
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
            let now = Instant::now();
            let totals = self.totals();
            if now >= next_progress {
                progress.show(totals, now);
                next_progress = now + PROGRESS_INTERVAL;
            }
            if (totals.published, totals.consumed) != (before.published, before.consumed) {
                (before, idle_since) = (totals, now);
            }
            if !ending && (interruptions > 0 || run_until.is_some_and(|end| now >= end) || self.is_counted_out(totals))
            {
                ending = true;
                self.stop_publishing.send_replace(true);
            }
            let published = self.publishers.iter().all(JoinHandle::is_finished);
            let read = self.readers.iter().all(JoinHandle::is_finished);
            let over = published && (read || self.is_read(ending));
            // What does not come for the whole time-out does not come at all.
            let stuck = published && !self.publishers.is_empty() && now - idle_since > self.args.timeout;
            if over || stuck || interruptions > 1 {
                break;
            }
        }
        self.stop_reading.send_replace(true);
        for task in self.readers.drain(..) {
            // A panic of a task has been printed by then.
            let _ = task.await;
        }
        progress.clear();
    }

    /// Whether `consume` has had its count.
    fn is_counted_out(&self, totals: Totals) -> bool {
        self.publishers.is_empty() && self.args.count.is_some_and(|count| totals.consumed >= count)
    }

    /// Whether the consumers have had everything: with producers, all that was acknowledged; alone, until they are ended.
    fn is_read(&self, ending: bool) -> bool {
        if self.publishers.is_empty() {
            return ending;
        }
        let acknowledged: u64 = self.ledgers.iter().map(|ledger| lock(ledger).acknowledged).sum();
        let whole: u64 = self.readings.iter().map(|reading| reading.borrow().whole).sum();
        self.readings.is_empty() || whole >= acknowledged
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for ledger in &self.ledgers {
            let ledger = lock(ledger);
            totals.published += ledger.acknowledged;
            totals.errors += ledger.errors.values().sum::<u64>();
        }
        for reading in &self.readings {
            let reading = reading.borrow();
            totals.consumed += reading.messages;
            totals.errors += reading.errors.values().sum::<u64>();
        }
        totals
    }

    fn report(&self) -> Report {
        let mut errors = BTreeMap::new();
        let mut verified = true;
        let (produce, ack_us) = self.produced(&mut errors);
        let (consume, end_to_end_us) = self.consumed(&mut errors);
        if self.args.publishes() && self.args.consumes() {
            verified &= self.compare(&mut errors);
        } else {
            verified &= errors.keys().all(|kind| kind == DUPLICATES);
            if self.args.consumes() {
                let consumed = self.totals().consumed;
                verified &= consumed > 0 && self.args.count.is_none_or(|count| consumed >= count);
            }
        }
        Report {
            produce,
            consume,
            ack_us: ack_us.percentiles(),
            end_to_end_us: end_to_end_us.percentiles(),
            verified,
            errors,
        }
    }

    fn produced(&self, errors: &mut BTreeMap<String, u64>) -> (Option<Flow>, Latencies) {
        let (mut messages, mut latencies, mut last) = (0, Latencies::default(), None);
        for ledger in &self.ledgers {
            let ledger = lock(ledger);
            messages += ledger.acknowledged;
            latencies.add(&ledger.latencies);
            last = last.max(ledger.last_settled);
            add_errors(errors, &ledger.errors);
        }
        let took = last.map_or(Duration::ZERO, |last| last - self.start);
        let bytes = messages * u64::from(self.args.size);
        (self.args.publishes().then(|| Flow::new(messages, bytes, took)), latencies)
    }

    fn consumed(&self, errors: &mut BTreeMap<String, u64>) -> (Option<Flow>, Latencies) {
        let (mut messages, mut bytes, mut latencies) = (0, 0, Latencies::default());
        let (mut first, mut last): (Option<Instant>, Option<Instant>) = (None, None);
        for reading in &self.readings {
            let reading = reading.borrow();
            messages += reading.messages;
            bytes += reading.bytes;
            latencies.add(&reading.latencies);
            first = [first, reading.first].into_iter().flatten().min();
            last = last.max(reading.last);
            add_errors(errors, &reading.errors);
            for stream in reading.streams.iter() {
                count(errors, DUPLICATES, stream.duplicates);
                count(errors, "out of order", stream.out_of_order);
                // With producers, what is missing is what they know to have published.
                if !self.args.publishes() {
                    count(errors, "missing", stream.missing());
                }
            }
        }
        let took = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
        (self.args.consumes().then(|| Flow::new(messages, bytes, took)), latencies)
    }

    /// Whether every stream was consumed as it was published.
    fn compare(&self, errors: &mut BTreeMap<String, u64>) -> bool {
        let mut verified = true;
        for ledger in &self.ledgers {
            let ledger = lock(ledger);
            for (id, published) in ledger.streams() {
                let found = self
                    .readings
                    .iter()
                    .find_map(|reading| reading.borrow().streams.get(id).map(|consumed| consumed.compare(published)));
                let (missing, same) = found.expect("every partition has a consumer");
                count(errors, "missing", missing);
                verified &= same;
            }
        }
        let damaged = self.readings.iter().any(|reading| reading.borrow().errors.contains_key(DAMAGED));
        verified && !damaged
    }
}

fn add_errors(errors: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (kind, messages) in more {
        count(errors, kind, *messages);
    }
}

fn count(errors: &mut BTreeMap<String, u64>, kind: &str, messages: u64) {
    if messages > 0 {
        *errors.entry(kind.to_owned()).or_insert(0) += messages;
    }
}

/// Ctrl-C and SIGTERM.
struct Interrupt {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Interrupt {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_has_a_worker_and_every_worker_a_partition() {
        for (partitions, workers) in [(1, 1), (8, 3), (3, 8), (4, 4), (1, 5)] {
            let shares: Vec<_> = (0..workers).map(|worker| share(partitions, workers, worker)).collect();
            assert!(shares.iter().all(|share| !share.is_empty()));
            assert!((0..partitions).all(|partition| shares.iter().any(|share| share.contains(&partition))));
            if workers <= partitions {
                assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), partitions as usize);
            }
        }
    }
}
