//! What groups promise on every store: two brokers' managers over one registry, members that call them as clients do.

use std::rc::Rc;
use std::time::{Duration, Instant};

use corelane_broker::control::groups::{GroupOptions, Groups};
use corelane_broker::messages::Failure;
use corelane_broker::registry::keys::{Key, Keys};
use corelane_broker::registry::membership::Membership;
use corelane_broker::registry::records::{PartitionRecord, Record, TopicRecord};
use corelane_broker::registry::store::{Store, Test, Txn};
use corelane_broker::registry::topics::{NewTopic, Topics};
use corelane_log::config::TopicConfig;
use corelane_proto::frame::{Method, Status};
use corelane_proto::ids::{Epoch, TopicId, TopicName};
use corelane_proto::pb;
use prost::Message;
use tokio::task::{JoinHandle, LocalSet};

use super::PATIENCE;

type Call<T> = Result<T, Status>;

pub(crate) async fn run_all<S: Store>(store: &S) {
    let tests = LocalSet::new();
    tests
        .run_until(async {
            what_moves_goes_over_with_its_position(store).await;
            a_fence_ends_with_the_ownership_it_stands_for(store).await;
            a_fence_of_an_earlier_life_of_the_store_never_counts_again(store).await;
            an_attachment_displaces_the_one_before(store).await;
            positions_never_go_back_unless_on_purpose(store).await;
            a_claim_whose_answer_was_lost_is_answered_again(store).await;
            what_came_after_the_group_is_read_from_its_start(store).await;
            a_deleted_topic_takes_its_positions_along(store).await;
            names_of_no_use_make_room_for_others(store).await;
            positions_are_set_and_groups_deleted_only_without_members(store).await;
            a_position_of_an_epoch_that_never_was_is_refused(store).await;
            lists_are_told_in_pages_to_whoever_asks_for_them(store).await;
            a_claim_says_each_partition_once(store).await;
            a_member_that_is_not_heard_of_loses_what_it_had(store).await;
            a_member_that_is_stuck_is_renewed_no_more(store).await;
        })
        .await;
}

/// A cluster with two brokers' managers; they end with it.
struct World<S: Store> {
    store: S,
    keys: Keys,
    brokers: [Rc<Groups<S>>; 2],
    tasks: Vec<JoinHandle<()>>,
}

impl<S: Store> Drop for World<S> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl<S: Store> World<S> {
    async fn new(store: &S, name: &str) -> Self {
        Self::listed_every(GroupOptions::default().list_interval, store, name).await
    }

    async fn listed_every(list_interval: Duration, store: &S, name: &str) -> Self {
        let (store, keys) = (store.clone(), Keys::new(name));
        Membership::new(store.clone(), keys.clone(), 1).make_cluster("cluster").await.expect("a cluster");
        let options = || GroupOptions {
            claims_pause: Duration::from_millis(1_500),
            retry: Duration::from_millis(50),
            list_interval,
            ..GroupOptions::default()
        };
        let broker = || Groups::new(store.clone(), keys.clone(), "cluster".to_owned(), options());
        let brokers = [broker(), broker()];
        let tasks = brokers.iter().map(|broker| tokio::task::spawn_local(Rc::clone(broker).run())).collect();
        let world = Self { store, keys, brokers, tasks };
        for broker in 0..2 {
            world
                .until("the view", async || {
                    world.call(broker, Method::ListGroups, &pb::ListGroupsRequest::default()).await.ok()
                })
                .await;
        }
        world
    }

    async fn topic(&self, name: &str, partitions: u32) -> TopicId {
        let topic_id = TopicId(fastrand::u128(..).to_be_bytes());
        let name = TopicName::new(name).expect("a name");
        let places = vec![1; partitions as usize];
        let new = NewTopic {
            name,
            topic_id,
            config: TopicConfig::default(),
            places,
            starts: Vec::new(),
            copy_of: Vec::new(),
        };
        self.topics().create(&new).await.expect("created");
        topic_id
    }

    /// A partition's log begins again.
    async fn begin_epoch(&self, (topic_id, partition): (TopicId, u32), epoch: Epoch) {
        let key = self.keys.key(&Key::Partition(topic_id, partition));
        let known = self.store.get(&key).await.expect("read").expect("it is there");
        let record = PartitionRecord { epoch, ..PartitionRecord::from_bytes(&known.value).expect("readable") };
        let written = self.store.commit(Txn::new().put(&key, record.to_bytes())).await.expect("written");
        assert!(written.succeeded);
    }

