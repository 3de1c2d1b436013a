//! From a configuration to a broker that serves: each step in the order that keeps data safe, each failure one line with
//! cause and remedy.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use corelane_log::blocking::{self, BlockingDisk};
use corelane_log::checkpoint::{self, CheckpointEntry, Floors};
use corelane_log::data_dir::{DataDir, DataDirError, FORMAT_VERSION, Identity};
use corelane_log::env::BLOCK_BYTES;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::groups::{GroupOptions, Groups};
use super::means::notify_manager;
use super::member::Member;
use super::run::{Running, Signals};
use super::standing::Standing;
use super::{Control, remembered, topic_config};
use crate::config::{AutoCount, Config, HostPort};
use crate::limits::{CONTROL_QUEUE_MAX, SEND_MAX_S, SHARDS_MAX};
use crate::messages::{Metadata, ToShard};
use crate::registry::keys::Keys;
use crate::registry::membership::{Holds, IdentityError, Membership, check_kind, choose_cluster};
use crate::registry::placement::shard_of;
use crate::registry::records::{BrokerRecord, ListenerRecord};
use crate::registry::store::{Seen, Store, StoreError};
use crate::registry::topics::Topics;
use crate::registry::view::{Follower, View};
use crate::shard::boot::{self, BootError, BootOptions, Shards};
use crate::telemetry::logs::LogLevel;

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

pub(super) fn check<T>(outcome: Result<T, String>) -> Result<T, StartError> {
    outcome.map_err(StartError::Check)
}

pub(super) struct Starting<S> {
    pub(super) config: Config,
    pub(super) store: S,
    pub(super) listen: SocketAddr,
    pub(super) http: Option<std::net::TcpListener>,
    pub(super) level: LogLevel,
}

impl<S: Store> Starting<S> {
    pub(super) async fn start(self) -> Result<(), StartError> {
        let Self { config, store, listen, http, level } = self;
        let dir = DataDir::new(BlockingDisk, &config.data);
        let keys = Keys::new(&config.cluster);
        let membership = Membership::new(store.clone(), keys.clone(), config.broker_id);
        let starts_before = blocking::run(dir.identity())?.map_or(0, |identity| identity.starts);
        let Established { identity, kind_before, before, away } =
            establish_identity(&config, &dir, &membership).await?;
        let floors = blocking::run(checkpoint::read_all(&BlockingDisk, &config.data));
        let floors = check(floors.map_err(|error| format!("listing {} failed: {error}", config.data.display())))?;
        for path in &floors.unreadable {
            tracing::warn!(path = %path.display(), "a checkpoint is not readable; this start reads more of the log");
        }
        if starts_before > 0 && floors.is_empty() && blocking::run(dir.topics()).is_ok_and(|topics| !topics.is_empty())
        {
            tracing::warn!(
                "no checkpoint is there, though this directory was started before: unless the last life ended in its first \
                 second, somebody removed it; damage at the ends of logs may now look like their ends"
            );
        } else if starts_before > 0 && !floors.was_clean(starts_before) {
            tracing::info!("the last life did not end in order: logs are checked from the last checkpoint on");
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
            connections_per_address_max: config.connections_per_address_max as usize,
            peer_timeout: config.peer_timeout.0,
            send_max_s: SEND_MAX_S,
            idle_max_s: config.idle_timeout.0.as_secs() as u32,
            stall_warning: Some(config.stall_warning.0).filter(|limit| !limit.is_zero()),
            control: control_sender,
        })?;
        let instance = format!("{:032x}", fastrand::u128(..));
        let incarnation = identity.registry_incarnation;
        let standing = Standing { away, incarnation, seen: before, kind_before, ..Standing::default() };
        let record = record(&config, &identity, &instance, &shards);
        let member = Rc::new(Member::new(membership, record, config.broker_lease.0));
        let control = Rc::new(Control {
            defaults: topic_config::default_config(&config),
            broker_id: config.broker_id,
            cluster_id: identity.cluster_id.clone(),
            topics: Topics::new(store.clone(), keys.clone(), instance),
            groups: Groups::new(store.clone(), keys.clone(), identity.cluster_id.clone(), GroupOptions::default()),
            store,
            keys,
            shards: shards.senders.clone(),
            was_clean: floors.was_clean(starts_before),
            floors,
            window_max_ever: identity.window_max_ever,
            believed: Cell::default(),
            counted: Cell::default(),
            directories: RefCell::default(),
            view: RefCell::default(),
            hosted: RefCell::default(),
            metadata: watch::Sender::new(Arc::new(Metadata::default())),
            refused: tokio::sync::Notify::new(),
            standing: standing.into(),
            identity: identity.into(),
            changing: tokio::sync::Mutex::new(()),
            since: Instant::now(),
            config,
        });
        let follower = match first_view(&control, &member).await {
            Ok(follower) => follower,
            Err(error) => return Err(abort(shards, error).await),
        };
        control.find_directories(&dir);
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
        Running { control, follower, calls, http, shards, member, signals, level }.run().await
    }
}

