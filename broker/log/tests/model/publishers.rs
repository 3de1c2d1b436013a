//! Publishers: they receive a set in pieces, append it, wait for its flush or not, give up, send bad sets, and send again
//! what a crash took.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use corelane_log::env::Env;
use corelane_log::sim::SimEnv;
use corelane_log::{AppendError, Landing};
use corelane_proto::ids::Position;
use futures_util::future::{Either, select};

use crate::actors::Stage;
use crate::log::Log;

impl Stage {
    pub(crate) async fn publish(self: Rc<Self>, log: Rc<Log>) {
        let operations = self.dice.below(self.plan.operations + 1);
        for _ in 0..if self.ends_in_order { operations } else { usize::MAX } {
            self.pause().await;
            if log.is_deleted.get() {
                return;
            }
            let again = if self.dice.chance(0.3) { log.oracle.borrow_mut().retry.pop() } else { None };
            let set = again.unwrap_or_else(|| log.sets.borrow_mut().make(&self.dice));
            if self.dice.chance(0.05) {
                self.publish_bad(&log, set).await;
                continue;
            }
            if let Some(next) = self.publish_set(&log, set).await
                && self.dice.chance(0.5)
            {
                self.await_durable(&log, next).await;
            }
        }
    }

    /// Receives a set as a socket does, in pieces. `None`: refused, as it may be.
    async fn receive(&self, log: &Log, set: &[u8]) -> Option<Landing<SimEnv>> {
        let partition = log.partition();
        let landing = pin!(partition.landing(set.len()));
        let patience = pin!(self.env.sleep(Duration::from_secs(30)));
        let mut landing = match select(landing, patience).await {
            Either::Left((Ok(landing), _)) => landing,
            Either::Left((Err(error), _)) => {
                self.check_refused(log, &error);
                return None;
            }
            // Nobody flushes, or somebody holds all the memory.
            Either::Right(_) => return None,
        };
        assert_eq!(landing.bytes(), set.len());
        let in_pieces = self.dice.chance(0.3);
        let mut at = 0;
        while at < set.len() {
            let most = if in_pieces { 1 + self.dice.below(set.len()) } else { set.len() };
            let copied = landing.with_spare(|spare| {
                let count = spare.len().min(most).min(set.len() - at);
                spare[..count].copy_from_slice(&set[at..at + count]);
                count
            });
            landing.advance(copied);
            at += copied;
            if in_pieces {
                self.pause().await;
                if self.dice.chance(0.02) {
                    return None; // The connection is gone.
                }
            }
        }
        assert_eq!(landing.remaining(), 0);
        Some(landing)
    }

    fn check_refused(&self, log: &Log, error: &AppendError) {
        match error {
            AppendError::Closed(reason) => self.check_closed(reason, log),
            AppendError::NoSpace => {
                let full = self.env.disk().faults().capacity_bytes < u64::MAX;
                assert!(full || self.may_fail || self.plan.full > 0.0, "no space on an empty disk");
            }
            other => panic!("partition {}: a good set was refused: {other}", log.number),
        }
    }

    /// Appends a set; its next id.
    pub(crate) async fn publish_set(&self, log: &Log, set: Vec<u8>) -> Option<u64> {
        let landing = self.receive(log, &set).await?;
        let end = log.partition().bounds().end;
        let expected = match self.dice.below(20) {
            0 => Some(end),
            1 => Some(Position(end.0 + 1)),
            _ => None,
        };
        let offer = log.oracle.borrow_mut().offer(&set);
        match log.partition().append(landing, expected).await {
            Ok(appended) => {
                let (first, next) = (appended.first.0, appended.next.0);
                assert!(expected.is_none_or(|expected| expected.0 == first), "appended at {first}, not as expected");
                let now = self.env.monotonic();
                self.env.trace(|| format!("appended {first}..{next} to partition {}", log.number));
                log.oracle.borrow_mut().published(offer, first, next, now);
                Some(next)
            }
            Err(AppendError::UnexpectedEnd { .. }) if expected.is_some() => {
                log.oracle.borrow_mut().refused(offer);
                None
            }
            Err(error) => {
                log.oracle.borrow_mut().refused(offer);
                self.check_refused(log, &error);
                None
            }
        }
    }

    /// A set that must be refused whole.
    async fn publish_bad(&self, log: &Log, mut set: Vec<u8>) {
        let at = 8 + self.dice.below(set.len() - 8);
        set[at] ^= 1 << self.dice.below(8);
        let Some(landing) = self.receive(log, &set).await else { return };
        match log.partition().append(landing, None).await {
            Err(AppendError::InvalidMessage(_)) => {}
            Err(error) => self.check_refused(log, &error),
            Ok(appended) => panic!("a bad set was appended at {}", appended.first),
        }
    }

    async fn await_durable(&self, log: &Log, next: u64) {
        let partition = log.partition();
        let wait = pin!(partition.wait_durable(Position(next)));
        let patience = pin!(self.env.sleep(Duration::from_millis(self.dice.below(100) as u64)));
        match select(wait, patience).await {
            Either::Left((Ok(durable), _)) => {
                assert!(durable.0 >= next, "told that {next} is durable with an end of {durable}");
                log.oracle.borrow_mut().must_survive(durable.0);
            }
            Either::Left((Err(AppendError::Closed(reason)), _)) => self.check_closed(&reason, log),
            Either::Left((Err(other), _)) => panic!("waiting for a flush failed: {other}"),
            Either::Right(_) => {}
        }
    }
}
