use std::future::Future;
use std::io;
use std::path::Path;

use corelane_log::env::{Arena, BLOCK_BYTES, Chunk, Disk, Env, File, OpenMode};
use corelane_testkit::TestDir;
use glommio::{LocalExecutorBuilder, Placement};

use crate::io::arena::ShardSlice;
use crate::io::env::ShardEnv;

/// Runs a test on an executor, in a directory of its own.
fn run<F: Future<Output = io::Result<()>>>(test: impl FnOnce(ShardEnv, TestDir) -> F) {
    let dir = TestDir::new("disk");
    let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(64 << 10).make().expect("an executor");
    executor
        .run(async {
            let env = ShardEnv::new(2 << 20)?;
            test(env.clone(), dir).await?;
            env.ring().idle().await;
            io::Result::Ok(())
        })
        .expect("the test's operations succeed");
}

fn filled(env: &ShardEnv, bytes: usize, mark: u8) -> ShardSlice {
    let chunk = env.arena().allocate(bytes).expect("room");
    chunk.with_spare(0..bytes, |spare| spare.fill(mark));
    chunk.fill_to(bytes);
    chunk.slice(0..bytes)
}

async fn read(env: &ShardEnv, path: &Path, bytes: usize, offset: u64) -> io::Result<Vec<u8>> {
    let file = env.disk().open(path, OpenMode::Read).await?;
    let chunk = env.arena().allocate(bytes).expect("room");
    let read = file.read(&chunk, 0, bytes, offset).await?;
    assert_eq!(chunk.filled(), read);
    Ok(chunk.slice(0..read).to_vec())
}

#[test]
fn what_is_written_synchronously_is_read_back() {
    run(|env, dir| async move {
        let path = dir.path().join("file");
        let file = env.disk().open(&path, OpenMode::Create).await?;
        file.allocate(64 << 10).await?;
        assert_eq!(file.bytes().await?, 64 << 10);
        let parts = vec![filled(&env, BLOCK_BYTES, 1), filled(&env, 2 * BLOCK_BYTES, 2)];
        file.write(parts, BLOCK_BYTES as u64, true).await?;
        file.write(vec![filled(&env, BLOCK_BYTES, 3)], 0, false).await?;
        file.sync_data().await?;
        let content = read(&env, &path, 8 * BLOCK_BYTES, 0).await?;
        let marks: Vec<u8> = content.iter().step_by(BLOCK_BYTES).copied().collect();
        assert_eq!(marks, [3, 1, 2, 2, 0, 0, 0, 0]);
        file.truncate(5000).await?;
        assert_eq!(file.bytes().await?, 5000);
        assert_eq!(read(&env, &path, 8 * BLOCK_BYTES, 0).await?.len(), 5000, "a read ends with the file");
        assert_eq!(read(&env, &path, BLOCK_BYTES, 1 << 20).await?.len(), 0);
        Ok(())
    });
}

#[test]
fn many_operations_at_a_time_all_complete() {
    run(|env, dir| async move {
        let path = dir.path().join("file");
        let file = env.disk().open(&path, OpenMode::Create).await?;
        let block = filled(&env, BLOCK_BYTES, 7);
        // More than the ring lets in at a time, so some wait for room.
        let count = 3000;
        file.allocate(count * BLOCK_BYTES as u64).await?;
        let writes = (0..count).map(|number| file.write(vec![block.clone()], number * BLOCK_BYTES as u64, false));
        for result in futures_util::future::join_all(writes).await {
            result?;
        }
        let content = read(&env, &path, 1 << 20, (count - 256) * BLOCK_BYTES as u64).await?;
        assert!(content.len() == 1 << 20 && content.iter().all(|&byte| byte == 7));
        Ok(())
    });
}

