//! A history: lives, with a crash between one and the next, over one disk.

use std::cell::Cell;
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use corelane_log::env::{Arena, Disk, Env};
use corelane_log::sim::{Faults, Limit, Run, Sim};
use corelane_log::{Recovered, Shard};

use crate::actors::{AtWork, Stage};
use crate::damage;
use crate::dice::Dice;
use crate::life::Life;
use crate::log::{DATA_DIR, Log};
use crate::oracle::Wall;
use crate::plan::Plan;
use crate::topics::{Topics, lasting_home};

/// Steps that are enough for anything that ends.
const STEPS_ENOUGH: u64 = 3_000_000;
/// Virtual time after which a life that has not ended never will.
const TIME_ENOUGH: Duration = Duration::from_hours(24);

/// What all histories together went through.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) histories: Cell<u64>,
    pub(crate) cuts: Cell<u64>,
    pub(crate) kills: Cell<u64>,
    pub(crate) stops: Cell<u64>,
    /// Lives whose partitions were all opened; the other crashes came inside recovery.
    pub(crate) opened: Cell<u64>,
    /// Topics that were made and deleted again.
    pub(crate) deleted: Cell<u64>,
    pub(crate) normal: Cell<u64>,
    pub(crate) tails: Cell<u64>,
    pub(crate) damage: Cell<u64>,
    pub(crate) bytes: Cell<u64>,
    /// Times that stored bytes were changed behind the log's back, and how many bytes that were.
    pub(crate) injuries: Cell<u64>,
    pub(crate) bytes_hurt: Cell<u64>,
    pub(crate) kept_after_injury: Cell<u64>,
    pub(crate) cut_after_injury: Cell<u64>,
}

pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl Counts {
    pub(crate) fn recovered(&self, recovered: &Recovered) {
        count(match recovered {
            Recovered { damage: Some(_), .. } => &self.damage,
            Recovered { cut: Some(_), .. } => &self.tails,
            _ => &self.normal,
        });
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lives = self.cuts.get() + self.kills.get() + self.stops.get();
        write!(
            f,
            "{} histories, {} power cuts, {} kills, {} orderly stops, {} crashes inside recovery; recoveries: {} normal, \
             {} with a tail, {} with damage; {} topics deleted; {} injuries, {} bytes hurt: {} times all was kept, {} times \
             cut with a copy; {} MB published",
            self.histories.get(),
            self.cuts.get(),
            self.kills.get(),
            self.stops.get(),
            lives - self.opened.get(),
            self.normal.get(),
            self.tails.get(),
            self.damage.get(),
            self.deleted.get(),
            self.injuries.get(),
            self.bytes_hurt.get(),
            self.kept_after_injury.get(),
            self.cut_after_injury.get(),
            self.bytes.get() / 1_000_000
        )
    }
}

/// Makes the directories that the registry's side makes, durably, before anything goes wrong.
fn make_directories(sim: &Sim) {
    let env = sim.boot(0);
    let limit = Limit { steps: STEPS_ENOUGH, time: TIME_ENOUGH };
    let made = sim.run(
        async {
            let disk = env.disk();
            let home = lasting_home().dir;
            for dir in [Path::new(DATA_DIR), &home] {
                disk.create_dir(dir).await?;
                disk.sync_dir(dir.parent().expect("it is not the root")).await?;
            }
            Ok::<_, std::io::Error>(())
        },
        limit,
    );
    assert!(matches!(made, Run::Done(Ok(()))), "{made:?}");
}

