//! A member as a client should be: it joins, attaches through another broker when one fails it, claims, delivers, commits,
//! releases, leaves; and never delivers past its deadline. Its process may be paused at every step, killed, or cloned.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use corelane_proto::frame::{Method, Status};
use corelane_proto::ids::TopicId;
use corelane_proto::pb;
use prost::Message;
use tokio::sync::{Notify, oneshot};

use super::clock::{Instant, sleep, spawn, timeout};
use super::ghost::{Kind, Place, Tp};
use super::process::Process;
use super::store::Who;
use super::world::{CALL, GROUP, LEASE, LIMIT, World};

/// A call's end other than OK; `None`: no broker answered, or could answer.
type Refused = Option<Status>;

/// One ownership of a partition.
pub(crate) struct Tenure {
    tp: Tp,
    fence: pb::Fence,
    number: u64,
    committed: Option<Place>,
    begins_at_start: bool,
    pub(crate) place: Cell<Option<Place>>,
    pub(crate) is_ready: Cell<bool>,
    is_dirty: Cell<bool>,
    is_idle: Cell<bool>,
    must_stop: Cell<bool>,
    is_lost: Cell<bool>,
    /// When the message in hand was delivered.
    since: Cell<Option<Instant>>,
}

impl Tenure {
    fn new(tp: Tp, fence: pb::Fence, number: u64) -> Self {
        Self {
            tp,
            fence,
            number,
            committed: None,
            begins_at_start: false,
            place: Cell::new(None),
            is_ready: Cell::new(false),
            is_dirty: Cell::new(false),
            is_idle: Cell::new(true),
            must_stop: Cell::new(false),
            is_lost: Cell::new(false),
            since: Cell::new(None),
        }
    }

    fn is_over(&self) -> bool {
        self.must_stop.get() || self.is_lost.get()
    }
}

/// A member's process.
pub(crate) struct Member {
    world: Rc<World>,
    pub(crate) process: Rc<Process>,
    pub(crate) number: u32,
    born: Instant,
    session: Cell<u64>,
    broker: Cell<usize>,
    pub(crate) identity: RefCell<Option<pb::Member>>,
    who: Cell<Who>,
    is_attached: Cell<bool>,
    is_broken: Cell<bool>,
    broke: Notify,
    deadline: Cell<Instant>,
    pub(crate) own: RefCell<BTreeMap<Tp, Rc<Tenure>>>,
    target: RefCell<BTreeSet<Tp>>,
    claiming: RefCell<BTreeSet<Tp>>,
    generation: Cell<u64>,
    pub(crate) is_leaving: Cell<bool>,
    pub(crate) stuck_until: Cell<Instant>,
}

fn place_of(place: &pb::Place) -> Place {
    (place.epoch, place.position)
}

fn tp_of(topic: &[u8], partition: u32) -> Tp {
    (TopicId::try_from(topic).expect("an id"), partition)
}

impl Member {
    fn blank(world: &Rc<World>, number: u32) -> Self {
        let now = Instant::now();
        Self {
            world: Rc::clone(world),
            process: Process::new(),
            number,
            born: now,
            session: Cell::new(0),
            broker: Cell::new(0),
            identity: RefCell::default(),
            who: Cell::new(None),
            is_attached: Cell::new(false),
            is_broken: Cell::new(false),
            broke: Notify::new(),
            deadline: Cell::new(now),
            own: RefCell::default(),
            target: RefCell::default(),
            claiming: RefCell::default(),
            generation: Cell::new(0),
            is_leaving: Cell::new(false),
            stuck_until: Cell::new(now),
        }
    }

    pub(crate) fn start(world: &Rc<World>, number: u32) -> Rc<Self> {
        let member = Rc::new(Self::blank(world, number));
        member.process.spawn(Rc::clone(&member).main());
        member
    }

