//! How tasks that always have more to do share their shard: they let the other tasks go first, and now and then the
//! reactor, which alone sees new input, connections and timers.
//!
//! glommio's own means is its preempt timer. But when that has expired before the executor looks at its tasks for the
//! first time after arming it (the thread lost its core in between), glommio 0.9 takes "time to yield" for "nothing to do"
//! and sleeps until something else happens, with tasks ready to run. So the timer is set far beyond what a thread loses
//! its core for, and the tasks see to the reactor's turn themselves.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::io::env::ShardEnv;

/// The reactor has its turn after so long.
const REACTOR_AFTER: Duration = Duration::from_micros(500);
/// A timer so short that it has expired when the reactor has had its turn, and so long that it has not before.
const REACTOR_TIMER: Duration = Duration::from_micros(5);

/// The turns of one shard's tasks.
pub(super) struct Turns {
    env: ShardEnv,
    reactor_at: Cell<Instant>,
}

impl Turns {
    pub(super) fn new(env: ShardEnv) -> Self {
        Self { env, reactor_at: Cell::new(Instant::now()) }
    }

    /// Goes on when the others have had their turn.
    pub(super) async fn pass(&self) {
        self.env.ring().reap();
        if self.reactor_at.get().elapsed() < REACTOR_AFTER {
            glommio::executor().yield_now().await;
            return;
        }
        // Nothing but the reactor ends this wait, once all tasks wait.
        glommio::timer::sleep(REACTOR_TIMER).await;
        self.reactor_at.set(Instant::now());
    }
}
