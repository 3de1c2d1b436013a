//! What was claimed: told by the group's member from its own tasks, looked at by the mirror's loop.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// The epoch and the position that the group had committed.
pub(super) type Committed = Option<(u32, u64)>;

/// The partitions that were claimed and whose target was not looked at since.
#[derive(Default)]
pub(super) struct Claims {
    partitions: Mutex<BTreeMap<(String, u32), Committed>>,
    /// Looked at for each message, so without the lock.
    is_some: AtomicBool,
    pub(super) changed: Notify,
}

impl Claims {
    pub(super) fn add(&self, topic: &str, partition: u32, committed: Committed) {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner).insert((topic.to_owned(), partition), committed);
        self.is_some.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// What was added since, if anything was.
    pub(super) fn take(&self) -> Option<BTreeMap<(String, u32), Committed>> {
        self.is_some.swap(false, Ordering::AcqRel).then(|| self.take_all())
    }

    fn take_all(&self) -> BTreeMap<(String, u32), Committed> {
        std::mem::take(&mut self.partitions.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
