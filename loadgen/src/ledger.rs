//! What became of the sets that one connection has handed to its producer: acknowledged, failed, how fast.
//!
//! The producer's task settles sets while the publishing task hands over new ones, so the books live behind mutexes, which
//! are taken once for each set.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use corelane_client::{DeliveryError, SendError};
use tokio::sync::Semaphore;

use crate::latency::Series;
use crate::sizes::Sizes;
use crate::verify::{Published, StreamId};

/// What all connections of a run have published together.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// From when a set was due (without a rate: handed over) to its acknowledgement.
    pub(crate) ack: Series,
    /// Whether there is a rate; the next two are kept only then.
    pub(crate) is_open: bool,
    /// From when a set was handed over to its acknowledgement.
    pub(crate) service: Series,
    /// From when a set was due to when it was handed over.
    pub(crate) late: Series,
    /// Messages acknowledged, and the bytes of their values.
    pub(crate) acknowledged: u64,
    pub(crate) acknowledged_bytes: u64,
    /// Messages that were due when the run ended and were not handed over.
    pub(crate) behind: u64,
    /// Messages that failed, by kind.
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) last_settled: Option<Instant>,
    /// Sets that were due earlier are the warm-up's.
    pub(crate) measured_from: Option<Instant>,
}

impl Totals {
    pub(crate) fn count_error(&mut self, kind: &str, messages: u64) {
        *self.errors.entry(kind.to_owned()).or_insert(0) += messages;
    }

    fn counts(&self, due: Instant) -> bool {
        self.measured_from.is_none_or(|from| due >= from)
    }
}

/// What its holder leaves behind when it panics is as good as before: every change is complete in itself.
pub(crate) fn lock<T>(books: &Mutex<T>) -> MutexGuard<'_, T> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection's books.
#[derive(Debug)]
pub(crate) struct Ledger {
    run: u64,
    connection: u32,
    lanes: BTreeMap<u32, Lane>,
    sizes: Arc<Sizes>,
    totals: Arc<Mutex<Totals>>,
    /// In a closed loop: gets a permit back for each set that has ended.
    permits: Option<Arc<Semaphore>>,
}

/// What goes to one partition.
#[derive(Debug, Default)]
struct Lane {
    /// Handed over and not settled yet, in order.
    waiting: VecDeque<Handed>,
    published: Published,
}

/// A set as it was handed over.
#[derive(Debug)]
struct Handed {
    sequences: Range<u64>,
    due: Instant,
    at: Instant,
}

impl Ledger {
    pub(crate) fn new(
        (run, connection): (u64, u32),
        lanes: &[u32],
        sizes: Arc<Sizes>,
        totals: Arc<Mutex<Totals>>,
        permits: Option<Arc<Semaphore>>,
    ) -> Self {
        let lanes = lanes.iter().map(|lane| (*lane, Lane::default())).collect();
        Self { run, connection, lanes, sizes, totals, permits }
    }

    /// Where the stream to a lane begins among the sizes.
    pub(crate) fn salt(connection: u32, lane: u32) -> u64 {
        u64::from(connection) * 7_919 + u64::from(lane) * 104_729
    }

    /// These messages are about to be handed over; told first, because the answer may come before the last of them.
    pub(crate) fn hand_over(&mut self, lane: u32, sequences: Range<u64>, due: Instant, now: Instant) {
        let mut totals = lock(&self.totals);
        if totals.is_open && totals.counts(due) {
            totals.late.record(now - due, sequences.end - sequences.start);
        }
        drop(totals);
        self.lane(lane).waiting.push_back(Handed { sequences, due, at: now });
    }

    /// The producer took them only up to here.
    pub(crate) fn cut(&mut self, lane: u32, end: u64) {
        if let Some(last) = self.lane(lane).waiting.back_mut() {
            last.sequences.end = end.max(last.sequences.start);
        }
    }

