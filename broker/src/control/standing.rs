//! How this broker stands with the registry: whether that is to be asked and believed, which life of it this is, whether
//! it knows another broker in this one's place. What depends on the registry asks here first; data does not.

use std::time::Instant;

use corelane_proto::frame::Status;

use super::Control;
use crate::messages::Failure;
use crate::registry::store::{Seen, Store};

/// How this broker stands with the registry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// Why the registry is not asked and not believed now: it does not answer, or is not this cluster's. None: it is.
    pub(crate) away: Option<String>,
    /// Why the registry did not answer when it was last asked how it is. Not why it is not believed: what it said before
    /// may still be followed.
    pub(crate) failing: Option<String>,
    /// Why this broker must write no more, the registry knowing another one in its place. For good: until a restart.
    pub(crate) displaced: Option<String>,
    /// What an operator should change about the registry.
    pub(crate) warnings: Vec<String>,
    /// Which life of the store this is; see [`ClusterRecord`](crate::registry::records::ClusterRecord).
    pub(crate) incarnation: u64,
    /// What kind of store it was in the broker's last life; empty: none, or not known.
    pub(crate) kind_before: String,
    /// Which store it was and how far it had come.
    pub(crate) seen: Option<Seen>,
    /// When it was noticed that the store was restored to an earlier state: leases that it does not know of may still be
    /// counted on elsewhere for one lease life.
    pub(crate) restored: Option<Instant>,
}

impl<S: Store> Control<S> {
    /// Whether what the registry keeps may be changed now; the failure is for whoever asked for a change.
    pub(crate) fn check_registry(&self) -> Result<(), Failure> {
        let standing = self.standing.borrow();
        match standing.displaced.as_ref().or(standing.away.as_ref()) {
            Some(reason) => Err(Failure::new(Status::RegistryUnavailable, reason.clone())),
            None => Ok(()),
        }
    }

    /// Notes that the registry is not to be used now, and why; named in the log when it is news.
    pub(super) fn set_away(&self, reason: String) {
        let mut standing = self.standing.borrow_mut();
        if standing.away.as_ref() != Some(&reason) {
            tracing::warn!(
                reason,
                "the registry is not used; publish and fetch go on, topics and groups stay as they are"
            );
            standing.away = Some(reason);
        }
    }

    /// Notes that the registry is used again.
    pub(super) fn set_back(&self) {
        if self.standing.borrow_mut().away.take().is_some() {
            tracing::info!("the registry is used again");
        }
    }

    /// Notes whether the registry does what it is asked; named in the log when it is news.
    pub(super) fn set_failing(&self, failing: Option<String>) {
        let mut standing = self.standing.borrow_mut();
        match &failing {
            Some(reason) if standing.failing != failing && standing.away.is_none() => {
                tracing::warn!(
                    reason,
                    "the registry does not do what it is asked; publish and fetch go on, topics and groups stay as they are"
                );
            }
            None if standing.failing.is_some() => tracing::info!("the registry does what it is asked again"),
            _ => {}
        }
        standing.failing = failing;
    }

    /// This broker writes no more.
    pub(super) async fn displace(&self, reason: String) {
        tracing::error!(
            reason,
            "another broker has taken this one's place: it is closed for writes until it is restarted"
        );
        self.standing.borrow_mut().displaced = Some(reason);
        self.publish_metadata().await;
    }

    /// Takes in what the store's watchers say to an operator; each is named in the log when it is news.
    pub(super) fn set_warnings(&self, warnings: Vec<String>) {
        let mut standing = self.standing.borrow_mut();
        for warning in warnings.iter().filter(|warning| !standing.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
        if warnings.is_empty() && !standing.warnings.is_empty() {
            tracing::info!("what was said of the registry is settled");
        }
        standing.warnings = warnings;
    }
}
