//! Consumer groups, above the store seam: what members, targets, owners and positions mean, and every transaction that
//! changes them. Deciding is pure (`view`, `subscription`, `targets`, `overdue`, and how each transaction is made and
//! read); doing is one call of the store each. Who waits for what, and when, is the control thread's (`control/groups`).
//!
//! Every transaction compares the store's incarnation, so that nothing that was decided from a lost state takes effect;
//! those of a member compare its attachment, so that a copy of it, or an old request that wakes up, does not either.

pub mod admin;
pub mod claims;
pub mod commits;
pub mod members;
pub mod overdue;
pub mod subscription;
pub mod targets;
pub mod view;

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::keys::{Key, Keys};
use super::records::{ClusterRecord, Record, RecordError};
use super::store::{Entry, LeaseId, Op, OpResult, Revision, Store, StoreError, Test, Txn};

/// How often a change is tried again when another one came first.
const CONFLICTS_MAX: u32 = 8;

/// Which writing of a member's key is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The life of the store in which it was written.
    pub incarnation: u64,
    /// Its key's mod revision.
    pub revision: Revision,
}

/// A member as it attached through this broker: what its calls are checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its group.
    pub group: String,
    /// Its id.
    pub member: String,
    /// Its last attachment.
    pub attachment: Attachment,
    /// Its lease.
    pub lease: LeaseId,
    /// That lease's life, as it was asked for.
    pub lease_life: Duration,
    /// How long it may hold one message.
    pub processing_max: Duration,
    /// How long it may take to release and to claim.
    pub release_max: Duration,
    /// Of the secret that its calls must carry.
    pub secret_hash: String,
}

/// Why a group call was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The membership has ended, or another process carries it on.
    #[error("{0}; deliver nothing more and join the group as a new member")]
    Fenced(&'static str),
    /// There is no such group.
    #[error("there is no group named {group}")]
    Unknown {
        /// Its name.
        group: String,
    },
    /// The group has members.
    #[error("group {group} has members; stop them first, or wait until their leases have ended")]
    NotEmpty {
        /// Its name.
        group: String,
    },
    /// A field of the request cannot be what it is.
    #[error("{message}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What it must be.
        message: String,
    },
    /// More than is allowed.
    #[error("{what} above the limit of {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// So many are allowed.
        limit: usize,
    },
    /// More names and patterns than a group may have, those of no use left out.
    #[error(
        "the group's members, and the topics that it has read, come to more than {limit} names and patterns; subscribe to \
         fewer, or to a pattern in place of names; if its positions are of no use any more: corelane group delete"
    )]
    TooManySubscriptions {
        /// So many are allowed.
        limit: usize,
    },
    /// Others kept changing it.
    #[error("others keep changing {0}; try again")]
    Busy(String),
    /// This broker's view of the registry is not there yet, or behind the caller's.
    #[error("this broker has not read the registry that far yet; try another one")]
    Behind,
    /// What is stored is not readable.
    #[error("{key}: {error}; correct it, or remove the key")]
    Record {
        /// Where.
        key: String,
        /// Why.
        error: RecordError,
    },
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The membership ended by the end of its lease.
pub(crate) const LEASE_ENDED: GroupError = GroupError::Fenced("the member's lease has ended");
/// Another process carries the membership on.
pub(crate) const DISPLACED: GroupError = GroupError::Fenced("the member was attached by another connection since");
/// The registry was restored meanwhile.
pub(crate) const OTHER_LIFE: GroupError = GroupError::Fenced("the registry was restored to an earlier state");
/// Whoever speaks does not know the member's secret.
pub(crate) const WRONG_SECRET: GroupError = GroupError::Fenced("the secret is not the member's");

/// The groups of a cluster, for whoever has a store.
#[derive(Clone)]
pub struct GroupStore<S> {
    /// The store.
    pub store: S,
    /// The cluster's keys.
    pub keys: Keys,
    /// The cluster's lasting id.
    pub cluster_id: String,
}

impl<S: Store> GroupStore<S> {
    /// In this store.
    pub fn new(store: S, keys: Keys, cluster_id: String) -> Self {
        Self { store, keys, cluster_id }
    }

    /// A transaction that holds only in this life of this cluster's store; when it does not hold, it reads the cluster's
    /// record first.
    fn txn(&self, incarnation: u64) -> Txn {
        let key = self.keys.key(&Key::Cluster);
        Txn::new().when(&key, Test::Value(self.cluster_record(incarnation))).otherwise(Op::Get(key))
    }

    fn cluster_record(&self, incarnation: u64) -> Vec<u8> {
        ClusterRecord { cluster_id: self.cluster_id.clone(), incarnation }.to_bytes()
    }

    /// What a transaction that failed read of the cluster: whether the store's life is still the one compared.
    fn is_same_life(&self, results: &[OpResult], incarnation: u64) -> bool {
        got(results, 0).is_some_and(|entry| entry.value == self.cluster_record(incarnation))
    }

    /// Why a transaction that compared the incarnation and a member's attachment did not hold; it read the cluster's record
    /// first and the member's key in this step.
    fn why_fenced(&self, results: &[OpResult], incarnation: u64, member_step: usize) -> GroupError {
        if !self.is_same_life(results, incarnation) {
            OTHER_LIFE
        } else if got(results, member_step).is_none() {
            LEASE_ENDED
        } else {
            DISPLACED
        }
    }
}

/// What the step of this number read.
fn got(results: &[OpResult], step: usize) -> Option<&Entry> {
    match results.get(step) {
        Some(OpResult::Got(entry)) => entry.as_ref(),
        _ => None,
    }
}

fn parse<R: Record>(entry: &Entry) -> Result<R, GroupError> {
    R::from_bytes(&entry.value).map_err(|error| GroupError::Record { key: entry.key.clone(), error })
}

/// What is stored of a member's secret.
pub fn hash(secret: &[u8]) -> String {
    hex(&Sha256::digest(secret))
}

/// Bytes as an operator reads them.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_stored_as_their_sha_256() {
        assert_eq!(hash(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