    fn topics(&self) -> Topics<S> {
        Topics::new(self.store.clone(), self.keys.clone(), "instance".to_owned())
    }

    async fn call_with<Q: Message>(&self, broker: usize, method: Method, request: &Q) -> Result<Vec<u8>, Failure> {
        self.brokers[broker].call(method, &request.encode_to_vec(), "here").await
    }

    /// A broker that has yet to see what it is asked about is asked again, as clients do.
    async fn call<Q: Message>(&self, broker: usize, method: Method, request: &Q) -> Call<Vec<u8>> {
        let began = Instant::now();
        loop {
            match self.call_with(broker, method, request).await.map_err(|failure| failure.status) {
                Err(Status::RegistryUnavailable) if began.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                answer => return answer,
            }
        }
    }

    async fn join(&self, broker: usize, group: &str, topics: &[&str]) -> Member<'_, S> {
        self.join_with(
            broker,
            &pb::JoinGroupRequest {
                group: group.to_owned(),
                topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
                lease_ms: 60_000,
                ..Default::default()
            },
        )
        .await
    }

    async fn join_with(&self, broker: usize, request: &pb::JoinGroupRequest) -> Member<'_, S> {
        let answer = self.call(broker, Method::JoinGroup, request).await.expect("joined");
        let answer = pb::JoinGroupResponse::decode(&answer[..]).expect("a response");
        Member {
            world: self,
            broker,
            identity: answer.member.expect("a member"),
            generation: 0,
            lease_ms: answer.lease_ms,
        }
    }

    /// Tries until there is something; only what is broken takes so long as to fail.
    async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn describe(&self, group: &str) -> Call<pb::DescribeGroupResponse> {
        let request = pb::DescribeGroupRequest { group: group.to_owned(), ..Default::default() };
        let answer = self.call(0, Method::DescribeGroup, &request).await?;
        Ok(pb::DescribeGroupResponse::decode(&answer[..]).expect("a response"))
    }
}

/// A member, as its client sees it.
struct Member<'w, S: Store> {
    world: &'w World<S>,
    broker: usize,
    identity: pb::Member,
    generation: u64,
    lease_ms: u32,
}

/// One partition in a call's response.
type Outcome = (u32, pb::CommitResult, Option<u64>);

