//! A simulated world for tests: a seeded executor with a virtual clock, a disk that loses, tears and reorders whatever a
//! real one may, an arena that poisons its memory. One seed is one history: no real time, no hash order, no threads.
//!
//! A life is what runs between two crashes: [`Sim::boot`] begins one, [`Sim::power_cut`] or [`Sim::kill`] ends it, what
//! the disk kept goes on to the next. Broken promises of the code under test (a write that is not aligned, two writes in
//! flight on one block, spare memory taken for filled) are panics that say what was expected.

mod arena;
mod crash;
mod disk;
mod executor;
mod file;
mod flight;
mod names;
mod volume;

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

pub use arena::{SimArena, SimChunk, SimSlice};
pub use disk::{Faults, SimDisk};
pub use executor::{Limit, Run};
pub use file::SimFile;

use crate::env::Env;
use executor::World;

/// The unit that a torn block is made of, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// One simulated machine.
pub struct Sim {
    world: Rc<World>,
    disk: SimDisk,
}

impl Sim {
    /// A machine with an empty disk; everything that follows depends on the seed alone.
    pub fn new(seed: u64) -> Self {
        let world = Rc::new(World::new(seed));
        let disk = SimDisk::new(world.clone());
        Self { world, disk }
    }

    /// Begins a life: an environment with an arena of so many bytes.
    pub fn boot(&self, arena_bytes: usize) -> SimEnv {
        let arena = SimArena::new(self.world.clone(), arena_bytes);
        SimEnv { world: self.world.clone(), disk: self.disk.clone(), arena }
    }

    /// The disk, to set faults, to hurt bytes and to look at what is on it.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// Runs `root` and all spawned tasks until it is done, or one of the other ends of [`Run`].
    pub fn run<T>(&self, root: impl Future<Output = T>, limit: Limit) -> Run<T> {
        self.world.run_to(root, limit, || true)
    }

    /// As `run`, but when the steps are used up goes on, for a while, to a `moment` that is worth a crash.
    pub fn run_to<T>(&self, root: impl Future<Output = T>, limit: Limit, moment: impl FnMut() -> bool) -> Run<T> {
        self.world.run_to(root, limit, moment)
    }

    /// Ends the life with a power cut: tasks and memory are gone, the disk keeps what it must and whatever else it likes.
    pub fn power_cut(&self) {
        self.world.drop_tasks();
        self.disk.power_cut();
    }

    /// Ends the life with SIGKILL: tasks and memory are gone, the disk keeps all that completed; what was submitted lands
    /// whole, in part, late or not at all, and the lock of a file is held until the last of it has.
    pub fn kill(&self) {
        self.world.drop_tasks();
        self.disk.kill();
    }

    /// Ends the life in order: drops the tasks that are left. Nothing may be in flight any more.
    pub fn stop(&self) {
        self.world.drop_tasks();
        self.disk.assert_idle();
    }

    /// Moves the wall clock, forwards or backwards; the monotonic clock is not touched.
    pub fn jump_wall_ms(&self, by_ms: i64) {
        self.world.jump_wall_ms(by_ms);
    }

    /// Prints what happens on the disk to stderr from now on.
    pub fn set_trace(&self, on: bool) {
        self.world.set_trace(on);
    }
}

impl Drop for Sim {
    /// Breaks the circles: operations in flight and events hold the disk that holds them.
    fn drop(&mut self) {
        self.world.drop_tasks();
        self.disk.forget_flights();
        self.world.forget_events();
    }
}

/// The simulated world as the log sees it, for one life. Clones share everything.
#[derive(Clone)]
pub struct SimEnv {
    world: Rc<World>,
    disk: SimDisk,
    arena: SimArena,
}

impl SimEnv {
    /// Adds a task to this life; `name` is for the report of a deadlock.
    pub fn spawn(&self, name: &str, task: impl Future<Output = ()> + 'static) {
        self.world.spawn(name, Box::pin(task));
    }

    /// Prints a line with the virtual time when tracing is on.
    pub fn trace(&self, line: impl FnOnce() -> String) {
        self.world.trace(line);
    }

    /// Moves the wall clock; see [`Sim::jump_wall_ms`].
    pub fn jump_wall_ms(&self, by_ms: i64) {
        self.world.jump_wall_ms(by_ms);
    }
}

impl Env for SimEnv {
    type Disk = SimDisk;
    type Arena = SimArena;

    fn disk(&self) -> &SimDisk {
        &self.disk
    }

    fn arena(&self) -> &SimArena {
        &self.arena
    }

    fn monotonic(&self) -> Duration {
        self.world.now()
    }

    fn wall_ms(&self) -> i64 {
        self.world.wall_ms()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        self.world.sleep(duration)
    }

    fn random(&self) -> u64 {
        self.world.random()
    }
}
