//! Starts the shards: one glommio executor on a thread of its own each, pinned to a core, with its share of the port. And
//! what each does with the control thread's messages until it is told to stop.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};
use corelane_log::env::{Arena, Env};
use corelane_log::{CheckpointEntry, Shard as LogShard};
use futures_util::future::select;
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement, PoolPlacement};
use slab::Slab;
use tokio::sync::Semaphore;

use super::accept::{accept_all, take_over_all};
use super::activity::Ending;
use super::admission::Admission;
use super::budget::Budget;
use super::file_reader::FileReader;
use super::noise::Noise;
use super::reclaim::Reclaim;
use super::stalls::{self, Stall};
use super::state::{HandOver, Shard};
use crate::io::checks::MEMLOCK_REMEDY;
use crate::io::env::ShardEnv;
use crate::io::memory;
use crate::io::signal::Signal;
use crate::io::socket::{self, Listener};
use crate::io::turns::Turns;
use crate::io::zero_copy::ZeroCopy;
use crate::limits;
use crate::messages::{Metadata, ToControl, ToShard};
use crate::service::context::{Counters, Identity, LongPolls, ShardContext};

/// When the executor interrupts its tasks to look after its rings, if they have not let it before: see `io/turns.rs`.
const PREEMPT_AFTER: Duration = Duration::from_millis(100);
/// How often a start looks whether what it waits for has come.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How long a start waits for a port that is taken: the kernel closes the sockets of a killed broker's rings a little
/// after the process has gone.
const PORT_PATIENCE: Duration = Duration::from_secs(2);
/// How long a shard's seat may stay free before another thread is started for it, and how many are.
const SEAT_PATIENCE: Duration = Duration::from_millis(500);
const SEAT_OFFERS_MAX: usize = 100;
/// What glommio takes for its own buffers, which only its helpers use, in bytes: the least that it takes, since it is
/// charged three times against the memlock limit.
const EXECUTOR_MEMORY_BYTES: usize = 64 << 10;
/// Entries of each of glommio's rings.
const EXECUTOR_RING_DEPTH: usize = 256;

/// What the shards are told at their start.
#[derive(Clone, Debug)]
pub struct BootOptions {
    /// How many shards.
    pub shards: usize,
    /// The cores to pin them to, one each; empty: the system places them.
    pub cores: Vec<usize>,
    /// Where clients connect. Port 0 is chosen by the system.
    pub listen: SocketAddr,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The cluster's lasting id.
    pub cluster_id: String,
    /// The broker's number.
    pub broker_id: u32,
    /// The broker's version.
    pub version: &'static str,
    /// How often this data directory has been started, this time included.
    pub starts: u64,
    /// Per shard, what the last life's checkpoints say of its partitions, whether they will be opened or not: it stands in
    /// this life's checkpoints until they are.
    pub floors: Vec<Vec<CheckpointEntry>>,
    /// The size of each shard's arena, in bytes.
    pub arena_bytes: usize,
    /// Connections of each shard.
    pub connections_max: usize,
    /// Of these, from one address.
    pub connections_per_address_max: usize,
    /// How long a peer's machine may not answer before its connections end.
    pub peer_timeout: Duration,
    /// How long a reader may take nothing before its connection ends, in seconds.
    pub send_max_s: u32,
    /// How long nothing may happen on a connection before it ends, in seconds.
    pub idle_max_s: u32,
    /// A shard that does not come back to its rings for so long says so; none: nobody watches.
    pub stall_warning: Option<Duration>,
    /// To the control thread.
    pub control: Sender<ToControl>,
}

fn listen_remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "is another broker running there? --listen chooses another port",
        io::ErrorKind::AddrNotAvailable => {
            "--listen names an address of this machine; --advertise, what clients are told"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege; --listen chooses another one",
        _ => "--listen chooses another address",
    }
}