    /// A copy of the process as it stands, as of a virtual machine.
    pub(crate) fn clone_process(&self, number: u32) -> Rc<Self> {
        let twin = Self::blank(&self.world, number);
        twin.identity.replace(self.identity.borrow().clone());
        twin.who.set(self.who.get());
        twin.deadline.set(self.deadline.get());
        twin.target.replace(self.target.borrow().clone());
        twin.generation.set(self.generation.get());
        twin.session.set(self.session.get());
        for (tp, tenure) in
            self.own.borrow().iter().filter(|(_, tenure)| tenure.is_ready.get() && !tenure.is_lost.get())
        {
            let copy = Tenure::new(*tp, tenure.fence, tenure.number);
            copy.place.set(tenure.place.get());
            copy.is_ready.set(true);
            copy.is_dirty.set(tenure.is_dirty.get());
            twin.own.borrow_mut().insert(*tp, Rc::new(copy));
        }
        let twin = Rc::new(twin);
        twin.process.spawn(Rc::clone(&twin).resume());
        twin
    }

    pub(crate) fn member_id(&self) -> Option<String> {
        self.identity.borrow().as_ref().map(|identity| identity.member_id.clone())
    }

    fn is_dead(&self, session: u64) -> bool {
        self.session.get() != session || Instant::now() >= self.deadline.get()
    }

    fn choose_broker(&self) {
        let (count, last) = (self.world.brokers.borrow().len() as u64, self.broker.get() as u64);
        self.broker.set(((last + 1 + self.world.chance.below(count - 1)) % count) as usize);
    }

    /// The connection is no good: the main task attaches through another broker, now.
    fn break_off(&self) {
        self.is_broken.set(true);
        self.broke.notify_waiters();
    }

    /// Displaced, or its lease ended: this process joins again as a new member.
    fn end(&self) {
        self.session.set(self.session.get() + 1);
        self.broke.notify_waiters();
    }

    async fn call<Q: Message, R: Message + Default>(
        &self,
        method: Method,
        who: Who,
        request: &Q,
        patience: Duration,
    ) -> Result<R, Refused> {
        let (answer, answered) = oneshot::channel();
        let (world, broker) = (Rc::clone(&self.world), self.broker.get());
        let proto = request.encode_to_vec();
        let there = world.delay();
        spawn(async move {
            sleep(there).await;
            let (process, groups) = world.broker(broker);
            let outcome = if process.is_alive.get() {
                let call = async move { groups.call(method, &proto, "member").await };
                process.within(who, call).await
            } else {
                None
            };
            let outcome = match outcome {
                Some(Ok(proto)) => Ok(proto),
                Some(Err(failure)) => Err(match failure.status {
                    Status::RegistryUnavailable | Status::Busy => None,
                    status => Some(status),
                }),
                None => Err(None),
            };
            sleep(world.delay()).await;
            // Whoever asked may wait no more.
            let _ = answer.send(outcome);
        });
        let proto = timeout(patience, answered).await.ok_or(None::<Status>)?.map_err(|_| None::<Status>)??;
        Ok(R::decode(&proto[..]).expect("a response"))
    }

    /// A call of the member: nothing is sent before the attachment's answer.
    async fn ask<Q: Message, R: Message + Default>(
        &self,
        method: Method,
        patience: Duration,
        request: impl FnOnce(Option<pb::Member>) -> Q,
    ) -> Result<R, Refused> {
        let session = self.session.get();
        while !self.is_attached.get() {
            if self.is_dead(session) {
                return Err(None);
            }
            sleep(Duration::from_millis(20)).await;
        }
        let request = request(self.identity.borrow().clone());
        self.call(method, self.who.get(), &request, patience).await
    }

    fn attachment(&self) -> u64 {
        self.identity.borrow().as_ref().map_or(0, |identity| identity.attachment)
    }

    async fn main(self: Rc<Self>) {
        loop {
            self.end();
            let session = self.session.get();
            self.own.borrow_mut().clear();
            self.target.borrow_mut().clear();
            self.identity.replace(None);
            self.generation.set(0);
            if self.is_leaving.get() {
                self.process.kill();
                return;
            }
            self.choose_broker();
            let (sent, who) = (Instant::now(), Some((self.number, 0)));
            let request = self.world.join_request();
            let joined: Result<pb::JoinGroupResponse, _> = self.call(Method::JoinGroup, who, &request, CALL).await;
            let Ok(joined) = joined else {
                sleep(Duration::from_millis(self.world.chance.ms(50, 300))).await;
                continue;
            };
            self.identity.replace(joined.member);
            self.who.set(who);
            self.deadline.set(sent + LEASE);
            self.is_attached.set(true);
            Rc::clone(&self).live(session).await;
        }
    }

