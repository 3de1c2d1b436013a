//! The simulated disk commits the faults that it claims to commit, keeps the promises that a disk keeps, and catches
//! callers that break the rules of direct I/O. Faults are drawn, so each is looked for over some hundred seeds.

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use corelane_log::env::{Arena, BLOCK_BYTES, Chunk, Disk, Env, File, OpenMode};
use corelane_log::sim::{Faults, Limit, Run, Sim, SimEnv, SimFile};

const SEEDS: u64 = 300;
const LIMIT: Limit = Limit { steps: 100_000, time: Duration::from_hours(1) };
const ARENA_BYTES: usize = 64 * BLOCK_BYTES;

fn path() -> &'static Path {
    Path::new("/file")
}

fn done<T>(run: Run<T>) -> T {
    match run {
        Run::Done(value) => value,
        Run::OutOfSteps => panic!("out of steps"),
        Run::OutOfTime(text) | Run::Deadlock(text) => panic!("stuck: {text}"),
    }
}

/// Blocks full of one byte each, as the argument of a write.
fn blocks(env: &SimEnv, bytes: &[u8]) -> Vec<<<SimEnv as Env>::Arena as Arena>::Chunk> {
    bytes
        .iter()
        .map(|byte| {
            let chunk = env.arena().allocate(BLOCK_BYTES).expect("the test's arena is large enough");
            chunk.with_spare(0..BLOCK_BYTES, |spare| spare.fill(*byte));
            chunk.fill_to(BLOCK_BYTES);
            chunk
        })
        .collect()
}

async fn write(env: &SimEnv, file: &SimFile, block: u64, bytes: &[u8], synchronous: bool) -> io::Result<()> {
    let parts = blocks(env, bytes).iter().map(|chunk| chunk.slice(0..BLOCK_BYTES)).collect();
    file.write(parts, block * BLOCK_BYTES as u64, synchronous).await
}

/// A file of `blocks` blocks of zeros whose size and name are durable.
async fn durable_file(env: &SimEnv, blocks: u64) -> SimFile {
    let file = env.disk().open(path(), OpenMode::Create).await.unwrap();
    file.allocate(blocks * BLOCK_BYTES as u64).await.unwrap();
    file.sync_data().await.unwrap();
    env.disk().sync_dir(Path::new("/")).await.unwrap();
    file
}

/// The value of each block, or `None` where a block is a mix.
fn values(content: &[u8]) -> Vec<Option<u8>> {
    content.chunks(BLOCK_BYTES).map(|block| block.iter().all(|byte| *byte == block[0]).then_some(block[0])).collect()
}

/// What the file holds after a power cut that follows `life`, over all seeds.
fn after_power_cut(life: impl AsyncFn(SimEnv)) -> BTreeSet<Option<Vec<Option<u8>>>> {
    (0..SEEDS)
        .map(|seed| {
            let sim = Sim::new(seed);
            done(sim.run(life(sim.boot(ARENA_BYTES)), LIMIT));
            sim.power_cut();
            sim.disk().content(path()).map(|content| values(&content))
        })
        .collect()
}

