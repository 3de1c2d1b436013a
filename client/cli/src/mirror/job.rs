//! The work of a mirror, in one loop: a message comes, goes to the target, and counts as processed once the target has it on
//! stable storage. Whichever side is away, the loop waits; only what no retry can help ends it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use corelane_client::{
    Acks, ConsumeError, DeliveryError, DeliveryFuture, GroupConsumer, GroupError, GroupMessage, Producer, Record,
    SendError,
};
use tokio::sync::Notify;

use super::Sides;
use super::args::RunArgs;
use super::exact::{Exact, Step};
use super::origin::{HEADER, Origin, is_back, way};
use super::pending::Pending;
use super::progress::Progress;
use super::rate::Rate;
use super::targets::{Target, Targets};
use crate::args::Shared;
use crate::consume::poll_once;
use crate::error::CliError;
use crate::signals::Signals;

/// How long the target may be away: nothing is given up before the command is, or what comes behind it would overtake it.
const PATIENCE: Duration = Duration::from_hours(24 * 365);
/// How long a message may be in hand while the target is away, before another member gets its partition.
const IN_HAND_MAX: Duration = Duration::from_hours(24);
/// How long a partition that moves elsewhere waits for what is on its way.
const RELEASE_WAIT: Duration = Duration::from_secs(10);
/// Bytes on their way to the target.
const BUFFER_BYTES: usize = 16 << 20;
/// Acknowledgements are looked at after so many messages.
const SETTLE_EVERY: u32 = 256;
/// Between two attempts at something that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// The topics of which partitions were claimed and whose target was not looked at since.
#[derive(Default)]
struct Claims {
    topics: Mutex<BTreeSet<String>>,
    /// Looked at for each message, so without the lock.
    is_some: AtomicBool,
    changed: Notify,
}

impl Claims {
    fn add(&self, topic: &str) {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner).insert(topic.to_owned());
        self.is_some.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.topics.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Everything that the loop works on.
pub(super) struct Job<'a> {
    sides: &'a Sides,
    args: &'a RunArgs,
    /// How long the end may take.
    timeout: Duration,
    consumer: GroupConsumer,
    producer: Producer,
    targets: Targets<'a>,
    pending: Pending,
    /// None: messages are published anew.
    exact: Option<Exact<'a>>,
    claims: Arc<Claims>,
    acknowledged: Arc<Notify>,
    rate: Option<Rate>,
    progress: Progress,
    origin: String,
    unsettled: u32,
}

impl<'a> Job<'a> {
    pub(super) fn new(sides: &'a Sides, args: &'a RunArgs, shared: &Shared) -> Result<Self, CliError> {
        let claims = Arc::new(Claims::default());
        let acknowledged = Arc::new(Notify::new());
        let (claimed, answered) = (claims.clone(), acknowledged.clone());
        let mut consumer = sides
            .source
            .group(args.group())
            .pattern(args.between.topics())
            .commit_interval(args.commit_interval)
            .lease(args.lease)
            .manual_marks()
            .release_wait(RELEASE_WAIT)
            .processing_max(IN_HAND_MAX)
            .on_claim(move |partition| claimed.add(&partition.topic));
        if args.between.exact {
            consumer = consumer.whole_sets();
        }
        let consumer = consumer.build()?;
        let producer = sides
            .target
            .producer()
            .acks(Acks::Durable)
            .compression(args.compression.into())
            .delivery_timeout(PATIENCE)
            .buffer_bytes(BUFFER_BYTES)
            .on_set(move |_| answered.notify_one())
            .build()?;
        Ok(Self {
            sides,
            args,
            timeout: shared.timeout,
            pending: Pending::new(consumer.handle()),
            consumer,
            producer,
            targets: Targets::new(sides, &args.between),
            exact: args.between.exact.then(|| Exact::new(sides)),
            claims,
            acknowledged,
            rate: args.rate.map(|bytes_per_s| Rate::new(bytes_per_s, Instant::now())),
            progress: Progress::start(shared.json, args.report_interval, args.metrics_file.clone()),
            origin: String::new(),
            unsettled: 0,
        })
    }