impl<S: Store> Member<'_, S> {
    fn me(&self) -> pb::Member {
        self.identity.clone()
    }

    async fn heartbeat(&mut self, wait_ms: u32, age_ms: u32) -> Call<pb::HeartbeatResponse> {
        let request = pb::HeartbeatRequest {
            member: Some(self.me()),
            generation: self.generation,
            max_wait_ms: wait_ms,
            oldest_message_age_ms: age_ms,
        };
        let answer = self.world.call(self.broker, Method::Heartbeat, &request).await?;
        let answer = pb::HeartbeatResponse::decode(&answer[..]).expect("a response");
        self.generation = answer.generation;
        Ok(answer)
    }

    /// Heartbeats until the target has so many partitions; answers them.
    async fn until_target(&mut self, count: usize) -> Vec<(TopicId, u32)> {
        self.until_target_is(&format!("{count} partitions"), |target| target.len() == count).await
    }

    async fn until_target_is(&mut self, what: &str, is_it: impl Fn(&[(TopicId, u32)]) -> bool) -> Vec<(TopicId, u32)> {
        let began = Instant::now();
        loop {
            let answer = self.heartbeat(200, 0).await.expect("a heartbeat");
            let target: Vec<(TopicId, u32)> = answer
                .target
                .iter()
                .flat_map(|topic| {
                    let id = TopicId::try_from(topic.topic_id.as_slice()).expect("an id");
                    topic.partitions.iter().map(move |partition| (id, *partition))
                })
                .collect();
            if is_it(&target) {
                return target;
            }
            assert!(began.elapsed() < PATIENCE, "waited in vain for {what}, had {target:?}");
        }
    }

    async fn claim(&self, partitions: &[(TopicId, u32)], wait_ms: u32) -> Call<Vec<pb::ClaimedPartition>> {
        let topics = partitions.iter().map(|(id, partition)| pb::TopicPartitions {
            topic_id: id.0.to_vec(),
            topic: String::new(),
            partitions: vec![*partition],
        });
        let request = pb::ClaimRequest { member: Some(self.me()), partitions: topics.collect(), max_wait_ms: wait_ms };
        let answer = self.world.call(self.broker, Method::Claim, &request).await?;
        Ok(pb::ClaimResponse::decode(&answer[..]).expect("a response").partitions)
    }

    /// Claims until all are its own.
    async fn own(&self, partitions: &[(TopicId, u32)]) -> Vec<pb::ClaimedPartition> {
        let began = Instant::now();
        let mut owned: Vec<pb::ClaimedPartition> = Vec::new();
        while owned.len() < partitions.len() {
            let missing: Vec<(TopicId, u32)> = partitions
                .iter()
                .filter(|(id, p)| !owned.iter().any(|one| one.topic_id == id.0 && one.partition == *p))
                .copied()
                .collect();
            let claimed = self.claim(&missing, 500).await.expect("a claim");
            owned.extend(claimed.into_iter().filter(|one| one.result() == pb::ClaimResult::Claimed));
            assert!(began.elapsed() < PATIENCE, "waited in vain for {missing:?}");
        }
        owned
    }

    async fn settle(&self, method: Method, commits: Vec<pb::CommitPartition>) -> Call<Vec<Outcome>> {
        let request = pb::CommitRequest { member: Some(self.me()), partitions: commits };
        let answer = self.world.call(self.broker, method, &request).await?;
        // Commit's and Release's messages are alike.
        let answer = pb::CommitResponse::decode(&answer[..]).expect("a response");
        let outcome =
            |one: &pb::CommitOutcome| (one.partition, one.result(), one.committed.map(|place| place.position));
        Ok(answer.partitions.iter().map(outcome).collect())
    }

    async fn commit(&self, owned: &pb::ClaimedPartition, epoch: u32, position: u64) -> Call<pb::CommitResult> {
        Ok(self.settle(Method::Commit, vec![at(owned, epoch, position)]).await?[0].1)
    }

    async fn release(&self, owned: &pb::ClaimedPartition, position: u64) -> Call<pb::CommitResult> {
        Ok(self.settle(Method::Release, vec![at(owned, 1, position)]).await?[0].1)
    }

    async fn attach(&mut self, broker: usize) -> Call<()> {
        let request =
            pb::JoinGroupRequest { group: self.identity.group.clone(), attach: Some(self.me()), ..Default::default() };
        let answer = self.world.call(broker, Method::JoinGroup, &request).await?;
        let answer = pb::JoinGroupResponse::decode(&answer[..]).expect("a response");
        (self.broker, self.identity) = (broker, answer.member.expect("a member"));
        Ok(())
    }

    async fn leave(&self) -> Call<()> {
        self.world
            .call(self.broker, Method::LeaveGroup, &pb::LeaveGroupRequest { member: Some(self.me()) })
            .await
            .map(drop)
    }
}

/// A commit of what was claimed.
fn at(owned: &pb::ClaimedPartition, epoch: u32, position: u64) -> pb::CommitPartition {
    pb::CommitPartition {
        topic_id: owned.topic_id.clone(),
        partition: owned.partition,
        fence: owned.fence,
        place: Some(pb::Place { epoch, position }),
        rewind: false,
    }
}

fn committed(owned: &pb::ClaimedPartition) -> Option<u64> {
    owned.committed.map(|place| place.position)
}

async fn what_moves_goes_over_with_its_position<S: Store>(store: &S) {
    let world = World::new(store, "moves").await;
    world.topic("t", 4).await;
    let mut first = world.join(0, "g", &["t"]).await;
    let target = first.until_target(4).await;
    let owned = first.own(&target).await;
    assert!(owned.iter().all(|one| one.committed.is_none() && !one.begins_at_start));
    for one in &owned {
        assert_eq!(first.commit(one, 1, 10).await, Ok(pb::CommitResult::Ok));
    }
    let mut second = world.join(1, "g", &["t"]).await;
    let target = second.until_target(2).await;
    assert!(second.claim(&target, 50).await.expect("a claim").iter().all(|one| one.result() == pb::ClaimResult::Retry));
    let stays = first.until_target(2).await;
    let given: Vec<pb::CommitPartition> = owned
        .iter()
        .filter(|one| !stays.iter().any(|(_, partition)| *partition == one.partition))
        .map(|one| at(one, 1, 20))
        .collect();
    let (released, taken) = tokio::join!(first.settle(Method::Release, given), second.own(&target));
    assert!(released.expect("released").iter().all(|(_, result, _)| *result == pb::CommitResult::Ok));
    assert!(taken.iter().all(|one| committed(one) == Some(20)), "{taken:?}");
    let kept = owned.iter().find(|one| stays.iter().any(|(_, partition)| *partition == one.partition));
    assert_eq!(first.commit(kept.expect("it keeps two"), 1, 30).await, Ok(pb::CommitResult::Ok), "what stays goes on");
    let described = world.describe("g").await.expect("described");
    assert_eq!((described.members.len(), described.partitions.len()), (2, 4));
    world
        .until("one owner each", async || {
            let described = world.describe("g").await.ok()?;
            described.partitions.iter().all(|one| one.owner == one.target && !one.owner.is_empty()).then_some(())
        })
        .await;
    assert_eq!(first.leave().await, Ok(()));
    let all = second.until_target(4).await;
    second.own(&all).await;
}

