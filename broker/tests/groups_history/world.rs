//! The world of a history: a registry, brokers, members, logs; all by one seed. What goes wrong with them is in `faults`, what
//! must hold in the end in `end`.

mod end;
mod faults;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use corelane_broker::control::groups::{GroupOptions, Groups};
use corelane_broker::registry::group_records::GroupRecord;
use corelane_broker::registry::keys::{Key, Keys};
use corelane_broker::registry::membership::Membership;
use corelane_broker::registry::records::{ClusterRecord, PartitionRecord, Record, TopicRecord};
use corelane_broker::registry::store::{Op, Txn};
use corelane_log::config::TopicConfig;
use corelane_proto::ids::{Epoch, Position, TopicId, TopicName};
use corelane_proto::pb;

use super::clock::{Instant, VirtualClock, sleep, sleep_until, spawn};
use super::ghost::{Ghost, Tp};
use super::member::Member;
use super::process::Process;
use super::store::{Etcd, SimStore};
pub(crate) use faults::Fault;
use faults::OFTEN;

pub(crate) const GROUP: &str = "g";
/// A lease's life.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// How long a message may be held, and a release or a claim may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(6);
/// A member's patience with a call.
pub(crate) const CALL: Duration = Duration::from_millis(700);

/// Chance, by a seed.
pub(crate) struct Chance {
    numbers: RefCell<fastrand::Rng>,
    /// Everything is well: nothing takes long.
    pub(crate) is_quiet: Cell<bool>,
}

impl Chance {
    pub(crate) fn new(seed: u64) -> Rc<Self> {
        Rc::new(Self { numbers: RefCell::new(fastrand::Rng::with_seed(seed)), is_quiet: Cell::new(false) })
    }

    pub(crate) fn below(&self, end: u64) -> u64 {
        self.numbers.borrow_mut().u64(..end.max(1))
    }

    /// From the first to the last, both included.
    pub(crate) fn ms(&self, first: u64, last: u64) -> u64 {
        self.numbers.borrow_mut().u64(first..=last.max(first))
    }

    pub(crate) fn is(&self, probability: f64) -> bool {
        self.numbers.borrow_mut().f64() < probability
    }

    pub(crate) fn one<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// How long something takes on the way to or from the registry.
    pub(crate) fn delay(&self) -> Duration {
        if self.is_quiet.get() {
            return Duration::from_millis(self.ms(1, 15));
        }
        Duration::from_millis(match self.below(100) {
            0 => self.ms(300, 2 * LEASE.as_millis() as u64),
            1..10 => self.ms(25, 300),
            _ => self.ms(1, 25),
        })
    }
}

/// A partition's log: positions begin again with an epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    pub(crate) epoch: u32,
    pub(crate) end: u64,
}

struct Broker {
    process: Rc<Process>,
    store: SimStore,
    groups: Rc<Groups<SimStore>>,
}

/// Everything.
pub(crate) struct World {
    pub(crate) chance: Rc<Chance>,
    pub(crate) etcd: Rc<RefCell<Etcd>>,
    pub(crate) keys: Keys,
    pub(crate) ghost: Rc<RefCell<Ghost>>,
    pub(crate) brokers: RefCell<Vec<BrokerSlot>>,
    members: RefCell<Vec<Rc<Member>>>,
    logs: RefCell<BTreeMap<Tp, Log>>,
    /// Those born while a subscription covered them.
    covered: RefCell<BTreeMap<Tp, bool>>,
    subscription: Vec<&'static str>,
    has_subscribed: Cell<bool>,
    pub(crate) is_earliest: bool,
    pub(crate) keeps_connections: bool,
    pub(crate) halts: f64,
    pub(crate) rewinds: f64,
    pub(crate) was_restored: Cell<bool>,
    slow_until: Cell<Instant>,
    attachments: Cell<u32>,
    pub(crate) faults: Vec<Fault>,
}

/// A broker's place; who stands there may be replaced.
pub(crate) struct BrokerSlot(Broker);

