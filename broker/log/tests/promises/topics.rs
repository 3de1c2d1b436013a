//! Topics' directories: what was answered is durable, also where an earlier process was killed half way and what it did is
//! seen, but was never flushed.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use corelane_log::data_dir::{DataDir, FORMAT_VERSION, FoundTopic, TopicIdentity};
use corelane_log::env::{Disk, Env};
use corelane_log::sim::{Limit, Run, Sim, SimDisk};
use corelane_log::{Partition, TopicConfig};
use corelane_proto::ids::TopicId;

use crate::kit::*;

/// More steps than a creation or a deletion has.
const STEPS: u64 = 60;

fn identity() -> TopicIdentity {
    TopicIdentity {
        format_version: FORMAT_VERSION,
        topic_id: TopicId([5; 16]),
        name: "topic".parse().expect("a topic's name"),
        partitions: 1,
        config: TopicConfig::default(),
    }
}

/// Runs one life to its end, or so many steps of it.
fn live<T, F: Future<Output = T>>(sim: &Sim, steps: u64, life: impl FnOnce(DataDir<SimDisk>) -> F) -> Option<T> {
    let env = sim.boot(0);
    let limit = Limit { steps, time: Duration::from_hours(1) };
    match sim.run(life(DataDir::new(env.disk().clone(), "/data")), limit) {
        Run::Done(done) => Some(done),
        Run::OutOfSteps => None,
        Run::OutOfTime(text) | Run::Deadlock(text) => panic!("stuck: {text}"),
    }
}

fn machine(seed: u64) -> Sim {
    let sim = Sim::new(seed);
    let env = sim.boot(0);
    let limit = Limit { steps: 1000, time: Duration::from_hours(1) };
    let made = sim.run(
        async {
            env.disk().create_dir(Path::new("/data")).await?;
            env.disk().sync_dir(Path::new("/")).await
        },
        limit,
    );
    assert!(matches!(made, Run::Done(Ok(()))));
    sim.stop();
    sim
}

fn topics(sim: &Sim) -> Vec<FoundTopic> {
    live(sim, u64::from(u32::MAX), async |dir| dir.topics().await).expect("it ends").expect("the disk is well")
}

#[test]
fn a_topic_made_again_behind_a_kill_is_there_after_a_power_cut() {
    over_seeds(|seed| {
        for steps in 0..STEPS {
            let sim = machine(seed * STEPS + steps);
            let _killed = live(&sim, steps, async |dir| dir.put_topic(&identity()).await);
            sim.kill();
            let made = live(&sim, u64::from(u32::MAX), async |dir| dir.put_topic(&identity()).await);
            made.expect("it ends").expect("the disk is well");
            sim.power_cut();
            let topics = topics(&sim);
            let found = topics.first().and_then(|found| found.identity.as_ref().ok());
            assert_eq!(found, Some(&identity()), "killed after {steps} steps: {topics:?}");
        }
    });
}

#[test]
fn a_topic_deleted_again_behind_a_kill_stays_gone_after_a_power_cut() {
    over_seeds(|seed| {
        for steps in 0..STEPS {
            let TopicIdentity { name, topic_id, .. } = identity();
            let sim = machine(seed * STEPS + steps);
            let made = live(&sim, u64::from(u32::MAX), async |dir| dir.put_topic(&identity()).await);
            made.expect("it ends").expect("the disk is well");
            let _killed = live(&sim, steps, async |dir| dir.delete_topic(&name, topic_id).await);
            sim.kill();
            let deleted = live(&sim, u64::from(u32::MAX), async |dir| dir.delete_topic(&name, topic_id).await);
            deleted.expect("it ends").expect("the disk is well");
            sim.power_cut();
            let topics = topics(&sim);
            assert!(topics.is_empty(), "killed after {steps} steps: {topics:?}");
        }
    });
}

#[test]
fn a_partition_opened_behind_a_killed_creation_is_there_after_a_power_cut() {
    over_seeds(|seed| {
        for steps in 0..STEPS {
            let machine = Machine::new(seed * STEPS + steps);
            let options = options();
            let limit = Limit { steps, time: Duration::from_hours(1) };
            drop(machine.sim.run(Partition::create(&machine.shard, topic_dir(), &options), limit));
            let machine = machine.kill();
            let next = machine.run(async {
                let (log, _) = machine.try_open(options.clone(), None).await.ok()?;
                Some(publish_durably(&log, &set(1, &[50])).await.next)
            });
            // Where the creation had not come to a segment there is nothing to open.
            let Some(next) = next else { continue };
            let machine = machine.power_cut();
            let end = machine.run(async { machine.open(options.clone()).await.0.bounds().end });
            assert_eq!(end, next, "killed after {steps} steps");
        }
    });
}
