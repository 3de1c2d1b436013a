//! Opening: what is refused, what is reported, what recovery keeps.

use corelane_log::env::{Disk, Env, File, OpenMode};
use corelane_log::sim::Faults;
use corelane_log::{AppendError, CheckpointEntry, ClosedReason, OpenError, PartitionOptions};
use corelane_proto::ids::Position;

use crate::kit::*;

/// A machine whose log holds `sets` sets of one message of 8,000 bytes, closed in order.
fn with_log(seed: u64, sets: u8) -> Machine {
    let machine = Machine::new(seed);
    let machine = machine.run_and_return(async |machine: &Machine| {
        let log = machine.create(options()).await;
        for number in 0..sets {
            publish_durably(&log, &set(number, &[8000])).await;
        }
        log.close().await.unwrap();
    });
    machine.power_cut()
}

#[test]
fn a_log_is_made_once_and_an_empty_attempt_is_taken_over() {
    let machine = with_log(1, 0);
    machine.run(async {
        let log = machine.create(options()).await;
        publish_durably(&log, &set(1, &[1])).await;
        log.close().await.unwrap();
        let again = corelane_log::Partition::create(&machine.shard, topic_dir(), &options()).await;
        assert!(matches!(again.err(), Some(OpenError::Exists { .. })));
    });
}

#[test]
fn what_is_missing_or_of_another_epoch_is_refused() {
    let machine = with_log(2, 20);
    machine.run(async {
        let other = PartitionOptions { partition: 9, ..options() };
        machine.env.disk().create_dir(&topic_dir().join("9")).await.unwrap();
        assert!(matches!(machine.try_open(other, None).await.err(), Some(OpenError::Missing { .. })));
        let next = PartitionOptions { epoch: epoch(2), ..options() };
        assert!(matches!(machine.try_open(next, None).await.err(), Some(OpenError::Epoch { .. })));
        let segments: Vec<_> =
            machine.sim.disk().paths().into_iter().filter(|p| p.extension().is_some_and(|e| e == "log")).collect();
        assert!(segments.len() > 2);
        machine.env.disk().remove_file(&segments[1]).await.unwrap();
        assert!(matches!(machine.try_open(options(), None).await.err(), Some(OpenError::Gap { .. })));
    });
}

fn start_mark(at: u64) -> std::path::PathBuf {
    partition_dir().join(format!("{at:020}.start"))
}

/// The bases of the segments that are there.
fn bases(machine: &Machine) -> Vec<u64> {
    let paths = machine.sim.disk().paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "log"));
    paths.map(|path| path.file_name().unwrap().to_str().unwrap()[..20].parse().unwrap()).collect()
}

#[test]
fn a_missing_oldest_segment_is_refused_until_it_is_back_or_its_loss_is_accepted() {
    let machine = with_log(10, 40);
    let all = bases(&machine);
    let trimmed_to = all[2];
    // What retention and trim took is not missed; a crash anywhere leaves it so: the model test has those.
    let machine = machine.run_and_return(async |machine: &Machine| {
        let (log, _) = machine.open(options()).await;
        assert_eq!(log.trim(Position(trimmed_to)).await.unwrap(), Position(trimmed_to));
    });
    let machine = machine.power_cut();
    let machine = machine.run_and_return(async |machine: &Machine| {
        let (log, _) = machine.open(options()).await;
        assert_eq!(log.bounds().start, Position(trimmed_to));
        log.close().await.unwrap();
        let away = topic_dir().join("away");
        machine.env.disk().rename(&segment_path(trimmed_to), &away).await.unwrap();
        match machine.try_open(options(), None).await.err() {
            Some(OpenError::MissingStart { from, to, .. }) => assert_eq!((from.0, to.0), (trimmed_to, all[3])),
            other => panic!("a missing segment was expected, not {other:?}"),
        }
        machine.env.disk().rename(&away, &segment_path(trimmed_to)).await.unwrap();
        let (log, _) = machine.open(options()).await;
        assert_eq!(log.bounds().start, Position(trimmed_to));
        log.close().await.unwrap();
        machine.env.disk().remove_file(&segment_path(trimmed_to)).await.unwrap();
        machine.env.disk().remove_file(&start_mark(trimmed_to)).await.unwrap();
        let (log, _) = machine.open(options()).await;
        assert_eq!(log.bounds().start, Position(all[3]));
        // And from here on nothing more may go.
        machine.eventually("it is said where the log begins", || marks(machine) == [start_mark(all[3])]).await;
        log.close().await.unwrap();
    });
    machine.power_cut();
}

