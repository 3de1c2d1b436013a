//! What operators do to groups: positions read and set, groups deleted.

use super::{GroupError, GroupStore, got};
use crate::limits::COMMITS_A_TXN;
use crate::registry::assignment::PartitionId;
use crate::registry::group_records::OffsetRecord;
use crate::registry::keys::Key;
use crate::registry::records::Record as _;
use crate::registry::store::{Op, OpResult, Store, Test, Txn, list};

impl<S: Store> GroupStore<S> {
    /// Every committed position of a group.
    pub async fn committed(&self, group: &str) -> Result<Vec<(PartitionId, OffsetRecord)>, GroupError> {
        let (entries, _) = list(&self.store, &self.keys.offsets_of(group)).await?;
        let mut positions = Vec::with_capacity(entries.len());
        for entry in entries {
            let Some(Key::Offset(_, topic, partition)) = self.keys.parse(&entry.key) else { continue };
            positions.push(((topic, partition), super::parse(&entry)?));
        }
        Ok(positions)
    }

    /// Sets positions of a group without members, a page at a time; returns of each whether its partition exists. A member
    /// that joins meanwhile ends it in between two pages.
    pub async fn reset(
        &self,
        incarnation: u64,
        group: &str,
        positions: &[(PartitionId, OffsetRecord)],
    ) -> Result<Vec<bool>, GroupError> {
        let mut done = Vec::with_capacity(positions.len());
        for page in positions.chunks(COMMITS_A_TXN) {
            let mut txn = self.of_empty_group(incarnation, group);
            for ((topic, partition), offset) in page {
                let partition_key = self.keys.key(&Key::Partition(*topic, *partition));
                let offset_key = self.keys.key(&Key::Offset(group.to_owned(), *topic, *partition));
                let one = Txn::new().when(partition_key, Test::Exists).put(offset_key, offset.to_bytes());
                txn = txn.then(Op::Txn(one));
            }
            let outcome = self.store.commit(txn).await?;
            if !outcome.succeeded {
                return Err(self.why_not_empty(&outcome.results, incarnation, group));
            }
            done.extend(outcome.results.iter().map(|result| matches!(result, OpResult::Txn { succeeded: true, .. })));
        }
        Ok(done)
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