/// Why the shards did not start: one line with cause and remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootError {
    /// The port cannot be had.
    #[error("cannot listen on {address}: {source}; {}", listen_remedy(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A shard's thread did not come up.
    #[error("shard {shard} did not start: {reason}")]
    Shard {
        /// Which.
        shard: usize,
        /// Why.
        reason: String,
    },
}

/// The shards that run.
pub struct Shards {
    /// Where each takes its messages, by number.
    pub senders: Vec<Sender<ToShard>>,
    /// Where clients connect.
    pub address: SocketAddr,
    threads: Vec<ExecutorJoinHandle<io::Result<()>>>,
}

impl Shards {
    /// Waits until every shard has ended.
    ///
    /// # Errors
    /// The first that did not end as it should.
    pub fn join(self) -> Result<(), BootError> {
        let mut outcome = Ok(());
        for (shard, thread) in self.threads.into_iter().enumerate() {
            let ended = match thread.join() {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            outcome = outcome.and(ended.map_err(|reason| BootError::Shard { shard, reason }));
        }
        outcome
    }
}

/// Starts the shards. They accept nothing before `ToShard::Serve`. Blocks until each is up.
///
/// # Errors
/// When the port cannot be had, or a shard does not come up.
pub fn start(options: &BootOptions) -> Result<Shards, BootError> {
    let address = options.listen;
    let (address, listeners) =
        listen(address, options.shards).map_err(|source| BootError::Listen { address, source })?;
    let (peers, inboxes): (Vec<_>, Vec<_>) =
        (0..options.shards).map(|_| async_channel::bounded(limits::HAND_OVERS_MAX)).unzip();
    let mut shards = Shards { senders: Vec::new(), address, threads: Vec::new() };
    let mut starting = Vec::new();
    for (shard, (listener, inbox)) in listeners.into_iter().zip(inboxes).enumerate() {
        let (sender, messages) = async_channel::bounded(limits::SHARD_QUEUE_MAX);
        let seat = Seat { shard, options: options.clone(), listener, peers: peers.clone(), inbox, messages };
        starting.push(Starting::new(seat)?);
        shards.senders.push(sender);
    }
    for shard in starting {
        // On an error the others end by themselves: nobody can send to them any more.
        shards.threads.push(shard.wait()?);
    }
    Ok(shards)
}

/// Whether the port can be had, asked before anything is made. Waits a little like a start.
///
/// # Errors
/// When it cannot.
pub fn check_port(address: SocketAddr) -> Result<(), BootError> {
    listen(address, 1).map(drop).map_err(|source| BootError::Listen { address, source })
}

/// Takes the port; waits a little for one that a broker killed just now still holds.
fn listen(address: SocketAddr, shards: usize) -> io::Result<(SocketAddr, Vec<OwnedFd>)> {
    let began = Instant::now();
    loop {
        match socket::listen(address, shards) {
            Ok(listeners) => return Ok((socket::local_address(&listeners[0])?, listeners)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && began.elapsed() < PORT_PATIENCE => {
                std::thread::sleep(POLL_INTERVAL);
            }
            Err(error) => return Err(error),
        }
    }
}

type Thread = ExecutorJoinHandle<io::Result<()>>;
/// Tells whether a shard is up.
type IsUp = std::sync::mpsc::Receiver<Result<(), String>>;

/// A shard that is about to come up.
///
/// glommio 0.9 can put an executor to sleep before its first task ran: when the thread loses its core for longer than
/// the preempt timer between arming it and looking at it, the executor sees "time to yield", takes that for "nothing to
/// do", and waits for an event that nobody will cause. Later the shard's own timers wake it; at this point it has none.
/// So a seat that nobody took in time is offered to one more thread, and a late riser that finds it taken ends.
struct Starting {
    shard: usize,
    cores: Vec<usize>,
    seat: Arc<Mutex<Option<Seat>>>,
    threads: Vec<(Thread, IsUp)>,
}

impl Starting {
    fn new(seat: Seat) -> Result<Self, BootError> {
        let (shard, cores) = (seat.shard, seat.options.cores.clone());
        let mut starting = Self { shard, cores, seat: Arc::new(Mutex::new(Some(seat))), threads: Vec::new() };
        starting.spawn()?;
        Ok(starting)
    }

    fn error(&self, reason: impl Into<String>) -> BootError {
        let mut reason = reason.into();
        if reason.contains(&io::Error::from_raw_os_error(libc::ENOMEM).to_string()) {
            // Other processes of the same user may have used up what the check found to be enough.
            let _ = write!(reason, "; {MEMLOCK_REMEDY}");
        }
        BootError::Shard { shard: self.shard, reason }
    }

    /// Starts a thread that takes the seat.
    fn spawn(&mut self) -> Result<(), BootError> {
        let (up, is_up) = std::sync::mpsc::channel();
        let placement = self.cores.get(self.shard).map_or(Placement::Unbound, |core| Placement::Fixed(*core));
        let seat = Arc::clone(&self.seat);
        let thread = LocalExecutorBuilder::new(placement)
            .name(&format!("shard-{}", self.shard))
            .io_memory(EXECUTOR_MEMORY_BYTES)
            .ring_depth(EXECUTOR_RING_DEPTH)
            .preempt_timer(PREEMPT_AFTER)
            .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
            .spawn(move || async move {
                let seat = seat.lock().unwrap_or_else(PoisonError::into_inner).take();
                match seat.map(Seat::take) {
                    Some(Ok(seated)) => {
                        // Whoever starts the shards may have given up because of another one.
                        let _ = up.send(Ok(()));
                        seated.run().await;
                        Ok(())
                    }
                    Some(Err(error)) => {
                        let _ = up.send(Err(error.to_string()));
                        Err(error)
                    }
                    None => Ok(()),
                }
            });
        let thread = thread.map_err(|error| self.error(error.to_string()))?;
        self.threads.push((thread, is_up));
        Ok(())
    }

    /// Waits until the shard is up; returns its thread.
    fn wait(mut self) -> Result<Thread, BootError> {
        let mut offered = Instant::now();
        loop {
            let news = self.threads.iter().map(|(_, is_up)| is_up.try_recv());
            let news = news.enumerate().find(|(_, news)| *news != Err(TryRecvError::Empty));
            match news {
                Some((at, Ok(Ok(())))) => return Ok(self.threads.swap_remove(at).0),
                Some((_, Ok(Err(reason)))) => return Err(self.error(reason)),
                Some((at, Err(_))) => {
                    let ended = self.threads.swap_remove(at).0.join().err().map(|error| error.to_string());
                    // A late riser leaves the seat to the others.
                    if ended.is_some() || self.threads.is_empty() {
                        return Err(self.error(ended.unwrap_or_else(|| "its thread has ended".to_owned())));
                    }
                }
                None => {}
            }
            let is_free = self.seat.lock().unwrap_or_else(PoisonError::into_inner).is_some();
            if is_free && offered.elapsed() > SEAT_PATIENCE && self.threads.len() < SEAT_OFFERS_MAX {
                tracing::warn!(
                    shard = self.shard,
                    "a shard's thread fell asleep before it began; another one takes over"
                );
                self.spawn()?;
                offered = Instant::now();
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// What a shard's thread is given.
struct Seat {
    shard: usize,
    options: BootOptions,
    listener: OwnedFd,
    peers: Vec<Sender<HandOver>>,
    inbox: Receiver<HandOver>,
    messages: Receiver<ToShard>,
}

/// A shard on its thread.
struct Seated {
    shard: Rc<Shard>,
    listener: Option<OwnedFd>,
    inbox: Receiver<HandOver>,
    messages: Receiver<ToShard>,
}

impl Seat {
    fn take(self) -> io::Result<Seated> {
        let options = self.options;
        let env = ShardEnv::new(options.arena_bytes)?;
        let log = LogShard::new(env.clone());
        let identity = Identity {
            cluster_id: options.cluster_id,
            broker_id: options.broker_id,
            shard: self.shard as u32,
            shards: options.shards as u32,
            version: options.version,
        };
        let floors = options.floors.into_iter().nth(self.shard).unwrap_or_default();
        let carried = floors.into_iter().map(|entry| ((entry.topic_id, entry.partition), entry)).collect();
        let read_bytes_max = env.arena().bytes_total() / limits::FILE_READS_ARENA_PART;
        let zero_copy = ZeroCopy::new(env.ring(), env.arena());
        tracing::info!(
            shard = self.shard,
            arena_bytes = env.arena().bytes_total(),
            pages = ?env.arena().pages(),
            registered = env.ring().has_registered_arena(),
            zero_copy = zero_copy.is_on(),
            "shard is up"
        );
        let context = Rc::new(ShardContext {
            identity,
            turns: Turns::new(env.ring().clone()),
            env,
            partitions: RefCell::default(),
            metadata: RefCell::new(Arc::new(Metadata::default())),
            control: options.control,
            is_stopping: Cell::new(false),
            long_polls: LongPolls::default(),
            counters: Counters::default(),
        });
        let shard = Rc::new(Shard {
            context,
            file_reader: Rc::new(FileReader::new(log.clone(), read_bytes_max)),
            zero_copy,
            log,
            data_dir: options.data_dir,
            starts: options.starts,
            carried: RefCell::new(carried),
            let_go: Cell::default(),
            has_served: Cell::new(false),
            admission: Admission::new(options.connections_max, options.connections_per_address_max),
            peer_timeout: options.peer_timeout,
            send_max_s: options.send_max_s,
            idle_max_s: options.idle_max_s,
            stall_warning: options.stall_warning,
            connections: RefCell::new(Slab::new()),
            connection_left: Signal::default(),
            sessions: RefCell::default(),
            peers: self.peers,
            receive_extra: Budget::new(limits::RECEIVE_BUFFERS_EXTRA_BYTES_MAX),
            sent_ahead: Budget::new(limits::SENT_AHEAD_BYTES_MAX),
            outgoing_heads: Rc::default(),
            topic_descriptions: Arc::new(Semaphore::new(limits::SHARD_DESCRIPTIONS_MAX)),
            group_descriptions: Arc::new(Semaphore::new(limits::SHARD_DESCRIPTIONS_MAX)),
            reclaim: Reclaim::default(),
            wary_since: Cell::new(None),
            tick: Rc::default(),
            noise: Noise::default(),
        });
        Ok(Seated { shard, listener: Some(self.listener), inbox: self.inbox, messages: self.messages })
    }
}

impl Seated {
    async fn run(mut self) {
        let checkpoints = glommio::spawn_local(Rc::clone(&self.shard).write_checkpoints());
        let sweep = glommio::spawn_local(sweep(Rc::clone(&self.shard)));
        let reads = glommio::spawn_local(share_reads(Rc::clone(&self.shard)));
        let watch = glommio::spawn_local(watch_stalls(Rc::clone(&self.shard)));
        let mut accepting = Vec::new();
        let stop = loop {
            match self.messages.recv().await {
                Ok(ToShard::Serve) => {
                    self.shard.has_served.set(true);
                    accepting.extend(self.accept());
                }
                Ok(ToShard::Stop { answer }) => break Some(answer),
                Ok(message) => {
                    let shard = Rc::clone(&self.shard);
                    glommio::spawn_local(async move { shard.obey(message).await }).detach();
                }
                // The control thread is gone: nothing can be asked for any more, so stop as if told to.
                Err(_) => break None,
            }
        };
        for task in accepting {
            task.cancel().await;
        }
        self.listener = None;
        checkpoints.cancel().await;
        let is_clean = self.shard.stop().await;
        sweep.cancel().await;
        reads.cancel().await;
        watch.cancel().await;
        self.shard.context.env.ring().idle().await;
        if let Some(answer) = stop {
            // Whoever asked may have given up.
            let _ = answer.send(is_clean);
        }
    }

    /// Begins to accept connections.
    fn accept(&mut self) -> Vec<glommio::Task<()>> {
        let Some(listener) = self.listener.take() else { return Vec::new() };
        vec![
            glommio::spawn_local(accept_all(Rc::clone(&self.shard), Listener::new(listener, self.shard.peer_timeout))),
            glommio::spawn_local(take_over_all(Rc::clone(&self.shard), self.inbox.clone())),
        ]
    }
}

impl Shard {
    /// Does what a message says and answers it. Whoever asked may be gone.
    async fn obey(self: Rc<Self>, message: ToShard) {
        match message {
            ToShard::Open { partitions, answer } => {
                let _ = answer.send(self.open_partitions(partitions).await);
            }
            ToShard::Create { topic_dir, options, answer } => {
                let _ = answer.send(self.create_partition(&topic_dir, options).await);
            }
            ToShard::Refuse { partition, reason } => self.refuse_partition(partition, reason).await,
            ToShard::Configure { topic_id, config } => self.configure_topic(topic_id, &config),
            ToShard::Delete { topic_id, answer } => {
                self.delete_topic(topic_id).await;
                let _ = answer.send(());
            }
            ToShard::Metadata(metadata) => *self.context.metadata.borrow_mut() = metadata,
            ToShard::Describe { topic_id, answer } => {
                let _ = answer.send(self.describe_topic(topic_id));
            }
            ToShard::Figures { answer } => {
                let _ = answer.send(self.figures().await);
            }
            ToShard::Serve | ToShard::Stop { .. } => unreachable!("handled by the shard's main loop"),
        }
    }

    /// Stops in order: reads no more, flushes, answers what was read, writes the last checkpoint.
    async fn stop(&self) -> bool {
        self.context.is_stopping.set(true);
        for connection in self.all_connections() {
            connection.end(Ending::Orderly);
        }
        let is_flushed = self.close_partitions().await;
        let answered = async {
            while !self.connections.borrow().is_empty() {
                self.connection_left.wait().await;
            }
        };
        select(pin!(answered), pin!(glommio::timer::sleep(limits::STOP_ANSWERS_MAX))).await;
        for connection in self.all_connections() {
            connection.end(Ending::AtOnce);
        }
        self.write_last_checkpoint(is_flushed).await;
        is_flushed
    }
}

/// Says when the shard did not come back in time, if that was asked for.
async fn watch_stalls(shard: Rc<Shard>) {
    let Some(limit) = shard.stall_warning else { return };
    let number = shard.context.identity.shard;
    let tell = |stall: Stall| {
        let [stall_us, ran_us] = [stall.time, stall.ran].map(|time| time.as_micros() as u64);
        tracing::warn!(shard = number, stall_us, ran_us, "the shard did not come back in time");
    };
    if let Err(error) = stalls::watch(limit, tell).await {
        tracing::warn!(shard = number, %error, "nobody watches whether the shard comes back in time");
    }
}

/// Once a second: counts the tick, gives back the memory of readers that are stuck and of crowds that have left, closes what
/// has not moved for too long.
async fn sweep(shard: Rc<Shard>) {
    loop {
        glommio::timer::sleep(Duration::from_secs(1)).await;
        shard.tick.set(shard.tick.get().wrapping_add(1));
        for connection in shard.all_connections() {
            shard.context.turns.take().await;
            connection.sweep();
        }
        if shard.is_reclaim_due() {
            memory::give_back_free();
        }
    }
}

/// While somebody waits for memory to read into: has those give theirs back who do not get rid of what they read.
async fn share_reads(shard: Rc<Shard>) {
    loop {
        shard.file_reader.until_memory_is_awaited().await;
        glommio::timer::sleep(limits::READ_HELD_MAX / 2).await;
        if shard.file_reader.is_memory_awaited() {
            for connection in shard.all_connections() {
                connection.outgoing.give_way();
            }
        }
    }
}