#[test]
fn dropped_operations_run_to_their_end_and_keep_their_memory() {
    run(|env, dir| async move {
        let path = dir.path().join("file");
        let file = env.disk().open(&path, OpenMode::Create).await?;
        file.allocate(1 << 20).await?;
        for number in 0..64 {
            let mut write =
                Box::pin(file.write(vec![filled(&env, BLOCK_BYTES, number)], u64::from(number) << 12, true));
            assert!(futures_util::poll!(&mut write).is_pending());
        }
        let chunk = env.arena().allocate(BLOCK_BYTES).expect("room");
        let mut reading = Box::pin(file.read(&chunk, 0, BLOCK_BYTES, 512 << 10));
        assert!(futures_util::poll!(&mut reading).is_pending());
        drop((reading, chunk));
        assert!(env.arena().bytes_used() >= 65 * BLOCK_BYTES, "memory under way was given back");
        drop(file);
        env.ring().idle().await;
        assert_eq!(env.arena().bytes_used(), 0);
        let content = read(&env, &path, 64 * BLOCK_BYTES, 0).await?;
        assert!(content.chunks(BLOCK_BYTES).zip(0..).all(|(block, number)| block[0] == number));
        Ok(())
    });
}

#[test]
fn a_ring_that_goes_waits_for_what_is_under_way() {
    run(|_, dir| async move {
        let path = dir.path().join("file");
        let env = ShardEnv::new(2 << 20)?;
        let file = env.disk().open(&path, OpenMode::Create).await?;
        file.allocate(1 << 20).await?;
        let mut write = Box::pin(file.write(vec![filled(&env, 1 << 20, 9)], 0, true));
        assert!(futures_util::poll!(&mut write).is_pending());
        drop((write, file, env));
        assert!(std::fs::read(&path)?.iter().all(|&byte| byte == 9));
        Ok(())
    });
}

#[test]
fn a_file_is_locked_by_its_writer() {
    run(|env, dir| async move {
        let path = dir.path().join("file");
        let first = env.disk().open(&path, OpenMode::Create).await?;
        let mut second = Box::pin(env.disk().open(&path, OpenMode::Write));
        let patience = glommio::timer::sleep(std::time::Duration::from_millis(30));
        let outcome = futures_util::future::select(&mut second, Box::pin(patience)).await;
        assert!(matches!(outcome, futures_util::future::Either::Right(_)), "opened a file that is locked");
        env.disk().open(&path, OpenMode::Read).await?;
        drop(first);
        second.await?;
        Ok(())
    });
}

#[test]
fn errors_name_what_the_system_said() {
    run(|env, dir| async move {
        let (disk, path) = (env.disk(), dir.path().join("file"));
        let kind = |result: io::Result<()>| result.expect_err("must fail").kind();
        assert_eq!(kind(disk.open(&path, OpenMode::Write).await.map(drop)), io::ErrorKind::NotFound);
        drop(disk.open(&path, OpenMode::Create).await?);
        assert_eq!(kind(disk.open(&path, OpenMode::Create).await.map(drop)), io::ErrorKind::AlreadyExists);
        let file = disk.open(&path, OpenMode::Read).await?;
        assert!(file.write(vec![filled(&env, BLOCK_BYTES, 0)], 0, false).await.is_err(), "wrote through a reader");
        assert_eq!(kind(disk.remove_dir(&dir.path().join("none")).await), io::ErrorKind::NotFound);
        Ok(())
    });
}

#[test]
fn directories_and_small_files_change_as_asked() {
    run(|env, dir| async move {
        let (disk, topic) = (env.disk(), dir.path().join("topic"));
        disk.create_dir(&topic).await?;
        disk.replace_small(&topic.join("small"), b"one".to_vec()).await?;
        disk.replace_small(&topic.join("small"), b"two".to_vec()).await?;
        assert_eq!(disk.read_small(&topic.join("small"), 3).await?, b"two");
        let too_large = disk.read_small(&topic.join("small"), 2).await.expect_err("three bytes are more than two");
        assert_eq!(too_large.kind(), io::ErrorKind::FileTooLarge);
        let moved = dir.path().join("moved");
        disk.rename(&topic, &moved).await?;
        disk.sync_dir(dir.path()).await?;
        let entries = disk.list(&moved).await?;
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].name.as_str(), entries[0].is_dir, entries[0].bytes), ("small", false, 3));
        disk.remove_file(&moved.join("small")).await?;
        disk.remove_dir(&moved).await?;
        assert!(disk.list(&moved).await.is_err());
        Ok(())
    });
}
