//! What a life is full of: publishers, consumers, operators, whoever takes memory or space away. Each checks what it sees
//! against the oracle at once.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use corelane_log::env::{Arena, BLOCK_BYTES, Chunk, Env, File};
use corelane_log::sim::{Faults, SimEnv};
use corelane_log::{Bounds, ClosedReason, EnvFile, Piece};
use corelane_proto::ids::Position;

use crate::dice::Dice;
use crate::log::Log;
use crate::oracle::Wall;
use crate::plan::Plan;

/// Counts the actors that are still at work.
#[derive(Default)]
pub(crate) struct AtWork {
    count: Cell<usize>,
    waker: RefCell<Option<Waker>>,
}

impl AtWork {
    pub(crate) fn begin(&self) {
        self.count.set(self.count.get() + 1);
    }

    fn end(&self) {
        self.count.set(self.count.get() - 1);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Completes when all have ended.
    pub(crate) async fn all_done(&self) {
        poll_fn(|cx| {
            if self.count.get() == 0 {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// What the actors of a life share.
pub(crate) struct Stage {
    pub(crate) env: SimEnv,
    pub(crate) dice: Dice,
    pub(crate) plan: Rc<Plan>,
    pub(crate) at_work: AtWork,
    /// The disk may answer with EIO in this life.
    pub(crate) may_fail: bool,
    /// All actors come to an end, and so does the life; else there is work until the crash.
    pub(crate) ends_in_order: bool,
    /// Which life of the broker this is; the data directory's identity counts them.
    pub(crate) starts: u64,
    pub(crate) boot: Duration,
    pub(crate) wall: Rc<Wall>,
}

impl Stage {
    pub(crate) fn spawn(self: &Rc<Self>, name: &str, actor: impl Future<Output = ()> + 'static) {
        self.at_work.begin();
        let stage = self.clone();
        self.env.spawn(name, async move {
            actor.await;
            stage.at_work.end();
        });
    }

    pub(crate) async fn pause(&self) {
        let us = self.dice.below(self.plan.pause_us) as u64;
        self.env.sleep(Duration::from_micros(us)).await;
    }

    /// Looks at the bounds and tells the oracle.
    pub(crate) fn look(&self, log: &Log) -> Bounds {
        let bounds = log.partition().bounds();
        let mut oracle = log.oracle.borrow_mut();
        let now = self.env.monotonic();
        let durable = bounds.durable_end.0;
        oracle.start_moved(bounds.start.0, durable, log.keeping(), now, self.boot, &self.wall);
        oracle.saw_bounds(bounds.start.0, bounds.visible_end.0, bounds.durable_end.0);
        bounds
    }

    pub(crate) fn check_closed(&self, reason: &ClosedReason, log: &Log) {
        match reason {
            ClosedReason::Disk { .. } => assert!(self.may_fail, "closed though the disk is well: {reason}"),
            ClosedReason::NoRoomForCopy { .. } => {}
            ClosedReason::Deleted => assert!(log.is_deleted.get(), "partition {} was not deleted", log.number),
            other => panic!("partition {} closed by nobody: {other}", log.number),
        }
    }

    /// What the pieces of a read hold. `None` when the disk failed.
    pub(crate) async fn fetch(&self, pieces: Vec<Piece<SimEnv>>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Memory(slice) => {
                    if self.dice.chance(0.3) {
                        self.pause().await;
                    }
                    bytes.extend_from_slice(&slice);
                }
                Piece::File { file, offset, bytes: count } => {
                    self.pause().await;
                    bytes.extend(self.fetch_file(&file, offset, count).await?);
                }
            }
        }
        Some(bytes)
    }

    async fn fetch_file(&self, file: &EnvFile<SimEnv>, offset: u64, bytes: usize) -> Option<Vec<u8>> {
        let from = offset - offset % BLOCK_BYTES as u64;
        let whole = (offset + bytes as u64 - from).next_multiple_of(BLOCK_BYTES as u64) as usize;
        // A read that went through the disk may meet a write in flight; without memory for it, a look must do.
        let Some(chunk) = self.env.arena().allocate(whole) else {
            return Some(file.peek(offset, bytes));
        };
        match file.read(&chunk, 0, whole, from).await {
            Ok(_) => {
                let skip = (offset - from) as usize;
                Some(chunk.slice(skip..chunk.filled().min(skip + bytes)).to_vec())
            }
            Err(error) => {
                assert!(self.may_fail, "a read failed though the disk is well: {error}");
                None
            }
        }
    }

    // Actors ---------------------------------------------------------------------------------------------------------

    pub(crate) async fn operate(self: Rc<Self>, log: Rc<Log>) {
        for _ in 0..self.dice.below(self.plan.operations / 4 + 2) {
            self.pause().await;
            match self.dice.below(6) {
                0 => {
                    let config = self.plan.config(&self.dice);
                    log.will_configure(&config);
                    self.env.trace(|| format!("configure partition {}: {config:?}", log.number));
                    log.partition().configure(config).expect("a valid configuration");
                }
                1 => {
                    let to = self.somewhere(&log);
                    log.will_trim(to);
                    self.env.trace(|| format!("trim partition {} to {to}", log.number));
                    match log.partition().trim(Position(to)).await {
                        Ok(start) => {
                            let shown = self.look(&log).start;
                            assert!(start.0 <= to.max(shown.0), "trim to {to} moved the start to {start}");
                            log.oracle.borrow_mut().trimmed(start.0);
                        }
                        Err(error) => {
                            let excused = self.may_fail || self.plan.full > 0.0 || log.is_deleted.get();
                            assert!(excused, "trim failed though the disk is well: {error}");
                        }
                    }
                }
                2 if self.plan.wall_jumps => {
                    let by_ms = self.dice.pick(&[-3_000_000_000, -5_000, 5_000, 100_000, 3_000_000_000]);
                    self.env.trace(|| format!("the wall clock jumps by {by_ms} ms"));
                    self.wall.jump(self.env.monotonic(), by_ms);
                    self.env.jump_wall_ms(by_ms);
                }
                3 => self.env.sleep(Duration::from_millis(self.dice.scale(3_000) as u64)).await,
                _ => {
                    self.look(&log);
                    let stats = log.partition().stats();
                    assert!(stats.segments > 0);
                }
            }
        }
    }

    /// Takes memory from the arena for a while.
    pub(crate) async fn hoard(self: Rc<Self>) {
        for _ in 0..self.dice.below(5) {
            self.pause().await;
            let total = self.env.arena().bytes_total();
            let chunk = self.env.arena().allocate(total / self.dice.pick(&[4, 8, 16]));
            self.pause().await;
            drop(chunk);
        }
    }

    /// Fills the disk, or nearly, for a while.
    pub(crate) async fn fill_disk(self: Rc<Self>) {
        for _ in 0..self.dice.below(4) {
            self.pause().await;
            let disk = self.env.disk();
            let room = self.dice.pick(&[0, 1, 3, 9]) * BLOCK_BYTES as u64;
            disk.set_faults(Faults { capacity_bytes: disk.bytes_used() + room, ..disk.faults() });
            self.env.sleep(Duration::from_millis(self.dice.scale(2_000) as u64)).await;
            disk.set_faults(Faults { capacity_bytes: u64::MAX, ..disk.faults() });
        }
    }
}
