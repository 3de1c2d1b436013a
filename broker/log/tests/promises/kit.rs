//! One simulated machine with one topic directory, and what a test does to partitions in it.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use corelane_log::env::{Arena, Chunk, Disk, Env, File};
use corelane_log::sim::{Limit, Run, Sim, SimEnv};
use corelane_log::{
    AppendError, Appended, CheckpointEntry, Landing, OpenError, Partition, PartitionOptions, Piece, Recovered, Shard,
    TopicConfig,
};
use corelane_proto::ids::{Epoch, Position, TopicId};
use corelane_proto::message::MessageParts;
use corelane_proto::set::SetBuilder;

pub(crate) type Log = Partition<SimEnv>;

const LIMIT: Limit = Limit { steps: 1_000_000, time: Duration::from_hours(24 * 30) };
/// Few: the random histories are the model test's.
pub(crate) const SEEDS: std::ops::Range<u64> = 0..12;

pub(crate) struct Machine {
    pub(crate) sim: Sim,
    pub(crate) env: SimEnv,
    pub(crate) shard: Shard<SimEnv>,
}

/// Runs a test over a few seeds, naming the one that fails.
pub(crate) fn over_seeds(test: impl Fn(u64)) {
    for seed in SEEDS {
        println!("seed {seed}");
        test(seed);
    }
}

pub(crate) fn topic_dir() -> &'static Path {
    Path::new("/topic")
}

pub(crate) fn partition_dir() -> PathBuf {
    topic_dir().join("0")
}

pub(crate) fn segment_path(base: u64) -> PathBuf {
    partition_dir().join(format!("{base:020}-00000001.log"))
}

/// Small sizes: 64 KiB segments, 16 KiB sets, a window of 64 KiB.
pub(crate) fn options() -> PartitionOptions {
    let config = TopicConfig {
        segment_bytes: 64 << 10,
        set_bytes_max: 16 << 10,
        message_bytes_max: 16 << 10,
        retention_ms: 0,
        segment_ms: 0,
        ..TopicConfig::default()
    };
    PartitionOptions {
        config,
        unflushed_bytes_max: 64 << 10,
        window_max_ever: 64 << 10,
        ..PartitionOptions::new("topic".parse().unwrap(), TopicId([3; 16]), 0)
    }
}

pub(crate) fn with_config(change: impl FnOnce(&mut TopicConfig)) -> PartitionOptions {
    let mut options = options();
    change(&mut options.config);
    options
}

/// A set of messages with values of so many bytes, each filled with `fill`; the timestamps count up from `time_ms`.
pub(crate) fn set_at(time_ms: i64, fill: u8, value_bytes: &[usize]) -> Vec<u8> {
    let mut builder = SetBuilder::new();
    for (index, bytes) in value_bytes.iter().enumerate() {
        let value = vec![fill; *bytes];
        let timestamp_ms = time_ms + index as i64;
        builder.push(&MessageParts { value: Some(&value), timestamp_ms, ..MessageParts::default() }).unwrap();
    }
    builder.finish().to_vec()
}

pub(crate) fn set(fill: u8, value_bytes: &[usize]) -> Vec<u8> {
    set_at(0, fill, value_bytes)
}

