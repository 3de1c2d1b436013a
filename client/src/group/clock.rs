//! The clock of a member's deadline: it goes on while the machine sleeps, where there is such a clock. The standard
//! library's `Instant` is `CLOCK_MONOTONIC` on Linux, which stands still then: after it a member would believe in a lease
//! that ran out hours ago.

use std::ops::Add;
use std::time::Duration;

use boot_time::Instant;

/// A moment of that clock; the default is before every other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Moment(Option<Instant>);

impl Moment {
    pub(super) fn now() -> Self {
        Self(Some(Instant::now()))
    }

    /// How long it is until this moment; zero when it has come.
    pub(super) fn remaining(self) -> Duration {
        self.0.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }

    /// How long ago it was.
    pub(super) fn elapsed(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| Instant::now().saturating_duration_since(at))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.map(|at| at + duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_ordered_and_measured() {
        let now = Moment::now();
        let later = now + Duration::from_mins(1);
        assert!(Moment::default() < now && now < later);
        assert!(later.remaining() > Duration::from_secs(50) && now.remaining().is_zero());
        assert!(Moment::default().remaining().is_zero());
        assert!(Moment::now() >= now);
    }
}