    /// A set has ended: acknowledged, or failed for this reason. The producer may have cut it otherwise than it was handed
    /// over.
    pub(crate) fn settle(&mut self, lane: u32, messages: u64, failure: Option<&str>, now: Instant) {
        let salt = Self::salt(self.connection, lane);
        let mut totals = lock(&self.totals);
        let lane = self.lanes.get_mut(&lane).expect("a producer publishes where it was told to");
        totals.last_settled = Some(now);
        let mut left = messages;
        while left > 0 {
            let handed = lane.waiting.front_mut().expect("what is settled was handed over before");
            let taken = left.min(handed.sequences.end - handed.sequences.start);
            let sequences = handed.sequences.start..handed.sequences.start + taken;
            handed.sequences.start = sequences.end;
            left -= taken;
            if failure.is_none() {
                totals.acknowledged_bytes += self.sizes.total(salt, &sequences);
                if totals.counts(handed.due) {
                    totals.ack.record(now - handed.due, taken);
                    if totals.is_open {
                        totals.service.record(now - handed.at, taken);
                    }
                }
                lane.published.acknowledge(taken);
            } else {
                lane.published.fail(sequences);
            }
            if handed.sequences.is_empty() {
                lane.waiting.pop_front();
                if let Some(permits) = &self.permits {
                    permits.add_permits(1);
                }
            }
        }
        match failure {
            None => totals.acknowledged += messages,
            Some(kind) => totals.count_error(kind, messages),
        }
    }

    /// The producer is closed: what still waits is neither acknowledged nor failed.
    pub(crate) fn close(&mut self) {
        let mut unsent = 0;
        for lane in self.lanes.values_mut() {
            for handed in lane.waiting.drain(..).filter(|handed| !handed.sequences.is_empty()) {
                unsent += handed.sequences.end - handed.sequences.start;
                lane.published.fail(handed.sequences);
            }
        }
        if unsent > 0 {
            lock(&self.totals).count_error("unsent", unsent);
        }
    }

    /// What was published, by stream.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (StreamId, &Published)> {
        let id = |lane: &u32| StreamId { run: self.run, connection: self.connection, lane: *lane };
        self.lanes.iter().map(move |(number, lane)| (id(number), &lane.published))
    }

    fn lane(&mut self, lane: u32) -> &mut Lane {
        self.lanes.get_mut(&lane).expect("a connection publishes to its own partitions")
    }
}

