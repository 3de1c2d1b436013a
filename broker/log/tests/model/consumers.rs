//! Consumers: they read at random sizes, wait at the tail, seek and search, and compare all of it with the oracle.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use corelane_log::env::Env;
use corelane_log::{ClosedReason, ReadError, Target};
use corelane_proto::ids::Position;
use futures_util::future::{Either, select};

use crate::actors::Stage;
use crate::log::Log;
use crate::sets::{TIMESTAMP_MS, TIMESTAMPS};

impl Stage {
    pub(crate) async fn consume(self: Rc<Self>, log: Rc<Log>) {
        let mut at = self.look(&log).start.0;
        for _ in 0..self.dice.below(self.plan.operations + 1) {
            self.pause().await;
            if self.dice.chance(0.2) {
                self.check_find(&log).await;
            }
            if self.dice.chance(0.1) {
                at = self.check_seek(&log).await.unwrap_or(at);
            }
            let before = self.look(&log);
            let bytes_max = self.dice.scale(40_000);
            let read = log.partition().read(Position(at), bytes_max).await;
            let bounds = self.look(&log);
            match read {
                Ok(pieces) => {
                    let Some(bytes) = self.fetch(pieces).await else { continue };
                    let to = at + bytes.len() as u64;
                    assert!(bytes.len() <= bytes_max, "{} bytes for at most {bytes_max}", bytes.len());
                    assert!(!bytes.is_empty() || at == before.visible_end.0, "nothing to read at {at} of {bounds:?}");
                    let known = to.min(log.oracle.borrow().end()).saturating_sub(at);
                    log.oracle.borrow().check_read(at, &bytes[..known as usize]);
                    at = to;
                    if bytes.is_empty() {
                        self.await_visible(&log, at).await;
                    }
                }
                Err(ReadError::OutOfRange { start, .. }) => {
                    assert!(at < bounds.start.0, "{at} is out of range of {bounds:?}");
                    at = start.0;
                }
                Err(error) => self.check_read_error(&error, log.is_deleted.get()),
            }
        }
    }

    pub(crate) fn check_read_error(&self, error: &ReadError, is_deleted: bool) {
        match error {
            ReadError::Disk { .. } => {
                // A file that was not open yet when its topic went is not there any more.
                assert!(self.may_fail || is_deleted, "a read failed though the disk is well: {error}");
            }
            ReadError::Gone(ClosedReason::Deleted) => assert!(is_deleted, "a partition is gone that nobody deleted"),
            other => panic!("a read was refused: {other}"),
        }
    }

    async fn await_visible(&self, log: &Log, above: u64) {
        let partition = log.partition();
        let wait = pin!(partition.wait_visible(Position(above)));
        let patience = pin!(self.env.sleep(Duration::from_millis(self.dice.below(50) as u64)));
        match select(wait, patience).await {
            Either::Left((Ok(bounds), _)) => assert!(bounds.visible_end.0 > above, "woken for nothing at {above}"),
            Either::Left((Err(error), _)) => self.check_read_error(&error, log.is_deleted.get()),
            Either::Right(_) => {}
        }
    }

    /// Somewhere in the log, the edges included.
    pub(crate) fn somewhere(&self, log: &Log) -> u64 {
        let bounds = log.partition().bounds();
        let span = bounds.visible_end.0 - bounds.start.0;
        match self.dice.below(4) {
            0 => bounds.visible_end.0,
            1 => bounds.start.0,
            _ => bounds.start.0 + self.dice.below(span as usize + 1) as u64,
        }
    }

    async fn check_seek(&self, log: &Log) -> Option<u64> {
        let at = self.somewhere(log);
        match log.partition().seek(Position(at)).await {
            Ok(found) => {
                let after = self.look(log);
                let oracle = log.oracle.borrow();
                if oracle.is_tainted || after.visible_end.0 > oracle.end() || found.0 < oracle.start() {
                    return None;
                }
                let messages = oracle.messages(oracle.start(), after.visible_end.0);
                let holds = messages.iter().find(|message| message.at <= at && at < message.end);
                // At the visible end, which may have moved meanwhile, there is nothing to hold it yet.
                let right =
                    holds.is_some_and(|message| message.at == found.0) || at == found.0 && oracle.is_set_end(at);
                assert!(right, "seek {at} found {found}, the message there is {holds:?}");
                Some(found.0)
            }
            Err(ReadError::OutOfRange { start, .. }) => {
                assert!(at < start.0, "seek {at} is out of range");
                None
            }
            Err(error) => {
                self.check_read_error(&error, log.is_deleted.get());
                None
            }
        }
    }

    async fn check_find(&self, log: &Log) {
        let time = TIMESTAMP_MS + self.dice.below(TIMESTAMPS + 2) as i64 - 1;
        let count = self.dice.scale(20) as u64;
        let target = match self.dice.below(4) {
            0 => Target::Earliest,
            1 => Target::Latest,
            2 => Target::Time(time),
            _ => Target::LastMessages(count),
        };
        let before = self.look(log);
        let found = match log.partition().find(target).await {
            Ok(found) => found.0,
            // Retention has deleted what was being looked at.
            Err(ReadError::OutOfRange { start, .. }) if start > before.start => return,
            Err(error) => return self.check_read_error(&error, log.is_deleted.get()),
        };
        let after = self.look(log);
        let oracle = log.oracle.borrow();
        if oracle.is_tainted || after.visible_end.0 > oracle.end() {
            return;
        }
        // Start and end may have moved meanwhile: right is what was right at some time.
        let right = |start: u64, end: u64| {
            let messages = oracle.messages(start, end);
            match target {
                Target::Earliest => start,
                Target::Latest => end,
                Target::Time(_) => {
                    messages.iter().find(|known| known.timestamp_ms >= time).map_or(end, |known| known.at)
                }
                _ => {
                    let mut counted = 0;
                    let mut newest_first = messages.iter().rev();
                    let found = newest_first.find(|known| {
                        counted += known.count;
                        counted >= count
                    });
                    found.map_or(start, |known| known.at)
                }
            }
        };
        let ends = |from: u64, to: u64| (from..=to).filter(|at| oracle.is_set_end(*at)).collect::<Vec<u64>>();
        let starts = ends(before.start.0, after.start.0);
        let any = ends(before.visible_end.0, after.visible_end.0)
            .iter()
            .any(|end| starts.iter().any(|start| right(*start, *end) == found));
        assert!(
            any,
            "find {target:?} found {found}, right is {}; {before:?}, then {after:?}",
            right(before.start.0, before.visible_end.0)
        );
    }
}
