//! Makes what this broker holds what the registry says: after each change, whoever made it, and once at start. One task
//! of the control thread; what clients are told is published before anything is taken away and after anything is added.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use corelane_log::config::PartitionOptions;
use corelane_log::data_dir::{FORMAT_VERSION, TopicIdentity};
use corelane_proto::frame::Status;
use corelane_proto::ids::{Epoch, TopicId};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::oneshot;

use super::hosted::{HostedTopic, Served, Teller, ToHost, metadata, plan};
use super::{Control, disk};
use crate::limits::CREATIONS_AT_A_TIME;
use crate::messages::{OpenPartition, Opened, ToShard};
use crate::registry::epochs::Decision;
use crate::registry::keys::Key;
use crate::registry::placement::shard_of;
use crate::registry::records::TopicRecord;
use crate::registry::store::Store;

const NEWER_LIFE: &str = "the registry knows a newer life of this partition, or none";

/// How one partition came up, and whether the registry has yet to be told that it was made.
struct Outcome {
    topic_id: TopicId,
    partition: u32,
    epoch: Epoch,
    served: Served,
    record_made: bool,
}

impl<S: Store> Control<S> {
    /// Does what there is to do. What fails is named in the log and stays planned.
    pub(super) async fn reconcile(&self) {
        // What is let go of may have to be opened or made in another life: a second look.
        if self.reconcile_once().await {
            self.reconcile_once().await;
        }
        self.name_strangers();
    }

    async fn reconcile_once(&self) -> bool {
        let plan = plan(&self.view.borrow(), &self.hosted.borrow(), self.broker_id);
        self.publish_metadata().await;
        if plan.is_empty() {
            return false;
        }
        let has_let_go = !plan.unled.is_empty();
        for topic_id in plan.vanished {
            self.retire(topic_id).await;
        }
        for (topic_id, name) in plan.deleted {
            self.delete(topic_id, &name).await;
        }
        for (topic_id, record) in plan.changed {
            self.change(topic_id, &record).await;
        }
        for (topic_id, partition, reason) in plan.unled {
            self.let_go(topic_id, partition, &reason).await;
        }
        for (topic_id, partitions) in plan.unrecorded {
            self.record_again(topic_id, &partitions).await;
        }
        if !plan.host.is_empty() {
            self.host(plan.host).await;
        }
        self.publish_metadata().await;
        has_let_go
    }

    /// Tells the shards, and whoever waits on this thread, what holds now.
    pub(super) async fn publish_metadata(&self) {
        let metadata = {
            let standing = self.standing.borrow();
            let teller = Teller {
                broker_id: self.broker_id,
                cluster_id: &self.cluster_id,
                registry: self.store.kind(),
                displaced: standing.displaced.as_deref(),
            };
            Arc::new(metadata(&self.view.borrow(), &self.hosted.borrow(), teller))
        };
        for shard in &self.shards {
            // A shard that has ended is noticed elsewhere.
            let _ = shard.send(ToShard::Metadata(Arc::clone(&metadata))).await;
        }
        self.metadata.send_replace(metadata);
    }

    /// A partition is open here, and not this broker's to serve any more: its data stays.
    async fn let_go(&self, topic_id: TopicId, partition: u32, reason: &str) {
        {
            let mut hosted = self.hosted.borrow_mut();
            let Some(topic) = hosted.get_mut(&topic_id) else { return };
            let Some(served) = topic.partitions.get_mut(&partition) else { return };
            tracing::error!(topic = %topic.name, partition, reason, "a partition is served no longer; its data is kept");
            if let Served::Serving(epoch) | Served::Unrecorded(epoch) = *served {
                *served = Served::Refused(epoch, reason.to_owned());
            }
        }
        self.refuse(topic_id, partition, reason).await;
    }

    /// Tells the registry of lives on this disk that it does not know as made. What it refuses is let go of; while it is
    /// away, those that it has never heard of stay unserved.
    async fn record_again(&self, topic_id: TopicId, partitions: &[(u32, Epoch)]) {
        let refused = match self.topics.record_made(topic_id, partitions).await {
            Ok(refused) => refused,
            Err(error) => return tracing::warn!(%topic_id, %error, "that partitions were made could not be recorded"),
        };
        for (partition, epoch) in partitions {
            if refused.contains(partition) {
                self.let_go(topic_id, *partition, NEWER_LIFE).await;
            } else if let Some(topic) = self.hosted.borrow_mut().get_mut(&topic_id) {
                topic.partitions.insert(*partition, Served::Serving(*epoch));
            }
        }
    }

