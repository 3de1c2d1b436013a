//! Recovery: what a crash has left is read once it lies still, made certain before it is served, and measured by the largest
//! window that there ever was.

use std::time::Duration;

use corelane_log::env::Env;
use corelane_log::sim::Faults;
use corelane_log::{PartitionOptions, Shard, Tuning};
use corelane_proto::ids::Position;

use crate::kit::*;

/// Lives of one history, each of which a SIGKILL ends within a write.
const KILLS: u8 = 20;

#[test]
fn what_a_failed_flush_left_in_the_cache_is_on_the_disk_before_it_is_served() {
    over_seeds(|seed| {
        let mut machine = Machine::new(seed);
        let tuning = Tuning { sync_write_bytes_max: 0, ..Tuning::default() };
        machine.shard = Shard::with_tuning(machine.env.clone(), tuning);
        let machine = machine.run_and_return(async |machine: &Machine| {
            let log = machine.create(options()).await;
            // The disk says once that it could not write, and calls what it still has in its cache clean.
            let disk = machine.env.disk();
            disk.set_faults(Faults { flush_eio: 1.0, gate: true, ..Faults::default() });
            let appended = publish(&log, &set(1, &[16_000])).await;
            assert!(log.wait_durable(appended.next).await.is_err(), "a flush failed");
            disk.set_faults(Faults::default());
        });
        let machine = machine.kill();
        let served = machine.run(async {
            let (log, _) = machine.open(options()).await;
            machine.read(&log, 0).await
        });
        assert_eq!(served, set(1, &[16_000]), "a kill takes nothing out of the cache");
        let machine = machine.power_cut();
        let kept = machine.run(async { machine.read(&machine.open(options()).await.0, 0).await });
        assert!(kept == served, "{} bytes were served, {} are left", served.len(), kept.len());
    });
}

#[test]
fn nothing_is_read_before_the_last_write_of_a_killed_process_has_landed() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        let mut log_bytes = machine.run(async {
            let log = machine.create(options()).await;
            publish_durably(&log, &set(0, &[100])).await;
            machine.read(&log, 0).await
        });
        let mut machine = machine.kill();
        for fill in 1..=KILLS {
            let next = set(fill, &[100]);
            machine = machine.run_and_return(async |machine: &Machine| {
                let (log, _) = machine.open(options()).await;
                // A write is on its way for a thousand times as long as all that the next life does.
                machine.env.disk().set_faults(Faults { slow: 1.0, ..Faults::default() });
                publish(&log, &next).await;
                machine.env.sleep(Duration::from_micros(50)).await;
                machine.env.disk().set_faults(Faults::default());
            });
            machine = machine.kill();
            let before = log_bytes.clone();
            log_bytes = machine.run(async { machine.read(&machine.open(options()).await.0, 0).await });
            let whole = [before.as_slice(), &next].concat();
            let is_whole_sets = log_bytes == before || log_bytes == whole;
            assert!(is_whole_sets, "behind kill {fill} the log has {} bytes, none or all of a set", log_bytes.len());
            machine = machine.kill();
        }
    });
}

#[test]
fn a_smaller_window_cuts_and_zeroes_what_a_larger_one_left() {
    let machine = Machine::new(1);
    let machine = machine.run_and_return(async |machine: &Machine| {
        let log = machine.create(options()).await;
        for number in 0..6 {
            publish_durably(&log, &set(number, &[8000])).await;
        }
        log.close().await.unwrap();
    });
    // As a power cut may leave it within a window of 64 KiB: the second set is torn, those behind it are not.
    let second = 8024;
    machine.sim.disk().hurt(&segment_path(0), second + 100..second + 101, |old| !old);
    let machine = machine.power_cut();
    let smaller = PartitionOptions { unflushed_bytes_max: 20 << 10, ..options() };
    assert_eq!(smaller.window_max_ever, 64 << 10);
    machine.run(async {
        let (log, report) = machine.open(smaller).await;
        assert_eq!((report.end, report.damage), (Position(second), None));
        assert_eq!(report.cut.map(|(_, bytes)| bytes), Some(5 * 8024));
        let left = machine.sim.disk().content(&segment_path(0)).unwrap();
        assert!(left[second as usize..].iter().all(|byte| *byte == 0), "what was cut is zeroed, all of it");
        log.close().await.unwrap();
    });
}

#[test]
fn an_empty_last_segment_has_the_one_before_it_looked_at_as_well() {
    over_seeds(|seed| {
        let rolls = || with_config(|config| config.segment_ms = 60_000);
        let machine = Machine::new(seed);
        let machine = machine.run_and_return(async |machine: &Machine| {
            let log = machine.create(rolls()).await;
            publish_durably(&log, &set(1, &[100])).await;
            publish_durably(&log, &set(2, &[100])).await;
            machine.eventually("a new segment begins", || log.stats().segments == 2).await;
            log.close().await.unwrap();
        });
        let machine = machine.power_cut();
        machine.sim.disk().hurt(&segment_path(0), 124 + 50..124 + 51, |old| !old);
        machine.run(async {
            let (log, report) = machine.open(rolls()).await;
            assert_eq!((report.damage, report.end), (Some(Position(124)), Position(248)));
            log.close().await.unwrap();
        });
    });
}
