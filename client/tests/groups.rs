//! A group's member against a broker that misbehaves: every message reaches the group, nothing is delivered past a deadline
//! or after a loss, and what is committed is what was processed.

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corelane_client::{GroupConsumer, GroupConsumerBuilder, GroupError, GroupMessage, GroupStart, Start};
use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;
use support::groups::Key;
use support::{Act, FakeBroker, Seen, set_of};

const SOON: Duration = Duration::from_secs(10);

fn fill(broker: &FakeBroker, partition: usize, range: std::ops::Range<usize>) {
    for index in range {
        broker.append("t", partition, &set_of(&[&format!("{partition}-{index:03}")]));
    }
}

fn key(partition: u32) -> Key {
    (vec![1; 16], partition)
}

fn text(message: &GroupMessage) -> String {
    String::from_utf8(message.value().unwrap().to_vec()).unwrap()
}

async fn next_result(consumer: &mut GroupConsumer) -> Result<GroupMessage, GroupError> {
    let next = tokio::time::timeout(SOON, consumer.next()).await;
    next.expect("something comes soon").expect("the stream goes on")
}

async fn next(consumer: &mut GroupConsumer) -> GroupMessage {
    next_result(consumer).await.unwrap()
}

async fn take(consumer: &mut GroupConsumer, count: usize) -> Vec<String> {
    let mut values = Vec::new();
    for _ in 0..count {
        values.push(text(&next(consumer).await));
    }
    values.sort();
    values
}

fn values(partition: usize, range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|index| format!("{partition}-{index:03}")).collect()
}

/// Nothing comes for a while.
async fn assert_quiet(consumer: &mut GroupConsumer, pause: Duration) {
    if let Ok(next) = tokio::time::timeout(pause, consumer.next()).await {
        panic!("{next:?}");
    }
}

