//! The data directory: its identity, and its topics' directories. What is on disk wins over what is missing in a registry:
//! nothing here is deleted but by [`DataDir::delete_topic`], which the holder of a tombstone calls. The lock on the
//! directory is `lock`'s; what lies inside a partition's directory is the partition's.
//!
//! ```text
//! <data>/identity                                  who this directory is
//! <data>/lock                                      see `lock`
//! <data>/spare                                     room for the identity when the disk is full
//! <data>/checkpoint-<shard>                        see `checkpoint`
//! <data>/<topic name>~<8 hex digits>/identity      which topic this is
//! <data>/<topic name>~<8 hex digits>/<partition>/  a partition's segments
//! <data>/<topic name>~<8 hex digits>.deleted       on its way out
//! ```

use std::io;
use std::path::{Path, PathBuf};

use corelane_proto::ids::{Epoch, TopicId, TopicName};
use serde::{Deserialize, Serialize};

use crate::config::TopicConfig;
use crate::env::Disk;
use crate::error::is_no_space;
use crate::limits;
use crate::names;
use crate::sealed::{self, SealError};

/// The version of everything in a data directory that this code reads and writes.
pub const FORMAT_VERSION: u32 = 1;

const IDENTITY: &str = "identity";
const DELETED: &str = ".deleted";
const SPARE: &str = "spare";
/// Room for an identity, and for what a file system takes beside a file.
const SPARE_BYTES: usize = 16 << 10;

/// Who a data directory is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// [`FORMAT_VERSION`] of what wrote it.
    pub format_version: u32,
    /// The cluster that it belongs to.
    pub cluster_id: String,
    /// The broker's number in the cluster.
    pub broker_id: u32,
    /// Random, made with the directory: which of two directories with one broker id is meant.
    pub uuid: String,
    /// How often a broker was started on it.
    pub starts: u64,
    /// The counter of starts that the registry last knew, or is about to be told. It is behind `starts` while the registry
    /// is away; a registry that knows a higher one was told by another copy of this directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<u64>,
    /// What kind of store the registry was in: `embedded` or `etcd`; empty: not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub registry_kind: String,
    /// Which store the registry was in: etcd's cluster, or the embedded store's file. 0: not known.
    #[serde(default)]
    pub registry_store: u64,
    /// The registry's incarnation that was last seen: it is raised when a store was restored. 0: not known.
    #[serde(default)]
    pub registry_incarnation: u64,
    /// The highest revision of the registry that was seen.
    pub registry_revision: u64,
    /// The largest write window that a partition here was ever written with, in bytes: recovery reckons with it.
    pub window_max_ever: u64,
}

/// Which topic a directory is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicIdentity {
    /// [`FORMAT_VERSION`] of what wrote it.
    pub format_version: u32,
    /// The topic's id, in hexadecimal.
    #[serde(with = "topic_id_hex")]
    pub topic_id: TopicId,
    /// The topic's name.
    #[serde(with = "topic_name")]
    pub name: TopicName,
    /// The topic's partition count as last known.
    pub partitions: u32,
    /// The topic's configuration as last known.
    pub config: TopicConfig,
}

/// A directory in the data directory that looks like a topic's.
#[derive(Debug)]
pub struct FoundTopic {
    /// Where.
    pub path: PathBuf,
    /// Which topic it is, or why that cannot be told: then it is kept, and not served.
    pub identity: Result<TopicIdentity, DataDirError>,
    /// The partitions that have a directory in it, ascending.
    pub partitions: Vec<u32>,
}

/// What is wrong with a data directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// The disk refused.
    #[error("{what} {path} failed: {cause}")]
    Disk {
        /// The operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// An identity file cannot be believed.
    #[error("{path} cannot be believed: {cause}; restore it from a backup, nothing in this directory is touched")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: SealError,
    },
    /// Written by a newer version.
    #[error("{path} is of format {found}; this version reads up to {FORMAT_VERSION}: start a newer version")]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The directory's name and its identity tell different topics.
    #[error(
        "{path} holds the identity of topic {name} ({topic_id}), which belongs into another directory; it is kept and not served"
    )]
    Misplaced {
        /// The directory.
        path: PathBuf,
        /// The topic of the identity.
        name: TopicName,
        /// Its id.
        topic_id: TopicId,
    },
}

impl DataDirError {
    /// Whether the disk has no room for it.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Disk { cause, .. } if is_no_space(cause))
    }
}

/// A data directory.
#[derive(Clone, Debug)]
pub struct DataDir<D: Disk> {
    disk: D,
    path: PathBuf,
}

