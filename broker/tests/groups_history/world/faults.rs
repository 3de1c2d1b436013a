//! What goes wrong in a history: with brokers, members, the ways between, the registry and its topics; and its end.

use std::rc::Rc;
use std::time::Duration;

use corelane_broker::registry::records::{Record as _, TopicRecord};
use corelane_broker::registry::store::{Op, Txn};
use corelane_proto::frame::Method;
use corelane_proto::pb;
use prost::Message;

use super::super::clock::Instant;
use super::super::ghost::Tp;
use super::super::member::Member;
use super::super::store::Link;
use super::{BrokerSlot, GROUP, LEASE, Log, World};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    PauseBroker,
    KillBroker,
    Cut,
    SlowWatch,
    PauseMember,
    KillMember,
    Leave,
    CloneMember,
    Stuck,
    AddPartition,
    Recreate,
    AcceptLoss,
    Reset,
    AllLeave,
    NewMember,
    SlowNet,
    Delete,
    Visit,
    ExpireAll,
    Restore,
}

use Fault::{
    AcceptLoss, AddPartition, AllLeave, CloneMember, Cut, Delete, ExpireAll, KillBroker, KillMember, Leave, NewMember,
    PauseBroker, PauseMember, Recreate, Reset, Restore, SlowNet, SlowWatch, Stuck, Visit,
};

pub(super) const OFTEN: [Fault; 18] = [
    PauseBroker,
    KillBroker,
    Cut,
    SlowWatch,
    PauseMember,
    KillMember,
    Leave,
    CloneMember,
    Stuck,
    AddPartition,
    Recreate,
    AcceptLoss,
    Reset,
    AllLeave,
    NewMember,
    SlowNet,
    Delete,
    Visit,
];

impl World {
    pub(super) fn happen(self: &Rc<Self>, fault: Fault) {
        let (chance, now) = (&self.chance, Instant::now());
        let ms = Duration::from_millis;
        let live = self.live();
        let member = (!live.is_empty()).then(|| Rc::clone(&live[chance.below(live.len() as u64) as usize]));
        let number = chance.below(self.brokers.borrow().len() as u64) as usize;
        match fault {
            PauseBroker => {
                self.broker(number).0.pause(now + chance.one(&[ms(200), LEASE / 2, LEASE, 2 * LEASE]));
            }
            KillBroker => {
                let (process, _) = self.broker(number);
                if process.is_alive.get() {
                    process.kill();
                    let (known, history) = (self.incarnation(), self.etcd.borrow().history);
                    self.later(chance.one(&[ms(200), LEASE]), move |world| {
                        let store = world.brokers.borrow()[number].0.store.again();
                        let was_put_back = world.etcd.borrow().history != history;
                        let broker = world.start_broker(store, was_put_back.then_some(known));
                        world.brokers.borrow_mut()[number] = BrokerSlot(broker);
                    });
                }
            }
            Cut => {
                let link = self.link(number);
                link.is_cut.set(true);
                self.later(chance.one(&[ms(200), LEASE / 2, 2 * LEASE]), move |_| link.mend());
            }
            SlowWatch => {
                let link = self.link(number);
                link.slow.set(chance.one(&[5, 20]));
                self.later(chance.one(&[LEASE, 2 * LEASE]), move |_| link.slow.set(1));
            }
            PauseMember => {
                let pauses = [ms(100), LEASE / 2, LEASE, LEASE + ms(200), 2 * LEASE];
                if let Some(member) = &member {
                    member.process.pause(now + chance.one(&pauses));
                }
            }
            KillMember => {
                if let Some(member) = &member {
                    member.process.kill();
                }
                self.refill(chance.one(&[ms(100), LEASE, 2 * LEASE]));
            }
            NewMember if live.len() < 4 => drop(self.new_member()),
            Visit if live.len() < 4 => {
                let visitor = self.new_member();
                self.later(ms(chance.ms(300, 1_500)), move |_| visitor.is_leaving.set(true));
            }
            NewMember | Visit => {}
            Leave => {
                if let Some(member) = &member {
                    member.is_leaving.set(true);
                }
                self.refill(chance.one(&[ms(100), LEASE]));
            }
            CloneMember => self.clone_member(&live),
            Stuck => {
                let until = now + chance.one(&[LEASE, 3 * LEASE, 5 * LEASE]);
                if let Some(member) = &member {
                    member.stuck_until.set(until);
                }
            }
            AllLeave => self.all_leave(&live),
            SlowNet => self.slow_until.set(now + chance.one(&[LEASE, 2 * LEASE])),
            Reset => self.reset(),
            ExpireAll => {
                self.ghost.borrow_mut().expire_all();
                self.etcd.borrow_mut().expire_all();
            }
            Restore => self.restore(),
            AddPartition | Recreate | Delete | AcceptLoss => self.change_topics(fault),
        }
    }

