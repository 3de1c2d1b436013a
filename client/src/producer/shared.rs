//! What a producer's handles, lanes and keeper share, and the one place where sets end: counters, memory, deliveries,
//! those who wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::accumulator::{Accumulator, Batch, Life};
use super::builder::ProducerSettings;
use super::delivery::Outcome;
use super::error::DeliveryError;
use super::lane::Lane;
use super::{FlushReport, SetReport};
use crate::cluster::{Cluster, Place, TopicPlaces};
use crate::net::connect;

pub(super) struct Shared {
    pub(super) cluster: Arc<Cluster>,
    pub(super) settings: Arc<ProducerSettings>,
    pub(super) session: [u8; 16],
    runtime: tokio::runtime::Handle,
    accumulator: Mutex<Accumulator>,
    /// Memory was freed.
    pub(super) space: Notify,
    /// Sets ended.
    pub(super) progress: Notify,
    /// Topics that the keeper shall ask about, and since when.
    stale: Mutex<BTreeMap<Arc<str>, Instant>>,
    pub(super) keeper: Notify,
    lanes_alive: AtomicUsize,
    pub(super) lane_ended: Notify,
}

/// A set that ended.
pub(super) struct Ended {
    pub(super) batch: Batch,
    pub(super) topic: Arc<str>,
    pub(super) partition: u32,
    pub(super) outcome: Outcome,
}

impl Shared {
    pub(super) fn new(cluster: Arc<Cluster>, settings: ProducerSettings, runtime: tokio::runtime::Handle) -> Self {
        let settings = Arc::new(settings);
        Self {
            cluster,
            accumulator: Mutex::new(Accumulator::new(settings.clone())),
            settings,
            session: connect::new_session(),
            runtime,
            space: Notify::new(),
            progress: Notify::new(),
            stale: Mutex::default(),
            keeper: Notify::new(),
            lanes_alive: AtomicUsize::new(0),
            lane_ended: Notify::new(),
        }
    }

    pub(super) fn accumulator(&self) -> MutexGuard<'_, Accumulator> {
        self.accumulator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// Takes fresh knowledge of a topic in and starts the lanes that it needs.
    pub(super) fn learn(self: &Arc<Self>, places: &TopicPlaces) {
        let (new_lanes, woken) = self.accumulator().learn(places);
        for (index, place) in new_lanes {
            self.start_lane(index, place);
        }
        woken.into_iter().for_each(std::task::Waker::wake);
    }

    fn start_lane(self: &Arc<Self>, index: usize, place: Place) {
        self.lanes_alive.fetch_add(1, Ordering::Relaxed);
        let lane = Lane::new(self.clone(), index, place);
        let shared = self.clone();
        self.runtime.spawn(async move {
            lane.run().await;
            shared.lanes_alive.fetch_sub(1, Ordering::Release);
            shared.lane_ended.notify_waiters();
        });
    }

    pub(super) fn lanes_alive(&self) -> usize {
        self.lanes_alive.load(Ordering::Acquire)
    }

    /// Asks the keeper for fresh metadata of a topic.
    pub(super) fn ask_about(&self, topic: &Arc<str>) {
        let mut stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        stale.entry(topic.clone()).or_insert_with(Instant::now);
        drop(stale);
        self.keeper.notify_one();
    }

    /// Asks the keeper once more about a topic that was in doubt since then.
    pub(super) fn ask_again(&self, topic: &Arc<str>, since: Instant) {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner).insert(topic.clone(), since);
        self.keeper.notify_one();
    }

    pub(super) fn take_stale(&self) -> BTreeMap<Arc<str>, Instant> {
        std::mem::take(&mut *self.stale.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends sets. The counters change before anybody learns of it.
    pub(super) fn finish(&self, ended: &mut Vec<Ended>) {
        if ended.is_empty() {
            return;
        }
        let mut accumulator = self.accumulator();
        for end in &*ended {
            accumulator.ended(&end.batch);
            let counters = &mut accumulator.counters;
            if let Outcome::Failed(error) = &end.outcome {
                counters.failed += u64::from(end.batch.messages);
                if matches!(error, DeliveryError::Closed) {
                    counters.abandoned += u64::from(end.batch.messages);
                } else {
                    counters.last_error = Some(error.clone());
                }
            } else {
                counters.acknowledged += u64::from(end.batch.messages);
                counters.sets += 1;
                counters.set_bytes += end.batch.set.len() as u64;
            }
        }
        drop(accumulator);
        for end in ended.drain(..) {
            if let Some(on_set) = &self.settings.on_set {
                on_set(&end.report());
            }
            end.batch.completion.finish(end.outcome);
        }
        self.space.notify_waiters();
        self.progress.notify_waiters();
    }

    /// Makes `life` at least this and tells everybody.
    pub(super) fn advance_life(&self, life: Life) {
        let mut accumulator = self.accumulator();
        accumulator.life = accumulator.life.max(life);
        let sleeping: Vec<_> = accumulator.lanes.iter_mut().filter_map(|lane| lane.sleeping.take()).collect();
        drop(accumulator);
        sleeping.into_iter().for_each(std::task::Waker::wake);
        self.keeper.notify_one();
        self.space.notify_waiters();
        self.progress.notify_waiters();
    }

    pub(super) fn report(&self) -> FlushReport {
        let accumulator = self.accumulator();
        let counters = &accumulator.counters;
        let failed = counters.failed - counters.abandoned;
        let unsent = counters.published - counters.acknowledged - failed;
        let in_the_way = || Some(DeliveryError::TimedOut { cause: Some(counters.obstacle.clone()?) });
        let last_error = if unsent > 0 { in_the_way() } else { None }.or_else(|| counters.last_error.clone());
        let (published, acknowledged) = (counters.published, counters.acknowledged);
        FlushReport { published, acknowledged, failed, unsent, last_error }
    }
}

impl Ended {
    fn report(&self) -> SetReport {
        SetReport {
            topic: self.topic.clone(),
            partition: self.partition,
            messages: self.batch.messages,
            bytes: self.batch.set.len(),
            age: self.batch.opened.elapsed(),
            first: match &self.outcome {
                Outcome::Plain(first) | Outcome::Wrapped(first) => Ok(Some(*first)),
                Outcome::Unconfirmed => Ok(None),
                Outcome::Failed(error) => Err(DeliveryError::clone(error)),
            },
        }
    }
}
