//! Topics in the registry: creation, change, deletion. Each becomes true in one transaction; what a broker that died in
//! the middle leaves behind is swept. Written once, above the store seam; runs on the control thread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use corelane_log::config::TopicConfig;
use corelane_proto::ids::{Epoch, Position, TopicId, TopicName};

use super::keys::{Key, Keys};
use super::records::{AliveRecord, CreatingRecord, PartitionRecord, Record, RecordError, TombstoneRecord, TopicRecord};
use super::store::{Op, OpResult, Revision, Store, StoreError, Test, Txn, list};
use super::view::Versioned;
use crate::limits::{CREATION_DEAD_AFTER, TXN_PAGE};

/// How often a change is tried again when another one came first.
const CONFLICTS_MAX: u32 = 16;

/// Why a topic was not created, changed or deleted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopicError {
    /// The name is taken.
    #[error("a topic named {name} exists, with {partitions} partitions")]
    Exists {
        /// The name.
        name: TopicName,
        /// Its partitions.
        partitions: u32,
    },
    /// There is none.
    #[error("there is no topic named {name}")]
    Unknown {
        /// The name.
        name: TopicName,
    },
    /// The name belongs to another topic than the caller meant.
    #[error("the topic named {name} has the id {topic_id}, not the one that was given")]
    OtherTopic {
        /// The name.
        name: TopicName,
        /// Its id.
        topic_id: TopicId,
    },
    /// Others kept changing it.
    #[error("others keep changing {key}; try again")]
    Busy {
        /// What was changed.
        key: String,
    },
    /// The creation took so long that another broker swept it away.
    #[error("the creation was given up while it was under way; try again")]
    Swept,
    /// What is stored is not readable.
    #[error("{key}: {error}; correct it, or remove the key")]
    Record {
        /// Where.
        key: String,
        /// Why.
        error: RecordError,
    },
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl TopicError {
    /// Whether there was no room for it.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Store(StoreError::NoSpace))
    }
}

/// A topic to be made.
#[derive(Clone, Debug)]
pub struct NewTopic {
    /// Its name.
    pub name: TopicName,
    /// Random.
    pub topic_id: TopicId,
    /// Every field set, and checked.
    pub config: TopicConfig,
    /// The broker of each partition.
    pub places: Vec<u32>,
    /// Where the log of each partition begins; beyond the last one given, at 0.
    pub starts: Vec<Position>,
    /// What it is an exact copy of.
    pub copy_of: Vec<String>,
}

/// The topics of a cluster.
#[derive(Clone)]
pub struct Topics<S> {
    store: S,
    keys: Keys,
    instance: String,
}

impl<S: Store> Topics<S> {
    /// As seen by this run of a broker.
    pub fn new(store: S, keys: Keys, instance: String) -> Self {
        Self { store, keys, instance }
    }

    /// A topic, if there is one of this name.
    pub async fn get(&self, name: &TopicName) -> Result<Option<Versioned<TopicRecord>>, TopicError> {
        let key = self.keys.key(&Key::Topic(name.clone()));
        let Some(entry) = self.store.get(&key).await? else { return Ok(None) };
        let record = TopicRecord::from_bytes(&entry.value).map_err(|error| TopicError::Record { key, error })?;
        Ok(Some(Versioned { record, revision: entry.mod_revision }))
    }