    async fn resume(self: Rc<Self>) {
        self.end();
        let session = self.session.get();
        let owned: Vec<Rc<Tenure>> = self.own.borrow().values().cloned().collect();
        for tenure in owned {
            self.process.spawn(Rc::clone(&self).work(tenure, session));
        }
        if self.attach(session).await {
            Rc::clone(&self).live(session).await;
        }
        self.main().await;
    }

    /// A new connection. False: join again.
    async fn attach(&self, session: u64) -> bool {
        while !self.is_dead(session) {
            self.choose_broker();
            self.is_attached.set(false);
            let who = Some((self.number, self.world.next_attachment()));
            let attach = self.identity.borrow().clone();
            let request = pb::JoinGroupRequest { group: GROUP.to_owned(), attach, ..Default::default() };
            match self.call::<_, pb::JoinGroupResponse>(Method::JoinGroup, who, &request, CALL).await {
                Ok(answer) => {
                    self.identity.replace(answer.member);
                    self.who.set(who);
                    self.is_attached.set(true);
                    return true;
                }
                Err(Some(Status::Fenced)) => return false,
                Err(_) => sleep(Duration::from_millis(self.world.chance.ms(20, 120))).await,
            }
        }
        false
    }

    async fn live(self: Rc<Self>, session: u64) {
        self.is_broken.set(false);
        self.process.spawn(Rc::clone(&self).claim_all(session));
        self.process.spawn(Rc::clone(&self).commit_all(session));
        while !self.is_dead(session) {
            if self.is_broken.replace(false) && !self.attach(session).await {
                break;
            }
            let sent = Instant::now();
            let age =
                self.own.borrow().values().filter_map(|tenure| tenure.since.get()).map(|since| sent.since(since)).max();
            let patience = LEASE / 3 + CALL;
            let heartbeat = self.ask::<_, pb::HeartbeatResponse>(Method::Heartbeat, patience, |member| {
                let max_wait_ms = (LEASE / 3).as_millis() as u32 - 100;
                let oldest_message_age_ms = age.unwrap_or_default().as_millis() as u32;
                pb::HeartbeatRequest { member, generation: self.generation.get(), max_wait_ms, oldest_message_age_ms }
            });
            let broke = self.broke.notified();
            let answer = tokio::select! {
                biased;
                answer = heartbeat => answer,
                () = broke => Err(None),
            };
            if self.is_dead(session) {
                // An answer that comes after the deadline does not bring it back.
                break;
            }
            match answer {
                Ok(answer) => {
                    self.deadline.set(self.deadline.get().max(sent + LEASE));
                    self.take(&answer, session);
                }
                Err(Some(Status::Fenced)) => break,
                Err(_) => {
                    self.is_broken.set(true);
                    continue;
                }
            }
            sleep(Duration::from_millis(1)).await;
            if self.is_leaving.get() && self.session.get() == session {
                self.leave().await;
                break;
            }
        }
        if self.session.get() == session {
            self.end();
        }
        self.own.borrow().values().for_each(|tenure| tenure.is_lost.set(true));
    }

