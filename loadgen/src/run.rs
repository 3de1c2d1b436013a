//! A run from its beginning to its results: makes the topics, starts consumers before producers, ends them in the other
//! order, and compares.
//!
//! Everything runs on one thread: a load generator that needs more than a core would measure itself.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corelane_client::{Admin, CallError, Client, GroupHandle, NewTopic};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::consume::{DAMAGED, Extent, FAULTS_MAX, Reader, Reading};
use crate::keys::{KeySpec, KeyTable};
use crate::ledger::{Ledger, Totals, lock};
use crate::machine::Machine;
use crate::payload::{HEADER_BYTES, Payload};
use crate::plan::{Audience, Load, Plan};
use crate::progress::Progress;
use crate::publish::{Publisher, Run};
use crate::results::{BrokerSeen, DUPLICATES, FORMAT, Results, Verification};
use crate::sizes::{SizeSpec, Sizes};
use crate::topics::{Topics, share};
use crate::verify::StreamId;
use crate::watch::Watch;

/// How often the end of a run is looked for.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("there is no topic {topic:?}; create it with --create-partitions N")]
    UnknownTopic { topic: String },
    #[error("{0}")]
    Call(CallError),
    #[error("group {group:?} did not read all partitions within {timeout:?}: has it other members?")]
    Group { group: String, timeout: Duration },
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
    #[error("interrupted before it began")]
    Interrupted,
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
struct Work<'a> {
    plan: &'a Plan,
    topics: Arc<Topics>,
    totals: Arc<Mutex<Totals>>,
    ledgers: Vec<Arc<Mutex<Ledger>>>,
    readings: Vec<Rc<RefCell<Reading>>>,
    publishers: Vec<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
    stop_publishing: watch::Sender<bool>,
    stop_reading: watch::Sender<bool>,
    watch: Watch,
    start: Instant,
    interruptions: u32,
}

/// Runs and reports. Must be called inside a `LocalSet`.
pub(crate) async fn run(plan: &Plan) -> Result<Results, RunError> {
    let mut interrupt = Interrupt::listen().map_err(RunError::Signals)?;
    let client = Client::builder()
        .bootstrap(plan.run.broker.join(","))
        .client_name("corelane-loadgen")
        .connect_timeout(plan.run.timeout)
        .request_timeout(plan.run.timeout)
        .build()
        .await?;
    let topics = Arc::new(prepare_topics(&client.admin(), plan).await?);
    let brokers = client.admin().describe_cluster().await.map(|cluster| cluster.brokers).unwrap_or_default();
    let size = plan.load.as_ref().map_or(SizeSpec::Fixed(HEADER_BYTES as u32), |load| load.size.clone());
    let sizes = Arc::new(Sizes::new(&size, plan.load.as_ref().map_or(0, |load| load.seed)));
    let started = jiff::Timestamp::now();
    let mut work = tokio::select! {
        work = Work::start(&client, plan, Arc::clone(&topics), Arc::clone(&sizes)) => work?,
        () = interrupt.next() => return Err(RunError::Interrupted),
    };
    work.go_on(interrupt).await;
    let results = Results {
        format: FORMAT,
        name: plan.run.name.clone(),
        started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        arguments: std::env::args().skip(1).collect(),
        settings: plan.settings(topics.lanes(), sizes.mean()),
        machine: Machine::look(),
        brokers: brokers
            .into_iter()
            .map(|broker| BrokerSeen { id: broker.broker_id, version: broker.version, shards: broker.shards })
            .collect(),
        ..Results::default()
    };
    Ok(work.report(results))
}

/// Makes the topics if that was asked for, and tells how many partitions they have.
async fn prepare_topics(admin: &Admin, plan: &Plan) -> Result<Topics, RunError> {
    let mut topics = Vec::new();
    for name in plan.topics() {
        let topic = match (admin.describe_topic(&name).await, plan.run.create_partitions) {
            (Err(CallError::UnknownTopic { .. }), Some(partitions)) => {
                let topic = NewTopic::named(&name).partitions(partitions).if_not_exists(true);
                admin.create_topic(topic).await?.topic
            }
            (existing, _) => existing?.topic,
        };
        topics.push((name, topic.partitions.len() as u32));
    }
    Ok(Topics::new(topics))
}

