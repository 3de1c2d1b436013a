//! One consumer: takes whatever has come in one go, checks it, and measures how long it took.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use corelane_client::{
    CallError, Client, ConsumeError, ConsumedMessage, Consumer, GroupConsumer, GroupConsumerBuilder, GroupError,
    GroupHandle, GroupStart, OutOfRange, Start,
};
use corelane_proto::message::Message;
use futures_util::Stream;
use tokio::sync::watch;

use crate::latency::Series;
use crate::payload::{Header, Payload, Value, claimed_run, now_us};
use crate::topics::Topics;
use crate::verify::{StreamId, Streams, Taken};

/// Messages taken in one go, at most: so often the clock is read and the other tasks get their turn.
const TURN_MESSAGES: usize = 256;
/// Faults that are told one by one.
pub(crate) const FAULTS_MAX: usize = 10;

/// The kind of a value that is not what was published though its CRC is right.
pub(crate) const DAMAGED: &str = "damaged values";
/// What values are counted as that carry no number of a run: nothing can be said of them.
const UNNUMBERED: &str = "values without a number";

/// What one audience (the consumers that together read everything once) has read so far.
#[derive(Debug)]
pub(crate) struct Reading {
    topics: Arc<Topics>,
    /// Messages of this run alone count; none: of all runs.
    only_run: Option<u64>,
    payload: Payload,
    pub(crate) streams: Streams,
    pub(crate) end_to_end: Series,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Messages verified, duplicates not counted.
    pub(crate) whole: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    /// What was wrong, the first of it, with its place.
    pub(crate) faults: Vec<String>,
    pub(crate) first: Option<Instant>,
    pub(crate) last: Option<Instant>,
    /// What was published before, microseconds since the Unix epoch, is the warm-up's.
    pub(crate) measured_from_us: u64,
    /// The time of publication that the last messages share, and how many they are: one entry for them all.
    alike: (u64, u64),
}

impl Reading {
    pub(crate) fn new(topics: Arc<Topics>, only_run: Option<u64>, size_bytes_max: usize) -> Self {
        Self {
            topics,
            only_run,
            payload: Payload::new(size_bytes_max),
            streams: Streams::default(),
            end_to_end: Series::default(),
            messages: 0,
            bytes: 0,
            whole: 0,
            errors: BTreeMap::new(),
            faults: Vec::new(),
            first: None,
            last: None,
            measured_from_us: 0,
            alike: (0, 0),
        }
    }

    /// Expects a stream of this run from its first message on.
    pub(crate) fn expect(&mut self, id: StreamId) {
        self.streams.expect(id);
    }

    /// A message has come.
    pub(crate) fn take(&mut self, place: Place<'_>, key: Option<&[u8]>, value: &[u8], now_us: u64) {
        // A topic's partition that was added after the beginning is nobody's.
        let Some(lane) = self.topics.find(place.topic, place.partition) else { return };
        let expected = self.topics.lane(lane).place;
        match self.payload.read(value, expected, key) {
            Value::Whole(header) if self.only_run.is_some_and(|run| run != header.run) => {}
            Value::Whole(header) => {
                self.count(value.len());
                self.verify(lane, &header, place, now_us);
            }
            Value::Damaged { run } => {
                let is_ours = |run| match self.only_run {
                    Some(only) => run == only,
                    None => self.streams.knows_run(run),
                };
                if run.or(claimed_run(value)).is_some_and(is_ours) {
                    self.count(value.len());
                    self.count_error(DAMAGED, 1);
                    self.tell(|| format!("damaged: {place}"));
                } else {
                    self.take_foreign(value.len());
                }
            }
            Value::Foreign => self.take_foreign(value.len()),
        }
    }

    /// What another program has published is not ours to judge in a run that knows its own; its CRC was checked by the
    /// client.
    fn take_foreign(&mut self, value_bytes: usize) {
        if self.only_run.is_none() {
            self.count(value_bytes);
            self.count_error(UNNUMBERED, 1);
        }
    }

    fn count(&mut self, value_bytes: usize) {
        self.messages += 1;
        self.bytes += value_bytes as u64;
    }

