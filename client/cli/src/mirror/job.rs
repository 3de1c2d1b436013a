//! The work of a mirror, in one loop: a message comes, goes to the target, and counts as processed once the target has it on
//! stable storage. Whichever side is away, the loop waits; only what no retry can help ends it.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use corelane_client::{Acks, ConsumeError, GroupConsumer, GroupError, GroupMessage, Producer, Start};
use tokio::sync::Notify;

use super::Sides;
use super::absent::Checks;
use super::args::RunArgs;
use super::claims::Claims;
use super::exact::{At, Exact, Step};
use super::losses::{Losses, Skips};
use super::origin::{Here, Origin};
use super::pending::Pending;
use super::progress::Progress;
use super::publish::{publish, record, stopped};
use super::rate::Rate;
use super::targets::Targets;
use crate::args::Shared;
use crate::consume::poll_once;
use crate::error::CliError;
use crate::produce::{Sight, Watch};
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
/// Between two attempts to begin with a partition.
const PAUSE: Duration = Duration::from_millis(500);

/// How long a run that has failed waits for what is on its way.
const LAST_WAIT: Duration = Duration::from_secs(1);

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
    /// Partitions whose target was not asked yet where to go on with an exact copy.
    to_begin: BTreeSet<(String, u32)>,
    checks: Checks,
    skips: Arc<Skips>,
    losses: Losses,
    watch: Watch,
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
            .on_claim(move |at| claimed.add(&at.topic, at.partition, at.committed));
        let skips = Arc::new(Skips::default());
        consumer = if args.between.exact {
            // What is missing there ends it, wherever the group stands.
            consumer.whole_sets()
        } else {
            let skips = skips.clone();
            consumer.on_skip(move |skip| skips.add(skip))
        };
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
            to_begin: BTreeSet::new(),
            checks: Checks::default(),
            skips,
            losses: Losses::default(),
            watch: Watch::default(),
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
        if self.unsettled >= SETTLE_EVERY {
            self.settle().await?;
            self.begin_claimed().await?;
            self.checks.look_at_one(self.sides, self.args, &mut self.progress.counts).await;
            // What fetches ahead and what publishes run on this thread too.
            tokio::task::yield_now().await;
        }
        let item = match poll_once(self.consumer.next()).await {
            Poll::Ready(item) => {
                self.unsettled += 1;
                item
            }
            Poll::Pending => {
                self.settle().await?;
                self.look_at_claims().await?;
                self.begin_claimed().await?;
                self.checks.look_at_one(self.sides, self.args, &mut self.progress.counts).await;
                let wait = self.progress.wait(Instant::now());
                let wait = if self.to_begin.is_empty() { wait } else { wait.min(PAUSE) };
                let wait = wait.min(self.checks.pause());
                tokio::select! {
                    item = self.consumer.next() => item,
                    () = self.acknowledged.notified() => return Ok(()),
                    () = self.claims.changed.notified() => return Ok(()),
                    () = self.skips.changed.notified() => return Ok(()),
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

    /// Looks the topics up of which partitions were claimed: they may be more than before. A topic that is not exact is made
    /// with its first message that is copied: of two mirrors that rename both ways, each would make what the other has made.
    async fn look_at_claims(&mut self) -> Result<(), CliError> {
        if let Some(claimed) = self.claims.take() {
            let topics: BTreeSet<&String> = claimed.keys().map(|(topic, _)| topic).collect();
            for topic in topics {
                if self.exact.is_some() || self.targets.is_known(topic) {
                    self.targets.look_up(topic).await?;
                }
            }
            if self.exact.is_some() {
                self.to_begin.extend(claimed.into_keys());
            } else {
                self.checks.add(claimed);
            }
        }
        Ok(())
    }

    /// Goes on where the target ends with what was claimed, whatever is committed, also where the source has nothing new.
    /// What does not answer is asked again later; the other partitions go on meanwhile.
    async fn begin_claimed(&mut self) -> Result<(), CliError> {
        let Some(exact) = &self.exact else { return Ok(()) };
        for (topic, partition) in std::mem::take(&mut self.to_begin) {
            let owned = self.consumer.assignment();
            let Some(owned) = owned.iter().find(|at| *at.topic == *topic && at.partition == partition) else {
                continue;
            };
            let Some((_, stands)) = owned.processed else {
                self.to_begin.insert((topic, partition));
                continue;
            };
            let target = self.targets.of(&topic).await?;
            if target.is_left_out {
                continue;
            }
            match exact.begin(At { topic: &topic, partition, position: None }, &target.name).await {
                Ok(next) if next == stands => {}
                Ok(next) => {
                    if !rewind(&mut self.consumer, &topic, partition, next).await? {
                        self.to_begin.insert((topic, partition));
                    }
                }
                Err(CliError::Call(error)) if error.is_retryable() => {
                    eprintln!("corelane: {topic}/{partition}: {error}; still trying");
                    self.to_begin.insert((topic, partition));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Nothing has to be published of it.
    fn leave_out(&mut self, message: GroupMessage) {
        self.progress.counts.skipped += 1;
        let first = message.position();
        self.pending.push(message, first, None);
    }

    /// Publishes a message anew, with where it comes from.
    async fn copy(&mut self, message: GroupMessage) -> Result<(), CliError> {
        let (source_id, target_id) = (&*self.sides.source_id, &*self.sides.target_id);
        let here = Here { source_id, target_id, topic: message.topic(), topic_id: message.topic_id() };
        if here.is_left_out(&message, self.args.between.local_only) {
            self.leave_out(message);
            return Ok(());
        }
        let target = self.targets.of(message.topic()).await?;
        if target.is_left_out {
            self.leave_out(message);
            return Ok(());
        }
        self.wait_for_rate(message.frame().len()).await?;
        let origin = Origin {
            cluster: &self.sides.source_id,
            topic: message.topic(),
            topic_id: &message.topic_id().short(),
            partition: message.partition(),
            epoch: message.epoch(),
            position: message.position(),
        };
        let mut text = std::mem::take(&mut self.origin);
        origin.write(&mut text);
        let (record, producer) = (record(&message, &target, &text), self.producer.clone());
        let delivery = self.meanwhile(publish(|| producer.send(record.clone()), &message)).await??;
        self.origin = text;
        self.count(1, message.frame().len() as u64);
        let first = message.position();
        self.pending.push(message, first, Some(delivery));
        Ok(())
    }

    /// Publishes whole sets as they are, each where it lies in the source.
    async fn copy_exactly(&mut self, message: GroupMessage) -> Result<(), CliError> {
        let target = self.targets.of(message.topic()).await?;
        if target.is_left_out {
            self.leave_out(message);
            return Ok(());
        }
        let exact = self.exact.as_mut().expect("asked before");
        self.to_begin.remove(&(message.topic().to_owned(), message.partition()));
        match exact.take(&message, &target.name).await? {
            Step::Gathered => {}
            Step::Begin(position) => {
                let (topic, partition) = (message.topic(), message.partition());
                if !rewind(&mut self.consumer, topic, partition, position).await? {
                    // It will begin again under another ownership.
                    exact.forget(topic, partition);
                }
            }
            Step::Publish { first, set, messages } => {
                self.wait_for_rate(set.bytes()).await?;
                let producer = self.producer.clone();
                let delivery = self.meanwhile(publish(|| producer.send_set(set.clone()), &message)).await??;
                self.count(messages, message.next_position() - first);
                self.pending.push(message, first, Some(delivery));
            }
        }
        Ok(())
    }

    async fn wait_for_rate(&mut self, bytes: usize) -> Result<(), CliError> {
        let Some(rate) = &mut self.rate else { return Ok(()) };
        let wait = rate.take(bytes, Instant::now());
        if wait.is_zero() { Ok(()) } else { self.meanwhile(tokio::time::sleep(wait)).await }
    }

    /// Waits for something. What is acknowledged meanwhile is marked, and how far the mirror is is told.
    async fn meanwhile<T>(&mut self, something: impl Future<Output = T>) -> Result<T, CliError> {
        let (mut something, acknowledged) = (pin!(something), self.acknowledged.clone());
        loop {
            if let Poll::Ready(done) = poll_once(something.as_mut()).await {
                return Ok(done);
            }
            let wait = self.progress.wait(Instant::now());
            tokio::select! {
                done = &mut something => return Ok(done),
                () = acknowledged.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            self.settle().await?;
        }
    }

    fn count(&mut self, messages: u64, bytes: u64) {
        self.progress.counts.messages += messages;
        self.progress.counts.bytes += bytes;
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
                return Err(stopped(message, &failed.error.to_string()));
            }
            let lane = failed.lane();
            self.pending.pass(lane);
        }
        self.tell_losses();
        let now = Instant::now();
        if self.progress.is_due(now) {
            self.look();
            self.look_for_obstacles(now);
            self.progress.tell(now)?;
        }
        Ok(())
    }

    /// Says what was left out in the source, for it is not there any more, or is damaged.
    fn tell_losses(&mut self) {
        for skip in self.skips.take() {
            if let Some(words) = self.losses.tell(&skip) {
                eprintln!("corelane: {words}");
            }
        }
        self.progress.counts.lost_bytes = self.losses.bytes;
    }

    /// Says what keeps the target from taking what is on its way.
    fn look_for_obstacles(&mut self, now: Instant) {
        let obstacle = self.producer.obstacle().map(|obstacle| obstacle.to_string());
        self.progress.counts.obstacle.clone_from(&obstacle);
        for words in self.watch.look(Sight { obstacle, ..Sight::default() }, now) {
            self.progress.counts.errors += u64::from(self.progress.counts.obstacle.is_some());
            eprintln!("corelane: {words}");
        }
    }

    /// Brings the counts up to now.
    fn look(&mut self) {
        let owned = self.consumer.assignment();
        let behind = |at: &corelane_client::GroupPartition| Some(at.visible_end?.saturating_sub(at.processed?.1));
        let counts = &mut self.progress.counts;
        counts.partitions = owned.len() as u64;
        counts.lag_bytes = if owned.is_empty() { None } else { owned.iter().map(behind).sum() };
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
    /// ends each of these waits; after a failure there is little to wait for.
    pub(super) async fn finish(mut self, end: Result<(), CliError>, signals: &mut Signals) -> Result<(), CliError> {
        let patience = if end.is_ok() { self.timeout } else { self.timeout.min(LAST_WAIT) };
        tokio::select! {
            _report = self.producer.flush(patience) => {}
            _ = signals.next() => {}
        }
        let settled = if end.is_ok() {
            tokio::select! {
                settled = self.settle() => settled,
                _ = signals.next() => Ok(()),
            }
        } else {
            // Marks what has arrived; what has failed is known.
            let _ = self.pending.settle();
            Ok(())
        };
        self.tell_losses();
        self.look();
        self.producer.close(Duration::ZERO).await;
        // Nothing is marked any more, so no release waits for it.
        let closed = tokio::select! {
            closed = self.consumer.leave() => closed,
            _ = signals.next() => Ok(()),
        };
        self.progress.finish()?;
        end?;
        settled?;
        closed.map_err(CliError::Group)
    }
}

/// Goes on elsewhere in a partition; `false`: not now.
async fn rewind(consumer: &mut GroupConsumer, topic: &str, partition: u32, position: u64) -> Result<bool, CliError> {
    match consumer.rewind(topic, partition, Start::Position(position)).await {
        Err(error) if error.is_retryable() || matches!(error, GroupError::NotOwned { .. }) => {
            eprintln!("corelane: {error}; still trying");
            Ok(false)
        }
        other => other.map(|()| true).map_err(CliError::Group),
    }
}
