//! The group side of the broker for tests: one group, on the rules of the protocol, as small as they go. A test may say who
//! shall own what; else the partitions are dealt out in turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;
use prost::Message;
use tokio::sync::Notify;

use super::{Answer, State, ok, refuse};

/// A partition: topic id and number.
pub(crate) type Key = (Vec<u8>, u32);

#[derive(Default)]
pub(crate) struct Group {
    pub(crate) lease_ms: u32,
    incarnation: u64,
    pub(crate) revision: u64,
    pub(crate) generation: u64,
    joined: u64,
    /// Topics and attachment of each.
    pub(crate) members: BTreeMap<String, (Vec<String>, u64)>,
    pub(crate) owners: BTreeMap<Key, (String, pb::Fence)>,
    pub(crate) committed: BTreeMap<Key, pb::Place>,
    /// Who shall own what, if the test says so.
    pub(crate) given: Option<BTreeMap<String, Vec<Key>>>,
    /// Partitions that came after the group.
    pub(crate) begin_at_start: Vec<Key>,
    /// The ages of messages in hand that heartbeats told.
    pub(crate) ages_ms: Vec<u32>,
    /// Every commit and release that was asked for, with the position.
    pub(crate) asked: Vec<(Method, Key, Option<u64>)>,
    /// The next commit of each of these is answered so.
    pub(crate) outcomes: Vec<pb::CommitResult>,
}

impl Group {
    pub(crate) fn new() -> Self {
        Self { lease_ms: 10_000, incarnation: 1, generation: 1, ..Self::default() }
    }

    fn attach(&mut self, member_id: &str) -> pb::JoinGroupResponse {
        self.revision += 1;
        let attachment = self.revision;
        self.members.get_mut(member_id).unwrap().1 = attachment;
        let member = pb::Member {
            group: "g".into(),
            member_id: member_id.into(),
            secret: vec![1; 16],
            incarnation: self.incarnation,
            attachment,
        };
        pb::JoinGroupResponse { member: Some(member), lease_ms: self.lease_ms }
    }

    /// As if its lease had run out.
    pub(crate) fn expire(&mut self, member_id: &str) {
        self.members.remove(member_id);
        self.owners.retain(|_, (owner, _)| owner != member_id);
        self.generation += 1;
    }

    pub(crate) fn expire_all_but_the_newest(&mut self) {
        let newest = format!("m{}", self.joined);
        let others: Vec<String> = self.members.keys().filter(|id| **id != newest).cloned().collect();
        for other in others {
            self.expire(&other);
        }
    }

    fn fenced(&self, member: Option<&pb::Member>) -> Option<Answer> {
        let member = member.expect("every call of a member says who speaks");
        match self.members.get(&member.member_id) {
            Some((_, attachment)) if *attachment == member.attachment => None,
            _ => Some(refuse(Status::Fenced, pb::Error { message: "the lease ran out".into(), ..Default::default() })),
        }
    }
}

impl State {
    fn target(&self, member_id: &str) -> Vec<Key> {
        if let Some(given) = &self.group.given {
            return given.get(member_id).cloned().unwrap_or_default();
        }
        let rank = self.group.members.keys().position(|id| id == member_id).unwrap_or_default();
        let count = self.group.members.len();
        let Some((topics, _)) = self.group.members.get(member_id) else { return Vec::new() };
        let mut keys: Vec<Key> = Vec::new();
        for (name, topic) in &self.topics {
            if topics.contains(name) || topics.is_empty() {
                keys.extend((0..topic.logs.len() as u32).map(|partition| (topic.id.to_vec(), partition)));
            }
        }
        keys.sort();
        keys.into_iter().enumerate().filter(|(index, _)| index % count == rank).map(|(_, key)| key).collect()
    }

    fn heartbeat(&self, member_id: &str) -> pb::HeartbeatResponse {
        let target = self.target(member_id).into_iter().map(|(topic_id, partition)| {
            let named = self.topics.iter().find(|(_, topic)| topic.id[..] == topic_id[..]);
            let topic = named.map(|(name, _)| name.clone()).unwrap_or_default();
            pb::TopicPartitions { topic_id, topic, partitions: vec![partition] }
        });
        let owned = self.group.owners.iter().filter(|(_, (owner, _))| owner == member_id);
        let held = owned.map(|((topic_id, partition), (_, fence))| pb::HeldPartitions {
            topic_id: topic_id.clone(),
            partitions: vec![*partition],
            fences: vec![fence.number],
            generations: vec![fence.generation],
        });
        pb::HeartbeatResponse {
            lease_ms: self.group.lease_ms,
            generation: self.group.generation,
            target: target.collect(),
            held: held.collect(),
            revision: self.group.revision,
        }
    }

