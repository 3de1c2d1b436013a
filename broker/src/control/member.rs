//! This broker's own place in the registry while it runs: its record and its lease, written again after every kind of
//! loss, a key that was deleted by hand included. If the registry takes another directory or a later start for this
//! broker, it writes no more. One task of the control thread, beside the one that follows the registry, so that recovering
//! a large partition never costs the lease.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corelane_log::blocking::BlockingDisk;
use corelane_log::data_dir::{DataDir, FoundTopic};
use tokio::time::{MissedTickBehavior, interval};

use super::Control;
use super::host::blocking;
use crate::registry::membership::{Holds, IdentityError, Membership};
use crate::registry::records::{AliveRecord, BrokerRecord};
use crate::registry::store::{LeaseId, Revision, Store, StoreError};
use crate::registry::view::View;

/// Which view was counted by: the registry's incarnation, and the revision.
pub(super) type Counted = (u64, Revision);

/// This run of the broker, as the registry knows it.
pub(super) struct Member<S> {
    pub(super) membership: Membership<S>,
    pub(super) record: BrokerRecord,
    started_ms: i64,
    life: Duration,
    lease: Cell<Option<LeaseId>>,
    /// What was last said in the log, so that it is said once.
    trouble: Cell<Option<String>>,
}

impl<S: Store> Member<S> {
    /// `life`: how long it counts as running after its last sign of life.
    pub(super) fn new(membership: Membership<S>, record: BrokerRecord, life: Duration) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_ms = started.as_millis() as i64;
        Self { membership, record, started_ms, life, lease: Cell::new(None), trouble: Cell::default() }
    }

    /// Registers and takes a lease. `false`: another directory's broker with this number is still among those that run.
    pub(super) async fn join(&self, holds: Holds) -> Result<bool, IdentityError> {
        self.membership.register(&self.record).await?;
        let alive = AliveRecord {
            instance: self.record.instance.clone(),
            uuid: self.record.uuid.clone(),
            started_ms: self.started_ms,
            partitions: holds.partitions,
            unrecorded: holds.unrecorded,
            incarnation: holds.incarnation,
            leaving: false,
        };
        let lease = self.membership.announce(&self.record, &alive, self.life).await?;
        self.lease.set(lease);
        Ok(lease.is_some())
    }

    /// Ends the lease, at an orderly stop.
    pub(super) async fn leave(&self) {
        let Some(lease) = self.lease.take() else { return };
        if let Err(error) = self.membership.depart(&self.record.instance, lease).await {
            tracing::warn!(%error, "the registry was not told of the stop");
        }
    }

    /// Keeps the place, for ever.
    pub(super) async fn stay(&self, control: &Control<S>) {
        let mut tick = interval(self.life / 3);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if control.standing.borrow().displaced.is_some() {
                continue;
            }
            match self.look_after(control).await {
                Ok(()) => self.say(None),
                Err(error) if error.is_displacement() => control.displace(error.to_string()).await,
                Err(error) => {
                    self.say(Some(error.to_string()));
                    control.refused.notify_one();
                }
            }
        }
    }

    async fn look_after(&self, control: &Control<S>) -> Result<(), IdentityError> {
        if let Some(lease) = self.lease.get() {
            match control.store.keep_alive(lease).await {
                Ok(_) if self.keep_place(control).await? => return Ok(()),
                // Its key went by itself: deleted by hand, or written over by an earlier run that was slow.
                Ok(_) => tracing::warn!("this broker's entry in the registry is gone; it is written again"),
                Err(StoreError::LeaseGone) => {
                    tracing::warn!("this broker's lease has ended; it takes another one");
                    self.lease.set(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        // Not into a registry that was emptied, or that is another cluster's.
        let Some((cluster, _)) = self.membership.cluster().await? else { return Ok(()) };
        if cluster.cluster_id != control.cluster_id {
            return Ok(());
        }
        control.note_registering(&self.membership).await?;
        if self.join(control.holds().await).await? {
            tracing::info!("this broker is among those that run");
        } else {
            tracing::error!("another broker with this number runs; stop one of them");
        }
        Ok(())
    }

    async fn keep_place(&self, control: &Control<S>) -> Result<bool, IdentityError> {
        match self.membership.keep_place(&self.record, control.holds().await).await {
            // Full: the count waits, and the place is there.
            Err(IdentityError::Store(StoreError::NoSpace)) => Ok(true),
            kept => kept,
        }
    }

    fn say(&self, trouble: Option<String>) {
        let before = self.trouble.replace(trouble.clone());
        match trouble {
            Some(trouble) if before.as_ref() != Some(&trouble) => {
                tracing::warn!(trouble, "the registry was not told that this broker runs");
            }
            None if before.is_some() => tracing::info!("the registry hears again that this broker runs"),
            _ => {}
        }
    }
}

impl<S: Store> Control<S> {
    /// What this broker tells of its partitions. The data directory is looked through when the registry has changed, and again
    /// and again while something in it has no record: an operator may have moved that away.
    async fn holds(&self) -> Holds {
        let (believed, revision) = (self.believed.get(), self.view.borrow().revision);
        let known = self.counted.get();
        if known.0 == (believed, revision) && known.1.unrecorded == 0 {
            return known.1;
        }
        let data = self.config.data.clone();
        let on_disk = blocking(move || corelane_log::blocking::run(DataDir::new(BlockingDisk, data).topics()));
        // Counted as one, what cannot be listed keeps others from taking what lies here for lost.
        let unrecorded = on_disk.await.map_or(1, |topics| unrecorded_of(&topics, &self.view.borrow()));
        let partitions = self.view.borrow().partitions_on(self.broker_id);
        let holds = Holds { partitions, unrecorded, incarnation: believed };
        self.counted.set(((believed, revision), holds));
        holds
    }

    /// Before the registry hears of this start: it must not know a later one, and the directory notes that it will know this
    /// one, so that an older copy of it can be told.
    async fn note_registering(&self, membership: &Membership<S>) -> Result<(), IdentityError> {
        let identity = self.identity.lock().await.clone();
        let starts = identity.starts;
        membership.check_directory(&identity.uuid, identity.registered.unwrap_or(starts)).await?;
        if identity.registered == Some(starts) {
            return Ok(());
        }
        self.change_identity(|identity| identity.registered = Some(starts)).await.map_err(|error| {
            IdentityError::Store(StoreError::Unavailable(format!("the identity file could not be written: {error}")))
        })
    }
}

/// Partitions on a disk of which the registry has no record, of no broker, unless their topic was deleted. A topic's directory
/// that does not say which it is may hold any.
fn unrecorded_of(on_disk: &[FoundTopic], view: &View) -> u32 {
    let mut count = 0;
    for topic in on_disk {
        let Ok(identity) = &topic.identity else {
            count += topic.partitions.len().max(1);
            continue;
        };
        if view.deleted.contains_key(&identity.topic_id) {
            continue;
        }
        let known = view.partitions.get(&identity.topic_id);
        let has_record = |partition: &u32| known.is_some_and(|known| known.contains_key(partition));
        count += topic.partitions.iter().filter(|partition| !has_record(partition)).count();
    }
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// How long an orderly stop waits for the registry to hear of it.
pub(super) const LEAVE_MAX: Duration = Duration::from_secs(1);
