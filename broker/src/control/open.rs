//! From settings to a registry: checks of this machine, the lock on the data directory, then the store that the settings
//! name. An embedded one that cannot be opened does not keep what lies on disk from being served.

use std::net::SocketAddr;
use std::path::Path;

use super::disk;
use super::means::{MadeDirs, connections_max};
use super::start::{StartError, Starting, check, shard_count};
use crate::config::Config;
use crate::io::checks;
use crate::registry::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::registry::etcd::{EtcdOptions, EtcdStore, EtcdTls, EtcdUser};
use crate::registry::keys::Keys;
use crate::registry::nowhere::Nowhere;
use crate::registry::store::{Store, StoreError};
use crate::shard::boot;
use crate::telemetry::logs::LogLevel;

/// Runs a broker until it is told to stop by SIGTERM or SIGINT.
pub fn run(mut config: Config, level: LogLevel) -> Result<(), StartError> {
    check(checks::check_io_uring())?;
    check(checks::check_memlock(shard_count(config.shards)))?;
    config.connections_max = connections_max(&config);
    let listen = check(config.listen.resolve().map_err(|reason| format!("listen: {reason}")))?;
    boot::check_port(listen)?;
    warn_if_open("listen", listen);
    let http = check(bind_http(&config))?;
    let made = MadeDirs::beyond(&config.data);
    check(checks::check_data_dir(&config.data))?;
    let lock = check(disk::lock(&config.data))?;
    made.keep();
    if checks::is_in_memory(&config.data) {
        tracing::warn!(data = %config.data.display(), "the data directory lies in memory: the machine forgets it when it stops; put it on a disk");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = check(runtime.map_err(|error| format!("the control thread's runtime cannot be made: {error}")))?;
    let local = tokio::task::LocalSet::new();
    let outcome = local.block_on(&runtime, start_and_run(Places { config, listen, http, level }));
    drop(lock);
    // What still runs on helper threads must not hold the process.
    runtime.shutdown_background();
    outcome
}

fn warn_if_open(name: &str, address: SocketAddr) {
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "{name} is reachable from other machines, and there is no login yet: whoever reaches it may read, write and delete");
    }
}

fn bind_http(config: &Config) -> Result<Option<std::net::TcpListener>, String> {
    let Some(address) = &config.http.0 else { return Ok(None) };
    let address = address.resolve().map_err(|reason| format!("http: {reason}"))?;
    warn_if_open("http", address);
    let listener = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    let remedy = |error: &std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "is another broker running there? --http chooses another port, --http off none"
        }
        _ => "--http chooses another address, --http off none",
    };
    listener
        .map(Some)
        .map_err(|error| format!("cannot serve the control page on {address}: {error}; {}", remedy(&error)))
}

/// What is decided before the registry is opened.
struct Places {
    config: Config,
    listen: SocketAddr,
    http: Option<std::net::TcpListener>,
    level: LogLevel,
}

impl Places {
    fn with<S: Store>(self, store: S) -> Starting<S> {
        let Self { config, listen, http, level } = self;
        Starting { config, store, listen, http, level }
    }
}

async fn start_and_run(places: Places) -> Result<(), StartError> {
    let config = &places.config;
    if let Some(options) = check(etcd_options(config))? {
        let store = EtcdStore::new(options)?;
        return places.with(store).start().await;
    }
    let path = config.data.join("registry.redb");
    let is_new = !path.exists();
    let store = match EmbeddedStore::open(&path, EmbeddedOptions::default()) {
        Ok(store) => store,
        Err(error) => return start_without(places, error).await,
    };
    if is_new {
        // Its name must be there after a power cut, like what it holds.
        check(sync_dir(&config.data))?;
    }
    let outcome = places.with(store.clone()).start().await;
    store.close();
    outcome
}

/// What is on disk is served; topics and groups stay as they are until the registry is mended and the broker restarted.
async fn start_without(places: Places, error: StoreError) -> Result<(), StartError> {
    let reason = format!(
        "{error}; put registry.redb back from a backup, or move it away and make it anew: corelane registry restore-from"
    );
    tracing::error!(
        reason,
        "the embedded registry cannot be opened; what is on disk is served, topics cannot be changed"
    );
    let started = places.with(Nowhere::new(reason)).start().await;
    // A directory that no broker has used yet has nothing to serve: then the first cause is the one to tell.
    match started {
        Err(StartError::Identity(found)) if found.is_retryable() => Err(error.into()),
        started => started,
    }
}

/// How etcd is reached, if the settings name one; its password is read here, and at each connection. The error is one line.
pub(super) fn etcd_options(config: &Config) -> Result<Option<EtcdOptions>, String> {
    let Some(endpoints) = &config.etcd.0 else { return Ok(None) };
    let mut options = EtcdOptions::new(endpoints.0.clone(), Keys::new(&config.cluster).all());
    if let (Some(user), Some(path)) = (&config.etcd_user.0, &config.etcd_password_file.0) {
        let user = EtcdUser::new(user, path);
        let failed = |error| format!("etcd_password_file: {} cannot be read: {error}", path.display());
        options.user = Some(user.map_err(failed)?);
    }
    if let Some(ca_file) = &config.etcd_ca.0 {
        options.tls = Some(EtcdTls {
            ca_file: ca_file.clone(),
            client: config.etcd_cert.0.clone().zip(config.etcd_key.0.clone()),
            server_name: config.etcd_server_name.0.clone(),
        });
    }
    Ok(Some(options))
}

fn sync_dir(dir: &Path) -> Result<(), String> {
    let synced = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| format!("flushing {} failed: {error}", dir.display()))
}