    /// Three groups, of which only `g` is more than a name.
    fn list(&self, request: &pb::ListGroupsRequest) -> pb::ListGroupsResponse {
        let names = ["a", "g", "z"].into_iter().filter(|name| *name > request.after.as_str());
        let mut groups: Vec<pb::GroupSummary> =
            names.map(|name| pb::GroupSummary { group: name.to_owned(), ..Default::default() }).collect();
        let more = self.tells_pages_of_one && request.limit > 0 && groups.len() > 1;
        groups.truncate(if more { 1 } else { usize::MAX });
        pb::ListGroupsResponse { groups, more }
    }

    fn describe(&self, request: &pb::DescribeGroupRequest) -> pb::DescribeGroupResponse {
        let begins = request.after_topic_id.is_empty();
        let after = (request.after_topic_id.clone(), request.after_partition);
        let members = self.group.members.keys().filter(|id| begins && **id > request.after_member);
        let mut members: Vec<pb::MemberDetail> =
            members.map(|id| pb::MemberDetail { member_id: id.clone(), ..Default::default() }).collect();
        let committed = self.group.committed.iter().filter(|(key, _)| begins || **key > after);
        let mut partitions: Vec<pb::GroupPartition> = committed
            .map(|((topic_id, partition), place)| pb::GroupPartition {
                topic_id: topic_id.clone(),
                // By name they stand the other way round than by id.
                topic: format!("t{}", u8::MAX - topic_id[0]),
                partition: *partition,
                committed: Some(*place),
                ..Default::default()
            })
            .collect();
        let more = self.tells_pages_of_one && request.limit > 0 && members.len() + partitions.len() > 1;
        if more {
            members.truncate(1);
            partitions.truncate(1 - members.len());
        }
        let generation = self.group.generation;
        let group = Some(pb::GroupSummary { group: request.group.clone(), generation, ..Default::default() });
        pb::DescribeGroupResponse { group, members, partitions, more, ..Default::default() }
    }

    fn claim(&mut self, member_id: &str, asked: &[pb::TopicPartitions]) -> pb::ClaimResponse {
        let target = self.target(member_id);
        let mut partitions = Vec::new();
        for of_topic in asked {
            for &partition in &of_topic.partitions {
                let key = (of_topic.topic_id.clone(), partition);
                let is_free = !self.group.owners.contains_key(&key) && target.contains(&key);
                if is_free {
                    self.group.revision += 1;
                    let fence = pb::Fence {
                        incarnation: self.group.incarnation,
                        number: self.group.revision,
                        generation: self.group.generation,
                    };
                    self.group.owners.insert(key.clone(), (member_id.to_owned(), fence));
                }
                let fence =
                    self.group.owners.get(&key).filter(|(owner, _)| owner == member_id).map(|(_, fence)| *fence);
                let result = if fence.is_some() { pb::ClaimResult::Claimed } else { pb::ClaimResult::Retry };
                partitions.push(pb::ClaimedPartition {
                    topic_id: key.0.clone(),
                    partition,
                    result: result.into(),
                    fence,
                    committed: self.group.committed.get(&key).copied(),
                    begins_at_start: self.group.begin_at_start.contains(&key),
                });
            }
        }
        pb::ClaimResponse { partitions }
    }

    fn commit(&mut self, method: Method, member_id: &str, commit: &pb::CommitPartition) -> pb::CommitOutcome {
        use pb::CommitResult::{Lost, Ok, Stale};
        let key = (commit.topic_id.clone(), commit.partition);
        self.group.asked.push((method, key.clone(), commit.place.map(|place| place.position)));
        let outcome = |result: pb::CommitResult, committed| pb::CommitOutcome {
            topic_id: commit.topic_id.clone(),
            partition: commit.partition,
            result: result.into(),
            committed,
        };
        if let Some(result) = self.group.outcomes.pop() {
            return outcome(result, None);
        }
        let fence = commit.fence.unwrap();
        if self.group.owners.get(&key) != Some(&(member_id.to_owned(), fence)) {
            return outcome(Lost, None);
        }
        let before = self.group.committed.get(&key).copied();
        let order = |place: &pb::Place| (place.epoch, place.position);
        let is_stale =
            !commit.rewind && commit.place.is_some() && before.map(|it| order(&it)) > commit.place.map(|it| order(&it));
        if let (Some(place), false) = (commit.place, is_stale) {
            self.group.committed.insert(key.clone(), place);
        }
        if method == Method::Release {
            self.group.owners.remove(&key);
        }
        if is_stale { outcome(Stale, before) } else { outcome(Ok, None) }
    }
}

