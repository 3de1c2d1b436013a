//! Reading: places, searches, bad messages, waiting.

use corelane_log::env::Env;
use corelane_log::{Piece, ReadError, Target};
use corelane_proto::ids::Position;
use corelane_proto::message::MessageParts;
use corelane_proto::set::SetBuilder;

use crate::kit::*;

fn ids(sets: &[Vec<u8>]) -> Vec<u64> {
    let mut at = 0;
    let mut ids = Vec::new();
    for set in sets {
        for message in corelane_proto::set::walk(set, 1 << 20) {
            ids.push(at);
            at += u64::from(message.unwrap().length());
        }
    }
    ids.push(at);
    ids
}

#[test]
fn every_position_is_found_in_its_message() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        let sets: Vec<_> = (0..30_u8).map(|number| set(number, &[usize::from(number) * 611 % 9000, 1, 77])).collect();
        let ids = ids(&sets);
        let machine = machine.run_and_return(async |machine: &Machine| {
            let log = machine.create(options()).await;
            for set in &sets {
                publish_durably(&log, set).await;
            }
            check_places(&log, &ids).await;
        });
        let machine = machine.power_cut();
        machine.run(async {
            let (log, report) = machine.open(options()).await;
            assert_eq!(report.end.0, *ids.last().unwrap());
            check_places(&log, &ids).await;
        });
    });
}

async fn check_places(log: &Log, ids: &[u64]) {
    for pair in ids.windows(2) {
        for at in [pair[0], pair[0] + 1, pair[1] - 1] {
            assert_eq!(log.seek(Position(at)).await.unwrap().0, pair[0], "position {at}");
        }
    }
    let end = *ids.last().unwrap();
    assert_eq!(log.seek(Position(end)).await.unwrap().0, end);
    for messages in [0, 1, 2, 7, ids.len() - 1] {
        let found = log.find(Target::LastMessages(messages as u64)).await.unwrap();
        assert_eq!(found.0, ids[ids.len() - 1 - messages], "the last {messages}");
    }
    assert_eq!(log.find(Target::LastMessages(1000)).await.unwrap(), Position(0));
    assert!(matches!(log.seek(Position(end + 1)).await, Err(ReadError::OutOfRange { .. })));
    assert!(matches!(log.read(Position(end + 1), 1).await.err(), Some(ReadError::OutOfRange { .. })));
    assert!(log.read(Position(end), 1).await.unwrap().is_empty());
}

#[test]
fn times_are_found_though_they_are_not_ordered() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(options()).await;
            let times = [500, 100, 900, 200, 300, 1000, 50];
            let mut first_with = Vec::new();
            let mut largest = i64::MIN;
            for round in 0..5 {
                for time in times {
                    let time = time + round * 2000;
                    let place = publish_durably(&log, &set_at(time, 1, &[6000])).await;
                    if time > largest {
                        largest = time;
                        first_with.push((time, place.first));
                    }
                }
            }
            for pair in first_with.windows(2) {
                for time in [pair[0].0 + 1, pair[1].0 - 1, pair[1].0] {
                    assert_eq!(log.find(Target::Time(time)).await.unwrap(), pair[1].1, "time {time}");
                }
            }
            assert_eq!(log.find(Target::Time(i64::MIN)).await.unwrap(), Position(0));
            assert_eq!(log.find(Target::Time(largest + 1)).await.unwrap(), log.bounds().visible_end);
        });
    });
}

#[test]
fn only_the_bad_message_is_skipped_while_the_walk_leads_on() {
    let sets: Vec<_> = (0..12_u8).map(|number| set(number, &[3000, 2000, 1000])).collect();
    let ids = ids(&sets);
    let victim = ids[4];
    for (hurt, byte) in [(victim + 100, 0x40), (victim, 8)] {
        let machine = Machine::new(hurt);
        let machine = machine.run_and_return(async |machine: &Machine| {
            let log = machine.create(options()).await;
            for set in &sets {
                publish_durably(&log, set).await;
            }
            log.close().await.unwrap();
        });
        let machine = machine.power_cut();
        machine.sim.disk().hurt(&segment_path(0), hurt..hurt + 1, |old| old ^ byte);
        machine.run(async {
            let (log, report) = machine.open(options()).await;
            assert_eq!(report.end.0, *ids.last().unwrap(), "a closed segment is not walked");
            // What is good is read again, and counts as no damage, wherever it is asked for.
            assert_eq!(log.find(Target::GoodAfter(Position(ids[1]))).await.unwrap().0, ids[1]);
            assert_eq!(log.find(Target::GoodAfter(Position(ids[1] + 7))).await.unwrap().0, ids[2]);
            let next = log.find(Target::GoodAfter(Position(victim))).await.unwrap().0;
            if hurt == victim {
                // Its length leads nowhere: all up to the next known boundary is skipped.
                assert!(next > ids[5] && ids.contains(&next), "{next}");
            } else {
                assert_eq!(next, ids[5]);
            }
            assert_eq!(log.seek(Position(ids[3] + 5)).await.unwrap().0, ids[3]);
            assert_eq!(log.stats().bad_messages, 1);
        });
    }
}