    /// Makes a topic. A marker first, then the partitions in pages, then the topic's own key, which is what makes it
    /// exist; every step compares the marker. Dying in between leaves keys that mean nothing until they are swept.
    pub async fn create(&self, new: &NewTopic) -> Result<TopicRecord, TopicError> {
        let partitions = new.places.len() as u32;
        if let Some(existing) = self.get(&new.name).await? {
            return Err(TopicError::Exists { name: new.name.clone(), partitions: existing.record.partitions });
        }
        let marker = self.keys.key(&Key::Creating(new.topic_id));
        let creating = CreatingRecord { name: new.name.clone(), from: 0, partitions, instance: self.instance.clone() };
        let begin = Txn::new().when(&marker, Test::Absent).put(&marker, creating.to_bytes());
        let begun = self.store.commit(begin).await?;
        if !begun.succeeded {
            return Err(TopicError::Busy { key: marker });
        }
        let (topic_id, config, copy_of) = (new.topic_id, new.config.clone(), new.copy_of.clone());
        let record = TopicRecord { topic_id, partitions, config, copy_of };
        let starts = new.starts.iter().copied().chain(std::iter::repeat(Position::ZERO));
        let partitions = new.places.iter().zip(starts);
        let places: Vec<(u32, PartitionRecord)> = (0..)
            .zip(partitions.map(|(broker_id, start)| PartitionRecord { start, ..new_partition(*broker_id) }))
            .collect();
        let name = &new.name;
        let result = self.write_pages_and_commit(name, &record, &places, (&marker, begun.revision), Test::Absent).await;
        match result {
            Ok(()) => Ok(record),
            // The answer to the last step may have been lost: then the topic is there.
            Err(error) => match self.get(&new.name).await {
                Ok(Some(found)) if found.record.topic_id == new.topic_id => Ok(record),
                Ok(found) => {
                    self.abandon(new.topic_id, begun.revision, &creating).await?;
                    Err(match found {
                        Some(found) => {
                            TopicError::Exists { name: new.name.clone(), partitions: found.record.partitions }
                        }
                        None => error,
                    })
                }
                Err(_) => Err(error),
            },
        }
    }

    /// The partitions' keys in pages, then the topic's own and the removal of the marker in one. Every step compares the
    /// marker and the topic's key, or one who was slow would write over the partitions of one who was faster.
    async fn write_pages_and_commit(
        &self,
        name: &TopicName,
        record: &TopicRecord,
        places: &[(u32, PartitionRecord)],
        (marker, begun): (&str, Revision),
        test: Test,
    ) -> Result<(), TopicError> {
        let topic = self.keys.key(&Key::Topic(name.clone()));
        for page in places.chunks(TXN_PAGE) {
            let mut txn = Txn::new().when(marker, Test::Modified(begun)).when(&topic, test.clone());
            for (partition, place) in page {
                let key = self.keys.key(&Key::Partition(record.topic_id, *partition));
                txn = txn.put(key, place.to_bytes());
            }
            if !self.store.commit(txn).await?.succeeded {
                return Err(TopicError::Swept);
            }
        }
        let commit = Txn::new()
            .when(marker, Test::Modified(begun))
            .when(&topic, test)
            .put(&topic, record.to_bytes())
            .delete(marker);
        if self.store.commit(commit).await?.succeeded { Ok(()) } else { Err(TopicError::Swept) }
    }

    /// Takes a creation back, unless it is done or was taken back already: marker and partitions at once, so that the
    /// creator, should it wake up, changes nothing any more. Where partitions were to be added to a topic that is still
    /// there, what was written of them means nothing, and the next one who adds some writes it again.
    async fn abandon(&self, id: TopicId, begun: Revision, creating: &CreatingRecord) -> Result<bool, TopicError> {
        let marker = self.keys.key(&Key::Creating(id));
        let has_topic =
            creating.from > 0 && self.get(&creating.name).await?.is_some_and(|topic| topic.record.topic_id == id);
        let mut txn = Txn::new().when(&marker, Test::Modified(begun)).delete(&marker);
        if !has_topic {
            txn = txn.then(Op::DeletePrefix(self.keys.partitions_of(id)));
        }
        Ok(self.store.commit(txn).await?.succeeded)
    }

