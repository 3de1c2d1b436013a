//! Publishing: whole sets, order, back-pressure, flush policies, full and failing disks.

use std::time::Duration;

use corelane_log::env::{Arena, Env};
use corelane_log::sim::Faults;
use corelane_log::{AppendError, ClosedReason};
use corelane_proto::ids::Position;
use futures_util::future::join_all;

use crate::kit::*;

#[test]
fn a_receiver_in_the_tail_that_is_overtaken_is_moved_out() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(options()).await;
            let (slow, quick) = (set(1, &[3000, 10]), set(2, &[500]));
            let mut in_tail = log.landing(slow.len()).await.unwrap();
            assert!(in_tail.is_in_place());
            assert_eq!(in_tail.copy_from(&slow[..1000]), 1000);
            let beside = landing(&log, &quick).await.unwrap();
            assert!(!beside.is_in_place());
            let first = log.append(beside, None).await.unwrap();
            assert!(!in_tail.is_in_place());
            assert_eq!(in_tail.copy_from(&slow[1000..]), slow.len() - 1000);
            let second = log.append(in_tail, None).await.unwrap();
            assert_eq!((first.first, second.first), (Position(0), first.next));
            log.wait_durable(second.next).await.unwrap();
            assert_eq!(machine.read(&log, 0).await, [quick, slow].concat());
            assert_eq!(log.stats().moved_out, 1);
        });
    });
}

#[test]
fn a_receiver_that_gives_up_leaves_the_tail_to_the_next() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(options()).await;
            let mut gone = log.landing(5000).await.unwrap();
            gone.copy_from(&[0xaa; 2000]);
            drop(gone);
            let set = set(1, &[100]);
            assert!(log.landing(set.len()).await.unwrap().is_in_place());
            publish_durably(&log, &set).await;
            assert_eq!(machine.read(&log, 0).await, set);
        });
    });
}

#[test]
fn a_set_that_is_not_good_leaves_the_log_as_it_was() {
    let machine = Machine::new(1);
    machine.run(async {
        let log = machine.create(options()).await;
        let mut bad = set(1, &[10, 20, 30]);
        bad[34 + 24] ^= 1;
        match try_publish(&log, &bad).await {
            Err(AppendError::InvalidMessage(invalid)) => assert_eq!(invalid.index, 1),
            other => panic!("an invalid message was expected, not {other:?}"),
        }
        assert!(matches!(log.landing(16 << 10 | 1).await, Err(AppendError::TooLarge { limit: 16_384, .. })));
        let good = set(1, &[10]);
        let landing = landing(&log, &good).await.unwrap();
        let refused = log.append(landing, Some(Position(1))).await;
        assert_eq!(refused, Err(AppendError::UnexpectedEnd { end: Position(0) }));
        assert_eq!(log.bounds().end, Position(0));
        publish_durably(&log, &good).await;
        assert_eq!(machine.read(&log, 0).await, good);
    });
}

#[test]
fn nothing_is_visible_before_the_policy_has_flushed_it() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let lazy = with_config(|config| (config.flush_messages, config.flush_interval_ms) = (100, 5_000));
            let log = machine.create(lazy).await;
            let began = machine.env.monotonic();
            for _ in 0..9 {
                publish(&log, &set(1, &[10; 10])).await;
            }
            let visible = log.wait_visible(Position(0)).await.unwrap();
            let waited = machine.since(began);
            assert!(waited >= Duration::from_secs(5) && waited < Duration::from_secs(6), "after {waited:?}");
            assert_eq!(visible.visible_end, visible.end);
            let began = machine.env.monotonic();
            for _ in 0..10 {
                publish(&log, &set(1, &[10; 10])).await;
            }
            log.wait_visible(visible.visible_end).await.unwrap();
            assert!(machine.since(began) < Duration::from_secs(5), "the hundredth message is flushed at once");
        });
    });
}

#[test]
fn a_full_window_forces_a_flush_and_holds_publishers_back() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(with_config(|config| config.flush_interval_ms = u64::MAX)).await;
            let mut expected = Vec::new();
            for number in 0..20_u8 {
                let set = set(number, &[9000]);
                publish(&log, &set).await;
                expected.extend(set);
                let bounds = log.bounds();
                assert!(bounds.end - bounds.durable_end <= 64 << 10, "no more than the window waits to be flushed");
            }
            assert!(log.bounds().durable_end > Position(100_000));
            log.close().await.unwrap();
            assert_eq!(log.checkpoint_entry().durable_end.0, expected.len() as u64);
        });
    });
}

#[test]
fn many_publishers_at_once_all_get_their_sets_in_whole() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(options()).await;
            let sets: Vec<_> = (0..60_u8).map(|number| set(number, &[usize::from(number) * 97 % 5000, 33])).collect();
            let appended = join_all(sets.iter().map(|set| publish_durably(&log, set))).await;
            let all = machine.read(&log, 0).await;
            for (set, place) in sets.iter().zip(&appended) {
                assert_eq!(&all[place.first.0 as usize..place.next.0 as usize], set);
            }
            assert_eq!(all.len(), sets.iter().map(Vec::len).sum::<usize>());
        });
    });
}