/// Joins the cluster and reads what the registry knows; where it is away, recalls what is known without it. Fails where
/// this broker has no place in the cluster.
async fn first_view<S: Store>(control: &Control<S>, member: &Member<S>) -> Result<Option<Follower<S>>, StartError> {
    if control.standing.borrow().away.is_none() {
        let was_used = control.identity.lock().await.registry_store != 0;
        match join_and_list(control, member).await {
            Ok(follower) => {
                control.view.borrow_mut().clone_from(follower.view());
                control.believed.set(control.standing.borrow().incarnation);
                return Ok(Some(follower));
            }
            Err(StartError::Identity(error)) if error.is_retryable() || (was_used && error.is_refusal()) => {
                control.set_away(why_without(&error));
            }
            Err(error) => return Err(error),
        }
    }
    let (data, cluster_id) = (&control.config.data, &control.cluster_id);
    let mut view: View = remembered::recall(data, cluster_id, &control.keys, control.broker_id)?;
    // Where this broker is now, which may not be where it was when the registry was seen last.
    view.brokers.insert(control.broker_id, member.record.clone());
    tracing::warn!(topics = view.topics.len(), "starting without the registry, from what the data directory knows");
    *control.view.borrow_mut() = view;
    Ok(None)
}

async fn join_and_list<S: Store>(control: &Control<S>, member: &Member<S>) -> Result<Follower<S>, StartError> {
    control.note_store(&member.membership).await?;
    let life = control.config.broker_lease.0;
    let deadline = Instant::now() + 2 * life;
    loop {
        match member.join(Holds::default()).await {
            Ok(true) => break,
            Ok(false) if Instant::now() > deadline => {
                let broker_id = control.broker_id;
                return Err(StartError::Check(format!(
                    "another broker {broker_id} runs; stop it, or change --broker-id"
                )));
            }
            Ok(false) => tokio::time::sleep(life / 10).await,
            // It can be read and not written: what it knows still counts, and the rest is tried again.
            Err(IdentityError::Store(error @ StoreError::NoSpace)) => {
                tracing::error!(%error, "this broker could not register; it serves all the same");
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Follower::start(&control.store, &control.keys).await.map_err(IdentityError::from)?)
}

/// Who this broker is, and what it knows of the registry.
struct Established {
    identity: Identity,
    /// The kind of store that the directory was used with last; empty: none, or not known.
    kind_before: String,
    /// The store that the directory saw last.
    before: Option<Seen>,
    /// Why the registry could not be asked.
    away: Option<String>,
}

/// Checks that directory, registry and configuration mean the same broker of the same cluster, and raises the directory's
/// counter of starts. Whatever holds data is refused rather than guessed about; nothing is changed before all is checked.
/// Where the registry cannot be asked, a directory that a broker has used before is believed; it is checked later.
async fn establish_identity<S: Store>(
    config: &Config,
    dir: &DataDir<BlockingDisk>,
    membership: &Membership<S>,
) -> Result<Established, StartError> {
    let known = blocking::run(dir.identity())?;
    check_kind(known.as_ref(), membership.store_kind())?;
    // Also those of the cluster that lie elsewhere only: an empty registry would be a loss to them.
    let remembered =
        |known: &Identity| remembered::read(&config.data, &known.cluster_id, &Keys::new(&config.cluster)).topics.len();
    let topics = blocking::run(dir.topics())?.len().max(known.as_ref().map_or(0, remembered));
    let starts = known.as_ref().map_or(0, |known| known.starts);
    let uuid = known.as_ref().map_or_else(|| format!("{:032x}", fastrand::u128(..)), |known| known.uuid.clone());
    let registered = known.as_ref().map_or(0, |known| known.registered.unwrap_or(known.starts));
    let asked = async {
        let in_registry = membership.cluster_id().await?;
        let new_id = format!("{:032x}", fastrand::u128(..));
        let chosen = choose_cluster(known.as_ref(), topics, in_registry.as_deref(), config.broker_id, &new_id)?;
        membership.check_directory(&uuid, registered).await?;
        if in_registry.is_some() { Ok(chosen) } else { membership.make_cluster(&chosen).await }
    };
    let (cluster_id, away) = match (asked.await, &known) {
        (Ok(cluster_id), _) => (cluster_id, None),
        (Err(error), Some(known)) if error.is_retryable() || error.is_refusal() => {
            choose_cluster(Some(known), topics, Some(&known.cluster_id), config.broker_id, "")?;
            (known.cluster_id.clone(), Some(why_without(&error)))
        }
        (Err(error), _) => return Err(error.into()),
    };
    let kind_before = known.as_ref().map_or_else(String::new, |known| known.registry_kind.clone());
    let window = config.unflushed_bytes_max.0.next_multiple_of(BLOCK_BYTES as u64);
    let before = known.as_ref().filter(|known| known.registry_store != 0);
    let before = before.map(|known| Seen { store_id: known.registry_store, revision: known.registry_revision });
    let identity = Identity {
        format_version: FORMAT_VERSION,
        cluster_id,
        broker_id: config.broker_id,
        uuid,
        // The directory first: a crash in between leaves it ahead of the registry, which is well; behind would be refused.
        starts: starts + 1,
        registered: Some(if away.is_none() { starts + 1 } else { registered }),
        registry_kind: if away.is_none() { membership.store_kind().to_owned() } else { kind_before.clone() },
        registry_store: known.as_ref().map_or(0, |known| known.registry_store),
        registry_incarnation: known.as_ref().map_or(0, |known| known.registry_incarnation),
        registry_revision: known.as_ref().map_or(0, |known| known.registry_revision),
        // Recorded before anything is written with it.
        window_max_ever: known.as_ref().map_or(0, |known| known.window_max_ever).max(window),
    };
    blocking::run(dir.set_identity(&identity))?;
    Ok(Established { identity, kind_before, before, away })
}

/// Why a directory that was used before is served without the registry. One that refuses this broker, its password having
/// been changed maybe, is no more a reason to serve nothing than one that is away; but somebody has to act.
fn why_without(error: &IdentityError) -> String {
    if error.is_refusal() {
        tracing::error!(
            %error,
            "the registry does not let this broker in: what is on disk is served, topics and groups stay as they are; look at \
             etcd_user, etcd_password_file and what etcd allows that user"
        );
    }
    error.to_string()
}

/// This start, as the registry is to know it.
fn record(config: &Config, identity: &Identity, instance: &str, shards: &Shards) -> BrokerRecord {
    let told = advertised(config, shards.address);
    BrokerRecord {
        uuid: identity.uuid.clone(),
        starts: identity.starts,
        instance: instance.to_owned(),
        listeners: vec![ListenerRecord {
            name: "default".to_owned(),
            security: "plain".to_owned(),
            host: told.host,
            port: told.port,
        }],
        shards: shards.senders.len() as u32,
        version: VERSION.to_owned(),
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

fn say_ready<S: Store>(control: &Control<S>, listen: SocketAddr, http: Option<&TcpListener>) {
    let http = http.and_then(|http| http.local_addr().ok()).map_or_else(|| "off".to_owned(), |http| http.to_string());
    let (shards, data) = (control.shards.len(), control.config.data.display());
    tracing::info!(%listen, %http, shards, %data, version = VERSION, "ready");
    use std::io::Write as _;
    // Whoever started the broker may not listen.
    let _ =
        writeln!(std::io::stdout(), "corelane-broker ready listen={listen} http={http} shards={shards} data={data}");
    let _ = std::io::stdout().flush();
    let status = format!("serves clients on {listen}, its page on {http}");
    notify_manager(&[NotifyState::Ready, NotifyState::Status(&status)]);
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
pub(super) fn shard_count(setting: AutoCount) -> usize {
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
