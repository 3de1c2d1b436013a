//! The world as a shard's partitions see it: the shard's ring, its arena, the executor's timers, the system's clocks.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use corelane_log::env;
use rustix::time::{ClockId, clock_gettime};

use super::arena::ShardArena;
use super::disk::ShardDisk;
use super::ring::Ring;

/// What a shard lends to its partitions. Clones share it.
#[derive(Clone)]
pub struct ShardEnv(Rc<World>);

struct World {
    disk: ShardDisk,
    arena: ShardArena,
    ring: Ring,
    started: Instant,
}

impl ShardEnv {
    /// A world with an arena of `arena_bytes`. Must be called on a glommio executor.
    ///
    /// # Errors
    /// When the memory or the ring cannot be had.
    pub fn new(arena_bytes: usize) -> io::Result<Self> {
        let arena = ShardArena::new(arena_bytes)?;
        let ring = Ring::new(&arena)?;
        Ok(Self(Rc::new(World { disk: ShardDisk::new(ring.clone()), arena, ring, started: Instant::now() })))
    }

    /// The ring under the disk.
    pub fn ring(&self) -> &Ring {
        &self.0.ring
    }
}

impl env::Env for ShardEnv {
    type Disk = ShardDisk;
    type Arena = ShardArena;

    fn disk(&self) -> &ShardDisk {
        &self.0.disk
    }

    fn arena(&self) -> &ShardArena {
        &self.0.arena
    }

    fn monotonic(&self) -> Duration {
        self.0.started.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        // As fine as the kernel's tick, which is enough for arrivals, and read for every set: not from the device.
        let now = clock_gettime(ClockId::RealtimeCoarse);
        now.tv_sec * 1000 + now.tv_nsec / 1_000_000
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        glommio::timer::sleep(duration)
    }

    fn random(&self) -> u64 {
        fastrand::u64(..)
    }
}
