//! What topics in the registry promise, on any store: a topic exists whole or not at all, whoever dies in between.

use std::time::Duration;

use corelane_broker::limits::{CREATION_DEAD_AFTER, TXN_PAGE};
use corelane_broker::registry::keys::{Key, Keys};
use corelane_broker::registry::records::{AliveRecord, CreatingRecord, Record};
use corelane_broker::registry::store::{Store, Test, Txn, list};
use corelane_broker::registry::topics::{NewTopic, Sweeper, TopicError, Topics};
use corelane_broker::registry::view::{Follower, View};
use corelane_log::config::TopicConfig;
use corelane_proto::ids::{Epoch, TopicId, TopicName};

/// Runs every test; each gets a store and a cluster's name of its own.
pub(crate) async fn run_all<S: Store>(store: &S) {
    a_topic_appears_whole_and_vanishes_with_a_tombstone(store, Keys::new("t1")).await;
    one_of_two_creators_wins_and_the_other_leaves_nothing(store, Keys::new("t2")).await;
    a_creation_that_died_is_swept_and_its_creator_changes_nothing_any_more(store, Keys::new("t3")).await;
    configurations_change_without_losing_a_change(store, Keys::new("t4")).await;
    what_was_made_is_recorded_unless_the_key_has_moved_on(store, Keys::new("t5")).await;
    a_follower_sees_what_a_fresh_one_sees(store, Keys::new("t6")).await;
    partitions_are_added_by_one_at_a_time_and_half_of_them_mean_nothing(store, Keys::new("t7")).await;
    an_accepted_loss_begins_the_next_epoch_once(store, Keys::new("t8")).await;
}

fn name(name: &str) -> TopicName {
    TopicName::new(name).expect("a name")
}

fn new_topic(topic: &str, id: u8, partitions: u32) -> NewTopic {
    NewTopic {
        name: name(topic),
        topic_id: TopicId([id; 16]),
        config: TopicConfig::default(),
        places: (0..partitions).map(|partition| 1 + partition % 2).collect(),
        starts: Vec::new(),
        copy_of: Vec::new(),
    }
}

fn topics<S: Store>(store: &S, keys: &Keys) -> Topics<S> {
    Topics::new(store.clone(), keys.clone(), "instance-1".to_owned())
}

async fn keys_below<S: Store>(store: &S, prefix: &str) -> Vec<String> {
    list(store, prefix).await.expect("list").0.into_iter().map(|entry| entry.key).collect()
}

async fn a_topic_appears_whole_and_vanishes_with_a_tombstone<S: Store>(store: &S, keys: Keys) {
    let topics = topics(store, &keys);
    // More than one page.
    let partitions = 2 * TXN_PAGE as u32 + 7;
    let record = topics.create(&new_topic("views", 7, partitions)).await.expect("created");
    assert_eq!(topics.get(&name("views")).await.expect("get").expect("there").record, record);
    let made = topics.partitions_of(record.topic_id).await.expect("partitions");
    assert_eq!(made.keys().copied().collect::<Vec<_>>(), (0..partitions).collect::<Vec<_>>());
    assert!(made.values().all(|partition| partition.record.made.is_none() && partition.record.epoch == Epoch(1)));
    assert!(keys_below(store, &keys.creating()).await.is_empty());
    let again = topics.create(&new_topic("views", 8, 1)).await;
    assert!(matches!(again, Err(TopicError::Exists { partitions: found, .. }) if found == partitions));

    let other = topics.delete(&name("views"), Some(TopicId([9; 16]))).await;
    assert!(matches!(other, Err(TopicError::OtherTopic { topic_id, .. }) if topic_id == record.topic_id));
    assert_eq!(topics.delete(&name("views"), None).await.expect("deleted"), record.topic_id);
    assert!(topics.get(&name("views")).await.expect("get").is_none());
    assert!(matches!(topics.delete(&name("views"), None).await, Err(TopicError::Unknown { .. })));
    let tombstone = keys.key(&Key::Deleted(record.topic_id));
    let only_the_tombstone = [tombstone];
    assert_eq!(keys_below(store, keys.all()).await, only_the_tombstone, "nothing else is left");
    topics.confirm_deleted(record.topic_id, 1).await.expect("confirmed");
    assert_eq!(keys_below(store, keys.all()).await, only_the_tombstone, "the other holder has yet to confirm");
    topics.confirm_deleted(record.topic_id, 2).await.expect("confirmed");
    topics.confirm_deleted(record.topic_id, 2).await.expect("confirmed twice");
    assert!(keys_below(store, keys.all()).await.is_empty());
}

