//! The embedded registry against the suite that every store must pass, and what only a store on disk promises.

mod store_suite;

use std::time::Duration;

use corelane_broker::registry::embedded::{EmbeddedOptions, EmbeddedStore};
use corelane_broker::registry::keys::{Key, Keys};
use corelane_broker::registry::records::{ClusterRecord, Record};
use corelane_broker::registry::store::{Op, Store, StoreError, Txn, Watch, list};
use corelane_broker::registry::transfer::export;
use corelane_proto::ids::TopicId;
use corelane_testkit::{FaultyDisk, SmallDisk, skip};
use store_suite::Fixture;

struct Embedded {
    dir: tempfile::TempDir,
    store: EmbeddedStore,
}

impl Embedded {
    fn open() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        Self { store: Self::open_in(&dir), dir }
    }

    fn open_in(dir: &tempfile::TempDir) -> EmbeddedStore {
        EmbeddedStore::open(&dir.path().join("registry.redb"), OPTIONS).expect("opens")
    }

    /// Closes it, copies one file of its directory onto another, opens it again.
    fn restart_copying(self, copy: Option<(&str, &str)>) -> Self {
        let Self { dir, store } = self;
        store.close();
        if let Some((from, to)) = copy {
            std::fs::copy(dir.path().join(from), dir.path().join(to)).expect("copied");
        }
        Self { store: Self::open_in(&dir), dir }
    }
}

const OPTIONS: EmbeddedOptions = EmbeddedOptions { history_revisions_max: 100 };

impl Fixture for Embedded {
    type Store = EmbeddedStore;

    fn prefix(&self) -> String {
        "/t/".to_owned()
    }

    fn store(&self) -> EmbeddedStore {
        self.store.clone()
    }

    async fn compact(&self) {
        for i in 0..2 * OPTIONS.history_revisions_max {
            self.store.commit(Txn::new().put("/filler", i.to_string().into_bytes())).await.expect("commit");
        }
    }

    async fn restart(self) -> Self {
        self.restart_copying(None)
    }

    async fn restart_and_save(self) -> Self {
        self.restart_copying(Some(("registry.redb", "saved")))
    }

    async fn restart_as_saved(self) -> Self {
        self.restart_copying(Some(("saved", "registry.redb")))
    }
}

#[tokio::test]
async fn the_embedded_registry_keeps_what_every_store_promises() {
    store_suite::run_all(async || Embedded::open()).await;
}

#[tokio::test]
async fn topics_keep_their_promises_on_the_embedded_registry() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = EmbeddedOptions::default();
    let store = EmbeddedStore::open(&dir.path().join("registry.redb"), options).expect("opens");
    store_suite::topics::run_all(&store).await;
    store_suite::membership::run_all(&store).await;
}

#[tokio::test]
async fn an_export_names_the_key_whose_value_it_cannot_read() {
    let embedded = Embedded::open();
    let keys = Keys::new("c");
    let cluster = ClusterRecord { cluster_id: "id".to_owned(), incarnation: 1 }.to_bytes();
    let unreadable = keys.key(&Key::Deleted(TopicId([0xab; 16])));
    let txn = Txn::new().put(keys.key(&Key::Cluster), cluster).put(&unreadable, b"not JSON".to_vec());
    embedded.store.commit(txn).await.expect("commit");
    let error = export(&embedded.store, &keys).await.expect_err("it is not readable").to_string();
    assert!(error.starts_with(&unreadable) && error.ends_with("correct it, or remove the key"), "{error}");
    embedded.store.commit(Txn::new().delete(unreadable)).await.expect("commit");
    assert_eq!(export(&embedded.store, &keys).await.expect("exported").len(), 1);
}

#[tokio::test]
async fn groups_keep_their_promises_on_the_embedded_registry() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = EmbeddedOptions::default();
    let store = EmbeddedStore::open(&dir.path().join("registry.redb"), options).expect("opens");
    store_suite::groups::run_all(&store).await;
}

