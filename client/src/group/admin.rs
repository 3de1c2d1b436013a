//! Looking at groups, and setting their positions, from outside.

use corelane_proto::frame::{Method, Status};
use corelane_proto::ids::TopicId;
use corelane_proto::pb;

use super::Fence;
use super::commits::PARTITIONS_MAX;
use crate::admin::Admin;
use crate::cluster::{PAGE_LIMIT, Repeat};
use crate::error::CallError;

/// How often a group is described anew because its assignment changed between two pages of the answer.
const DESCRIBED_ANEW_MAX: u32 = 3;

/// A group at a glance.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GroupSummary {
    /// Its name.
    pub group: String,
    /// Who computes its assignment; `corelane`: the brokers.
    pub kind: String,
    /// Grows with each assignment.
    pub generation: u64,
    /// How many members it has.
    pub members: u32,
    /// How many partitions are assigned.
    pub partitions: u32,
}

/// A group with its members and partitions.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GroupDescription {
    /// The group.
    pub group: GroupSummary,
    /// Its members, by id.
    pub members: Vec<GroupMember>,
    /// Every partition that is assigned, owned or has a committed position; by topic and number.
    pub partitions: Vec<PartitionOfGroup>,
    /// Members, topics or their partitions have changed since the assignment was made: the next one is due.
    pub is_changing: bool,
}

/// A member of a group.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GroupMember {
    /// Its id, made when it joined.
    pub member_id: String,
    /// What its program calls itself.
    pub client_name: String,
    /// Where it connected from.
    pub host: String,
    /// The topics that it subscribes to by name.
    pub topics: Vec<String>,
    /// The pattern that it subscribes to, if it does.
    pub pattern: Option<String>,
}

/// A partition as a group sees it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PartitionOfGroup {
    /// The topic.
    pub topic: String,
    /// The topic's lasting id.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: u32,
    /// The member that shall own it.
    pub target: Option<String>,
    /// The member that owns it.
    pub owner: Option<String>,
    /// The number of that ownership.
    pub fence: Option<Fence>,
    /// The epoch and the position that are committed.
    pub committed: Option<(u32, u64)>,
    /// When they were, in milliseconds since the Unix epoch.
    pub committed_at_ms: Option<i64>,
}

/// A position to set; see [`Admin::reset_group`].
#[derive(Debug, Clone, Copy)]
pub struct NewPosition {
    /// The topic's lasting id.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: u32,
    /// The epoch that the position belongs to.
    pub epoch: u32,
    /// Where the group shall go on.
    pub position: u64,
}

impl Admin {
    /// All groups, by name.
    pub async fn list_groups(&self) -> Result<Vec<GroupSummary>, CallError> {
        let mut request = pb::ListGroupsRequest { limit: PAGE_LIMIT, after: String::new() };
        let mut groups = Vec::new();
        loop {
            let response: pb::ListGroupsResponse =
                self.client.cluster.call(Method::ListGroups, &request, Repeat::Always).await?;
            let last = response.groups.last().map(|group| group.group.clone());
            groups.extend(response.groups.into_iter().map(GroupSummary::from_pb));
            match last {
                Some(last) if response.more && last > request.after => request.after = last,
                _ => return Ok(groups),
            }
        }
    }

    /// A group's members, and who owns which partition, and what is committed.
    ///
    /// # Errors
    /// [`CallError::UnknownGroup`] when there is no such group.
    pub async fn describe_group(&self, group: &str) -> Result<GroupDescription, CallError> {
        let mut tries = DESCRIBED_ANEW_MAX;
        loop {
            let (description, is_of_one_assignment) = self.describe_in_pages(group).await?;
            if is_of_one_assignment || tries == 0 {
                return Ok(description);
            }
            tries -= 1;
        }
    }

