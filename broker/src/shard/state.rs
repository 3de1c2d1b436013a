//! What the tasks of one shard share: the services' context, its connections, who serves which session. One thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;

use corelane_log::{CheckpointEntry, Shard as LogShard};
use corelane_proto::pb;
use slab::Slab;

use super::connection::Connection;
use super::file_reader::FileReader;
use super::noise::Noise;
use super::turns::Turns;
use crate::io::env::ShardEnv;
use crate::io::signal::Signal;
use crate::messages::PartitionKey;
use crate::service::context::ShardContext;

/// A connection that another shard shall serve, its Hello read and nothing more.
#[derive(Debug)]
pub(super) struct HandOver {
    pub(super) socket: OwnedFd,
    pub(super) correlation: u32,
    pub(super) hello: pb::HelloRequest,
}

/// One connection of a session.
pub(super) struct Attempt {
    pub(super) number: u64,
    pub(super) connection: Rc<Connection>,
}

/// A shard.
pub(super) struct Shard {
    pub(super) context: Rc<ShardContext>,
    pub(super) log: LogShard<ShardEnv>,
    pub(super) data_dir: PathBuf,
    /// How often the data directory has been started.
    pub(super) starts: u64,
    /// Checkpoint entries of the last life whose partitions do not serve, or not yet: lost with the next checkpoint, they
    /// would no longer tell recovery what had been durable.
    pub(super) carried: RefCell<HashMap<PartitionKey, CheckpointEntry>>,
    /// Set once every partition was opened, as far as it could be.
    pub(super) has_served: Cell<bool>,
    pub(super) connections_max: usize,
    pub(super) connections: RefCell<Slab<Rc<Connection>>>,
    /// Notified when a connection has gone.
    pub(super) connection_left: Signal,
    /// Connections that have not said Hello yet.
    pub(super) strangers: Cell<usize>,
    /// Per session its connections.
    pub(super) sessions: RefCell<HashMap<Vec<u8>, Vec<Attempt>>>,
    /// To the other shards, by number.
    pub(super) peers: Vec<async_channel::Sender<HandOver>>,
    pub(super) file_reader: Rc<FileReader>,
    /// Counted once a second.
    pub(super) tick: Rc<Cell<u32>>,
    pub(super) noise: Noise,
    pub(super) turns: Rc<Turns>,
}

impl Shard {
    /// Connections, those that have not said Hello included.
    pub(super) fn connection_count(&self) -> usize {
        self.connections.borrow().len() + self.strangers.get()
    }

    /// Every connection now.
    pub(super) fn all_connections(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().iter().map(|(_, connection)| Rc::clone(connection)).collect()
    }
}
