//! The partitions of a shard: opened, made, configured, let go of and stopped as the control thread says; checkpoints.
//! Each one that serves has its driver running.

use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use corelane_log::checkpoint::{self, Checkpoint, CheckpointEntry};
use corelane_log::config::{PartitionOptions, TopicConfig};
use corelane_log::env::Env;
use corelane_log::{Driver, Partition as LogPartition};
use corelane_proto::frame::Status;
use corelane_proto::ids::TopicId;
use corelane_proto::pb;
use futures_util::StreamExt;
use futures_util::future::join_all;

use super::state::Shard;
use crate::figures::{add_stats, let_go};
use crate::io::env::ShardEnv;
use crate::limits;
use crate::messages::{Failure, OpenPartition, Opened, PartitionKey, PartitionReport};
use crate::service::context::{Owned, Partition};

impl Shard {
    /// Opens partitions, a few at a time: recovery reads, and each may hold memory.
    pub(super) async fn open_partitions(self: &Rc<Self>, partitions: Vec<OpenPartition>) -> Vec<Opened> {
        for OpenPartition { options, .. } in &partitions {
            self.context.partitions.borrow_mut().insert(key(options), Owned::Opening);
        }
        let openings = partitions.into_iter().map(|opening| self.open_partition(opening));
        futures_util::stream::iter(openings).buffer_unordered(limits::OPENINGS_AT_A_TIME).collect().await
    }

    async fn open_partition(&self, opening: OpenPartition) -> Opened {
        let OpenPartition { topic_dir, options, floor, is_clean } = opening;
        let partition = key(&options);
        let epoch = options.epoch;
        let (refused, is_no_space) = match LogPartition::open(&self.log, &topic_dir, &options, floor, is_clean).await {
            Ok((log, driver, _report)) => {
                self.install(partition, Owned::Serving { partition: log, epoch }, Some(driver));
                (None, false)
            }
            Err(error) => {
                let reason = error.to_string();
                self.install(partition, Owned::Refused(reason.clone()), None);
                (Some(reason), error.is_no_space())
            }
        };
        Opened { partition, refused, is_no_space }
    }

    /// Makes a partition and serves it.
    pub(super) async fn create_partition(&self, topic_dir: &Path, options: PartitionOptions) -> Result<(), Failure> {
        let (partition, epoch) = (key(&options), options.epoch);
        let created = LogPartition::create(&self.log, topic_dir, &options).await;
        let (log, driver) = created.map_err(|error| {
            let status = if error.is_no_space() { Status::NoSpace } else { Status::Internal };
            Failure::new(status, error.to_string())
        })?;
        self.install(partition, Owned::Serving { partition: log, epoch }, Some(driver));
        Ok(())
    }

    fn install(&self, partition: PartitionKey, owned: Owned, driver: Option<Driver<ShardEnv>>) {
        if let Some(driver) = driver {
            // From here on the partition speaks for itself.
            self.carried.borrow_mut().remove(&partition);
            glommio::spawn_local(driver.run()).detach();
        }
        self.context.partitions.borrow_mut().insert(partition, owned);
    }

    /// Serves a partition no longer.
    pub(super) async fn refuse_partition(&self, partition: PartitionKey, reason: String) {
        let before = self.context.partitions.borrow_mut().insert(partition, Owned::Refused(reason));
        let Some(Owned::Serving { partition: log, .. }) = before else { return };
        if let Err(reason) = log.close().await {
            tracing::warn!(%reason, "a partition that is served no longer could not be flushed");
        }
        self.carried.borrow_mut().insert(partition, log.checkpoint_entry());
        self.note_let_go(partition, &log);
    }

    /// What it has counted goes on to count.
    fn note_let_go(&self, key: PartitionKey, partition: &Partition) {
        let mut sum = self.let_go.get();
        add_stats(&mut sum, &let_go(&partition.stats()));
        self.let_go.set(sum);
        self.context.counters.fetched_by_partition.borrow_mut().remove(&key);
    }

    /// Gives a topic's partitions its new configuration.
    pub(super) fn configure_topic(&self, topic_id: TopicId, config: &TopicConfig) {
        for (number, partition) in self.serving(Some(topic_id)) {
            if let Err(error) = partition.configure(config.clone()) {
                tracing::error!(%topic_id, partition = number.1, %error, "a configuration was not taken");
            }
        }
    }

    /// Lets go of a topic's partitions, whose directory is to be deleted.
    pub(super) async fn delete_topic(&self, topic_id: TopicId) {
        let partitions = self.serving(Some(topic_id));
        self.context.partitions.borrow_mut().retain(|(id, _), _| *id != topic_id);
        self.carried.borrow_mut().retain(|(id, _), _| *id != topic_id);
        for (key, partition) in &partitions {
            self.note_let_go(*key, partition);
        }
        join_all(partitions.iter().map(|(_, partition)| partition.abandon())).await;
    }

    /// The state of a topic's partitions.
    pub(super) fn describe_topic(&self, topic_id: TopicId) -> Vec<PartitionReport> {
        self.serving(Some(topic_id)).into_iter().map(|((_, number), partition)| report(number, &partition)).collect()
    }

