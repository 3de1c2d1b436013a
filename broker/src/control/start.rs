//! From a configuration to a broker that serves: each step in the order that keeps data safe, each failure one line with
//! cause and remedy.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use corelane_log::blocking::{self, BlockingDisk};
use corelane_log::checkpoint::{self, CheckpointEntry, Floors};
use corelane_log::data_dir::{DataDir, DataDirError, FORMAT_VERSION, Identity};
use corelane_log::env::BLOCK_BYTES;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::disk::{self, DirLock};
use super::run::{Running, Signals};
use super::{Control, topic_config};
use crate::config::{AutoCount, Config, HostPort};
use crate::io::checks;
use crate::limits::{BROKER_LEASE_LIFE, CONTROL_QUEUE_MAX, SHARDS_MAX};
use crate::messages::{Metadata, ToShard};
use crate::registry::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::registry::keys::Keys;
use crate::registry::membership::{IdentityError, Membership, choose_cluster};
use crate::registry::placement::shard_of;
use crate::registry::records::{AliveRecord, BrokerRecord, ListenerRecord};
use crate::registry::store::{LeaseId, Store, StoreError};
use crate::registry::topics::Topics;
use crate::registry::view::Follower;
use crate::shard::boot::{self, BootError, BootOptions, Shards};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why the broker did not start, or had to stop: one line with cause and remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A check of this machine failed.
    #[error("{0}")]
    Check(String),
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The data directory is not this broker's, or the registry not this directory's.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The registry.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The shards.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// A shard ended while the broker ran.
    #[error("a shard has ended by itself: its log lines say why; start the broker again")]
    ShardEnded,
    /// The stop was not orderly.
    #[error("not everything was flushed before the stop; the next start recovers")]
    UncleanStop,
}

fn check<T>(outcome: Result<T, String>) -> Result<T, StartError> {
    outcome.map_err(StartError::Check)
}

/// Runs a broker until it is told to stop by SIGTERM or SIGINT.
pub fn run(config: Config) -> Result<(), StartError> {
    check(checks::check_io_uring())?;
    check(checks::check_memlock())?;
    check(checks::check_data_dir(&config.data))?;
    if let Err(warning) = checks::raise_descriptor_limit() {
        tracing::warn!("{warning}");
    }
    let lock = check(disk::lock(&config.data))?;
    let listen = check(config.listen.resolve().map_err(|reason| format!("listen: {reason}")))?;
    warn_if_open("listen", listen);
    let http = check(bind_http(&config))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = check(runtime.map_err(|error| format!("the control thread's runtime cannot be made: {error}")))?;
    let local = tokio::task::LocalSet::new();
    let outcome = local.block_on(&runtime, start_and_run(config, lock, listen, http));
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
    let remedy = "is another broker running there? --http chooses another port, --http off none";
    listener.map(Some).map_err(|error| format!("cannot serve the control page on {address}: {error}; {remedy}"))
}

async fn start_and_run(
    config: Config,
    lock: DirLock,
    listen: SocketAddr,
    http: Option<std::net::TcpListener>,
) -> Result<(), StartError> {
    let path = config.data.join("registry.redb");
    let is_new = !path.exists();
    let store = EmbeddedStore::open(&path, EmbeddedOptions::default())?;
    if is_new {
        // Its name must be there after a power cut, like what it holds.
        check(sync_dir(&config.data))?;
    }
    let outcome = Starting { config, store: store.clone(), listen, http }.start().await;
    store.close();
    drop(lock);
    outcome
}

fn sync_dir(dir: &Path) -> Result<(), String> {
    let synced = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| format!("flushing {} failed: {error}", dir.display()))
}

struct Starting<S> {
    config: Config,
    store: S,
    listen: SocketAddr,
    http: Option<std::net::TcpListener>,
}

