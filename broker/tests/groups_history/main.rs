//! Histories of a group in virtual time: the brokers' managers as they are, over a registry in memory; brokers paused, killed,
//! cut off and waking with old requests; members paused anywhere, cloned, stuck; topics that come and go, a registry that
//! is put back. An oracle sees everything. The seed says what happens; it is printed when something is wrong.
//!
//! `CORELANE_FULL=1` runs many more, `CORELANE_HISTORIES=n` so many; `CORELANE_SEED=n` runs one, and `CORELANE_TRACE=1`
//! prints each change of its registry.

mod clock;
mod ghost;
mod member;
mod process;
mod store;
mod world;

use world::{Fault, Figures};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run_many(count: u64, first: u64, faults: Option<&[Fault]>) -> Figures {
    let (first, count) = match number("CORELANE_SEED") {
        Some(seed) => (seed, 1),
        None => (first, number("CORELANE_HISTORIES").unwrap_or(count)),
    };
    let mut all = Figures::default();
    let mut wrong = Vec::new();
    for seed in first..first + count {
        match clock::run(world::run(seed, faults)) {
            Ok(figures) => {
                all.delivered += figures.delivered;
                all.overlaps += figures.overlaps;
                all.early += figures.early;
                all.claims += figures.claims;
                all.commits += figures.commits;
            }
            Err(what) => wrong.push(what),
        }
    }
    println!("{count} histories from seed {first}: {all:?}");
    assert!(wrong.is_empty(), "{} of {count} histories are wrong:\n{}", wrong.len(), wrong.join("\n"));
    all
}

fn is_full() -> bool {
    std::env::var_os("CORELANE_FULL").is_some()
}

#[test]
fn a_group_delivers_everything_to_one_owner_whatever_happens() {
    let all = run_many(if is_full() { 3_000 } else { 60 }, 0, None);
    assert!(all.delivered > 0 && all.claims > 0 && all.commits > 0);
}

#[test]
fn a_group_outlives_a_registry_that_is_put_back() {
    let faults = [
        Fault::Restore,
        Fault::Visit,
        Fault::Visit,
        Fault::SlowNet,
        Fault::CloneMember,
        Fault::PauseBroker,
        Fault::Cut,
    ];
    run_many(if is_full() { 1_000 } else { 25 }, 100_000, Some(&faults));
}

#[test]
fn a_group_outlives_topics_that_come_and_go() {
    let faults =
        [Fault::Recreate, Fault::Delete, Fault::AddPartition, Fault::AcceptLoss, Fault::SlowNet, Fault::SlowWatch];
    run_many(if is_full() { 1_000 } else { 25 }, 200_000, Some(&faults));
}
