//! What every implementation of the store seam promises, as tests that take a fresh store. Nothing here waits for luck:
//! what takes time is awaited through a watch, with a deadline that only a broken store reaches.

pub(crate) mod groups;
mod limits;
mod losses;
pub(crate) mod membership;
pub(crate) mod topics;

use std::time::Duration;

use corelane_broker::registry::store::{
    Change, Changes, Entry, Op, OpResult, Range, Store, StoreError, Test, Txn, Watch, list,
};

/// Only a broken store takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A store under test.
pub(crate) trait Fixture {
    type Store: Store;
    /// A prefix that is empty.
    fn prefix(&self) -> String;
    fn store(&self) -> Self::Store;
    /// Makes the store forget every revision up to now but the last few.
    async fn compact(&self);
    /// Stops the store and starts it again on what it has written; stores and watches made before are gone.
    async fn restart(self) -> Self;
    /// As a restart, with a copy of what was written put aside.
    async fn restart_and_save(self) -> Self;
    /// As a restart, but on the copy.
    async fn restart_as_saved(self) -> Self;
}

/// Runs every test of the suite.
pub(crate) async fn run_all<F: Fixture>(fixture: impl AsyncFn() -> F) {
    keys_have_revisions(fixture().await).await;
    compares_decide_which_branch_runs(fixture().await).await;
    nested_compares_see_what_was_there_before(fixture().await).await;
    a_transaction_is_all_or_nothing(fixture().await).await;
    pages_show_one_revision_whatever_happens_meanwhile(fixture().await).await;
    a_watch_misses_nothing_after_a_list(fixture().await).await;
    two_writers_one_wins(fixture().await).await;
    a_lease_takes_its_keys_along(fixture().await).await;
    a_key_leaves_its_lease_when_it_is_written_again(fixture().await).await;
    limits::run_all(&fixture).await;
    losses::run_all(&fixture).await;
}

async fn put<S: Store>(store: &S, key: &str, value: &str) -> u64 {
    store.commit(Txn::new().put(key, value.into())).await.expect("put").revision
}

async fn get<S: Store>(store: &S, key: &str) -> Option<Entry> {
    store.get(key).await.expect("get")
}

async fn value<S: Store>(store: &S, key: &str) -> Option<String> {
    get(store, key).await.map(|entry| String::from_utf8(entry.value).expect("text"))
}

async fn next(watch: &mut impl Watch) -> Changes {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("a change in time").expect("changes")
}

async fn keys_have_revisions<F: Fixture>(fixture: F) {
    let (store, key) = (fixture.store(), fixture.prefix() + "a");
    assert_eq!(get(&store, &key).await, None);
    let first = put(&store, &key, "1").await;
    let second = put(&store, &key, "2").await;
    assert!(second > first);
    let entry = get(&store, &key).await.expect("there");
    assert_eq!((entry.create_revision, entry.mod_revision, entry.lease), (first, second, None));
    let gone = store.commit(Txn::new().delete(&key)).await.expect("delete");
    assert_eq!((gone.revision > second, gone.results), (true, vec![OpResult::Deleted(1)]));
    let nothing = store.commit(Txn::new().delete(&key)).await.expect("delete");
    assert_eq!(nothing.results, [OpResult::Deleted(0)]);
    let again = put(&store, &key, "3").await;
    assert_eq!(get(&store, &key).await.expect("there").create_revision, again, "a key made again is another one");
}

async fn compares_decide_which_branch_runs<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let (there, absent) = (format!("{prefix}x/there"), format!("{prefix}y/absent"));
    let created = put(&store, &there, "1").await;
    let modified = put(&store, &there, "2").await;
    for (key, test, holds) in [
        (&absent, Test::Absent, true),
        (&there, Test::Absent, false),
        (&there, Test::Exists, true),
        (&absent, Test::Exists, false),
        (&there, Test::Value(b"2".to_vec()), true),
        (&there, Test::Value(b"1".to_vec()), false),
        (&absent, Test::Value(Vec::new()), false),
        (&there, Test::Created(created), true),
        (&there, Test::Created(modified), false),
        (&there, Test::Modified(modified), true),
        (&there, Test::Modified(created), false),
        (&absent, Test::Modified(modified), false),
        (&format!("{prefix}x/"), Test::NoneBelow, false),
        (&format!("{prefix}y/"), Test::NoneBelow, true),
    ] {
        let txn = Txn::new().when(key, test.clone()).then(Op::Get(there.clone())).otherwise(Op::Delete(absent.clone()));
        let outcome = store.commit(txn).await.expect("commit");
        assert_eq!(outcome.succeeded, holds, "{key} {test:?}");
        assert!(matches!(outcome.results[..], [OpResult::Got(Some(_))]) == holds, "{key} {test:?}");
    }
    let both = Txn::new().when(&there, Test::Exists).when(&absent, Test::Exists).put(&there, b"3".to_vec());
    assert!(!store.commit(both).await.expect("commit").succeeded, "every compare must hold");
    assert_eq!(value(&store, &there).await.as_deref(), Some("2"));
}

