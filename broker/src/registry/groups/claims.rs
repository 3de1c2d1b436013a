//! Claims: a partition's owner key is created only where there is none, under the member's lease, while the target that
//! gives it stands. One transaction serves one member: with its lease gone, all of it fails.

use super::{GroupError, GroupStore, LEASE_ENDED, Session, got, parse};
use crate::limits::CLAIMS_A_TXN;
use crate::registry::assignment::PartitionId;
use crate::registry::group_records::{Fence, OffsetRecord, OwnerRecord};
use crate::registry::keys::Key;
use crate::registry::records::Record as _;
use crate::registry::store::{Op, OpResult, Revision, Store, StoreError, Test, Txn};

/// What came of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is the member's.
    Yes {
        /// By this fence.
        fence: Fence,
        /// Of the target that gave it.
        generation: u64,
        /// Where the group goes on in it.
        committed: Option<OffsetRecord>,
    },
    /// Another member has it, or the target has changed.
    NotYet,
    /// The partition is no more.
    Gone,
}

/// The target that claims rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Basis {
    /// Its number.
    pub generation: u64,
    /// The mod revision of the group's key.
    pub revision: Revision,
}

impl<S: Store> GroupStore<S> {
    /// Claims partitions that the target gives to a member; at most `CLAIMS_A_TXN` at once. One that the member has
    /// already, the answer having been lost, is answered with the fence that it has.
    pub async fn claim(
        &self,
        session: &Session,
        basis: Basis,
        partitions: &[PartitionId],
    ) -> Result<Vec<Claimed>, GroupError> {
        assert!(partitions.len() <= CLAIMS_A_TXN, "a claim fits a transaction: {}", partitions.len());
        let incarnation = session.attachment.incarnation;
        let group = || session.group.clone();
        let member_key = self.keys.key(&Key::Member(group(), session.member.clone()));
        let group_key = self.keys.key(&Key::Group(group()));
        let owner = OwnerRecord { member: session.member.clone(), generation: basis.generation };
        let mut txn = self
            .txn(incarnation)
            .when(&member_key, Test::Modified(session.attachment.revision))
            .when(&group_key, Test::Modified(basis.revision))
            .otherwise(Op::Get(member_key));
        for (topic, partition) in partitions {
            let owner_key = self.keys.key(&Key::Owner(group(), *topic, *partition));
            let offset_key = self.keys.key(&Key::Offset(group(), *topic, *partition));
            let partition_key = self.keys.key(&Key::Partition(*topic, *partition));
            let put = Op::Put { key: owner_key.clone(), value: owner.to_bytes(), lease: Some(session.lease) };
            let one = Txn::new()
                .when(&owner_key, Test::Absent)
                .when(&partition_key, Test::Exists)
                .then(Op::Get(offset_key.clone()))
                .then(put)
                .otherwise(Op::Get(offset_key))
                .otherwise(Op::Get(owner_key))
                .otherwise(Op::Get(partition_key));
            txn = txn.then(Op::Txn(one));
        }
        let outcome = match self.store.commit(txn).await {
            Err(StoreError::LeaseGone) => return Err(LEASE_ENDED),
            outcome => outcome?,
        };
        if outcome.succeeded {
            let fence = Fence { incarnation, created: outcome.revision };
            let read = |result| read_claim(result, &owner, fence);
            return outcome.results.iter().map(read).collect();
        }
        let is_attached =
            got(&outcome.results, 1).is_some_and(|member| member.mod_revision == session.attachment.revision);
        if self.is_same_life(&outcome.results, incarnation) && is_attached {
            // It is the target that is another one.
            return Ok(vec![Claimed::NotYet; partitions.len()]);
        }
        Err(self.why_fenced(&outcome.results, incarnation, 1))
    }
}

fn read_claim(result: &OpResult, owner: &OwnerRecord, fence: Fence) -> Result<Claimed, GroupError> {
    let OpResult::Txn { succeeded, results } = result else { return Ok(Claimed::NotYet) };
    let committed = got(results, 0).map(parse::<OffsetRecord>).transpose()?;
    if *succeeded {
        return Ok(Claimed::Yes { fence, generation: owner.generation, committed });
    }
    if got(results, 2).is_none() {
        return Ok(Claimed::Gone);
    }
    let Some(entry) = got(results, 1) else { return Ok(Claimed::NotYet) };
    let held = parse::<OwnerRecord>(entry)?;
    if held.member != owner.member {
        return Ok(Claimed::NotYet);
    }
    let fence = Fence { created: entry.create_revision, ..fence };
    Ok(Claimed::Yes { fence, generation: held.generation, committed })
}