fn panics(f: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn a_seed_replays_exactly() {
    let history = |seed| {
        let sim = Sim::new(seed);
        let env = sim.boot(ARENA_BYTES);
        let at = done(sim.run(
            async {
                let file = durable_file(&env, 4).await;
                for block in 0..4 {
                    let (env, file) = (env.clone(), file.clone());
                    let task = env.clone();
                    env.spawn("writer", async move {
                        write(&task, &file, block, &[block as u8 + 1], block % 2 == 0).await.unwrap();
                    });
                }
                env.sleep(Duration::from_micros(env.random() % 100)).await;
                env.monotonic()
            },
            LIMIT,
        ));
        sim.power_cut();
        (at, sim.disk().content(path()))
    };
    let histories: Vec<_> = (0..50).map(history).collect();
    assert_eq!(histories, (0..50).map(history).collect::<Vec<_>>());
    assert!(histories.windows(2).any(|pair| pair[0] != pair[1]), "different seeds are different histories");
}

#[test]
fn unflushed_writes_survive_in_any_combination_and_torn() {
    let seen = after_power_cut(async |env| {
        let file = durable_file(&env, 2).await;
        write(&env, &file, 0, &[1], false).await.unwrap();
        write(&env, &file, 1, &[2], false).await.unwrap();
    });
    for expected in [[Some(0), Some(0)], [Some(1), Some(0)], [Some(0), Some(2)], [Some(1), Some(2)]] {
        assert!(seen.contains(&Some(expected.to_vec())), "{expected:?} is among {seen:?}");
    }
    assert!(seen.iter().flatten().any(|values| values[0].is_none()), "a block may be torn");
}

#[test]
fn an_older_version_of_a_block_may_survive_a_newer_one() {
    let seen = after_power_cut(async |env| {
        let file = durable_file(&env, 1).await;
        for byte in 1..=3 {
            write(&env, &file, 0, &[byte], false).await.unwrap();
        }
    });
    for byte in 0..=3 {
        assert!(seen.contains(&Some(vec![Some(byte)])), "{byte} is among {seen:?}");
    }
}

#[test]
fn what_was_flushed_survives() {
    let seen = after_power_cut(async |env| {
        let file = durable_file(&env, 1).await;
        write(&env, &file, 0, &[1], false).await.unwrap();
        file.sync_data().await.unwrap();
    });
    assert_eq!(seen, BTreeSet::from([Some(vec![Some(1)])]));
}

#[test]
fn a_flush_covers_only_what_had_completed_when_it_began() {
    let seen = after_power_cut(async |env| {
        let file = durable_file(&env, 1).await;
        let flush = async { file.sync_data().await.unwrap() };
        let second = async { write(&env, &file, 0, &[1], false).await.unwrap() };
        futures_util::join!(flush, second);
    });
    assert!(seen.contains(&Some(vec![Some(0)])) && seen.contains(&Some(vec![Some(1)])), "{seen:?}");
}

#[test]
fn a_synchronous_write_covers_its_own_bytes_only() {
    let seen = after_power_cut(async |env| {
        let file = durable_file(&env, 2).await;
        write(&env, &file, 0, &[1], false).await.unwrap();
        write(&env, &file, 1, &[2], true).await.unwrap();
    });
    let seen: Vec<_> = seen.into_iter().flatten().collect();
    assert!(seen.iter().all(|values| values[1] == Some(2)), "the synchronous write is durable: {seen:?}");
    assert!(seen.iter().any(|values| values[0] == Some(0)), "the plain one before it is not: {seen:?}");
}

#[test]
fn writes_in_flight_land_in_part() {
    let seen = after_power_cut(async |env| {
        let file = durable_file(&env, 3).await;
        let parts = blocks(&env, &[1, 1, 1]).iter().map(|chunk| chunk.slice(0..BLOCK_BYTES)).collect();
        let mut in_flight = Box::pin(file.write(parts, 0, true));
        assert!(futures_util::poll!(&mut in_flight).is_pending());
    });
    let landed: BTreeSet<usize> =
        seen.iter().flatten().map(|values| values.iter().filter(|value| **value == Some(1)).count()).collect();
    assert_eq!(landed, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn sizes_and_names_are_volatile_until_flushed() {
    let seen = after_power_cut(async |env| {
        let file = env.disk().open(path(), OpenMode::Create).await.unwrap();
        file.allocate(BLOCK_BYTES as u64).await.unwrap();
        write(&env, &file, 0, &[1], true).await.unwrap();
    });
    assert!(seen.contains(&None), "the name may be lost");
    assert!(seen.contains(&Some(Vec::new())), "the size may be lost although a synchronous write succeeded");
    assert!(seen.contains(&Some(vec![Some(1)])));
}

#[test]
fn directory_operations_survive_in_part_but_a_rename_whole() {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let sim = Sim::new(seed);
        let env = sim.boot(ARENA_BYTES);
        done(sim.run(
            async {
                let disk = env.disk();
                disk.replace_small(Path::new("/a"), vec![1]).await.unwrap();
                disk.open(Path::new("/b"), OpenMode::Create).await.unwrap();
                disk.rename(Path::new("/a"), Path::new("/c")).await.unwrap();
            },
            LIMIT,
        ));
        sim.power_cut();
        seen.insert(sim.disk().paths().iter().map(|path| path.display().to_string()).collect::<String>());
    }
    let expected = ["/a", "/a/b", "/b/c", "/c"].map(str::to_owned);
    assert_eq!(seen, BTreeSet::from(expected));
}

#[test]
fn replacing_a_small_file_leaves_the_old_or_the_new_content() {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let sim = Sim::new(seed);
        let env = sim.boot(ARENA_BYTES);
        done(sim.run(env.disk().replace_small(path(), b"old".to_vec()), LIMIT)).unwrap();
        let steps = seed % 12;
        let run = sim.run(env.disk().replace_small(path(), b"newer".to_vec()), Limit { steps, ..LIMIT });
        sim.power_cut();
        let content = sim.disk().content(path()).expect("the name is durable");
        assert!(!matches!(run, Run::Done(_)) || content == b"newer");
        seen.insert(content);
    }
    assert_eq!(seen, BTreeSet::from([b"old".to_vec(), b"newer".to_vec()]));
}

#[test]
fn a_killed_process_writes_late_and_its_lock_is_waited_for() {
    let mut late = 0;
    for seed in 0..SEEDS {
        let sim = Sim::new(seed);
        let env = sim.boot(ARENA_BYTES);
        done(sim.run(
            async {
                let file = durable_file(&env, 2).await;
                write(&env, &file, 1, &[2], false).await.unwrap();
                let parts = blocks(&env, &[1]).iter().map(|chunk| chunk.slice(0..BLOCK_BYTES)).collect();
                let mut in_flight = Box::pin(file.write(parts, 0, false));
                assert!(futures_util::poll!(&mut in_flight).is_pending());
            },
            LIMIT,
        ));
        sim.kill();
        let at_once = values(&sim.disk().content(path()).unwrap());
        assert_eq!(at_once[1], Some(2), "the drive's cache survives a kill");
        let env = sim.boot(ARENA_BYTES);
        let locked = done(sim.run(
            async {
                let file = env.disk().open(path(), OpenMode::Write).await.unwrap();
                values(&file.peek(0, BLOCK_BYTES))[0]
            },
            LIMIT,
        ));
        late += usize::from(at_once[0] == Some(0) && locked == Some(1));
        let later = done(sim.run(
            async {
                env.sleep(Duration::from_mins(1)).await;
                values(&sim.disk().content(path()).unwrap())[0]
            },
            LIMIT,
        ));
        assert_eq!(locked, later, "nothing lands once the lock was given");
    }
    assert!(late > 0, "some write landed after the kill");
}

#[test]
fn a_failed_flush_may_leave_clean_looking_blocks() {
    for gate in [false, true] {
        let seen = after_power_cut(async |env| {
            let file = durable_file(&env, 1).await;
            write(&env, &file, 0, &[1], false).await.unwrap();
            env.disk().set_faults(Faults { flush_eio: 1.0, gate, ..Faults::default() });
            file.sync_data().await.unwrap_err();
            env.disk().set_faults(Faults::default());
            assert_eq!(file.peek(0, 1), [1], "reads see the block");
            file.sync_data().await.unwrap();
        });
        assert_eq!(seen.contains(&Some(vec![Some(0)])), gate, "{seen:?}");
    }
}

#[test]
fn a_failed_write_lands_in_part_and_a_failed_read_scribbles() {
    let mut landed = BTreeSet::new();
    for seed in 0..SEEDS {
        let sim = Sim::new(seed);
        let env = sim.boot(ARENA_BYTES);
        done(sim.run(
            async {
                let file = durable_file(&env, 2).await;
                env.disk().set_faults(Faults { write_eio: 1.0, read_eio: 1.0, ..Faults::default() });
                let error = write(&env, &file, 0, &[1, 1], false).await.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(5));
                let chunk = env.arena().allocate(BLOCK_BYTES).unwrap();
                file.read(&chunk, 0, BLOCK_BYTES, 0).await.unwrap_err();
                assert_eq!(chunk.filled(), 0);
            },
            LIMIT,
        ));
        landed.insert(values(&sim.disk().content(path()).unwrap()));
    }
    assert_eq!(landed.len(), 4, "{landed:?}");
}

