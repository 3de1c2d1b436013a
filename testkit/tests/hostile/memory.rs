//! The broker within a bound of memory that the system enforces.

use std::fs;
use std::path::{Path, PathBuf};

use corelane_proto::frame::Method;
use corelane_proto::pb;
use corelane_testkit::{Broker, BrokerOptions};

use crate::fuzz::steady::Steady;
use crate::wire::{Wire, create_topic, fetch, publish, set_of};

const LIMIT_BYTES: u64 = 512 << 20;
const STALLED: usize = 500;
/// What each of them asks for: together far more than the limit, and each more than a socket holds.
const FETCHES: usize = 8;

/// A control group with a bound on memory, removed when dropped.
struct MemoryGroup {
    dir: PathBuf,
    /// Where the most that was ever used stands.
    peak: PathBuf,
}

impl MemoryGroup {
    /// One of version 2 or 1, whichever this machine lets us make.
    fn make() -> Option<MemoryGroup> {
        let name = format!("corelane-test-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup", "memory.max", "memory.peak"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        ];
        kinds.into_iter().find_map(|(root, limit, peak)| {
            let dir = Path::new(root).join(&name);
            fs::create_dir(&dir).ok()?;
            let group = MemoryGroup { peak: dir.join(peak), dir };
            // A directory of another file system has no such files, and a group only those that its parent grants.
            let has_both = ["cgroup.procs", limit].iter().all(|file| group.dir.join(file).exists());
            (has_both && fs::write(group.dir.join(limit), LIMIT_BYTES.to_string()).is_ok()).then_some(group)
        })
    }

    /// The words in front of a command that run it in the group.
    fn wrapper(&self) -> Vec<String> {
        let script = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.dir.display());
        ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The broker has ended; the kernel may take a moment to notice.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn five_hundred_stalled_readers_fit_into_512_mib_and_the_others_are_served() {
    let group = MemoryGroup::make();
    println!(
        "a control group: {}",
        group.as_ref().map_or("none here".to_owned(), |group| group.dir.display().to_string())
    );
    let options = BrokerOptions::new().shards(2);
    let options = group.as_ref().map_or(options.clone(), |group| options.wrapper(group.wrapper()));
    let mut broker = Broker::start(options);
    let topic = create_topic(broker.addr(), "stalled", 2);
    let steady = Steady::start(broker.addr(), "steady");
    for partition in 0..2 {
        let mut producer = Wire::greet(broker.addr(), topic.partitions[partition as usize].shard);
        for sequence in 0..48 {
            let request = publish(&topic, partition, sequence);
            producer.call(Method::Publish, &request, &set_of(&[vec![7; 1_000_000]])).ok::<pb::PublishResponse>();
        }
    }
    let mut most = 0;
    let mut stalled = Vec::new();
    for at in 0..STALLED {
        let partition = at as u32 % 2;
        let mut reader = Wire::greet(broker.addr(), topic.partitions[partition as usize].shard);
        for at in 0..FETCHES {
            let request = fetch(&topic, partition, at as u64 * 4 * 1_000_024, 0);
            reader.send(Method::Fetch, &request, &[]).expect("the broker reads");
        }
        stalled.push(reader);
        most = most.max(broker.rss_bytes());
    }
    let seen = steady.stop(broker.addr());
    // One of them goes on, and gets what it asked for.
    let reader = stalled.last_mut().expect("a stalled reader");
    for _ in 0..FETCHES {
        let answered = reader.receive().expect("an answer");
        answered.ok::<pb::FetchResponse>();
        assert_eq!(answered.payload.len(), 4 << 20);
    }
    most = most.max(broker.rss_bytes());
    let peak = group.as_ref().and_then(|group| fs::read_to_string(&group.peak).ok());
    println!(
        "{STALLED} stalled readers: {} MiB resident at most, the group's peak {} MiB; the client beside: {} rounds, the longest {:?}",
        most >> 20,
        peak.and_then(|peak| peak.trim().parse::<u64>().ok()).unwrap_or_default() >> 20,
        seen.rounds,
        seen.longest
    );
    assert!(most < LIMIT_BYTES, "{most} bytes resident");
    assert!(broker.is_running(), "the broker was ended");
    drop(stalled);
    broker.stop();
}