/// The keys of each topic: topics with as many partitions share their table.
fn key_tables(keys: KeySpec, topics: &Topics) -> Rc<[Rc<KeyTable>]> {
    let mut tables = BTreeMap::new();
    let table = |topic: usize| {
        let partitions = topics.partitions(topic as u32);
        let table = tables.entry(partitions).or_insert_with(|| KeyTable::new(keys, partitions).map(Rc::new));
        table.clone()
    };
    (0..topics.names().len()).filter_map(table).collect()
}

/// What publishes, not begun yet.
fn publishers(client: &Client, load: &Rc<Load>, run: &Run) -> Result<Vec<Publisher>, CallError> {
    let all = || (0..run.topics.lanes()).collect();
    let lanes =
        |producer| if run.keys.is_empty() { share(run.topics.lanes(), load.producers, producer) } else { all() };
    (0..load.producers).map(|producer| Publisher::new(client, run.clone(), producer, lanes(producer))).collect()
}

/// One audience's consumers.
async fn readers(
    client: &Client,
    topics: &Topics,
    audience: &Audience,
    number: u32,
    reading: &Rc<RefCell<Reading>>,
) -> Result<Vec<Reader>, CallError> {
    let extent = Extent { is_from_end: audience.is_from_end, is_until_end: audience.exit_at_end };
    if let Some(group) = &audience.group {
        let group = if audience.fan_out > 1 { format!("{group}-{number}") } else { group.clone() };
        let member = |_| Reader::member(client, topics, &group, extent, Rc::clone(reading));
        return (0..audience.consumers).map(member).collect();
    }
    let consumers = audience.consumers.min(topics.lanes());
    let mut readers = Vec::new();
    for consumer in 0..consumers {
        let own = share(topics.lanes(), consumers, consumer);
        readers.push(Reader::plain(client, topics, &own, extent, Rc::clone(reading)).await?);
    }
    Ok(readers)
}

