//! What became of the sets that one connection has handed to its producer: acknowledged, failed, how fast.
//!
//! The producer's task settles sets while the publishing task hands over new ones, so a ledger lives behind a mutex, which
//! is taken once for each set.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use corelane_client::{DeliveryError, SendError, SetReport};

use crate::latency::Latencies;
use crate::verify::{Published, StreamId};

/// One connection's books.
#[derive(Debug)]
pub(crate) struct Ledger {
    run: u64,
    connection: u32,
    lanes: BTreeMap<u32, Lane>,
    pub(crate) latencies: Latencies,
    /// Messages that failed, by kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Messages acknowledged.
    pub(crate) acknowledged: u64,
    pub(crate) last_settled: Option<Instant>,
}

/// What goes to one partition.
#[derive(Debug, Default)]
struct Lane {
    /// Handed over and not settled yet, in order.
    waiting: VecDeque<Handed>,
    published: Published,
}

#[derive(Debug)]
struct Handed {
    sequences: Range<u64>,
    /// How much later than its time the set was handed over, when there is a rate.
    late: Duration,
}

impl Ledger {
    pub(crate) fn new(run: u64, connection: u32, partitions: &[u32]) -> Self {
        Self {
            run,
            connection,
            lanes: partitions.iter().map(|partition| (*partition, Lane::default())).collect(),
            latencies: Latencies::default(),
            errors: BTreeMap::new(),
            acknowledged: 0,
            last_settled: None,
        }
    }

    /// These messages are about to be handed over; told first, because the answer may come before the last of them.
    pub(crate) fn hand_over(&mut self, partition: u32, sequences: Range<u64>, late: Duration) {
        self.lane(partition).waiting.push_back(Handed { sequences, late });
    }

    /// The producer took them only up to here.
    pub(crate) fn cut(&mut self, partition: u32, end: u64) {
        let lane = self.lane(partition);
        if let Some(last) = lane.waiting.back_mut() {
            last.sequences.end = end.max(last.sequences.start);
        }
    }

    /// A set has ended.
    pub(crate) fn settle(&mut self, report: &SetReport, now: Instant) {
        let failure = report.first.as_ref().err().map(delivery_kind);
        self.settle_set(report.partition, u64::from(report.messages), report.age, failure.as_deref(), now);
    }

    fn settle_set(&mut self, partition: u32, messages: u64, age: Duration, failure: Option<&str>, now: Instant) {
        self.last_settled = Some(now);
        let id = StreamId { run: self.run, connection: self.connection, partition };
        let lane = self.lanes.get_mut(&partition).expect("a producer publishes where it was told to");
        let mut late = None;
        let mut left = messages;
        while left > 0 {
            let handed = lane.waiting.front_mut().expect("what is settled was handed over before");
            late = late.or(Some(handed.late));
            let taken = left.min(handed.sequences.end - handed.sequences.start);
            let sequences = handed.sequences.start..handed.sequences.start + taken;
            handed.sequences.start = sequences.end;
            if handed.sequences.is_empty() {
                lane.waiting.pop_front();
            }
            match failure {
                None => lane.published.acknowledge(id, sequences),
                Some(_) => lane.published.fail(sequences),
            }
            left -= taken;
        }
        match failure {
            None => {
                self.acknowledged += messages;
                self.latencies.record(age + late.unwrap_or_default(), messages);
            }
            Some(kind) => self.count_error(kind, messages),
        }
    }

    /// The producer is closed: what still waits is neither acknowledged nor failed.
    pub(crate) fn close(&mut self) {
        let mut unsent = 0;
        for lane in self.lanes.values_mut() {
            for handed in lane.waiting.drain(..) {
                unsent += handed.sequences.end - handed.sequences.start;
                lane.published.fail(handed.sequences);
            }
        }
        if unsent > 0 {
            self.count_error("unsent", unsent);
        }
    }

    pub(crate) fn count_error(&mut self, kind: &str, messages: u64) {
        *self.errors.entry(kind.to_owned()).or_insert(0) += messages;
    }

    /// What was published, by stream.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (StreamId, &Published)> {
        let id = |partition: &u32| StreamId { run: self.run, connection: self.connection, partition: *partition };
        self.lanes.iter().map(move |(partition, lane)| (id(partition), &lane.published))
    }

    fn lane(&mut self, partition: u32) -> &mut Lane {
        self.lanes.get_mut(&partition).expect("a connection publishes to its own partitions")
    }
}

/// The kind of a failed delivery.
fn delivery_kind(error: &DeliveryError) -> String {
    match error {
        DeliveryError::TimedOut { .. } => "publish: timed out".to_owned(),
        DeliveryError::Refused(refusal) => format!("publish: {}", refusal.status.name()),
        DeliveryError::Lost => "publish: connection lost".to_owned(),
        DeliveryError::TopicDeleted => "publish: topic deleted".to_owned(),
        DeliveryError::Closed => "publish: producer closed".to_owned(),
        other => format!("publish: {other}"),
    }
}

/// The kind of a message that was not taken.
pub(crate) fn send_kind(error: &SendError) -> String {
    format!("publish: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(1, 0, &[4]);
        ledger.hand_over(4, 0..50, Duration::ZERO);
        ledger.hand_over(4, 50..100, Duration::from_millis(3));
        ledger
    }

    fn published(ledger: &Ledger) -> Published {
        ledger.streams().next().unwrap().1.clone()
    }

    #[test]
    fn sets_are_settled_in_order_however_they_were_cut() {
        let now = Instant::now();
        let mut whole = ledger();
        whole.settle_set(4, 100, Duration::from_millis(1), None, now);
        let mut cut = ledger();
        cut.settle_set(4, 30, Duration::from_millis(1), None, now);
        cut.settle_set(4, 40, Duration::from_millis(1), None, now);
        cut.settle_set(4, 30, Duration::from_millis(1), None, now);
        assert_eq!(published(&whole), published(&cut));
        assert_eq!((whole.acknowledged, cut.acknowledged), (100, 100));
    }

    #[test]
    fn a_latency_counts_from_the_time_when_the_set_was_due() {
        let mut ledger = ledger();
        ledger.settle_set(4, 50, Duration::from_millis(1), None, Instant::now());
        ledger.settle_set(4, 50, Duration::from_millis(1), None, Instant::now());
        let found = ledger.latencies.percentiles().unwrap();
        assert!((1_000..1_002).contains(&found.p50) && (4_000..4_005).contains(&found.max), "{found:?}");
    }

    #[test]
    fn failures_are_counted_by_kind_and_what_still_waits_is_unsent() {
        let mut ledger = ledger();
        ledger.settle_set(4, 50, Duration::from_millis(1), Some("publish: NO_SPACE"), Instant::now());
        ledger.cut(4, 70);
        ledger.close();
        assert_eq!(ledger.errors, BTreeMap::from([("publish: NO_SPACE".to_owned(), 50), ("unsent".to_owned(), 20)]));
        assert_eq!(published(&ledger).uncertain.as_slice(), std::slice::from_ref(&(0..70)));
        assert_eq!(ledger.acknowledged, 0);
    }
}
