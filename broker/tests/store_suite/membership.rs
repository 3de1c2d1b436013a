//! What a broker's place in the registry promises, on any store.

use std::time::Duration;

use corelane_broker::registry::keys::{Key, Keys};
use corelane_broker::registry::membership::{Holds, IdentityError, Membership};
use corelane_broker::registry::records::{AliveRecord, BrokerRecord, Record as _};
use corelane_broker::registry::store::{Store, StoreError, Txn};

/// Runs every test.
pub(crate) async fn run_all<S: Store>(store: &S) {
    a_cluster_is_made_once(store, &Keys::new("m1")).await;
    a_broker_number_stands_for_one_directory_that_is_not_behind(store, &Keys::new("m2")).await;
    a_restart_takes_its_own_lease_over_and_no_others(store, &Keys::new("m3")).await;
    an_entry_among_those_that_run_tells_how_many_partitions_there_are_now(store, &Keys::new("m4")).await;
}

fn membership<S: Store>(store: &S, keys: &Keys) -> Membership<S> {
    Membership::new(store.clone(), keys.clone(), 1)
}

fn broker_record(uuid: &str, starts: u64, instance: &str) -> BrokerRecord {
    BrokerRecord {
        uuid: uuid.to_owned(),
        starts,
        instance: instance.to_owned(),
        listeners: Vec::new(),
        shards: 1,
        version: "0".to_owned(),
    }
}

async fn a_cluster_is_made_once<S: Store>(store: &S, keys: &Keys) {
    let broker = membership(store, keys);
    assert_eq!(broker.cluster_id().await.expect("read"), None);
    let (one, other) = tokio::join!(broker.make_cluster("a"), broker.make_cluster("b"));
    let one = one.expect("made");
    assert_eq!(one, other.expect("made"));
    assert_eq!(broker.cluster_id().await.expect("read"), Some(one));
    let raised = tokio::join!(broker.raise_incarnation(1), broker.raise_incarnation(1));
    assert_eq!((raised.0.expect("raised"), raised.1.expect("raised")), (2, 2), "once, whoever notices");
    assert_eq!(broker.raise_incarnation(4).await.expect("raised"), 5, "above every one that was known");
}

async fn a_broker_number_stands_for_one_directory_that_is_not_behind<S: Store>(store: &S, keys: &Keys) {
    let broker = membership(store, keys);
    let record = |uuid: &str, starts| broker_record(uuid, starts, &format!("i{starts}"));
    broker.register(&record("u1", 1)).await.expect("a first start");
    broker.register(&record("u1", 1)).await.expect("the same start, whose record was lost");
    broker.register(&record("u1", 2)).await.expect("a second one");
    broker.register(&record("u1", 9)).await.expect("starts that did not get so far");
    broker.check_directory("u1", 9).await.expect("up to date");
    broker.check_directory("u1", 10).await.expect("ahead: the registry did not hear of a start");
    let behind = broker.check_directory("u1", 8).await;
    assert!(matches!(behind, Err(IdentityError::Behind { starts: 8, registered: 9, .. })), "{behind:?}");
    let other = broker.check_directory("u2", 9).await;
    assert!(matches!(other, Err(IdentityError::OtherDirectory { .. })), "{other:?}");
    let behind = broker.register(&broker_record("u1", 9, "a copy that was started as often")).await;
    assert!(matches!(behind, Err(IdentityError::Behind { starts: 9, registered: 9, .. })), "{behind:?}");
    let other = broker.register(&record("u2", 10)).await;
    assert!(matches!(other, Err(IdentityError::OtherDirectory { .. })), "{other:?}");
}

async fn an_entry_among_those_that_run_tells_how_many_partitions_there_are_now<S: Store>(store: &S, keys: &Keys) {
    let broker = membership(store, keys);
    let start = broker_record("u1", 1, "i1");
    let entry = |partitions| AliveRecord {
        instance: "i1".to_owned(),
        uuid: "u1".to_owned(),
        partitions,
        ..AliveRecord::default()
    };
    let holds = |partitions| Holds { partitions, ..Holds::default() };
    broker.register(&start).await.expect("registered");
    assert!(!broker.keep_place(&start, holds(0)).await.expect("looked"), "it has not said that it runs");
    let life = Duration::from_hours(1);
    let lease = broker.announce(&start, &entry(0), life).await.expect("announced").expect("a lease");
    let alive = keys.key(&Key::Alive(1));
    let look = async || store.get(&alive).await.expect("get").expect("there");
    let announced = look().await;
    assert!(broker.keep_place(&start, holds(0)).await.expect("looked"));
    assert_eq!(look().await.mod_revision, announced.mod_revision, "what is true is not written again");
    assert!(broker.keep_place(&start, holds(3)).await.expect("looked"));
    let told = look().await;
    assert_eq!((AliveRecord::from_bytes(&told.value).expect("readable"), told.lease), (entry(3), Some(lease)));
    assert!(!broker.keep_place(&broker_record("u1", 1, "i2"), holds(7)).await.is_ok_and(|kept| kept), "another run");
    assert_eq!(look().await.value, told.value);
    broker.revoke(lease).await.expect("revoked");
    assert!(!broker.keep_place(&start, holds(3)).await.expect("looked"), "its lease has ended");
}

async fn a_restart_takes_its_own_lease_over_and_no_others<S: Store>(store: &S, keys: &Keys) {
    let broker = membership(store, keys);
    let record = |instance: &str, uuid: &str| AliveRecord {
        instance: instance.to_owned(),
        uuid: uuid.to_owned(),
        ..AliveRecord::default()
    };
    let life = Duration::from_hours(1);
    let (start_1, start_2) = (broker_record("u1", 1, "i1"), broker_record("u1", 2, "i2"));
    broker.register(&start_1).await.expect("registered");
    let first = broker.announce(&start_1, &record("i1", "u1"), life).await.expect("announced").expect("a lease");
    broker.register(&start_2).await.expect("registered");
    let second = broker.announce(&start_2, &record("i2", "u1"), life).await.expect("announced").expect("a lease");
    assert_eq!(store.keep_alive(first).await, Err(StoreError::LeaseGone), "the old run's lease is taken over");
    let displaced = broker.announce(&start_1, &record("i1", "u1"), life).await;
    assert!(displaced.is_err_and(|error| error.is_displacement()), "an earlier run that wakes up takes nothing back");
    assert!(matches!(broker.forget(1).await, Err(IdentityError::Runs { broker_id: 1 })), "a broker that runs stays");
    store.commit(Txn::new().delete(keys.key(&Key::Broker(1)))).await.expect("removed by hand");
    let other = broker_record("u2", 1, "i3");
    broker.register(&other).await.expect("registered");
    let waits = broker.announce(&other, &record("i3", "u2"), life).await.expect("asked");
    assert!(waits.is_none(), "another directory waits");
    let alive = keys.key(&Key::Alive(1));
    assert_eq!(store.get(&alive).await.expect("get").expect("there").lease, Some(second));
    broker.revoke(second).await.expect("revoked");
    broker.revoke(second).await.expect("twice");
    assert_eq!(store.get(&alive).await.expect("get"), None);
    assert!(broker.forget(1).await.expect("forgotten"));
    assert!(!broker.forget(1).await.expect("nothing left"));
}
