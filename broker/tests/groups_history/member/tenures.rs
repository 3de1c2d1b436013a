//! A member's partitions: claimed, read from where the group stands, committed, released.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;

use super::super::clock::{Instant, sleep};
use super::super::ghost::{Kind, Place, Tp};
use super::super::world::{CALL, LEASE};
use super::{Member, place_of, tp_of};

/// One ownership of a partition.
pub(crate) struct Tenure {
    pub(super) tp: Tp,
    pub(super) fence: pb::Fence,
    pub(super) number: u64,
    pub(super) committed: Option<Place>,
    pub(super) begins_at_start: bool,
    pub(crate) place: Cell<Option<Place>>,
    pub(crate) is_ready: Cell<bool>,
    pub(super) is_dirty: Cell<bool>,
    pub(super) is_idle: Cell<bool>,
    pub(super) must_stop: Cell<bool>,
    pub(super) is_lost: Cell<bool>,
    /// When the message in hand was delivered.
    pub(super) since: Cell<Option<Instant>>,
}

impl Tenure {
    pub(super) fn new(tp: Tp, fence: pb::Fence, number: u64) -> Self {
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

    pub(super) fn is_over(&self) -> bool {
        self.must_stop.get() || self.is_lost.get()
    }
}

impl Member {
    pub(super) async fn claim_all(self: Rc<Self>, session: u64) {
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
    pub(super) async fn settle(
        &self,
        method: Method,
        tenure: &Rc<Tenure>,
        kind: Kind,
        place: Option<Place>,
    ) -> Option<bool> {
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

    pub(super) async fn commit_all(self: Rc<Self>, session: u64) {
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

    pub(super) async fn release(self: Rc<Self>, tenure: Rc<Tenure>, session: u64) {
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

    pub(super) async fn work(self: Rc<Self>, tenure: Rc<Tenure>, session: u64) {
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
