//! Random histories of a shard's logs against a plain model: publishers, consumers and operators at work on a hostile
//! disk, with power cuts and kills at any step, recovery included. After each recovery the log ends at a set end that is
//! not below anything that was visible, and every byte of it is what was published.
//!
//! `CORELANE_HISTORIES` says how many histories, or `CORELANE_MINUTES` how long they go on (a soak), `CORELANE_SEED` where
//! to begin. A failure prints the command that runs its history again; `CORELANE_TRACE=1` makes that print every operation
//! of the disk. What was gone through is counted and printed, now and then in a long run and at the end.

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
mod topics;

use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use history::Counts;

/// How often a long run says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

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

/// Prints a line that the test harness does not swallow.
fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("standard output takes a line");
}

fn run(test: &'static str, rot: bool, histories: u64) {
    let first = from_env("CORELANE_SEED", 1);
    let minutes = from_env("CORELANE_MINUTES", 0);
    let histories = from_env("CORELANE_HISTORIES", if minutes > 0 { u64::MAX } else { histories });
    let trace = from_env("CORELANE_TRACE", 0) > 0;
    let counts = Rc::new(Counts::default());
    let began = Instant::now();
    let mut said = began;
    for done in 0..histories {
        if minutes > 0 && began.elapsed() >= Duration::from_secs(minutes * 60) {
            break;
        }
        if said.elapsed() >= PROGRESS_INTERVAL {
            said = Instant::now();
            say(&progress(test, &counts, began));
        }
        let seed = first + done;
        let _replay = Replay { test, seed, done };
        history::run(seed, rot, trace, &counts);
    }
    let last = first + counts.histories.get() - 1;
    say(&format!("{test}: seeds {first} to {last}: {counts}; in {:.0?}", began.elapsed()));
}

fn progress(test: &str, counts: &Counts, began: Instant) -> String {
    let (histories, crashes) = (counts.histories.get(), counts.cuts.get() + counts.kills.get());
    let seconds = began.elapsed().as_secs_f64();
    format!(
        "{test}: after {seconds:.0} s: {histories} histories, {} power cuts, {} kills; {:.0} histories and {:.0} crashes a second",
        counts.cuts.get(),
        counts.kills.get(),
        histories as f64 / seconds,
        crashes as f64 / seconds
    )
}

#[test]
fn nothing_visible_is_ever_lost_or_changed() {
    run("nothing_visible_is_ever_lost_or_changed", false, HISTORIES);
}

#[test]
fn damage_is_kept_copied_or_skipped() {
    run("damage_is_kept_copied_or_skipped", true, HISTORIES_WITH_ROT);
}