impl Machine {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_arena(seed, 1 << 20)
    }

    pub(crate) fn with_arena(seed: u64, arena_bytes: usize) -> Self {
        let sim = Sim::new(seed);
        let env = sim.boot(arena_bytes);
        let machine = Self { shard: Shard::new(env.clone()), env, sim };
        machine.run(async {
            machine.env.disk().create_dir(topic_dir()).await.unwrap();
            machine.env.disk().sync_dir(Path::new("/")).await.unwrap();
        });
        machine
    }

    /// Begins the next life, after a power cut.
    pub(crate) fn power_cut(self) -> Self {
        self.end(Sim::power_cut)
    }

    /// Begins the next life, after a SIGKILL.
    pub(crate) fn kill(self) -> Self {
        self.end(Sim::kill)
    }

    fn end(self, crash: impl FnOnce(&Sim)) -> Self {
        let Self { sim, env, shard } = self;
        drop(shard);
        crash(&sim);
        let arena_bytes = env.arena().bytes_total();
        drop(env);
        let env = sim.boot(arena_bytes);
        Self { shard: Shard::new(env.clone()), env, sim }
    }

    pub(crate) fn run<T>(&self, test: impl Future<Output = T>) -> T {
        match self.sim.run(test, LIMIT) {
            Run::Done(value) => value,
            Run::OutOfSteps => panic!("out of steps"),
            Run::OutOfTime(text) | Run::Deadlock(text) => panic!("stuck: {text}"),
        }
    }

    /// Runs a test and gives the machine back, for its next life.
    pub(crate) fn run_and_return(self, test: impl AsyncFnOnce(&Machine)) -> Self {
        self.run(test(&self));
        self
    }

    pub(crate) async fn create(&self, options: PartitionOptions) -> Log {
        let (log, driver) = Partition::create(&self.shard, topic_dir(), &options).await.unwrap();
        self.env.spawn("driver", driver.run());
        log
    }

    pub(crate) async fn try_open(
        &self,
        options: PartitionOptions,
        floor: Option<CheckpointEntry>,
    ) -> Result<(Log, Recovered), OpenError> {
        let (log, driver, report) = Partition::open(&self.shard, topic_dir(), &options, floor, false).await?;
        self.env.spawn("driver", driver.run());
        Ok((log, report))
    }

    pub(crate) async fn open(&self, options: PartitionOptions) -> (Log, Recovered) {
        self.try_open(options, None).await.unwrap()
    }

    /// Time that has passed since `began`.
    pub(crate) fn since(&self, began: Duration) -> Duration {
        self.env.monotonic().saturating_sub(began)
    }

    /// Waits until `is_so`: tasks that are ready may be kept waiting while time passes.
    pub(crate) async fn eventually(&self, what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..1000 {
            if is_so() {
                return;
            }
            self.env.sleep(Duration::from_secs(1)).await;
        }
        panic!("it never came to this: {what}");
    }

    /// All bytes from `from` up to the visible end, read in pieces of an odd size.
    pub(crate) async fn read(&self, log: &Log, from: u64) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let pieces = log.read(Position(from + all.len() as u64), 7777).await.unwrap();
            if pieces.is_empty() {
                return all;
            }
            for piece in &pieces {
                all.extend_from_slice(&self.bytes(piece).await);
            }
        }
    }

    pub(crate) async fn bytes(&self, piece: &Piece<SimEnv>) -> Vec<u8> {
        match piece {
            Piece::Memory(slice) => slice.to_vec(),
            Piece::File { file, offset, bytes } => {
                let from = offset / 4096 * 4096;
                let skip = (offset - from) as usize;
                let chunk = self.shard.allocate_for_reading((skip + bytes).next_multiple_of(4096)).await;
                let read = file.read(&chunk, 0, (skip + bytes).next_multiple_of(4096), from).await.unwrap();
                assert!(read >= skip + bytes, "a piece lies within its file");
                chunk.slice(skip..skip + bytes).to_vec()
            }
        }
    }
}

pub(crate) async fn landing(log: &Log, set: &[u8]) -> Result<Landing<SimEnv>, AppendError> {
    let mut landing = log.landing(set.len()).await?;
    assert_eq!(landing.copy_from(set), set.len());
    Ok(landing)
}

pub(crate) async fn try_publish(log: &Log, set: &[u8]) -> Result<Appended, AppendError> {
    log.append(landing(log, set).await?, None).await
}

pub(crate) async fn publish(log: &Log, set: &[u8]) -> Appended {
    try_publish(log, set).await.unwrap()
}

/// Publishes and waits until it is durable.
pub(crate) async fn publish_durably(log: &Log, set: &[u8]) -> Appended {
    let appended = publish(log, set).await;
    log.wait_durable(appended.next).await.unwrap();
    appended
}

pub(crate) fn epoch(number: u32) -> Epoch {
    Epoch(number)
}