/// The same member, the same partition, the same target: only the owner key's create revision tells the two apart.
async fn a_fence_ends_with_the_ownership_it_stands_for<S: Store>(store: &S) {
    let world = World::new(store, "fence").await;
    world.topic("t", 1).await;
    let mut member = world.join(0, "g", &["t"]).await;
    let target = member.until_target(1).await;
    let before = member.own(&target).await.remove(0);
    assert_eq!(member.release(&before, 5).await, Ok(pb::CommitResult::Ok));
    let now = member.own(&target).await.remove(0);
    let (old, new) = (before.fence.expect("a fence"), now.fence.expect("a fence"));
    assert_eq!((old.incarnation, old.generation), (new.incarnation, new.generation));
    assert!(old.number < new.number);
    assert_eq!(member.commit(&before, 1, 100).await, Ok(pb::CommitResult::Lost));
    assert_eq!(member.release(&before, 100).await, Ok(pb::CommitResult::Lost));
    assert_eq!(member.commit(&now, 1, 6).await, Ok(pb::CommitResult::Ok), "nothing of it took effect");
    let forged = pb::Fence { generation: new.generation + 1, ..new };
    let forged = pb::ClaimedPartition { fence: Some(forged), ..now };
    assert_eq!(member.commit(&forged, 1, 100).await, Ok(pb::CommitResult::Lost));
}

/// After a restore, revisions come again: a fence of before may name the very number that an owner key has now.
async fn a_fence_of_an_earlier_life_of_the_store_never_counts_again<S: Store>(store: &S) {
    let world = World::new(store, "lives").await;
    world.topic("t", 1).await;
    let mut member = world.join(0, "g", &["t"]).await;
    let target = member.until_target(1).await;
    let before = member.own(&target).await.remove(0);
    let membership = Membership::new(world.store.clone(), world.keys.clone(), 1);
    // The next commit waits its time behind this one: meanwhile the broker learns of the new life.
    assert_eq!(member.commit(&before, 1, 4).await, Ok(pb::CommitResult::Ok));
    let raised = membership.raise_incarnation(1).await.expect("raised");
    assert_eq!(raised, 2);
    assert_eq!(member.commit(&before, 1, 5).await, Err(Status::Fenced), "it attached in the life before");
    world
        .until("the new life", async || member.attach(1).await.ok().filter(|()| member.identity.incarnation == 2))
        .await;
    assert_eq!(member.commit(&before, 1, 5).await, Ok(pb::CommitResult::Lost), "the number is right, the life is not");
    member.until_target(1).await;
    let now = member.own(&target).await.remove(0);
    let (old, new) = (before.fence.expect("a fence"), now.fence.expect("a fence"));
    assert_eq!((old.number, old.generation, new.incarnation), (new.number, new.generation, 2));
    assert_eq!(member.commit(&now, 1, 5).await, Ok(pb::CommitResult::Ok));
}

async fn an_attachment_displaces_the_one_before<S: Store>(store: &S) {
    let world = World::new(store, "attach").await;
    world.topic("t", 1).await;
    let mut member = world.join(0, "g", &["t"]).await;
    let target = member.until_target(1).await;
    let owned = member.own(&target).await.remove(0);
    let mut displaced = Member { identity: member.identity.clone(), ..world.join(0, "other", &["t"]).await };
    displaced.broker = 0;
    member.attach(1).await.expect("attached");
    assert_eq!(displaced.commit(&owned, 1, 50).await, Err(Status::Fenced));
    assert_eq!(displaced.claim(&target, 0).await.map(drop), Err(Status::Fenced));
    assert_eq!(displaced.leave().await, Err(Status::Fenced), "it must not take the lease away");
    let ended = world.until("the displaced one's end", async || displaced.heartbeat(0, 0).await.err());
    assert_eq!(ended.await, Status::Fenced);
    assert_eq!(member.commit(&owned, 1, 7).await, Ok(pb::CommitResult::Ok), "what it owns it owns still");
    let mut stranger = member.identity.clone();
    stranger.secret = vec![0; 16];
    let stranger = Member { identity: stranger, ..world.join(1, "other", &["t"]).await };
    assert_eq!(stranger.commit(&owned, 1, 9).await, Err(Status::Fenced), "the secret is another");
    assert_eq!(member.leave().await, Ok(()));
    assert_eq!(member.attach(0).await, Err(Status::Fenced), "it is over");
}

