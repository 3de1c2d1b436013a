//! Group calls but heartbeats and commits: each checks what the client sent, then does one thing in the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corelane_proto::ids::{Epoch, Position, TopicId};
use corelane_proto::pb;

use super::{Groups, State};
use crate::limits::{
    CLAIMS_A_TXN, CLIENT_NAME_BYTES_MAX, GROUP_MEMBERS_MAX, MEMBER_LEASE_LIFE, PARTITIONS_A_CALL_MAX, PROCESSING_MAX,
};
use crate::registry::assignment::PartitionId;
use crate::registry::group_records::OffsetRecord;
use crate::registry::groups::claims::{Basis, Claimed};
use crate::registry::groups::members::{NewMember, check_group_name};
use crate::registry::groups::subscription::Subscription;
use crate::registry::groups::targets::Step;
use crate::registry::groups::view::GroupState;
use crate::registry::groups::{GroupError, Session, hex};
use crate::registry::store::Store;
use crate::service::page::Room;

/// Two tries of one Claim call are at least so far apart.
const CLAIM_PAUSE: Duration = Duration::from_millis(30);

fn invalid(field: &'static str, message: impl Into<String>) -> GroupError {
    GroupError::Invalid { field, message: message.into() }
}

/// A topic's id as it was sent.
pub(super) fn topic_id(bytes: &[u8]) -> Result<TopicId, GroupError> {
    TopicId::try_from(bytes).map_err(|error| invalid("topic_id", error.to_string()))
}

/// Whether one call may name so many partitions.
pub(super) fn check_count(count: usize) -> Result<(), GroupError> {
    if count > PARTITIONS_A_CALL_MAX {
        return Err(GroupError::TooMany { what: "partitions in one call", limit: PARTITIONS_A_CALL_MAX });
    }
    Ok(())
}

/// The last partition of the page before, if there was one.
fn after_partition(topic: &[u8], partition: u32) -> Result<Option<PartitionId>, GroupError> {
    if topic.is_empty() { Ok(None) } else { Ok(Some((topic_id(topic)?, partition))) }
}

/// Whether no partition is named twice: a call says of each one thing.
pub(super) fn check_distinct(partitions: impl Iterator<Item = PartitionId>) -> Result<(), GroupError> {
    let mut named = BTreeSet::new();
    for partition in partitions {
        if !named.insert(partition) {
            return Err(invalid("partitions", "a partition is named twice"));
        }
    }
    Ok(())
}

fn flatten(topics: &[pb::TopicPartitions]) -> Result<Vec<PartitionId>, GroupError> {
    let mut partitions = Vec::new();
    for topic in topics {
        let id = topic_id(&topic.topic_id)?;
        partitions.extend(topic.partitions.iter().map(|partition| (id, *partition)));
    }
    Ok(partitions)
}

/// A time as the registry stores it.
pub(super) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

pub(super) fn place_of(offset: &OffsetRecord) -> pb::Place {
    pb::Place { epoch: offset.epoch.0, position: offset.position.0 }
}

impl<S: Store> Groups<S> {
    /// The life of the store, for calls of whoever is no member.
    fn incarnation(&self) -> Result<u64, GroupError> {
        let state = self.state.borrow();
        state.check_listed()?;
        Ok(state.incarnation)
    }

    pub(super) async fn join(
        &self,
        request: pb::JoinGroupRequest,
        host: &str,
    ) -> Result<pb::JoinGroupResponse, GroupError> {
        check_group_name(&request.group)?;
        let incarnation = self.incarnation()?;
        let (session, secret) = match &request.attach {
            Some(member) if member.group != request.group => {
                return Err(invalid("attach", "it is a member of another group"));
            }
            Some(member) => {
                let (id, secret) = (&member.member_id, &member.secret);
                (self.registry.attach(&member.group, id, secret, incarnation).await?, secret.clone())
            }
            None => {
                let new = self.new_member(request, host)?;
                let session = self.registry.join(&new, incarnation).await?;
                self.schedule.hurry(&new.group, self.now());
                tracing::info!(group = new.group, member = new.member, host, "a member has joined");
                (session, new.secret.to_vec())
            }
        };
        let session = self.sessions.insert(session);
        let member = pb::Member {
            group: session.group.clone(),
            member_id: session.member.clone(),
            secret,
            incarnation,
            attachment: session.attachment.revision,
        };
        Ok(pb::JoinGroupResponse { member: Some(member), lease_ms: session.lease_life.as_millis() as u32 })
    }

