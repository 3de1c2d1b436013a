//! What is promised when something is lost: leases that end, history that is forgotten, the store's process, its data.

use super::*;

/// Long enough that a restart on a busy machine, and what follows, fits into it; short enough to be waited for.
const LIFE: Duration = Duration::from_secs(6);

pub(super) async fn run_all<F: Fixture>(fixture: &impl AsyncFn() -> F) {
    a_lease_lives_as_long_as_it_is_kept_alive(fixture().await).await;
    what_is_forgotten_is_said_to_be(fixture().await).await;
    a_watch_that_is_up_to_date_outlives_a_compaction(fixture().await).await;
    a_restart_keeps_keys_revisions_history_and_leases(fixture().await).await;
    a_store_that_went_back_shows_it(fixture().await).await;
}

fn leased(key: &str, lease: u64) -> Op {
    Op::Put { key: key.to_owned(), value: Vec::new(), lease: Some(lease) }
}

async fn a_lease_lives_as_long_as_it_is_kept_alive<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let (kept, measure) = (format!("{prefix}kept"), format!("{prefix}measure"));
    let (_, revision) = list(&store, &prefix).await.expect("list");
    let mut watch = store.watch(&measure, revision + 1).await.expect("watch");
    let kept_lease = store.grant(Duration::from_secs(2)).await.expect("grant");
    store.commit(Txn::new().then(leased(&kept, kept_lease))).await.expect("commit");
    let life = store.keep_alive(kept_lease).await.expect("alive");
    assert!(life >= Duration::from_secs(2));
    // Two lives of later leases pass, each measured by the lease's own end.
    for _ in 0..2 {
        let lease = store.grant(Duration::from_secs(2)).await.expect("grant");
        store.commit(Txn::new().then(leased(&measure, lease))).await.expect("commit");
        assert_eq!(next(&mut watch).await.changes.len(), 1, "the put");
        let mut ended = std::pin::pin!(next(&mut watch));
        loop {
            tokio::select! {
                changes = &mut ended => {
                    assert!(matches!(changes.changes[..], [Change::Deleted { .. }]));
                    break;
                }
                kept = store.keep_alive(kept_lease) => assert_eq!(kept, Ok(life)),
            }
        }
    }
    assert!(get(&store, &kept).await.is_some());
    store.revoke(kept_lease).await.expect("revoke");
    assert_eq!(store.keep_alive(kept_lease).await, Err(StoreError::LeaseGone));
}

async fn what_is_forgotten_is_said_to_be<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let old = put(&store, &format!("{prefix}a"), "1").await;
    fixture.compact().await;
    let at_old = Range { at: Some(old), ..Range::prefix(&prefix) };
    assert!(matches!(store.range(at_old).await, Err(StoreError::Compacted { compacted }) if compacted >= old));
    let mut behind = store.watch(&prefix, old).await.expect("watch");
    let behind = tokio::time::timeout(PATIENCE, behind.next()).await.expect("an answer in time");
    assert!(matches!(behind, Err(StoreError::Compacted { compacted }) if compacted >= old), "{behind:?}");
    let (_, revision) = list(&store, &prefix).await.expect("list");
    let mut fresh = store.watch(&prefix, revision + 1).await.expect("watch");
    put(&store, &format!("{prefix}b"), "2").await;
    assert_eq!(next(&mut fresh).await.changes.len(), 1, "list again, watch again");
}

async fn a_watch_that_is_up_to_date_outlives_a_compaction<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let (_, revision) = list(&store, &prefix).await.expect("list");
    let mut watch = store.watch(&prefix, revision + 1).await.expect("watch");
    put(&store, &format!("{prefix}a"), "1").await;
    assert_eq!(next(&mut watch).await.changes.len(), 1);
    // The store's own history moves on meanwhile: the watch is kept going, as a broker's is.
    let waiting = async {
        let changes = next(&mut watch).await.changes;
        assert!(matches!(&changes[..], [Change::Put(entry)] if entry.value == b"2"), "{changes:?}");
    };
    let changing = async {
        fixture.compact().await;
        put(&store, &format!("{prefix}a"), "2").await;
    };
    tokio::join!(waiting, changing);
}

async fn a_restart_keeps_keys_revisions_history_and_leases<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let first = put(&store, &format!("{prefix}a"), "1").await;
    let second = put(&store, &format!("{prefix}a"), "2").await;
    let (kept, left) = (store.grant(LIFE).await.expect("grant"), store.grant(LIFE).await.expect("grant"));
    let both = Txn::new().then(leased(&format!("{prefix}kept"), kept)).then(leased(&format!("{prefix}left"), left));
    store.commit(both).await.expect("commit");
    let before = list(&store, &prefix).await.expect("list");
    let seen = store.seen().await.expect("seen");
    drop(store);
    let fixture = fixture.restart().await;

    let store = fixture.store();
    assert_eq!(store.seen().await.expect("seen"), seen);
    assert_eq!(list(&store, &prefix).await.expect("list"), before, "leases live on, for their full life again");
    let at_first = Range { at: Some(first), ..Range::prefix(&prefix) };
    let page = store.range(at_first).await.expect("history");
    assert!(matches!(&page.entries[..], [entry] if entry.value == b"1"));
    let mut watch = store.watch(&prefix, second).await.expect("watch");
    let Changes { changes, .. } = next(&mut watch).await;
    assert!(matches!(&changes[0], Change::Put(entry) if entry.mod_revision == second));
    let mut left_ended = false;
    while !left_ended {
        tokio::select! {
            changes = next(&mut watch) => left_ended = changes.changes.iter().any(|change| match change {
                Change::Deleted { key, .. } => *key == format!("{prefix}left"),
                Change::Put(_) => false,
            }),
            kept = store.keep_alive(kept) => assert!(kept.expect("alive") >= LIFE),
        }
    }
    assert_eq!(store.keep_alive(left).await, Err(StoreError::LeaseGone));
    assert!(get(&store, &format!("{prefix}kept")).await.is_some());
    store.revoke(kept).await.expect("revoke");
}

async fn a_store_that_went_back_shows_it<F: Fixture>(fixture: F) {
    let prefix = fixture.prefix();
    put(&fixture.store(), &format!("{prefix}a"), "1").await;
    let fixture = fixture.restart_and_save().await;
    let store = fixture.store();
    let saved = store.seen().await.expect("seen");
    put(&store, &format!("{prefix}a"), "2").await;
    let last = store.seen().await.expect("seen");
    assert!(!saved.was_lost(&last) && last.revision > saved.revision);
    drop(store);
    let fixture = fixture.restart_as_saved().await;

    let store = fixture.store();
    let restored = store.seen().await.expect("seen");
    assert!(last.was_lost(&restored), "{last:?} {restored:?}");
    assert!(!saved.was_lost(&restored));
    assert_eq!(value(&store, &format!("{prefix}a")).await.as_deref(), Some("1"));
}