#[test]
fn a_hurt_length_does_not_lead_into_a_value() {
    // The first message has 93 bytes. With one bit more it claims 125, and there, in the second one's value, lies a
    // message that ends where the second one does.
    let inside = set(7, &[300]);
    let value = [&[0; 8][..], &inside].concat();
    let mut builder = SetBuilder::new();
    for value in [&[1; 69][..], &value, b"three"] {
        builder.push(&MessageParts { value: Some(value), ..MessageParts::default() }).unwrap();
    }
    let sets: Vec<_> =
        std::iter::once(builder.finish().to_vec()).chain((0..30).map(|fill| set(fill, &[3000]))).collect();
    let ids = ids(&sets);
    assert_eq!(ids[..3], [0, 93, 93 + 24 + value.len() as u64]);
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        let machine = machine.run_and_return(async |machine: &Machine| {
            let log = machine.create(options()).await;
            for set in &sets {
                publish_durably(&log, set).await;
            }
            log.close().await.unwrap();
        });
        let machine = machine.power_cut();
        machine.sim.disk().hurt(&segment_path(0), 0..1, |old| old ^ 32);
        machine.run(async {
            let (log, report) = machine.open(options()).await;
            assert_eq!(report.end.0, *ids.last().unwrap(), "nothing is cut");
            let next = log.find(Target::GoodAfter(Position(0))).await.unwrap().0;
            assert!(next >= ids[2] && ids.contains(&next), "{next}, of {ids:?}");
            assert_eq!(log.seek(Position(130)).await.unwrap().0, 0, "what is inside the value is not found");
        });
    });
}

#[test]
fn a_reader_finishes_what_it_was_promised_of_a_deleted_segment() {
    over_seeds(|seed| {
        let machine = Machine::with_arena(seed, 128 << 10);
        machine.run(async {
            let log = machine.create(options()).await;
            let mut expected = Vec::new();
            for number in 0..30 {
                let set = set(number, &[8000]);
                publish_durably(&log, &set).await;
                expected.extend(set);
            }
            let promised = log.read(Position(10), 5000).await.unwrap();
            assert!(matches!(promised[0], Piece::File { .. }));
            let start = log.trim(Position(140_000)).await.unwrap();
            assert!(start > Position(60_000) && start <= Position(140_000));
            let mut bytes = Vec::new();
            for piece in &promised {
                bytes.extend(machine.bytes(piece).await);
            }
            assert_eq!(bytes, expected[10..10 + bytes.len()]);
            match log.read(Position(10), 5000).await.err() {
                Some(ReadError::OutOfRange { start: valid, end }) => {
                    assert_eq!((valid, end), (start, log.bounds().end));
                }
                other => panic!("out of range was expected, not {other:?}"),
            }
            assert_eq!(machine.read(&log, start.0).await, expected[start.0 as usize..]);
        });
    });
}

#[test]
fn waits_end_with_the_partition() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(options()).await;
            let end = publish_durably(&log, &set(1, &[10])).await.next;
            let waiting = log.wait_visible(end);
            let (waited, deleted) = futures_util::future::join(waiting, log.delete()).await;
            assert!(deleted.is_ok() && matches!(waited, Err(ReadError::Gone(_))));
            assert!(matches!(log.read(Position(0), 10).await.err(), Some(ReadError::Gone(_))));
        });
        assert_eq!(machine.sim.disk().paths(), Vec::<std::path::PathBuf>::new(), "nothing is left of it");
    });
}

#[test]
fn what_was_promised_stays_readable_after_retention_took_it_and_no_longer() {
    over_seeds(|seed| {
        let machine = Machine::new(seed);
        machine.run(async {
            let log = machine.create(options()).await;
            let mut all = Vec::new();
            for number in 0..60 {
                let set = set(number, &[8000]);
                publish_durably(&log, &set).await;
                all.extend(set);
            }
            let (early, late) = (Position(70_000), Position(150_000));
            let promises = (log.promise(early), log.promise(late));
            let start = log.trim(Position(300_000)).await.unwrap();
            assert!(start.0 > 200_000);
            let refused = log.read(early, 1).await.err();
            assert!(matches!(refused, Some(ReadError::OutOfRange { .. })), "others are told the valid range");
            for (promise, from) in [(&promises.0, early), (&promises.1, late)] {
                let mut read = Vec::new();
                while read.len() < 200_000 {
                    let at = Position(from.0 + read.len() as u64);
                    let pieces = promise.read(at, 7777).await.unwrap();
                    assert!(!pieces.is_empty());
                    for piece in &pieces {
                        read.extend(machine.bytes(piece).await);
                    }
                }
                assert_eq!(read, all[from.0 as usize..][..read.len()]);
            }
            // The space is given back as the promises end, the last of each segment.
            let disk = machine.sim.disk();
            let held = disk.bytes_used();
            drop(promises.0);
            machine.env.sleep(std::time::Duration::from_secs(1)).await;
            let held_for_late = disk.bytes_used();
            assert!(held_for_late < held, "{held_for_late} of {held}");
            drop(promises.1);
            machine.env.sleep(std::time::Duration::from_secs(1)).await;
            assert!(disk.bytes_used() < held_for_late);
        });
    });
}