    /// A topic is gone from the registry without a tombstone: its data stays, untouched and not served.
    async fn retire(&self, topic_id: TopicId) {
        let tombstone = self.store.get(&self.keys.key(&Key::Deleted(topic_id))).await;
        if !matches!(tombstone, Ok(None)) {
            // Deleted after all, or not known: the watch will tell.
            return;
        }
        let reason = "the registry no longer knows this topic; its data is kept";
        let partitions: Vec<u32> = {
            // Should the registry know it again, it is opened again.
            let Some(topic) = self.hosted.borrow_mut().remove(&topic_id) else { return };
            tracing::error!(topic = %topic.name, %topic_id, "{reason}");
            self.note_forgotten(topic_id, &topic.name);
            topic.partitions.into_keys().collect()
        };
        for partition in partitions {
            self.refuse(topic_id, partition, reason).await;
        }
    }

    async fn refuse(&self, topic_id: TopicId, partition: u32, reason: &str) {
        let message = ToShard::Refuse { partition: (topic_id, partition), reason: reason.to_owned() };
        let _ = self.shard_of(topic_id, partition).send(message).await;
    }

    /// A tombstone names this broker: lets go of the partitions, deletes the data, confirms.
    async fn delete(&self, topic_id: TopicId, name: &corelane_proto::ids::TopicName) {
        let gone = self.shards.iter().map(|shard| async move {
            let (answer, done) = oneshot::channel();
            let _ = shard.send(ToShard::Delete { topic_id, answer }).await;
            let _ = done.await;
        });
        join_all(gone).await;
        self.hosted.borrow_mut().remove(&topic_id);
        let (data, deleted) = (self.config.data.clone(), name.clone());
        let removed = blocking(move || disk::delete_topic(&data, &deleted, topic_id)).await;
        let confirmed = match removed {
            Ok(()) => {
                self.note_deleted(topic_id);
                self.topics.confirm_deleted(topic_id, self.broker_id).await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match confirmed {
            Ok(()) => tracing::info!(topic = %name, %topic_id, "topic deleted"),
            Err(error) => {
                tracing::error!(topic = %name, %topic_id, error, "a deleted topic's data could not be removed");
            }
        }
        self.remove_deleted();
    }

    /// Frees the space of what was deleted, in the background.
    pub(super) fn remove_deleted(&self) {
        let data = self.config.data.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = blocking(move || disk::remove_deleted(&data)).await {
                tracing::warn!(%error, "a deleted topic's files could not be removed; tried again at the next start");
            }
        });
    }

    /// The directory first, so that it knows what the log has to obey; then the shards. A full disk keeps the note from
    /// being written, and a shorter retention is what makes room: the shards obey all the same, and the next start notes
    /// what the registry says.
    async fn change(&self, topic_id: TopicId, record: &TopicRecord) {
        let Some(name) = self.hosted.borrow().get(&topic_id).map(|topic| topic.name.clone()) else { return };
        let (data, identity) = (self.config.data.clone(), identity(&name, record));
        if let Err(error) = blocking(move || disk::prepare(&data, &identity, Vec::new())).await {
            tracing::error!(topic = %name, %error, "a topic's new configuration could not be noted in its directory");
        }
        for shard in &self.shards {
            let _ = shard.send(ToShard::Configure { topic_id, config: record.config.clone() }).await;
        }
        if let Some(topic) = self.hosted.borrow_mut().get_mut(&topic_id) {
            topic.config = record.config.clone();
            topic.partition_count = record.partitions;
        }
    }

    /// Makes and opens partitions, then records what was made, and only then lets clients know.
    async fn host(&self, topics: Vec<ToHost>) {
        let mut opens: BTreeMap<u32, Vec<(OpenPartition, bool)>> = BTreeMap::new();
        let mut creates: Vec<(PathBuf, PartitionOptions)> = Vec::new();
        let mut outcomes: Vec<Outcome> = Vec::new();
        for topic in &topics {
            self.hosted.borrow_mut().entry(topic.record.topic_id).or_insert_with(|| HostedTopic {
                name: topic.name.clone(),
                partition_count: topic.record.partitions,
                config: topic.record.config.clone(),
                partitions: BTreeMap::new(),
            });
            self.sort_out(topic, &mut opens, &mut creates, &mut outcomes).await;
        }
        let (opened, created) = tokio::join!(self.open_all(opens), self.create_all(creates));
        outcomes.extend(opened);
        outcomes.extend(created);
        self.record_made(&mut outcomes).await;
        for Outcome { topic_id, partition, served, .. } in outcomes {
            if let Served::Refused(_, reason) | Served::Failed(reason) | Served::NoSpace(reason) = &served {
                let topic = self.hosted.borrow().get(&topic_id).map(|topic| topic.name.to_string());
                tracing::error!(topic, %topic_id, partition, "not served: {reason}");
                self.refuse(topic_id, partition, reason).await;
            }
            if let Some(topic) = self.hosted.borrow_mut().get_mut(&topic_id) {
                topic.partitions.insert(partition, served);
            }
        }
    }