#[test]
fn reads_are_short_at_the_end_of_the_file_only() {
    let sim = Sim::new(1);
    let env = sim.boot(ARENA_BYTES);
    done(sim.run(
        async {
            let file = durable_file(&env, 2).await;
            file.truncate(BLOCK_BYTES as u64 + 100).await.unwrap();
            let chunk = env.arena().allocate(4 * BLOCK_BYTES).unwrap();
            assert_eq!(file.read(&chunk, 0, BLOCK_BYTES, 0).await.unwrap(), BLOCK_BYTES);
            assert_eq!(file.read(&chunk, BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES as u64).await.unwrap(), 100);
            assert_eq!(chunk.filled(), BLOCK_BYTES + 100);
        },
        LIMIT,
    ));
}

#[test]
fn a_full_disk_refuses_allocation_and_has_room_again_after_a_removal() {
    let sim = Sim::new(1);
    let env = sim.boot(ARENA_BYTES);
    sim.disk().set_faults(Faults { capacity_bytes: 8 * BLOCK_BYTES as u64, ..Faults::default() });
    done(sim.run(
        async {
            let file = durable_file(&env, 5).await;
            let other = env.disk().open(Path::new("/other"), OpenMode::Create).await.unwrap();
            let error = other.allocate(5 * BLOCK_BYTES as u64).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            env.disk().remove_file(path()).await.unwrap();
            other.allocate(5 * BLOCK_BYTES as u64).await.unwrap_err();
            drop(file);
            other.allocate(5 * BLOCK_BYTES as u64).await.unwrap();
        },
        LIMIT,
    ));
}