    /// Adds partitions to a topic that has `old` ones, a place for each; in pages, like a creation. The topic must be as it
    /// was when `old` was read from it, else somebody else was faster.
    pub async fn add_partitions(
        &self,
        name: &TopicName,
        old: &Versioned<TopicRecord>,
        places: &[u32],
    ) -> Result<TopicRecord, TopicError> {
        let (topic_id, from) = (old.record.topic_id, old.record.partitions);
        let record = TopicRecord { partitions: from + places.len() as u32, ..old.record.clone() };
        let marker = self.keys.key(&Key::Creating(topic_id));
        let instance = self.instance.clone();
        let creating = CreatingRecord { name: name.clone(), from, partitions: record.partitions, instance };
        let begin = Txn::new().when(&marker, Test::Absent).put(&marker, creating.to_bytes());
        let begun = self.store.commit(begin).await?;
        if !begun.succeeded {
            return Err(TopicError::Busy { key: marker });
        }
        let places: Vec<(u32, PartitionRecord)> =
            (from..).zip(places.iter().map(|broker_id| new_partition(*broker_id))).collect();
        let unchanged = Test::Modified(old.revision);
        match self.write_pages_and_commit(name, &record, &places, (&marker, begun.revision), unchanged).await {
            Ok(()) => Ok(record),
            // The answer to the last step may have been lost: then its marker is gone, and the topic as it was written.
            Err(error) => match self.get(name).await {
                Ok(Some(found)) if found.record == record => Ok(record),
                Ok(_) => {
                    self.abandon(topic_id, begun.revision, &creating).await?;
                    Err(match error {
                        TopicError::Swept => TopicError::Busy { key: self.keys.key(&Key::Topic(name.clone())) },
                        error => error,
                    })
                }
                Err(_) => Err(error),
            },
        }
    }

    /// Begins a partition's log anew, in the next epoch, on broker `place`: what it held is given up. `old` must still hold.
    pub async fn accept_loss(
        &self,
        topic_id: TopicId,
        partition: u32,
        old: &Versioned<PartitionRecord>,
        place: u32,
    ) -> Result<PartitionRecord, TopicError> {
        let key = self.keys.key(&Key::Partition(topic_id, partition));
        let record = PartitionRecord { epoch: Epoch(old.record.epoch.0 + 1), ..new_partition(place) };
        let txn = Txn::new().when(&key, Test::Modified(old.revision)).put(&key, record.to_bytes());
        if self.store.commit(txn).await?.succeeded { Ok(record) } else { Err(TopicError::Busy { key }) }
    }

    /// Begins the log of a partition that the topic has and the registry has lost the record of, with this epoch, on the
    /// broker `place`.
    pub async fn begin_lost(
        &self,
        (name, revision): (&TopicName, Revision),
        topic_id: TopicId,
        partition: u32,
        epoch: Epoch,
        place: u32,
    ) -> Result<PartitionRecord, TopicError> {
        let key = self.keys.key(&Key::Partition(topic_id, partition));
        let record = PartitionRecord { epoch, ..new_partition(place) };
        // The topic may have been deleted since it was looked up.
        let topic = self.keys.key(&Key::Topic(name.clone()));
        let txn = Txn::new().when(&topic, Test::Modified(revision)).when(&key, Test::Absent);
        let begun = self.store.commit(txn.put(&key, record.to_bytes())).await?;
        if begun.succeeded { Ok(record) } else { Err(TopicError::Busy { key }) }
    }

    /// Says that a broker will never come back: its data of every deleted topic counts as deleted. How many tombstones that
    /// were.
    pub async fn confirm_all_deleted(&self, broker_id: u32) -> Result<usize, TopicError> {
        let (entries, _) = list(&self.store, &self.keys.deleted()).await?;
        let mut confirmed = 0;
        for entry in entries {
            let Some(Key::Deleted(id)) = self.keys.parse(&entry.key) else { continue };
            let names_it = TombstoneRecord::from_bytes(&entry.value).is_ok_and(|t| t.holders.contains(&broker_id));
            if names_it {
                self.confirm_deleted(id, broker_id).await?;
                confirmed += 1;
            }
        }
        Ok(confirmed)
    }