fn marks(machine: &Machine) -> Vec<std::path::PathBuf> {
    machine.sim.disk().paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "start")).collect()
}

#[test]
fn where_no_name_can_be_changed_nothing_is_said_of_the_start_and_room_is_made_all_the_same() {
    let machine = with_log(11, 40);
    let to = bases(&machine)[2];
    let machine = machine.run_and_return(async |machine: &Machine| {
        let (log, _) = machine.open(options()).await;
        machine.sim.disk().set_faults(Faults { names_full: true, ..Faults::default() });
        assert_eq!(log.trim(Position(to)).await.unwrap(), Position(to));
        assert!(marks(machine).is_empty());
        machine.sim.disk().set_faults(Faults::default());
    });
    let machine = machine.power_cut();
    machine.run(async {
        let (log, _) = machine.open(options()).await;
        assert_eq!(log.bounds().start, Position(to));
        log.close().await.unwrap();
    });
}

#[test]
fn a_second_log_in_between_is_refused() {
    let machine = with_log(12, 40);
    let all = bases(&machine);
    let second = machine.sim.disk().content(&segment_path(all[2])).unwrap();
    machine.run(async {
        // As a copy under another base: the segment before it is cut short by that.
        let path = segment_path(all[2] - 16_048);
        machine.env.disk().replace_small(&path, second).await.unwrap();
        match machine.try_open(options(), None).await.err() {
            Some(OpenError::Overlap { path, at, .. }) => {
                assert_eq!((path, at.0), (segment_path(all[1]), all[2] - 16_048));
            }
            other => panic!("an overlap was expected, not {other:?}"),
        }
        machine.env.disk().remove_file(&path).await.unwrap();
        let (log, _) = machine.open(options()).await;
        log.close().await.unwrap();
    });
}

#[test]
fn a_log_that_goes_over_the_checkpoint_with_other_messages_is_another_one() {
    let machine = with_log(13, 3);
    let floor = floor_of(&machine);
    let other = set(77, &[8000]);
    assert_eq!(other.len(), 8024);
    for (at, byte) in (2 * 8024..).zip(other) {
        machine.sim.disk().hurt(&segment_path(0), at..at + 1, |_| byte);
    }
    machine.run(async {
        match machine.try_open(options(), Some(floor)).await.err() {
            Some(OpenError::Another { at, .. }) => assert_eq!(at, floor.durable_end),
            other => panic!("another log was expected, not {other:?}"),
        }
    });
}

#[test]
fn less_than_a_block_that_a_full_disk_gave_at_the_end_is_done_without() {
    let machine = with_log(16, 3);
    machine.sim.disk().shorten(&segment_path(0), (7 << 12) + 1024);
    machine.sim.disk().set_faults(Faults { capacity_bytes: 0, ..Faults::default() });
    machine.run(async {
        let (log, report) = machine.open(options()).await;
        assert_eq!(report.end, Position(3 * 8024));
        assert_eq!(log.read(Position(0), 100).await.unwrap().len(), 1);
        machine.sim.disk().set_faults(Faults::default());
        publish_durably(&log, &set(1, &[8000])).await;
        log.close().await.unwrap();
    });
}

#[test]
fn another_log_that_is_segments_longer_is_noticed_too() {
    let machine = with_log(15, 40);
    let all = bases(&machine);
    let at = Position(all[2]);
    let mut floor = CheckpointEntry { durable_end: at, segment_base: Position(all[1]), ..floor_of(&machine) };
    floor.last.crc = !floor.last.crc;
    machine.run(async {
        match machine.try_open(options(), Some(floor)).await.err() {
            Some(OpenError::Another { at: found, .. }) => assert_eq!(found, at),
            other => panic!("another log was expected, not {other:?}"),
        }
        // Damaged bytes there prove nothing: the log is served.
        machine.sim.disk().hurt(&segment_path(all[1]), 100..101, |byte| !byte);
        let (log, report) = machine.try_open(options(), Some(floor)).await.expect("a damaged log is served");
        assert_eq!(report.damage, Some(Position(all[1])));
        log.close().await.unwrap();
    });
}

