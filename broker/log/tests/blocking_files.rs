//! A partition on real files: what is published comes back, across segments and restarts.

use std::path::Path;
use std::pin::pin;

use corelane_log::blocking::{self, BlockingEnv};
use corelane_log::env::{Env, File};
use corelane_log::{Driver, Partition, PartitionOptions, Piece, Shard, Target, TopicConfig};
use corelane_proto::ids::{Position, TopicId};
use corelane_proto::message::MessageParts;
use corelane_proto::set::SetBuilder;
use futures_util::future::{Either, select};

fn options() -> PartitionOptions {
    let config = TopicConfig {
        segment_bytes: 64 << 10,
        set_bytes_max: 32 << 10,
        message_bytes_max: 32 << 10,
        ..TopicConfig::default()
    };
    let mut options = PartitionOptions::new("sample".parse().unwrap(), TopicId([1; 16]), 0);
    options.config = config;
    options.unflushed_bytes_max = 64 << 10;
    options.window_max_ever = 64 << 10;
    options
}

fn set(number: usize, messages: usize, value_bytes: usize) -> Vec<u8> {
    let mut builder = SetBuilder::new();
    for index in 0..messages {
        let value = vec![(number + index) as u8; value_bytes];
        let timestamp_ms = (number * 1000 + index) as i64;
        builder.push(&MessageParts { value: Some(&value), timestamp_ms, ..MessageParts::default() }).unwrap();
    }
    builder.finish().to_vec()
}

async fn publish(partition: &Partition<BlockingEnv>, set: &[u8]) -> Position {
    let mut landing = partition.landing(set.len()).await.unwrap();
    landing.copy_from(set);
    partition.append(landing, None).await.unwrap().next
}

async fn read_all(shard: &Shard<BlockingEnv>, partition: &Partition<BlockingEnv>) -> Vec<u8> {
    use corelane_log::env::{Arena, Chunk};
    let mut all = Vec::new();
    let mut at = partition.bounds().start;
    while at < partition.bounds().visible_end {
        for piece in partition.read(at, 10_000).await.unwrap() {
            let bytes = piece.bytes();
            match piece {
                Piece::Memory(slice) => all.extend_from_slice(&slice),
                Piece::File { file, offset, bytes } => {
                    let from = offset / 4096 * 4096;
                    let skip = (offset - from) as usize;
                    let chunk = shard.env().arena().allocate((skip + bytes).next_multiple_of(4096)).unwrap();
                    file.read(&chunk, 0, chunk.capacity(), from).await.unwrap();
                    all.extend_from_slice(&chunk.slice(skip..skip + bytes));
                }
            }
            at += bytes as u64;
        }
    }
    all
}

/// Runs `main` to its end, and the partition's driver beside it.
fn run_beside<T>(driver: Driver<BlockingEnv>, main: impl Future<Output = T>) -> T {
    let (driver, main) = (pin!(driver.run()), pin!(main));
    match blocking::run(select(main, driver)) {
        Either::Left((result, _)) => result,
        Either::Right(((), main)) => blocking::run(main),
    }
}

#[test]
fn what_is_published_comes_back_across_segments_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let topic_dir: &Path = dir.path();
    let mut expected = Vec::new();
    let mut starts = Vec::new();
    let shard = Shard::new(BlockingEnv::default());
    let (partition, driver) = blocking::run(Partition::create(&shard, topic_dir, &options())).unwrap();
    run_beside(driver, async {
        for number in 0..150 {
            let set = set(number, 1 + number % 5, 50 + number * 31 % 3000);
            starts.push(expected.len() as u64);
            expected.extend_from_slice(&set);
            let next = publish(&partition, &set).await;
            assert_eq!(next.0, expected.len() as u64);
        }
        partition.wait_durable(Position(expected.len() as u64)).await.unwrap();
        assert!(partition.stats().segments > 3);
        assert_eq!(read_all(&shard, &partition).await, expected);
        assert_eq!(partition.find(Target::LastMessages(u64::MAX)).await.unwrap(), Position(0));
        partition.close().await.unwrap();
    });
    let floor = partition.checkpoint_entry();
    assert_eq!(floor.durable_end.0, expected.len() as u64);

    for floor in [Some(floor), None] {
        let shard = Shard::new(BlockingEnv::default());
        let opened = blocking::run(Partition::open(&shard, topic_dir, &options(), floor, false));
        let (partition, driver, report) = opened.unwrap();
        assert_eq!((report.end.0, report.cut, report.damage), (expected.len() as u64, None, None));
        run_beside(driver, async {
            assert_eq!(read_all(&shard, &partition).await, expected);
            for (number, start) in starts.iter().enumerate() {
                let found = partition.find(Target::Time(number as i64 * 1000)).await.unwrap();
                assert_eq!(found.0, *start, "set {number}");
                assert_eq!(partition.seek(Position(start + 20)).await.unwrap().0, *start);
            }
            let last = set(starts.len(), 2, 100);
            starts.push(expected.len() as u64);
            expected.extend_from_slice(&last);
            publish(&partition, &last).await;
            partition.close().await.unwrap();
        });
    }
}