impl<S: Store> Starting<S> {
    async fn start(self) -> Result<(), StartError> {
        let Self { config, store, listen, http } = self;
        let dir = DataDir::new(BlockingDisk, &config.data);
        let keys = Keys::new(&config.cluster);
        let membership = Membership::new(store.clone(), keys.clone(), config.broker_id);
        let starts_before = blocking::run(dir.identity())?.map_or(0, |identity| identity.starts);
        let identity = establish_identity(&config, &dir, &membership).await?;
        let floors = blocking::run(checkpoint::read_all(&BlockingDisk, &config.data));
        let floors = check(floors.map_err(|error| format!("listing {} failed: {error}", config.data.display())))?;
        for path in &floors.unreadable {
            tracing::warn!(path = %path.display(), "a checkpoint is not readable; this start reads more of the log");
        }
        let (control_sender, calls) = async_channel::bounded(CONTROL_QUEUE_MAX);
        let shard_count = shard_count(config.shards);
        let shards = boot::start(&BootOptions {
            shards: shard_count,
            cores: if config.pin_shards { cores(shard_count) } else { Vec::new() },
            listen,
            data_dir: config.data.clone(),
            cluster_id: identity.cluster_id.clone(),
            broker_id: config.broker_id,
            version: VERSION,
            starts: identity.starts,
            floors: floors_by_shard(&floors, shard_count),
            arena_bytes: config.arena_bytes.0 as usize,
            connections_max: config.connections_max as usize,
            control: control_sender,
        })?;
        let instance = format!("{:032x}", fastrand::u128(..));
        let joined = join(&config, &membership, &identity, &instance, &shards).await;
        let lease = match joined {
            Ok(lease) => lease,
            Err(error) => return Err(abort(shards, error).await),
        };
        let follower = match Follower::start(&store, &keys).await {
            Ok(follower) => follower,
            Err(error) => return Err(abort(shards, error.into()).await),
        };
        let control = Rc::new(Control {
            defaults: topic_config::default_config(&config),
            broker_id: config.broker_id,
            cluster_id: identity.cluster_id.clone(),
            topics: Topics::new(store.clone(), keys.clone(), instance.clone()),
            store,
            keys,
            shards: shards.senders.clone(),
            was_clean: floors.was_clean(starts_before),
            floors,
            window_max_ever: identity.window_max_ever,
            view: follower.view().clone().into(),
            hosted: RefCell::default(),
            metadata: watch::Sender::new(Arc::new(Metadata::default())),
            changing: tokio::sync::Mutex::new(()),
            since: Instant::now(),
            config,
        });
        name_strangers(&control, &dir);
        control.remove_deleted();
        control.reconcile().await;
        let http = match http.map(TcpListener::from_std).transpose() {
            Ok(http) => http,
            Err(error) => return Err(abort(shards, StartError::Check(format!("http: {error}"))).await),
        };
        let signals = match Signals::listen() {
            Ok(signals) => signals,
            Err(error) => return Err(abort(shards, error).await),
        };
        for shard in &control.shards {
            let _ = shard.send(ToShard::Serve).await;
        }
        say_ready(&control, shards.address, http.as_ref());
        let alive = Alive { lease, instance, uuid: identity.uuid.clone() };
        Running { control, follower, calls, http, shards, membership, alive, identity, signals }.run().await
    }
}

/// What keeps this broker's place among those that run.
pub(super) struct Alive {
    pub(super) lease: LeaseId,
    pub(super) instance: String,
    pub(super) uuid: String,
}

impl Alive {
    pub(super) fn record(&self, partitions: u32) -> AliveRecord {
        alive_record(&self.instance, &self.uuid, partitions)
    }
}

fn alive_record(instance: &str, uuid: &str, partitions: u32) -> AliveRecord {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    AliveRecord {
        instance: instance.to_owned(),
        uuid: uuid.to_owned(),
        started_ms: started.as_millis() as i64,
        partitions,
    }
}

/// Checks that directory, registry and configuration mean the same broker of the same cluster, and raises the directory's
/// counter of starts. Whatever holds data is refused rather than guessed about; nothing is changed before all is checked.
async fn establish_identity<S: Store>(
    config: &Config,
    dir: &DataDir<BlockingDisk>,
    membership: &Membership<S>,
) -> Result<Identity, StartError> {
    let known = blocking::run(dir.identity())?;
    let topics = blocking::run(dir.topics())?.len();
    let in_registry = membership.cluster_id().await?;
    let new_id = format!("{:032x}", fastrand::u128(..));
    let chosen = choose_cluster(known.as_ref(), topics, in_registry.as_deref(), config.broker_id, &new_id)?;
    let uuid = known.as_ref().map_or_else(|| format!("{:032x}", fastrand::u128(..)), |known| known.uuid.clone());
    let starts = known.as_ref().map_or(0, |known| known.starts);
    membership.check_directory(&uuid, starts).await?;
    let cluster_id = if in_registry.is_some() { chosen } else { membership.make_cluster(&chosen).await? };
    let window = config.unflushed_bytes_max.0.next_multiple_of(BLOCK_BYTES as u64);
    let identity = Identity {
        format_version: FORMAT_VERSION,
        cluster_id,
        broker_id: config.broker_id,
        uuid,
        // The directory first: a crash in between leaves it ahead of the registry, which is well; behind would be refused.
        starts: starts + 1,
        registry_revision: known.as_ref().map_or(0, |known| known.registry_revision),
        // Recorded before anything is written with it.
        window_max_ever: known.as_ref().map_or(0, |known| known.window_max_ever).max(window),
    };
    blocking::run(dir.set_identity(&identity))?;
    Ok(identity)
}