async fn positions_never_go_back_unless_on_purpose<S: Store>(store: &S) {
    let world = World::new(store, "positions").await;
    let topic_id = world.topic("t", 2).await;
    let mut member = world.join(0, "g", &["t"]).await;
    let target = member.until_target(2).await;
    let owned = member.own(&target).await;
    assert_eq!(member.commit(&owned[0], 1, 100).await, Ok(pb::CommitResult::Ok));
    let mixed = vec![at(&owned[0], 1, 99), at(&owned[1], 1, 5)];
    let outcomes = member.settle(Method::Commit, mixed).await.expect("committed");
    assert_eq!(outcomes, [(0, pb::CommitResult::Stale, Some(100)), (1, pb::CommitResult::Ok, None)]);
    world.begin_epoch((topic_id, owned[0].partition), Epoch(2)).await;
    assert_eq!(member.commit(&owned[0], 2, 3).await, Ok(pb::CommitResult::Ok), "a later epoch comes after");
    assert_eq!(member.commit(&owned[0], 1, 200).await, Ok(pb::CommitResult::Stale));
    let back = pb::CommitPartition { rewind: true, ..at(&owned[0], 2, 1) };
    assert_eq!(member.settle(Method::Commit, vec![back]).await.expect("committed")[0].1, pb::CommitResult::Ok);
    // Another broker knows nothing of the positions and finds the same.
    member.attach(1).await.expect("attached");
    assert_eq!(member.commit(&owned[0], 1, 300).await, Ok(pb::CommitResult::Stale));
    assert_eq!(member.commit(&owned[0], 2, 2).await, Ok(pb::CommitResult::Ok));
    assert_eq!(member.release(&owned[0], 1).await, Ok(pb::CommitResult::Stale), "a release releases all the same");
    let again = member.own(&target[..1]).await.remove(0);
    assert_eq!(again.committed, Some(pb::Place { epoch: 2, position: 2 }));
    // The first thing that a broker hears of a position may be its owner's release.
    let further = at(&again, 2, 9);
    let released = member.settle(Method::Release, vec![further]).await.expect("released");
    assert_eq!(released[0].1, pb::CommitResult::Ok);
    assert_eq!(member.own(&target[..1]).await[0].committed, Some(pb::Place { epoch: 2, position: 9 }));
}

async fn a_claim_whose_answer_was_lost_is_answered_again<S: Store>(store: &S) {
    let world = World::new(store, "claims").await;
    world.topic("t", 1).await;
    let mut member = world.join(0, "g", &["t"]).await;
    let target = member.until_target(1).await;
    let first = member.own(&target).await.remove(0);
    let again = member.own(&target).await.remove(0);
    assert_eq!(first.fence, again.fence);
    let held = world.until("what it holds", async || member.heartbeat(0, 0).await.ok()?.held.first().cloned()).await;
    assert_eq!(held.fences, [first.fence.expect("a fence").number]);
}

async fn what_came_after_the_group_is_read_from_its_start<S: Store>(store: &S) {
    let world = World::new(store, "after").await;
    let t1 = world.topic("t1", 1).await;
    let pattern = pb::JoinGroupRequest {
        group: "g".to_owned(),
        pattern: "t.*".to_owned(),
        lease_ms: 60_000,
        ..Default::default()
    };
    let mut member = world.join_with(0, &pattern).await;
    let target = member.until_target(1).await;
    assert!(!member.own(&target).await[0].begins_at_start, "the policy decides");
    // One more partition of the old topic, and a topic that did not exist.
    let (key, name) = (world.keys.key(&Key::Topic(TopicName::new("t1").expect("a name"))), TopicName::new("t1"));
    let found = world.topics().get(&name.expect("a name")).await.expect("read").expect("it exists");
    let record = TopicRecord { partitions: 2, ..found.record };
    let partition = world.store.get(&world.keys.key(&Key::Partition(t1, 0))).await.expect("read").expect("there");
    let grow = Txn::new()
        .when(&key, Test::Modified(found.revision))
        .put(&key, record.to_bytes())
        .put(world.keys.key(&Key::Partition(t1, 1)), partition.value);
    assert!(world.store.commit(grow).await.expect("commit").succeeded);
    world.topic("t2", 1).await;
    world.topic("other", 3).await;
    let target = member.until_target(3).await;
    let later: Vec<(TopicId, u32)> = target.into_iter().filter(|partition| *partition != (t1, 0)).collect();
    assert!(member.own(&later).await.iter().all(|one| one.begins_at_start));
}

