//! What a broker's place in the registry promises, on any store.

use std::time::Duration;

use corelane_broker::registry::keys::{Key, Keys};
use corelane_broker::registry::membership::{IdentityError, Membership};
use corelane_broker::registry::records::{AliveRecord, BrokerRecord};
use corelane_broker::registry::store::{Store, StoreError};

/// Runs every test.
pub(crate) async fn run_all<S: Store>(store: &S) {
    a_cluster_is_made_once(store, &Keys::new("m1")).await;
    a_broker_number_stands_for_one_directory_that_is_not_behind(store, &Keys::new("m2")).await;
    a_restart_takes_its_own_lease_over_and_no_others(store, &Keys::new("m3")).await;
}

fn membership<S: Store>(store: &S, keys: &Keys) -> Membership<S> {
    Membership::new(store.clone(), keys.clone(), 1)
}

async fn a_cluster_is_made_once<S: Store>(store: &S, keys: &Keys) {
    let broker = membership(store, keys);
    assert_eq!(broker.cluster_id().await.expect("read"), None);
    let (one, other) = tokio::join!(broker.make_cluster("a"), broker.make_cluster("b"));
    let one = one.expect("made");
    assert_eq!(one, other.expect("made"));
    assert_eq!(broker.cluster_id().await.expect("read"), Some(one));
}

async fn a_broker_number_stands_for_one_directory_that_is_not_behind<S: Store>(store: &S, keys: &Keys) {
    let broker = membership(store, keys);
    let record = |uuid: &str, starts| BrokerRecord {
        uuid: uuid.to_owned(),
        starts,
        listeners: Vec::new(),
        shards: 1,
        version: "0".to_owned(),
    };
    broker.register(&record("u1", 1)).await.expect("a first start");
    broker.register(&record("u1", 2)).await.expect("a second one");
    broker.register(&record("u1", 9)).await.expect("starts that did not get so far");
    broker.check_directory("u1", 9).await.expect("up to date");
    broker.check_directory("u1", 10).await.expect("ahead: the registry did not hear of a start");
    let behind = broker.check_directory("u1", 8).await;
    assert!(matches!(behind, Err(IdentityError::Behind { starts: 8, registered: 9, .. })), "{behind:?}");
    let other = broker.check_directory("u2", 9).await;
    assert!(matches!(other, Err(IdentityError::OtherDirectory { .. })), "{other:?}");
    let behind = broker.register(&record("u1", 9)).await;
    assert!(matches!(behind, Err(IdentityError::Behind { starts: 9, registered: 9, .. })), "{behind:?}");
    let other = broker.register(&record("u2", 10)).await;
    assert!(matches!(other, Err(IdentityError::OtherDirectory { .. })), "{other:?}");
}

async fn a_restart_takes_its_own_lease_over_and_no_others<S: Store>(store: &S, keys: &Keys) {
    let broker = membership(store, keys);
    let record = |instance: &str, uuid: &str| AliveRecord {
        instance: instance.to_owned(),
        uuid: uuid.to_owned(),
        started_ms: 0,
        partitions: 0,
    };
    let life = Duration::from_hours(1);
    let first = broker.announce(&record("i1", "u1"), life).await.expect("announced").expect("a lease");
    let second = broker.announce(&record("i2", "u1"), life).await.expect("announced").expect("a lease");
    assert_eq!(store.keep_alive(first).await, Err(StoreError::LeaseGone), "the old run's lease is taken over");
    assert!(broker.announce(&record("i3", "u2"), life).await.expect("asked").is_none(), "another directory waits");
    let alive = keys.key(&Key::Alive(1));
    assert_eq!(store.get(&alive).await.expect("get").expect("there").lease, Some(second));
    broker.revoke(second).await.expect("revoked");
    broker.revoke(second).await.expect("twice");
    assert_eq!(store.get(&alive).await.expect("get"), None);
}