#[test]
fn a_full_disk_is_said_at_once_and_publishing_resumes_by_itself() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(options()).await;
            let disk = machine.sim.disk();
            disk.set_faults(Faults { capacity_bytes: disk.bytes_used() + (16 << 10), ..Faults::default() });
            let set = set(1, &[4000]);
            let mut published = 0;
            while try_publish(&log, &set).await.is_ok() {
                published += 1;
            }
            assert!(published > 2);
            let began = machine.env.monotonic();
            assert_eq!(try_publish(&log, &set).await, Err(AppendError::NoSpace));
            assert!(machine.since(began) < Duration::from_secs(10));
            log.wait_durable(log.bounds().end).await.unwrap();
            assert_eq!(machine.read(&log, 0).await, set.repeat(published), "what was published is served meanwhile");
            disk.set_faults(Faults::default());
            machine.env.sleep(Duration::from_secs(1)).await;
            publish_durably(&log, &set).await;
            assert_eq!(machine.read(&log, 0).await, set.repeat(published + 1));
        });
    });
}

#[test]
fn a_directory_that_is_full_refuses_at_once_and_the_roll_goes_on_by_itself_when_there_is_room() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(options()).await;
            let disk = machine.sim.disk();
            let set = set(1, &[8000]);
            // Made ahead, so that the roll itself is what finds no room.
            let mut published = 0;
            while log.bounds().end.0 < 60 << 10 {
                publish_durably(&log, &set).await;
                published += 1;
            }
            machine.env.sleep(Duration::from_secs(1)).await;
            disk.set_faults(Faults { names_full: true, ..Faults::default() });
            let began = machine.env.monotonic();
            loop {
                match try_publish(&log, &set).await {
                    Ok(_) => published += 1,
                    Err(error) => break assert_eq!(error, AppendError::NoSpace),
                }
                machine.env.sleep(Duration::from_millis(50)).await;
                assert!(machine.since(began) < Duration::from_mins(1), "the roll found no want of room");
            }
            assert_eq!(log.closed(), None, "nothing is lost and nothing unknown");
            disk.set_faults(Faults::default());
            machine.env.sleep(Duration::from_secs(2)).await;
            publish_durably(&log, &set).await;
            assert_eq!(machine.read(&log, 0).await, set.repeat(published + 1));
            assert!(log.stats().segments > 1);
        });
    });
}

#[test]
fn a_failed_write_or_flush_closes_the_partition_to_appends_and_it_goes_on_serving() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        let machine = machine.run_and_return(async |machine: &Machine| {
            let log = machine.create(options()).await;
            let good = set(1, &[100]);
            publish_durably(&log, &good).await;
            let faults = if seed % 2 == 0 {
                Faults { write_eio: 1.0, ..Faults::default() }
            } else {
                // More than a synchronous write takes, so that a flush is needed.
                Faults { flush_eio: 1.0, write_eio: 1.0, ..Faults::default() }
            };
            machine.sim.disk().set_faults(faults);
            let lost = publish(&log, &set(2, &[100])).await;
            let refused = log.wait_durable(lost.next).await;
            assert!(matches!(refused, Err(AppendError::Closed(ClosedReason::Disk { .. }))), "{refused:?}");
            machine.sim.disk().set_faults(Faults::default());
            assert!(matches!(log.landing(10).await.err(), Some(AppendError::Closed(ClosedReason::Disk { .. }))));
            assert_eq!(machine.read(&log, 0).await, good);
            assert!(log.close().await.is_err());
        });
        let machine = machine.power_cut();
        machine.run(async {
            let (log, _) = machine.open(options()).await;
            let set = set(3, &[100]);
            publish_durably(&log, &set).await;
            assert!(machine.read(&log, 0).await.ends_with(&set));
        });
    });
}

#[test]
fn hot_tails_give_way_to_new_bytes_oldest_first() {
    over_seeds(|seed| {
        let machine = Machine::with_arena(seed, 128 << 10);
        machine.run(async {
            let mut logs = Vec::new();
            for partition in 0..4 {
                let mut options = options();
                options.partition = partition;
                logs.push(machine.create(options).await);
            }
            let mut expected = vec![Vec::new(); 4];
            for round in 0..40_usize {
                let (number, set) = (round * 7 % 4, set(round as u8, &[round * 631 % 9000, 5]));
                publish_durably(&logs[number], &set).await;
                expected[number].extend(set);
            }
            let in_memory: u64 = logs.iter().map(|log| log.stats().bytes_in_memory).sum();
            assert!(in_memory < 128 << 10);
            for (log, expected) in logs.iter().zip(&expected) {
                assert_eq!(machine.read(log, 0).await, *expected);
            }
            for log in &logs {
                log.close().await.unwrap();
            }
        });
        assert_eq!(machine.env.arena().bytes_used(), 0, "closed partitions hold no memory");
    });
}

#[test]
fn memory_that_a_lazy_topic_holds_is_flushed_when_another_needs_it() {
    over_seeds(|seed| {
        let machine = Machine::with_arena(seed, 128 << 10);
        machine.run(async {
            let lazy = machine.create(with_config(|config| config.flush_interval_ms = u64::MAX)).await;
            let mut eager = options();
            eager.partition = 1;
            let eager = machine.create(eager).await;
            for number in 0..4 {
                publish(&lazy, &set(number, &[12_000])).await;
            }
            for number in 0..20 {
                publish_durably(&eager, &set(number, &[15_000])).await;
            }
            assert_eq!(lazy.bounds().durable_end, lazy.bounds().end);
        });
    });
}

#[test]
fn a_publisher_that_stops_in_the_middle_holds_nobody_up() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(options()).await;
            let mut stuck = log.landing(16_000).await.unwrap();
            stuck.copy_from(&[1; 100]);
            let mut expected = Vec::new();
            for number in 0..30 {
                let set = set(number, &[5000]);
                let appended = publish_durably(&log, &set).await;
                assert_eq!(appended.first.0, expected.len() as u64);
                expected.extend(set);
            }
            assert_eq!(machine.read(&log, 0).await, expected);
        });
    });
}
