//! Torn tails after a crash: exactly the whole sets before the tear come back, new ones follow right after, and nothing
//! that was torn ever appears.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use corelane_client::{Client, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions};

use super::{Got, metric, read};
use crate::support::{connect, create, publish_numbered};

const TOPIC: &str = "torn";
const SETS: u64 = 4;
const VALUE_BYTES: usize = 100;
const MESSAGE_BYTES: u64 = 24 + VALUE_BYTES as u64;

/// What is done to the end of a log.
#[derive(Clone, Copy, Debug)]
enum Tear {
    /// The file ends so many bytes before the log does.
    Cut(u64),
    /// So many of the last bytes never came to the disk.
    Zeroed(u64),
    /// Zeros in place of the last 4 KiB.
    Block,
    /// 4 KiB of noise behind the end.
    Noise,
    /// Half a message behind the end.
    Half,
    /// A message behind the end that is whole, but not the last of its set: a set that is not.
    HalfASet,
}

fn tears() -> Vec<Tear> {
    let cuts = (1..=20).map(Tear::Cut);
    let zeroed = (1..=20).map(Tear::Zeroed);
    cuts.chain(zeroed).chain([Tear::Block, Tear::Noise, Tear::Half, Tear::HalfASet]).collect()
}

impl Tear {
    /// Does it to a segment with `end` bytes in it; returns how many sets are whole afterwards.
    fn tear(self, path: &Path, end: u64, random: &mut fastrand::Rng) -> u64 {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("a segment");
        let first: Vec<u8> = fs::read(path).expect("a segment")[..MESSAGE_BYTES as usize].to_vec();
        match self {
            Tear::Cut(bytes) => {
                file.set_len(end - bytes).expect("cut");
                SETS - 1
            }
            Tear::Zeroed(bytes) => {
                file.write_all_at(&vec![0; bytes as usize], end - bytes).expect("written");
                SETS - 1
            }
            Tear::Block => {
                // The log is shorter than that: nothing of it is left.
                file.write_all_at(&[0; 4096], 0).expect("written");
                0
            }
            Tear::Noise => {
                let mut noise = vec![0; 4096];
                random.fill(&mut noise);
                file.write_all_at(&noise, end).expect("written");
                SETS
            }
            Tear::Half => {
                file.write_all_at(&first[..40], end).expect("written");
                SETS
            }
            Tear::HalfASet => {
                let mut unfinished = first;
                unfinished[9] &= 0x7f;
                let crc = crc32fast::hash(&unfinished[8..]).to_le_bytes();
                unfinished[4..8].copy_from_slice(&crc);
                file.write_all_at(&unfinished, end).expect("written");
                SETS
            }
        }
    }
}

fn segment(data: &Path, partition: usize) -> PathBuf {
    let mut entries = fs::read_dir(data).expect("a directory").map(|entry| entry.expect("an entry").path());
    let topic = entries.find(|path| path.to_string_lossy().contains("/torn~"));
    topic.expect("a topic's directory").join(partition.to_string()).join("00000000000000000000-00000001.log")
}

async fn read_numbers(client: &Client, partition: u32) -> Vec<Got> {
    let (got, stats) = read(client, TOPIC, partition, Start::Earliest).await;
    assert_eq!(stats.bad_messages, 0, "partition {partition}");
    got
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_torn_tail_exactly_the_whole_sets_are_there_and_new_ones_right_after() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let tears = tears();
    let mut broker = Broker::start(BrokerOptions::new().shards(2));
    let client = connect(&broker).await;
    create(&client, TOPIC, tears.len() as u32, TopicSettings::new()).await;
    let producer = client.producer().batch_messages_max(1).build().expect("a producer");
    for partition in 0..tears.len() as u32 {
        let ids = publish_numbered(&producer, TOPIC, partition, 0..SETS, VALUE_BYTES).await;
        assert_eq!(ids.last(), Some(&((SETS - 1) * MESSAGE_BYTES)), "a set has one message");
    }
    broker.kill9();
    let data = broker.data_dir();
    // As after a crash before the first checkpoint: what it called durable could not be torn.
    for entry in fs::read_dir(&data).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.to_string_lossy().contains("/checkpoint-") {
            fs::remove_file(path).expect("removed");
        }
    }
    let end = SETS * MESSAGE_BYTES;
    let mut whole_sets = Vec::new();
    let mut left_over_bytes = 0;
    for (partition, tear) in tears.iter().enumerate() {
        let path = segment(&data, partition);
        let sets = tear.tear(&path, end, &mut random);
        let content = fs::read(&path).expect("a segment");
        let content_end = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
        left_over_bytes += content_end.saturating_sub(sets * MESSAGE_BYTES);
        whole_sets.push(sets);
    }
    broker.restart();
    assert_eq!(metric(&broker, "corelane_cut_bytes_total"), left_over_bytes, "all of it is cut off, a copy kept");
    let mut expected: Vec<Vec<Got>> = Vec::new();
    for life in 0..2_u64 {
        let client = connect(&broker).await;
        let producer = client.producer().batch_messages_max(1).build().expect("a producer");
        for (partition, (sets, tear)) in whole_sets.iter().zip(&tears).enumerate() {
            let before = read_numbers(&client, partition as u32).await;
            if life == 0 {
                let ids: Vec<u64> = before.iter().map(|(id, _)| *id).collect();
                let whole: Vec<u64> = (0..*sets).map(|set| set * MESSAGE_BYTES).collect();
                assert_eq!(ids, whole, "{tear:?}");
            } else {
                assert_eq!(before, expected[partition], "{tear:?}, in its next life");
            }
            let next = 100 + life;
            let ids = publish_numbered(&producer, TOPIC, partition as u32, next..next + 1, VALUE_BYTES).await;
            assert_eq!(ids, [(sets + life) * MESSAGE_BYTES], "{tear:?}: the new one begins where the whole ones end");
            let after = read_numbers(&client, partition as u32).await;
            assert_eq!(after[..before.len()], before, "{tear:?}");
            assert_eq!(after.len(), before.len() + 1, "{tear:?}: nothing but the new one");
            if life == 0 {
                expected.push(after);
            }
        }
        if life == 0 {
            broker.kill9();
            broker.restart();
        }
    }
}