    /// Changes a topic's configuration; `change` may refuse with an error of the caller's. Returns the record as it is now.
    pub async fn alter<E: From<TopicError>>(
        &self,
        name: &TopicName,
        change: impl Fn(&TopicConfig) -> Result<TopicConfig, E>,
    ) -> Result<Versioned<TopicRecord>, E> {
        let key = self.keys.key(&Key::Topic(name.clone()));
        for _ in 0..CONFLICTS_MAX {
            let found = self.get(name).await?.ok_or_else(|| TopicError::Unknown { name: name.clone() })?;
            let record = TopicRecord { config: change(&found.record.config)?, ..found.record };
            let txn = Txn::new().when(&key, Test::Modified(found.revision)).put(&key, record.to_bytes());
            let outcome = self.store.commit(txn).await.map_err(TopicError::from)?;
            if outcome.succeeded {
                return Ok(Versioned { record, revision: outcome.revision });
            }
        }
        Err(TopicError::Busy { key }.into())
    }

    /// Deletes a topic: its key and its partitions' keys go, a tombstone comes that names who holds its data.
    pub async fn delete(&self, name: &TopicName, expected: Option<TopicId>) -> Result<TopicId, TopicError> {
        let key = self.keys.key(&Key::Topic(name.clone()));
        for _ in 0..CONFLICTS_MAX {
            let found = self.get(name).await?.ok_or_else(|| TopicError::Unknown { name: name.clone() })?;
            let topic_id = found.record.topic_id;
            if expected.is_some_and(|expected| expected != topic_id) {
                return Err(TopicError::OtherTopic { name: name.clone(), topic_id });
            }
            let mut holders = BTreeSet::new();
            for (_, partition) in self.partitions_of(topic_id).await? {
                holders.extend(partition.record.replicas);
            }
            let tombstone = TombstoneRecord { name: name.clone(), holders: holders.into_iter().collect() };
            let txn = Txn::new()
                .when(&key, Test::Modified(found.revision))
                .delete(&key)
                .put(self.keys.key(&Key::Deleted(topic_id)), tombstone.to_bytes())
                .then(Op::DeletePrefix(self.keys.partitions_of(topic_id)));
            if self.store.commit(txn).await?.succeeded {
                return Ok(topic_id);
            }
        }
        Err(TopicError::Busy { key })
    }

    /// Says that a broker's data of a deleted topic is gone; the tombstone goes with its last holder.
    pub async fn confirm_deleted(&self, topic_id: TopicId, broker_id: u32) -> Result<(), TopicError> {
        let key = self.keys.key(&Key::Deleted(topic_id));
        for _ in 0..CONFLICTS_MAX {
            let Some(entry) = self.store.get(&key).await? else { return Ok(()) };
            let mut tombstone = TombstoneRecord::from_bytes(&entry.value)
                .map_err(|error| TopicError::Record { key: key.clone(), error })?;
            tombstone.holders.retain(|holder| *holder != broker_id);
            let txn = Txn::new().when(&key, Test::Modified(entry.mod_revision));
            let txn = if tombstone.holders.is_empty() { txn.delete(&key) } else { txn.put(&key, tombstone.to_bytes()) };
            if self.store.commit(txn).await?.succeeded {
                return Ok(());
            }
        }
        Err(TopicError::Busy { key })
    }

    /// A topic's partition keys.
    pub async fn partitions_of(
        &self,
        topic_id: TopicId,
    ) -> Result<BTreeMap<u32, Versioned<PartitionRecord>>, TopicError> {
        let (entries, _) = list(&self.store, &self.keys.partitions_of(topic_id)).await?;
        let mut partitions = BTreeMap::new();
        for entry in entries {
            let Some(Key::Partition(_, partition)) = self.keys.parse(&entry.key) else { continue };
            let record = PartitionRecord::from_bytes(&entry.value)
                .map_err(|error| TopicError::Record { key: entry.key.clone(), error })?;
            partitions.insert(partition, Versioned { record, revision: entry.mod_revision });
        }
        Ok(partitions)
    }