#[tokio::test]
async fn revisions_keys_and_history_outlive_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("registry.redb");
    let store = EmbeddedStore::open(&path, OPTIONS).expect("opens");
    let first = store.commit(Txn::new().put("/a", b"1".to_vec())).await.expect("commit").revision;
    let second = store.commit(Txn::new().put("/b", b"2".to_vec())).await.expect("commit").revision;
    let (before, revision) = list(&store, "/").await.expect("list");
    assert!(EmbeddedStore::open(&path, OPTIONS).is_err(), "one process, one store");
    store.close();

    let store = EmbeddedStore::open(&path, OPTIONS).expect("opens again");
    assert_eq!(list(&store, "/").await.expect("list"), (before, revision));
    let mut watch = store.watch("/", first + 1).await.expect("watch");
    assert_eq!(watch.next().await.expect("changes").revision, second);
    let third = store.commit(Txn::new().put("/a", b"3".to_vec())).await.expect("commit").revision;
    assert_eq!(third, second + 1, "a restart repeats and skips no revision");
}

#[tokio::test]
async fn a_restart_arms_each_lease_for_its_full_life_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("registry.redb");
    let store = EmbeddedStore::open(&path, OPTIONS).expect("opens");
    let long = store.grant(Duration::from_hours(1)).await.expect("grant");
    let short = store.grant(Duration::from_millis(300)).await.expect("grant");
    let leased = |key: &str, lease| Op::Put { key: key.to_owned(), value: Vec::new(), lease: Some(lease) };
    let both = Txn::new().then(leased("/long", long)).then(leased("/short", short));
    let revision = store.commit(both).await.expect("commit").revision;
    store.close();

    let store = EmbeddedStore::open(&path, OPTIONS).expect("opens again");
    assert!(store.keep_alive(long).await.expect("alive") == Duration::from_hours(1));
    let mut watch = store.watch("/short", revision + 1).await.expect("watch");
    let ended = tokio::time::timeout(Duration::from_secs(30), watch.next()).await.expect("it ends in time");
    assert_eq!(ended.expect("a change").changes.len(), 1);
    assert_eq!(store.keep_alive(short).await, Err(StoreError::LeaseGone));
    assert!(store.get("/long").await.expect("get").is_some());
    let another = store.grant(Duration::from_hours(1)).await.expect("grant");
    assert!(another > short, "a lease's name is not given twice");
}

