//! `export --group`: how far the files go, kept in a group, so that its lag can be watched. The files themselves stay what
//! says where to go on; the group says where to begin where there are none.

use std::collections::BTreeMap;
use std::time::Duration;

use corelane_client::{CallError, Client, GroupDescription, NewPosition, TopicId, TopicInfo};

use crate::error::CliError;

/// How long a group that is made is waited for.
const MADE_WITHIN: Duration = Duration::from_secs(15);
/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(50);

/// A group without members, whose positions this run sets.
pub(super) struct Group {
    name: String,
    topic_id: TopicId,
    committed: BTreeMap<u32, (u32, u64)>,
}

impl Group {
    /// Finds the group; makes it if it is not there, or has never heard of the topic.
    pub(super) async fn look_up(client: &Client, name: &str, topic: &TopicInfo) -> Result<Self, CliError> {
        let known = match client.admin().describe_group(name).await {
            Ok(group) if !group.members.is_empty() => return Err(has_members(&group)),
            Ok(group) => committed(&group, topic.topic_id),
            Err(CallError::UnknownGroup { .. }) => BTreeMap::new(),
            Err(error) => return Err(error.into()),
        };
        if known.is_empty() {
            subscribe(client, name, &topic.name).await?;
        }
        Ok(Self { name: name.to_owned(), topic_id: topic.topic_id, committed: known })
    }

    /// Where the group is in a partition, if that is still the same log.
    pub(super) fn committed(&self, partition: u32, epoch: u32) -> Option<u64> {
        let committed = self.committed.get(&partition).filter(|(of, _)| *of == epoch);
        committed.map(|(_, position)| *position)
    }

    /// Whether it has no position in the topic yet.
    pub(super) fn is_new(&self) -> bool {
        self.committed.is_empty()
    }

    /// Says that everything below `position` is exported.
    pub(super) async fn commit(
        &self,
        client: &Client,
        partition: u32,
        epoch: u32,
        position: u64,
    ) -> Result<(), CliError> {
        let position = NewPosition { topic_id: self.topic_id, partition, epoch, position };
        Ok(client.admin().reset_group(&self.name, &[position]).await?)
    }
}

/// Told before anything is written: no position could be kept.
fn has_members(group: &GroupDescription) -> CliError {
    let hosts: Vec<&str> = group.members.iter().map(|member| member.host.as_str()).collect();
    CliError::Argument(format!(
        "group {} has a member, from {}: members keep their positions themselves, so an export needs a group of its own; an \
         export that was killed while it made the group counts as one for ten seconds: try again then",
        group.group.group,
        hosts.join(", ")
    ))
}

fn committed(group: &GroupDescription, topic_id: TopicId) -> BTreeMap<u32, (u32, u64)> {
    let of_topic = group.partitions.iter().filter(|at| at.topic_id == topic_id);
    of_topic.filter_map(|at| Some((at.partition, at.committed?))).collect()
}

/// Positions can only be set of topics that the group has subscribed to: joins it and leaves it again.
async fn subscribe(client: &Client, name: &str, topic: &str) -> Result<(), CliError> {
    let member = client.group(name).topic(topic).manual_commit().build()?;
    let joined = async {
        while member.assignment().is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    };
    // Where nothing is assigned (other members have it all), setting positions will say so.
    let _ = tokio::time::timeout(MADE_WITHIN, joined).await;
    member.close().await.map_err(CliError::Group)
}
