//! What a shard tells of itself for a page. Asked for now and then; many partitions are looked at a few at a time, so that no
//! message waits for it.

use corelane_log::env::{Arena as _, Env as _};

use super::state::Shard;
use crate::figures::{PartitionFigures, ShardFigures};
use crate::messages::PartitionKey;
use crate::service::context::Owned;

/// Partitions that are looked at before others have their turn.
const PARTITIONS_AT_A_TIME: usize = 256;

impl Shard {
    /// Everything.
    pub(super) async fn figures(&self) -> ShardFigures {
        let context = &self.context;
        let (partitions, refused, opening) = self.partition_figures().await;
        let (accepted, refused_connections, closed_connections) = self.admission.totals();
        let in_flight = self.connections.borrow().iter().map(|(_, connection)| connection.in_flight() as u64).sum();
        let (counters, disk) = (&context.counters, context.env.disk().times());
        ShardFigures {
            shard: context.identity.shard,
            partitions,
            refused,
            opening,
            let_go: self.let_go.get(),
            connections: self.admission.taken() as u64,
            connections_max: self.admission.connections_max() as u64,
            accepted,
            refused_connections,
            closed_connections,
            requests: counters.requests.figures(),
            request_times: [
                ("publish", counters.times.publish.figures()),
                ("fetch", counters.times.fetch.figures()),
                ("commit", counters.times.commit.figures()),
            ],
            disk_times: [
                ("write", disk.write.figures()),
                ("synchronous_write", disk.synchronous_write.figures()),
                ("flush", disk.flush.figures()),
                ("read", disk.read.figures()),
            ],
            busy: counters.busy.get(),
            in_flight,
            long_polls: context.long_polls.count() as u64,
            control_queue: context.control.len() as u64,
            outgoing_head_bytes: self.outgoing_heads.get() as u64,
            receive_extra_bytes: self.receive_extra.held_bytes() as u64,
            arena_bytes: context.env.arena().bytes_total() as u64,
            arena_used_bytes: context.env.arena().bytes_used() as u64,
            published_bytes: counters.published_bytes.get(),
            published_sets: counters.published_sets.get(),
            fetched_bytes: counters.fetched_bytes.get(),
            fetches: counters.fetches.get(),
            zero_copy_sent_bytes: self.zero_copy.sent_bytes(),
        }
    }

    /// Those that serve, how many are refused, how many are being opened.
    async fn partition_figures(&self) -> (Vec<PartitionFigures>, u64, u64) {
        let keys: Vec<PartitionKey> = self.context.partitions.borrow().keys().copied().collect();
        let (mut serving, mut refused, mut opening) = (Vec::with_capacity(keys.len()), 0, 0);
        for keys in keys.chunks(PARTITIONS_AT_A_TIME) {
            {
                let (owned, fetched) =
                    (self.context.partitions.borrow(), self.context.counters.fetched_by_partition.borrow());
                for key in keys {
                    match owned.get(key) {
                        Some(Owned::Serving { partition, .. }) => serving.push(PartitionFigures {
                            topic_id: key.0,
                            partition: key.1,
                            bounds: partition.bounds(),
                            is_closed: partition.closed().is_some(),
                            lacks_space: partition.lacks_space(),
                            fetched_bytes: fetched.get(key).copied().unwrap_or(0),
                            stats: partition.stats(),
                        }),
                        Some(Owned::Refused(_)) => refused += 1,
                        Some(Owned::Opening) => opening += 1,
                        None => {}
                    }
                }
            }
            self.context.turns.pass().await;
        }
        (serving, refused, opening)
    }
}
