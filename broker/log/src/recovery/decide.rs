//! What a place means at which the walk ends. Pure; the order of the questions matters.

/// A place at which no whole good set begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    /// The start of the first set that is not whole and good.
    pub(super) at: u64,
    /// Below it everything was durable, says the checkpoint.
    pub(super) floor: u64,
    /// Whether the segment has a successor.
    pub(super) is_closed: bool,
    /// Where the last byte that is not zero ends, at or behind `at`; `None`: there are zeros only.
    pub(super) content_end: Option<u64>,
    /// The largest write window ever.
    pub(super) window: u64,
}

/// What it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The log ends here.
    End,
    /// The log ends here, and behind it lies what a crash left of the last writes.
    Tail {
        /// Where that ends.
        to: u64,
    },
    /// What lies here was flushed once: it is damaged, and kept.
    Damage,
}

impl Stop {
    pub(super) fn verdict(&self) -> Verdict {
        // What was never flushed cannot lie below the floor, nor before a segment that was named after the flush of this
        // one, nor so far behind the end.
        if self.at < self.floor || self.is_closed {
            return Verdict::Damage;
        }
        match self.content_end {
            None => Verdict::End,
            Some(to) if to > self.at.saturating_add(self.window) => Verdict::Damage,
            Some(to) => Verdict::Tail { to },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(content_end: Option<u64>) -> Stop {
        Stop { at: 1000, floor: 0, is_closed: false, content_end, window: 100 }
    }

    #[test]
    fn zeros_are_the_normal_end() {
        assert_eq!(stop(None).verdict(), Verdict::End);
    }

    #[test]
    fn bytes_within_the_window_are_a_tail() {
        assert_eq!(stop(Some(1100)).verdict(), Verdict::Tail { to: 1100 });
        assert_eq!(stop(Some(1101)).verdict(), Verdict::Damage);
    }

    #[test]
    fn below_the_floor_even_zeros_are_damage() {
        assert_eq!(Stop { floor: 1001, ..stop(None) }.verdict(), Verdict::Damage);
        assert_eq!(Stop { floor: 1000, ..stop(None) }.verdict(), Verdict::End);
    }

    #[test]
    fn a_closed_segment_has_no_tail() {
        assert_eq!(Stop { is_closed: true, ..stop(None) }.verdict(), Verdict::Damage);
        assert_eq!(Stop { is_closed: true, ..stop(Some(1001)) }.verdict(), Verdict::Damage);
    }
}
