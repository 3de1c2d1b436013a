//! The work of `consume`, in one loop: format what is there, hand full buffers to the writer, flush when nothing more is
//! there, then wait for a message, a signal, a reader that leaves or the time of `--until`, whichever comes first.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use corelane_client::{Client, ConsumeError, ConsumedMessage, Consumer, ConsumerBuilder, OutOfRange, Start};

use super::args::ConsumeArgs;
use super::format::{Format, Shown};
use super::sink::{Sink, SinkClosed};
use super::until::Until;
use super::waiting::Waiting;
use crate::error::CliError;
use crate::parse::place::Place;
use crate::signals::{Interruption, Signals};

/// Why the loop ended.
pub(super) enum End {
    /// Everything asked for is written or in the sink.
    Complete,
    /// The output takes no more.
    Closed,
    Interrupted(Interruption),
}

/// Everything that the loop works on.
pub(super) struct Job<'a> {
    client: Client,
    args: &'a ConsumeArgs,
    format: Format,
    consumer: Consumer,
    sink: Sink,
    start: Start,
    beginning: Beginning,
    until: Option<Until>,
    /// Whether the consumer ends at ends that are fixed by now.
    ends_fixed: bool,
    messages_left: u64,
    undecodable_sets: u64,
    waiting: Waiting,
    /// Partitions that were given up, by why.
    unread: BTreeMap<String, BTreeSet<u32>>,
}

impl<'a> Job<'a> {
    /// Finds the places to begin at, and opens the output last: a topic that is not there empties no file.
    pub(super) async fn prepare(client: &Client, args: &'a ConsumeArgs, json: bool) -> Result<Self, CliError> {
        let now_ms = now_ms();
        let until_ms = args.until.map(|until| until.unix_ms(now_ms));
        let ends_fixed = args.exit_at_end || until_ms.is_some_and(|until_ms| until_ms <= now_ms);
        let start = match args.last {
            Some(0) => Start::Latest,
            Some(messages) => Start::LastMessages(messages),
            None => start(args.begin.from, now_ms),
        };
        let consumer = builder(client, args).start(start).until_end(ends_fixed).build().await?;
        let begun = consumer.positions().into_iter().map(|at| at.partition);
        let partitions: Vec<u32> =
            begun.chain(consumer.not_begun().into_iter().map(|(_, partition)| partition)).collect();
        let sink = super::open_sink(args)?;
        Ok(Self {
            client: client.clone(),
            args,
            format: args.format(json),
            consumer,
            sink,
            start,
            beginning: Beginning::new(start, now_ms),
            until: until_ms.map(|until_ms| Until::new(until_ms, partitions)),
            ends_fixed,
            messages_left: args.max.unwrap_or(u64::MAX),
            undecodable_sets: 0,
            waiting: Waiting::default(),
            unread: BTreeMap::new(),
        })
    }

    /// Runs until the output is complete, cannot be written, or a signal comes.
    pub(super) async fn work(&mut self, signals: &mut Signals) -> Result<End, CliError> {
        while self.messages_left > 0 && !self.until.as_ref().is_some_and(Until::is_done) {
            let item = match poll_once(self.consumer.next()).await {
                Poll::Ready(item) if !self.sink.is_full() => item,
                other => {
                    if let Some(end) = self.hand_over(signals).await {
                        return Ok(end);
                    }
                    match other {
                        Poll::Ready(item) => {
                            // What fetches ahead runs on this thread too.
                            tokio::task::yield_now().await;
                            item
                        }
                        Poll::Pending => {
                            let time_to_until = self.time_to_until();
                            tokio::select! {
                                item = self.consumer.next() => item,
                                interruption = signals.next() => return Ok(End::Interrupted(interruption)),
                                () = self.sink.closed() => return Ok(End::Closed),
                                () = sleep_if(time_to_until) => {
                                    self.fix_ends(signals).await?;
                                    continue;
                                }
                            }
                        }
                    }
                }
            };
            match item {
                Some(Ok(message)) => self.write(&message),
                Some(Err(error)) => self.meet(error).await?,
                None => return Ok(End::Complete),
            }
        }
        Ok(End::Complete)
    }

    /// The output, once the work is over.
    pub(super) fn into_sink(self) -> Sink {
        self.sink
    }

    /// What a complete output lacks: messages that could not be read.
    pub(super) fn lacks(&self) -> Option<CliError> {
        if !self.unread.is_empty() {
            let unread = self.unread.iter().map(|(cause, partitions)| {
                let partitions: Vec<String> = partitions.iter().map(ToString::to_string).collect();
                format!("{}/{} (or its rest) could not be read: {cause}", self.args.topic(), partitions.join(", "))
            });
            let unread: Vec<String> = unread.collect();
            return Some(CliError::Consume(format!("the output is not complete: {}", unread.join("; "))));
        }
        let stats = self.consumer.stats();
        if stats.bad_messages == 0 && stats.skipped_bytes == 0 && self.undecodable_sets == 0 {
            return None;
        }
        Some(CliError::Consume(format!(
            "the output is not complete: damaged bytes in {} places ({} bytes in all) and {} sets that cannot be unpacked were skipped",
            stats.bad_messages, stats.skipped_bytes, self.undecodable_sets
        )))
    }

    fn write(&mut self, message: &ConsumedMessage) {
        let partition = message.partition();
        if let Some(words) = self.waiting.end(message.topic(), partition) {
            eprintln!("corelane: {words}");
        }
        if self.until.as_mut().is_some_and(|until| !until.takes(partition, message.timestamp_ms()))
            || !self.beginning.takes(partition, message.timestamp_ms())
        {
            return;
        }
        self.format.write(&Shown::of(message), self.sink.buffer());
        self.messages_left -= 1;
    }

