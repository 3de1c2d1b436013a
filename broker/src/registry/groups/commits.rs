//! Commits and releases: one transaction within for each partition, so that one that is stale fails alone. It compares the
//! owner's key, value and create revision: the fence; the member's attachment; the position that was there before; and
//! that the partition exists, or a late commit would bring back a deleted topic's position.

use corelane_proto::ids::{Epoch, Position};

use super::{DISPLACED, GroupError, GroupStore, LEASE_ENDED, OTHER_LIFE, Session, got};
use crate::limits::COMMITS_A_TXN;
use crate::registry::assignment::PartitionId;
use crate::registry::group_records::{Fence, OffsetRecord, OwnerRecord};
use crate::registry::keys::Key;
use crate::registry::records::Record as _;
use crate::registry::store::{Entry, Op, OpResult, Revision, Store, Test, Txn};

/// What is to be done with one partition.
#[derive(Clone, Debug)]
pub struct Commit {
    /// By whom.
    pub session: std::rc::Rc<Session>,
    /// With which.
    pub partition: PartitionId,
    /// The fence of the caller's ownership.
    pub fence: Fence,
    /// The generation of the target that gave it: a part of the owner key's value.
    pub generation: u64,
    /// Up to where it was processed; none, for a release: nothing was.
    pub place: Option<(Epoch, Position)>,
    /// The position may be lower than the committed one.
    pub rewind: bool,
    /// The partition is given up.
    pub release: bool,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: i64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub enum Committed {
    /// Done.
    Ok,
    /// A higher position is committed: this one. A release was done all the same.
    Stale((Epoch, Position)),
    /// The caller owns it no more.
    Lost,
    /// The partition is no more. A release was done all the same.
    Gone,
    /// Others came before: to be tried again by the caller.
    Retry,
    /// The caller's membership has ended.
    Fenced(&'static str),
}

/// What came of one try.
#[derive(Clone, Debug)]
pub enum Tried {
    /// It is settled.
    Done(Committed),
    /// What was known of the position was out of date.
    Again,
    /// The partition of a release is no more: to be tried without a position.
    PartitionGone,
}

/// A committed position as it was last seen, with its key's mod revision; none: it was seen that there is none.
pub type Known = Option<(OffsetRecord, Revision)>;

/// One try: what is known decides what is compared and written.
struct Try {
    commit: Commit,
    known: Known,
    owner_key: String,
    owner_value: Vec<u8>,
    offset_key: String,
    member_key: String,
    partition_key: String,
    /// What is to be written, if anything is.
    write: Option<OffsetRecord>,
    /// The position is lower than the committed one.
    is_stale: bool,
}

impl<S: Store> GroupStore<S> {
    /// Runs commits of any members, at most `COMMITS_A_TXN` and no partition of a group twice, each with what is known of
    /// its position. Returns what came of each, and what is known of its position now.
    pub async fn commit_once(
        &self,
        incarnation: u64,
        commits: Vec<(Commit, Known)>,
    ) -> Result<Vec<(Tried, Known)>, GroupError> {
        assert!(commits.len() <= COMMITS_A_TXN, "commits fit a transaction: {}", commits.len());
        let tries: Vec<Try> = commits.into_iter().map(|(commit, known)| self.try_of(commit, known)).collect();
        let txn = tries.iter().fold(self.txn(incarnation), |txn, one| txn.then(Op::Txn(one.txn())));
        let outcome = self.store.commit(txn).await?;
        if !outcome.succeeded {
            debug_assert!(!self.is_same_life(&outcome.results, incarnation), "nothing else is compared");
            return Ok(tries.into_iter().map(|one| (Tried::Done(fenced(&OTHER_LIFE)), one.known)).collect());
        }
        Ok(tries.into_iter().zip(&outcome.results).map(|(one, result)| one.read(result, outcome.revision)).collect())
    }

    fn try_of(&self, commit: Commit, known: Known) -> Try {
        let (group, (topic, partition)) = (commit.session.group.clone(), commit.partition);
        let owner = OwnerRecord { member: commit.session.member.clone(), generation: commit.generation };
        let committed = known.as_ref().map(|(offset, _)| (offset.epoch, offset.position));
        let is_stale = !commit.rewind && commit.place.is_some_and(|place| committed > Some(place));
        let write = commit.place.filter(|place| !is_stale && committed != Some(*place));
        let (fence, time_ms) = (Some(commit.fence), commit.time_ms);
        Try {
            owner_key: self.keys.key(&Key::Owner(group.clone(), topic, partition)),
            owner_value: owner.to_bytes(),
            offset_key: self.keys.key(&Key::Offset(group.clone(), topic, partition)),
            member_key: self.keys.key(&Key::Member(group, commit.session.member.clone())),
            partition_key: self.keys.key(&Key::Partition(topic, partition)),
            write: write.map(|(epoch, position)| OffsetRecord { epoch, position, fence, time_ms }),
            is_stale,
            commit,
            known,
        }
    }
}

impl Try {
    fn txn(&self) -> Txn {
        let mut txn = Txn::new()
            .when(&self.member_key, Test::Modified(self.commit.session.attachment.revision))
            .when(&self.owner_key, Test::Created(self.commit.fence.created))
            .when(&self.owner_key, Test::Value(self.owner_value.clone()));
        if let Some(write) = &self.write {
            let before = self.known.as_ref().map_or(Test::Absent, |(_, revision)| Test::Modified(*revision));
            txn = txn.when(&self.offset_key, before).when(&self.partition_key, Test::Exists);
            txn = txn.put(&self.offset_key, write.to_bytes());
        } else if let (Some(_), Some((_, revision))) = (self.commit.place, &self.known) {
            // What is answered must be true: the position may be another one than was known, after a reset or a restore.
            txn = txn.when(&self.offset_key, Test::Modified(*revision));
        }
        if self.commit.release {
            txn = txn.delete(&self.owner_key);
        }
        let reads = [&self.member_key, &self.owner_key, &self.partition_key, &self.offset_key];
        reads.into_iter().fold(txn, |txn, key| txn.otherwise(Op::Get(key.clone())))
    }

    fn read(self, result: &OpResult, revision: Revision) -> (Tried, Known) {
        let OpResult::Txn { succeeded, results } = result else { return (Tried::Again, self.known) };
        if *succeeded {
            let known = self.write.map(|write| (write, revision)).or(self.known);
            let stale = known.as_ref().filter(|_| self.is_stale).map(|(offset, _)| (offset.epoch, offset.position));
            return (Tried::Done(stale.map_or(Committed::Ok, Committed::Stale)), known);
        }
        let tried = match (got(results, 0), got(results, 1)) {
            (None, _) => Tried::Done(fenced(&LEASE_ENDED)),
            (Some(member), _) if member.mod_revision != self.commit.session.attachment.revision => {
                Tried::Done(fenced(&DISPLACED))
            }
            // Then it is the partition, or the position, that was not as expected.
            (_, Some(owner)) if self.is_owner(owner) => match got(results, 2) {
                None if self.commit.release => Tried::PartitionGone,
                None => Tried::Done(Committed::Gone),
                Some(_) => Tried::Again,
            },
            _ => Tried::Done(Committed::Lost),
        };
        let found = got(results, 3);
        let known = found.and_then(|entry| Some((OffsetRecord::from_bytes(&entry.value).ok()?, entry.mod_revision)));
        (tried, known)
    }

    fn is_owner(&self, owner: &Entry) -> bool {
        owner.create_revision == self.commit.fence.created && owner.value == self.owner_value
    }
}

fn fenced(error: &GroupError) -> Committed {
    match error {
        GroupError::Fenced(reason) => Committed::Fenced(reason),
        other => unreachable!("not a fence: {other}"),
    }
}
