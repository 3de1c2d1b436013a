//! What a lane makes of the broker's answers: which sets ended, which are sent again and when, which partitions have to be
//! looked for.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use corelane_proto::frame::{FrameHeader, Retry, Status};
use corelane_proto::pb;
use prost::Message;

use super::Acks;
use super::delivery::Outcome;
use super::error::DeliveryError;
use super::exchange::{Exchange, Sent, Silent};
use super::lane::SenderState;
use super::window::{Effect, Verdict};
use crate::cluster::Place;
use crate::error::Refusal;
use crate::net::refusal;

impl Exchange<'_> {
    pub(super) fn answer(&mut self, header: FrameHeader, proto: &[u8]) -> io::Result<()> {
        let index = header.correlation.wrapping_sub(self.first_correlation) as usize;
        let sent = self.sent.get_mut(index).and_then(Option::take);
        while self.sent.front().is_some_and(Option::is_none) {
            self.sent.pop_front();
            self.first_correlation = self.first_correlation.wrapping_add(1);
        }
        let Some(sent) = sent else {
            // With `acks = none` it is about a set so old that it was forgotten.
            return if self.lane.shared.settings.acks == Acks::None { Ok(()) } else { Err(nonsense()) };
        };
        self.was_answered = true;
        let refusal =
            if header.code == Status::Ok.code() { None } else { Some(Arc::new(refusal::read(header.code, proto))) };
        if self.lane.shared.settings.acks == Acks::None {
            if let Some(refusal) = refusal {
                self.silent_refused(sent, refusal);
            }
            return Ok(());
        }
        match refusal {
            None => {
                let response = pb::PublishResponse::decode(proto).map_err(io::Error::other)?;
                self.accepted(sent, response.first_id)
            }
            Some(refusal) => self.refused(sent, refusal),
        }
    }

    fn accepted(&mut self, sent: Sent, first_id: u64) -> io::Result<()> {
        let Some(sender) = self.lane.senders.get_mut(&sent.partition) else { return Err(nonsense()) };
        if sender.troubled {
            sender.troubled = false;
            sender.obstacle = None;
            sender.backoff.reset();
            self.health.push((sent.partition, false));
        }
        match sender.window.answer(sent.sequence, Verdict::UsedUp) {
            Effect::Ended(batch) => {
                if let Some(batch) = batch {
                    let outcome = if batch.wrapped { Outcome::Wrapped(first_id) } else { Outcome::Plain(first_id) };
                    self.end(sent.partition, batch, outcome);
                }
                self.settle(sent.partition)
            }
            _ => Err(nonsense()),
        }
    }

    fn refused(&mut self, sent: Sent, refusal: Arc<Refusal>) -> io::Result<()> {
        let Some(sender) = self.lane.senders.get_mut(&sent.partition) else { return Err(nonsense()) };
        let verdict = verdict(&refusal);
        if verdict != Verdict::OutOfSequence {
            sender.obstacle = Some(format!("{}: {refusal}", self.address).into());
        }
        if is_stale(&refusal) {
            self.ask_about(sent.partition, &refusal);
        }
        let sender = self.lane.senders.get_mut(&sent.partition).expect("it was there above");
        match sender.window.answer(sent.sequence, verdict) {
            Effect::Ended(batch) => {
                if let Some(batch) = batch {
                    self.end(sent.partition, batch, Outcome::Failed(DeliveryError::Refused(refusal)));
                }
            }
            Effect::Waits => {}
            Effect::Again | Effect::Broken => return Err(nonsense()),
        }
        self.settle(sent.partition)
    }

    /// After an answer: whether the partition may go on, must rest, or the connection is of no use.
    fn settle(&mut self, partition: usize) -> io::Result<()> {
        let sender = self.lane.senders.get_mut(&partition).expect("an answered partition is on this lane");
        match sender.window.settle() {
            Effect::Ended(_) => {
                if sender.state == SenderState::Parked {
                    sender.state = SenderState::Idle;
                    self.lane.give_turn(partition);
                }
            }
            Effect::Waits => {}
            Effect::Again => {
                sender.troubled = true;
                sender.state = SenderState::Resting;
                let until = Instant::now() + sender.backoff.pause();
                self.health.push((partition, true));
                self.lane.turn.retain(|&other| other != partition);
                self.lane.resting.retain(|&(_, other)| other != partition);
                self.lane.resting.push((until, partition));
            }
            Effect::Broken => return Err(io::Error::other("the broker's answers are out of sequence")),
        }
        Ok(())
    }

    /// With `acks = none` a set is not sent again. The number of the first one refused is open: the next set takes it.
    fn silent_refused(&mut self, sent: Sent, refusal: Arc<Refusal>) {
        if is_stale(&refusal) {
            self.ask_about(sent.partition, &refusal);
        }
        if !matches!(verdict(&refusal), Verdict::UsedUp | Verdict::OutOfSequence)
            && let Some(sender) = self.lane.senders.get_mut(&sent.partition)
        {
            sender.unconfirmed_next = sender.unconfirmed_next.min(sent.sequence);
        }
        let is_it = |silent: &&mut Silent| silent.partition == sent.partition && silent.sequence == sent.sequence;
        if let Some(silent) = self.outgoing.unconfirmed_mut().find(is_it) {
            silent.ended.outcome = Outcome::Failed(DeliveryError::Refused(refusal));
            return;
        }
        let mut accumulator = self.lane.shared.accumulator();
        accumulator.counters.acknowledged -= u64::from(sent.messages);
        accumulator.counters.failed += u64::from(sent.messages);
        accumulator.counters.last_error = Some(DeliveryError::Refused(refusal));
    }

    /// The partition is not where, or what, it was thought to be.
    fn ask_about(&mut self, partition: usize, refusal: &Refusal) {
        let Some(sender) = self.lane.senders.get(&partition) else { return };
        let shared = &self.lane.shared;
        if let (Some(broker_id), Some(shard)) = (refusal.broker_id, refusal.shard)
            && let Ok(places) = shared.cluster.known(&sender.topic)
        {
            shared.cluster.correct(&places, sender.partition, Place { broker_id, shard });
        }
        shared.ask_about(&sender.topic);
    }
}

fn verdict(refusal: &Refusal) -> Verdict {
    if refusal.status == Status::OutOfSequence {
        Verdict::OutOfSequence
    } else if is_stale(refusal) || refusal.status.retry() != Retry::No {
        Verdict::TryAgain
    } else if refusal.status.uses_up_sequence() {
        Verdict::UsedUp
    } else {
        Verdict::GivenUp
    }
}

/// Fresh metadata says whether the topic is gone, or was not yet known where it was asked for.
fn is_stale(refusal: &Refusal) -> bool {
    refusal.status.retry() == Retry::Elsewhere
        || matches!(refusal.status, Status::UnknownTopic | Status::UnknownPartition)
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the broker answered what was not asked")
}