async fn a_deleted_topic_takes_its_positions_along<S: Store>(store: &S) {
    let world = World::new(store, "deleted").await;
    world.topic("t", 1).await;
    let mut member = world.join(0, "g", &["t"]).await;
    let target = member.until_target(1).await;
    let owned = member.own(&target).await.remove(0);
    assert_eq!(member.commit(&owned, 1, 5).await, Ok(pb::CommitResult::Ok));
    world.topics().delete(&TopicName::new("t").expect("a name"), None).await.expect("deleted");
    assert_eq!(member.commit(&owned, 1, 6).await, Ok(pb::CommitResult::Gone));
    assert_eq!(member.release(&owned, 7).await, Ok(pb::CommitResult::Gone));
    assert_eq!(member.release(&owned, 7).await, Ok(pb::CommitResult::Lost), "it was released");
    world
        .until("the positions' end", async || {
            let request = pb::CommittedRequest { group: "g".to_owned(), ..Default::default() };
            let answer = world.call(1, Method::Committed, &request).await.ok()?;
            let left = pb::CommittedResponse::decode(&answer[..]).expect("a response").partitions;
            left.is_empty().then_some(())
        })
        .await;
    let other = world.topic("t", 1).await;
    let target = member.until_target_is("the other topic", |target| target == [(other, 0)]).await;
    let again = member.own(&target).await.remove(0);
    assert_eq!((again.committed, again.begins_at_start), (None, true), "another topic, that came after the group");
}

async fn names_of_no_use_make_room_for_others<S: Store>(store: &S) {
    let world = World::new(store, "names").await;
    world.topic("read", 1).await;
    let mut reader = world.join(0, "g", &["read"]).await;
    let target = reader.until_target(1).await;
    let owned = reader.own(&target).await.remove(0);
    assert_eq!(reader.commit(&owned, 1, 5).await, Ok(pb::CommitResult::Ok));
    reader.leave().await.expect("left");
    let names =
        |from: usize, count: usize| (from..from + count).map(|i| format!("never-there-{i}")).collect::<Vec<_>>();
    let join = |topics: Vec<String>| pb::JoinGroupRequest {
        group: "g".to_owned(),
        topics,
        lease_ms: 60_000,
        ..Default::default()
    };
    for from in [0, 1_000] {
        world.join_with(0, &join(names(from, 999))).await.leave().await.expect("left");
    }
    // The last that have room, then more than have: what the former ones subscribed to gives way, what was read does not.
    let stays =
        [world.join_with(0, &join(names(2_000, 1))).await, world.join_with(0, &join(names(3_000, 1_000))).await];
    world.join_with(1, &join(names(4_000, 998))).await;
    let refused = world.call_with(0, Method::JoinGroup, &join(names(5_000, 1))).await.expect_err("all are in use");
    assert_eq!((refused.status, refused.error.limit), (Status::TooLarge, Some(2_000)));
    assert!(refused.error.message.contains("corelane group delete"), "{:?}", refused.error);
    stays[1].leave().await.expect("left");
    let mut again = world.join(0, "g", &["read"]).await;
    let target = again.until_target(1).await;
    assert_eq!(committed(&again.own(&target).await[0]), Some(5));
}

