//! A registry as a file, and a registry from what data directories know: for the day on which a single broker becomes the
//! first one of a cluster, and for the day on which a registry is lost. Lasting records only: what stands under a lease
//! comes back by itself. Written once, above the store seam; nothing that exists is ever written over.

use corelane_log::data_dir::{DataDirError, FoundTopic, Identity};
use corelane_proto::ids::{Epoch, Position, TopicId, TopicName};
use serde::{Deserialize, Serialize};

use super::keys::{Key, Keys};
use super::records::{BrokerRecord, ClusterRecord, PartitionRecord, Record, RecordError, TopicRecord};
use super::store::{Revision, Store, StoreError, Test, Txn, list};
use crate::limits::{TXN_BYTES_MAX, TXN_PAGE};

/// Why a registry was not exported, imported or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// There is nothing to export.
    #[error("the registry has no cluster of this name")]
    Empty,
    /// There is something where an import would write.
    #[error(
        "the registry has keys of this cluster already ({key}); an import takes one that has none, and an import that was \
         broken off begins again once they are removed"
    )]
    Occupied {
        /// One of them.
        key: String,
    },
    /// What was given is no export.
    #[error("not an export of a registry that this version reads: {0}")]
    Format(String),
    /// A value that is not readable.
    #[error("{key}: {error}; correct it, or remove the key")]
    Record {
        /// Where.
        key: String,
        /// Why.
        error: RecordError,
    },
    /// The directory cannot be read.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// No broker has used the directory.
    #[error("the data directory has no identity file: no broker has used it")]
    NoIdentity,
    /// The registry is another cluster's.
    #[error(
        "the data directory belongs to cluster {on_disk}, the registry is that of cluster {in_registry}. If that one was \
         founded by a broker that was started on the emptied registry with a new directory: stop that broker, remove what \
         lies under {prefix} (etcdctl del --prefix {prefix}), and do this again"
    )]
    OtherCluster {
        /// The directory's.
        on_disk: String,
        /// The registry's.
        in_registry: String,
        /// Where the cluster's keys lie.
        prefix: String,
    },
    /// The registry knows another directory for the broker.
    #[error("the registry knows another data directory of broker {broker_id} (uuid {registered})")]
    OtherDirectory {
        /// The broker.
        broker_id: u32,
        /// The directory that it knows.
        registered: String,
    },
    /// Somebody else wrote at the same time.
    #[error("somebody else changes {key}; try again when nobody does")]
    Busy {
        /// What was to be written.
        key: String,
    },
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

const FORMAT: &str = "corelane registry 1";

/// The lasting records of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    format: String,
    /// Keys without their cluster's prefix, and values.
    records: Vec<(String, serde_json::Value)>,
}

impl Export {
    /// As a file: one record a line.
    pub fn to_text(&self) -> String {
        let line = |record: &(String, serde_json::Value)| serde_json::to_string(record).expect("plain data");
        let records: Vec<String> = self.records.iter().map(line).collect();
        format!("{{\"format\":\"{FORMAT}\",\"records\":[\n{}\n]}}\n", records.join(",\n"))
    }

    /// From such a file.
    pub fn from_text(text: &str) -> Result<Self, TransferError> {
        let export: Self = serde_json::from_str(text).map_err(|error| TransferError::Format(error.to_string()))?;
        if export.format != FORMAT {
            return Err(TransferError::Format(format!("its format is {:?}", export.format)));
        }
        Ok(export)
    }