    fn verify(&mut self, lane: u32, header: &Header, place: Place<'_>, now_us: u64) {
        let id = StreamId { run: header.run, connection: header.connection, lane };
        match self.streams.take(id, header.sequence) {
            Taken::New => self.whole += 1,
            Taken::Duplicate => {}
            Taken::OutOfOrder => {
                self.whole += 1;
                self.tell(|| {
                    format!("out of order: {place}, number {} of connection {}", header.sequence, id.connection)
                });
            }
        }
        if self.alike.0 != header.published_us {
            self.record_alike(now_us);
            self.alike = (header.published_us, 0);
        }
        self.alike.1 += 1;
    }

    fn record_alike(&mut self, now_us: u64) {
        let (published_us, messages) = std::mem::take(&mut self.alike);
        if messages > 0 && published_us >= self.measured_from_us {
            self.end_to_end.record(Duration::from_micros(now_us.saturating_sub(published_us)), messages);
        }
    }

    pub(crate) fn end_turn(&mut self, begun: Instant, now_us: u64) {
        self.record_alike(now_us);
        if self.messages > 0 {
            self.first.get_or_insert(begun);
            self.last = Some(Instant::now());
        }
    }

    fn count_error(&mut self, kind: &str, messages: u64) {
        *self.errors.entry(kind.to_owned()).or_insert(0) += messages;
    }

    fn tell(&mut self, fault: impl FnOnce() -> String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault());
        }
    }
}

/// Where a message came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: u32,
    pub(crate) position: u64,
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} at {}", self.topic, self.partition, self.position)
    }
}

/// Where messages come from.
enum Source {
    Plain(Box<Consumer>),
    Member(Box<GroupConsumer>),
}

/// One consumer; its audience's books.
pub(crate) struct Reader {
    source: Source,
    reading: Rc<RefCell<Reading>>,
}

/// Where a consumer begins, and whether it ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) is_from_end: bool,
    /// It stops at the ends of the moment.
    pub(crate) is_until_end: bool,
}

/// How a turn ended.
enum Turn {
    More,
    Ended,
}

impl Reader {
    /// A consumer of these lanes.
    pub(crate) async fn plain(
        client: &Client,
        topics: &Topics,
        lanes: &[u32],
        extent: Extent,
        reading: Rc<RefCell<Reading>>,
    ) -> Result<Self, CallError> {
        let builder = client
            .consumer()
            .start(if extent.is_from_end { Start::Latest } else { Start::Earliest })
            .out_of_range(OutOfRange::Fail)
            .until_end(extent.is_until_end);
        let builder = lanes
            .iter()
            .fold(builder, |builder, lane| builder.partition(topics.name(*lane), topics.lane(*lane).partition));
        Ok(Self { source: Source::Plain(Box::new(builder.build().await?)), reading })
    }

    /// A member of a group.
    pub(crate) fn member(
        client: &Client,
        topics: &Topics,
        group: &str,
        extent: Extent,
        reading: Rc<RefCell<Reading>>,
    ) -> Result<Self, CallError> {
        let builder = client.group(group).commit_interval(Duration::from_secs(1));
        let builder = builder.start(if extent.is_from_end { GroupStart::Latest } else { GroupStart::Earliest });
        let builder = topics.names().iter().fold(builder, GroupConsumerBuilder::topic);
        Ok(Self { source: Source::Member(Box::new(builder.build()?)), reading })
    }

    /// What tells which partitions a member of a group reads.
    pub(crate) fn member_handle(&self) -> Option<GroupHandle> {
        match &self.source {
            Source::Plain(_) => None,
            Source::Member(member) => Some(member.handle()),
        }
    }