    /// What a heartbeat's answer says.
    fn take(self: &Rc<Self>, answer: &pb::HeartbeatResponse, session: u64) {
        if answer.generation >= self.generation.get() || self.world.was_restored.get() {
            self.generation.set(answer.generation);
            let tps = answer
                .target
                .iter()
                .flat_map(|topic| topic.partitions.iter().map(|partition| tp_of(&topic.topic_id, *partition)));
            self.target.replace(tps.collect());
        }
        let mut held: BTreeMap<Tp, (u64, u64)> = BTreeMap::new();
        for topic in &answer.held {
            for ((partition, fence), generation) in topic.partitions.iter().zip(&topic.fences).zip(&topic.generations) {
                held.insert(tp_of(&topic.topic_id, *partition), (*fence, *generation));
            }
        }
        let owned: Vec<Rc<Tenure>> = self.own.borrow().values().cloned().collect();
        for tenure in owned {
            let fence = tenure.fence.number;
            let is_missing = held.get(&tenure.tp).is_none_or(|(number, _)| *number != fence);
            if tenure.is_ready.get() && answer.revision >= fence && is_missing {
                self.drop_tenure(&tenure);
            } else if !self.target.borrow().contains(&tenure.tp) && !tenure.must_stop.replace(true) {
                self.process.spawn(Rc::clone(self).release(tenure, session));
            }
        }
        for (tp, (number, generation)) in held {
            let is_known = self.own.borrow().contains_key(&tp) || self.claiming.borrow().contains(&tp);
            if is_known || self.target.borrow().contains(&tp) {
                continue;
            }
            // A claim whose answer was lost, and that is not wanted any more.
            let incarnation = self.identity.borrow().as_ref().map_or(0, |identity| identity.incarnation);
            let fence = pb::Fence { incarnation, number, generation };
            let tenure = self.world.ghost.borrow().tenure_of(tp, number, incarnation);
            let tenure = Rc::new(Tenure::new(tp, fence, tenure));
            tenure.must_stop.set(true);
            self.own.borrow_mut().insert(tp, Rc::clone(&tenure));
            self.process.spawn(Rc::clone(self).release(tenure, session));
        }
    }

