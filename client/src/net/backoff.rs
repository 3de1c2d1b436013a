//! Pauses between attempts: doubling, bounded, jittered, so that nothing loops busily and many clients do not come back
//! in step.

use std::time::Duration;

/// The pauses of one run of failures.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    shortest: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, failures: 0 }
    }

    /// The next pause: between half and the whole of the doubled shortest one.
    pub(crate) fn pause(&mut self) -> Duration {
        let whole = self.shortest.saturating_mul(1 << self.failures.min(20)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// After a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_start_again_after_a_success() {
        let (shortest, longest) = (Duration::from_millis(10), Duration::from_millis(100));
        let mut backoff = Backoff::new(shortest, longest);
        for expected_ms in [10, 20, 40, 80, 100, 100] {
            let pause = backoff.pause();
            let whole = Duration::from_millis(expected_ms);
            assert!(pause >= whole / 2 && pause <= whole, "{pause:?} for {whole:?}");
        }
        for _ in 0..1000 {
            assert!(backoff.pause() <= longest);
        }
        backoff.reset();
        assert!(backoff.pause() <= shortest);
    }
}