#[test]
fn a_file_that_is_removed_or_cut_short_under_the_broker_closes_its_partition() {
    for is_removed in [true, false] {
        let machine = with_log(14, 3);
        machine.run(async {
            let (log, _) = machine.open(options()).await;
            publish_durably(&log, &set(1, &[100])).await;
            log.check_file().await;
            assert_eq!(log.closed(), None);
            if is_removed {
                machine.env.disk().remove_file(&segment_path(0)).await.unwrap();
            } else {
                machine.sim.disk().shorten(&segment_path(0), 5000);
            }
            log.check_file().await;
            assert!(matches!(log.closed(), Some(ClosedReason::Disk { .. })), "{:?}", log.closed());
            let refused = log.landing(10).await.err();
            assert!(matches!(refused, Some(AppendError::Closed(_))), "{refused:?}");
            let _closed = log.close().await;
        });
    }
}

#[test]
fn files_that_are_not_ours_are_named_and_left_alone() {
    let machine = with_log(3, 3);
    machine.run(async {
        let path = partition_dir().join("README");
        machine.env.disk().replace_small(&path, b"hands off".to_vec()).await.unwrap();
        let (log, report) = machine.open(options()).await;
        assert_eq!(report.foreign, ["README"]);
        log.close().await.unwrap();
        assert_eq!(machine.sim.disk().content(&path).unwrap(), b"hands off");
    });
}

#[test]
fn a_newer_version_is_refused_but_a_torn_header_is_not_one() {
    let machine = with_log(4, 2);
    let path = segment_path(0);
    let second = 8024;
    // A version of 9 under its old CRC is a torn message, not a newer one: the tail ends before it.
    machine.sim.disk().hurt(&path, second + 8..second + 9, |_| 9);
    machine.run(async {
        let (log, report) = machine.open(options()).await;
        assert_eq!((report.end, report.cut.is_some()), (Position(second), true));
        log.close().await.unwrap();
    });
    let machine = with_log(5, 2);
    let mut message = machine.sim.disk().content(&path).unwrap()[second as usize..2 * second as usize].to_vec();
    message[8] = 9;
    let crc = crc32fast::hash(&message[8..]).to_le_bytes();
    machine.sim.disk().hurt(&path, second + 8..second + 9, |_| 9);
    for (index, byte) in crc.into_iter().enumerate() {
        let at = second + 4 + index as u64;
        machine.sim.disk().hurt(&path, at..at + 1, |_| byte);
    }
    machine.run(async {
        match machine.try_open(options(), None).await.err() {
            Some(OpenError::NewerVersion { at, version, .. }) => assert_eq!((at.0, version), (second, 9)),
            other => panic!("a newer version was expected, not {other:?}"),
        }
    });
}

#[test]
fn a_torn_tail_is_cut_with_a_copy_and_without_room_for_it_the_partition_serves_closed() {
    let machine = with_log(6, 3);
    let (path, third) = (segment_path(0), 2 * 8024);
    let tail = machine.sim.disk().content(&path).unwrap()[third..].to_vec();
    machine.sim.disk().hurt(&path, third as u64 + 100..third as u64 + 101, |old| !old);
    let used = machine.sim.disk().bytes_used();
    machine.sim.disk().set_faults(Faults { capacity_bytes: used, ..Faults::default() });
    let machine = machine.run_and_return(async |machine: &Machine| {
        let (log, report) = machine.open(options()).await;
        assert_eq!((report.end.0, report.cut), (third as u64, None));
        let refused = log.landing(10).await.err();
        assert!(matches!(refused, Some(AppendError::Closed(ClosedReason::NoRoomForCopy { .. }))), "{refused:?}");
        assert_eq!(machine.read(&log, 0).await.len(), third);
        let _refused = log.close().await;
    });
    let machine = machine.power_cut();
    machine.sim.disk().set_faults(Faults::default());
    machine.run(async {
        let (log, report) = machine.open(options()).await;
        let (copy, bytes) = report.cut.expect("a torn tail is cut");
        let copied = machine.sim.disk().content(&copy).unwrap();
        assert_eq!((copied.len() as u64, report.end.0), (bytes, third as u64));
        assert_eq!((&copied[..100], &copied[101..]), (&tail[..100], &tail[101..copied.len()]));
        let next = publish_durably(&log, &set(9, &[50])).await;
        assert_eq!(next.first.0, third as u64);
    });
}

