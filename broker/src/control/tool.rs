//! The registry's tools: export, import, and making a lost registry's records anew. They run instead of a broker, on the
//! registry that its settings name; an embedded one must be in nobody's use.

use corelane_log::blocking::{self, BlockingDisk};
use corelane_log::data_dir::{DataDir, DataDirError};

use super::disk;
use super::open::etcd_options;
use crate::config::Config;
use crate::registry::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::registry::etcd::EtcdStore;
use crate::registry::keys::Keys;
use crate::registry::store::{Store, StoreError};
use crate::registry::transfer::{self, Export, FoundPartitions, Restored, TransferError};

/// Why a tool did not do it: one line with cause and remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The settings, or this machine.
    #[error("{0}")]
    Check(String),
    /// The transfer itself.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

impl From<StoreError> for ToolError {
    fn from(error: StoreError) -> Self {
        Self::Transfer(error.into())
    }
}

impl From<DataDirError> for ToolError {
    fn from(error: DataDirError) -> Self {
        Self::Transfer(error.into())
    }
}

/// The lasting records of the registry, as text.
pub fn export(config: &Config) -> Result<String, ToolError> {
    struct Task;
    impl Tool for Task {
        type Done = Export;
        async fn run<S: Store>(self, store: &S, keys: &Keys) -> Result<Export, TransferError> {
            transfer::export(store, keys).await
        }
    }
    let path = config.data.join("registry.redb");
    if config.etcd.0.is_none() && !path.exists() {
        return Err(ToolError::Check(format!("{} is not there; --data names the data directory", path.display())));
    }
    Ok(run(config, Task)?.to_text())
}

/// Writes such text's records into the registry. How many they are.
pub fn import(config: &Config, text: &str) -> Result<usize, ToolError> {
    struct Task(Export);
    impl Tool for Task {
        type Done = ();
        async fn run<S: Store>(self, store: &S, keys: &Keys) -> Result<(), TransferError> {
            transfer::import(store, keys, &self.0).await
        }
    }
    let export = Export::from_text(text)?;
    let records = export.len();
    run(config, Task(export))?;
    note_kind(config)?;
    Ok(records)
}

/// Makes the records anew that the data directory of the settings knows of.
pub fn restore(config: &Config) -> Result<Restored, ToolError> {
    struct Task<'t>(&'t corelane_log::data_dir::Identity, &'t [FoundPartitions]);
    impl Tool for Task<'_> {
        type Done = Restored;
        async fn run<S: Store>(self, store: &S, keys: &Keys) -> Result<Restored, TransferError> {
            transfer::restore(store, keys, self.0, self.1).await
        }
    }
    // With an embedded registry the lock is taken for that.
    let _lock = if config.etcd.0.is_some() { Some(disk::lock(&config.data).map_err(ToolError::Check)?) } else { None };
    let dir = DataDir::new(BlockingDisk, &config.data);
    let identity = blocking::run(dir.identity())?.ok_or(TransferError::NoIdentity)?;
    let mut found = Vec::new();
    for topic in blocking::run(dir.topics())? {
        let mut epochs = Vec::new();
        for partition in &topic.partitions {
            let epoch = blocking::run(dir.partition_epoch(&topic.path, *partition))?;
            epochs.extend(epoch.map(|epoch| (*partition, epoch)));
        }
        found.push((topic, epochs));
    }
    let restored = run(config, Task(&identity, &found))?;
    note_kind(config)?;
    Ok(restored)
}

/// An embedded registry that was just written is the one to go on with, whatever the directory was used with before.
fn note_kind(config: &Config) -> Result<(), ToolError> {
    let dir = DataDir::new(BlockingDisk, &config.data);
    if config.etcd.0.is_none()
        && let Some(mut identity) = blocking::run(dir.identity())?
    {
        "embedded".clone_into(&mut identity.registry_kind);
        blocking::run(dir.set_identity(&identity))?;
    }
    Ok(())
}

/// What is done with a store, whichever it is.
trait Tool {
    type Done;
    async fn run<S: Store>(self, store: &S, keys: &Keys) -> Result<Self::Done, TransferError>;
}

fn run<T: Tool>(config: &Config, tool: T) -> Result<T::Done, ToolError> {
    let keys = Keys::new(&config.cluster);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| ToolError::Check(format!("no runtime can be made: {error}")))?;
    if let Some(options) = etcd_options(config).map_err(ToolError::Check)? {
        return Ok(runtime.block_on(async { tool.run(&EtcdStore::new(options)?, &keys).await })?);
    }
    let _lock = disk::lock(&config.data).map_err(ToolError::Check)?;
    let store = EmbeddedStore::open(&config.data.join("registry.redb"), EmbeddedOptions::default())?;
    let done = runtime.block_on(tool.run(&store, &keys));
    store.close();
    Ok(done?)
}