    /// Records that these partitions were made on their leader's disk, with this epoch (which also raises the key's own).
    /// To be called after their directories are durable and before anything in them is acknowledged. Returns those whose
    /// key is gone or has a newer epoch: they must not be served.
    pub async fn record_made(&self, topic_id: TopicId, made: &[(u32, Epoch)]) -> Result<Vec<u32>, TopicError> {
        let mut refused = Vec::new();
        for page in made.chunks(TXN_PAGE / 2) {
            let mut left = page.to_vec();
            for round in 0.. {
                if round == CONFLICTS_MAX {
                    return Err(TopicError::Busy { key: self.keys.partitions_of(topic_id) });
                }
                left = self.record_made_once(topic_id, &left, &mut refused).await?;
                if left.is_empty() {
                    break;
                }
            }
        }
        Ok(refused)
    }

    /// One nested transaction a partition, so that one that was changed meanwhile fails alone; returns those.
    async fn record_made_once(
        &self,
        topic_id: TopicId,
        made: &[(u32, Epoch)],
        refused: &mut Vec<u32>,
    ) -> Result<Vec<(u32, Epoch)>, TopicError> {
        let (mut txn, mut asked) = (Txn::new(), Vec::new());
        for (partition, epoch) in made {
            let key = self.keys.key(&Key::Partition(topic_id, *partition));
            let Some(entry) = self.store.get(&key).await? else {
                refused.push(*partition);
                continue;
            };
            let mut record = PartitionRecord::from_bytes(&entry.value)
                .map_err(|error| TopicError::Record { key: key.clone(), error })?;
            if record.epoch > *epoch {
                refused.push(*partition);
                continue;
            }
            if (record.epoch, record.made) == (*epoch, Some(*epoch)) {
                continue;
            }
            (record.epoch, record.made) = (*epoch, Some(*epoch));
            let write = Txn::new().when(&key, Test::Modified(entry.mod_revision)).put(&key, record.to_bytes());
            txn = txn.then(Op::Txn(write));
            asked.push((*partition, *epoch));
        }
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let outcome = self.store.commit(txn).await?;
        let failed = outcome.results.iter().map(|result| !matches!(result, OpResult::Txn { succeeded: true, .. }));
        Ok(asked.into_iter().zip(failed).filter(|(_, failed)| *failed).map(|(asked, _)| asked).collect())
    }
}

fn new_partition(broker_id: u32) -> PartitionRecord {
    PartitionRecord {
        replicas: vec![broker_id],
        leader: broker_id,
        epoch: Epoch::FIRST,
        made: None,
        start: Position::ZERO,
    }
}

/// Finds creations that died and takes them back: those whose broker no longer runs at once, others when their marker
/// has stood unchanged for long, by this sweeper's own clock.
#[derive(Debug, Default)]
pub struct Sweeper {
    seen: BTreeMap<(TopicId, Revision), Duration>,
}

impl Sweeper {
    /// Looks once; `now` is monotonic. Returns the names of the creations that were taken back.
    pub async fn sweep<S: Store>(&mut self, topics: &Topics<S>, now: Duration) -> Result<Vec<TopicName>, TopicError> {
        let keys = &topics.keys;
        let (markers, _) = list(&topics.store, &keys.creating()).await?;
        // Read after the markers: a creator's own key was there before its marker.
        let (alive, _) = list(&topics.store, &keys.alive()).await?;
        let instances: BTreeSet<String> = alive
            .iter()
            .filter_map(|entry| AliveRecord::from_bytes(&entry.value).ok())
            .map(|record| record.instance)
            .collect();
        let (mut seen, mut swept) = (BTreeMap::new(), Vec::new());
        for entry in markers {
            let Some(Key::Creating(id)) = keys.parse(&entry.key) else { continue };
            let marker = CreatingRecord::from_bytes(&entry.value)
                .map_err(|error| TopicError::Record { key: entry.key.clone(), error })?;
            let first_seen = *self.seen.get(&(id, entry.mod_revision)).unwrap_or(&now);
            let is_old = now.saturating_sub(first_seen) >= CREATION_DEAD_AFTER;
            if is_old || !instances.contains(&marker.instance) {
                if topics.abandon(id, entry.mod_revision, &marker).await? {
                    swept.push(marker.name);
                }
            } else {
                seen.insert((id, entry.mod_revision), first_seen);
            }
        }
        self.seen = seen;
        Ok(swept)
    }
}