async fn one_of_two_creators_wins_and_the_other_leaves_nothing<S: Store>(store: &S, keys: Keys) {
    let topics = topics(store, &keys);
    let (first, second) = (new_topic("views", 1, 60), new_topic("views", 2, 70));
    let (first, second) = tokio::join!(topics.create(&first), topics.create(&second));
    assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    let winner = first.or(second).expect("one");
    assert_eq!(topics.get(&name("views")).await.expect("get").expect("there").record, winner);
    let left = keys_below(store, keys.all()).await;
    assert_eq!(left.len(), winner.partitions as usize + 1, "the winner's keys only");
}

async fn a_creation_that_died_is_swept_and_its_creator_changes_nothing_any_more<S: Store>(store: &S, keys: Keys) {
    let topics = topics(store, &keys);
    let begin = async |id: u8, instance: &str| {
        let marker = CreatingRecord { name: name("dead"), from: 0, partitions: 3, instance: instance.to_owned() };
        let id = TopicId([id; 16]);
        let marker_key = keys.key(&Key::Creating(id));
        let begun = store.commit(Txn::new().put(&marker_key, marker.to_bytes())).await.expect("begun").revision;
        let page =
            Txn::new().when(&marker_key, Test::Modified(begun)).put(keys.key(&Key::Partition(id, 0)), b"{}".to_vec());
        assert!(store.commit(page.clone()).await.expect("a page").succeeded);
        page
    };
    let alive = AliveRecord { instance: "instance-1".to_owned(), uuid: "u".to_owned(), ..AliveRecord::default() };
    store.commit(Txn::new().put(keys.key(&Key::Alive(1)), alive.to_bytes())).await.expect("alive");
    let of_a_dead_broker = begin(1, "instance-0").await;
    let of_this_one = begin(2, "instance-1").await;

    let mut sweeper = Sweeper::default();
    let start = Duration::from_secs(1000);
    assert_eq!(sweeper.sweep(&topics, start).await.expect("swept"), [name("dead")]);
    assert!(!store.commit(of_a_dead_broker).await.expect("commit").succeeded, "it wakes up too late");
    assert_eq!(keys_below(store, &keys.partitions()).await.len(), 1);
    let just_before = start + CREATION_DEAD_AFTER.saturating_sub(Duration::from_millis(1));
    assert!(sweeper.sweep(&topics, just_before).await.expect("swept").is_empty());
    assert_eq!(sweeper.sweep(&topics, start + CREATION_DEAD_AFTER).await.expect("swept"), [name("dead")]);
    assert!(!store.commit(of_this_one).await.expect("commit").succeeded);
    assert_eq!(keys_below(store, keys.all()).await, [keys.key(&Key::Alive(1))]);
}

async fn partitions_are_added_by_one_at_a_time_and_half_of_them_mean_nothing<S: Store>(store: &S, keys: Keys) {
    let topics = topics(store, &keys);
    topics.create(&new_topic("views", 1, 2)).await.expect("created");
    let views = name("views");
    let old = topics.get(&views).await.expect("get").expect("there");
    let (sixty, fifty) = (vec![1; 60], vec![2; 50]);
    let (one, other) =
        tokio::join!(topics.add_partitions(&views, &old, &sixty), topics.add_partitions(&views, &old, &fifty));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    let grown = one.or(other).expect("one of them");
    let found = topics.get(&views).await.expect("get").expect("there");
    assert_eq!(found.record, grown);
    let partitions = topics.partitions_of(grown.topic_id).await.expect("partitions");
    let places = partitions.range(2..grown.partitions).map(|(_, partition)| partition.record.leader);
    assert_eq!(places.collect::<std::collections::BTreeSet<_>>().len(), 1, "all as the winner placed them");
    assert!(
        matches!(topics.add_partitions(&views, &old, &[1]).await, Err(TopicError::Busy { .. })),
        "what was read is old"
    );
    // One that dies half way: its partitions lie beyond the topic's count, and its marker is swept.
    let marker = CreatingRecord { name: views.clone(), from: 62, partitions: 64, instance: "instance-0".to_owned() };
    let begin = Txn::new().put(keys.key(&Key::Creating(grown.topic_id)), marker.to_bytes());
    store.commit(begin).await.expect("begun");
    let swept = Sweeper::default().sweep(&topics, Duration::ZERO).await.expect("swept");
    assert_eq!(swept, [name("views")]);
    assert!(keys_below(store, &keys.creating()).await.is_empty());
    assert_eq!(topics.get(&views).await.expect("get").expect("there"), found, "the topic is as it was");
    topics.delete(&views, None).await.expect("deleted");
    assert!(keys_below(store, &keys.partitions()).await.is_empty());
}