async fn positions_are_set_and_groups_deleted_only_without_members<S: Store>(store: &S) {
    let world = World::new(store, "reset").await;
    world.topic("t", 1).await;
    let mut member = world.join(0, "g", &["t"]).await;
    let target = member.until_target(1).await;
    let owned = member.own(&target).await.remove(0);
    member.commit(&owned, 1, 50).await.expect("committed");
    let gone = pb::CommitPartition { partition: 9, ..at(&owned, 1, 1) };
    let reset = pb::ResetGroupRequest { group: "g".to_owned(), partitions: vec![at(&owned, 1, 20), gone] };
    let delete = pb::DeleteGroupRequest { group: "g".to_owned() };
    assert_eq!(world.call(1, Method::ResetGroup, &reset).await, Err(Status::GroupNotEmpty));
    assert_eq!(world.call(1, Method::DeleteGroup, &delete).await, Err(Status::GroupNotEmpty));
    member.leave().await.expect("left");
    let answer = world.call(1, Method::ResetGroup, &reset).await.expect("reset");
    let answer = pb::ResetGroupResponse::decode(&answer[..]).expect("a response");
    let results: Vec<pb::CommitResult> = answer.partitions.iter().map(pb::CommitOutcome::result).collect();
    assert_eq!(results, [pb::CommitResult::Ok, pb::CommitResult::Gone]);
    let mut member = world.join(0, "g", &["t"]).await;
    let target = member.until_target(1).await;
    assert_eq!(committed(&member.own(&target).await[0]), Some(20));
    member.leave().await.expect("left");
    assert_eq!(world.call(1, Method::DeleteGroup, &delete).await.map(drop), Ok(()));
    assert_eq!(world.call(1, Method::DeleteGroup, &delete).await, Err(Status::UnknownGroup));
    assert_eq!(world.call(1, Method::ResetGroup, &reset).await, Err(Status::UnknownGroup));
    world
        .until("its end", async || world.describe("g").await.err().filter(|status| *status == Status::UnknownGroup))
        .await;
}

async fn a_position_of_an_epoch_that_never_was_is_refused<S: Store>(store: &S) {
    let world = World::new(store, "epochs").await;
    let topic_id = world.topic("t", 1).await;
    let mut member = world.join(0, "g", &["t"]).await;
    let target = member.until_target(1).await;
    let owned = member.own(&target).await;
    assert_eq!(member.commit(&owned[0], 7, 10).await, Err(Status::InvalidRequest));
    assert_eq!(member.commit(&owned[0], 1, 10).await, Ok(pb::CommitResult::Ok), "it would have been stale behind that");
    member.leave().await.expect("left");
    let place = Some(pb::Place { epoch: 7, position: 5 });
    let partition = pb::CommitPartition { topic_id: topic_id.to_vec(), partition: 0, place, ..Default::default() };
    let reset = pb::ResetGroupRequest { group: "g".to_owned(), partitions: vec![partition] };
    assert_eq!(world.call(1, Method::ResetGroup, &reset).await, Err(Status::InvalidRequest));
}

/// Page by page as the protocol has it, until there is no more; `take` notes what came and says how to go on.
async fn pages<S: Store, Q: Message, R: Message + Default>(
    world: &World<S>,
    method: Method,
    mut request: Q,
    mut take: impl FnMut(&mut Q, R) -> bool,
) {
    loop {
        let answer = world.call(0, method, &request).await.expect("a page");
        if !take(&mut request, R::decode(&answer[..]).expect("a response")) {
            return;
        }
    }
}

