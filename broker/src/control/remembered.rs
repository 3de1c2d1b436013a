//! What a broker knows while the registry has not been reached since its start: what it saw of it last, kept in a file
//! of the data directory, and what the directories of its topics know themselves, which never depends on that file. Also
//! keeps both up to date while the broker runs.
//!
//! The file is for convenience, so that metadata names the other brokers too: whatever is wrong with it, it is left out.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use corelane_log::blocking::{self, BlockingDisk};
use corelane_log::data_dir::{DataDir, DataDirError, Identity};
use corelane_proto::ids::Position;
use serde::{Deserialize, Serialize};

use super::Control;
use super::host::blocking;
use crate::limits::REMEMBER_INTERVAL;
use crate::registry::keys::Keys;
use crate::registry::records::{PartitionRecord, TopicRecord};
use crate::registry::store::Store;
use crate::registry::view::{Versioned, View};

const FILE: &str = "registry-seen.json";

/// The file's content.
#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    cluster_id: String,
    /// Keys and values as the registry had them.
    records: Vec<(String, serde_json::Value)>,
}

/// What is known without the registry. Blocks; called once at start.
pub(super) fn recall(data: &Path, cluster_id: &str, keys: &Keys, broker_id: u32) -> Result<View, DataDirError> {
    let mut view = read(data, cluster_id, keys);
    let dir = DataDir::new(BlockingDisk, data);
    for found in blocking::run(dir.topics())? {
        // One that cannot be believed is named by whoever lists them for the log.
        let Ok(topic) = found.identity else { continue };
        if view.deleted.contains_key(&topic.topic_id) {
            continue;
        }
        if view.name_of(topic.topic_id).is_none() {
            if let Some(other) = view.topics.get(&topic.name) {
                let (path, other) = (found.path.display(), other.record.topic_id);
                tracing::warn!(%path, %other, "another topic has this name; not served until the registry is back");
                continue;
            }
            let (topic_id, partitions, config) = (topic.topic_id, topic.partitions, topic.config);
            // What it is a copy of is known to the registry alone; nobody makes a mirror's topic while that is away.
            let record = TopicRecord { topic_id, partitions, config, copy_of: Vec::new() };
            view.topics.insert(topic.name, Versioned { record, revision: 0 });
        }
        let partitions = view.partitions.entry(topic.topic_id).or_default();
        for partition in found.partitions {
            let Some(epoch) = blocking::run(dir.partition_epoch(&found.path, partition))? else { continue };
            partitions.entry(partition).or_insert_with(|| {
                let record = PartitionRecord {
                    replicas: vec![broker_id],
                    leader: broker_id,
                    epoch,
                    made: Some(epoch),
                    start: Position::ZERO,
                };
                Versioned { record, revision: 0 }
            });
        }
    }
    Ok(view)
}

/// What the file says; nothing, if there is none that can be read.
pub(super) fn read(data: &Path, cluster_id: &str, keys: &Keys) -> View {
    let Ok(bytes) = fs::read(data.join(FILE)) else { return View::default() };
    match serde_json::from_slice::<Remembered>(&bytes) {
        Ok(remembered) if remembered.cluster_id == cluster_id => {
            let records = remembered.records.into_iter().map(|(key, value)| (key, value.to_string().into_bytes()));
            let mut view = View::of_records(keys, records);
            // Nobody knows who runs now.
            view.alive.clear();
            view
        }
        Ok(_) => View::default(),
        Err(error) => {
            tracing::warn!(%error, "{FILE} is not readable and left out");
            View::default()
        }
    }
}

/// A crash leaves the old file, the new one, or none that can be read, which is as good.
fn write(data: &Path, remembered: &Remembered) -> io::Result<()> {
    let (path, new) = (data.join(FILE), data.join(format!("{FILE}.new")));
    let mut file = fs::File::create(&new)?;
    file.write_all(&serde_json::to_vec(remembered)?)?;
    file.sync_all()?;
    fs::rename(new, path)
}

/// Notes on disk what was seen of the registry, when it has changed.
pub(super) async fn remember<S: Store>(control: Rc<Control<S>>) {
    let mut written = 0;
    // Said once, and again when the reason is another one: a full disk may stay full for long.
    let mut told = None;
    loop {
        tokio::time::sleep(REMEMBER_INTERVAL).await;
        let revision = control.view.borrow().revision;
        if revision == written || control.standing.borrow().away.is_some() {
            continue;
        }
        match control.remember_now().await {
            Ok(()) => {
                written = revision;
                if told.take().is_some() {
                    tracing::info!("what was seen of the registry is noted on disk again");
                }
            }
            Err(error) if told.as_ref() == Some(&error) => {}
            Err(error) => {
                tracing::warn!(
                    error,
                    "what was seen of the registry cannot be noted on disk; tried again until it can"
                );
                told = Some(error);
            }
        }
    }
}

impl<S: Store> Control<S> {
    pub(super) async fn remember_now(&self) -> Result<(), String> {
        let seen = self.standing.borrow().clone();
        let kind = self.store.kind();
        self.change_identity(|identity| note_seen(identity, kind, &seen)).await?;
        let remembered = {
            let records = self.view.borrow().records(&self.keys).into_iter();
            let records = records.filter_map(|(key, value)| Some((key, serde_json::from_slice(&value).ok()?)));
            Remembered { cluster_id: self.cluster_id.clone(), records: records.collect() }
        };
        let data = self.config.data.clone();
        blocking(move || write(&data, &remembered)).await.map_err(|error| format!("{FILE}: {error}"))
    }

    /// Changes the identity on disk, then here.
    pub(super) async fn change_identity(&self, change: impl FnOnce(&mut Identity)) -> Result<(), String> {
        let mut identity = self.identity.lock().await;
        let mut changed = identity.clone();
        change(&mut changed);
        if changed != *identity {
            let (data, to_write) = (self.config.data.clone(), changed.clone());
            let written = blocking(move || blocking::run(DataDir::new(BlockingDisk, data).set_identity(&to_write)));
            written.await.map_err(|error| error.to_string())?;
            *identity = changed;
        }
        Ok(())
    }
}

fn note_seen(identity: &mut Identity, kind: &str, standing: &super::Standing) {
    if let Some(seen) = standing.seen {
        kind.clone_into(&mut identity.registry_kind);
        (identity.registry_store, identity.registry_revision) = (seen.store_id, seen.revision);
        identity.registry_incarnation = standing.incarnation;
    }
}

const _: () = assert!(REMEMBER_INTERVAL.as_millis() >= Duration::from_secs(1).as_millis(), "two flushes each time");