#[test]
fn each_tail_that_is_cut_has_a_copy_of_its_own_though_the_clock_shows_the_same_time() {
    let mut machine = with_log(9, 3);
    let third = 2 * 8024;
    let wall_ms = machine.env.wall_ms();
    let mut copies = Vec::new();
    for life in 0..4 {
        let tail = machine.sim.disk().content(&segment_path(0)).unwrap()[third..third + 8024].to_vec();
        let torn = third + 100 + life;
        machine.sim.disk().hurt(&segment_path(0), torn as u64..torn as u64 + 1, |old| !old);
        machine = machine.run_and_return(async |machine: &Machine| {
            machine.env.jump_wall_ms(wall_ms - machine.env.wall_ms());
            let (log, report) = machine.open(options()).await;
            let (copy, _) = report.cut.expect("a torn tail is cut");
            copies.push((copy, torn - third, tail));
            publish_durably(&log, &set(100 + life as u8, &[8000])).await;
            log.close().await.unwrap();
        });
        machine = machine.power_cut();
    }
    for (path, torn, mut tail) in copies {
        tail[torn] = !tail[torn];
        let copy = machine.sim.disk().content(&path).unwrap();
        assert!(copy == tail[..copy.len()] && copy.len() > torn, "{} is not what was cut", path.display());
    }
}

fn floor_of(machine: &Machine) -> CheckpointEntry {
    machine.run(async {
        let (log, _) = machine.open(options()).await;
        let floor = log.checkpoint_entry();
        log.close().await.unwrap();
        floor
    })
}

#[test]
fn a_last_segment_that_lost_its_end_gives_no_id_a_second_time() {
    let machine = with_log(8, 3);
    let floor = floor_of(&machine);
    machine.run(async {
        let file = machine.env.disk().open(&segment_path(0), OpenMode::Write).await.unwrap();
        file.truncate(4096).await.unwrap();
        file.sync_data().await.unwrap();
    });
    machine.run(async {
        let (log, report) = machine.try_open(options(), Some(floor)).await.unwrap();
        assert_eq!(report.damage, Some(Position(0)));
        let next = publish_durably(&log, &set(9, &[50])).await;
        assert!(next.first >= floor.durable_end, "{} is given again, {} was durable", next.first, floor.durable_end);
    });
}

#[test]
fn damage_below_the_checkpoint_is_kept_and_the_log_goes_on_behind_it() {
    let machine = with_log(7, 3);
    let floor = floor_of(&machine);
    // Zeros from the last message on: without the checkpoint that would be the normal end.
    machine.sim.disk().hurt(&segment_path(0), 2 * 8024..3 * 8024, |_| 0);
    machine.run(async {
        let (log, report) = machine.try_open(options(), Some(floor)).await.unwrap();
        assert_eq!(report.damage, Some(Position(2 * 8024)));
        let bounds = log.bounds();
        assert!(bounds.end >= floor.durable_end && bounds.start == Position(0));
        let next = publish_durably(&log, &set(9, &[50])).await;
        assert_eq!(next.first, bounds.end);
        assert_eq!(log.seek(Position(8024)).await.unwrap(), Position(8024));
        let good = log.find(corelane_log::Target::GoodAfter(Position(2 * 8024))).await.unwrap();
        assert_eq!(good, floor.durable_end);
        let good = log.find(corelane_log::Target::GoodAfter(good)).await.unwrap();
        assert_eq!(good, bounds.end);
    });
}
