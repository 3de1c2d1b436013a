//! What a broker knows of the registry: a list of the prefixes it needs, kept up to date by one watch each. Because they
//! are watched apart, a topic may be seen before its partitions: `is_complete` tells.

use std::collections::BTreeMap;

use corelane_proto::ids::{TopicId, TopicName};
use futures_util::future::select_all;

use super::keys::{Key, Keys};
use super::records::{AliveRecord, BrokerRecord, PartitionRecord, Record, TombstoneRecord, TopicRecord};
use super::store::{Change, Entry, Revision, Store, StoreError, StoreResult, Watch, list};

/// A record with the revision at which it was last written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<R> {
    /// The record.
    pub record: R,
    /// Its mod revision.
    pub revision: Revision,
}

/// What a broker knows of the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Everything up to here was seen.
    pub revision: Revision,
    /// Brokers, running or not.
    pub brokers: BTreeMap<u32, BrokerRecord>,
    /// Brokers that run.
    pub alive: BTreeMap<u32, AliveRecord>,
    /// Brokers that were seen to go and do not run since, and whether they stopped in order. It is in no record.
    pub gone: BTreeMap<u32, bool>,
    /// Topics by name.
    pub topics: BTreeMap<TopicName, Versioned<TopicRecord>>,
    /// Tombstones.
    pub deleted: BTreeMap<TopicId, TombstoneRecord>,
    /// Partitions, those of creations under way included.
    pub partitions: BTreeMap<TopicId, BTreeMap<u32, Versioned<PartitionRecord>>>,
}

impl View {
    /// A view of records that were kept elsewhere.
    pub fn of_records(keys: &Keys, records: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let mut view = Self::default();
        for (key, value) in records {
            view.put(keys, &Entry { key, value, create_revision: 0, mod_revision: 0, lease: None });
        }
        view
    }

    /// All of its records, with their keys.
    pub fn records(&self, keys: &Keys) -> Vec<(String, Vec<u8>)> {
        let mut records = Vec::new();
        let mut add = |key: Key, value: Vec<u8>| records.push((keys.key(&key), value));
        for (id, record) in &self.brokers {
            add(Key::Broker(*id), record.to_bytes());
        }
        for (id, record) in &self.alive {
            add(Key::Alive(*id), record.to_bytes());
        }
        for (name, topic) in &self.topics {
            add(Key::Topic(name.clone()), topic.record.to_bytes());
        }
        for (id, record) in &self.deleted {
            add(Key::Deleted(*id), record.to_bytes());
        }
        for (id, partitions) in &self.partitions {
            for (number, found) in partitions {
                add(Key::Partition(*id, *number), found.record.to_bytes());
            }
        }
        records
    }

    /// Takes a change in; what is not readable is named in the log, once for each change, and left out.
    pub fn apply(&mut self, keys: &Keys, change: Change) {
        match change {
            Change::Put(entry) => self.put(keys, &entry),
            Change::Deleted { key, .. } => self.delete(keys.parse(&key)),
        }
    }

    fn put(&mut self, keys: &Keys, entry: &Entry) {
        let revision = entry.mod_revision;
        match keys.parse(&entry.key) {
            Some(Key::Broker(id)) => insert(&mut self.brokers, id, entry, |record| record),
            Some(Key::Alive(id)) => {
                self.gone.remove(&id);
                insert(&mut self.alive, id, entry, |record| record);
            }
            Some(Key::Topic(name)) => insert(&mut self.topics, name, entry, |record| Versioned { record, revision }),
            Some(Key::Deleted(id)) => insert(&mut self.deleted, id, entry, |record| record),
            Some(Key::Partition(id, partition)) => {
                let partitions = self.partitions.entry(id).or_default();
                insert(partitions, partition, entry, |record| Versioned { record, revision });
            }
            // Nobody of those who look at this needs them.
            _ => {}
        }
    }

    fn delete(&mut self, key: Option<Key>) {
        match key {
            Some(Key::Broker(id)) => drop(self.brokers.remove(&id)),
            Some(Key::Alive(id)) => {
                if let Some(record) = self.alive.remove(&id) {
                    self.gone.insert(id, record.leaving);
                }
            }
            Some(Key::Topic(name)) => drop(self.topics.remove(&name)),
            Some(Key::Deleted(id)) => drop(self.deleted.remove(&id)),
            Some(Key::Partition(id, partition)) => {
                if let Some(partitions) = self.partitions.get_mut(&id) {
                    partitions.remove(&partition);
                    if partitions.is_empty() {
                        self.partitions.remove(&id);
                    }
                }
            }
            // Nobody of those who look at this needs them.
            _ => {}
        }
    }

