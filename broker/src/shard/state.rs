//! What the tasks of one shard share: the services' context, its connections, who serves which session. One thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use corelane_log::{CheckpointEntry, PartitionStats, Shard as LogShard};
use corelane_proto::frame::Method;
use corelane_proto::pb;
use slab::Slab;
use tokio::sync::Semaphore;

use super::admission::Admission;
use super::budget::{self, Budget};
use super::connection::Connection;
use super::file_reader::FileReader;
use super::noise::Noise;
use super::reclaim::{Held, Reclaim};
use crate::io::env::ShardEnv;
use crate::io::signal::Signal;
use crate::io::socket::Socket;
use crate::io::zero_copy::ZeroCopy;
use crate::limits;
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
    /// What partitions have counted that are not here any more: a counter never goes down.
    pub(super) let_go: Cell<PartitionStats>,
    /// Set once every partition was opened, as far as it could be.
    pub(super) has_served: Cell<bool>,
    pub(super) admission: Admission,
    /// How long a peer's machine may not answer.
    pub(super) peer_timeout: Duration,
    /// How long a reader may take nothing, in seconds.
    pub(super) send_max_s: u32,
    /// How long nothing may happen on a connection, in seconds.
    pub(super) idle_max_s: u32,
    /// From which time on it is told that the shard did not come back.
    pub(super) stall_warning: Option<Duration>,
    pub(super) connections: RefCell<Slab<Rc<Connection>>>,
    /// Notified when a connection has gone.
    pub(super) connection_left: Signal,
    /// Per session its connections.
    pub(super) sessions: RefCell<HashMap<Vec<u8>, Vec<Attempt>>>,
    /// To the other shards, by number.
    pub(super) peers: Vec<async_channel::Sender<HandOver>>,
    pub(super) file_reader: Rc<FileReader>,
    pub(super) zero_copy: ZeroCopy,
    /// What receive buffers may grow to beyond their usual size.
    pub(super) receive_extra: Budget,
    /// What the kernel may hold of what peers on this machine send ahead.
    pub(super) sent_ahead: Budget,
    /// Bytes that wait to be sent on all connections and do not lie in the log.
    pub(super) outgoing_heads: Rc<Cell<usize>>,
    /// Seats of those that are described to clients.
    pub(super) topic_descriptions: Arc<Semaphore>,
    /// The same of groups: these wait for the registry, and topics shall not wait with them.
    pub(super) group_descriptions: Arc<Semaphore>,
    pub(super) reclaim: Reclaim,
    /// The tick at which a frame that does not come was closed since others waited for its memory.
    pub(super) wary_since: Cell<Option<u32>>,
    /// Counted once a second.
    pub(super) tick: Rc<Cell<u32>>,
    pub(super) noise: Noise,
}

impl Shard {
    /// Whether somebody waits for memory that others may hold for what does not come.
    pub(super) fn is_memory_awaited(&self) -> bool {
        self.log.is_memory_awaited() || self.receive_extra.is_awaited()
    }

    /// Claims turned out to be empty, and held up others.
    pub(super) fn be_wary(&self) {
        self.wary_since.set(Some(self.tick.get()));
    }

    /// Whether that was not long ago.
    pub(super) fn is_wary(&self) -> bool {
        self.wary_since.get().is_some_and(|since| self.tick.get().wrapping_sub(since) <= limits::WARY_S)
    }

    /// Lets a peer on this machine send ahead, as long as what is returned lives; `None`: it is elsewhere, or others do.
    pub(super) fn let_send_ahead(&self, socket: &Socket) -> Option<budget::Held> {
        let held = self.sent_ahead.try_take(limits::SENT_AHEAD_BYTES)?;
        socket.hold_received(limits::SENT_AHEAD_BYTES).then_some(held)
    }

    /// Whether so much waits to be sent that no more long answers should be made.
    pub(super) fn is_outgoing_full(&self) -> bool {
        self.outgoing_heads.get() >= limits::SHARD_OUTGOING_HEAD_BYTES_MAX
    }

    /// Where a request has to find a seat first since its answer may be long and is not there at once.
    pub(super) fn seats(&self, method: Method) -> Option<&Arc<Semaphore>> {
        match method {
            Method::DescribeTopic => Some(&self.topic_descriptions),
            Method::DescribeGroup | Method::Committed => Some(&self.group_descriptions),
            _ => None,
        }
    }

    /// Whether clients have let go of so much on the heap that it is to be given back. Asked now and then.
    pub(super) fn is_reclaim_due(&self) -> bool {
        let buffered_bytes = self.outgoing_heads.get() + self.receive_extra.held_bytes();
        let (connections, long_polls) = (self.admission.taken(), self.context.long_polls.count());
        let now = Held { connections, long_polls, buffered_bytes };
        let (connections, long_polls) = (self.admission.take_highest(), self.context.long_polls.take_highest());
        self.reclaim.is_due(now, Held { connections, long_polls, buffered_bytes })
    }

    /// Every connection now.
    pub(super) fn all_connections(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().iter().map(|(_, connection)| Rc::clone(connection)).collect()
    }
}
