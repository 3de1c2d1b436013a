//! Waiting for something to become true, with a deadline that says what was awaited.

use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Asks `probe` until it yields a value. Panics, naming `what`, when `within` has passed.
pub fn wait_for<T>(what: &str, within: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(started.elapsed() < within, "waited {within:?} for {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Asks `probe` until it says yes. Panics, naming `what`, when `within` has passed.
pub fn wait_until(what: &str, within: Duration, mut probe: impl FnMut() -> bool) {
    wait_for(what, within, || probe().then_some(()));
}
