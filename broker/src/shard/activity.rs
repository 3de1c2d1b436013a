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
    /// The tick at which the frame that is being received began to arrive.
    frame_since: Cell<Option<u32>>,
    /// Bytes received since then.
    frame_bytes: Cell<usize>,
    /// Whether the rest of it has to wait for memory.
    is_held_up: Cell<bool>,
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
            frame_since: Cell::new(None),
            frame_bytes: Cell::new(0),
            is_held_up: Cell::new(false),
        }
    }

    /// Whether the frame that is being received has to wait for memory.
    pub(super) fn hold_up(&self, is_held_up: bool) {
        self.is_held_up.set(is_held_up);
        self.received_at.set(self.tick.get());
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

    pub(super) fn received(&self, bytes: usize) {
        self.received_at.set(self.tick.get());
        self.frame_bytes.set(self.frame_bytes.get().saturating_add(bytes));
    }

    pub(super) fn sent(&self) {
        self.sent_at.set(self.tick.get());
    }

    /// The rest of a frame is being received. Said again before its end, it changes nothing.
    pub(super) fn begin_frame(&self) {
        if self.frame_since.get().is_none() {
            self.frame_since.set(Some(self.tick.get()));
            self.frame_bytes.set(0);
            // Until now it was perhaps us who did not read.
            self.received_at.set(self.tick.get());
        }
    }

    pub(super) fn end_frame(&self) {
        self.frame_since.set(None);
    }

    /// Whether the frame that is being received arrives too slowly, or not at all. It is awaited less long while memory is
    /// scarce.
    pub(super) fn is_frame_late(&self, is_memory_scarce: bool) -> bool {
        let Some(since) = self.frame_since.get() else { return false };
        let is_behind = |bytes_a_second: usize, lag_max_s: u32| {
            let patience_s = (self.frame_bytes.get() / bytes_a_second).saturating_add(lag_max_s as usize);
            self.tick.get().wrapping_sub(since) as usize > patience_s
        };
        // Whoever waits for memory is not read from.
        let is_scarce = is_memory_scarce && !self.is_held_up.get();
        is_behind(limits::RECEIVE_BYTES_A_SECOND, limits::RECEIVE_LAG_MAX_S)
            || is_scarce
                && (self.silent_s() > limits::RECEIVE_LAG_SCARCE_MAX_S
                    || is_behind(limits::RECEIVE_BYTES_A_SECOND_SCARCE, limits::RECEIVE_LAG_SCARCE_MAX_S))
    }

    /// Seconds since the last byte was received.
    pub(super) fn silent_s(&self) -> u32 {
        self.tick.get().wrapping_sub(self.received_at.get())
    }

    /// Seconds since the last byte was sent, or since the socket took no more.
    pub(super) fn unsent_s(&self) -> u32 {
        self.tick.get().wrapping_sub(self.sent_at.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until a frame counts as late that gets so many bytes each second.
    fn late_after_s(bytes_a_second: usize, is_memory_scarce: bool) -> Option<u32> {
        let tick = Rc::new(Cell::new(u32::MAX - 5));
        let activity = Activity::new(Rc::clone(&tick));
        (1..1000).find(|_| {
            tick.set(tick.get().wrapping_add(1));
            activity.begin_frame();
            activity.received(bytes_a_second);
            activity.is_frame_late(is_memory_scarce)
        })
    }

    #[test]
    fn a_frame_that_claims_much_and_sends_little_is_late_soon_whatever_it_claims() {
        assert_eq!(late_after_s(0, false), Some(limits::RECEIVE_LAG_MAX_S + 2));
        assert_eq!(late_after_s(1, false), Some(limits::RECEIVE_LAG_MAX_S + 2), "a drip does not put it off");
        assert_eq!(late_after_s(0, true), Some(limits::RECEIVE_LAG_SCARCE_MAX_S + 2));
        let half_rate = late_after_s(limits::RECEIVE_BYTES_A_SECOND / 2, false);
        assert!(half_rate.is_some_and(|s| s < 3 * limits::RECEIVE_LAG_MAX_S));
        assert_eq!(late_after_s(limits::RECEIVE_BYTES_A_SECOND, false), None);
        assert_eq!(late_after_s(limits::RECEIVE_BYTES_A_SECOND_SCARCE, true), None);
    }

    #[test]
    fn a_frame_that_began_well_is_late_soon_once_it_is_silent_and_others_wait_for_memory() {
        let tick = Rc::new(Cell::new(0));
        let activity = Activity::new(Rc::clone(&tick));
        activity.begin_frame();
        activity.received(1 << 20);
        tick.set(limits::RECEIVE_LAG_SCARCE_MAX_S + 1);
        assert!(!activity.is_frame_late(false) && activity.is_frame_late(true));
        activity.hold_up(true);
        assert!(!activity.is_frame_late(true), "it is us who does not read");
    }

    #[test]
    fn between_frames_nothing_is_late() {
        let tick = Rc::new(Cell::new(0));
        let activity = Activity::new(Rc::clone(&tick));
        activity.begin_frame();
        activity.end_frame();
        tick.set(1000);
        assert!(!activity.is_frame_late(true));
        activity.begin_frame();
        assert!(!activity.is_frame_late(true), "each frame counts for itself");
    }
}
