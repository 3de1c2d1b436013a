//! Log lines that strangers can cause: at most one a second, the next one says how many were left out.

use std::cell::Cell;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// A limited log.
#[derive(Debug, Default)]
pub(super) struct Noise {
    last: Cell<Option<Instant>>,
    left_out: Cell<u64>,
}

impl Noise {
    /// Logs a line, or counts it.
    pub(super) fn warn(&self, line: impl FnOnce() -> String) {
        let now = Instant::now();
        if self.last.get().is_some_and(|last| now.duration_since(last) < INTERVAL) {
            self.left_out.set(self.left_out.get() + 1);
            return;
        }
        self.last.set(Some(now));
        match self.left_out.replace(0) {
            0 => tracing::warn!("{}", line()),
            left_out => tracing::warn!(left_out, "{}", line()),
        }
    }
}