async fn lists_are_told_in_pages_to_whoever_asks_for_them<S: Store>(store: &S) {
    let world = World::new(store, "pages").await;
    let topics = [world.topic("t", 3).await, world.topic("u", 2).await];
    let mut first = world.join(0, "g", &["t", "u"]).await;
    let second = world.join(0, "g", &["t", "u"]).await;
    for group in ["a", "z"] {
        world.join(0, group, &["t"]).await;
    }
    world
        .until("the groups", async || {
            let answer = world.call(0, Method::ListGroups, &pb::ListGroupsRequest::default()).await.ok()?;
            let listed = pb::ListGroupsResponse::decode(&answer[..]).expect("a response");
            (listed.groups.len() == 3 && !listed.more).then_some(())
        })
        .await;
    let mut names = Vec::new();
    let request = pb::ListGroupsRequest { limit: 2, ..Default::default() };
    pages(&world, Method::ListGroups, request, |request, page: pb::ListGroupsResponse| {
        assert!((1..=2).contains(&page.groups.len()));
        names.extend(page.groups.into_iter().map(|group| group.group));
        request.after.clone_from(names.last().expect("some"));
        page.more
    })
    .await;
    assert_eq!(names, ["a", "g", "z"]);

    // What is owned, what is committed and what is in the target are told together; the last two partitions have no owner.
    second.leave().await.expect("left");
    let target = first.until_target(5).await;
    let owned = first.own(&target[..3]).await;
    for one in &owned {
        first.commit(one, 1, 7).await.expect("committed");
    }
    let owners = |group: &pb::DescribeGroupResponse| group.partitions.iter().filter(|p| !p.owner.is_empty()).count();
    let all = world.until("the owners", async || world.describe("g").await.ok().filter(|g| owners(g) == 3)).await;
    assert_eq!((all.members.len(), all.partitions.len(), all.more), (1, 5, false));
    let key = |one: &pb::GroupPartition| (one.topic_id.clone(), one.partition);
    let (mut members, mut partitions) = (Vec::new(), Vec::new());
    let request = pb::DescribeGroupRequest { group: "g".to_owned(), limit: 2, ..Default::default() };
    pages(&world, Method::DescribeGroup, request, |request, page: pb::DescribeGroupResponse| {
        assert!((1..=2).contains(&(page.members.len() + page.partitions.len())));
        assert_eq!(page.group, all.group, "with every page");
        if let Some(last) = page.partitions.last() {
            (request.after_topic_id, request.after_partition) = key(last);
        } else if let Some(last) = page.members.last() {
            request.after_member.clone_from(&last.member_id);
        }
        members.extend(page.members);
        partitions.extend(page.partitions);
        page.more
    })
    .await;
    assert_eq!(members, all.members);
    assert!(partitions.is_sorted_by_key(key));
    partitions.sort_by_key(|one| (one.topic.clone(), one.partition));
    assert_eq!(partitions, all.partitions);

    let mut committed = Vec::new();
    let request = pb::CommittedRequest { group: "g".to_owned(), limit: 2, ..Default::default() };
    pages(&world, Method::Committed, request, |request, page: pb::CommittedResponse| {
        committed.extend(page.partitions.iter().map(|one| (one.topic_id.clone(), one.partition)));
        (request.after_topic_id, request.after_partition) = committed.last().cloned().expect("some");
        page.more
    })
    .await;
    let mut expected: Vec<(Vec<u8>, u32)> = owned.iter().map(|one| (one.topic_id.clone(), one.partition)).collect();
    expected.sort();
    assert_eq!(committed, expected);
    assert!(topics.iter().all(|topic| partitions.iter().any(|one| one.topic_id == topic.0)));
}

async fn a_claim_says_each_partition_once<S: Store>(store: &S) {
    let world = World::new(store, "twice").await;
    world.topic("t", 1).await;
    let mut member = world.join(0, "g", &["t"]).await;
    let target = member.until_target(1).await;
    assert_eq!(member.claim(&[target[0], target[0]], 0).await, Err(Status::InvalidRequest));
    assert_eq!(member.own(&target).await.len(), 1, "nothing has happened");
}

async fn a_member_that_is_not_heard_of_loses_what_it_had<S: Store>(store: &S) {
    let world = World::new(store, "silent").await;
    world.topic("t", 2).await;
    let silent = pb::JoinGroupRequest {
        group: "g".to_owned(),
        topics: vec!["t".to_owned()],
        lease_ms: 4_000,
        ..Default::default()
    };
    let mut silent = world.join_with(0, &silent).await;
    assert_eq!(silent.lease_ms, 4_000);
    let target = silent.until_target(2).await;
    let owned = silent.own(&target).await;
    silent.commit(&owned[0], 1, 10).await.expect("committed");
    let mut other = world.join(1, "g", &["t"]).await;
    let all = other.until_target(2).await;
    let taken = other.own(&all).await;
    assert!(taken.iter().any(|one| committed(one) == Some(10)));
    assert_eq!(silent.commit(&owned[0], 1, 99).await, Err(Status::Fenced));
    assert_eq!(silent.heartbeat(0, 0).await.map(drop), Err(Status::Fenced));
}

async fn a_member_that_is_stuck_is_renewed_no_more<S: Store>(store: &S) {
    // Everything is listed anew several times before the limit is reached, and it counts on.
    let world = World::listed_every(Duration::from_millis(400), store, "stuck").await;
    world.topic("t", 2).await;
    let stuck = pb::JoinGroupRequest {
        group: "g".to_owned(),
        topics: vec!["t".to_owned()],
        lease_ms: 30_000,
        processing_max_ms: 2_000,
        release_max_ms: 1_500,
        ..Default::default()
    };
    let mut stuck = world.join_with(0, &stuck).await;
    let target = stuck.until_target(2).await;
    stuck.own(&target).await;
    assert!(stuck.heartbeat(0, 2_000).await.is_ok());
    assert_eq!(stuck.heartbeat(0, 2_001).await.map(drop), Err(Status::Fenced), "it holds a message too long");
    let _other = world.join(1, "g", &["t"]).await;
    let status = world.until("the limit", async || stuck.heartbeat(0, 0).await.err()).await;
    assert_eq!(status, Status::Fenced, "it does not release what it must");
}