    /// Reads until it is told to stop, or there is nothing more to come. A member then leaves its group.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>, timeout: Duration) {
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
        let (stats, closed) = match self.source {
            Source::Plain(consumer) => (consumer.stats(), Ok(())),
            Source::Member(member) => {
                let stats = member.stats();
                let closed = tokio::time::timeout(timeout, member.close()).await;
                (stats, closed.unwrap_or(Ok(())))
            }
        };
        let mut reading = self.reading.borrow_mut();
        if stats.bad_messages > 0 {
            reading.count_error("bad messages", stats.bad_messages);
        }
        if closed.is_err() {
            reading.count_error("group: last positions not committed", 1);
        }
    }

    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Turn> {
        let mut reading = self.reading.borrow_mut();
        let (begun, now_us) = (Instant::now(), now_us());
        let mut turn = Turn::More;
        for taken in 0..TURN_MESSAGES {
            match self.source.poll(context) {
                Poll::Ready(Some(Ok(message))) => take(&mut reading, &message, now_us),
                Poll::Ready(Some(Err((kind, is_last)))) => {
                    reading.count_error(kind, 1);
                    if is_last {
                        turn = Turn::Ended;
                        break;
                    }
                }
                Poll::Ready(None) => {
                    turn = Turn::Ended;
                    break;
                }
                Poll::Pending if taken == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        reading.end_turn(begun, now_us);
        Poll::Ready(turn)
    }
}

impl Source {
    /// The next message; or the kind of an error, and whether nothing more comes after it.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<ConsumedMessage, (&'static str, bool)>>> {
        match self {
            Self::Plain(consumer) => Pin::new(consumer)
                .poll_next(context)
                .map(|next| next.map(|next| next.map_err(|error| (consume_kind(&error), !error.is_retryable())))),
            Self::Member(member) => Pin::new(member).poll_next(context).map(|next| {
                let message = |next: Result<corelane_client::GroupMessage, GroupError>| {
                    next.map(corelane_client::GroupMessage::into_message).map_err(|error| (group_kind(&error), false))
                };
                next.map(message)
            }),
        }
    }
}

