//! Heartbeats: one keep-alive in the registry for each one received, answered only once it came back; then a long poll
//! for the member's next target. The limits of members that are stuck take effect here: their lease is renewed no more.

use std::time::Duration;

use corelane_proto::pb;

use super::{Groups, State};
use crate::registry::assignment::PartitionId;
use crate::registry::group_records::OwnerRecord;
use crate::registry::groups::overdue::Duty;
use crate::registry::groups::view::GroupState;
use crate::registry::groups::{DISPLACED, GroupError, LEASE_ENDED, Session};
use crate::registry::keys::Key;
use crate::registry::records::Record as _;
use crate::registry::store::{Store, StoreError};

const HELD_TOO_LONG: GroupError =
    GroupError::Fenced("the member has held one message for longer than its processing limit");
const NOT_RELEASED: GroupError =
    GroupError::Fenced("the member has not released a partition that another one shall own, within its limit");
const NOT_CLAIMED: GroupError =
    GroupError::Fenced("the member has not claimed a partition that it shall own, within its limit");

impl State {
    /// Whether a session is still the member's last one, as far as was seen.
    pub(super) fn check_attached(&self, session: &Session) -> Result<(), GroupError> {
        self.check_listed()?;
        self.check_life(session.attachment.incarnation)?;
        match self.view.member(&session.group, &session.member) {
            Some(member) if member.revision > session.attachment.revision => Err(DISPLACED),
            None if self.view.revision >= session.attachment.revision => Err(LEASE_ENDED),
            _ => Ok(()),
        }
    }

    /// The group, once the view has come as far as the session's attachment.
    fn group_for(&self, session: &Session) -> Option<&GroupState> {
        let group = self.view.group(&session.group)?;
        (self.view.revision >= session.attachment.revision).then_some(group)
    }
}

impl<S: Store> Groups<S> {
    pub(super) async fn heartbeat(&self, request: pb::HeartbeatRequest) -> Result<pb::HeartbeatResponse, GroupError> {
        let session = self.session(request.member.as_ref()).await?;
        self.state.borrow().check_attached(&session)?;
        self.check_limits(&session, Duration::from_millis(request.oldest_message_age_ms.into())).await?;
        let life = match self.registry.store.keep_alive(session.lease).await {
            Ok(life) => life,
            Err(StoreError::LeaseGone) => return Err(LEASE_ENDED),
            Err(error) => return Err(error.into()),
        };
        let wait = Duration::from_millis(request.max_wait_ms.into()).min(session.lease_life / 3);
        let until = self.now() + wait;
        let signals = self.state.borrow_mut().signals(&session.group);
        loop {
            let notified = signals.target.notified();
            let is_late = self.now() >= until;
            {
                let state = self.state.borrow();
                state.check_attached(&session)?;
                match state.group_for(&session) {
                    Some(group) if is_late || group.generation() != request.generation => {
                        return Ok(response(&state, group, &session, life));
                    }
                    None if is_late => return Err(GroupError::Behind),
                    _ => {}
                }
            }
            self.changed(notified, until).await;
        }
    }

    /// A member that does not do what it should gets no more time. What it owes is looked up in the registry first: this
    /// broker's view may be behind.
    async fn check_limits(&self, session: &Session, message_age: Duration) -> Result<(), GroupError> {
        if message_age > session.processing_max {
            return Err(HELD_TOO_LONG);
        }
        let (overdue, seen) = {
            let (now, state) = (self.now(), self.state.borrow());
            let overdue = state.overdue.of(&session.group, &session.member, now, session.release_max);
            let group = state.view.group(&session.group);
            // What was settled since the last look is not owed any more.
            let overdue = overdue.filter(|(partition, duty)| {
                group.is_some_and(|group| group.owes(&session.member, partition) == Some(*duty))
            });
            (overdue, group.and_then(|group| group.record.as_ref()).map(|record| record.revision))
        };
        let Some(((topic, partition), duty)) = overdue else { return Ok(()) };
        let (store, keys) = (&self.registry.store, &self.registry.keys);
        let group = store.get(&keys.key(&Key::Group(session.group.clone()))).await?;
        let owner = store.get(&keys.key(&Key::Owner(session.group.clone(), topic, partition))).await?;
        let owner = owner.and_then(|entry| OwnerRecord::from_bytes(&entry.value).ok());
        let is_current = group.map(|entry| entry.mod_revision) == seen;
        match duty {
            Duty::Release if is_current && owner.as_ref().is_some_and(|owner| owner.member == session.member) => {
                Err(NOT_RELEASED)
            }
            Duty::Claim if is_current && owner.is_none() => Err(NOT_CLAIMED),
            _ => Ok(()),
        }
    }
}

fn response(state: &State, group: &GroupState, session: &Session, life: Duration) -> pb::HeartbeatResponse {
    let target = group.target_of.get(&session.member).map_or(&[][..], Vec::as_slice);
    let held = group.held_by.get(&session.member);
    let mut held_by_topic: Vec<pb::HeldPartitions> = Vec::new();
    for partition in held.into_iter().flatten() {
        let Some(owner) = group.owners.get(partition) else { continue };
        let (topic, number) = partition;
        if held_by_topic.last().is_none_or(|last| last.topic_id != topic.0) {
            held_by_topic.push(pb::HeldPartitions { topic_id: topic.0.to_vec(), ..Default::default() });
        }
        let last = held_by_topic.last_mut().expect("it was made");
        last.partitions.push(*number);
        last.fences.push(owner.created);
        last.generations.push(owner.record.generation);
    }
    pb::HeartbeatResponse {
        lease_ms: u32::try_from(life.as_millis()).unwrap_or(u32::MAX),
        generation: group.generation(),
        target: by_topic(state, target),
        held: held_by_topic,
        revision: state.view.revision,
    }
}

/// Partitions in their order, as they are sent.
fn by_topic(state: &State, partitions: &[PartitionId]) -> Vec<pb::TopicPartitions> {
    let mut topics: Vec<pb::TopicPartitions> = Vec::new();
    for (topic, partition) in partitions {
        if topics.last().is_none_or(|last| last.topic_id != topic.0) {
            let name = state.topics.name_of(*topic).map_or_else(String::new, |name| name.as_str().to_owned());
            topics.push(pb::TopicPartitions { topic_id: topic.0.to_vec(), topic: name, partitions: Vec::new() });
        }
        topics.last_mut().expect("it was made").partitions.push(*partition);
    }
    topics
}
