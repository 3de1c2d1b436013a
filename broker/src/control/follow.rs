//! Follows the registry and makes true what it says. While it does not answer, or is not this cluster's, what was known
//! of it last goes on to hold: an emptied or exchanged registry takes nothing away. One task of the control thread.

use std::rc::Rc;
use std::time::Instant;

use tokio::time::sleep;

use super::Control;
use super::standing::Standing;
use crate::limits::{
    HOST_RETRY, MEMBER_LEASE_LIFE_MAX, REGISTRY_RELIST_INTERVAL, REGISTRY_RETRY, REGISTRY_WARNINGS_INTERVAL,
    SWEEP_INTERVAL,
};
use crate::registry::membership::{IdentityError, Membership, choose_cluster};
use crate::registry::store::{Seen, Store, StoreError};
use crate::registry::view::{Follower, View};

/// For ever. `follower` may have been begun already.
pub(super) async fn follow<S: Store>(
    control: Rc<Control<S>>,
    membership: Membership<S>,
    mut follower: Option<Follower<S>>,
) {
    loop {
        let mut current = match follower.take() {
            Some(follower) => follower,
            None => control.find_registry(&membership).await,
        };
        control.believe(current.view());
        control.reconcile().await;
        match control.keep_up(&membership, &mut current).await {
            Ok(()) => tracing::debug!("the registry is listed anew, as it is now and then"),
            Err(error) => tracing::warn!(%error, "the registry is listed anew"),
        }
    }
}

impl<S: Store> Control<S> {
    /// Follows changes until the registry is to be listed anew.
    async fn keep_up(&self, membership: &Membership<S>, follower: &mut Follower<S>) -> Result<(), StoreError> {
        let began = Instant::now();
        loop {
            // What failed before is tried again, though nothing has changed.
            let retry = if self.has_pending() { HOST_RETRY } else { SWEEP_INTERVAL };
            tokio::select! {
                seen = follower.next() => seen?,
                () = sleep(retry) => {}
            }
            if began.elapsed() > REGISTRY_RELIST_INTERVAL {
                return Ok(());
            }
            let has_lost = has_lost_topics(&self.view.borrow(), follower.view());
            // What is missing means something only in a registry that knows its cluster.
            if has_lost && self.check_cluster(membership).await.is_err() {
                return Ok(());
            }
            self.believe(follower.view());
            self.reconcile().await;
        }
    }

    /// Takes over what the registry says.
    fn believe(&self, view: &View) {
        self.note_passages(view);
        self.view.borrow_mut().clone_from(view);
        self.believed.set(self.standing.borrow().incarnation);
        if let Some(seen) = &mut self.standing.borrow_mut().seen {
            seen.revision = seen.revision.max(view.revision);
        }
    }

    /// Looks for the registry until it answers and is this cluster's.
    async fn find_registry(&self, membership: &Membership<S>) -> Follower<S> {
        loop {
            match self.try_find_registry(membership).await {
                Ok(follower) => {
                    self.set_back();
                    return follower;
                }
                // It is another state of the store: to be read anew.
                Err(IdentityError::Store(StoreError::WentBack)) => self.store.renew(),
                Err(error) => self.set_away(error.to_string()),
            }
            sleep(REGISTRY_RETRY.mul_f64(0.5 + fastrand::f64())).await;
        }
    }

    async fn try_find_registry(&self, membership: &Membership<S>) -> Result<Follower<S>, IdentityError> {
        self.check_cluster(membership).await?;
        self.note_store(membership).await?;
        Ok(Follower::start(&self.store, &self.keys).await?)
    }

    /// Whether the registry is this cluster's.
    async fn check_cluster(&self, membership: &Membership<S>) -> Result<(), IdentityError> {
        let found = membership.cluster_id().await?;
        let identity = self.identity.lock().await.clone();
        // Also those that lie elsewhere only.
        let topics = self.hosted.borrow().len().max(self.view.borrow().topics.len());
        choose_cluster(Some(&identity), topics, found.as_deref(), self.broker_id, &self.cluster_id)?;
        Ok(())
    }

    /// Notices a store that was restored to an earlier state since it was seen last, and that it was noticed elsewhere.
    pub(super) async fn note_store(&self, membership: &Membership<S>) -> Result<(), IdentityError> {
        let now = self.store.seen().await?;
        let (before, known) = {
            let standing = self.standing.borrow();
            (standing.seen, standing.incarnation)
        };
        let found = membership.cluster().await?.map_or(1, |(record, _)| record.incarnation);
        let was_lost = before.is_some_and(|before| before.was_lost(&now));
        let incarnation = if was_lost { membership.raise_incarnation(known).await? } else { found };
        if was_lost || (known > 0 && incarnation > known) {
            self.tell_of_another_life(before, now, incarnation);
            self.standing.borrow_mut().restored = Some(Instant::now());
            self.groups.pause_claims();
        }
        let mut standing = self.standing.borrow_mut();
        standing.incarnation = incarnation;
        standing.kind_before.clear();
        let revision = before.filter(|_| !was_lost).map_or(0, |before| before.revision).max(now.revision);
        standing.seen = Some(Seen { revision, ..now });
        Ok(())
    }
}

impl<S: Store> Control<S> {
    fn tell_of_another_life(&self, before: Option<Seen>, now: Seen, incarnation: u64) {
        let (kind, kind_before) = (self.store.kind(), self.standing.borrow().kind_before.clone());
        let claims_wait_s = MEMBER_LEASE_LIFE_MAX.as_secs();
        if !kind_before.is_empty() && kind_before != kind {
            return tracing::warn!(
                incarnation,
                claims_wait_s,
                "the registry is {kind} now, and was {kind_before}; groups' members get partitions when the leases of \
                 before have ended"
            );
        }
        let (store, revision) = (now.store_id, now.revision);
        let (store_before, revision_before) = before.map_or((0, 0), |before| (before.store_id, before.revision));
        tracing::error!(
            incarnation,
            store,
            store_before,
            revision,
            revision_before,
            claims_wait_s,
            "the registry was restored to an earlier state, or is another one: topics made since are not served, and \
             groups' members get partitions when the leases of before have ended; see what is missing with: corelane topic list"
        );
    }
}

/// Whether topics are missing that were not deleted, as far as is known.
fn has_lost_topics(before: &View, now: &View) -> bool {
    before.topics.iter().any(|(name, topic)| {
        let id = topic.record.topic_id;
        now.topics.get(name).is_none_or(|found| found.record.topic_id != id) && !now.deleted.contains_key(&id)
    })
}

/// Asks the store now and then what an operator should know of it.
pub(super) async fn watch_over<S: Store>(control: Rc<Control<S>>) {
    loop {
        let failure = match control.store.warnings().await {
            Ok(warnings) => {
                control.set_warnings(warnings);
                None
            }
            Err(error) => Some(error.to_string()),
        };
        control.set_failing(failure);
        // Sooner while there is something to be settled.
        let pause = match &*control.standing.borrow() {
            Standing { failing: Some(_), .. } => 2 * REGISTRY_RETRY,
            standing if standing.warnings.is_empty() => REGISTRY_WARNINGS_INTERVAL,
            _ => REGISTRY_WARNINGS_INTERVAL / 6,
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = control.refused.notified() => sleep(REGISTRY_RETRY).await,
        }
    }
}

const _: () = assert!(REGISTRY_RELIST_INTERVAL.as_secs() > SWEEP_INTERVAL.as_secs(), "looked at once a sweep");