    /// Each page is of its own moment; also returns whether all of them tell of the same assignment.
    async fn describe_in_pages(&self, group: &str) -> Result<(GroupDescription, bool), CallError> {
        let mut request = pb::DescribeGroupRequest {
            group: group.to_owned(),
            limit: PAGE_LIMIT,
            ..pb::DescribeGroupRequest::default()
        };
        let (mut members, mut partitions, mut generations) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let response = self.client.cluster.call(Method::DescribeGroup, &request, Repeat::Always).await;
            let response: pb::DescribeGroupResponse = named(group, response)?;
            let before = request.clone();
            if let Some(last) = response.partitions.last() {
                request.after_topic_id.clone_from(&last.topic_id);
                request.after_partition = last.partition;
            } else if let Some(last) = response.members.last() {
                request.after_member.clone_from(&last.member_id);
            }
            members.extend(response.members.into_iter().map(GroupMember::from_pb));
            partitions.extend(response.partitions.into_iter().filter_map(PartitionOfGroup::from_pb));
            let summary = GroupSummary::from_pb(response.group.unwrap_or_default());
            generations.push(summary.generation);
            if !response.more || request == before {
                partitions.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
                let is_of_one_assignment = generations.iter().all(|generation| *generation == summary.generation);
                let is_changing = response.target_is_due;
                let description = GroupDescription { group: summary, members, partitions, is_changing };
                return Ok((description, is_of_one_assignment));
            }
        }
    }

    /// Sets positions of a group that has no members.
    ///
    /// # Errors
    /// A refusal with `GROUP_NOT_EMPTY` while it has some; some positions may be set then, if a member joined meanwhile.
    pub async fn reset_group(&self, group: &str, positions: &[NewPosition]) -> Result<(), CallError> {
        for some in positions.chunks(PARTITIONS_MAX) {
            let partitions = some.iter().map(|position| pb::CommitPartition {
                topic_id: position.topic_id.to_vec(),
                partition: position.partition,
                fence: None,
                place: Some(pb::Place { epoch: position.epoch, position: position.position }),
                rewind: false,
            });
            let request = pb::ResetGroupRequest { group: group.to_owned(), partitions: partitions.collect() };
            let response = self.client.cluster.call(Method::ResetGroup, &request, Repeat::Always).await;
            let _: pb::ResetGroupResponse = named(group, response)?;
        }
        Ok(())
    }

    /// Deletes a group that has no members, and its positions with it.
    ///
    /// # Errors
    /// A refusal with `GROUP_NOT_EMPTY` while it has some, [`CallError::UnknownGroup`] when there is no such group.
    pub async fn delete_group(&self, group: &str) -> Result<(), CallError> {
        let request = pb::DeleteGroupRequest { group: group.to_owned() };
        // Sent twice, it would say that there is no such group.
        let response = self.client.cluster.call(Method::DeleteGroup, &request, Repeat::IfNotDone).await;
        named(group, response).map(|_: pb::DeleteGroupResponse| ())
    }
}

/// `UNKNOWN_GROUP` with the group's name.
fn named<T>(group: &str, result: Result<T, CallError>) -> Result<T, CallError> {
    result.map_err(|error| match error.refusal() {
        Some(refusal) if refusal.status == Status::UnknownGroup => CallError::UnknownGroup { group: group.to_owned() },
        _ => error,
    })
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl GroupSummary {
    fn from_pb(group: pb::GroupSummary) -> Self {
        Self {
            group: group.group,
            kind: group.kind,
            generation: group.generation,
            members: group.members,
            partitions: group.partitions,
        }
    }
}

impl GroupMember {
    fn from_pb(member: pb::MemberDetail) -> Self {
        Self {
            member_id: member.member_id,
            client_name: member.client_name,
            host: member.host,
            topics: member.topics,
            pattern: some(member.pattern),
        }
    }
}

impl PartitionOfGroup {
    /// `None`: the topic id is not 16 bytes.
    fn from_pb(partition: pb::GroupPartition) -> Option<Self> {
        Some(Self {
            topic_id: TopicId::try_from(&partition.topic_id[..]).ok()?,
            topic: partition.topic,
            partition: partition.partition,
            target: some(partition.target),
            owner: some(partition.owner),
            fence: partition.fence.as_ref().map(Fence::from_pb),
            committed: partition.committed.map(|place| (place.epoch, place.position)),
            committed_at_ms: partition.committed.map(|_| partition.committed_at_ms),
        })
    }
}
