//! What other tasks of the program may do with a member: say what was processed, look at what is owned.

use std::sync::Arc;
use std::time::Duration;

use super::error::GroupError;
use super::shared::Shared;
use super::state::{Awaited, Life};
use super::{GroupMessage, GroupPartition};

/// A handle of a [`GroupConsumer`](crate::GroupConsumer), for other tasks than the one that reads. It is cheap to clone.
#[derive(Clone)]
pub struct GroupHandle {
    pub(super) shared: Arc<Shared>,
}

impl std::fmt::Debug for GroupHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupHandle").field("group", &self.shared.settings.group).finish_non_exhaustive()
    }
}

impl GroupHandle {
    /// Says that everything of the message's partition was processed, up to this message. It is committed with the next
    /// commit, or when the partition is given up. Without effect when its ownership has ended meanwhile.
    pub fn mark(&self, message: &GroupMessage) {
        let is_awaited = {
            let mut state = self.shared.state();
            state.mark(message.key_of_partition(), message.fence().number, message.next());
            state.is_releasing(message.key_of_partition())
        };
        if is_awaited {
            self.shared.notify();
        }
    }

    /// Marks the message and waits until that is committed.
    ///
    /// # Errors
    /// [`GroupError::NotCommitted`] when the partition is not this member's any more, or nothing was answered within the
    /// client's request time-out.
    pub async fn commit_through(&self, message: &GroupMessage) -> Result<(), GroupError> {
        self.mark(message);
        let awaited = Awaited {
            key: message.key_of_partition(),
            fence: message.fence().number,
            place: message.next(),
            topic: message.topic().into(),
        };
        let partitions = self.uncommitted(vec![awaited]).await;
        if partitions.is_empty() { Ok(()) } else { Err(GroupError::NotCommitted { partitions }) }
    }

    /// The partitions that the member owns at the moment.
    pub fn assignment(&self) -> Vec<GroupPartition> {
        self.shared.state().assignment()
    }

    /// Waits until these are committed. Returns those that cannot be any more, or were not in time.
    pub(super) async fn uncommitted(&self, mut awaited: Vec<Awaited>) -> Vec<(String, u32)> {
        let shared = &self.shared;
        let mut missing = Vec::new();
        shared.commit_now.notify_one();
        let all = async {
            while !awaited.is_empty() {
                let changed = shared.changed();
                {
                    let mut state = shared.state();
                    awaited.retain(|one| !state.is_committed(one));
                    missing.extend(awaited.extract_if(.., |one| state.tenure(one.key, one.fence).is_none()));
                }
                if !awaited.is_empty() {
                    changed.await;
                }
            }
        };
        let _ = tokio::time::timeout(shared.cluster.settings.request_timeout, all).await;
        missing.into_iter().chain(awaited).map(|one| (one.topic.to_string(), one.key.1)).collect()
    }

    pub(super) fn begin_to_close(&self) {
        let mut state = self.shared.state();
        state.life = state.life.max(Life::Closing);
        drop(state);
        self.shared.notify();
    }

    /// Waits for the end.
    pub(super) async fn closed(&self) -> Result<(), GroupError> {
        let shared = &self.shared;
        let over = async {
            loop {
                let changed = shared.changed();
                if shared.state().life == Life::Over {
                    return;
                }
                changed.await;
            }
        };
        // Without an answer the member's own deadline ends it; this is for what nobody thought of.
        let patience = shared.settings.lease + shared.cluster.settings.request_timeout + Duration::from_secs(5);
        let _ = tokio::time::timeout(patience, over).await;
        let partitions = std::mem::take(&mut shared.state().uncommitted);
        if partitions.is_empty() { Ok(()) } else { Err(GroupError::NotCommitted { partitions }) }
    }
}
