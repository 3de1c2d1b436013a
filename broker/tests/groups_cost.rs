//! What groups cost a real etcd: how many requests a position committed, a rebalance and a large group's start take. The
//! numbers are bounded by count, never by time; the times are printed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use corelane_broker::control::groups::{GroupOptions, Groups};
use corelane_broker::registry::etcd::{CompactionRule, EtcdOptions, EtcdStore};
use corelane_broker::registry::keys::Keys;
use corelane_broker::registry::membership::Membership;
use corelane_broker::registry::store::{Entry, LeaseId, Outcome, Page, Range, Revision, Seen, Store, StoreResult, Txn};
use corelane_broker::registry::topics::{NewTopic, Topics};
use corelane_log::config::TopicConfig;
use corelane_proto::frame::{Method, Status};
use corelane_proto::ids::{TopicId, TopicName};
use corelane_proto::pb;
use corelane_testkit::{Etcd, skip};
use futures_util::future::join_all;
use prost::Message;
use tokio::task::LocalSet;

const PATIENCE: Duration = Duration::from_mins(2);

/// Requests that reached the store.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    transactions: u64,
    reads: u64,
    leases: u64,
}

/// A store that counts.
#[derive(Clone)]
struct Counting {
    store: EtcdStore,
    counts: Rc<Cell<Counts>>,
}

impl Counting {
    fn count(&self, add: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }
}

impl Store for Counting {
    type Watch = <EtcdStore as Store>::Watch;

