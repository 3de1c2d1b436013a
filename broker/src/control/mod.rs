//! The control thread: it speaks to the registry, tells the shards what to hold and clients' metadata, answers topic calls
//! and the HTTP page. It owns no log data, and nothing here is on the path of a message. One thread, cooperative tasks.

mod brokers;
mod calls;
mod directories;
mod disk;
mod figures;
mod follow;
pub mod groups;
mod host;
mod hosted;
mod means;
mod member;
mod open;
mod others;
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
use crate::messages::{Answer, Metadata, ToShard};
use crate::registry::keys::Keys;
use crate::registry::membership::Holds;
use crate::registry::store::Store;
use crate::registry::topics::Topics;
use crate::registry::view::View;
use directories::Directories;
use groups::Groups;
use hosted::Hosted;
use member::Counted;
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
    /// The registry's incarnation of which `view` is; 0: of none, it was only remembered.
    believed: Cell<u64>,
    /// What the data directory holds, and by which view that was counted.
    counted: Cell<(Counted, Holds)>,
    /// The topics' directories on its disk.
    directories: RefCell<Directories>,
    view: RefCell<View>,
    hosted: RefCell<Hosted>,
    metadata: watch::Sender<Arc<Metadata>>,
    /// Rung when the registry did not do what it was asked: time to ask how it is.
    refused: tokio::sync::Notify,
    /// How this broker stands with the registry.
    standing: RefCell<Standing>,
    /// As it is on disk.
    identity: tokio::sync::Mutex<Identity>,
    /// One change of topics is written at a time, so that what this broker is asked at the same moment comes one after the
    /// other, and each placement counts those before it. Held until the registry has the change, and where partitions were
    /// placed until this broker has seen them; never until it is in force, which other brokers may put off for long. Brokers
    /// do not share it: what must not be mixed up, the registry's comparisons keep apart.
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
}
