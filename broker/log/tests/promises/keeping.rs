//! Keeping: retention by age and size, clocks that jump, trim.

use std::time::Duration;

use corelane_log::env::{BLOCK_BYTES, Disk, Env};
use corelane_log::sim::Faults;
use corelane_log::{KeepError, Shard, TopicConfig, Tuning};
use corelane_proto::ids::Position;

use crate::kit::*;

const MINUTE: Duration = Duration::from_mins(1);

#[test]
fn data_expires_by_age_without_a_restart_and_the_ids_go_on() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(with_config(|config| config.retention_ms = 60_000)).await;
            let began = machine.env.monotonic();
            let end = publish_durably(&log, &set(1, &[100])).await.next;
            machine.eventually("the active segment is rolled and goes", || log.bounds().start == end).await;
            assert!(machine.since(began) >= MINUTE, "not before its time");
            let next = publish_durably(&log, &set(2, &[100])).await;
            assert_eq!(next.first, end);
            log.configure(TopicConfig { retention_ms: 1_000, ..with_config(|_| ()).config }).unwrap();
            machine.eventually("a new setting holds", || log.bounds().start == next.next).await;
            assert_eq!(log.stats().segments, 1);
        });
    });
}

#[test]
fn a_wall_clock_that_jumps_deletes_nothing_and_stops_nothing() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(with_config(|config| config.retention_ms = 60_000)).await;
            publish_durably(&log, &set(1, &[100])).await;
            machine.env.jump_wall_ms(1_000_000_000);
            let began = machine.env.monotonic();
            let end = publish_durably(&log, &set(1, &[100])).await.next;
            machine.env.sleep(MINUTE / 2).await;
            machine.env.jump_wall_ms(-2_000_000_000);
            machine.eventually("time goes on", || log.bounds().start == end).await;
            assert!(machine.since(began) >= MINUTE, "nothing is older for it");
        });
    });
}

#[test]
fn what_came_after_the_checkpoint_is_never_too_old_after_a_crash() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        let first_floor = std::cell::Cell::new(None);
        let published_ms = std::cell::Cell::new(0);
        let machine = machine.run_and_return(async |machine: &Machine| {
            // Whatever keeps a file's time from being true (the crash lost it, a clock was wrong) makes it an hour old.
            machine.env.jump_wall_ms(-3_600_000);
            let log = machine.create(options()).await;
            publish_durably(&log, &set(1, &[8000])).await;
            first_floor.set(Some(log.checkpoint_entry()));
            for number in 0..12 {
                publish_durably(&log, &set(number, &[8000])).await;
            }
            // As a clock that is right would have shown it.
            published_ms.set(machine.env.wall_ms() + 3_600_000);
        });
        let mut machine = machine.power_cut();
        machine.env.jump_wall_ms(3_600_000);
        for path in machine.sim.disk().paths() {
            if path.extension().is_some_and(|extension| extension == "summary") {
                machine = machine.run_and_return(async |machine: &Machine| {
                    machine.env.disk().remove_file(&path).await.unwrap();
                    machine.env.disk().sync_dir(&partition_dir()).await.unwrap();
                });
            }
        }
        let keeps_a_minute = || with_config(|config| config.retention_ms = 60_000);
        for floor in [None, first_floor.get()] {
            machine = machine.run_and_return(async |machine: &Machine| {
                let (log, _) = machine.try_open(keeps_a_minute(), floor).await.unwrap();
                // A slow disk may have taken longer than that.
                let is_young = || machine.env.wall_ms() - published_ms.get() < 60_000;
                assert!(log.stats().segments > 1 || !is_young(), "closed segments are looked at as well");
                machine.env.sleep(MINUTE / 8).await;
                let start = log.bounds().start;
                assert!(start == Position(0) || !is_young(), "{start}: too early, nothing is a minute old");
            });
            machine = machine.power_cut();
        }
        machine.run(async {
            let (log, _) = machine.try_open(keeps_a_minute(), None).await.unwrap();
            let end = log.bounds().end;
            machine.eventually("it goes when its time has come", || log.bounds().start == end).await;
        });
    });
}

#[test]
fn the_oldest_segments_go_when_there_is_too_much() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(with_config(|config| config.retention_bytes = 100_000)).await;
            for number in 0..60 {
                publish_durably(&log, &set(number, &[8000])).await;
            }
            let kept = || log.bounds().end - log.bounds().start;
            machine.eventually("the rest is a segment more than was asked for", || kept() < 100_000 + (64 << 10)).await;
            assert!(kept() >= 100_000, "{} bytes are kept", kept());
        });
    });
}

#[test]
fn a_trim_is_durable_when_it_is_answered() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        let start = std::cell::Cell::new(Position(0));
        let machine = machine.run_and_return(async |machine: &Machine| {
            let log = machine.create(options()).await;
            for number in 0..40 {
                publish_durably(&log, &set(number, &[8000])).await;
            }
            assert_eq!(log.trim(Position(10)).await.unwrap(), Position(0));
            start.set(log.trim(Position(200_000)).await.unwrap());
            assert!(start.get() > Position(100_000));
            assert!(matches!(log.trim(Position(1_000_000)).await, Err(KeepError::OutOfRange { .. })));
        });
        let machine = machine.power_cut();
        machine.run(async {
            let (log, _) = machine.open(options()).await;
            assert_eq!(log.bounds().start, start.get());
        });
    });
}

#[test]
fn a_segment_is_closed_when_its_first_message_is_old() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(with_config(|config| config.segment_ms = 60_000)).await;
            machine.env.sleep(2 * MINUTE).await;
            assert_eq!(log.stats().segments, 1, "an empty segment is never old");
            for segments in 2..5 {
                let began = machine.env.monotonic();
                publish_durably(&log, &set(1, &[100])).await;
                machine.eventually("a new segment begins", || log.stats().segments == segments).await;
                assert!(machine.since(began) >= MINUTE, "not before its time");
            }
        });
    });
}

#[test]
fn zeros_written_ahead_make_no_closed_segment_longer_than_it_is() {
    over_seeds(|seed| {
        let mut machine = Machine::new(seed);
        let tuning = Tuning {
            zeros_after_commits: 1,
            zeros_step_bytes: 2 * BLOCK_BYTES as u64,
            zeros_ahead_bytes_min: 4 * BLOCK_BYTES as u64,
            ..Tuning::default()
        };
        machine.shard = Shard::with_tuning(machine.env.clone(), tuning);
        machine.run(async {
            // Now and then zeros take longer than everything that follows them.
            machine.env.disk().set_faults(Faults { slow: 0.2, ..Faults::default() });
            let log = machine.create(options()).await;
            for number in 0..200 {
                publish_durably(&log, &set(number, &[3000 + usize::from(number % 7) * 1000])).await;
            }
            // Until everything that was begun has ended, and closed segments were cut at their ends.
            machine.env.sleep(10 * MINUTE).await;
            log.close().await.unwrap();
        });
        let name = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap()[..20].parse::<u64>().unwrap();
        let is_segment = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "log");
        let segments: Vec<_> = machine.sim.disk().paths().into_iter().filter(is_segment).collect();
        assert!(segments.len() > 10, "the log went on in segment after segment");
        for pair in segments.windows(2) {
            let bytes = machine.sim.disk().content(&pair[0]).unwrap().len() as u64;
            assert!(name(&pair[0]) + bytes <= name(&pair[1]), "{}: {bytes} bytes, too many", pair[0].display());
        }
    });
}