async fn join<S: Store>(
    config: &Config,
    membership: &Membership<S>,
    identity: &Identity,
    instance: &str,
    shards: &Shards,
) -> Result<LeaseId, StartError> {
    let told = advertised(config, shards.address);
    let record = BrokerRecord {
        uuid: identity.uuid.clone(),
        starts: identity.starts,
        listeners: vec![ListenerRecord {
            name: "default".to_owned(),
            security: "plain".to_owned(),
            host: told.host,
            port: told.port,
        }],
        shards: shards.senders.len() as u32,
        version: VERSION.to_owned(),
    };
    membership.register(&record).await?;
    let deadline = Instant::now() + 2 * BROKER_LEASE_LIFE;
    loop {
        let alive = alive_record(instance, &identity.uuid, 0);
        if let Some(lease) = membership.announce(&alive, BROKER_LEASE_LIFE).await? {
            return Ok(lease);
        }
        if Instant::now() > deadline {
            let broker_id = config.broker_id;
            return Err(StartError::Check(format!("another broker {broker_id} runs; stop it, or change --broker-id")));
        }
        tokio::time::sleep(BROKER_LEASE_LIFE / 10).await;
    }
}

/// The address that clients are told.
fn advertised(config: &Config, listen: SocketAddr) -> HostPort {
    if let Some(advertise) = &config.advertise.0 {
        return advertise.clone();
    }
    let told = HostPort::from(listen);
    if !listen.ip().is_unspecified() {
        return told;
    }
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    tracing::warn!(
        host = name,
        "clients are told this machine's name to connect to; set advertise if they reach it by another"
    );
    HostPort { host: name, ..told }
}

async fn abort(shards: Shards, error: StartError) -> StartError {
    for shard in &shards.senders {
        let (answer, _) = tokio::sync::oneshot::channel();
        let _ = shard.send(ToShard::Stop { answer }).await;
    }
    // The first cause is the one to tell.
    let _ = tokio::task::spawn_blocking(move || shards.join()).await;
    error
}

/// Directories that look like topics' and are none that the registry knows: kept, not served, named.
fn name_strangers<S: Store>(control: &Control<S>, dir: &DataDir<BlockingDisk>) {
    let found = match blocking::run(dir.topics()) {
        Ok(found) => found,
        Err(error) => return tracing::error!(%error, "the topics' directories could not be listed"),
    };
    let view = control.view.borrow();
    for topic in found {
        let path = topic.path.display();
        match topic.identity {
            Err(error) => tracing::error!(%path, %error, "a directory is set aside: kept, not served"),
            Ok(identity) => {
                let is_known =
                    view.name_of(identity.topic_id).is_some() || view.deleted.contains_key(&identity.topic_id);
                if !is_known {
                    let (name, topic_id) = (&identity.name, identity.topic_id);
                    tracing::error!(%path, %name, %topic_id, "the registry does not know this topic: its directory is set aside, kept, not served");
                }
            }
        }
    }
}

fn say_ready<S: Store>(control: &Control<S>, listen: SocketAddr, http: Option<&TcpListener>) {
    let http = http.and_then(|http| http.local_addr().ok()).map_or_else(|| "off".to_owned(), |http| http.to_string());
    let (shards, data) = (control.shards.len(), control.config.data.display());
    tracing::info!(%listen, %http, shards, %data, version = VERSION, "ready");
    use std::io::Write as _;
    // Whoever started the broker may not listen.
    let _ =
        writeln!(std::io::stdout(), "corelane-broker ready listen={listen} http={http} shards={shards} data={data}");
    let _ = std::io::stdout().flush();
}

/// What each shard is to carry on of the last life's checkpoints.
fn floors_by_shard(floors: &Floors, shards: usize) -> Vec<Vec<CheckpointEntry>> {
    let mut by_shard = vec![Vec::new(); shards];
    for entry in floors.entries() {
        by_shard[shard_of(entry.topic_id, entry.partition, shards as u32) as usize].push(*entry);
    }
    by_shard
}

/// The shards to run: by default the cores that this process may use, by affinity and cgroup quota.
fn shard_count(setting: AutoCount) -> usize {
    match setting {
        AutoCount::Fixed(count) => count as usize,
        AutoCount::Auto => std::thread::available_parallelism().map_or(1, usize::from).min(SHARDS_MAX),
    }
}

/// A core for each shard, of those that this process may use; empty when there are fewer: then the system places them.
fn cores(shards: usize) -> Vec<usize> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let cores: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    if cores.len() < shards { Vec::new() } else { cores[..shards].to_vec() }
}