    /// Copies until something fails that no retry can help. May be dropped at any time: what was not marked is not committed.
    pub(super) async fn work(&mut self) -> CliError {
        loop {
            if let Err(error) = self.turn().await {
                return error;
            }
        }
    }

    /// One message, or one wait for something to happen.
    async fn turn(&mut self) -> Result<(), CliError> {
        let item = match poll_once(self.consumer.next()).await {
            Poll::Ready(item) => {
                self.unsettled += 1;
                if self.unsettled >= SETTLE_EVERY {
                    self.settle().await?;
                    // What fetches ahead and what publishes run on this thread too.
                    tokio::task::yield_now().await;
                }
                item
            }
            Poll::Pending => {
                self.settle().await?;
                self.look_at_claims().await?;
                let wait = self.progress.wait(Instant::now());
                tokio::select! {
                    item = self.consumer.next() => item,
                    () = self.acknowledged.notified() => return Ok(()),
                    () = self.claims.changed.notified() => return Ok(()),
                    () = tokio::time::sleep(wait) => return Ok(()),
                }
            }
        };
        // A message is of a partition that was claimed before.
        self.look_at_claims().await?;
        match item {
            Some(Ok(message)) if self.exact.is_some() => self.copy_exactly(message).await,
            Some(Ok(message)) => self.copy(message).await,
            Some(Err(error)) => self.meet(error),
            None => Err(CliError::Group(GroupError::Closed)),
        }
    }

    /// Looks the topics up of which partitions were claimed: they may be more than before.
    async fn look_at_claims(&mut self) -> Result<(), CliError> {
        if self.claims.is_some.swap(false, Ordering::AcqRel) {
            for topic in self.claims.take() {
                self.targets.look_up(&topic).await?;
            }
        }
        Ok(())
    }

    /// Publishes a message anew, with where it comes from.
    async fn copy(&mut self, message: GroupMessage) -> Result<(), CliError> {
        let is_foreign = self.args.between.local_only && way(&message).next().is_some();
        if is_foreign || is_back(&message, &self.sides.source_id, &self.sides.target_id) {
            self.progress.counts.skipped += 1;
            let first = message.position();
            self.pending.push(message, first, None);
            return Ok(());
        }
        self.wait_for_rate(&message).await;
        let target = self.targets.of(message.topic()).await?;
        let origin = Origin {
            cluster: &self.sides.source_id,
            topic: message.topic(),
            partition: message.partition(),
            epoch: message.epoch(),
            position: message.position(),
        };
        origin.write(&mut self.origin);
        let record = record(&message, &target, &self.origin);
        let delivery = publish(|| self.producer.send(record.clone()), &message).await?;
        self.count(&message);
        let first = message.position();
        self.pending.push(message, first, Some(delivery));
        Ok(())
    }

    /// Publishes whole sets as they are, each where it lies in the source.
    async fn copy_exactly(&mut self, message: GroupMessage) -> Result<(), CliError> {
        let target = self.targets.of(message.topic()).await?;
        let exact = self.exact.as_mut().expect("asked before");
        match exact.take(&message, &target.name).await? {
            Step::Gathered => self.count(&message),
            Step::Begin(position) => {
                let (topic, partition) = (message.topic(), message.partition());
                let start = corelane_client::Start::Position(position);
                match self.consumer.rewind(topic, partition, start).await {
                    // It will begin again under another ownership.
                    Err(error) if error.is_retryable() || matches!(error, GroupError::NotOwned { .. }) => {
                        exact.forget(topic, partition);
                        eprintln!("corelane: {error}; still trying");
                    }
                    other => other.map_err(CliError::Group)?,
                }
            }
            Step::Publish { first, set } => {
                self.wait_for_rate(&message).await;
                let delivery = publish(|| self.producer.send_set(set.clone()), &message).await?;
                self.count(&message);
                self.pending.push(message, first, Some(delivery));
            }
        }
        Ok(())
    }

