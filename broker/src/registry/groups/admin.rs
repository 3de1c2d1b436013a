//! What operators do to groups: positions read and set, groups deleted.

use corelane_proto::ids::{Epoch, Position};

use super::{CONFLICTS_MAX, GroupError, GroupStore, got, parse};
use crate::limits::COMMITS_A_TXN;
use crate::registry::assignment::PartitionId;
use crate::registry::group_records::{GroupRecord, OffsetRecord};
use crate::registry::keys::Key;
use crate::registry::records::{PartitionRecord, Record as _};
use crate::registry::store::{Op, OpResult, Range, Store, StoreError, Test, Txn, list_first};

/// Up to where a group has processed a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPosition {
    /// The group.
    pub group: String,
    /// The partition.
    pub partition: PartitionId,
    /// Of the log that was read.
    pub epoch: Epoch,
    /// Everything below it was processed.
    pub position: Position,
}

impl<S: Store> GroupStore<S> {
    /// Committed positions of a group by topic id and number: those behind a partition, so many at least if there are.
    pub async fn committed(
        &self,
        group: &str,
        after: Option<PartitionId>,
        positions_wanted: usize,
    ) -> Result<Vec<(PartitionId, OffsetRecord)>, GroupError> {
        let mut range = Range::prefix(&self.keys.offsets_of(group));
        if let Some((topic, partition)) = after {
            // The smallest key above it.
            range.start = format!("{}\0", self.keys.key(&Key::Offset(group.to_owned(), topic, partition)));
        }
        let (entries, _) = list_first(&self.store, &range, positions_wanted).await?;
        let mut positions = Vec::with_capacity(entries.len());
        for entry in entries {
            let Some(Key::Offset(_, topic, partition)) = self.keys.parse(&entry.key) else { continue };
            positions.push(((topic, partition), parse(&entry)?));
        }
        Ok(positions)
    }

    /// The committed positions of all groups, page by page and so not all of the same moment: about `positions_max` at most.
    /// And whether that is all. What is not readable is left out.
    pub async fn all_committed(&self, positions_max: usize) -> Result<(Vec<GroupPosition>, bool), StoreError> {
        let mut range = Range::prefix(&self.keys.offsets());
        let mut positions = Vec::new();
        loop {
            let page = self.store.range(range.clone()).await?;
            for entry in &page.entries {
                if let (Some(Key::Offset(group, topic, partition)), Ok(record)) =
                    (self.keys.parse(&entry.key), OffsetRecord::from_bytes(&entry.value))
                {
                    let (epoch, position) = (record.epoch, record.position);
                    positions.push(GroupPosition { group, partition: (topic, partition), epoch, position });
                }
            }
            match page.entries.last() {
                // The smallest key above it.
                Some(last) if page.more && positions.len() < positions_max => range.start = format!("{}\0", last.key),
                _ => return Ok((positions, !page.more)),
            }
        }
    }

    /// Whether a partition's log has come to an epoch. What is no more has: whoever writes finds that out.
    pub async fn has_come_to(&self, (topic, partition): PartitionId, epoch: Epoch) -> Result<bool, GroupError> {
        let Some(entry) = self.store.get(&self.keys.key(&Key::Partition(topic, partition))).await? else {
            return Ok(true);
        };
        Ok(parse::<PartitionRecord>(&entry)?.epoch >= epoch)
    }

    /// Sets positions of a group without members, a page at a time; returns of each whether its partition exists. A member
    /// that joins meanwhile ends it in between two pages. Only of topics that the group has subscribed to: the positions of
    /// those go when the topic does.
    pub async fn reset(
        &self,
        incarnation: u64,
        group: &str,
        positions: &[(PartitionId, OffsetRecord)],
    ) -> Result<Vec<bool>, GroupError> {
        let mut done = Vec::with_capacity(positions.len());
        for page in positions.chunks(COMMITS_A_TXN) {
            done.extend(self.reset_page(incarnation, group, page).await?);
        }
        Ok(done)
    }

    async fn reset_page(
        &self,
        incarnation: u64,
        group: &str,
        page: &[(PartitionId, OffsetRecord)],
    ) -> Result<Vec<bool>, GroupError> {
        let group_key = self.keys.key(&Key::Group(group.to_owned()));
        for _ in 0..CONFLICTS_MAX {
            let entry = self.store.get(&group_key).await?;
            let entry = entry.ok_or_else(|| GroupError::Unknown { group: group.to_owned() })?;
            let record = parse::<GroupRecord>(&entry)?;
            if let Some(((topic, _), _)) = page.iter().find(|((topic, _), _)| !record.topics.contains_key(topic)) {
                let message = format!("the group has never subscribed to the topic {topic}");
                return Err(GroupError::Invalid { field: "partitions", message });
            }
            let mut txn = self.of_empty_group(incarnation, group).when(&group_key, Test::Modified(entry.mod_revision));
            for ((topic, partition), offset) in page {
                let partition_key = self.keys.key(&Key::Partition(*topic, *partition));
                let offset_key = self.keys.key(&Key::Offset(group.to_owned(), *topic, *partition));
                let one = Txn::new().when(partition_key, Test::Exists).put(offset_key, offset.to_bytes());
                txn = txn.then(Op::Txn(one));
            }
            let outcome = self.store.commit(txn).await?;
            if outcome.succeeded {
                let exists = |result: &OpResult| matches!(result, OpResult::Txn { succeeded: true, .. });
                return Ok(outcome.results.iter().map(exists).collect());
            }
            let members = Range { limit: 1, ..Range::prefix(&self.keys.members_of(group)) };
            let has_members = !self.store.range(members).await?.entries.is_empty();
            // Else it is the group's record that was written meanwhile.
            if has_members || !self.is_same_life(&outcome.results, incarnation) || got(&outcome.results, 1).is_none() {
                return Err(self.why_not_empty(&outcome.results, incarnation, group));
            }
        }
        Err(GroupError::Busy(group_key))
    }

    /// Deletes a group without members, its positions with it.
    pub async fn delete(&self, incarnation: u64, group: &str) -> Result<(), GroupError> {
        let txn = self
            .of_empty_group(incarnation, group)
            .delete(self.keys.key(&Key::Group(group.to_owned())))
            .then(Op::DeletePrefix(self.keys.target_of(group)))
            .then(Op::DeletePrefix(self.keys.owners_of(group)))
            .then(Op::DeletePrefix(self.keys.offsets_of(group)));
        let outcome = self.store.commit(txn).await?;
        if outcome.succeeded { Ok(()) } else { Err(self.why_not_empty(&outcome.results, incarnation, group)) }
    }

    fn of_empty_group(&self, incarnation: u64, group: &str) -> Txn {
        let key = self.keys.key(&Key::Group(group.to_owned()));
        self.txn(incarnation)
            .when(&key, Test::Exists)
            .when(self.keys.members_of(group), Test::NoneBelow)
            .otherwise(Op::Get(key))
    }

    fn why_not_empty(&self, results: &[OpResult], incarnation: u64, group: &str) -> GroupError {
        let group = group.to_owned();
        if !self.is_same_life(results, incarnation) {
            GroupError::Behind
        } else if got(results, 1).is_none() {
            GroupError::Unknown { group }
        } else {
            GroupError::NotEmpty { group }
        }
    }
}
