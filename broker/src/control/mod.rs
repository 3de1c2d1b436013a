//! The control thread: it speaks to the registry, tells the shards what to hold and clients' metadata, answers topic calls
//! and the HTTP page. It owns no log data, and nothing here is on the path of a message. One thread, cooperative tasks.

mod brokers;
mod calls;
mod disk;
mod follow;
pub mod groups;
mod host;
mod hosted;
mod means;
mod member;
mod open;
mod remembered;
mod run;
mod standing;
mod start;
pub mod tool;
pub mod topic_config;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use async_channel::Sender;
use corelane_log::checkpoint::Floors;
use corelane_log::config::TopicConfig;
use corelane_log::data_dir::Identity;
use tokio::sync::{oneshot, watch};

pub use open::run;
pub use start::StartError;

use crate::config::Config;
use crate::limits::SHARD_ANSWER_MAX;
use crate::messages::{Answer, Metadata, ShardFigures, ToShard};
use crate::registry::keys::Keys;
use crate::registry::store::Store;
use crate::registry::topics::Topics;
use crate::registry::view::View;
use crate::telemetry::http::Readiness;
use crate::telemetry::metrics::{Snapshot, process_usage, render};
use groups::Groups;
use hosted::Hosted;
use standing::Standing;

/// What the control thread's tasks share. Borrowed for moments only, never across an await.
pub(crate) struct Control<S: Store> {
    config: Config,
    /// What a topic gets that asks for nothing.
    defaults: TopicConfig,
    broker_id: u32,
    cluster_id: String,
    store: S,
    keys: Keys,
    topics: Topics<S>,
    groups: Rc<Groups<S>>,
    shards: Vec<Sender<ToShard>>,
    /// What the checkpoints said at start.
    floors: Floors,
    /// Whether the broker's last life on this directory ended in order.
    was_clean: bool,
    /// The largest write window that the data directory has ever seen, in bytes.
    window_max_ever: u64,
    /// Topics' directories that the start found and that are none of the registry's topics.
    directories_set_aside: Cell<u64>,
    view: RefCell<View>,
    hosted: RefCell<Hosted>,
    metadata: watch::Sender<Arc<Metadata>>,
    /// Rung when the registry did not do what it was asked: time to ask how it is.
    refused: tokio::sync::Notify,
    /// How this broker stands with the registry.
    standing: RefCell<Standing>,
    /// As it is on disk.
    identity: tokio::sync::Mutex<Identity>,
    /// One change of topics at a time, so that two clients' requests do not undo each other's halves.
    changing: tokio::sync::Mutex<()>,
    since: Instant,
}

impl<S: Store> Control<S> {
    /// Asks every shard; those that do not answer in time are left out.
    async fn ask_shards<T>(&self, message: impl Fn(Answer<T>) -> ToShard) -> Vec<T> {
        let asked = self.shards.iter().map(|shard| {
            let (answer, answered) = oneshot::channel();
            let message = message(answer);
            async move {
                shard.send(message).await.ok()?;
                answered.await.ok()
            }
        });
        let asked = asked.map(|asked| tokio::time::timeout(SHARD_ANSWER_MAX, asked));
        futures_util::future::join_all(asked).await.into_iter().filter_map(|answer| answer.ok().flatten()).collect()
    }

    /// The metrics page.
    async fn metrics(&self) -> String {
        let shards: Vec<ShardFigures> = self.ask_shards(|answer| ToShard::Figures { answer }).await;
        let (resident_bytes, cpu) = process_usage();
        let snapshot = {
            let view = self.view.borrow();
            Snapshot {
                version: env!("CARGO_PKG_VERSION"),
                uptime: self.since.elapsed(),
                topics: view.topics.len() as u64,
                registry_revision: view.revision,
                registry_up: self.standing.borrow().away.is_none(),
                registry_warnings: self.standing.borrow().warnings.len() as u64,
                resident_bytes,
                cpu,
                silent_shards: (self.shards.len() - shards.len()) as u64,
                directories_set_aside: self.directories_set_aside.get(),
                checkpoints_unreadable: self.floors.unreadable.len() as u64,
                shards,
            }
        };
        render(&snapshot)
    }

    /// Whether the broker is ready to serve all that it should, and what else an operator should know. A registry that is
    /// away is none of its faults: what is known is served, and every broker would be found unready at once.
    async fn readiness(&self) -> Readiness {
        let reasons = self.reasons_not_ready().await;
        let standing = self.standing.borrow();
        let away = standing.away.iter().map(|reason| format!("the registry is not used now: {reason}"));
        Readiness { reasons, warnings: away.chain(standing.warnings.iter().cloned()).collect() }
    }

    /// Why the broker is not ready to serve all that it should; empty: it is.
    async fn reasons_not_ready(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self.standing.borrow().displaced.iter().cloned().collect();
        let shards = self.ask_shards(|answer| ToShard::Figures { answer }).await;
        for shard in 0..self.shards.len() as u32 {
            if !shards.iter().any(|figures| figures.shard == shard) {
                reasons.push(format!("shard {shard} does not answer"));
            }
        }
        for topic in self.metadata.borrow().topics.values() {
            for partition in topic.partitions.iter().filter(|partition| partition.broker_id == self.broker_id) {
                if partition.state() != corelane_proto::pb::PartitionState::Serving {
                    let state = partition.state().as_str_name().trim_start_matches("PARTITION_STATE_").to_lowercase();
                    let reason = if partition.reason.is_empty() { &state } else { &partition.reason };
                    reasons.push(format!("{}/{}: {reason}", topic.name, partition.partition));
                }
            }
        }
        reasons
    }
}