    async fn wait_for_rate(&mut self, message: &GroupMessage) {
        if let Some(rate) = &mut self.rate {
            let wait = rate.take(message.frame().len(), Instant::now());
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
    }

    fn count(&mut self, message: &GroupMessage) {
        self.progress.counts.messages += 1;
        self.progress.counts.bytes += message.frame().len() as u64;
    }

    /// Marks what has arrived, and tells how far it is when that is due.
    async fn settle(&mut self) -> Result<(), CliError> {
        self.unsettled = 0;
        while let Err(failed) = self.pending.settle() {
            let message = &failed.on_its_way.message;
            let is_there = match &self.exact {
                Some(exact) => {
                    let target = self.targets.of(message.topic()).await?;
                    exact.is_there(&failed, &target.name).await?
                }
                None => false,
            };
            if !is_there {
                return Err(not_published(message, &failed.error));
            }
            let lane = failed.lane();
            self.pending.pass(lane);
        }
        let now = Instant::now();
        if self.progress.is_due(now) {
            self.look();
            self.progress.tell(now)?;
        }
        Ok(())
    }

    /// Brings the counts up to now.
    fn look(&mut self) {
        let owned = self.consumer.assignment();
        let behind = |at: &corelane_client::GroupPartition| {
            Some(at.visible_end?.saturating_sub(at.processed?.1)).filter(|bytes| *bytes > 0)
        };
        let counts = &mut self.progress.counts;
        counts.partitions = owned.len() as u64;
        counts.lag_bytes = owned.iter().filter_map(behind).sum();
        counts.on_their_way = self.pending.len() as u64;
        counts.damaged = self.consumer.stats().bad_messages;
    }

    /// Decides whether an error ends the mirror or is told and lived with.
    fn meet(&mut self, error: GroupError) -> Result<(), CliError> {
        match error {
            GroupError::Consume(ConsumeError::Undecodable { .. }) if self.exact.is_none() => {
                eprintln!("corelane: {error}; skipped");
                Ok(())
            }
            error if error.is_retryable() => {
                self.progress.counts.errors += 1;
                eprintln!("corelane: {error}; still trying");
                Ok(())
            }
            error => Err(CliError::Group(error)),
        }
    }

    /// Waits for what is on its way, commits what has arrived, leaves the group, and tells how it went. A second signal
    /// ends the waiting.
    pub(super) async fn finish(mut self, end: Result<(), CliError>, signals: &mut Signals) -> Result<(), CliError> {
        tokio::select! {
            _report = self.producer.flush(self.timeout) => {}
            _ = signals.next() => {}
        }
        let settled = self.settle().await;
        self.look();
        self.producer.close(Duration::ZERO).await;
        let closed = self.consumer.close().await;
        self.progress.finish()?;
        end?;
        settled?;
        closed.map_err(CliError::Group)
    }
}

/// The message as the target gets it.
fn record<'m>(message: &'m GroupMessage, target: &'m Target, origin: &'m str) -> Record<'m> {
    let mut record = Record::to(&target.name).timestamp_ms(message.timestamp_ms());
    record = match message.value() {
        Some(value) => record.value(value),
        None => record.tombstone(),
    };
    if let Some(key) = message.key() {
        record = record.key(key);
    }
    if let Some(partition) = target.partition(message.partition(), message.key().is_some()) {
        record = record.partition(partition);
    }
    for (name, value) in message.headers() {
        record = record.header(name, value);
    }
    record.header(HEADER, Some(origin.as_bytes()))
}

/// Hands something to the producer, for as long as it takes.
async fn publish<F>(send: impl Fn() -> F, message: &GroupMessage) -> Result<DeliveryFuture, CliError>
where
    F: Future<Output = Result<DeliveryFuture, SendError>>,
{
    loop {
        match send().await {
            Ok(delivery) => return Ok(delivery),
            Err(error @ SendError::Topic { .. }) if error.is_retryable() => {
                eprintln!("corelane: {error}; still trying");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(stopped(message, &error.to_string())),
        }
    }
}

fn not_published(message: &GroupMessage, error: &DeliveryError) -> CliError {
    stopped(message, &error.to_string())
}

fn stopped(message: &GroupMessage, reason: &str) -> CliError {
    let (topic, partition, position) = (message.topic(), message.partition(), message.position());
    CliError::Mirror(format!("the message at {position} of {topic}/{partition} cannot be copied: {reason}"))
}