    /// The partitions that serve, of one topic or all.
    pub(super) fn serving(&self, topic_id: Option<TopicId>) -> Vec<(PartitionKey, Partition)> {
        let partitions = self.context.partitions.borrow();
        let wanted = partitions.iter().filter(|((id, _), _)| topic_id.is_none_or(|wanted| wanted == *id));
        wanted
            .filter_map(|(key, owned)| match owned {
                Owned::Serving { partition, .. } => Some((*key, partition.clone())),
                Owned::Opening | Owned::Refused(_) => None,
            })
            .collect()
    }

    /// Flushes and closes every partition; whether all of them could be flushed.
    pub(super) async fn close_partitions(&self) -> bool {
        let partitions = self.serving(None);
        let closed = join_all(partitions.iter().map(|(key, partition)| async move {
            let outcome = partition.close().await;
            if let Err(reason) = &outcome {
                tracing::error!(topic_id = %key.0, partition = key.1, %reason, "could not be flushed");
            }
            outcome.is_ok()
        }));
        closed.await.into_iter().all(|is_flushed| is_flushed)
    }

    /// Writes a checkpoint each second while something has changed, for ever.
    pub(super) async fn write_checkpoints(self: Rc<Self>) {
        // As it stands in the last life's files.
        let mut written = self.checkpoint_entries();
        let (mut rest, mut turn) = (limits::CHECKPOINT_INTERVAL, 0);
        loop {
            glommio::timer::sleep(rest).await;
            self.check_files(&written, turn).await;
            turn = turn.wrapping_add(1);
            let entries = self.checkpoint_entries();
            if entries == written {
                rest = limits::CHECKPOINT_INTERVAL;
                continue;
            }
            let began = Instant::now();
            if self.write_checkpoint(entries.clone(), false).await {
                written = entries;
            } else {
                glommio::timer::sleep(limits::CHECKPOINT_RETRY).await;
            }
            // A slow disk has as long for what publishers wait for.
            rest = began.elapsed().max(limits::CHECKPOINT_INTERVAL);
        }
    }

    /// Looks whether the files of partitions still stand: of those that have changed since `before`, and of some others, which
    /// ones depends on `turn`.
    async fn check_files(&self, before: &[CheckpointEntry], turn: usize) {
        let serving = self.serving(None);
        let turns = serving.len().div_ceil(limits::FILES_CHECKED_A_TURN).max(1);
        for (at, ((topic_id, number), partition)) in serving.into_iter().enumerate() {
            let known = before.binary_search_by_key(&(topic_id, number), |entry| (entry.topic_id, entry.partition));
            let has_changed = known.map_or(true, |known| before[known] != partition.checkpoint_entry());
            if has_changed || at % turns == turn % turns {
                partition.check_file().await;
            }
        }
    }

    fn checkpoint_entries(&self) -> Vec<CheckpointEntry> {
        let mut entries: Vec<_> =
            self.serving(None).iter().map(|(_, partition)| partition.checkpoint_entry()).collect();
        entries.extend(self.carried.borrow().values());
        entries.sort_unstable_by_key(|entry| (entry.topic_id, entry.partition));
        entries
    }

    /// Writes the last checkpoint of an orderly stop. Clean is only a life that opened every partition and flushed it: of
    /// another one, the next recovery must not take for granted what this life did not make sure of. Not written (the disk
    /// is full), it costs the next start time and nothing else.
    pub(super) async fn write_last_checkpoint(&self, is_flushed: bool) {
        let is_whole = self.has_served.get() && self.carried.borrow().is_empty() && !self.has_refused();
        self.write_checkpoint(self.checkpoint_entries(), is_flushed && is_whole).await;
    }

    fn has_refused(&self) -> bool {
        self.context.partitions.borrow().values().any(|owned| matches!(owned, Owned::Refused(_)))
    }

    async fn write_checkpoint(&self, entries: Vec<CheckpointEntry>, is_clean: bool) -> bool {
        let checkpoint =
            Checkpoint { starts: self.starts, shards: self.context.identity.shards, clean: is_clean, entries };
        let shard = self.context.identity.shard;
        let written = checkpoint::write(self.context.env.disk(), &self.data_dir, shard, &checkpoint).await;
        if let Err(error) = &written {
            tracing::warn!(%error, "the checkpoint could not be written; the next start takes longer");
        }
        written.is_ok()
    }
}

fn key(options: &PartitionOptions) -> PartitionKey {
    (options.topic_id, options.partition)
}

fn report(number: u32, partition: &Partition) -> PartitionReport {
    let (bounds, stats) = (partition.bounds(), partition.stats());
    let detail = pb::PartitionDetail {
        partition: number,
        start: bounds.start.0,
        visible_end: bounds.visible_end.0,
        durable_end: bounds.durable_end.0,
        end: bounds.end.0,
        segments: stats.segments,
        bytes_on_disk: stats.bytes_on_disk,
        bad_messages: stats.bad_messages,
    };
    PartitionReport { partition: number, detail, closed: partition.closed().map(|reason| reason.to_string()), stats }
}