#[tokio::test]
async fn of_a_damaged_file_nothing_is_given_that_was_not_written() {
    const KEYS: usize = 300;
    let value = |key: usize| format!("value {key}").into_bytes();
    let dir = tempfile::tempdir().expect("a directory");
    let (sound, hurt) = (dir.path().join("sound"), dir.path().join("hurt"));
    let store = EmbeddedStore::open(&sound, OPTIONS).expect("opens");
    for key in 0..KEYS {
        store.commit(Txn::new().put(format!("/{key:04}"), value(key))).await.expect("commit");
    }
    store.close();
    let sound = std::fs::read(&sound).expect("a file");
    let used: Vec<usize> = (0..sound.len()).filter(|at| sound[*at] != 0).collect();
    let seed =
        std::env::var("CORELANE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("CORELANE_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut noticed = 0;
    for round in 0..60 {
        let mut bytes = sound.clone();
        let at = used[random.usize(..used.len())];
        match round % 3 {
            0 => bytes[at] ^= 1 << random.u32(..8),
            1 => bytes[at..].iter_mut().take(512).for_each(|byte| *byte = 0),
            _ => bytes.truncate(at),
        }
        std::fs::write(&hurt, bytes).expect("written");
        let Ok(store) = EmbeddedStore::open(&hurt, OPTIONS) else {
            noticed += 1;
            continue;
        };
        let (entries, _) = list(&store, "/").await.expect("what opens can be read");
        noticed += usize::from(entries.len() < KEYS);
        for entry in entries {
            let key: usize = entry.key[1..].parse().expect("a key");
            assert_eq!(entry.value, value(key), "{} after damage at {at}, round {round}", entry.key);
        }
        store.close();
    }
    assert!(noticed > 20, "{noticed} of 60 noticed");
}

/// Puts keys until the store refuses; says how many it took.
async fn fill(store: &EmbeddedStore, from: usize) -> usize {
    let mut count = from;
    loop {
        match store.commit(Txn::new().put(format!("/fill/{count:06}"), vec![7; 1_000])).await {
            Ok(_) => count += 1,
            Err(StoreError::NoSpace) => return count,
            Err(error) => panic!("{error}"),
        }
        assert!(count < 100_000, "the disk never fills");
    }
}

#[tokio::test]
async fn on_a_full_disk_what_makes_room_is_written_and_what_is_new_is_refused_until_there_is_room() {
    let name = "on_a_full_disk_what_makes_room_is_written_and_what_is_new_is_refused_until_there_is_room";
    let disk = match SmallDisk::mount(16) {
        Ok(disk) => disk,
        Err(why) => return skip(name, &why),
    };
    let path = disk.path().join("registry.redb");
    let store = EmbeddedStore::open(&path, OPTIONS).expect("opens");
    let lease = store.grant(Duration::from_hours(1)).await.expect("grant");
    for i in 0..100 {
        store.commit(Txn::new().put(format!("/before/{i:03}"), vec![1; 1_000])).await.expect("commit");
    }
    disk.fill();
    let count = fill(&store, 0).await;
    println!("{count} keys were taken on the full disk");

    // Refused is refused: nothing of it is there, and the store goes on.
    assert_eq!(store.get(&format!("/fill/{count:06}")).await.expect("get"), None);
    let deleted = async |store: &EmbeddedStore, i: usize| {
        // A tombstone for what goes, as the deletion of a topic leaves one.
        let txn = Txn::new().delete(format!("/before/{i:03}")).put(format!("/deleted/{i:03}"), vec![2; 100]);
        store.commit(txn).await.map(|_| ())
    };
    for i in 0..50 {
        assert_eq!(deleted(&store, i).await, Ok(()), "deletion {i}");
    }
    store.keep_alive(lease).await.expect("alive");
    let alive = Op::Put { key: "/alive".to_owned(), value: vec![3; 100], lease: Some(lease) };
    store.commit(Txn::new().then(alive)).await.expect("what goes by itself is written");
    store.commit(Txn::new().put("/before/099", vec![4; 1_000])).await.expect("what was there is written over");
    let (before, _) = list(&store, "/").await.expect("list");
    store.close();

    // So it is for a store that is opened on the full disk.
    let store = EmbeddedStore::open(&path, OPTIONS).expect("opens on a full disk");
    assert_eq!(list(&store, "/").await.expect("list").0, before);
    // The start may have found room within the file.
    fill(&store, count).await;
    for i in 50..99 {
        assert_eq!(deleted(&store, i).await, Ok(()), "deletion {i}");
    }

    // It resumes by itself.
    disk.make_room();
    store.commit(Txn::new().put("/new", Vec::new())).await.expect("there is room again");
    assert!(store.get("/new").await.expect("get").is_some());
}

#[tokio::test]
async fn a_write_that_failed_is_told_and_the_store_goes_on_from_what_the_disk_has() {
    let name = "a_write_that_failed_is_told_and_the_store_goes_on_from_what_the_disk_has";
    let disk = match FaultyDisk::mount(16) {
        Ok(disk) => disk,
        Err(why) => return skip(name, &why),
    };
    let path = disk.path().join("registry.redb");
    let store = EmbeddedStore::open(&path, OPTIONS).expect("opens");
    let first = store.commit(Txn::new().put("/a", b"1".to_vec())).await.expect("commit").revision;
    let mut watch = store.watch("/", first + 1).await.expect("watch");
    let lease = store.grant(Duration::from_hours(1)).await.expect("grant");

    let mark = b"what the disk does not take";
    disk.fail_writes(mark);
    for _ in 0..3 {
        let failed = store.commit(Txn::new().put("/bad", mark.to_vec())).await;
        assert!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
        assert_eq!(store.get("/bad").await.expect("reads go on"), None);
        store.commit(Txn::new().put("/a", b"2".to_vec())).await.expect("what the disk takes is written");
    }
    assert!(disk.failures() > 0);
    store.keep_alive(lease).await.expect("leases outlive it");
    disk.heal();
    let last = store.commit(Txn::new().put("/bad", mark.to_vec())).await.expect("commit").revision;
    let mut seen = 0;
    while seen < last {
        seen = watch.next().await.expect("a watch goes on").revision;
    }
    drop(watch);
    store.close();
    let store = EmbeddedStore::open(&path, OPTIONS).expect("opens again");
    assert_eq!(store.get("/bad").await.expect("get").expect("there").value, mark);
    assert_eq!(store.get("/a").await.expect("get").expect("there").value, b"2");
}