    /// Hands what was gathered to the writer. Some: there is no point in going on.
    async fn hand_over(&mut self, signals: &mut Signals) -> Option<End> {
        tokio::select! {
            biased;
            interruption = signals.next() => Some(End::Interrupted(interruption)),
            result = self.sink.flush() => match result {
                Ok(()) => None,
                Err(SinkClosed) => Some(End::Closed),
            },
        }
    }

    /// How long to wait before the ends are fixed; none: they are, or nothing was said about a time.
    fn time_to_until(&self) -> Option<Duration> {
        let until = self.until.as_ref().filter(|_| !self.ends_fixed)?;
        Some(Duration::from_millis(u64::try_from(until.time_ms() - now_ms()).unwrap_or(0)))
    }

    /// The time of `--until` has come: go on to the ends that the partitions have now.
    async fn fix_ends(&mut self, signals: &mut Signals) -> Result<(), CliError> {
        let build = self.resume().until_end(true).build();
        self.consumer = tokio::select! {
            consumer = build => consumer?,
            interruption = signals.next() => return Err(CliError::Interrupted(interruption)),
        };
        self.ends_fixed = true;
        Ok(())
    }

    /// Decides whether an error ends the command or is told and lived with.
    async fn meet(&mut self, error: ConsumeError) -> Result<(), CliError> {
        match &error {
            // Retention has overtaken the reader; only a position that the user asked for must be there.
            ConsumeError::OutOfRange { topic, partition, position, .. }
                if self.args.begin.from != Place::Position(*position) =>
            {
                eprintln!("corelane: {error}; going on at its start");
                self.consumer.seek(topic, *partition, Start::Earliest).await?;
                Ok(())
            }
            ConsumeError::Undecodable { .. } => {
                self.undecodable_sets += 1;
                eprintln!("corelane: {error}; skipped");
                Ok(())
            }
            // One that is to end does not hang on a dead broker: the others give what they have.
            ConsumeError::Unavailable { topic, partition, cause } if self.args.ends_by_itself() => {
                self.consumer.stop(topic, *partition);
                if let Some(until) = &mut self.until {
                    until.give_up(*partition);
                }
                let of_cause = self.unread.entry(cause.to_string()).or_default();
                if of_cause.is_empty() {
                    eprintln!("corelane: {error}; going on without what cannot be read");
                }
                of_cause.insert(*partition);
                Ok(())
            }
            // One that follows outlives a broker's restart.
            ConsumeError::Unavailable { cause, .. } if cause.is_retryable() => {
                if let Some(words) = self.waiting.begin(&error, Instant::now()) {
                    eprintln!("corelane: {words}");
                }
                Ok(())
            }
            _ => Err(CliError::Consume(error.to_string())),
        }
    }

    /// A consumer that goes on where this one stands.
    fn resume(&self) -> ConsumerBuilder {
        let builder = self.client.consumer().out_of_range(OutOfRange::Fail);
        let begun = self.consumer.positions().into_iter().fold(builder, |builder, at| {
            builder.partition_from(&*at.topic, at.partition, Start::Position(at.position))
        });
        self.consumer
            .not_begun()
            .into_iter()
            .fold(begun, |builder, (topic, partition)| builder.partition_from(&*topic, partition, self.start))
    }
}

/// A beginning in the future: what is published until then is not asked for.
#[derive(Debug)]
struct Beginning {
    /// None: it has come.
    time_ms: Option<i64>,
    /// Partitions that have given a message of that time or later; what follows in their logs was published later.
    begun: BTreeSet<u32>,
}

impl Beginning {
    fn new(start: Start, now_ms: i64) -> Self {
        let time_ms = if let Start::TimeMs(time_ms) = start { Some(time_ms).filter(|at| *at > now_ms) } else { None };
        Self { time_ms, begun: BTreeSet::new() }
    }

    fn takes(&mut self, partition: u32, timestamp_ms: i64) -> bool {
        let Some(time_ms) = self.time_ms else { return true };
        if timestamp_ms >= time_ms {
            self.begun.insert(partition);
        }
        self.begun.contains(&partition)
    }
}

/// A consumer of the partitions asked for, without a start so far.
fn builder(client: &Client, args: &ConsumeArgs) -> ConsumerBuilder {
    let builder = client.consumer().out_of_range(OutOfRange::Fail);
    if args.partition.is_empty() {
        return builder.topic(args.topic());
    }
    let mut partitions = args.partition.clone();
    partitions.sort_unstable();
    partitions.dedup();
    partitions.into_iter().fold(builder, |builder, partition| builder.partition(args.topic(), partition))
}

fn start(from: Place, now_ms: i64) -> Start {
    match from {
        Place::Earliest => Start::Earliest,
        Place::Latest => Start::Latest,
        Place::Position(position) => Start::Position(position),
        Place::Time(moment) => Start::TimeMs(moment.unix_ms(now_ms)),
    }
}

pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Polls a future once.
pub(crate) async fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// Sleeps; without a duration, for ever.
async fn sleep_if(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_before_a_beginning_in_the_future_is_not_asked_for() {
        let mut beginning = Beginning::new(Start::TimeMs(2_000), 1_000);
        assert!(!beginning.takes(0, 1_999) && beginning.takes(0, 2_000) && beginning.takes(0, 1_500));
        assert!(!beginning.takes(1, 1_999));
        let mut past = Beginning::new(Start::TimeMs(2_000), 2_000);
        assert!(past.takes(0, 5), "the broker has found the place");
    }
}