async fn nested_compares_see_what_was_there_before<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let (a, b, c) = (format!("{prefix}a"), format!("{prefix}b"), format!("{prefix}c"));
    let inner = Txn::new().when(&a, Test::Exists).put(&b, b"then".to_vec()).otherwise(Op::Put {
        key: c.clone(),
        value: b"otherwise".to_vec(),
        lease: None,
    });
    let outer = Txn::new().when(&a, Test::Absent).put(&a, b"1".to_vec()).then(Op::Txn(inner.clone()));
    let outcome = store.commit(outer).await.expect("commit");
    assert!(outcome.succeeded);
    assert_eq!(
        outcome.results,
        [OpResult::Put, OpResult::Txn { succeeded: false, results: vec![OpResult::Put] }],
        "the inner compare does not see the outer put"
    );
    assert_eq!((value(&store, &b).await, value(&store, &c).await.as_deref()), (None, Some("otherwise")));
    // One nested transaction each, as commits of positions are: a stale one fails alone.
    let modified = get(&store, &a).await.expect("there").mod_revision;
    let each = |key: &str, modified| Op::Txn(Txn::new().when(key, Test::Modified(modified)).put(key, b"9".to_vec()));
    let outcome = store.commit(Txn::new().then(each(&a, modified)).then(each(&c, modified - 1))).await.expect("commit");
    let succeeded = |result: &OpResult| matches!(result, OpResult::Txn { succeeded: true, .. });
    assert_eq!(outcome.results.iter().map(succeeded).collect::<Vec<_>>(), [true, false]);
    assert_eq!(
        (value(&store, &a).await.as_deref(), value(&store, &c).await.as_deref()),
        (Some("9"), Some("otherwise"))
    );
}

async fn a_transaction_is_all_or_nothing<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let (a, b) = (format!("{prefix}a"), format!("{prefix}b"));
    let twice = Txn::new().put(&a, b"1".to_vec()).put(&a, b"2".to_vec());
    assert!(matches!(store.commit(twice).await, Err(StoreError::Invalid(_))));
    let unknown_lease = Op::Put { key: b.clone(), value: b"1".to_vec(), lease: Some(0x7777_7777) };
    let txn = Txn::new().put(&a, b"1".to_vec()).then(unknown_lease);
    assert_eq!(store.commit(txn).await, Err(StoreError::LeaseGone));
    assert_eq!((get(&store, &a).await, get(&store, &b).await), (None, None));
    let many = (0..50).fold(Txn::new(), |txn, i| txn.put(format!("{prefix}m/{i:03}"), b"1".to_vec()));
    let revision = store.commit(many).await.expect("a page of puts").revision;
    let (entries, _) = list(&store, &format!("{prefix}m/")).await.expect("list");
    assert!(entries.len() == 50 && entries.iter().all(|entry| entry.mod_revision == revision), "one revision for all");
    let gone = store.commit(Txn::new().then(Op::DeletePrefix(format!("{prefix}m/")))).await.expect("delete");
    assert_eq!(gone.results, [OpResult::Deleted(50)]);
}

async fn pages_show_one_revision_whatever_happens_meanwhile<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let key = |i: u32| format!("{prefix}{i:03}");
    for i in 0..20 {
        put(&store, &key(i), "old").await;
    }
    let mut range = Range { limit: 7, ..Range::prefix(&prefix) };
    let mut page = store.range(range.clone()).await.expect("the first page");
    range.at = Some(page.revision);
    let mut seen = page.entries.clone();
    // Changed, removed, made, and made anew behind the reader's back, while it stands at 007.
    for i in [8, 9, 10] {
        put(&store, &key(i), "new").await;
    }
    store.commit(Txn::new().delete(key(11)).delete(key(3)).put(format!("{prefix}0081"), Vec::new())).await.expect("ok");
    store.commit(Txn::new().put(key(11), b"new".to_vec()).put(format!("{prefix}999"), Vec::new())).await.expect("ok");
    while page.more {
        range.start = format!("{}\0", seen.last().expect("some").key);
        page = store.range(range.clone()).await.expect("a page");
        assert!(page.entries.len() <= 7);
        seen.extend(page.entries.clone());
    }
    let keys: Vec<_> = seen.iter().map(|entry| entry.key.clone()).collect();
    assert_eq!(keys, (0..20).map(key).collect::<Vec<_>>());
    assert!(seen.iter().all(|entry| entry.value == b"old"));
    let (now, _) = list(&store, &prefix).await.expect("list");
    assert_eq!(now.len(), 21);
    assert!(store.range(Range { at: Some(u64::MAX >> 8), ..range }).await.is_err(), "the future cannot be read");
}