    /// How many records it has.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// Reads all lasting records of a cluster, as of one revision.
pub async fn export<S: Store>(store: &S, keys: &Keys) -> Result<Export, TransferError> {
    let (entries, _) = list(store, keys.all()).await?;
    let mut records = Vec::new();
    for entry in entries.into_iter().filter(|entry| entry.lease.is_none()) {
        let relative = entry.key[keys.all().len()..].to_owned();
        // A creation under way ends with its broker.
        if relative.starts_with("creating/") {
            continue;
        }
        let value = serde_json::from_slice(&entry.value);
        let value =
            value.map_err(|error| TransferError::Record { key: entry.key.clone(), error: RecordError(error) })?;
        records.push((relative, value));
    }
    if records.iter().any(|(key, _)| key == "cluster") {
        Ok(Export { format: FORMAT.to_owned(), records })
    } else {
        Err(TransferError::Empty)
    }
}

/// Writes an export into a registry that has nothing of the cluster: first a mark, then all records, then, in place of the
/// mark, the cluster's own, which is what makes it count. Its incarnation is raised: revisions begin anew.
pub async fn import<S: Store>(store: &S, keys: &Keys, export: &Export) -> Result<(), TransferError> {
    let mark = format!("{}importing", keys.all());
    let cluster_key = keys.key(&Key::Cluster);
    let cluster = export.records.iter().find(|(key, _)| key == "cluster");
    let (_, cluster) = cluster.ok_or_else(|| TransferError::Format("it names no cluster".to_owned()))?;
    let mut cluster = ClusterRecord::from_bytes(cluster.to_string().as_bytes())
        .map_err(|error| TransferError::Record { key: "cluster".to_owned(), error })?;
    cluster.incarnation += 1;
    let begin = Txn::new().when(keys.all(), Test::NoneBelow).put(&mark, b"{}".to_vec());
    if !store.commit(begin).await?.succeeded {
        let (found, _) = list(store, keys.all()).await?;
        let key = found.into_iter().next().map_or(mark, |entry| entry.key);
        return Err(TransferError::Occupied { key });
    }
    let others = export.records.iter().filter(|(key, _)| key != "cluster");
    let mut page = Vec::new();
    let mut bytes = 0;
    for (key, value) in others {
        let (key, value) = (format!("{}{key}", keys.all()), value.to_string().into_bytes());
        if page.len() == TXN_PAGE || bytes + key.len() + value.len() > TXN_BYTES_MAX / 2 {
            write_page(store, &mark, std::mem::take(&mut page)).await?;
            bytes = 0;
        }
        bytes += key.len() + value.len();
        page.push((key, value));
    }
    write_page(store, &mark, page).await?;
    let end = Txn::new().when(&mark, Test::Exists).put(&cluster_key, cluster.to_bytes()).delete(&mark);
    if store.commit(end).await?.succeeded { Ok(()) } else { Err(TransferError::Busy { key: cluster_key }) }
}

async fn write_page<S: Store>(store: &S, mark: &str, page: Vec<(String, Vec<u8>)>) -> Result<(), TransferError> {
    let txn = page.into_iter().fold(Txn::new().when(mark, Test::Exists), |txn, (key, value)| txn.put(key, value));
    if store.commit(txn).await?.succeeded { Ok(()) } else { Err(TransferError::Busy { key: mark.to_owned() }) }
}

/// A topic of a data directory with the epoch of each partition that has one.
pub type FoundPartitions = (FoundTopic, Vec<(u32, Epoch)>);

/// What [`restore`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Topics that the registry knows again.
    pub topics: usize,
    /// Partitions.
    pub partitions: usize,
    /// What was left alone, and why; sentences.
    pub left: Vec<String>,
    /// What no directory has brought back yet, and what helps; sentences.
    pub missing: Vec<String>,
}

/// Makes the records anew that a broker's data directory knows of: of its topics, of its partitions, of the broker, and at
/// last the cluster's own. To be done with the directory of each broker.
pub async fn restore<S: Store>(
    store: &S,
    keys: &Keys,
    identity: &Identity,
    found: &[FoundPartitions],
) -> Result<Restored, TransferError> {
    let cluster_key = keys.key(&Key::Cluster);
    let cluster = get::<S, ClusterRecord>(store, &cluster_key).await?;
    if let Some((cluster, _)) = &cluster
        && cluster.cluster_id != identity.cluster_id
    {
        let (on_disk, in_registry) = (identity.cluster_id.clone(), cluster.cluster_id.clone());
        return Err(TransferError::OtherCluster { on_disk, in_registry, prefix: keys.all().to_owned() });
    }
    restore_broker(store, keys, identity).await?;
    let mut restored = Restored::default();
    for (topic, epochs) in found {
        restore_topic(store, keys, identity.broker_id, (topic, epochs), &mut restored).await?;
    }
    if cluster.is_none() {
        let (cluster_id, incarnation) = (identity.cluster_id.clone(), identity.registry_incarnation + 1);
        put_new(store, &cluster_key, &ClusterRecord { cluster_id, incarnation }).await?;
    }
    Ok(restored)
}

async fn restore_broker<S: Store>(store: &S, keys: &Keys, identity: &Identity) -> Result<(), TransferError> {
    let (broker_id, key) = (identity.broker_id, keys.key(&Key::Broker(identity.broker_id)));
    match get::<S, BrokerRecord>(store, &key).await? {
        Some((known, _)) if known.uuid != identity.uuid => {
            Err(TransferError::OtherDirectory { broker_id, registered: known.uuid })
        }
        Some(_) => Ok(()),
        None => {
            let record = BrokerRecord {
                uuid: identity.uuid.clone(),
                starts: identity.registered.unwrap_or(identity.starts),
                instance: String::new(),
                // It tells itself when it starts.
                listeners: Vec::new(),
                shards: 1,
                version: String::new(),
            };
            put_new(store, &key, &record).await
        }
    }
}