    /// A topic's partitions that count, by number.
    pub fn partitions_of(&self, topic: &TopicRecord) -> impl Iterator<Item = (u32, &Versioned<PartitionRecord>)> {
        let partitions = self.partitions.get(&topic.topic_id);
        let count = topic.partitions;
        partitions.into_iter().flat_map(move |all| all.range(..count)).map(|(partition, record)| (*partition, record))
    }

    /// Whether all of a topic's partitions were seen.
    pub fn is_complete(&self, topic: &TopicRecord) -> bool {
        self.partitions_of(topic).count() == topic.partitions as usize
    }

    /// The name of a topic.
    pub fn name_of(&self, id: TopicId) -> Option<&TopicName> {
        self.topics.iter().find(|(_, topic)| topic.record.topic_id == id).map(|(name, _)| name)
    }

    /// How many partitions of existing topics a broker leads.
    pub fn partitions_on(&self, broker_id: u32) -> u32 {
        let of = |topic: &Versioned<TopicRecord>| {
            self.partitions_of(&topic.record).filter(|(_, p)| p.record.leader == broker_id).count() as u32
        };
        self.topics.values().map(of).sum()
    }
}

fn insert<K: Ord, R: Record, V>(map: &mut BTreeMap<K, V>, key: K, entry: &Entry, make: impl FnOnce(R) -> V) {
    match R::from_bytes(&entry.value) {
        Ok(record) => drop(map.insert(key, make(record))),
        Err(error) => {
            map.remove(&key);
            tracing::error!(key = entry.key, %error, "a registry record is left out: correct it, or remove its key");
        }
    }
}

/// A view and the watches that keep it up to date.
pub struct Follower<S: Store> {
    store: S,
    keys: Keys,
    view: View,
    /// The first is that of the cluster's record.
    watches: Vec<S::Watch>,
    /// That record as it was listed; another one means another life of the registry.
    cluster: Option<Vec<u8>>,
    /// Whether it is to be read, as the watch of it may have missed it.
    is_cluster_unsure: bool,
}

impl<S: Store> Follower<S> {
    /// Lists everything, then watches from there.
    pub async fn start(store: &S, keys: &Keys) -> StoreResult<Self> {
        let mut view = View::default();
        let cluster_key = keys.key(&Key::Cluster);
        // Before all that may be of another life.
        let (entries, revision) = list(store, &cluster_key).await?;
        let cluster = entries.into_iter().next().map(|entry| entry.value);
        let mut watches = vec![store.watch(&cluster_key, revision + 1).await?];
        for prefix in [keys.brokers(), keys.alive(), keys.deleted(), keys.partitions(), keys.topics()] {
            let (entries, revision) = list(store, &prefix).await?;
            for entry in entries {
                view.put(keys, &entry);
            }
            watches.push(store.watch(&prefix, revision + 1).await?);
            view.revision = view.revision.max(revision);
        }
        let (store, keys) = (store.clone(), keys.clone());
        Ok(Self { store, keys, view, watches, cluster, is_cluster_unsure: false })
    }

    /// What is known now.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Waits for changes and takes them in. After an error, start again; [`StoreError::WentBack`] is one also where only the
    /// cluster's record tells that this is another life of the registry.
    pub async fn next(&mut self) -> StoreResult<()> {
        if self.is_cluster_unsure {
            let found = self.store.get(&self.keys.key(&Key::Cluster)).await?;
            self.check_life(found.map(|entry| entry.value).as_deref())?;
            // Only now, as whoever waits may stop waiting.
            self.is_cluster_unsure = false;
        }
        let (changes, watch, _) = select_all(self.watches.iter_mut().map(|watch| Box::pin(watch.next()))).await;
        let changes = changes?;
        if watch == 0 {
            self.is_cluster_unsure = changes.changes.is_empty();
            for change in &changes.changes {
                self.check_life(match change {
                    Change::Put(entry) => Some(&entry.value),
                    Change::Deleted { .. } => None,
                })?;
            }
        }
        for change in changes.changes {
            self.view.apply(&self.keys, change);
        }
        self.view.revision = self.view.revision.max(changes.revision);
        Ok(())
    }

    fn check_life(&self, cluster: Option<&[u8]>) -> StoreResult<()> {
        if cluster == self.cluster.as_deref() { Ok(()) } else { Err(StoreError::WentBack) }
    }
}