/// Runs the history of `seed`; panics when a promise is broken.
pub(crate) fn run(seed: u64, rot: bool, trace: bool, counts: &Rc<Counts>) {
    let sim = Sim::new(seed);
    sim.set_trace(trace);
    let dice = Dice::new(seed);
    let plan = Rc::new(Plan::draw(&dice));
    make_directories(&sim);
    let logs: Vec<Rc<Log>> =
        (0..plan.partitions as u32).map(|number| Log::new(number, lasting_home(), &plan, &dice)).collect();
    let topics = Rc::new(Topics::new(logs.clone()));
    let wall = Rc::new(Wall::default());
    let windows: Vec<u64> = (0..=plan.crashes).map(|_| plan.window(&dice)).collect();
    for crash in 0..=plan.crashes {
        let calm = crash == plan.crashes;
        let orderly = calm || dice.chance(plan.orderly);
        let faulty = !calm && !rot && dice.chance(plan.faulty);
        let capacity_bytes = if dice.chance(0.5) || calm { u64::MAX } else { sim.disk().faults().capacity_bytes };
        let faults = if faulty { plan.faults } else { Faults::default() };
        sim.disk().set_faults(Faults { capacity_bytes, ..faults });
        let env = sim.boot(plan.arena_bytes);
        let stage = Rc::new(Stage {
            env: env.clone(),
            dice: dice.clone(),
            plan: plan.clone(),
            at_work: AtWork::default(),
            may_fail: faulty,
            ends_in_order: orderly,
            starts: crash as u64 + 1,
            boot: env.monotonic(),
            wall: wall.clone(),
        });
        let life = Rc::new(Life {
            stage,
            topics: topics.clone(),
            shard: Shard::with_tuning(env.clone(), Plan::tuning(&dice)),
            window: windows[crash],
            window_max_ever: windows[..=crash].iter().copied().max().unwrap_or(0),
            calm,
            counts: counts.clone(),
        });
        let steps = if calm { STEPS_ENOUGH } else { plan.steps(&dice) };
        let at_risk = dice.pick(&[0, 1, 2, 4, 8]);
        let worth_a_crash = || sim.disk().blocks_at_risk() >= at_risk;
        let end = sim.run_to(life.run(), Limit { steps, time: TIME_ENOUGH }, worth_a_crash);
        match end {
            Run::Done(clean) => {
                if clean {
                    drop(life);
                    count(&counts.stops);
                    sim.stop();
                    assert_eq!(env.arena().bytes_used(), 0, "memory is held after an orderly stop");
                    continue;
                }
            }
            Run::OutOfSteps => {}
            Run::OutOfTime(text) | Run::Deadlock(text) => panic!("stuck {text}"),
        }
        assert!(!calm, "a calm life has more steps than it needs");
        // Whatever was visible in the last moment must survive.
        for log in topics.logs() {
            life.stage.look(&log);
            *log.left.borrow_mut() = None;
        }
        topics.drop_handles();
        drop(life);
        if dice.chance(plan.kill) {
            count(&counts.kills);
            sim.kill();
            for log in &logs {
                *log.left.borrow_mut() = None;
            }
        } else {
            count(&counts.cuts);
            sim.power_cut();
            // The life that finds the injury may be any of those to come, with any of their windows.
            let window = windows.iter().copied().max().unwrap_or(0);
            for log in logs.iter().filter(|log| rot && log.may_be_hurt() && dice.chance(0.5)) {
                *log.left.borrow_mut() = None;
                let injury = damage::inject(&sim, log, &dice, window);
                if let Some(injury) = &injury {
                    count(&counts.injuries);
                    counts.bytes_hurt.set(counts.bytes_hurt.get() + injury.bytes_hurt());
                }
                *log.injury.borrow_mut() = injury.map(Rc::new);
            }
            for log in logs.iter().filter(|log| log.left.borrow().is_none()) {
                let last = damage::segments(&sim, log).pop();
                *log.left.borrow_mut() = last.and_then(|(base, path)| Some((base, sim.disk().content(&path)?)));
            }
        }
        assert_eq!(env.arena().bytes_used(), 0, "memory is held after all tasks are gone");
    }
    count(&counts.histories);
    for log in &logs {
        counts.bytes.set(counts.bytes.get() + log.oracle.borrow().end() - log.origin);
    }
}
