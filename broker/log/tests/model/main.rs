//! Random histories of a shard's logs against a plain model: publishers, consumers and operators at work on a hostile
//! disk, with power cuts and kills at any step, recovery included. After each recovery the log ends at a set end that is
//! not below anything that was visible, and every byte of it is what was published.
//!
//! `CORELANE_HISTORIES` says how many histories (a soak runs millions), `CORELANE_SEED` where to begin. A failure prints
//! the command that runs its history again; `CORELANE_TRACE=1` makes that print every operation of the disk.

mod actors;
mod consumers;
mod damage;
mod dice;
mod history;
mod life;
mod log;
mod oracle;
mod plan;
mod publishers;
mod sets;

use std::rc::Rc;

use history::Counts;

/// What the ordinary test runs: some tens of seconds.
const HISTORIES: u64 = 4_000;
const HISTORIES_WITH_ROT: u64 = 1_500;

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Prints how to run a history again, should it panic.
struct Replay {
    test: &'static str,
    seed: u64,
    done: u64,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "seed {} failed after {} good histories; again: CORELANE_SEED={} CORELANE_HISTORIES=1 CORELANE_TRACE=1 \
                 cargo test -p corelane-log --test model {} -- --nocapture",
                self.seed, self.done, self.seed, self.test
            );
        }
    }
}

fn run(test: &'static str, rot: bool, histories: u64) {
    let first = from_env("CORELANE_SEED", 1);
    let histories = from_env("CORELANE_HISTORIES", histories);
    let trace = from_env("CORELANE_TRACE", 0) > 0;
    let counts = Rc::new(Counts::default());
    for seed in first..first + histories {
        let _replay = Replay { test, seed, done: seed - first };
        history::run(seed, rot, trace, &counts);
    }
    println!("{test}: {counts}");
}

#[test]
fn nothing_visible_is_ever_lost_or_changed() {
    run("nothing_visible_is_ever_lost_or_changed", false, HISTORIES);
}

#[test]
fn damage_is_kept_copied_or_skipped() {
    run("damage_is_kept_copied_or_skipped", true, HISTORIES_WITH_ROT);
}
