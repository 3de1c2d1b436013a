//! What was claimed: told by the group's member from its own tasks, looked at by the mirror's loop.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// The partitions that were claimed and whose target was not looked at since.
#[derive(Default)]
pub(super) struct Claims {
    partitions: Mutex<BTreeSet<(String, u32)>>,
    /// Looked at for each message, so without the lock.
    is_some: AtomicBool,
    pub(super) changed: Notify,
}

impl Claims {
    pub(super) fn add(&self, topic: &str, partition: u32) {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner).insert((topic.to_owned(), partition));
        self.is_some.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// What was added since, if anything was.
    pub(super) fn take(&self) -> Option<BTreeSet<(String, u32)>> {
        self.is_some.swap(false, Ordering::AcqRel).then(|| self.take_all())
    }

    fn take_all(&self) -> BTreeSet<(String, u32)> {
        std::mem::take(&mut self.partitions.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