impl<D: Disk> DataDir<D> {
    /// The data directory at `path`, which must exist.
    pub fn new(disk: D, path: impl Into<PathBuf>) -> Self {
        Self { disk, path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who it is; `None` for a directory that no broker has used.
    pub async fn identity(&self) -> Result<Option<Identity>, DataDirError> {
        let path = self.path.join(IDENTITY);
        let Some(identity) = self.read::<Identity>(&path).await? else { return Ok(None) };
        check_format(&path, identity.format_version)?;
        Ok(Some(identity))
    }

    /// Replaces the identity. A crash leaves the old or the new one. On a full disk the spare file is given up for it: a
    /// broker that cannot be started cannot make room either.
    pub async fn set_identity(&self, identity: &Identity) -> Result<(), DataDirError> {
        let (path, spare) = (self.path.join(IDENTITY), self.path.join(SPARE));
        match self.write(&path, identity).await {
            Err(error) if error.is_no_space() => {
                unless_gone(self.disk.remove_file(&spare).await).map_err(disk_error("removing", &spare))?;
                self.sync(&self.path).await?;
                self.write(&path, identity).await?;
            }
            written => written?,
        }
        let spare_bytes = self.disk.read_small(&spare, SPARE_BYTES).await.map_or(0, |bytes| bytes.len());
        // On a full disk a part is better than nothing: the identity takes one block.
        for bytes in [SPARE_BYTES, SPARE_BYTES / 2, SPARE_BYTES / 4] {
            if spare_bytes >= bytes {
                break;
            }
            match self.disk.replace_small(&spare, vec![0; bytes]).await {
                Ok(()) => break,
                Err(error) if bytes == SPARE_BYTES / 4 => {
                    tracing::warn!(%error, path = %spare.display(), "no room is kept for a start on a full disk");
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Where a topic's directory is, whether it exists or not.
    pub fn topic_path(&self, name: &TopicName, topic_id: TopicId) -> PathBuf {
        self.path.join(format!("{name}~{}", topic_id.short()))
    }

    /// Makes a topic's directory, or brings the identity of an existing one up to date; durable, name and content, when
    /// it returns. After a crash in the middle, call it again.
    pub async fn put_topic(&self, topic: &TopicIdentity) -> Result<PathBuf, DataDirError> {
        let path = self.topic_path(&topic.name, topic.topic_id);
        match self.disk.create_dir(&path).await {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = path.join(IDENTITY);
                if let Some(known) = self.read::<TopicIdentity>(&file).await? {
                    // What a newer version wrote down here must not be lost by an older one's word.
                    check_format(&file, known.format_version)?;
                    check_place(&path, topic.topic_id, &known)?;
                    if known == *topic {
                        // Who made it may have been killed before its flushes: what is seen is not therefore durable.
                        self.sync(&path).await?;
                        self.sync(&self.path).await?;
                        return Ok(path);
                    }
                }
            }
            made => made.map_err(disk_error("making", &path))?,
        }
        self.write(&path.join(IDENTITY), topic).await?;
        self.sync(&self.path).await?;
        Ok(path)
    }

    /// The topics that are there, in the order of their paths. Directories that are on their way out, and what has no
    /// name of ours, are left out; so are those that a creation left with neither an identity nor a partition in them.
    pub async fn topics(&self) -> Result<Vec<FoundTopic>, DataDirError> {
        let mut found = Vec::new();
        for entry in self.disk.list(&self.path).await.map_err(disk_error("listing", &self.path))? {
            if entry.is_dir && !entry.name.ends_with(DELETED) && entry.name.contains('~') {
                found.extend(self.examine(&self.path.join(entry.name)).await?);
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    async fn examine(&self, path: &Path) -> Result<Option<FoundTopic>, DataDirError> {
        let listed = self.disk.list(path).await.map_err(disk_error("listing", path))?;
        let numbers = listed.iter().filter(|entry| entry.is_dir).filter_map(|entry| partition_number(&entry.name));
        let mut partitions: Vec<u32> = numbers.collect();
        partitions.sort_unstable();
        if partitions.is_empty() && !listed.iter().any(|entry| entry.name == IDENTITY) {
            return Ok(None);
        }
        let identity = self.topic_identity(path).await;
        Ok(Some(FoundTopic { path: path.to_owned(), identity, partitions }))
    }

    async fn topic_identity(&self, path: &Path) -> Result<TopicIdentity, DataDirError> {
        let file = path.join(IDENTITY);
        let missing = || DataDirError::Damaged { path: file.clone(), cause: SealError::Unsealed };
        let identity = self.read::<TopicIdentity>(&file).await?.ok_or_else(missing)?;
        check_format(&file, identity.format_version)?;
        if self.topic_path(&identity.name, identity.topic_id) != path {
            let TopicIdentity { name, topic_id, .. } = identity;
            return Err(DataDirError::Misplaced { path: path.to_owned(), name, topic_id });
        }
        Ok(identity)
    }

    /// The epoch of a partition's newest segment in a topic's directory; `None`: no segment is there.
    pub async fn partition_epoch(&self, topic_path: &Path, partition: u32) -> Result<Option<Epoch>, DataDirError> {
        let path = names::partition_dir(topic_path, partition);
        let listed = match self.disk.list(&path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            listed => listed.map_err(disk_error("listing", &path))?,
        };
        let epochs = listed.iter().filter_map(|entry| match names::classify(&entry.name) {
            names::FileKind::Segment(_, epoch) => Some(epoch),
            _ => None,
        });
        Ok(epochs.max())
    }

    /// Takes a topic's directory out of use: it is renamed, durably, and may be removed any time later. Partitions of it
    /// that are still open go on with their open files. A directory that is not there, or has another topic's identity, is left alone.
    pub async fn delete_topic(&self, name: &TopicName, topic_id: TopicId) -> Result<(), DataDirError> {
        let path = self.topic_path(name, topic_id);
        if let Some(known) = self.read::<TopicIdentity>(&path.join(IDENTITY)).await? {
            check_place(&path, topic_id, &known)?;
        }
        let mut renamed = path.clone().into_os_string();
        renamed.push(DELETED);
        match self.disk.rename(&path, Path::new(&renamed)).await {
            // Who renamed it may have been killed before the flush that follows here.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done.map_err(disk_error("renaming", &path))?,
        }
        self.sync(&self.path).await
    }

    /// Removes what [`Self::delete_topic`] has taken out of use, this life or an earlier one. Says how many directories.
    pub async fn remove_deleted(&self) -> Result<usize, DataDirError> {
        let mut removed = 0;
        for entry in self.disk.list(&self.path).await.map_err(disk_error("listing", &self.path))? {
            if entry.is_dir && entry.name.contains('~') && entry.name.ends_with(DELETED) {
                self.remove_tree(self.path.join(entry.name)).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Removes a directory and what is in it. What somebody else removes meanwhile is as good as removed.
    async fn remove_tree(&self, root: PathBuf) -> Result<(), DataDirError> {
        // Deepest last: a directory is removed once what it holds is gone.
        let mut directories = vec![root];
        let mut next = 0;
        while next < directories.len() {
            let directory = directories[next].clone();
            next += 1;
            let listed = unless_gone(self.disk.list(&directory).await).map_err(disk_error("listing", &directory))?;
            for entry in listed.unwrap_or_default() {
                let path = directory.join(entry.name);
                if entry.is_dir {
                    directories.push(path);
                } else {
                    unless_gone(self.disk.remove_file(&path).await).map_err(disk_error("removing", &path))?;
                }
            }
        }
        for directory in directories.iter().rev() {
            unless_gone(self.disk.remove_dir(directory).await).map_err(disk_error("removing", directory))?;
        }
        Ok(())
    }

    async fn read<T: serde::de::DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, DataDirError> {
        match self.disk.read_small(path, limits::SMALL_FILE_BYTES_MAX).await {
            Ok(content) => {
                sealed::open(&content).map(Some).map_err(|cause| DataDirError::Damaged { path: path.to_owned(), cause })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(disk_error("reading", path)(error)),
        }
    }

    async fn write<T: Serialize>(&self, path: &Path, value: &T) -> Result<(), DataDirError> {
        self.disk.replace_small(path, sealed::seal(value)).await.map_err(disk_error("writing", path))
    }

    async fn sync(&self, path: &Path) -> Result<(), DataDirError> {
        self.disk.sync_dir(path).await.map_err(disk_error("flushing", path))
    }
}

/// `None` for what is not there.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

fn disk_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    move |cause| DataDirError::Disk { what, path: path.to_owned(), cause }
}

fn check_format(path: &Path, found: u32) -> Result<(), DataDirError> {
    if found > FORMAT_VERSION {
        return Err(DataDirError::NewerFormat { path: path.to_owned(), found });
    }
    Ok(())
}

/// The name holds 8 digits of the id only; the identity file holds all.
fn check_place(path: &Path, topic_id: TopicId, known: &TopicIdentity) -> Result<(), DataDirError> {
    if known.topic_id != topic_id {
        let TopicIdentity { name, topic_id, .. } = known.clone();
        return Err(DataDirError::Misplaced { path: path.to_owned(), name, topic_id });
    }
    Ok(())
}

/// The number of a partition's directory; another spelling of a number is not ours.
fn partition_number(name: &str) -> Option<u32> {
    name.parse::<u32>().ok().filter(|number| number.to_string() == name)
}

mod topic_id_hex {
    use corelane_proto::ids::TopicId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(id: &TopicId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TopicId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(|error| D::Error::custom(format!("topic_id: {error}")))
    }
}

mod topic_name {
    use corelane_proto::ids::TopicName;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(name: &TopicName, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TopicName, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
