//! A member as a client should be: it joins, attaches through another broker when one fails it, claims, delivers, commits,
//! releases, leaves; and never delivers past its deadline. Its process may be paused at every step, killed, or cloned.

mod tenures;

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
pub(crate) use tenures::Tenure;

/// A call's end other than OK; `None`: no broker answered, or could answer.
type Refused = Option<Status>;

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
}

const _: () = assert!(LIMIT.as_millis() >= LEASE.as_millis(), "a member may live on after a pause");
