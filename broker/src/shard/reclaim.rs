//! When a crowd of clients has left, the memory that it took goes back to the system: the allocator alone would keep it, and
//! a broker that was flooded once would look full for ever.

use std::cell::Cell;

use crate::limits::{CONNECTION_BYTES_ABOUT, LONG_POLL_BYTES_ABOUT, RECLAIM_BYTES};

/// What clients hold at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) connections: usize,
    pub(super) long_polls: usize,
    /// Bytes in buffers.
    pub(super) buffered_bytes: usize,
}

impl Held {
    fn bytes_about(self) -> usize {
        self.connections * CONNECTION_BYTES_ABOUT + self.long_polls * LONG_POLL_BYTES_ABOUT + self.buffered_bytes
    }
}

/// After so many further questions memory is given back once more: of what a crowd had, some is free only when its
/// connections have ended too.
const AGAIN_AFTER: u32 = 5;

/// Remembers the most that clients held since memory was given back.
#[derive(Debug, Default)]
pub(super) struct Reclaim {
    most_bytes: Cell<usize>,
    again_after: Cell<u32>,
}

impl Reclaim {
    /// Whether so much was let go of since the most was held that it is worth the time to give it back. Asked now and then,
    /// with what is held and the most that was since the last time.
    pub(super) fn is_due(&self, now: Held, most: Held) -> bool {
        let most_bytes = self.most_bytes.get().max(most.bytes_about());
        let is_due = most_bytes >= now.bytes_about() + RECLAIM_BYTES;
        self.most_bytes.set(if is_due { now.bytes_about() } else { most_bytes });
        let again_after = self.again_after.get();
        self.again_after.set(if is_due { AGAIN_AFTER } else { again_after.saturating_sub(1) });
        is_due || again_after == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_after_a_crowd_has_left_and_once_more_a_little_later() {
        let reclaim = Reclaim::default();
        let is_due = |now, most| {
            let held = |long_polls| Held { long_polls, ..Held::default() };
            reclaim.is_due(held(now), held(most))
        };
        let crowd = 2 * RECLAIM_BYTES / LONG_POLL_BYTES_ABOUT;
        assert!(!is_due(10, 10));
        assert!(!is_due(crowd, crowd));
        assert!(!is_due(crowd - 1, crowd), "a few left");
        assert!(is_due(10, crowd - 1));
        let due: Vec<u32> = (1..20).filter(|_| is_due(0, 10)).collect();
        assert_eq!(due, [AGAIN_AFTER]);
        assert!(is_due(0, crowd), "a crowd that came and left meanwhile");
        assert!(!is_due(0, 0));
    }
}