    fn new_member(&self, request: pb::JoinGroupRequest, host: &str) -> Result<NewMember, GroupError> {
        let subscription = Subscription::new(&request.topics, &request.pattern)?;
        if request.client_name.len() > CLIENT_NAME_BYTES_MAX {
            return Err(invalid("client_name", format!("a client's name has at most {CLIENT_NAME_BYTES_MAX} bytes")));
        }
        let or = |ms: u32, default: Duration| if ms == 0 { default } else { Duration::from_millis(ms.into()) };
        let lease_life = or(request.lease_ms, MEMBER_LEASE_LIFE);
        let (shortest, longest) = self.options.lease_life;
        if lease_life < shortest || lease_life > longest {
            return Err(invalid("lease_ms", format!("a lease's life is {shortest:?} to {longest:?}")));
        }
        let members = self.state.borrow().view.group(&request.group).map_or(0, |group| group.members.len());
        if members >= GROUP_MEMBERS_MAX {
            return Err(GroupError::TooMany { what: "members of one group", limit: GROUP_MEMBERS_MAX });
        }
        let processing_max = or(request.processing_max_ms, PROCESSING_MAX);
        Ok(NewMember {
            group: request.group,
            member: hex(&(self.options.random)()[..8]),
            secret: (self.options.random)(),
            subscription,
            client: request.client_name,
            host: host.to_owned(),
            lease_life,
            processing_max,
            release_max: or(request.release_max_ms, processing_max + lease_life),
        })
    }

    pub(super) async fn leave(&self, request: pb::LeaveGroupRequest) -> Result<pb::LeaveGroupResponse, GroupError> {
        let session = self.session(request.member.as_ref()).await?;
        self.sessions.note_leaving(&session);
        let left = self.registry.leave(&session).await;
        self.sessions.remove(&session);
        if left.is_ok() {
            self.schedule.hurry(&session.group, self.now());
            tracing::info!(group = session.group, member = session.member, "a member has left");
        }
        left.map(|()| pb::LeaveGroupResponse {})
    }

    /// Takes what is free of what is asked for, as soon as some of it is.
    pub(super) async fn claim(&self, request: pb::ClaimRequest) -> Result<pb::ClaimResponse, GroupError> {
        let partitions = flatten(&request.partitions)?;
        check_count(partitions.len())?;
        check_distinct(partitions.iter().copied())?;
        let session = self.session(request.member.as_ref()).await?;
        let wait = Duration::from_millis(request.max_wait_ms.into()).min(session.lease_life / 3);
        let until = self.now() + wait;
        let signals = self.state.borrow_mut().signals(&session.group);
        let mut claimed = BTreeMap::new();
        loop {
            let notified = signals.owners.notified();
            let (basis, free) = {
                let state = self.state.borrow();
                state.check_attached(&session)?;
                state.free(&session, &partitions, self.now())
            };
            for page in free.chunks(CLAIMS_A_TXN) {
                let results = self.registry.claim(&session, basis, page).await?;
                let settled = page.iter().zip(results).filter(|(_, result)| *result != Claimed::NotYet);
                claimed.extend(settled.map(|(partition, result)| (*partition, result)));
            }
            if !claimed.is_empty() || self.now() >= until {
                return Ok(self.claim_response(&session, &partitions, &claimed));
            }
            // Nothing more is asked of the registry before the view has changed.
            if self.changed(notified, until).await {
                self.sleep(CLAIM_PAUSE).await;
            }
        }
    }

    fn claim_response(
        &self,
        session: &Session,
        partitions: &[PartitionId],
        claimed: &BTreeMap<PartitionId, Claimed>,
    ) -> pb::ClaimResponse {
        let state = self.state.borrow();
        let record = state.view.group(&session.group).and_then(|group| group.record.as_ref());
        let answer = |partition: &PartitionId| {
            let (topic, number) = *partition;
            let mut answer =
                pb::ClaimedPartition { topic_id: topic.0.to_vec(), partition: number, ..Default::default() };
            match claimed.get(partition) {
                Some(Claimed::Yes { fence, generation, committed }) => {
                    answer.set_result(pb::ClaimResult::Claimed);
                    let (incarnation, number) = (fence.incarnation, fence.created);
                    answer.fence = Some(pb::Fence { incarnation, number, generation: *generation });
                    answer.committed = committed.as_ref().map(place_of);
                    let first = record.and_then(|record| record.record.topics.get(&topic).copied());
                    answer.begins_at_start = partition.1 >= first.unwrap_or(0);
                }
                Some(Claimed::Gone) => answer.set_result(pb::ClaimResult::Gone),
                Some(Claimed::NotYet) | None => {}
            }
            answer
        };
        pb::ClaimResponse { partitions: partitions.iter().map(answer).collect() }
    }

