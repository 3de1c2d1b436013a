//! How long a partition's messages are handed out before those of the others get their turn: by time, so that a program that
//! is slow does not let the others stand still for the length of a fetch, and one that is fast does not pay for it.

use std::time::{Duration, Instant};

/// A turn, in which a piece may well come to its end.
const TURN: Duration = Duration::from_millis(20);
/// A turn is this many times longer than what unpacking takes in it, which has to be done again in the next one.
const UNPACKING_PART: u32 = 10;
/// Messages between two looks at the clock, at most.
const LOOK_EVERY_MAX: u32 = 16;

#[derive(Debug)]
pub(super) struct Turn {
    began: Instant,
    until_look: u32,
    look_every: u32,
}

impl Turn {
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), until_look: 1, look_every: 1 }
    }

    /// Asked before each message: whether the turn is over. Of a slow program's turn each of the first messages is
    /// looked at, of a fast one's few.
    #[inline]
    pub(super) fn is_over(&mut self, unpacking: impl FnOnce() -> Duration) -> bool {
        if self.until_look > 0 {
            self.until_look -= 1;
            return false;
        }
        self.look(self.began.elapsed(), unpacking())
    }

    fn look(&mut self, elapsed: Duration, unpacking: Duration) -> bool {
        self.look_every = (2 * self.look_every).min(LOOK_EVERY_MAX);
        self.until_look = self.look_every - 1;
        elapsed >= TURN.max(unpacking.saturating_mul(UNPACKING_PART))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_program_s_turn_is_looked_at_early_and_a_fast_one_s_seldom() {
        let mut turn = Turn::begin();
        let mut looked_before = Vec::new();
        for message in 1..100 {
            if turn.until_look == 0 {
                looked_before.push(message);
                assert!(!turn.look(Duration::ZERO, Duration::ZERO));
            } else {
                turn.until_look -= 1;
            }
        }
        assert_eq!(looked_before, [2, 4, 8, 16, 32, 48, 64, 80, 96]);
    }

    #[test]
    fn a_turn_is_over_after_its_time_and_long_after_what_unpacking_took() {
        let ms = Duration::from_millis;
        let over = |elapsed, unpacking| Turn::begin().look(elapsed, unpacking);
        assert!(!over(ms(19), Duration::ZERO) && over(ms(20), Duration::ZERO));
        assert!(!over(ms(49), ms(5)) && over(ms(50), ms(5)));
    }
}
