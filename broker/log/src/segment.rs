//! One segment as a partition keeps it in memory: its place, its file while that is open, what is known of its inside,
//! when its bytes arrived.

use std::rc::Rc;
use std::time::Duration;

use corelane_proto::ids::{Epoch, Position};

use crate::env::Env;
use crate::index::Index;
use crate::names;
use crate::shard::EnvFile;

pub(crate) struct Segment<E: Env> {
    pub(crate) base: u64,
    pub(crate) epoch: Epoch,
    /// Bytes of its file.
    pub(crate) file_bytes: u64,
    /// Open while it is written to, or read from lately.
    pub(crate) file: Option<EnvFile<E>>,
    /// Whether that is the locked one that writes.
    pub(crate) writes: bool,
    /// What is known of its inside, if it is in memory.
    pub(crate) index: Option<Rc<Index>>,
    /// Messages and largest timestamp, of a closed segment whose inside was known once.
    pub(crate) facts: Option<Facts>,
    /// `None`: nothing has arrived yet, or it was not looked up in the summary.
    pub(crate) arrivals: Option<Arrivals>,
    /// When its newest byte had arrived, as far as the start could tell: counts where there is no summary.
    pub(crate) modified_ms: i64,
    /// Its file is longer than the segment.
    pub(crate) needs_trim: bool,
    /// Its summary is not written yet.
    pub(crate) needs_summary: bool,
}

impl<E: Env> Segment<E> {
    pub(crate) fn name(&self) -> String {
        names::segment(Position(self.base), self.epoch)
    }

    pub(crate) fn summary_name(&self) -> String {
        names::summary(Position(self.base), self.epoch)
    }
}

/// What stays known of a closed segment when the rest of its index is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) messages: u64,
    pub(crate) max_timestamp_ms: i64,
}

impl Facts {
    pub(crate) fn of(index: &Index) -> Self {
        Self { messages: index.messages, max_timestamp_ms: index.max_timestamp_ms }
    }
}

/// When the first and the newest bytes of a segment arrived: by the wall clock, for the summary and later starts, and on
/// the monotonic clock, by which ages are measured. The wall clock may jump; arrivals never decrease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "the unit stands last")]
pub(crate) struct Arrivals {
    pub(crate) first_ms: i64,
    pub(crate) last_ms: i64,
    /// Monotonic milliseconds; below 0 when it was before the clock began.
    pub(crate) first_at_ms: i64,
    pub(crate) last_at_ms: i64,
}

impl Arrivals {
    /// The first bytes arrive now.
    pub(crate) fn begin(now: Now, not_before_ms: i64) -> Self {
        let wall_ms = now.wall_ms.max(not_before_ms);
        Self { first_ms: wall_ms, last_ms: wall_ms, first_at_ms: now.monotonic_ms, last_at_ms: now.monotonic_ms }
    }

    /// More bytes arrive now.
    pub(crate) fn extend(&mut self, now: Now) {
        self.last_ms = self.last_ms.max(now.wall_ms);
        self.last_at_ms = now.monotonic_ms;
    }

    /// To be called before the times are written down: a wall clock that was behind when the bytes arrived, and has been set
    /// since, must not make them older than the monotonic clock knows them to be. Small differences are left alone, so that
    /// what is written down stays the same as long as nothing happens.
    pub(crate) fn correct(&mut self, now: Now) {
        let by_age = |at_ms: i64| now.wall_ms.saturating_sub(now.monotonic_ms.saturating_sub(at_ms));
        for (recorded_ms, at_ms) in [(&mut self.first_ms, self.first_at_ms), (&mut self.last_ms, self.last_at_ms)] {
            if by_age(at_ms) > recorded_ms.saturating_add(1000) {
                *recorded_ms = by_age(at_ms);
            }
        }
    }

    /// From what an earlier process wrote down: an arrival in the future counts as now, but stays what it is, for it may be
    /// this life's clock that is wrong.
    pub(crate) fn recorded(first_ms: i64, last_ms: i64, now: Now) -> Self {
        let first_ms = first_ms.min(last_ms);
        let on_monotonic = |wall_ms: i64| now.monotonic_ms.saturating_sub(now.wall_ms.saturating_sub(wall_ms).max(0));
        Self { first_ms, last_ms, first_at_ms: on_monotonic(first_ms), last_at_ms: on_monotonic(last_ms) }
    }
}

/// Both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    pub(crate) monotonic: Duration,
    pub(crate) monotonic_ms: i64,
    pub(crate) wall_ms: i64,
}

impl Now {
    pub(crate) fn read(env: &impl Env) -> Self {
        let monotonic = env.monotonic();
        Self { monotonic, monotonic_ms: monotonic.as_millis() as i64, wall_ms: env.wall_ms() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(monotonic_ms: i64, wall_ms: i64) -> Now {
        Now { monotonic: Duration::from_millis(monotonic_ms as u64), monotonic_ms, wall_ms }
    }

    #[test]
    fn arrivals_never_decrease_and_ages_ignore_the_wall_clock() {
        let mut arrivals = Arrivals::begin(now(10, 5_000), 6_000);
        assert_eq!(arrivals.first_ms, 6_000);
        arrivals.extend(now(20, 1_000));
        assert_eq!((arrivals.last_ms, arrivals.last_at_ms), (6_000, 20));
        arrivals.extend(now(30, 900_000_000));
        assert_eq!((arrivals.last_ms, arrivals.last_at_ms), (900_000_000, 30));
    }

    #[test]
    fn a_clock_that_was_behind_makes_nothing_old() {
        let mut arrivals = Arrivals::begin(now(10, 1_000), i64::MIN);
        for (wall_ms, recorded_ms) in [(1_030, 1_000), (500, 1_000), (900_000, 899_980), (500, 899_980)] {
            arrivals.correct(now(30, wall_ms));
            assert_eq!((arrivals.first_ms, arrivals.last_ms), (recorded_ms, recorded_ms));
        }
    }

    #[test]
    fn an_arrival_in_the_future_counts_as_now() {
        let arrivals = Arrivals::recorded(1_000, 99_000, now(50, 3_000));
        assert_eq!((arrivals.first_ms, arrivals.last_ms), (1_000, 99_000));
        assert_eq!((arrivals.first_at_ms, arrivals.last_at_ms), (-1_950, 50));
    }
}