    fn link(&self, number: usize) -> Rc<Link> {
        Rc::clone(&self.brokers.borrow()[number].0.store.link)
    }

    fn clone_member(self: &Rc<Self>, live: &[Rc<Member>]) {
        let joined: Vec<&Rc<Member>> = live
            .iter()
            .filter(|member| member.member_id().is_some() && member.process.paused_until.get() <= Instant::now())
            .collect();
        if joined.is_empty() || live.len() >= 5 {
            return;
        }
        let member = joined[self.chance.below(joined.len() as u64) as usize];
        self.ghost.borrow_mut().cloned.insert(member.member_id().expect("it has joined"));
        let number = self.members.borrow().len() as u32;
        let twin = member.clone_process(number);
        self.members.borrow_mut().push(twin);
    }

    fn all_leave(self: &Rc<Self>, live: &[Rc<Member>]) {
        for member in live {
            if self.chance.is(0.7) {
                member.is_leaving.set(true);
            } else {
                member.process.kill();
            }
        }
        for i in 0..4 {
            let after = self.chance.one(&[Duration::from_millis(300), LEASE]);
            self.later(after + Duration::from_millis(200 * i) + LEASE / 2, Self::reset);
        }
        for _ in 0..self.chance.ms(2, 3) {
            self.refill(self.chance.one(&[Duration::from_millis(100), LEASE, 2 * LEASE]));
        }
    }

    fn reset(self: &Rc<Self>) {
        let logs: Vec<(Tp, Log)> = self.logs.borrow().iter().map(|(tp, log)| (*tp, *log)).collect();
        if logs.is_empty() {
            return;
        }
        let ((topic, partition), log) = self.chance.one(&logs);
        let position = self.chance.one(&[0, log.end / 2, log.end]);
        let place = Some(pb::Place { epoch: log.epoch, position });
        let one = pb::CommitPartition { topic_id: topic.0.to_vec(), partition, place, ..Default::default() };
        let request = pb::ResetGroupRequest { group: GROUP.to_owned(), partitions: vec![one] };
        let (process, groups) = self.broker(self.chance.below(self.brokers.borrow().len() as u64) as usize);
        let call = async move { drop(groups.call(Method::ResetGroup, &request.encode_to_vec(), "operator").await) };
        process.spawn(call);
    }

    fn change_topics(self: &Rc<Self>, fault: Fault) {
        if fault == AcceptLoss {
            let tps: Vec<Tp> = self.logs.borrow().keys().copied().collect();
            if !tps.is_empty() {
                let tp = self.chance.one(&tps);
                let epoch = self.logs.borrow()[&tp].epoch + 1;
                self.write(&Txn::new().then(self.partition_put(tp, epoch)));
                self.logs.borrow_mut().insert(tp, Log { epoch, end: 0 });
            }
            return;
        }
        let Some((name, record)) = self.some_topic() else { return };
        if fault == AddPartition {
            if record.partitions <= 4 {
                let tp = (record.topic_id, record.partitions);
                self.birth(tp, name.as_str());
                let more = TopicRecord { partitions: record.partitions + 1, ..record };
                self.write(
                    &Txn::new().then(self.partition_put(tp, 1)).put(self.topic_key(name.as_str()), more.to_bytes()),
                );
            }
            return;
        }
        let of_topic = self.keys.partitions_of(record.topic_id);
        self.write(&Txn::new().delete(self.topic_key(name.as_str())).then(Op::DeletePrefix(of_topic)));
        self.logs.borrow_mut().retain(|(topic, _), _| *topic != record.topic_id);
        if fault == Recreate {
            let partitions = self.chance.ms(1, 3) as u32;
            let after = self.chance.one(&[Duration::ZERO, Duration::from_millis(100), LEASE]);
            self.later(after, move |world| {
                if world.topics().iter().all(|(other, _)| *other != name) {
                    world.create(name.as_str(), partitions);
                }
            });
        }
    }

    fn restore(&self) {
        let (mut etcd, mut ghost) = (self.etcd.borrow_mut(), self.ghost.borrow_mut());
        if !etcd.is_saved() || self.chance.is(0.3) {
            etcd.save();
            ghost.save();
            return;
        }
        etcd.restore(self.chance.is(0.3));
        self.was_restored.set(true);
        ghost.restore(&etcd, &self.keys);
    }

    /// Everything is well from now on.
    pub(super) fn heal(self: &Rc<Self>) {
        self.chance.is_quiet.set(true);
        let now = Instant::now();
        for broker in &*self.brokers.borrow() {
            broker.0.process.paused_until.set(now);
            broker.0.store.link.slow.set(1);
            broker.0.store.link.mend();
        }
        for member in self.live() {
            member.process.paused_until.set(now);
            member.stuck_until.set(now);
        }
        while self.live().iter().filter(|member| !member.is_leaving.get()).count() < 2 {
            self.new_member();
        }
    }
}
