//! One consumer: takes whatever has come in one go, checks it, and measures how long it took.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use corelane_client::{CallError, Client, ConsumeError, ConsumedMessage, Consumer, OutOfRange, Start};
use futures_util::Stream;
use tokio::sync::watch;

use crate::args::{Args, From, Mode};
use crate::latency::Latencies;
use crate::payload::{HEADER_BYTES, Header, Payload, Value, now_us};
use crate::verify::{StreamId, Streams};

/// Messages taken in one go, at most: so often the clock is read and the other tasks get their turn.
const TURN_MESSAGES: usize = 256;

/// The kind of a value that is not what was published though its CRC is right.
pub(crate) const DAMAGED: &str = "damaged values";
/// What values are counted as that carry no number of a run: nothing can be said of them.
const UNNUMBERED: &str = "values without a number";

/// What was read so far.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Messages of this run alone count; none: of all runs.
    only_run: Option<u64>,
    payload: Payload,
    pub(crate) streams: Streams,
    pub(crate) latencies: Latencies,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Messages verified, duplicates not counted.
    pub(crate) whole: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) first: Option<Instant>,
    pub(crate) last: Option<Instant>,
}

impl Reading {
    fn new(only_run: Option<u64>, size_bytes: usize) -> Self {
        Self {
            only_run,
            payload: Payload::new(size_bytes.max(HEADER_BYTES)),
            streams: Streams::default(),
            latencies: Latencies::default(),
            messages: 0,
            bytes: 0,
            whole: 0,
            errors: BTreeMap::new(),
            first: None,
            last: None,
        }
    }

    /// Expects a stream of this run from its first message on.
    pub(crate) fn expect(&mut self, id: StreamId) {
        self.streams.expect(id);
    }

    fn take(&mut self, partition: u32, value: &[u8], now_us: u64) {
        match self.payload.read(value, partition) {
            Value::Whole(header) if self.only_run.is_some_and(|run| run != header.run) => {}
            // What another program has published is not ours to judge; its CRC was checked by the client.
            Value::Foreign if self.only_run.is_some() => {}
            Value::Foreign => {
                self.count(value.len());
                self.count_error(UNNUMBERED, 1);
            }
            Value::Damaged => {
                self.count(value.len());
                self.count_error(DAMAGED, 1);
            }
            Value::Whole(header) => {
                self.count(value.len());
                self.verify(&header, partition, now_us);
            }
        }
    }

    fn count(&mut self, value_bytes: usize) {
        self.messages += 1;
        self.bytes += value_bytes as u64;
    }

    fn verify(&mut self, header: &Header, partition: u32, now_us: u64) {
        let id = StreamId { run: header.run, connection: header.connection, partition };
        self.whole += u64::from(self.streams.take(id, header));
        self.latencies.record_us(now_us.saturating_sub(header.published_us), 1);
    }

    fn end_turn(&mut self, begun: Instant) {
        if self.messages > 0 {
            self.first.get_or_insert(begun);
            self.last = Some(Instant::now());
        }
    }

    fn count_error(&mut self, kind: &str, messages: u64) {
        *self.errors.entry(kind.to_owned()).or_insert(0) += messages;
    }
}

/// One consumer and its books.
pub(crate) struct Reader {
    consumer: Consumer,
    reading: Rc<RefCell<Reading>>,
}

/// How a turn ended.
enum Turn {
    More,
    Ended,
}

impl Reader {
    /// A consumer of these partitions. In a run that also publishes, it begins at their ends of now.
    pub(crate) async fn new(client: &Client, args: &Args, run: u64, partitions: &[u32]) -> Result<Self, CallError> {
        let start = match (args.mode, args.from) {
            (Mode::Consume, From::Earliest) => Start::Earliest,
            _ => Start::Latest,
        };
        let builder = client
            .consumer()
            .start(start)
            .out_of_range(OutOfRange::Fail)
            .until_end(args.mode == Mode::Consume && args.exit_at_end);
        let builder = partitions.iter().fold(builder, |builder, partition| builder.partition(&args.topic, *partition));
        let only_run = args.publishes().then_some(run);
        let reading = Rc::new(RefCell::new(Reading::new(only_run, args.size as usize)));
        Ok(Self { consumer: builder.build().await?, reading })
    }

    /// The books, also while it runs.
    pub(crate) fn reading(&self) -> Rc<RefCell<Reading>> {
        Rc::clone(&self.reading)
    }

    /// Reads until it is told to stop, or there is nothing more to come.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let turn = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                turn = poll_fn(|context| self.poll_turn(context)) => turn,
            };
            match turn {
                Turn::Ended => break,
                Turn::More => tokio::task::yield_now().await,
            }
        }
        let stats = self.consumer.stats();
        if stats.bad_messages > 0 {
            self.reading.borrow_mut().count_error("bad messages", stats.bad_messages);
        }
    }

    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Turn> {
        let mut reading = self.reading.borrow_mut();
        let (begun, now_us) = (Instant::now(), now_us());
        for taken in 0..TURN_MESSAGES {
            match Pin::new(&mut self.consumer).poll_next(context) {
                Poll::Ready(Some(Ok(message))) => take(&mut reading, &message, now_us),
                Poll::Ready(Some(Err(error))) => {
                    reading.count_error(consume_kind(&error), 1);
                    if !error.is_retryable() {
                        return Poll::Ready(Turn::Ended);
                    }
                }
                Poll::Ready(None) => {
                    reading.end_turn(begun);
                    return Poll::Ready(Turn::Ended);
                }
                Poll::Pending if taken == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        reading.end_turn(begun);
        Poll::Ready(Turn::More)
    }
}

fn take(reading: &mut Reading, message: &ConsumedMessage, now_us: u64) {
    reading.take(message.partition(), message.value().unwrap_or_default(), now_us);
}

fn consume_kind(error: &ConsumeError) -> &'static str {
    match error {
        ConsumeError::OutOfRange { .. } => "consume: OUT_OF_RANGE",
        ConsumeError::NewEpoch { .. } => "consume: new epoch",
        ConsumeError::TopicDeleted { .. } => "consume: topic deleted",
        ConsumeError::Undecodable { .. } => "consume: undecodable set",
        _ => "consume: broker unreachable",
    }
}