    /// Sorts a topic's partitions by what is to be done about them.
    async fn sort_out(
        &self,
        topic: &ToHost,
        opens: &mut BTreeMap<u32, Vec<(OpenPartition, bool)>>,
        creates: &mut Vec<(PathBuf, PartitionOptions)>,
        outcomes: &mut Vec<Outcome>,
    ) {
        let topic_id = topic.record.topic_id;
        let outcome = |partition, epoch, served| Outcome { topic_id, partition, epoch, served, record_made: false };
        let (data, identity) = (self.config.data.clone(), identity(&topic.name, &topic.record));
        let partitions = topic.partitions.clone();
        let prepared = match blocking(move || disk::prepare(&data, &identity, partitions)).await {
            Ok(prepared) => prepared,
            Err(error) => {
                let failed = |(partition, record): &(u32, crate::registry::records::PartitionRecord)| {
                    let (reason, is_full) = (error.to_string(), error.is_no_space());
                    let served = if is_full { Served::NoSpace(reason) } else { Served::Failed(reason) };
                    outcome(*partition, record.epoch, served)
                };
                outcomes.extend(topic.partitions.iter().map(failed));
                return;
            }
        };
        for (partition, record, decision) in prepared.decisions {
            let mut options = PartitionOptions::new(topic.name.clone(), topic_id, partition);
            options.epoch = record.epoch;
            options.start = record.start;
            options.config = topic.record.config.clone();
            options.unflushed_bytes_max = self.config.unflushed_bytes_max.0;
            options.window_max_ever = self.window_max_ever;
            let topic_dir = prepared.topic_dir.clone();
            match decision {
                // While the registry is away it could not be told, and nobody be served.
                Ok(Decision::Create) if self.standing.borrow().away.is_some() => {
                    let reason = "the registry is away; the partition is made when it is back".to_owned();
                    outcomes.push(outcome(partition, record.epoch, Served::Failed(reason)));
                }
                Ok(Decision::Create) => creates.push((topic_dir, options)),
                Ok(Decision::Open { .. } | Decision::Raise(_)) => {
                    let record_made = !matches!(decision, Ok(Decision::Open { record_made: false }));
                    if let Ok(Decision::Raise(epoch)) = decision {
                        options.epoch = epoch;
                    }
                    let (floor, is_clean) = (self.floors.of(topic_id, partition), self.was_clean);
                    let shard = shard_of(topic_id, partition, self.shards.len() as u32);
                    opens
                        .entry(shard)
                        .or_default()
                        .push((OpenPartition { topic_dir, options, floor, is_clean }, record_made));
                }
                Ok(Decision::Lost | Decision::SetAside(_)) => {
                    let reason = format!(
                        "the log of partition {partition} (epoch {}) was made and is not in {}; put its directory back and \
                         restart this broker, or give up what it held: corelane topic accept-loss",
                        record.epoch,
                        topic_dir.display()
                    );
                    outcomes.push(outcome(partition, record.epoch, Served::Refused(record.epoch, reason)));
                }
                Err(error) => outcomes.push(outcome(partition, record.epoch, Served::Failed(error))),
            }
        }
    }