/// Waits until the members of a group together read every lane.
async fn until_read(topics: &Topics, members: &[GroupHandle]) {
    loop {
        let owned = members.iter().flat_map(GroupHandle::assignment).filter(|owned| owned.is_read);
        let read: BTreeSet<u32> = owned.filter_map(|owned| topics.find(&owned.topic, owned.partition)).collect();
        if read.len() == topics.lanes() as usize {
            return;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

impl<'a> Work<'a> {
    async fn start(client: &Client, plan: &'a Plan, topics: Arc<Topics>, sizes: Arc<Sizes>) -> Result<Self, RunError> {
        let id = fastrand::u64(..);
        let timeout = plan.run.timeout;
        let (stop_publishing, stop) = watch::channel(false);
        let (stop_reading, stop_readers) = watch::channel(false);
        let rate = plan.load.as_ref().and_then(|load| load.rate);
        let totals = Arc::new(Mutex::new(Totals { is_open: rate.is_some(), ..Totals::default() }));
        let mut waiting = Vec::new();
        if let Some(load) = &plan.load {
            let run = Run {
                id,
                start: Instant::now(),
                load: Rc::clone(load),
                topics: Arc::clone(&topics),
                sizes: Arc::clone(&sizes),
                keys: key_tables(load.keys, &topics),
                payload: Rc::new(RefCell::new(Payload::new(sizes.max()))),
                totals: Arc::clone(&totals),
                left: Rc::new(Cell::new(plan.run.count.unwrap_or(u64::MAX))),
                stop,
            };
            waiting = publishers(client, load, &run)?;
        }
        let ledgers: Vec<_> = waiting.iter().map(Publisher::ledger).collect();
        let (mut readings, mut reading_tasks) = (Vec::new(), Vec::new());
        for number in 0..plan.audience.as_ref().map_or(0, |audience| audience.fan_out) {
            let audience = plan.audience.as_ref().expect("it has a fan-out");
            let only_run = plan.load.is_some().then_some(id);
            let reading = Rc::new(RefCell::new(Reading::new(Arc::clone(&topics), only_run, sizes.max())));
            for ledger in &ledgers {
                lock(ledger).streams().for_each(|(stream, _)| reading.borrow_mut().expect(stream));
            }
            let readers = readers(client, &topics, audience, number, &reading).await?;
            let members: Vec<_> = readers.iter().filter_map(Reader::member_handle).collect();
            let begin = |reader: Reader| tokio::task::spawn_local(reader.run(stop_readers.clone(), timeout));
            reading_tasks.extend(readers.into_iter().map(begin));
            if let Some(group) = audience.group.as_ref().filter(|_| plan.load.is_some()) {
                let read = tokio::time::timeout(timeout, until_read(&topics, &members)).await;
                read.map_err(|_| RunError::Group { group: group.clone(), timeout })?;
            }
            readings.push(reading);
        }
        // Producers begin when every consumer stands at the end of its partitions: nothing is published before.
        let start = Instant::now();
        let (warm_up, interval) = (plan.run.warmup, plan.run.interval);
        Ok(Self {
            plan,
            watch: Watch::start(Arc::clone(&totals), readings.clone(), rate, warm_up, interval, start),
            topics,
            totals,
            ledgers,
            readings,
            readers: reading_tasks,
            publishers: waiting.into_iter().map(|one| tokio::task::spawn_local(one.run(start))).collect(),
            stop_publishing,
            stop_reading,
            start,
            interruptions: 0,
        })
    }

    /// Lets everything run until it is over. An interruption ends the publishing, a second one the waiting for the rest.
    async fn go_on(&mut self, mut interrupt: Interrupt) {
        let progress = Progress::start();
        let warm_up = self.plan.run.warmup.unwrap_or_default();
        let run_until = self.plan.run_time().map(|run_time| self.start + warm_up + run_time);
        let mut ending = false;
        let mut idle_since = Instant::now();
        let mut before = (0, 0);
        loop {
            let next = (Instant::now() + CHECK_INTERVAL).min(self.watch.next());
            tokio::select! {
                () = interrupt.next() => self.interruptions += 1,
                () = tokio::time::sleep_until(next.into()) => {}
            }
            let now = Instant::now();
            if now >= self.watch.next() {
                progress.show(self.watch.end_interval(now));
            }
            let counters = self.watch.counters();
            if (counters.published, counters.consumed) != before {
                (before, idle_since) = ((counters.published, counters.consumed), now);
            }
            let is_counted_out =
                || self.plan.load.is_none() && self.plan.run.count.is_some_and(|count| before.1 >= count);
            if !ending && (self.interruptions > 0 || run_until.is_some_and(|end| now >= end) || is_counted_out()) {
                ending = true;
                self.watch.stop_offering(now);
                self.stop_publishing.send_replace(true);
            }
            let published = self.publishers.iter().all(JoinHandle::is_finished);
            let read = self.readers.iter().all(JoinHandle::is_finished);
            if published {
                self.watch.stop_offering(now);
            }
            let over = published && (read || self.is_read(ending));
            // What does not come for the whole time-out does not come at all.
            let stuck = published && !self.publishers.is_empty() && now - idle_since > self.plan.run.timeout;
            if over || stuck || self.interruptions > 1 {
                break;
            }
        }
        self.watch.end(Instant::now());
        self.stop_reading.send_replace(true);
        for task in self.readers.drain(..) {
            // A panic of a task has been printed by then.
            let _ = task.await;
        }
        progress.clear();
    }

    /// Whether every audience has had everything: with producers, all that was acknowledged; alone, until they are ended.
    fn is_read(&self, ending: bool) -> bool {
        if self.publishers.is_empty() {
            return ending;
        }
        let acknowledged = lock(&self.totals).acknowledged;
        self.readings.iter().all(|reading| reading.borrow().whole >= acknowledged)
    }

    fn report(&self, results: Results) -> Results {
        let (mut errors, mut faults) = (BTreeMap::new(), Vec::new());
        let mut verification = Verification::default();
        for ledger in &self.ledgers {
            // After a second interruption something may still wait.
            lock(ledger).close();
        }
        let produce = self.plan.load.is_some().then(|| self.watch.produced());
        let consume = self.plan.audience.is_some().then(|| self.watch.consumed());
        let totals = lock(&self.totals);
        verification.acknowledged = totals.acknowledged;
        totals.errors.iter().for_each(|(kind, messages)| count(&mut errors, kind, *messages));
        let mut end_to_end = crate::latency::Latencies::default();
        for reading in &self.readings {
            let reading = reading.borrow();
            end_to_end.add(reading.end_to_end.total());
            reading.errors.iter().for_each(|(kind, messages)| count(&mut errors, kind, *messages));
            faults.extend(reading.faults.iter().cloned());
            self.compare(&reading, &mut verification, &mut faults);
        }
        verification.damaged = errors.get(DAMAGED).copied().unwrap_or_default();
        let Verification { missing, extra, duplicates, out_of_order, .. } = verification;
        for (kind, messages) in
            [("missing", missing), ("extra", extra), (DUPLICATES, duplicates), ("out of order", out_of_order)]
        {
            count(&mut errors, kind, messages);
        }
        let verified = self.is_verified(&verification, &errors);
        faults.truncate(FAULTS_MAX);
        let latencies = [
            ("ack_us", totals.ack.total()),
            ("service_us", totals.service.total()),
            ("late_us", totals.late.total()),
            ("end_to_end_us", &end_to_end),
        ];
        Results {
            interrupted: self.interruptions > 0,
            produce,
            consume,
            behind: totals.is_open.then_some(totals.behind),
            ack_us: totals.ack.total().percentiles(),
            service_us: totals.service.total().percentiles(),
            late_us: totals.late.total().percentiles(),
            end_to_end_us: end_to_end.percentiles(),
            verified,
            verification,
            errors,
            faults,
            generator: self.watch.generator(),
            curves: latencies
                .into_iter()
                .map(|(name, latencies)| (name.to_owned(), latencies.curve()))
                .filter(|(_, curve)| !curve.is_empty())
                .collect(),
            timeline: self.watch.timeline.clone(),
            ..results
        }
    }

    /// With producers, what is missing is what they know to have published; without, what lies between two numbers.
    fn compare(&self, reading: &Reading, verification: &mut Verification, faults: &mut Vec<String>) {
        let mut missing = |id: StreamId, numbers: std::ops::Range<u64>| {
            let (topic, partition) = (self.topics.name(id.lane), self.topics.lane(id.lane).partition);
            let (first, last, connection) = (numbers.start, numbers.end - 1, id.connection);
            faults.push(format!("missing: {topic}/{partition}, numbers {first} to {last} of connection {connection}"));
        };
        for (id, stream) in reading.streams.iter() {
            verification.consumed += stream.messages;
            verification.duplicates += stream.duplicates;
            verification.out_of_order += stream.out_of_order;
            if self.ledgers.is_empty() {
                verification.missing += stream.missing();
                stream.first_gap().into_iter().for_each(|gap| missing(*id, gap));
            }
        }
        for ledger in &self.ledgers {
            for (id, published) in lock(ledger).streams() {
                let consumed = reading.streams.get(id).expect("every stream of the run is expected");
                let difference = consumed.compare(published);
                verification.missing += difference.missing;
                verification.extra += difference.extra;
                difference.first_missing.into_iter().for_each(|gap| missing(id, gap));
            }
        }
    }

    fn is_verified(&self, verification: &Verification, errors: &BTreeMap<String, u64>) -> bool {
        if self.plan.load.is_some() && self.plan.audience.is_some() {
            // What failed to be published, and said so, is no fault of what was consumed.
            let Verification { missing, extra, out_of_order, damaged, .. } = verification;
            return [missing, extra, out_of_order, damaged].iter().all(|faults| **faults == 0);
        }
        let has_come =
            || verification.consumed > 0 && self.plan.run.count.is_none_or(|count| verification.consumed >= count);
        errors.keys().all(|kind| kind == DUPLICATES) && (self.plan.audience.is_none() || has_come())
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