    pub(super) async fn committed(&self, request: pb::CommittedRequest) -> Result<pb::CommittedResponse, GroupError> {
        check_group_name(&request.group)?;
        self.incarnation()?;
        let wanted: BTreeSet<PartitionId> = flatten(&request.partitions)?.into_iter().collect();
        let after = after_partition(&request.after_topic_id, request.after_partition)?;
        let mut room = Room::new(request.limit);
        let positions_wanted = if wanted.is_empty() { room.entries_wanted() } else { usize::MAX };
        let found = self.registry.committed(&request.group, after, positions_wanted).await?;
        let found = found.into_iter().filter(|(partition, _)| wanted.is_empty() || wanted.contains(partition));
        let partitions = found.map(|((topic, partition), offset)| pb::CommittedPartition {
            topic_id: topic.0.to_vec(),
            partition,
            place: Some(place_of(&offset)),
            time_ms: offset.time_ms,
        });
        let (partitions, more) = room.fill(partitions);
        Ok(pb::CommittedResponse { partitions, more })
    }

    pub(super) fn list(&self, request: &pb::ListGroupsRequest) -> Result<pb::ListGroupsResponse, GroupError> {
        self.incarnation()?;
        let state = self.state.borrow();
        // No group has an empty name, so that a request without one begins with the first.
        let behind = state.view.groups.range::<str, _>((Excluded(request.after.as_str()), Unbounded));
        let (groups, more) = Room::new(request.limit).fill(behind.filter_map(|(group, _)| state.summary(group)));
        Ok(pb::ListGroupsResponse { groups, more })
    }

    pub(super) async fn describe(
        &self,
        request: pb::DescribeGroupRequest,
    ) -> Result<pb::DescribeGroupResponse, GroupError> {
        check_group_name(&request.group)?;
        self.incarnation()?;
        let after = after_partition(&request.after_topic_id, request.after_partition)?;
        let positions_wanted = Room::new(request.limit).entries_wanted();
        let committed = self.registry.committed(&request.group, after, positions_wanted).await?.into_iter().collect();
        let target_is_due = self.decide(&request.group) != Step::Nothing;
        let described = self.state.borrow().describe(&request, after, &committed);
        let described = described.ok_or(GroupError::Unknown { group: request.group })?;
        Ok(pb::DescribeGroupResponse { target_is_due, ..described })
    }

    pub(super) async fn reset(&self, request: pb::ResetGroupRequest) -> Result<pb::ResetGroupResponse, GroupError> {
        check_group_name(&request.group)?;
        check_count(request.partitions.len())?;
        let incarnation = self.incarnation()?;
        let mut positions = BTreeMap::new();
        for one in &request.partitions {
            let place = one.place.ok_or_else(|| invalid("place", "a position to go to is missing"))?;
            let (epoch, position) = (Epoch(place.epoch), Position(place.position));
            let offset = OffsetRecord { epoch, position, fence: None, time_ms: now_ms() };
            if positions.insert((topic_id(&one.topic_id)?, one.partition), offset).is_some() {
                return Err(invalid("partitions", "a partition is named twice"));
            }
        }
        let positions: Vec<(PartitionId, OffsetRecord)> = positions.into_iter().collect();
        for (partition, offset) in positions.iter().filter(|(_, offset)| offset.epoch > Epoch::FIRST) {
            self.check_reached(*partition, offset.epoch).await?;
        }
        let done = self.registry.reset(incarnation, &request.group, &positions).await?;
        tracing::info!(group = request.group, partitions = done.len(), "positions of a group were set");
        let done: BTreeMap<PartitionId, bool> =
            positions.into_iter().map(|(partition, _)| partition).zip(done).collect();
        let outcome = |one: &pb::CommitPartition| {
            let exists = topic_id(&one.topic_id).is_ok_and(|id| done.get(&(id, one.partition)) == Some(&true));
            let result = if exists { pb::CommitResult::Ok } else { pb::CommitResult::Gone };
            let (topic_id, partition) = (one.topic_id.clone(), one.partition);
            pb::CommitOutcome { topic_id, partition, result: result.into(), committed: None }
        };
        Ok(pb::ResetGroupResponse { partitions: request.partitions.iter().map(outcome).collect() })
    }