    async fn leave(&self) {
        let owned: Vec<Rc<Tenure>> = self.own.borrow().values().cloned().collect();
        for tenure in &owned {
            tenure.must_stop.set(true);
        }
        for _ in 0..40 {
            if owned.iter().all(|tenure| tenure.is_idle.get()) {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        for tenure in owned.iter().filter(|tenure| tenure.is_ready.get() && !tenure.is_lost.get()) {
            let _ = self.settle(Method::Commit, tenure, Kind::Commit, tenure.place.get()).await;
        }
        for tenure in &owned {
            tenure.is_lost.set(true);
        }
        let _: Result<pb::LeaveGroupResponse, _> =
            self.ask(Method::LeaveGroup, CALL, |member| pb::LeaveGroupRequest { member }).await;
    }

    fn drop_tenure(&self, tenure: &Rc<Tenure>) {
        tenure.is_lost.set(true);
        tenure.must_stop.set(true);
        let mut own = self.own.borrow_mut();
        if own.get(&tenure.tp).is_some_and(|now| Rc::ptr_eq(now, tenure)) {
            own.remove(&tenure.tp);
        }
    }

    async fn claim_all(self: Rc<Self>, session: u64) {
        let is_off = || self.stuck_until.get() > Instant::now() || self.is_broken.get() || self.is_leaving.get();
        while !self.is_dead(session) {
            sleep(Duration::from_millis(self.world.chance.ms(20, 100))).await;
            let missing: Vec<Tp> =
                self.target.borrow().iter().filter(|tp| !self.own.borrow().contains_key(tp)).copied().collect();
            if missing.is_empty() || is_off() || self.is_dead(session) {
                continue;
            }
            self.claiming.replace(missing.iter().copied().collect());
            let attachment = self.attachment();
            let wait_ms = self.world.chance.ms(0, 500) as u32;
            let claimed =
                self.ask::<_, pb::ClaimResponse>(Method::Claim, CALL + Duration::from_millis(500), |member| {
                    let partitions = missing.iter().map(|(topic, partition)| pb::TopicPartitions {
                        topic_id: topic.0.to_vec(),
                        topic: String::new(),
                        partitions: vec![*partition],
                    });
                    pb::ClaimRequest { member, partitions: partitions.collect(), max_wait_ms: wait_ms }
                });
            let claimed = claimed.await;
            self.claiming.borrow_mut().clear();
            if self.session.get() != session {
                return;
            }
            match claimed {
                Ok(claimed) if attachment == self.attachment() && !self.is_leaving.get() => {
                    for one in claimed.partitions.iter().filter(|one| one.result() == pb::ClaimResult::Claimed) {
                        self.own_one(one, session);
                    }
                }
                Err(Some(Status::Fenced)) if attachment == self.attachment() => self.end(),
                Err(None) => self.break_off(),
                _ => {}
            }
        }
    }

    fn own_one(self: &Rc<Self>, one: &pb::ClaimedPartition, session: u64) {
        let (tp, fence) = (tp_of(&one.topic_id, one.partition), one.fence.expect("a fence"));
        if self.own.borrow().contains_key(&tp) {
            return;
        }
        let number = self.world.ghost.borrow().tenure_of(tp, fence.number, fence.incarnation);
        let tenure = Rc::new(Tenure {
            committed: one.committed.as_ref().map(place_of),
            begins_at_start: one.begins_at_start,
            ..Tenure::new(tp, fence, number)
        });
        self.own.borrow_mut().insert(tp, Rc::clone(&tenure));
        self.process.spawn(Rc::clone(self).work(tenure, session));
    }

    /// Commits or releases one partition; whether it is done.
    async fn settle(&self, method: Method, tenure: &Rc<Tenure>, kind: Kind, place: Option<Place>) -> Option<bool> {
        let (session, attachment) = (self.session.get(), self.attachment());
        let settled = self.ask::<_, pb::CommitResponse>(method, 2 * CALL, |member| {
            if let (Some(place), Some(member)) = (place, &member) {
                let mut ghost = self.world.ghost.borrow_mut();
                ghost.send(tenure.tp, place, &member.member_id, self.who.get(), tenure.number, kind);
            }
            let commit = pb::CommitPartition {
                topic_id: tenure.tp.0.0.to_vec(),
                partition: tenure.tp.1,
                fence: Some(tenure.fence),
                place: place.map(|(epoch, position)| pb::Place { epoch, position }),
                rewind: kind == Kind::Rewind,
            };
            pb::CommitRequest { member, partitions: vec![commit] }
        });
        let settled = settled.await;
        if self.session.get() != session {
            return Some(false);
        }
        match settled {
            Ok(settled) => match settled.partitions[0].result() {
                pb::CommitResult::Lost => {
                    self.drop_tenure(tenure);
                    Some(false)
                }
                pb::CommitResult::Retry => None,
                pb::CommitResult::Gone => Some(false),
                pb::CommitResult::Ok | pb::CommitResult::Stale => Some(true),
            },
            Err(Some(Status::Fenced)) if attachment == self.attachment() => {
                self.end();
                Some(false)
            }
            Err(_) => {
                // Some clients try again on the same connection.
                if attachment == self.attachment() && !self.world.keeps_connections {
                    self.break_off();
                }
                None
            }
        }
    }

    async fn commit_all(self: Rc<Self>, session: u64) {
        while !self.is_dead(session) {
            sleep(Duration::from_millis(self.world.chance.ms(100, 600))).await;
            let owned: Vec<Rc<Tenure>> = self.own.borrow().values().cloned().collect();
            for tenure in owned {
                if tenure.is_ready.get() && !tenure.is_over() && tenure.is_dirty.replace(false) {
                    let member = Rc::clone(&self);
                    self.process.spawn(async move {
                        let place = tenure.place.get();
                        if member.settle(Method::Commit, &tenure, Kind::Commit, place).await.is_none() {
                            tenure.is_dirty.set(true);
                        }
                    });
                }
            }
        }
    }

    async fn release(self: Rc<Self>, tenure: Rc<Tenure>, session: u64) {
        while !tenure.is_idle.get() && !self.is_dead(session) {
            sleep(Duration::from_millis(20)).await;
        }
        while !tenure.is_lost.get() && !self.is_dead(session) {
            if !self.is_broken.get() {
                let place = tenure.place.get();
                if self.settle(Method::Release, &tenure, Kind::Commit, place).await.is_some() {
                    return self.drop_tenure(&tenure);
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn work(self: Rc<Self>, tenure: Rc<Tenure>, session: u64) {
        tenure.is_idle.set(false);
        if self.begin(&tenure, session).await {
            self.read(&tenure, session).await;
        }
        tenure.is_idle.set(true);
    }

    /// Finds where to go on; what the policy says is committed first.
    async fn begin(&self, tenure: &Rc<Tenure>, session: u64) -> bool {
        let world = &self.world;
        // Chosen once: were the policy asked again after a commit that was not answered, what came between would be skipped.
        let mut chosen = None;
        while !tenure.is_ready.get() {
            if tenure.is_over() || self.is_dead(session) {
                return false;
            }
            sleep(world.delay()).await;
            let Some(log) = world.log(tenure.tp) else { return false };
            match tenure.committed {
                Some(place) if place.0 == log.epoch => tenure.place.set(Some(place)),
                Some(_) => tenure.place.set(Some((log.epoch, 0))),
                None => {
                    let at_start = tenure.begins_at_start || world.is_earliest;
                    let place = *chosen.get_or_insert((log.epoch, if at_start { 0 } else { log.end }));
                    match self.settle(Method::Commit, tenure, Kind::Policy, Some(place)).await {
                        Some(true) => tenure.place.set(Some(place)),
                        Some(false) => {
                            self.drop_tenure(tenure);
                            return false;
                        }
                        None => continue,
                    }
                }
            }
            tenure.is_ready.set(true);
        }
        true
    }

    async fn read(&self, tenure: &Rc<Tenure>, session: u64) {
        let (world, chance) = (&self.world, &self.world.chance);
        while !tenure.is_over() && !self.is_dead(session) {
            sleep(world.delay() + Duration::from_millis(5)).await;
            let Some(log) = world.log(tenure.tp) else { return };
            let (epoch, position) = tenure.place.get().expect("it is ready");
            if epoch != log.epoch {
                tenure.place.set(Some((log.epoch, 0)));
                continue;
            }
            if position >= log.end {
                sleep(Duration::from_millis(chance.ms(20, 100))).await;
                continue;
            }
            for position in position..log.end.min(position + 3) {
                if tenure.is_over() || self.is_dead(session) {
                    return;
                }
                self.process_one(tenure, (epoch, position)).await;
            }
            let place = tenure.place.get().expect("it is ready");
            if chance.is(world.rewinds) && place.1 > 2 {
                let back = (place.0, place.1 - 2);
                match self.settle(Method::Commit, tenure, Kind::Rewind, Some(back)).await {
                    Some(true) => tenure.place.set(Some(back)),
                    Some(false) => {}
                    None => {
                        tenure.place.set(Some(back));
                        tenure.is_dirty.set(true);
                    }
                }
            }
        }
    }

    async fn process_one(&self, tenure: &Rc<Tenure>, place: Place) {
        let (world, chance) = (&self.world, &self.world.chance);
        let Some(id) = self.member_id() else { return };
        {
            let etcd = world.etcd.borrow();
            let mut ghost = world.ghost.borrow_mut();
            ghost.check(&etcd, &world.keys, self.number, &id, self.born, (tenure.tp, tenure.number));
        }
        if !chance.is_quiet.get() && chance.is(world.halts) {
            // A pause between the deadline's check and the delivery.
            let pause = [Duration::from_millis(100), LEASE, 2 * LEASE][chance.below(3) as usize];
            self.process.pause(Instant::now() + pause);
        }
        sleep(Duration::from_millis(chance.below(2))).await;
        world.ghost.borrow_mut().deliver(&world.etcd.borrow(), &world.keys, &id, tenure.tp, tenure.number);
        tenure.since.set(Some(Instant::now()));
        sleep(Duration::from_millis(chance.ms(5, 80))).await;
        while self.stuck_until.get() > Instant::now() {
            sleep(Duration::from_millis(100)).await;
        }
        world.ghost.borrow_mut().processed.insert((tenure.tp, place));
        tenure.since.set(None);
        tenure.place.set(Some((place.0, place.1 + 1)));
        tenure.is_dirty.set(true);
    }
}

const _: () = assert!(LIMIT.as_millis() >= LEASE.as_millis(), "a member may live on after a pause");