fn take(reading: &mut Reading, message: &ConsumedMessage, now_us: u64) {
    let view = Message::view(message.frame()).expect("a message that is handed out was checked before");
    let place = Place { topic: message.topic(), partition: message.partition(), position: message.position() };
    reading.take(place, view.key(), view.value().unwrap_or_default(), now_us);
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

fn group_kind(error: &GroupError) -> &'static str {
    match error {
        GroupError::MembershipEnded { .. } => "group: membership ended",
        GroupError::NotCommitted { .. } => "group: not committed",
        GroupError::AheadOfEnd { .. } => "group: position beyond the end",
        GroupError::Call { .. } => "group: cluster unreachable",
        GroupError::Consume(error) => consume_kind(error),
        _ => "group: other",
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;
    use crate::keys::{KeySpec, KeyTable};
    use crate::payload::HEADER_BYTES;
    use crate::sizes::{self, Sizes};

    const RUN: u64 = 77;

    /// A message as a broker would hand it out.
    #[derive(Clone)]
    struct Sent {
        partition: u32,
        key: Vec<u8>,
        value: Vec<u8>,
    }

    /// What two connections publish to two partitions in turn.
    fn sent(messages: u64) -> Vec<Sent> {
        let topics = topics();
        let sizes = Sizes::new(&sizes::parse("32..300").unwrap(), 1);
        let mut payload = Payload::new(sizes.max());
        let mut sent = Vec::new();
        for sequence in 0..messages {
            for (connection, partition) in [(0, 0), (1, 1), (1, 0), (0, 1)] {
                let key = crate::keys::key(sequence as u32 % 5).to_vec();
                let header = Header { run: RUN, connection, sequence, published_us: 1_000 + sequence };
                let place = topics.lane(partition).place;
                let value = payload.write(&header, place, Some(&key), sizes.get(0, sequence)).to_vec();
                sent.push(Sent { partition, key, value });
            }
        }
        sent
    }

    fn topics() -> Arc<Topics> {
        Arc::new(Topics::new([("t".to_owned(), 2)]))
    }

    fn id(connection: u32, lane: u32) -> StreamId {
        StreamId { run: RUN, connection, lane }
    }

    fn read(messages: &[Sent], only_run: Option<u64>) -> Reading {
        let mut reading = Reading::new(topics(), only_run, HEADER_BYTES);
        for (position, message) in messages.iter().enumerate() {
            let place = Place { topic: "t", partition: message.partition, position: position as u64 };
            reading.take(place, Some(&message.key), &message.value, 5_000);
        }
        reading.end_turn(Instant::now(), 5_000);
        reading
    }

    /// Missing, duplicate, out of order, damaged.
    fn faults(reading: &Reading) -> (u64, u64, u64, u64) {
        let sum =
            |of: &dyn Fn(&crate::verify::Consumed) -> u64| reading.streams.iter().map(|(_, stream)| of(stream)).sum();
        let damaged = reading.errors.get(DAMAGED).copied().unwrap_or_default();
        (sum(&crate::verify::Consumed::missing), sum(&|one| one.duplicates), sum(&|one| one.out_of_order), damaged)
    }

    #[test]
    fn what_is_lost_repeated_swapped_or_changed_on_the_way_is_noticed() {
        let sent = sent(100);
        let whole = read(&sent, Some(RUN));
        assert_eq!((faults(&whole), whole.whole, whole.faults.len()), ((0, 0, 0, 0), 400, 0));

        let mut lost = sent.clone();
        lost.drain(40..47);
        assert_eq!(faults(&read(&lost, Some(RUN))), (7, 0, 0, 0));

        let mut repeated = sent.clone();
        repeated.splice(50..50, sent[30..50].iter().cloned());
        assert_eq!(faults(&read(&repeated, Some(RUN))), (0, 20, 0, 0));

        let mut swapped = sent.clone();
        swapped.swap(40, 44);
        let swapped = read(&swapped, Some(RUN));
        assert_eq!(faults(&swapped), (0, 0, 1, 0));
        assert_eq!(swapped.faults, ["out of order: t/0 at 44, number 10 of connection 0"]);

        // A changed value does not count as come: it is damaged, and the one that should be there is missing.
        let mut changed = sent.clone();
        let last = changed[60].value.len() - 1;
        changed[60].value[last] ^= 1;
        let changed = read(&changed, Some(RUN));
        assert_eq!((faults(&changed), changed.whole), ((1, 0, 0, 1), 399));
        assert_eq!(changed.faults, ["damaged: t/0 at 60"]);

        let mut misplaced = sent.clone();
        misplaced[60].partition = 1;
        assert_eq!(faults(&read(&misplaced, Some(RUN))), (1, 0, 0, 1), "in another partition");
        let mut renamed = sent;
        renamed[60].key = b"key-000000000009".to_vec();
        assert_eq!(faults(&read(&renamed, Some(RUN))), (1, 0, 0, 1), "under another key");
    }

    #[test]
    fn what_others_have_published_is_not_judged() {
        let mut messages = sent(10);
        let foreign = |text: &str| Sent { partition: 0, key: b"k".to_vec(), value: text.as_bytes().to_vec() };
        messages.insert(5, foreign("short"));
        messages.insert(9, foreign("a line of some log that is longer than the header of a value"));
        let reading = read(&messages, Some(RUN));
        assert_eq!((reading.messages, faults(&reading)), (40, (0, 0, 0, 0)));
        assert_eq!(read(&messages, Some(RUN + 1)).messages, 0, "another run's");
        let all = read(&messages, None);
        assert_eq!((all.messages, all.errors.get(UNNUMBERED), all.errors.len()), (42, Some(&2), 1));
    }

    #[test]
    fn latencies_of_the_warm_up_do_not_count() {
        let sent = sent(10);
        let mut reading = Reading::new(topics(), Some(RUN), HEADER_BYTES);
        reading.measured_from_us = 1_006;
        for message in &sent {
            let place = Place { topic: "t", partition: message.partition, position: 0 };
            reading.take(place, Some(&message.key), &message.value, 2_000);
        }
        reading.end_turn(Instant::now(), 2_000);
        assert_eq!(reading.end_to_end.end_interval(true).map(|brief| (brief.p50, brief.max)), Some((992, 994)));
        let counted = reading.end_to_end.total().percentiles().map(|all| all.count);
        assert_eq!((counted, reading.messages), (Some(16), 40));
    }

    #[test]
    fn a_message_is_made_and_checked_without_an_allocation() {
        let topics = topics();
        let table = KeyTable::new(KeySpec::Zipf(1_000, 0.99), 2).unwrap();
        let sizes = Sizes::new(&sizes::parse("lognormal:300..5000").unwrap(), 1);
        let mut random = SmallRng::seed_from_u64(1);
        let mut payload = Payload::new(sizes.max());
        let mut reading = Reading::new(Arc::clone(&topics), Some(RUN), sizes.max());
        (0..2).for_each(|lane| reading.expect(id(0, lane)));
        let mut sequences = [0, 0];
        let allocated = allocation_counter::measure(|| {
            for now_us in 0..10_000 {
                let partition = table.partition(&mut random);
                let key = table.key(partition, &mut random);
                let sequence = &mut sequences[partition as usize];
                let header = Header { run: RUN, connection: 0, sequence: *sequence, published_us: now_us };
                let value = payload.write(&header, topics.lane(partition).place, Some(&key), sizes.get(0, *sequence));
                *sequence += 1;
                let place = Place { topic: "t", partition, position: now_us };
                reading.take(place, Some(&key), value, now_us + 90);
            }
        });
        assert_eq!((allocated.count_total, reading.whole), (0, 10_000));
    }
}