async fn until(broker: &FakeBroker, what: &str, is_so: impl Fn(&support::State) -> bool) {
    let began = Instant::now();
    while !is_so(&broker.state()) {
        assert!(began.elapsed() < SOON, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn member(
    broker: &FakeBroker,
    configure: impl FnOnce(GroupConsumerBuilder) -> GroupConsumerBuilder,
) -> GroupConsumer {
    let builder = broker.client().await.group("g").topic("t").commit_interval(Duration::from_millis(20));
    // The broker for tests answers one fetch of a connection after the other.
    let builder = builder.max_wait(Duration::from_millis(20));
    configure(builder).build().unwrap()
}

async fn broker_with(partitions: usize, messages: usize) -> FakeBroker {
    let broker = FakeBroker::start().await;
    broker.topic("t", partitions);
    for partition in 0..partitions {
        fill(&broker, partition, 0..messages);
    }
    broker
}

fn give(broker: &FakeBroker, shares: &[(&str, &[u32])]) {
    let mut state = broker.state();
    let shares = shares.iter();
    let given = shares.map(|(member, share)| ((*member).to_owned(), share.iter().map(|it| key(*it)).collect()));
    state.group.given = Some(given.collect::<BTreeMap<_, _>>());
    state.group.generation += 1;
    drop(state);
    broker.wake();
}

fn committed(state: &support::State, partition: u32) -> Option<u64> {
    state.group.committed.get(&key(partition)).map(|place| place.position)
}

fn end(state: &support::State, partition: usize) -> u64 {
    state.topics["t"].logs[partition].end()
}

#[tokio::test]
async fn a_member_reads_what_it_is_given_commits_it_and_leaves_nothing_behind() {
    let broker = broker_with(3, 20).await;
    let mut consumer = member(&broker, |it| it).await;
    let mut expected = [values(0, 0..20), values(1, 0..20), values(2, 0..20)].concat();
    expected.sort();
    assert_eq!(take(&mut consumer, 60).await, expected);
    assert!(consumer.assignment().iter().all(|partition| partition.is_read && partition.visible_end.is_some()));
    // The last one is processed when the next one is asked for.
    assert_quiet(&mut consumer, Duration::from_millis(50)).await;
    until(&broker, "all is committed", |it| (0..3).all(|at| committed(it, at) == Some(end(it, at as usize)))).await;
    fill(&broker, 0, 20..21);
    assert_eq!(take(&mut consumer, 1).await, values(0, 20..21));
    consumer.close().await.unwrap();
    let state = broker.state();
    assert_eq!(committed(&state, 0), Some(end(&state, 0)), "the last message was processed");
    assert!(state.group.members.is_empty() && state.group.owners.is_empty());
    drop(state);
    broker.assert_no_complaints();
}

#[tokio::test]
async fn a_partition_moves_when_its_message_is_put_down_and_goes_on_where_it_was() {
    let broker = broker_with(2, 10).await;
    let released = Arc::new(Mutex::new(Vec::new()));
    let (told, claimed) = (released.clone(), released.clone());
    let mut first = member(&broker, |it| {
        it.on_release(move |at| told.lock().unwrap().push(("released", at.partition)))
            .on_claim(move |at| claimed.lock().unwrap().push(("claimed", at.partition)))
    })
    .await;
    give(&broker, &[("m1", &[0])]);
    let third = loop {
        let message = next(&mut first).await;
        if text(&message) == "0-002" {
            break message;
        }
    };
    let mut second = member(&broker, |it| it).await;
    until(&broker, "the second joins", |state| state.group.members.contains_key("m2")).await;
    give(&broker, &[("m1", &[1]), ("m2", &[0])]);
    let is_claimed = || released.lock().unwrap().contains(&("claimed", 1));
    until(&broker, "what comes is claimed meanwhile", |_| is_claimed()).await;
    // Only what moves stops, and not before the message in hand is put down.
    assert_quiet(&mut second, Duration::from_millis(100)).await;
    assert_eq!(broker.state().group.owners[&key(0)].0, "m1");
    assert_eq!(take(&mut first, 10).await, values(1, 0..10));
    assert_eq!(take(&mut second, 7).await, values(0, 3..10));
    let moved = second.assignment()[0].fence;
    assert!(moved > third.fence(), "{moved} after {}", third.fence());
    assert_eq!(released.lock().unwrap()[..], [("claimed", 0), ("claimed", 1), ("released", 0)]);
}

#[tokio::test]
async fn a_deadline_that_passes_ends_delivery_and_a_late_answer_does_not_revive_it() {
    let broker = broker_with(1, 4).await;
    broker.state().group.lease_ms = 1000;
    let mut consumer = member(&broker, |it| it).await;
    let first = next(&mut consumer).await;
    // From now on heartbeats are answered too late, on each connection that attaches.
    broker.script(|seen| match seen.method {
        Method::Heartbeat => Act::AnswerAfter(Duration::from_millis(1500)),
        _ => Act::Properly,
    });
    // The leases of members that others have followed have run out.
    let leases = broker.clone();
    let expiring = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            leases.state().group.expire_all_but_the_newest();
            leases.wake();
        }
    });
    tokio::time::sleep(Duration::from_millis(1800)).await;
    broker.script(|_| Act::Properly);
    // What was fetched ahead is not delivered under the old membership.
    let Err(GroupError::MembershipEnded { group, reason }) = next_result(&mut consumer).await else {
        panic!("a message past the deadline")
    };
    assert_eq!((group.as_str(), reason.as_str()), ("g", "no heartbeat was answered in time"));
    let again = loop {
        match next_result(&mut consumer).await {
            Ok(message) => break message,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    expiring.abort();
    assert!(again.fence() > first.fence());
    assert!(broker.state().group.members.keys().all(|member| member != "m1"));
}

#[tokio::test]
async fn a_fenced_member_says_why_and_goes_on_as_a_new_one() {
    for method in [Method::Heartbeat, Method::Commit, Method::Claim] {
        let broker = broker_with(1, 200).await;
        let lost = Arc::new(Mutex::new(0));
        let told = lost.clone();
        let mut consumer = member(&broker, |it| it.on_lost(move |_| *told.lock().unwrap() += 1)).await;
        let is_over = std::sync::atomic::AtomicBool::new(false);
        broker.script(move |seen| {
            if seen.method == method
                && seen.nth == 2 - usize::from(method != Method::Heartbeat)
                && !is_over.swap(true, std::sync::atomic::Ordering::Relaxed)
            {
                let message = "it was too slow".to_owned();
                return Act::Refuse(Status::Fenced, pb::Error { message, ..pb::Error::default() });
            }
            Act::Properly
        });
        let mut seen = Vec::new();
        let mut ends = Vec::new();
        while seen.last() != values(0, 199..200).first() {
            match next_result(&mut consumer).await {
                Ok(message) => seen.push(text(&message)),
                Err(error) => ends.push(error.to_string()),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            if seen.len() == 1 {
                // The old member's lease.
                broker.state().group.owners.retain(|_, (owner, _)| owner != "m1" || ends.is_empty());
            }
            if !ends.is_empty() && broker.state().group.members.contains_key("m1") {
                broker.state().group.expire("m1");
                broker.wake();
            }
        }
        assert!(ends.len() == 1 && ends[0].ends_with("it was too slow"), "{method:?}: {ends:?}");
        seen.sort();
        seen.dedup();
        assert_eq!(seen, values(0, 0..200), "{method:?}");
        assert!(*lost.lock().unwrap() <= 1);
    }
}

#[tokio::test]
async fn a_broker_without_a_registry_is_left_for_another_before_the_deadline() {
    let broker = broker_with(1, 50).await;
    let other = broker.twin().await;
    broker.state().group.lease_ms = 2000;
    broker.script(|seen: Seen| match seen.method {
        Method::Heartbeat | Method::Commit | Method::JoinGroup if seen.broker_id == 7 && seen.nth > 1 => {
            Act::refuse(Status::RegistryUnavailable)
        }
        Method::JoinGroup if seen.broker_id == 8 && seen.nth == 1 => Act::refuse(Status::RegistryUnavailable),
        _ => Act::Properly,
    });
    let mut consumer = member(&broker, |it| it).await;
    assert_eq!(take(&mut consumer, 50).await, values(0, 0..50));
    assert_quiet(&mut consumer, Duration::from_millis(2500)).await;
    until(&broker, "the commit goes through the other", |it| committed(it, 0) == Some(end(it, 0))).await;
    consumer.close().await.unwrap();
    assert!(broker.state().group.members.is_empty());
    drop(other);
}

#[tokio::test]
async fn a_broker_that_falls_silent_is_left_for_another_before_the_deadline() {
    let broker = broker_with(1, 10).await;
    let other = broker.twin().await;
    broker.state().group.lease_ms = 2000;
    let mut consumer = member(&broker, |it| it).await;
    assert_eq!(take(&mut consumer, 10).await, values(0, 0..10));
    let silent = broker.state().seen.iter().rev().find(|it| it.method == Method::Heartbeat).unwrap().broker_id;
    broker.script(move |seen| {
        let is_member = matches!(seen.method, Method::Heartbeat | Method::Commit | Method::JoinGroup | Method::Release);
        if is_member && seen.broker_id == silent { Act::Silence } else { Act::Properly }
    });
    fill(&broker, 0, 10..12);
    assert_eq!(take(&mut consumer, 2).await, values(0, 10..12));
    assert_quiet(&mut consumer, Duration::from_secs(3)).await;
    assert_eq!(consumer.assignment().len(), 1);
    consumer.close().await.unwrap();
    assert!(broker.state().group.members.is_empty());
    drop(other);
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_claimed_again_under_its_fence() {
    for how in [Act::Silence, Act::Cut] {
        let broker = broker_with(2, 5).await;
        broker.state().group.lease_ms = 3000;
        broker.script(
            move |seen| if seen.method == Method::Claim && seen.nth == 1 { how.clone() } else { Act::Properly },
        );
        let mut consumer = member(&broker, |it| it).await;
        let expected = [values(0, 0..5), values(1, 0..5)].concat();
        assert_eq!(take(&mut consumer, 10).await, expected);
        let mut fences: Vec<u64> = consumer.assignment().iter().map(|partition| partition.fence.number).collect();
        fences.sort_unstable();
        let mut owned: Vec<u64> = broker.state().group.owners.values().map(|(_, fence)| fence.number).collect();
        owned.sort_unstable();
        assert_eq!(fences, owned);
        assert_eq!(broker.state().group.members.len(), 1);
    }
}

#[tokio::test]
async fn what_the_registry_does_not_hold_any_more_is_dropped_and_what_nobody_knows_is_released() {
    let broker = broker_with(2, 3).await;
    let mut consumer = member(&broker, |it| it).await;
    give(&broker, &[("m1", &[0])]);
    assert_eq!(take(&mut consumer, 3).await, values(0, 0..3));
    let before = consumer.assignment()[0].fence;
    {
        let mut state = broker.state();
        // As after a restore: the ownership is gone, and another one is there that nobody asked for.
        state.group.owners.remove(&key(0));
        let fence = pb::Fence { incarnation: 1, number: state.group.revision, generation: 1 };
        state.group.owners.insert(key(1), ("m1".into(), fence));
        state.group.revision += 1;
        state.group.generation += 1;
    }
    broker.wake();
    until(&broker, "the stray one is released", |state| !state.group.owners.contains_key(&key(1))).await;
    fill(&broker, 0, 3..5);
    // It is claimed again, and goes on where it was committed.
    let mut values = Vec::new();
    while values.last().map(String::as_str) != Some("0-004") {
        let message = next(&mut consumer).await;
        values.push(text(&message));
        assert!(message.fence() >= before);
    }
    assert!(consumer.assignment()[0].fence > before);
}

#[tokio::test]
async fn without_a_position_the_policy_decides_and_is_committed_before_the_first_fetch() {
    for (start, begin_at_start, expected) in [
        (GroupStart::Earliest, false, 0..10),
        (GroupStart::Latest, false, 10..15),
        (GroupStart::Latest, true, 0..15),
        (GroupStart::Fail, true, 0..10),
    ] {
        let broker = broker_with(1, 10).await;
        if begin_at_start {
            broker.state().group.begin_at_start.push(key(0));
        }
        let mut consumer = member(&broker, |it| it.start(start)).await;
        until(&broker, "the first fetch", |it| it.seen.iter().any(|seen| seen.method == Method::Fetch)).await;
        fill(&broker, 0, 10..15);
        assert_eq!(take(&mut consumer, expected.len()).await, values(0, expected), "{start:?}");
        let state = broker.state();
        let first = |method| state.seen.iter().position(|seen| seen.method == method).unwrap();
        assert!(first(Method::Commit) < first(Method::Fetch));
    }
    let broker = broker_with(1, 10).await;
    let mut consumer = member(&broker, |it| it.start(GroupStart::Fail)).await;
    let error = next_result(&mut consumer).await.unwrap_err();
    assert!(matches!(&error, GroupError::NoCommittedPosition { partition: 0, .. }), "{error}");
    assert!(!error.is_retryable() && error.to_string().contains("corelane group reset"));
    assert_quiet(&mut consumer, Duration::from_millis(50)).await;
    assert!(broker.state().group.committed.is_empty());
    // The program may decide by itself.
    consumer.rewind("t", 0, Start::Latest).await.unwrap();
    fill(&broker, 0, 10..12);
    assert_eq!(take(&mut consumer, 2).await, values(0, 10..12));
}

#[tokio::test]
async fn a_committed_position_that_is_not_there_is_handled_as_it_deserves() {
    let place = |epoch, position| pb::Place { epoch, position };
    // Below the start: at the start.
    let broker = broker_with(1, 10).await;
    {
        let mut state = broker.state();
        let log = &mut state.topics.get_mut("t").unwrap().logs[0];
        log.start = log.boundaries[4];
        state.group.committed.insert(key(0), place(1, 0));
    }
    let told = Arc::new(Mutex::new(Vec::new()));
    let (skips, claims) = (told.clone(), told.clone());
    let mut consumer = member(&broker, |it| {
        let it = it.on_claim(move |at| claims.lock().unwrap().push(at.committed.expect("it is known by then")));
        it.on_skip(move |skip| skips.lock().unwrap().push((skip.epoch, skip.to - skip.from)))
    })
    .await;
    assert_eq!(take(&mut consumer, 6).await, values(0, 4..10));
    assert_eq!(consumer.stats().resets, 1);
    let start = broker.state().topics["t"].logs[0].start;
    assert_eq!(*told.lock().unwrap(), [(1, 0), (1, start)], "what was committed, then what is gone of it");
    // Of an older epoch: at the start of the new one.
    let broker = broker_with(1, 10).await;
    {
        let mut state = broker.state();
        state.topics.get_mut("t").unwrap().epoch = 2;
        let end = end(&state, 0);
        state.group.committed.insert(key(0), place(1, end));
    }
    let mut consumer = member(&broker, |it| it.start(GroupStart::Fail)).await;
    assert_eq!(take(&mut consumer, 10).await, values(0, 0..10));
    assert_quiet(&mut consumer, Duration::from_millis(20)).await;
    until(&broker, "the new epoch is committed", |it| it.group.committed[&key(0)].epoch == 2).await;
    // Beyond the end: an error, and nothing else.
    let broker = broker_with(1, 10).await;
    let beyond = end(&broker.state(), 0) + 1;
    broker.state().group.committed.insert(key(0), place(1, beyond));
    let mut consumer = member(&broker, |it| it).await;
    let error = next_result(&mut consumer).await.unwrap_err();
    assert!(matches!(&error, GroupError::AheadOfEnd { position, .. } if *position == beyond), "{error}");
    assert!(error.to_string().contains("corelane group reset"));
    assert_quiet(&mut consumer, Duration::from_millis(50)).await;
    consumer.close().await.unwrap();
    assert_eq!(committed(&broker.state(), 0), Some(beyond));
}

#[tokio::test]
async fn manual_commits_cover_what_the_program_said_and_no_more() {
    let broker = broker_with(1, 10).await;
    let mut consumer = member(&broker, GroupConsumerBuilder::manual_commit).await;
    let mut messages = Vec::new();
    for _ in 0..6 {
        messages.push(next(&mut consumer).await);
    }
    assert_eq!(committed(&broker.state(), 0), Some(0), "the policy's place");
    consumer.commit_through(&messages[1]).await.unwrap();
    assert_eq!(committed(&broker.state(), 0), Some(messages[1].next_position()));
    consumer.handle().mark(&messages[3]);
    consumer.close().await.unwrap();
    assert_eq!(committed(&broker.state(), 0), Some(messages[3].next_position()));
    let mut consumer = member(&broker, GroupConsumerBuilder::manual_commit).await;
    assert_eq!(take(&mut consumer, 3).await, values(0, 4..7));
    consumer.commit().await.unwrap();
    assert_eq!(
        committed(&broker.state(), 0),
        Some(messages[5].next_position() + (messages[5].next_position() - messages[5].position()))
    );
    drop(consumer);
    until(&broker, "who is dropped leaves", |state| state.group.members.is_empty()).await;
}

#[tokio::test]
async fn with_manual_marks_a_partition_that_moves_waits_for_them() {
    let broker = broker_with(1, 3).await;
    let mut first = member(&broker, |it| it.manual_marks().release_wait(SOON)).await;
    give(&broker, &[("m1", &[0])]);
    let mut messages = Vec::new();
    for _ in 0..3 {
        messages.push(next(&mut first).await);
    }
    assert_quiet(&mut first, Duration::from_millis(50)).await;
    first.handle().mark(&messages[0]);
    until(&broker, "what is marked is committed", |it| committed(it, 0) == Some(messages[0].next_position())).await;
    let mut second = member(&broker, |it| it).await;
    until(&broker, "the second joins", |state| state.group.members.contains_key("m2")).await;
    give(&broker, &[("m2", &[0])]);
    assert_quiet(&mut first, Duration::from_millis(50)).await;
    assert_quiet(&mut second, Duration::from_millis(50)).await;
    first.handle().mark(&messages[2]);
    fill(&broker, 0, 3..5);
    assert_eq!(take(&mut second, 2).await, values(0, 3..5));
}

/// The partitions that the error says are not committed.
fn not_committed(result: Result<(), GroupError>) -> Vec<u32> {
    match result {
        Err(GroupError::NotCommitted { partitions }) => {
            partitions.into_iter().map(|(_, partition)| partition).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Waits until these are what the member owns.
async fn until_owned(consumer: &GroupConsumer, partitions: &[u32]) {
    let began = Instant::now();
    let owned = || consumer.assignment().iter().map(|at| at.partition).collect::<Vec<_>>();
    while owned() != partitions {
        assert!(began.elapsed() < SOON, "{:?} is owned", owned());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn messages_that_were_not_marked_when_their_partition_was_released_are_told_by_the_next_commit() {
    let broker = broker_with(1, 3).await;
    let mut consumer = member(&broker, GroupConsumerBuilder::manual_commit).await;
    let (first, second) = (next(&mut consumer).await, next(&mut consumer).await);
    // Put down as well, though not marked.
    let third = next(&mut consumer).await;
    assert_quiet(&mut consumer, Duration::from_millis(20)).await;
    drop(third);
    consumer.commit_through(&first).await.unwrap();
    give(&broker, &[]);
    until_owned(&consumer, &[]).await;
    assert_eq!(committed(&broker.state(), 0), Some(first.next_position()), "what was marked");
    assert_eq!(not_committed(consumer.commit_through(&second).await), [0]);
    consumer.commit_through(&first).await.unwrap();
    assert_eq!(not_committed(consumer.commit().await), [0]);
    consumer.commit().await.unwrap();
}

#[tokio::test]
async fn what_a_commit_that_was_given_up_did_not_come_to_tell_the_next_one_tells() {
    let broker = broker_with(2, 2).await;
    let mut consumer = member(&broker, GroupConsumerBuilder::manual_commit).await;
    take(&mut consumer, 4).await;
    assert_quiet(&mut consumer, Duration::from_millis(20)).await;
    broker.state().group.owners.remove(&key(0));
    broker.state().group.revision += 1;
    give(&broker, &[("m1", &[1])]);
    until_owned(&consumer, &[1]).await;
    broker.script(|seen| match seen.method {
        Method::Commit => Act::refuse(Status::Busy),
        _ => Act::Properly,
    });
    let given_up = tokio::time::timeout(Duration::from_millis(100), consumer.commit()).await;
    assert!(given_up.is_err(), "nothing was answered: {given_up:?}");
    broker.script(|_| Act::Properly);
    assert_eq!(not_committed(consumer.commit().await), [0]);
    consumer.commit().await.unwrap();
    let state = broker.state();
    assert_eq!(committed(&state, 1), Some(end(&state, 1)));
}

#[tokio::test]
async fn a_message_in_hand_can_be_committed_while_its_partition_is_to_move() {
    let broker = broker_with(1, 3).await;
    let mut consumer = member(&broker, |it| it).await;
    let first = next(&mut consumer).await;
    give(&broker, &[]);
    let began = Instant::now();
    while consumer.assignment()[0].is_read {
        assert!(began.elapsed() < SOON, "it goes on reading");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::timeout(SOON, consumer.commit()).await.expect("an answer").unwrap();
    assert_eq!(committed(&broker.state(), 0), Some(first.next_position()));
    assert_eq!(consumer.assignment().len(), 1, "not before the message is put down");
    assert_quiet(&mut consumer, Duration::from_millis(20)).await;
    until_owned(&consumer, &[]).await;
}

#[tokio::test]
async fn a_member_that_leaves_waits_for_no_marks() {
    let broker = broker_with(1, 3).await;
    let mut consumer = member(&broker, |it| it.manual_marks().release_wait(Duration::from_hours(1))).await;
    let first = next(&mut consumer).await;
    next(&mut consumer).await;
    consumer.handle().mark(&first);
    consumer.leave().await.unwrap();
    let state = broker.state();
    assert_eq!(committed(&state, 0), Some(first.next_position()));
    assert!(state.group.members.is_empty());
}

#[tokio::test]
async fn a_commit_that_is_refused_for_its_fence_is_told_and_the_partition_is_claimed_again() {
    let broker = broker_with(1, 4).await;
    let mut consumer = member(&broker, GroupConsumerBuilder::manual_commit).await;
    let first = next(&mut consumer).await;
    broker.state().group.outcomes = vec![pb::CommitResult::Lost, pb::CommitResult::Retry];
    broker.state().group.owners.clear();
    let error = consumer.commit_through(&first).await.unwrap_err();
    assert!(
        matches!(&error, GroupError::NotCommitted { partitions } if partitions[..] == [("t".to_owned(), 0)]),
        "{error}"
    );
    let again = next(&mut consumer).await;
    assert_eq!((text(&again), again.fence() > first.fence()), (text(&first), true));
    // What an earlier ownership has processed counts no more.
    consumer.handle().mark(&first);
    consumer.commit_through(&again).await.unwrap();
}

#[tokio::test]
async fn a_group_goes_back_on_purpose_and_commits_that_it_did() {
    let broker = broker_with(1, 10).await;
    let mut consumer = member(&broker, |it| it).await;
    assert_eq!(take(&mut consumer, 10).await, values(0, 0..10));
    consumer.commit().await.unwrap();
    let fourth = broker.state().topics["t"].logs[0].boundaries[3];
    consumer.rewind("t", 0, Start::Position(fourth)).await.unwrap();
    assert_eq!(committed(&broker.state(), 0), Some(fourth));
    assert_eq!(take(&mut consumer, 7).await, values(0, 3..10));
    assert!(matches!(consumer.rewind("t", 7, Start::Earliest).await, Err(GroupError::NotOwned { partition: 7, .. })));
    assert!(consumer.rewind("t", 0, Start::Position(u64::MAX)).await.is_err());
    consumer.close().await.unwrap();
    let state = broker.state();
    assert_eq!(committed(&state, 0), Some(end(&state, 0)));
}

#[tokio::test]
async fn a_partition_with_much_to_read_does_not_hold_up_the_others_of_a_slow_program() {
    let broker = broker_with(2, 0).await;
    fill(&broker, 0, 0..1_000);
    let mut consumer = member(&broker, |it| it).await;
    let first = next(&mut consumer).await;
    assert_eq!(text(&first), "0-000");
    fill(&broker, 1, 0..1);
    // All of the first partition was fetched at once, and takes seconds.
    let mut seen = vec![text(&first)];
    while seen.last().map(String::as_str) != Some("1-000") {
        tokio::time::sleep(Duration::from_millis(4)).await;
        seen.push(text(&next(&mut consumer).await));
        assert!(seen.len() <= 1_000, "it had to wait for everything before it");
    }
    seen.pop();
    assert_eq!(seen, values(0, 0..seen.len()), "in order");
}

#[tokio::test]
async fn heartbeats_tell_how_long_a_message_is_in_hand_and_go_on_meanwhile() {
    let broker = broker_with(1, 2).await;
    broker.state().group.lease_ms = 1000;
    let mut consumer = member(&broker, |it| it).await;
    let first = next(&mut consumer).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let ages = std::mem::take(&mut broker.state().group.ages_ms);
    assert!(ages.iter().any(|age| *age > 500), "{ages:?}");
    assert_eq!(text(&next(&mut consumer).await), "0-001");
    drop(first);
    // The one in hand is put down when the next one is asked for.
    assert_quiet(&mut consumer, Duration::from_millis(20)).await;
    until(&broker, "a heartbeat with nothing in hand", |state| state.group.ages_ms.last() == Some(&0)).await;
}

#[tokio::test]
async fn several_members_in_one_process_share_the_partitions() {
    let broker = broker_with(6, 5).await;
    let builder = broker.client().await.group("g").topic("t").max_wait(Duration::from_millis(20));
    let mut streams = builder.build_streams(3).unwrap();
    until(&broker, "all join", |state| state.group.members.len() == 3).await;
    broker.state().group.generation += 1;
    broker.wake();
    // What a stream takes before its share is its own, the others would wait for in vain.
    let owned =
        |state: &support::State, member: &str| state.group.owners.values().filter(|(owner, _)| owner == member).count();
    until(&broker, "each has its share", |state| ["m1", "m2", "m3"].iter().all(|id| owned(state, id) == 2)).await;
    let mut seen = Vec::new();
    for stream in &mut streams {
        let mut taken = take(stream, 10).await;
        seen.append(&mut taken);
        assert!(stream.assignment().len() >= 2);
    }
    for stream in streams {
        stream.close().await.unwrap();
    }
    seen.sort();
    seen.dedup();
    assert!(seen.len() >= 10);
}

#[tokio::test]
async fn a_refusal_for_good_ends_the_stream_and_settings_that_make_no_sense_are_refused() {
    let broker = broker_with(1, 1).await;
    broker.script(|seen| match seen.method {
        Method::JoinGroup => {
            Act::Refuse(Status::InvalidRequest, pb::Error { field: Some("pattern".into()), ..pb::Error::default() })
        }
        _ => Act::Properly,
    });
    let client = broker.client().await;
    let mut consumer = client.group("g").pattern("(").build().unwrap();
    assert!(!next_result(&mut consumer).await.unwrap_err().is_retryable());
    assert!(tokio::time::timeout(SOON, consumer.next()).await.unwrap().is_none());
    assert!(client.group("g").build().is_err() && client.group("").topic("t").build().is_err());
    assert!(client.group("g").topic("t").pattern("x").build().is_err());
    assert!(client.group("g").topic("t").lease(Duration::from_millis(1)).build().is_err());
}

#[tokio::test]
async fn lists_that_come_in_pages_are_told_whole_and_by_name() {
    for tells_pages_of_one in [false, true] {
        let broker = FakeBroker::start().await;
        for topic in ["t1", "t2", "t3"] {
            broker.topic(topic, 2);
        }
        {
            let mut state = broker.state();
            state.tells_pages_of_one = tells_pages_of_one;
            state.group.members = ["m1", "m2"].map(|id| (id.to_owned(), (Vec::new(), 1))).into();
            let place = pb::Place { epoch: 1, position: 5 };
            state.group.committed = [(1, 0), (1, 1), (2, 0)].map(|(id, p)| ((vec![id; 16], p), place)).into();
        }
        let client = broker.client().await;
        let topics = client.admin().list_topics().await.unwrap();
        assert_eq!(topics.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["t1", "t2", "t3"]);
        let groups = client.admin().list_groups().await.unwrap();
        assert_eq!(groups.iter().map(|group| group.group.as_str()).collect::<Vec<_>>(), ["a", "g", "z"]);
        let group = client.admin().describe_group("g").await.unwrap();
        assert_eq!(group.members.iter().map(|member| member.member_id.as_str()).collect::<Vec<_>>(), ["m1", "m2"]);
        let partitions: Vec<(&str, u32)> =
            group.partitions.iter().map(|partition| (partition.topic.as_str(), partition.partition)).collect();
        assert_eq!(partitions, [("t253", 0), ("t254", 0), ("t254", 1)]);
        broker.assert_no_complaints();
    }
}