async fn an_accepted_loss_begins_the_next_epoch_once<S: Store>(store: &S, keys: Keys) {
    let topics = topics(store, &keys);
    let record = topics.create(&new_topic("views", 1, 2)).await.expect("created");
    topics.record_made(record.topic_id, &[(0, Epoch(1))]).await.expect("recorded");
    let lost = topics.partitions_of(record.topic_id).await.expect("partitions").remove(&0).expect("there");
    let begun = topics.accept_loss(record.topic_id, 0, &lost, 7).await.expect("accepted");
    assert_eq!((begun.epoch, begun.made, begun.leader, begun.replicas), (Epoch(2), None, 7, vec![7]));
    let again = topics.accept_loss(record.topic_id, 0, &lost, 7).await;
    assert!(matches!(again, Err(TopicError::Busy { .. })), "{again:?}");
}

async fn configurations_change_without_losing_a_change<S: Store>(store: &S, keys: Keys) {
    let topics = topics(store, &keys);
    topics.create(&new_topic("views", 1, 1)).await.expect("created");
    let views = name("views");
    let more_retention = async || {
        topics
            .alter::<TopicError>(&views, |config| {
                Ok(TopicConfig { retention_bytes: config.retention_bytes + 1, ..config.clone() })
            })
            .await
            .expect("altered")
    };
    tokio::join!(more_retention(), more_retention(), more_retention());
    let config = topics.get(&views).await.expect("get").expect("there").record.config;
    assert_eq!(config, TopicConfig { retention_bytes: 3, ..TopicConfig::default() });
    let refused = topics.alter(&views, |_| Err(TopicError::Swept)).await;
    assert!(matches!(refused, Err(TopicError::Swept)), "the caller's own refusal");
}

async fn what_was_made_is_recorded_unless_the_key_has_moved_on<S: Store>(store: &S, keys: Keys) {
    let topics = topics(store, &keys);
    let partitions = TXN_PAGE as u32 + 3;
    let record = topics.create(&new_topic("views", 1, partitions)).await.expect("created");
    let all: Vec<_> = (0..partitions).map(|partition| (partition, Epoch(1))).collect();
    assert!(topics.record_made(record.topic_id, &all).await.expect("recorded").is_empty());
    assert!(topics.record_made(record.topic_id, &[(0, Epoch(4))]).await.expect("recorded").is_empty());
    let known = topics.partitions_of(record.topic_id).await.expect("partitions");
    assert!(known.values().skip(1).all(|partition| partition.record.made == Some(Epoch(1))));
    assert_eq!((known[&0].record.epoch, known[&0].record.made), (Epoch(4), Some(Epoch(4))), "the key is raised");
    let refused = topics.record_made(record.topic_id, &[(0, Epoch(3)), (1, Epoch(1)), (partitions, Epoch(1))]).await;
    assert_eq!(refused.expect("recorded"), [0, partitions], "an older life, and a partition that is not");
}

async fn a_follower_sees_what_a_fresh_one_sees<S: Store>(store: &S, keys: Keys) {
    let topics = topics(store, &keys);
    let mut follower = Follower::start(store, &keys).await.expect("follows");
    let seen = |view: &View| (view.topics.clone(), view.partitions.clone(), view.deleted.clone(), view.alive.clone());
    topics.create(&new_topic("a", 1, 3)).await.expect("created");
    topics.create(&new_topic("b", 2, 2)).await.expect("created");
    topics.delete(&name("a"), None).await.expect("deleted");
    topics.record_made(TopicId([2; 16]), &[(1, Epoch(1))]).await.expect("recorded");
    // A record that is damaged is left out, and does not hide the others.
    store.commit(Txn::new().put(keys.key(&Key::Topic(name("c"))), b"{".to_vec())).await.expect("put");
    let fresh = Follower::start(store, &keys).await.expect("follows");
    while seen(follower.view()) != seen(fresh.view()) {
        tokio::time::timeout(Duration::from_secs(30), follower.next()).await.expect("in time").expect("changes");
    }
    let view = follower.view();
    assert_eq!(view.topics.keys().map(TopicName::as_str).collect::<Vec<_>>(), ["b"]);
    assert_eq!(view.deleted.len(), 1);
    assert!(view.is_complete(&view.topics[&name("b")].record));
    assert_eq!((view.partitions_on(1), view.partitions_on(2)), (1, 1));
    assert_eq!(view.name_of(TopicId([2; 16])), Some(&name("b")));
}