impl World {
    fn new(seed: u64, faults: Option<&[Fault]>) -> Rc<Self> {
        let chance = Chance::new(seed);
        let mut chosen: Vec<Fault> = match faults {
            Some(faults) => faults.to_vec(),
            None => OFTEN.iter().copied().filter(|_| chance.is(0.5)).collect(),
        };
        if faults.is_none() && chance.is(0.15) {
            chosen.push(Fault::ExpireAll);
        }
        if faults.is_none() && chance.is(0.15) {
            // The model restores groups, not topics.
            chosen.retain(|fault| {
                ![Fault::AddPartition, Fault::Recreate, Fault::AcceptLoss, Fault::Delete].contains(fault)
            });
            chosen.extend([Fault::Restore, Fault::Restore]);
        }
        let subscriptions: [&[&'static str]; 3] = [&["t1"], &["t1", "t2"], &[]];
        let world = Self {
            etcd: Rc::new(RefCell::new(Etcd::new(Rc::clone(&chance)))),
            keys: Keys::new("c"),
            ghost: Rc::default(),
            brokers: RefCell::default(),
            members: RefCell::default(),
            logs: RefCell::default(),
            covered: RefCell::default(),
            subscription: chance.one(&subscriptions).to_vec(),
            has_subscribed: Cell::new(false),
            is_earliest: chance.is(0.34),
            keeps_connections: chance.is(0.5),
            halts: if chosen.contains(&Fault::PauseMember) { 0.02 } else { 0.0 },
            rewinds: if chance.is(0.34) { 0.03 } else { 0.0 },
            was_restored: Cell::new(false),
            slow_until: Cell::new(Instant::now()),
            attachments: Cell::new(0),
            faults: chosen,
            chance,
        };
        let world = Rc::new(world);
        world.ghost.borrow_mut().is_traced = std::env::var_os("CORELANE_TRACE").is_some();
        let (ghost, keys) = (Rc::clone(&world.ghost), world.keys.clone());
        world.etcd.borrow_mut().watch_over(Box::new(move |etcd, key, old, new, who| {
            ghost.borrow_mut().see(&keys, etcd, key, old, new, who);
        }));
        let cluster = ClusterRecord { cluster_id: "c".to_owned(), incarnation: 1 };
        world.write(&Txn::new().put(world.keys.key(&Key::Cluster), cluster.to_bytes()));
        world.create("t1", world.chance.ms(1, 3) as u32);
        if world.chance.is(0.5) {
            world.create("t2", world.chance.ms(1, 3) as u32);
        }
        for _ in 0..world.chance.ms(2, 3) {
            let store = SimStore::new(Rc::clone(&world.etcd), Rc::clone(&world.chance));
            let broker = world.start_broker(store, None);
            world.brokers.borrow_mut().push(BrokerSlot(broker));
        }
        world
    }

    fn write(&self, txn: &Txn) -> bool {
        self.etcd.borrow_mut().commit(txn, None).expect("no lease is named").succeeded
    }

    /// `known`: the store was put back since the broker ran, which then knew this incarnation, as its directory remembers.
    fn start_broker(&self, store: SimStore, known: Option<u64>) -> Broker {
        let chance = Rc::clone(&self.chance);
        let options = GroupOptions {
            claims_pause: LEASE,
            retry: Duration::from_millis(200),
            clock: Rc::new(VirtualClock),
            random: Rc::new(move || {
                (u128::from(chance.below(u64::MAX)) << 64 | u128::from(chance.below(u64::MAX))).to_be_bytes()
            }),
            ..GroupOptions::default()
        };
        let groups = Groups::new(store.clone(), self.keys.clone(), "c".to_owned(), options);
        let process = Process::new();
        let (running, membership) = (Rc::clone(&groups), Membership::new(store.clone(), self.keys.clone(), 1));
        process.spawn(async move {
            if let Some(known) = known {
                while membership.raise_incarnation(known).await.is_err() {
                    sleep(Duration::from_millis(100)).await;
                }
                running.pause_claims();
            }
            running.run().await;
        });
        Broker { process, store, groups }
    }

    pub(crate) fn broker(&self, number: usize) -> (Rc<Process>, Rc<Groups<SimStore>>) {
        let brokers = self.brokers.borrow();
        let broker = &brokers[number].0;
        (Rc::clone(&broker.process), Rc::clone(&broker.groups))
    }

    pub(crate) fn delay(&self) -> Duration {
        if !self.chance.is_quiet.get() && self.slow_until.get() > Instant::now() && self.chance.is(0.1) {
            return Duration::from_millis(self.chance.ms(300, LEASE.as_millis() as u64));
        }
        self.chance.delay()
    }

    pub(crate) fn next_attachment(&self) -> u32 {
        self.attachments.set(self.attachments.get() + 1);
        self.attachments.get()
    }

    pub(crate) fn join_request(&self) -> pb::JoinGroupRequest {
        self.has_subscribed.set(true);
        let limit = LIMIT.as_millis() as u32;
        pb::JoinGroupRequest {
            group: GROUP.to_owned(),
            topics: self.subscription.iter().map(|name| (*name).to_owned()).collect(),
            pattern: if self.subscription.is_empty() { ".*".to_owned() } else { String::new() },
            lease_ms: LEASE.as_millis() as u32,
            processing_max_ms: limit,
            release_max_ms: limit,
            ..Default::default()
        }
    }

    pub(crate) fn log(&self, tp: Tp) -> Option<Log> {
        self.logs.borrow().get(&tp).copied()
    }

    fn covers(&self, name: &str) -> bool {
        self.subscription.is_empty() || self.subscription.contains(&name)
    }

    fn birth(&self, tp: Tp, name: &str) {
        self.logs.borrow_mut().insert(tp, Log { epoch: 1, end: 0 });
        // As the registry has it: a subscription that is not written yet covers nothing.
        let is_covered = self.covers(name) && self.group_covers(name);
        self.covered.borrow_mut().insert(tp, is_covered);
    }

    fn group_covers(&self, name: &str) -> bool {
        let etcd = self.etcd.borrow();
        let record = etcd.entries.get(&self.keys.key(&Key::Group(GROUP.to_owned())));
        let record = record.and_then(|entry| GroupRecord::from_bytes(&entry.value).ok());
        record.is_some_and(|record| record.names.contains(name) || !record.patterns.is_empty())
    }

    fn partition_put(&self, (topic, partition): Tp, epoch: u32) -> Op {
        let record =
            PartitionRecord { replicas: vec![1], leader: 1, epoch: Epoch(epoch), made: None, start: Position::ZERO };
        Op::Put { key: self.keys.key(&Key::Partition(topic, partition)), value: record.to_bytes(), lease: None }
    }

    fn create(&self, name: &str, partitions: u32) {
        let topic_id = TopicId(u128::from(self.chance.below(u64::MAX)).to_be_bytes());
        let record = TopicRecord { topic_id, partitions, config: TopicConfig::default(), copy_of: Vec::new() };
        let mut txn = Txn::new().put(self.topic_key(name), record.to_bytes());
        for partition in 0..partitions {
            self.birth((topic_id, partition), name);
            txn = txn.then(self.partition_put((topic_id, partition), 1));
        }
        self.write(&txn);
    }

    fn topic_key(&self, name: &str) -> String {
        self.keys.key(&Key::Topic(TopicName::new(name).expect("a name")))
    }

    fn topics(&self) -> Vec<(TopicName, TopicRecord)> {
        let etcd = self.etcd.borrow();
        let prefix = self.keys.topics();
        let topic = |entry: &corelane_broker::registry::store::Entry| {
            let Some(Key::Topic(name)) = self.keys.parse(&entry.key) else { panic!("{}", entry.key) };
            (name, TopicRecord::from_bytes(&entry.value).expect("a topic"))
        };
        etcd.below(&prefix).map(topic).collect()
    }

    fn some_topic(&self) -> Option<(TopicName, TopicRecord)> {
        let topics = self.topics();
        let index = self.chance.below(topics.len() as u64) as usize;
        topics.into_iter().nth(index)
    }

    fn live(&self) -> Vec<Rc<Member>> {
        self.members.borrow().iter().filter(|member| member.process.is_alive.get()).cloned().collect()
    }

    fn new_member(self: &Rc<Self>) -> Rc<Member> {
        let number = self.members.borrow().len() as u32;
        let member = Member::start(self, number);
        self.members.borrow_mut().push(Rc::clone(&member));
        member
    }

    fn later(self: &Rc<Self>, after: Duration, then: impl FnOnce(&Rc<Self>) + 'static) {
        let world = Rc::clone(self);
        spawn(async move {
            sleep(after).await;
            then(&world);
        });
    }

    fn refill(self: &Rc<Self>, after: Duration) {
        self.later(after, |world| {
            if world.live().len() < 4 {
                world.new_member();
            }
        });
    }

    fn incarnation(&self) -> u64 {
        let etcd = self.etcd.borrow();
        ClusterRecord::from_bytes(&etcd.entries[&self.keys.key(&Key::Cluster)].value).expect("a cluster").incarnation
    }

    async fn publish(self: Rc<Self>, until: Instant) {
        while Instant::now() < until {
            for log in self.logs.borrow_mut().values_mut() {
                if self.chance.is(0.4) {
                    log.end += self.chance.ms(1, 2);
                }
            }
            sleep(Duration::from_millis(self.chance.ms(40, 250))).await;
        }
    }

    async fn expire(self: Rc<Self>) {
        loop {
            sleep(Duration::from_millis(20)).await;
            self.etcd.borrow_mut().expire();
        }
    }

    fn wrong(&self) -> Option<String> {
        self.ghost.borrow().wrong.clone()
    }

    /// Who owns what, and the target's number.
    fn owners(&self) -> (u64, Vec<(String, u64)>) {
        let etcd = self.etcd.borrow();
        let group = etcd.entries.get(&self.keys.key(&Key::Group(GROUP.to_owned())));
        let generation = group.map_or(0, |entry| GroupRecord::from_bytes(&entry.value).expect("a group").generation);
        let prefix = self.keys.owners_of(GROUP);
        let owners = etcd.below(&prefix).map(|entry| (entry.key.clone(), entry.create_revision)).collect();
        (generation, owners)
    }
}

/// What a history came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) delivered: u64,
    pub(crate) overlaps: u64,
    pub(crate) early: u64,
    pub(crate) claims: u64,
    pub(crate) commits: u64,
}

/// Runs one history; the error says what was wrong, with the faults.
pub(crate) async fn run(seed: u64, faults: Option<&[Fault]>) -> Result<Figures, String> {
    // The managers' own pauses.
    fastrand::seed(seed);
    let world = World::new(seed, faults);
    let end = Instant::now() + LEASE * world.chance.one(&[4, 8, 12]);
    let fail = |world: &World, what: String| format!("seed {seed}: {what}; faults {:?}", world.faults);
    for _ in 0..world.chance.ms(2, 4) {
        world.later(Duration::from_millis(world.chance.below(LEASE.as_millis() as u64)), |world| {
            world.new_member();
        });
    }
    spawn(Rc::clone(&world).publish(end + 2 * LEASE));
    spawn(Rc::clone(&world).expire());
    sleep(Duration::from_millis(world.chance.ms(1_500, 3_000))).await;
    while Instant::now() < end && world.wrong().is_none() {
        if !world.faults.is_empty() {
            world.happen(world.chance.one(&world.faults));
        }
        let ms = Duration::from_millis;
        let pause = world.chance.one(&[ms(50), ms(200), ms(500), LEASE, LEASE]);
        sleep_until((Instant::now() + pause).min(end)).await;
    }
    world.heal();
    for _ in 0..90 {
        sleep(LEASE / 10).await;
        if let Some(wrong) = world.wrong() {
            return Err(fail(&world, wrong));
        }
    }
    let before = world.owners();
    sleep(3 * LEASE).await;
    if world.owners() != before {
        return Err(fail(&world, "owners or generations still change".to_owned()));
    }
    world.check_end().map_err(|what| fail(&world, what))?;
    let ghost = world.ghost.borrow();
    match &ghost.wrong {
        Some(wrong) => Err(fail(&world, wrong.clone())),
        None => Ok(Figures {
            delivered: ghost.delivered,
            overlaps: ghost.overlaps,
            early: ghost.early,
            claims: ghost.claims,
            commits: ghost.commits,
        }),
    }
}
