//! What is drawn once per history: how many partitions, how small everything is, what goes wrong and how often.

use corelane_log::env::BLOCK_BYTES;
use corelane_log::sim::Faults;
use corelane_log::{TopicConfig, Tuning};

use crate::dice::Dice;

pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// The largest sets of the smallest to the largest topics.
const SET_BYTES: [u64; 3] = [2_000, 5_000, 16_000];

pub(crate) struct Plan {
    pub(crate) partitions: usize,
    /// Beside them a topic comes and goes.
    pub(crate) passing: bool,
    /// Crashes; the life behind the last one is calm and ends in order.
    pub(crate) crashes: usize,
    /// A life ends after at most so many steps.
    steps_max: usize,
    /// How often a crash is a SIGKILL and no power cut.
    pub(crate) kill: f64,
    /// How often a life that comes to its end is stopped in order.
    pub(crate) orderly: f64,
    pub(crate) arena_bytes: usize,
    pub(crate) set_bytes_max: u64,
    pub(crate) publishers: usize,
    pub(crate) consumers: usize,
    /// What each actor does in a life at most.
    pub(crate) operations: usize,
    /// The longest pause between two operations of an actor, in microseconds.
    pub(crate) pause_us: usize,
    pub(crate) faults: Faults,
    /// How often a life has those faults.
    pub(crate) faulty: f64,
    /// How often somebody fills the disk.
    pub(crate) full: f64,
    pub(crate) wall_jumps: bool,
}

impl Plan {
    pub(crate) fn draw(dice: &Dice) -> Self {
        let rate = |dice: &Dice| dice.pick(&[0.0, 0.0, 0.002, 0.02]);
        let faults = Faults {
            write_eio: rate(dice),
            flush_eio: rate(dice),
            read_eio: rate(dice),
            names_eio: rate(dice),
            gate: dice.chance(0.5),
            slow: dice.pick(&[0.0, 0.0, 0.01, 0.1]),
            ..Faults::default()
        };
        Self {
            partitions: dice.pick(&[1, 1, 1, 2, 3]),
            passing: dice.chance(0.2),
            crashes: 1 + dice.below(7),
            steps_max: dice.pick(&[300, 1000, 4000]),
            kill: dice.pick(&[0.1, 0.3, 0.6]),
            orderly: dice.pick(&[0.0, 0.5, 1.0]),
            arena_bytes: dice.pick(&[1 << 20, 2 << 20, 8 << 20]),
            set_bytes_max: dice.pick(&SET_BYTES),
            publishers: dice.pick(&[1, 1, 2, 3]),
            consumers: dice.pick(&[0, 1, 2]),
            operations: dice.pick(&[5, 20, 60]),
            pause_us: dice.pick(&[1, 100, 3_000, 100_000]),
            faults,
            faulty: dice.pick(&[0.0, 0.0, 0.5]),
            full: dice.pick(&[0.0, 0.0, 0.3]),
            wall_jumps: dice.chance(0.2),
        }
    }

    /// After how many steps a life ends; often inside recovery.
    pub(crate) fn steps(&self, dice: &Dice) -> u64 {
        (if dice.chance(0.3) { dice.scale(200) } else { 100 + dice.below(self.steps_max) }) as u64
    }

    /// Sizes so small that a history of some kilobytes takes every path.
    pub(crate) fn tuning(dice: &Dice) -> Tuning {
        let block = BLOCK_BYTES;
        Tuning {
            sync_write_bytes_max: dice.pick(&[0, 0, 1_000, 2 * BLOCK, 128 << 10]),
            write_bytes_min: dice.pick(&[BLOCK, BLOCK, 2 * BLOCK, 512 << 10]),
            write_bytes_max: dice.pick(&[BLOCK, 4 * BLOCK, 1 << 20]),
            writes_in_flight_max: dice.pick(&[1, 2, 4, 8]),
            flush_bytes_min: dice.pick(&[0, 1, 3 * BLOCK, 1 << 20]),
            allocate_bytes_first: dice.pick(&[BLOCK, 2 * BLOCK, 32 << 10]),
            allocate_step_bytes_max: dice.pick(&[2 * BLOCK, 16 * BLOCK, 64 << 20]).max(32 << 10),
            zeros_commit_bytes_max: dice.pick(&[BLOCK, 16 << 10, 128 << 10]),
            zeros_after_commits: dice.pick(&[0, 1, 3, 32]),
            zeros_step_bytes: dice.pick(&[BLOCK, 2 * BLOCK, 8 * BLOCK, 256 << 10]),
            zeros_ahead_bytes_min: dice.pick(&[0, 1_000, BLOCK, 4 * BLOCK, 128 << 10]),
            tail_chunk_bytes_max: dice.pick(&[block, 4 * block, 1 << 20]),
            kept_bytes_max: dice.pick(&[0, 3_000, 4 << 20]),
            walk_bytes: dice.pick(&[block, 2 * block, 256 << 10]),
            stretch_bytes: dice.pick(&[100, 1_000, 64 << 10]),
            summaries_loaded_max: dice.pick(&[1, 4]),
            read_files_max: dice.pick(&[1, 3, 256]),
            ..Tuning::default()
        }
    }

    /// A write window; each life may have another.
    pub(crate) fn window(&self, dice: &Dice) -> u64 {
        self.set_bytes_max + BLOCK + dice.pick(&[0, 777, BLOCK, 4 * BLOCK, 16 * BLOCK])
    }

    /// A topic's configuration.
    pub(crate) fn config(&self, dice: &Dice) -> TopicConfig {
        let (flush_messages, flush_interval_ms) =
            dice.pick(&[(0, 0), (0, 0), (0, 0), (5, 0), (0, 20), (30, 5), (1, 0)]);
        TopicConfig {
            retention_ms: dice.pick(&[0, 0, 30, 1_000, 60_000]),
            retention_bytes: dice.pick(&[0, 0, 10_000, 100_000]),
            segment_bytes: self.set_bytes_max.max(dice.pick(&[BLOCK, 10_000, 30_000, 100_000])),
            segment_ms: dice.pick(&[0, 0, 50, 2_000]),
            flush_messages,
            flush_interval_ms,
            message_bytes_max: self.set_bytes_max as u32,
            set_bytes_max: self.set_bytes_max as u32,
        }
    }
}