async fn restore_topic<S: Store>(
    store: &S,
    keys: &Keys,
    broker_id: u32,
    (found, epochs): (&FoundTopic, &[(u32, Epoch)]),
    restored: &mut Restored,
) -> Result<(), TransferError> {
    let path = found.path.display();
    let topic = match &found.identity {
        Ok(topic) => topic,
        Err(error) => {
            restored.left.push(error.to_string());
            return Ok(());
        }
    };
    if store.get(&keys.key(&Key::Deleted(topic.topic_id))).await?.is_some() {
        restored.left.push(format!("{path}: topic {} is being deleted", topic.name));
        return Ok(());
    }
    let key = keys.key(&Key::Topic(topic.name.clone()));
    let known = get::<S, TopicRecord>(store, &key).await?;
    if let Some((other, _)) = known.as_ref().filter(|(known, _)| known.topic_id != topic.topic_id) {
        let other = other.topic_id;
        restored.left.push(format!("{path}: the registry knows another topic of this name ({other})"));
        return Ok(());
    }
    for (partition, epoch) in epochs {
        let place = (topic.topic_id, *partition, *epoch);
        match restore_partition(store, keys, broker_id, place).await? {
            None => restored.partitions += 1,
            Some(reason) => restored.left.push(format!("{path}/{partition}: {reason}")),
        }
    }
    // Last: it is what makes the topic exist.
    let (topic_id, partitions, config) = (topic.topic_id, topic.partitions, topic.config.clone());
    match known {
        None => put_new(store, &key, &TopicRecord { topic_id, partitions, config, copy_of: Vec::new() }).await?,
        // A directory that was behind when its broker stopped.
        Some((known, revision)) if known.partitions < partitions => {
            let grown = TopicRecord { partitions, ..known };
            put_if(store, &key, Test::Modified(revision), &grown).await?;
        }
        Some(_) => {}
    }
    restored.topics += 1;
    restored.missing.extend(missing_of(store, keys, topic_id, &topic.name).await?);
    Ok(())
}

/// The partitions of a topic that the registry has no record of, in a sentence.
async fn missing_of<S: Store>(
    store: &S,
    keys: &Keys,
    topic_id: TopicId,
    name: &TopicName,
) -> Result<Option<String>, TransferError> {
    let key = keys.key(&Key::Topic(name.clone()));
    let Some((known, _)) = get::<S, TopicRecord>(store, &key).await? else { return Ok(None) };
    let mut missing = Vec::new();
    for partition in 0..known.partitions {
        if store.get(&keys.key(&Key::Partition(topic_id, partition))).await?.is_none() {
            missing.push(partition.to_string());
        }
    }
    let list = missing.join(",");
    let sentence = format!(
        "topic {name}: partition {list}; the directory of whoever held it brings it back, and if there is none any more, it \
         begins anew with: corelane topic accept-loss {name} --partition {list}"
    );
    Ok((!missing.is_empty()).then_some(sentence))
}

/// Returns why it was left alone, if it was.
async fn restore_partition<S: Store>(
    store: &S,
    keys: &Keys,
    broker_id: u32,
    (topic_id, partition, epoch): (TopicId, u32, Epoch),
) -> Result<Option<String>, TransferError> {
    let key = keys.key(&Key::Partition(topic_id, partition));
    let record = PartitionRecord {
        replicas: vec![broker_id],
        leader: broker_id,
        epoch,
        made: Some(epoch),
        start: Position::ZERO,
    };
    match get::<S, PartitionRecord>(store, &key).await? {
        None => put_new(store, &key, &record).await?,
        Some((known, revision)) if known.epoch < epoch => {
            put_if(store, &key, Test::Modified(revision), &record).await?;
        }
        Some((known, _)) if known.leader == broker_id => {}
        Some((known, _)) => {
            return Ok(Some(format!("broker {} holds it, with epoch {}", known.leader, known.epoch)));
        }
    }
    Ok(None)
}

async fn get<S: Store, R: Record>(store: &S, key: &str) -> Result<Option<(R, Revision)>, TransferError> {
    let Some(entry) = store.get(key).await? else { return Ok(None) };
    let record = R::from_bytes(&entry.value).map_err(|error| TransferError::Record { key: key.to_owned(), error })?;
    Ok(Some((record, entry.mod_revision)))
}

async fn put_new<S: Store>(store: &S, key: &str, record: &impl Record) -> Result<(), TransferError> {
    put_if(store, key, Test::Absent, record).await
}

async fn put_if<S: Store>(store: &S, key: &str, test: Test, record: &impl Record) -> Result<(), TransferError> {
    let written = store.commit(Txn::new().when(key, test).put(key, record.to_bytes())).await?.succeeded;
    if written { Ok(()) } else { Err(TransferError::Busy { key: key.to_owned() }) }
}
