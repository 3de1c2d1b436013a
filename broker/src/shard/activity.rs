//! What a connection's tasks and the shard's once-a-second sweep know of each other: whether it is ending, when it last
//! moved. Ticks of the sweep stand for time, so that nobody asks a clock for each request.

use std::cell::Cell;
use std::rc::Rc;

use crate::io::signal::Signal;
use crate::limits;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// It does not.
    No,
    /// Nothing more is read; what was read is answered.
    Orderly,
    /// At once.
    AtOnce,
}

/// The state of one connection's life.
pub(super) struct Activity {
    /// The shard's tick, counted once a second.
    tick: Rc<Cell<u32>>,
    ending: Cell<Ending>,
    /// Notified when `ending` changes.
    changed: Signal,
    received_at: Cell<u32>,
    sent_at: Cell<u32>,
    /// The tick by which the frame that is being received must be there.
    receive_until: Cell<Option<u32>>,
}

impl Activity {
    pub(super) fn new(tick: Rc<Cell<u32>>) -> Self {
        let now = tick.get();
        Self {
            tick,
            ending: Cell::new(Ending::No),
            changed: Signal::default(),
            received_at: Cell::new(now),
            sent_at: Cell::new(now),
            receive_until: Cell::new(None),
        }
    }

    /// Begins to end; an earlier, gentler end is overruled.
    pub(super) fn end(&self, ending: Ending) {
        if ending > self.ending.get() {
            self.ending.set(ending);
            self.changed.notify();
        }
    }

    pub(super) fn ending(&self) -> Ending {
        self.ending.get()
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.get() > Ending::No
    }

    /// Completes when the connection begins to end. One task at a time waits.
    pub(super) async fn until_ending(&self) {
        while !self.is_ending() {
            self.changed.wait().await;
        }
    }

    pub(super) fn received(&self) {
        self.received_at.set(self.tick.get());
    }

    pub(super) fn sent(&self) {
        self.sent_at.set(self.tick.get());
    }

    /// The rest of a frame, `bytes` long, is being received.
    pub(super) fn begin_frame(&self, bytes: usize) {
        let patience = limits::RECEIVE_MAX_S + (bytes / limits::RECEIVE_BYTES_A_SECOND) as u32;
        self.receive_until.set(Some(self.tick.get().wrapping_add(patience)));
    }

    pub(super) fn end_frame(&self) {
        self.receive_until.set(None);
    }

    /// Whether the frame that is being received should have been there by now.
    pub(super) fn is_frame_late(&self) -> bool {
        self.receive_until.get().is_some_and(|until| self.tick.get().wrapping_sub(until) as i32 > 0)
    }

    /// Seconds since the last byte was received.
    pub(super) fn silent_s(&self) -> u32 {
        self.tick.get().wrapping_sub(self.received_at.get())
    }

    /// Seconds since the last byte was sent, or since there was something to send.
    pub(super) fn unsent_s(&self) -> u32 {
        self.tick.get().wrapping_sub(self.sent_at.get())
    }
}