    pub(super) async fn delete(&self, request: pb::DeleteGroupRequest) -> Result<pb::DeleteGroupResponse, GroupError> {
        check_group_name(&request.group)?;
        self.registry.delete(self.incarnation()?, &request.group).await?;
        tracing::info!(group = request.group, "a group was deleted");
        Ok(pb::DeleteGroupResponse {})
    }
}

impl State {
    /// What of these the target gives to a member and nobody else owns, as far as was seen, and the target it rests on.
    fn free(&self, session: &Session, partitions: &[PartitionId], now: Duration) -> (Basis, Vec<PartitionId>) {
        let group = self.view.group(&session.group);
        let Some((group, record)) = group.and_then(|group| Some((group, group.record.as_ref()?))) else {
            return (Basis { generation: 0, revision: 0 }, Vec::new());
        };
        let basis = Basis { generation: record.record.generation, revision: record.revision };
        if self.are_claims_paused(now) {
            return (basis, Vec::new());
        }
        let is_free = |partition: &PartitionId| {
            group.target.get(partition) == Some(&session.member)
                && group.owners.get(partition).is_none_or(|owner| owner.record.member == session.member)
        };
        (basis, partitions.iter().filter(|partition| is_free(partition)).copied().collect())
    }

    fn summary(&self, group: &str) -> Option<pb::GroupSummary> {
        let state = self.view.group(group)?;
        let record = &state.record.as_ref()?.record;
        Some(pb::GroupSummary {
            group: group.to_owned(),
            kind: record.kind.clone(),
            generation: record.generation,
            members: state.members.len() as u32,
            partitions: state.target.len() as u32,
        })
    }

    /// A page of a group: its members behind the last one told, then its partitions, or its partitions behind `after` only.
    fn describe(
        &self,
        request: &pb::DescribeGroupRequest,
        after: Option<PartitionId>,
        committed: &BTreeMap<PartitionId, OffsetRecord>,
    ) -> Option<pb::DescribeGroupResponse> {
        let (group, summary) = (self.view.group(&request.group)?, self.summary(&request.group)?);
        let mut room = Room::new(request.limit);
        let members = group.members.range::<str, _>((Excluded(request.after_member.as_str()), Unbounded));
        let members = members.filter(|_| after.is_none()).map(|(id, member)| pb::MemberDetail {
            member_id: id.clone(),
            client_name: member.record.client.clone(),
            host: member.record.host.clone(),
            topics: member.record.topics.iter().map(|name| name.as_str().to_owned()).collect(),
            pattern: member.record.pattern.clone().unwrap_or_default(),
        });
        let (members, more_members) = room.fill(members);
        let behind = (after.map_or(Unbounded, Excluded), Unbounded);
        // Of each as many as may be told, and one more: those of lists that end earlier are not missed for it.
        let wanted = room.entries_wanted();
        let named: BTreeSet<&PartitionId> = (group.target.range(behind).map(|(id, _)| id).take(wanted))
            .chain(group.owners.range(behind).map(|(id, _)| id).take(wanted))
            .chain(committed.keys())
            .collect();
        let described = named.into_iter().map(|partition| self.describe_partition(group, *partition, committed));
        let (mut partitions, more_partitions) = if more_members { (Vec::new(), true) } else { room.fill(described) };
        if request.limit == 0 {
            partitions.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        }
        let (group, more) = (Some(summary), more_members || more_partitions);
        Some(pb::DescribeGroupResponse { group, members, partitions, more, ..Default::default() })
    }

    fn describe_partition(
        &self,
        group: &GroupState,
        partition: PartitionId,
        committed: &BTreeMap<PartitionId, OffsetRecord>,
    ) -> pb::GroupPartition {
        let (topic, number) = partition;
        let owner = group.owners.get(&partition);
        let offset = committed.get(&partition);
        pb::GroupPartition {
            topic_id: topic.0.to_vec(),
            topic: self.topics.name_of(topic).map_or_else(String::new, |name| name.as_str().to_owned()),
            partition: number,
            target: group.target.get(&partition).cloned().unwrap_or_default(),
            owner: owner.map_or_else(String::new, |owner| owner.record.member.clone()),
            fence: owner.map(|owner| pb::Fence {
                incarnation: self.incarnation,
                number: owner.created,
                generation: owner.record.generation,
            }),
            committed: offset.map(place_of),
            committed_at_ms: offset.map_or(0, |offset| offset.time_ms),
        }
    }
}
