//! Publishes of one connection to one partition that wait for their flush. Ids grow, so they become durable in order: one
//! wait for the first of them serves all that a flush covers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Instant;

use corelane_proto::frame::{Status, encode_response};
use corelane_proto::ids::Position;
use corelane_proto::pb;

use super::connection::Connection;
use crate::messages::PartitionKey;
use crate::service;
use crate::service::context::Partition;

/// The publishes that wait, oldest first. It lives while there are any.
pub(super) struct DurableQueue {
    key: PartitionKey,
    partition: Partition,
    waiting: RefCell<VecDeque<Waiting>>,
}

struct Waiting {
    correlation: u32,
    first: Position,
    next: Position,
    began: Instant,
}

impl DurableQueue {
    pub(super) fn new(key: PartitionKey, partition: Partition) -> Self {
        Self { key, partition, waiting: RefCell::default() }
    }

    /// A set from `first` up to `next`, whose request came at `began`, was appended.
    pub(super) fn push(&self, correlation: u32, first: Position, next: Position, began: Instant) {
        self.waiting.borrow_mut().push_back(Waiting { correlation, first, next, began });
    }

    /// Answers each publish once it is durable, until none waits.
    pub(super) async fn answer_all(self: Rc<Self>, connection: Weak<Connection>) {
        loop {
            let front = self.waiting.borrow().front().map(|waiting| waiting.next);
            let Some(next) = front else {
                if let Some(connection) = connection.upgrade() {
                    connection.forget_durable(&self.key);
                }
                return;
            };
            let outcome = self.partition.wait_durable(next).await;
            let Some(connection) = connection.upgrade() else { return };
            connection.shard.context.turns.take().await;
            let covered = match &outcome {
                Ok(durable_end) => self.waiting.borrow().partition_point(|waiting| waiting.next <= *durable_end),
                Err(_) => self.waiting.borrow().len(),
            };
            let answered: Vec<Waiting> = self.waiting.borrow_mut().drain(..covered).collect();
            let status =
                outcome.as_ref().map_or_else(|error| service::publish::append_failure(error).status, |_| Status::Ok);
            connection.count_publishes(status, answered.iter().map(|waiting| waiting.began));
            connection.answer_publishes(answered.len(), |out| {
                for Waiting { correlation, first, next, .. } in answered {
                    match &outcome {
                        Ok(durable_end) => {
                            let response =
                                pb::PublishResponse { first_id: first.0, next_id: next.0, durable_end: durable_end.0 };
                            encode_response(out, Status::Ok, correlation, &response, 0);
                        }
                        Err(error) => {
                            let failure = service::publish::append_failure(error);
                            encode_response(out, failure.status, correlation, &failure.error, 0);
                        }
                    }
                }
            });
        }
    }
}