async fn a_watch_misses_nothing_after_a_list<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let (a, b) = (format!("{prefix}w/a"), format!("{prefix}w/b"));
    put(&store, &a, "1").await;
    let (entries, revision) = list(&store, &format!("{prefix}w/")).await.expect("list");
    assert_eq!(entries.len(), 1);
    // Before the watch begins, and outside its prefix.
    let second = put(&store, &a, "2").await;
    put(&store, &format!("{prefix}other"), "x").await;
    let mut watch = store.watch(&format!("{prefix}w/"), revision + 1).await.expect("watch");
    let changes = next(&mut watch).await.changes;
    assert!(matches!(&changes[..], [Change::Put(entry)] if entry.value == b"2" && entry.mod_revision == second));
    // While it waits: a transaction arrives whole, in order.
    let (changes, both) = tokio::join!(next(&mut watch), async {
        store.commit(Txn::new().delete(&a).put(&b, b"3".to_vec())).await.expect("commit").revision
    });
    assert_eq!(changes.changes.len(), 2);
    assert!(changes.changes.contains(&Change::Deleted { key: a.clone(), revision: both }));
    assert!(changes.revision >= both);
    // From an old revision once more.
    let mut again = store.watch(&format!("{prefix}w/"), revision + 1).await.expect("watch");
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(next(&mut again).await.changes);
    }
    assert_eq!(seen.len(), 3);
}

async fn two_writers_one_wins<F: Fixture>(fixture: F) {
    let (store, key) = (fixture.store(), fixture.prefix() + "counter");
    put(&store, &key, "0").await;
    let add = async |times: u32| {
        for _ in 0..times {
            loop {
                let entry = get(&store, &key).await.expect("there");
                let count: u32 = std::str::from_utf8(&entry.value).expect("text").parse().expect("a number");
                let txn = Txn::new()
                    .when(&key, Test::Modified(entry.mod_revision))
                    .put(&key, (count + 1).to_string().into_bytes());
                if store.commit(txn).await.expect("commit").succeeded {
                    break;
                }
            }
        }
    };
    tokio::join!(add(20), add(20), add(20));
    assert_eq!(value(&store, &key).await.as_deref(), Some("60"));
}

async fn a_lease_takes_its_keys_along<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let (_, revision) = list(&store, &prefix).await.expect("list");
    let mut watch = store.watch(&prefix, revision + 1).await.expect("watch");
    let (short, long) = (Duration::from_secs(1), Duration::from_hours(1));
    let (ends, stays) = (store.grant(short).await.expect("grant"), store.grant(long).await.expect("grant"));
    let leased = |key: &str, lease| Op::Put { key: format!("{prefix}{key}"), value: Vec::new(), lease: Some(lease) };
    store.commit(Txn::new().then(leased("a", ends)).then(leased("b", ends))).await.expect("commit");
    store.commit(Txn::new().then(leased("c", stays))).await.expect("commit");
    assert_eq!(get(&store, &format!("{prefix}a")).await.expect("there").lease, Some(ends));
    assert!(store.keep_alive(stays).await.expect("alive") >= short);
    let mut deleted = Vec::new();
    while deleted.len() < 2 {
        let changes = next(&mut watch).await.changes;
        deleted.extend(changes.into_iter().filter_map(|change| match change {
            Change::Deleted { key, .. } => Some(key),
            Change::Put(_) => None,
        }));
    }
    assert_eq!(deleted, [format!("{prefix}a"), format!("{prefix}b")]);
    assert_eq!(store.keep_alive(ends).await, Err(StoreError::LeaseGone), "a late keep-alive revives nothing");
    assert!(store.commit(Txn::new().then(leased("a", ends))).await.is_err());
    store.revoke(stays).await.expect("revoke");
    assert_eq!(get(&store, &format!("{prefix}c")).await, None);
    assert_eq!(store.revoke(stays).await, Err(StoreError::LeaseGone));
}

async fn a_key_leaves_its_lease_when_it_is_written_again<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let (old, new) = (
        store.grant(Duration::from_hours(1)).await.expect("grant"),
        store.grant(Duration::from_hours(1)).await.expect("grant"),
    );
    let leased = |key: &str, lease| Op::Put { key: format!("{prefix}{key}"), value: Vec::new(), lease };
    let put_all = Txn::new().then(leased("a", Some(old))).then(leased("b", Some(old))).then(leased("c", Some(old)));
    store.commit(put_all).await.expect("commit");
    store.commit(Txn::new().then(leased("a", None)).then(leased("b", Some(new)))).await.expect("commit");
    store.commit(Txn::new().delete(format!("{prefix}c"))).await.expect("commit");
    let again = put(&store, &format!("{prefix}c"), "anew").await;
    store.revoke(old).await.expect("revoke");
    let (entries, _) = list(&store, &prefix).await.expect("list");
    assert_eq!(entries.iter().map(|entry| entry.lease).collect::<Vec<_>>(), [None, Some(new), None]);
    assert_eq!(entries[2].create_revision, again);
}