/// Answers a call of a group; long polls wait without holding anything up.
pub(crate) async fn answer(state: Arc<Mutex<State>>, changed: Arc<Notify>, method: Method, proto: Vec<u8>) -> Answer {
    match method {
        Method::JoinGroup => {
            let request = pb::JoinGroupRequest::decode(&proto[..]).unwrap();
            let mut state = state.lock().unwrap();
            let member_id = match request.attach {
                Some(member) if !state.group.members.contains_key(&member.member_id) => {
                    return refuse(Status::Fenced, pb::Error { message: "it is gone".into(), ..Default::default() });
                }
                Some(member) => member.member_id,
                None => {
                    state.group.joined += 1;
                    state.group.generation += 1;
                    let member_id = format!("m{}", state.group.joined);
                    state.group.members.insert(member_id.clone(), (request.topics, 0));
                    member_id
                }
            };
            changed.notify_waiters();
            ok(&state.group.attach(&member_id))
        }
        Method::Heartbeat => {
            let request = pb::HeartbeatRequest::decode(&proto[..]).unwrap();
            state.lock().unwrap().group.ages_ms.push(request.oldest_message_age_ms);
            let is_new = |state: &State| state.group.generation != request.generation;
            poll(&state, &changed, request.member.as_ref(), request.max_wait_ms, is_new)
                .await
                .unwrap_or_else(|| ok(&state.lock().unwrap().heartbeat(&request.member.unwrap().member_id)))
        }
        Method::Claim => {
            let request = pb::ClaimRequest::decode(&proto[..]).unwrap();
            let member_id = request.member.clone().unwrap().member_id;
            let wanted: Vec<Key> = request
                .partitions
                .iter()
                .flat_map(|of_topic| {
                    of_topic.partitions.iter().map(|partition| (of_topic.topic_id.clone(), *partition))
                })
                .collect();
            let is_one_free = |state: &State| {
                let is_free = |key: &Key| state.group.owners.get(key).is_none_or(|(owner, _)| *owner == member_id);
                wanted.iter().any(|key| is_free(key) && state.target(&member_id).contains(key))
            };
            let waited = poll(&state, &changed, request.member.as_ref(), request.max_wait_ms, is_one_free).await;
            waited.unwrap_or_else(|| ok(&state.lock().unwrap().claim(&member_id, &request.partitions)))
        }
        Method::Commit | Method::Release => {
            let request = pb::CommitRequest::decode(&proto[..]).unwrap();
            let mut state = state.lock().unwrap();
            if let Some(fenced) = state.group.fenced(request.member.as_ref()) {
                return fenced;
            }
            let member_id = request.member.unwrap().member_id;
            let partitions: Vec<pb::CommitOutcome> =
                request.partitions.iter().map(|commit| state.commit(method, &member_id, commit)).collect();
            changed.notify_waiters();
            ok(&pb::CommitResponse { partitions })
        }
        Method::LeaveGroup => {
            let request = pb::LeaveGroupRequest::decode(&proto[..]).unwrap();
            state.lock().unwrap().group.expire(&request.member.unwrap().member_id);
            changed.notify_waiters();
            ok(&pb::LeaveGroupResponse {})
        }
        Method::ListGroups => ok(&state.lock().unwrap().list(&pb::ListGroupsRequest::decode(&proto[..]).unwrap())),
        Method::DescribeGroup => {
            ok(&state.lock().unwrap().describe(&pb::DescribeGroupRequest::decode(&proto[..]).unwrap()))
        }
        _ => refuse(Status::Unsupported, pb::Error::default()),
    }
}

/// Waits until `is_there`, or for so long. Some: the member is fenced.
async fn poll(
    state: &Mutex<State>,
    changed: &Notify,
    member: Option<&pb::Member>,
    max_wait_ms: u32,
    is_there: impl Fn(&State) -> bool,
) -> Option<Answer> {
    let deadline = tokio::time::Instant::now() + Duration::from_millis(u64::from(max_wait_ms));
    loop {
        let changed = changed.notified();
        {
            let state = state.lock().unwrap();
            if let Some(fenced) = state.group.fenced(member) {
                return Some(fenced);
            }
            if is_there(&state) {
                return None;
            }
        }
        if tokio::time::timeout_at(deadline, changed).await.is_err() {
            return None;
        }
    }
}
