//! The embedded registry against the suite that every store must pass, and what only a store on disk promises.

mod store_suite;

use std::time::Duration;

use corelane_broker::registry::embedded::{EmbeddedOptions, EmbeddedStore};
use corelane_broker::registry::store::{Op, Store, StoreError, Txn, Watch, list};
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