    fn kind(&self) -> &'static str {
        self.store.kind()
    }

    fn renew(&self) {
        self.store.renew();
    }

    async fn seen(&self) -> StoreResult<Seen> {
        self.store.seen().await
    }

    async fn get(&self, key: &str) -> StoreResult<Option<Entry>> {
        self.count(|counts| counts.reads += 1);
        self.store.get(key).await
    }

    async fn range(&self, range: Range) -> StoreResult<Page> {
        self.count(|counts| counts.reads += 1);
        self.store.range(range).await
    }

    async fn commit(&self, txn: Txn) -> StoreResult<Outcome> {
        self.count(|counts| counts.transactions += 1);
        self.store.commit(txn).await
    }

    async fn grant(&self, life: Duration) -> StoreResult<LeaseId> {
        self.count(|counts| counts.leases += 1);
        self.store.grant(life).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> StoreResult<Duration> {
        self.count(|counts| counts.leases += 1);
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> StoreResult<()> {
        self.count(|counts| counts.leases += 1);
        self.store.revoke(lease).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> StoreResult<Self::Watch> {
        self.store.watch(prefix, from).await
    }
}

type Manager = Rc<Groups<Counting>>;

async fn call<Q: Message, R: Message + Default>(groups: &Manager, method: Method, request: &Q) -> Result<R, Status> {
    let answer = groups.call(method, &request.encode_to_vec(), "here").await.map_err(|failure| failure.status)?;
    Ok(R::decode(&answer[..]).expect("a response"))
}

struct Member {
    groups: Manager,
    identity: pb::Member,
    generation: Cell<u64>,
    owned: RefCell<Vec<pb::ClaimedPartition>>,
    target: RefCell<Vec<pb::TopicPartitions>>,
}

impl Member {
    async fn join(groups: Manager) -> Rc<Self> {
        let request = pb::JoinGroupRequest {
            group: "g".to_owned(),
            topics: vec!["t".to_owned()],
            lease_ms: 60_000,
            ..Default::default()
        };
        let joined: pb::JoinGroupResponse = call(&groups, Method::JoinGroup, &request).await.expect("joined");
        let identity = joined.member.expect("a member");
        let (owned, target) = (RefCell::default(), RefCell::default());
        Rc::new(Self { groups, identity, generation: Cell::new(0), owned, target })
    }

    async fn heartbeat(&self) {
        let request = pb::HeartbeatRequest {
            member: Some(self.identity.clone()),
            generation: self.generation.get(),
            max_wait_ms: 5_000,
            oldest_message_age_ms: 0,
        };
        let answer: pb::HeartbeatResponse = call(&self.groups, Method::Heartbeat, &request).await.expect("a heartbeat");
        self.generation.set(answer.generation);
        self.target.replace(answer.target);
    }

    /// Does what the target asks: releases what is not in it, claims what is.
    async fn settle(&self) {
        let wanted: Vec<(Vec<u8>, u32)> = self
            .target
            .borrow()
            .iter()
            .flat_map(|topic| topic.partitions.iter().map(|partition| (topic.topic_id.clone(), *partition)))
            .collect();
        let is_wanted = |one: &pb::ClaimedPartition| wanted.contains(&(one.topic_id.clone(), one.partition));
        let given: Vec<pb::CommitPartition> =
            self.owned.borrow().iter().filter(|one| !is_wanted(one)).map(|one| commit_of(one, 1)).collect();
        if !given.is_empty() {
            self.commit(Method::Release, given).await;
            self.owned.borrow_mut().retain(is_wanted);
        }
        let missing: Vec<(Vec<u8>, u32)> = wanted
            .into_iter()
            .filter(|(id, p)| !self.owned.borrow().iter().any(|one| one.topic_id == *id && one.partition == *p))
            .take(500)
            .collect();
        if missing.is_empty() {
            return;
        }
        let partitions = missing.into_iter().map(|(topic_id, partition)| pb::TopicPartitions {
            topic_id,
            topic: String::new(),
            partitions: vec![partition],
        });
        let member = Some(self.identity.clone());
        let request = pb::ClaimRequest { member, partitions: partitions.collect(), max_wait_ms: 2_000 };
        let claimed: pb::ClaimResponse = call(&self.groups, Method::Claim, &request).await.expect("a claim");
        let taken = claimed.partitions.into_iter().filter(|one| one.result() == pb::ClaimResult::Claimed);
        self.owned.borrow_mut().extend(taken);
    }

    async fn commit(&self, method: Method, partitions: Vec<pb::CommitPartition>) {
        for page in partitions.chunks(500) {
            let request = pb::CommitRequest { member: Some(self.identity.clone()), partitions: page.to_vec() };
            let answer: pb::CommitResponse = call(&self.groups, method, &request).await.expect("a commit");
            assert!(answer.partitions.iter().all(|one| one.result() == pb::CommitResult::Ok), "{answer:?}");
        }
    }

    async fn commit_all(&self, position: u64) {
        let all = self.owned.borrow().iter().map(|one| commit_of(one, position)).collect();
        self.commit(Method::Commit, all).await;
    }

    /// Heartbeats and does what they say, for ever.
    async fn live(self: Rc<Self>) {
        let heartbeats = async {
            loop {
                self.heartbeat().await;
            }
        };
        let work = async {
            loop {
                self.settle().await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::join!(heartbeats, work);
    }
}

fn commit_of(one: &pb::ClaimedPartition, position: u64) -> pb::CommitPartition {
    let place = Some(pb::Place { epoch: 1, position });
    pb::CommitPartition {
        topic_id: one.topic_id.clone(),
        partition: one.partition,
        fence: one.fence,
        place,
        rewind: false,
    }
}

/// A topic of so many partitions, and managers over one etcd.
async fn start(etcd: &Etcd, partitions: u32, brokers: usize) -> (Vec<Manager>, Rc<Cell<Counts>>, EtcdStore) {
    let store = EtcdStore::new(EtcdOptions::new([etcd.endpoint()], "/")).expect("good options");
    let (keys, counts) = (Keys::new("c"), Rc::new(Cell::new(Counts::default())));
    Membership::new(store.clone(), keys.clone(), 1).make_cluster("cluster").await.expect("a cluster");
    let new = NewTopic {
        name: TopicName::new("t").expect("a name"),
        topic_id: TopicId([7; 16]),
        config: TopicConfig::default(),
        places: vec![1; partitions as usize],
        starts: Vec::new(),
        copy_of: Vec::new(),
    };
    Topics::new(store.clone(), keys.clone(), "i".to_owned()).create(&new).await.expect("created");
    let mut managers = Vec::new();
    for _ in 0..brokers {
        let store = Counting { store: store.clone(), counts: Rc::clone(&counts) };
        let manager = Groups::new(store, keys.clone(), "cluster".to_owned(), GroupOptions::default());
        tokio::task::spawn_local(Rc::clone(&manager).run());
        let began = Instant::now();
        while call::<_, pb::ListGroupsResponse>(&manager, Method::ListGroups, &pb::ListGroupsRequest::default())
            .await
            .is_err()
        {
            assert!(began.elapsed() < PATIENCE, "the manager lists nothing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        managers.push(manager);
    }
    (managers, counts, store)
}

async fn until_owned(members: &[Rc<Member>], partitions: usize) {
    let began = Instant::now();
    loop {
        let owned: usize = members.iter().map(|member| member.owned.borrow().len()).sum();
        let generations: Vec<u64> = members.iter().map(|member| member.generation.get()).collect();
        let has_each = members.iter().all(|member| !member.owned.borrow().is_empty());
        if has_each && owned == partitions && generations.iter().all(|generation| *generation == generations[0]) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{owned} of {partitions} are owned");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn since(before: Counts, after: Counts) -> Counts {
    Counts {
        transactions: after.transactions - before.transactions,
        reads: after.reads - before.reads,
        leases: after.leases - before.leases,
    }
}

#[tokio::test]
async fn two_thousand_partitions_commit_once_a_second_in_few_transactions() {
    let test = "two_thousand_partitions_commit_once_a_second_in_few_transactions";
    if Etcd::installed().is_none() {
        return skip(test, "no etcd; the Debian package etcd-server has it");
    }
    let etcd = Etcd::start(&[]);
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let (managers, counts, store) = start(&etcd, 2_000, 1).await;
            let mut members = Vec::new();
            for _ in 0..10 {
                let member = Member::join(Rc::clone(&managers[0])).await;
                tokio::task::spawn_local(Rc::clone(&member).live());
                members.push(member);
            }
            until_owned(&members, 2_000).await;
            let (before, revision) = (counts.get(), store.seen().await.expect("seen").revision);
            let (seconds, mut slowest) = (5, Duration::ZERO);
            for second in 1..=seconds {
                let began = Instant::now();
                join_all(members.iter().map(|member| member.commit_all(second * 10))).await;
                slowest = slowest.max(began.elapsed());
                tokio::time::sleep(Duration::from_secs(1).saturating_sub(began.elapsed())).await;
            }
            let cost = since(before, counts.get());
            let revisions = store.seen().await.expect("seen").revision - revision;
            println!("{seconds} s, 2000 positions a second: {cost:?}, {revisions} revisions, slowest {slowest:?}");
            // The first of each: a hundred in one transaction, once more where the position was not known yet.
            let full = 2_000 / 100;
            assert!(cost.transactions <= (seconds + 1) * 2 * full, "{cost:?}");
            let check = store.check(&CompactionRule::default()).await.expect("checked");
            println!("etcd's database: {} bytes", check.database_bytes);
        })
        .await;
}

#[tokio::test]
async fn five_hundred_members_on_two_thousand_partitions_settle_with_bounded_requests() {
    let test = "five_hundred_members_on_two_thousand_partitions_settle_with_bounded_requests";
    if Etcd::installed().is_none() {
        return skip(test, "no etcd; the Debian package etcd-server has it");
    }
    let (count, partitions) = if std::env::var_os("CORELANE_FULL").is_some() { (500, 2_000) } else { (100, 400) };
    let etcd = Etcd::start(&[]);
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let (managers, counts, _) = start(&etcd, partitions as u32, 3).await;
            let began = Instant::now();
            let before = counts.get();
            let members = join_all((0..count).map(|number| {
                let manager = Rc::clone(&managers[number % managers.len()]);
                async move {
                    let member = Member::join(manager).await;
                    tokio::task::spawn_local(Rc::clone(&member).live());
                    member
                }
            }))
            .await;
            until_owned(&members, partitions).await;
            let cost = since(before, counts.get());
            println!("{count} members on {partitions} partitions settled in {:?}: {cost:?}", began.elapsed());
            let claims: usize = partitions * 2;
            // A join each, tried again where the group's own key came to be; claims and releases; targets of three brokers.
            assert!(cost.transactions <= (3 * count + 2 * claims + 60) as u64, "{cost:?}");
            let (before, began) = (counts.get(), Instant::now());
            let more = Member::join(Rc::clone(&managers[0])).await;
            tokio::task::spawn_local(Rc::clone(&more).live());
            let mut all = members;
            all.push(more);
            until_owned(&all, partitions).await;
            println!("one more member: {:?}, {:?}", began.elapsed(), since(before, counts.get()));
        })
        .await;
}
