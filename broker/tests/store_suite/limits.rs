//! What is promised where there is much of something.

use super::*;
use corelane_broker::limits::{RANGE_PAGE, REGISTRY_VALUE_BYTES_MAX, TXN_BYTES_MAX, TXN_OPERATIONS_MAX, TXN_PAGE};

pub(super) async fn run_all<F: Fixture>(fixture: &impl AsyncFn() -> F) {
    a_list_of_many_pages_shows_one_revision(fixture().await).await;
    a_watch_that_is_far_behind_misses_nothing(fixture().await).await;
    transactions_have_the_same_limits_everywhere(fixture().await).await;
}

/// Writes so many keys below the prefix, a page in one transaction; returns the last revision.
async fn put_many<S: Store>(store: &S, prefix: &str, count: usize, value: &str) -> u64 {
    let mut revision = 0;
    for first in (0..count).step_by(TXN_PAGE) {
        let keys = first..count.min(first + TXN_PAGE);
        let txn = keys.fold(Txn::new(), |txn, i| txn.put(format!("{prefix}{i:05}"), value.into()));
        revision = store.commit(txn).await.expect("a page of puts").revision;
    }
    revision
}

async fn a_list_of_many_pages_shows_one_revision<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix() + "many/");
    let count = 2 * RANGE_PAGE + 234;
    assert!(count > 1_000);
    let written = put_many(&store, &prefix, count, "old").await;
    let changing = async {
        for i in 0..40 {
            // From the end to the front, so that pages yet to be read change as well.
            let key = format!("{prefix}{:05}", count - 1 - i * (count / 40));
            store.commit(Txn::new().put(key, b"new".to_vec())).await.expect("put");
            store.commit(Txn::new().put(format!("{prefix}{i:05}x"), b"new".to_vec())).await.expect("put");
        }
    };
    let listing = async {
        loop {
            let (entries, revision) = list(&store, &prefix).await.expect("list");
            let of_one_revision = entries.iter().all(|entry| entry.mod_revision <= revision);
            assert!(of_one_revision && entries.is_sorted_by(|a, b| a.key < b.key));
            // Each pair of changes makes one key more: revision and number of keys go together.
            assert_eq!(entries.len() as u64, count as u64 + (revision - written) / 2);
            if revision == written + 80 {
                break;
            }
            // A list of the embedded store never waits.
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(listing, changing);
}

async fn a_watch_that_is_far_behind_misses_nothing<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix() + "behind/");
    let (_, revision) = list(&store, &prefix).await.expect("list");
    let mut watch = store.watch(&prefix, revision + 1).await.expect("watch");
    let last = put_many(&store, &prefix, 3_000, "1").await;
    let mut seen = Vec::new();
    loop {
        let changes = next(&mut watch).await;
        seen.extend(changes.changes.into_iter().map(|change| match change {
            Change::Put(entry) => entry.key,
            Change::Deleted { key, .. } => panic!("{key} was not deleted"),
        }));
        assert_eq!(seen.len() % TXN_PAGE, 0, "a transaction comes whole");
        if changes.revision == last {
            break;
        }
    }
    assert_eq!(seen, (0..3_000).map(|i| format!("{prefix}{i:05}")).collect::<Vec<_>>());
}

async fn transactions_have_the_same_limits_everywhere<F: Fixture>(fixture: F) {
    let (store, prefix) = (fixture.store(), fixture.prefix());
    let key = |i: usize| format!("{prefix}l/{i:03}");
    let puts = |count| (0..count).fold(Txn::new(), |txn, i| txn.put(key(i), b"1".to_vec()));
    let invalid = |answer| matches!(answer, Err(StoreError::Invalid(_)));
    assert!(store.commit(puts(TXN_OPERATIONS_MAX)).await.expect("as many as may be").succeeded);
    assert!(invalid(store.commit(puts(TXN_OPERATIONS_MAX + 1)).await));
    // A page of nested ones, as positions are committed, with a compare each.
    let each = |i| Op::Txn(Txn::new().when(key(i), Test::Exists).put(key(i), b"2".to_vec()));
    let nested = |count| (0..count).fold(Txn::new(), |txn, i| txn.then(each(i)));
    let outcome = store.commit(nested(TXN_OPERATIONS_MAX - 1)).await.expect("as many as may be");
    assert!(outcome.results.iter().all(|result| matches!(result, OpResult::Txn { succeeded: true, .. })));
    assert!(invalid(store.commit(nested(TXN_OPERATIONS_MAX)).await));

    let large = vec![b'x'; REGISTRY_VALUE_BYTES_MAX];
    let put = |values: &[&[u8]]| (0..).zip(values).fold(Txn::new(), |txn, (i, value)| txn.put(key(i), value.to_vec()));
    store.commit(put(&[&large, &large[..TXN_BYTES_MAX - large.len() - 100]])).await.expect("as large as may be");
    assert!(invalid(store.commit(put(&[&[&large[..], b"x"].concat()])).await));
    assert!(invalid(store.commit(put(&[&large, &large])).await));
    assert_eq!(get(&store, &key(0)).await.expect("there").value, large);
}