type Breach = fn(&SimEnv, &SimFile);

#[test]
fn breaking_the_rules_of_direct_io_panics() {
    let broken: [(&str, Breach); 4] = [
        ("an offset that is not aligned", |env, file| {
            let parts = blocks(env, &[1]).iter().map(|chunk| chunk.slice(0..BLOCK_BYTES)).collect();
            drop(Box::pin(file.write(parts, 1, false)));
        }),
        ("a part of a block", |env, file| {
            let parts = blocks(env, &[1]).iter().map(|chunk| chunk.slice(0..100)).collect();
            drop(Box::pin(file.write(parts, 0, false)));
        }),
        ("a write beyond the end of the file", |env, file| {
            let parts = blocks(env, &[1]).iter().map(|chunk| chunk.slice(0..BLOCK_BYTES)).collect();
            drop(Box::pin(file.write(parts, 4 * BLOCK_BYTES as u64, false)));
        }),
        ("two writes in flight on one block", |env, file| {
            for _ in 0..2 {
                let parts = blocks(env, &[1]).iter().map(|chunk| chunk.slice(0..BLOCK_BYTES)).collect();
                drop(Box::pin(file.write(parts, 0, false)));
            }
        }),
    ];
    // A seed whose operations begin when they are called.
    let eager = (0..SEEDS).find(|seed| {
        let sim = Sim::new(*seed);
        let env = sim.boot(ARENA_BYTES);
        let file = done(sim.run(durable_file(&env, 4), LIMIT));
        panics(|| broken[0].1(&env, &file))
    });
    for (what, breach) in broken {
        let sim = Sim::new(eager.expect("half of the seeds are eager"));
        let env = sim.boot(ARENA_BYTES);
        let file = done(sim.run(durable_file(&env, 4), LIMIT));
        assert!(panics(|| breach(&env, &file)), "{what} is caught");
    }
}

#[test]
fn the_arena_is_bounded_poisoned_and_wakes_who_waits_for_memory() {
    let sim = Sim::new(3);
    let env = sim.boot(2 * BLOCK_BYTES);
    let first = env.arena().allocate(100).unwrap();
    assert_eq!(first.capacity(), BLOCK_BYTES);
    assert!(first.with_spare(0..BLOCK_BYTES, |spare| spare.iter().all(|byte| *byte != 0)), "spare bytes are not zeros");
    let second = env.arena().allocate(BLOCK_BYTES).unwrap();
    assert!(env.arena().allocate(1).is_none());
    second.fill_to(10);
    let slice = second.slice(0..10);
    let arena = env.arena().clone();
    env.spawn("neighbour", async move {
        drop(slice);
        drop(second);
    });
    done(sim.run(arena.released(), LIMIT));
    assert_eq!(env.arena().bytes_used(), BLOCK_BYTES);
    assert!(panics(|| first.with_spare(0..BLOCK_BYTES + 1, |_| ())));
    first.fill_to(20);
    assert!(panics(|| first.with_spare(10..30, |_| ())), "filled bytes are not lent");
    assert!(panics(|| first.fill_to(10)), "the fill mark does not go down");
    assert!(panics(|| drop(first.slice(0..21))), "a slice ends at the fill mark");
}

#[test]
fn a_deadlock_is_reported_with_the_tasks_that_wait() {
    let sim = Sim::new(1);
    let env = sim.boot(BLOCK_BYTES);
    env.spawn("the waiting one", std::future::pending());
    match sim.run(std::future::pending::<()>(), LIMIT) {
        Run::Deadlock(text) => assert!(text.contains("the waiting one"), "{text}"),
        other => panic!("{other:?}"),
    }
}