    /// One message a shard: it opens a few at a time.
    async fn open_all(&self, opens: BTreeMap<u32, Vec<(OpenPartition, bool)>>) -> Vec<Outcome> {
        let all = opens.into_iter().map(|(shard, opens)| async move {
            let known: BTreeMap<(TopicId, u32), (Epoch, bool)> = opens
                .iter()
                .map(|(open, record)| ((open.options.topic_id, open.options.partition), (open.options.epoch, *record)))
                .collect();
            let partitions = opens.into_iter().map(|(open, _)| open).collect();
            let (answer, opened) = oneshot::channel();
            let _ = self.shards[shard as usize].send(ToShard::Open { partitions, answer }).await;
            let opened: BTreeMap<(TopicId, u32), Opened> =
                opened.await.unwrap_or_default().into_iter().map(|opened| (opened.partition, opened)).collect();
            let outcome = |((topic_id, partition), (epoch, record_made))| {
                let served = match opened.get(&(topic_id, partition)) {
                    Some(Opened { refused: None, .. }) => Served::Serving(epoch),
                    Some(Opened { refused: Some(reason), is_no_space: true, .. }) => Served::NoSpace(reason.clone()),
                    Some(Opened { refused: Some(reason), .. }) => Served::Refused(epoch, reason.clone()),
                    None => Served::Failed("its shard has ended".to_owned()),
                };
                Outcome { topic_id, partition, epoch, served, record_made }
            };
            known.into_iter().map(outcome).collect::<Vec<_>>()
        });
        join_all(all).await.into_iter().flatten().collect()
    }

    async fn create_all(&self, creates: Vec<(PathBuf, PartitionOptions)>) -> Vec<Outcome> {
        stream::iter(creates)
            .map(|(topic_dir, options)| async move {
                let (topic_id, partition, epoch) = (options.topic_id, options.partition, options.epoch);
                let (answer, created) = oneshot::channel();
                let message = ToShard::Create { topic_dir, options, answer };
                let _ = self.shard_of(topic_id, partition).send(message).await;
                let served = match created.await {
                    Ok(Ok(())) => Served::Serving(epoch),
                    Ok(Err(failure)) if failure.status == Status::NoSpace => Served::NoSpace(failure.error.message),
                    Ok(Err(failure)) => Served::Failed(failure.error.message),
                    Err(_) => Served::Failed("its shard has ended".to_owned()),
                };
                Outcome { topic_id, partition, epoch, served, record_made: true }
            })
            .buffer_unordered(CREATIONS_AT_A_TIME)
            .collect()
            .await
    }

    /// Records what was made; what cannot be recorded is not served, or an empty log might be taken for one that was lost.
    async fn record_made(&self, outcomes: &mut [Outcome]) {
        let mut made: BTreeMap<TopicId, Vec<(u32, Epoch)>> = BTreeMap::new();
        for outcome in outcomes.iter().filter(|outcome| outcome.record_made) {
            if matches!(outcome.served, Served::Serving(_)) {
                made.entry(outcome.topic_id).or_default().push((outcome.partition, outcome.epoch));
            }
        }
        for (topic_id, made) in made {
            let recorded = self.topics.record_made(topic_id, &made).await;
            if let Err(error) = &recorded {
                tracing::warn!(%topic_id, %error, "that partitions were made could not be recorded; tried again");
            }
            for outcome in outcomes.iter_mut() {
                let Served::Serving(epoch) = outcome.served else { continue };
                if outcome.topic_id != topic_id || !made.contains(&(outcome.partition, outcome.epoch)) {
                    continue;
                }
                match &recorded {
                    Ok(refused) if refused.contains(&outcome.partition) => {
                        outcome.served = Served::Refused(epoch, NEWER_LIFE.to_owned());
                    }
                    Ok(_) => {}
                    Err(_) => outcome.served = Served::Unrecorded(epoch),
                }
            }
        }
    }

    /// Whether something is to be tried again.
    pub(super) fn has_pending(&self) -> bool {
        self.hosted.borrow().values().any(|topic| topic.partitions.values().any(Served::is_pending))
    }

    /// Why a topic that was just made has no room here, if so.
    pub(super) fn no_space_for(&self, topic_id: TopicId) -> Option<String> {
        let hosted = self.hosted.borrow();
        hosted.get(&topic_id)?.partitions.values().find_map(|served| match served {
            Served::NoSpace(reason) => Some(reason.clone()),
            _ => None,
        })
    }

    fn shard_of(&self, topic_id: TopicId, partition: u32) -> &async_channel::Sender<ToShard> {
        &self.shards[shard_of(topic_id, partition, self.shards.len() as u32) as usize]
    }
}

fn identity(name: &corelane_proto::ids::TopicName, record: &TopicRecord) -> TopicIdentity {
    TopicIdentity {
        format_version: FORMAT_VERSION,
        topic_id: record.topic_id,
        name: name.clone(),
        partitions: record.partitions,
        config: record.config.clone(),
    }
}

/// Runs what blocks on a helper thread.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("blocking work does not panic")
}
