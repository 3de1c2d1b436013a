//! Keeps the manager's view: lists, then watches; lists again when a watch ends, when the store turns out to have been put
//! back, and now and then anyway.

use std::collections::BTreeSet;

use super::{Groups, passages};
use crate::registry::groups::GroupError;
use crate::registry::groups::view::{GroupsView, TopicsView};
use crate::registry::keys::Key;
use crate::registry::membership::IdentityError;
use crate::registry::records::{ClusterRecord, Record as _};
use crate::registry::store::{Change, Changes, Entry, Store, StoreError, Watch, list};

/// Watches of everything that a manager needs to know.
struct Watches<W> {
    groups: W,
    topics: W,
    cluster: W,
}

impl From<IdentityError> for GroupError {
    fn from(error: IdentityError) -> Self {
        match error {
            IdentityError::Store(error) => Self::Store(error),
            other => Self::Store(StoreError::Unavailable(other.to_string())),
        }
    }
}

impl<S: Store> Groups<S> {
    pub(super) async fn follow(&self) {
        let mut failed_with = None;
        loop {
            match self.list_all().await {
                Ok(watches) => {
                    if failed_with.take().is_some() {
                        tracing::info!("the groups are known again, and group calls answered");
                    }
                    match self.keep_up(watches).await {
                        Ok(()) => tracing::debug!("the groups are listed anew, as they are now and then"),
                        Err(error) => {
                            // What comes of it is said when they were listed, or could not be.
                            tracing::debug!(%error, "following the groups has failed: they are to be listed anew");
                            self.note_failure(&error);
                        }
                    }
                }
                Err(error) => {
                    self.note_failure(&error);
                    let reason = error.to_string();
                    if failed_with.as_ref() != Some(&reason) {
                        tracing::warn!(
                            error = reason,
                            "the groups are not known now: group calls are answered REGISTRY_UNAVAILABLE, and members go \
                             to a broker that has the registry, if there is one"
                        );
                        failed_with = Some(reason);
                    }
                    self.sleep(self.options.retry.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                }
            }
        }
    }

    /// What is known is out of date from now on.
    fn note_failure(&self, error: &GroupError) {
        let mut state = self.state.borrow_mut();
        state.is_listed = false;
        if matches!(error, GroupError::Store(StoreError::WentBack)) {
            state.is_lost = true;
            self.registry.store.renew();
        }
        state.wake_all();
    }

    async fn list_all(&self) -> Result<Watches<S::Watch>, GroupError> {
        let (store, keys) = (&self.registry.store, &self.registry.keys);
        let cluster_key = keys.key(&Key::Cluster);
        let (known, is_lost) = {
            let state = self.state.borrow();
            (state.incarnation, state.is_lost)
        };
        if is_lost && known > 0 {
            // Before anything that was read of it is acted on.
            self.membership.raise_incarnation(known).await?;
        }
        let (entries, revision) = list(store, &cluster_key).await?;
        let record = entries.first().and_then(|entry| ClusterRecord::from_bytes(&entry.value).ok());
        let record = record.filter(|record| record.cluster_id == self.registry.cluster_id);
        let Some(record) = record else {
            return Err(StoreError::Unavailable("it does not know this cluster".to_owned()).into());
        };
        let cluster = store.watch(&cluster_key, revision + 1).await?;
        let prefix = keys.topics();
        let (entries, revision) = list(store, &prefix).await?;
        let topics_view = TopicsView::listed(keys, entries, revision);
        let topics = store.watch(&prefix, revision + 1).await?;
        let prefix = keys.groups();
        let (entries, revision) = list(store, &prefix).await?;
        let groups_view = GroupsView::listed(keys, entries, revision);
        let groups = store.watch(&prefix, revision + 1).await?;
        self.believe(record.incarnation, groups_view, topics_view);
        Ok(Watches { groups, topics, cluster })
    }

    fn believe(&self, incarnation: u64, groups: GroupsView, topics: TopicsView) {
        let mut state = self.state.borrow_mut();
        // When it is listed anew without need, nothing was missed, and what members owe counts on.
        if !state.is_listed || std::mem::take(&mut state.has_missed) || state.incarnation != incarnation {
            state.overdue.restart(self.now());
        }
        if !state.is_lost && state.incarnation == incarnation {
            self.say_gone(&passages::gone_between(&state.view, &groups));
        }
        if state.is_lost || (state.incarnation != 0 && state.incarnation != incarnation) {
            tracing::warn!(
                incarnation,
                "the registry was restored: members join again, nothing is claimed for a while"
            );
            state.claims_from = Some(self.now() + self.options.claims_pause);
            self.sessions.clear();
            self.commits.forget();
        }
        state.incarnation = incarnation;
        state.is_lost = false;
        let names: BTreeSet<String> = state.view.groups.keys().chain(groups.groups.keys()).cloned().collect();
        (state.view, state.topics, state.is_listed) = (groups, topics, true);
        state.unlooked.extend(names);
        state.wake_all();
        self.schedule.note_reason(state.view.groups.keys(), passages::LISTED);
        self.schedule.consider(state.view.groups.keys(), self.now());
    }

    /// Follows changes until all is to be listed anew.
    async fn keep_up(&self, mut watches: Watches<S::Watch>) -> Result<(), GroupError> {
        let until = self.now() + self.options.list_interval.mul_f64(0.75 + fastrand::f64() / 2.0);
        loop {
            tokio::select! {
                biased;
                changes = watches.cluster.next() => {
                    if self.is_other_life(changes?).await? {
                        return Ok(());
                    }
                }
                changes = watches.topics.next() => self.take_topics(changes?),
                changes = watches.groups.next() => self.take_groups(changes?)?,
                // Another broker keeps deciding otherwise: one of the two has missed something.
                () = self.relist.notified() => {
                    self.state.borrow_mut().has_missed = true;
                    return Ok(());
                }
                () = self.options.clock.sleep_until(until) => return Ok(()),
            }
        }
    }

    async fn is_other_life(&self, changes: Changes) -> Result<bool, GroupError> {
        let known = self.state.borrow().incarnation;
        let is_other =
            |entry: &Entry| ClusterRecord::from_bytes(&entry.value).map_or(true, |record| record.incarnation != known);
        if changes.changes.is_empty() {
            // The watch was interrupted: the record may have been written anew below the revision where it goes on.
            let found = self.registry.store.get(&self.registry.keys.key(&Key::Cluster)).await?;
            return Ok(found.is_none_or(|entry| is_other(&entry)));
        }
        Ok(changes.changes.iter().any(|change| match change {
            Change::Put(entry) => is_other(entry),
            Change::Deleted { .. } => true,
        }))
    }

    fn take_topics(&self, changes: Changes) {
        let mut state = self.state.borrow_mut();
        state.topics.apply(&self.registry.keys, changes);
        self.schedule.note_reason(state.view.groups.keys(), passages::TOPICS);
        self.schedule.consider(state.view.groups.keys(), self.now());
    }

    fn take_groups(&self, changes: Changes) -> Result<(), GroupError> {
        let mut state = self.state.borrow_mut();
        if state.view.goes_back(&self.registry.keys, &changes.changes) {
            return Err(StoreError::WentBack.into());
        }
        self.say_gone(&passages::gone(&self.registry.keys, &state.view, &changes.changes));
        for (group, reasons) in passages::reasons(&self.registry.keys, &state.view, &changes.changes) {
            for reason in reasons {
                self.schedule.note_reason(std::iter::once(&group), reason);
            }
        }
        let touched = state.view.apply(&self.registry.keys, changes.changes, changes.revision);
        for group in &touched.owners {
            state.wake(group, false);
        }
        for group in touched.targets.iter().chain(&touched.members) {
            state.wake(group, true);
        }
        state.unlooked.extend(touched.all());
        self.sessions.retain_seen(&state.view, &touched.members);
        self.schedule.note_written(&touched.targets, self.now());
        self.schedule.consider(touched.targets.iter().chain(&touched.members), self.now());
        Ok(())
    }
}