/// The kind of a failed delivery.
pub(crate) fn delivery_kind(error: &DeliveryError) -> String {
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
    use std::time::Duration;

    use super::*;
    use crate::latency::Percentiles;
    use crate::pace::{Arrivals, Rate, Schedule};
    use crate::sizes;

    struct Books {
        ledger: Ledger,
        totals: Arc<Mutex<Totals>>,
        start: Instant,
    }

    impl Books {
        fn new() -> Self {
            let sizes = Arc::new(Sizes::new(&sizes::parse("100").unwrap(), 0));
            let totals = Arc::new(Mutex::new(Totals { is_open: true, ..Totals::default() }));
            let ledger = Ledger::new((1, 0), &[4], sizes, Arc::clone(&totals), None);
            Self { ledger, totals, start: Instant::now() }
        }

        /// Two sets of fifty, due at once; the second is three milliseconds late.
        fn with_two_sets() -> Self {
            let mut books = Self::new();
            books.ledger.hand_over(4, 0..50, books.start, books.start);
            books.ledger.hand_over(4, 50..100, books.start, books.start + Duration::from_millis(3));
            books
        }

        fn published(&self) -> Published {
            self.ledger.streams().next().unwrap().1.clone()
        }

        fn ack(&self) -> Percentiles {
            let mut totals = lock(&self.totals);
            totals.ack.end_interval(true);
            totals.ack.total().percentiles().unwrap()
        }
    }

    #[test]
    fn sets_are_settled_in_order_however_they_were_cut() {
        let mut whole = Books::with_two_sets();
        whole.ledger.settle(4, 100, None, whole.start);
        let mut cut = Books::with_two_sets();
        for messages in [30, 40, 30] {
            cut.ledger.settle(4, messages, None, cut.start);
        }
        assert_eq!(whole.published(), cut.published());
        for books in [whole, cut] {
            let totals = lock(&books.totals);
            assert_eq!((totals.acknowledged, totals.acknowledged_bytes), (100, 10_000));
        }
    }

    #[test]
    fn a_latency_counts_from_the_time_when_the_set_was_due() {
        let mut books = Books::with_two_sets();
        books.ledger.settle(4, 50, None, books.start + Duration::from_millis(1));
        books.ledger.settle(4, 50, None, books.start + Duration::from_millis(4));
        let found = books.ack();
        assert!((1_000..1_002).contains(&found.p50) && (4_000..4_005).contains(&found.max), "{found:?}");
        let mut totals = lock(&books.totals);
        let service = totals.service.end_interval(true).unwrap();
        assert!((1_000..1_002).contains(&service.max), "from the hand-over both took the same: {service:?}");
        assert!((3_000..3_003).contains(&totals.late.end_interval(true).unwrap().max));
    }

    #[test]
    fn what_was_due_in_the_warm_up_is_not_measured() {
        let mut books = Books::with_two_sets();
        books.ledger.settle(4, 50, None, books.start + Duration::from_millis(9));
        {
            let mut totals = lock(&books.totals);
            totals.ack.end_interval(false);
            totals.measured_from = Some(books.start + Duration::from_millis(1));
        }
        books.ledger.settle(4, 50, None, books.start + Duration::from_millis(9));
        assert!(lock(&books.totals).ack.end_interval(true).is_none());
        let due = books.start + Duration::from_millis(2);
        books.ledger.hand_over(4, 100..150, due, due);
        books.ledger.settle(4, 50, None, due + Duration::from_millis(5));
        assert_eq!(books.ack().count, 50);
        assert_eq!(lock(&books.totals).acknowledged, 150, "it is counted all the same");
    }

    #[test]
    fn failures_are_counted_by_kind_and_what_still_waits_is_unsent() {
        let mut books = Books::with_two_sets();
        books.ledger.settle(4, 50, Some("publish: NO_SPACE"), books.start);
        books.ledger.cut(4, 70);
        books.ledger.close();
        let totals = lock(&books.totals);
        assert_eq!(totals.errors, BTreeMap::from([("publish: NO_SPACE".to_owned(), 50), ("unsent".to_owned(), 20)]));
        assert_eq!(totals.acknowledged, 0);
        assert_eq!(books.published().uncertain.as_slice(), std::slice::from_ref(&(0..70)));
    }

    #[test]
    fn a_closed_loop_gets_a_permit_back_for_each_set() {
        let mut books = Books::with_two_sets();
        let permits = Arc::new(Semaphore::new(0));
        books.ledger.permits = Some(Arc::clone(&permits));
        books.ledger.settle(4, 30, None, books.start);
        assert_eq!(permits.available_permits(), 0);
        books.ledger.settle(4, 70, Some("publish: timed out"), books.start);
        assert_eq!(permits.available_permits(), 2);
    }

    /// A target that answers a set after a millisecond, one at a time, and answers nothing from `stall_ms` on for as long
    /// as `stalled_ms`. A caller that waits for each answer sees one slow set; whoever asks every two milliseconds sees all
    /// those that had to wait. Everything in simulated time.
    fn stalled(
        stall_ms: u64,
        stalled_ms: u64,
        sets: u64,
        mut due: impl FnMut(Instant, Instant) -> Instant,
    ) -> Percentiles {
        let mut books = Books::new();
        let ms = Duration::from_millis;
        let mut free_at = books.start;
        for set in 0..sets {
            let due = due(books.start, free_at);
            let handed = due.max(free_at);
            books.ledger.hand_over(4, set..set + 1, due, handed);
            let mut answered = handed + ms(1);
            if handed >= books.start + ms(stall_ms) && handed < books.start + ms(stall_ms + stalled_ms) {
                answered = books.start + ms(stall_ms + stalled_ms);
            }
            free_at = answered;
            books.ledger.settle(4, 1, None, answered);
        }
        books.ack()
    }

    #[test]
    fn an_open_loop_counts_what_a_stall_kept_waiting_and_a_closed_loop_does_not() {
        // 500 sets a second for ten seconds; the target stalls from second 5 to second 6.
        let mut schedule = None;
        let open = stalled(5_000, 1_000, 5_000, |start, _| {
            let rate = Rate::Steady(500.0);
            schedule.get_or_insert_with(|| Schedule::new(start, rate, Arrivals::Even, 1, (0, 1), 0)).next_due()
        });
        let closed = stalled(2_000, 1_000, 5_000, |_, free_at| free_at);
        // While it stalls 500 sets become due, the last of them waits a millisecond less than the queue takes to drain:
        // a set every millisecond, and a new one every second millisecond. So of 5,000 sets about 1,000 waited, from
        // a second down to nothing: a tenth of all waited half a second and more.
        assert!((480_000..=520_000).contains(&open.p90), "{open:?}");
        assert!((900_000..=1_002_000).contains(&open.p99), "{open:?}");
        assert_eq!(open.p50, 1_000);
        assert!(closed.p999 <= 1_001 && closed.max > 900_000, "one of 5,000: {closed:?}");
    }
}
