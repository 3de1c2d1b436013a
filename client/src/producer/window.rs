//! The sets of one partition that are under way on one connection, and the sequence numbers that keep them in order. Pure:
//! it is told what was sent and answered, and says what follows.
//!
//! The broker takes only the next number of a connection and partition. A refusal that a retry can help leaves the number
//! open, and all later ones come back `OUT_OF_SEQUENCE`: when the last of them is back, they are sent again in order from
//! that number on. Example: 5 is refused as `BUSY`, 6 and 7 were under way; when 7 is back, 5, 6 and 7 go out again. If
//! the set of 5 is given up meanwhile, the set of 6 takes the number 5. A new connection begins at 0 with the oldest
//! unanswered set.

use std::collections::VecDeque;

/// What an answer means for the number that was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Appended, or refused for good in a way that uses the number up.
    UsedUp,
    /// Refused for good, the number is still open: the next set takes it.
    GivenUp,
    /// Refused, but the same set may be sent again.
    TryAgain,
    /// An earlier number is open.
    OutOfSequence,
}

/// What follows from an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect<B> {
    /// The set is answered for good; `None`: it was given up before.
    Ended(Option<B>),
    /// It will be sent again, once the rest of the window is back.
    Waits,
    /// The window is back: what was refused is queued again.
    Again,
    /// The broker's answers contradict each other: only a new connection helps.
    Broken,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Unanswered,
    /// `root`: the reason lies in this set, not in an earlier number.
    Refused {
        root: bool,
    },
    Ended,
}

#[derive(Debug)]
struct UnderWay<B> {
    batch: Option<B>,
    state: State,
}

/// See the head of this file. `B` is a batch.
#[derive(Debug)]
pub(super) struct Window<B> {
    /// Contiguous numbers from `first` on.
    under_way: VecDeque<UnderWay<B>>,
    first: u64,
    refused: usize,
    /// To be sent before anything new, oldest first.
    again: VecDeque<B>,
}

impl<B> Default for Window<B> {
    fn default() -> Self {
        Self { under_way: VecDeque::new(), first: 0, refused: 0, again: VecDeque::new() }
    }
}

impl<B> Window<B> {
    /// Whether another set may be sent now.
    pub(super) fn has_room(&self, sets_max: usize) -> bool {
        self.refused == 0 && self.under_way.len() < sets_max
    }

    /// Whether a set must be sent again.
    pub(super) fn has_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// The next set to be sent again.
    pub(super) fn take_again(&mut self) -> Option<B> {
        self.again.pop_front()
    }

    /// A set that was taken but not sent after all.
    pub(super) fn put_back(&mut self, batch: B) {
        self.again.push_front(batch);
    }

    /// Nothing is under way.
    pub(super) fn is_landed(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The number for a set that is sent now.
    pub(super) fn send(&mut self, batch: B) -> u64 {
        debug_assert!(self.refused == 0, "nothing is sent while a number is open");
        let sequence = self.first + self.under_way.len() as u64;
        self.under_way.push_back(UnderWay { batch: Some(batch), state: State::Unanswered });
        sequence
    }

    /// Takes an answer in.
    pub(super) fn answer(&mut self, sequence: u64, verdict: Verdict) -> Effect<B> {
        let index = sequence.checked_sub(self.first).map(|index| index as usize);
        let Some(entry) = index.and_then(|index| self.under_way.get_mut(index)) else { return Effect::Broken };
        if entry.state != State::Unanswered {
            return Effect::Broken;
        }
        match verdict {
            Verdict::UsedUp => {
                entry.state = State::Ended;
                let batch = entry.batch.take();
                while self.under_way.front().is_some_and(|entry| entry.state == State::Ended) {
                    self.under_way.pop_front();
                    self.first += 1;
                }
                Effect::Ended(batch)
            }
            Verdict::GivenUp => {
                entry.state = State::Refused { root: true };
                self.refused += 1;
                Effect::Ended(entry.batch.take())
            }
            Verdict::TryAgain | Verdict::OutOfSequence => {
                entry.state = State::Refused { root: verdict == Verdict::TryAgain };
                self.refused += 1;
                Effect::Waits
            }
        }
    }

    /// After every answer: when all that was sent behind the first refusal is answered, queues it again.
    pub(super) fn settle(&mut self) -> Effect<B> {
        if self.refused == 0 {
            return Effect::Ended(None);
        }
        let is_refused = |entry: &UnderWay<B>| matches!(entry.state, State::Refused { .. });
        let first = self.under_way.iter().position(is_refused).expect("a refusal was counted");
        let behind = self.under_way.range(first..);
        if behind.clone().any(|entry| entry.state == State::Unanswered) {
            return Effect::Waits;
        }
        if self.under_way[first].state == (State::Refused { root: false }) {
            // Out of sequence: the answer about an earlier number may be still to come, else there is no reason for it.
            let earlier_unanswered = self.under_way.range(..first).any(|entry| entry.state == State::Unanswered);
            return if earlier_unanswered { Effect::Waits } else { Effect::Broken };
        }
        for entry in self.under_way.drain(first..).rev() {
            if let Some(batch) = entry.batch {
                self.again.push_front(batch);
            }
        }
        self.refused = 0;
        Effect::Again
    }

    /// The connection is gone: everything unanswered is queued again, oldest first, and numbers begin at 0.
    pub(super) fn disconnect(&mut self) {
        for entry in self.under_way.drain(..).rev() {
            if let Some(batch) = entry.batch {
                self.again.push_front(batch);
            }
        }
        self.first = 0;
        self.refused = 0;
    }

    /// Gives up what matches. Numbers stay taken until their answer comes.
    pub(super) fn give_up(&mut self, mut hopeless: impl FnMut(&B) -> bool) -> Vec<B> {
        let mut given_up = Vec::new();
        for entry in &mut self.under_way {
            given_up.extend(entry.batch.take_if(|batch| hopeless(batch)));
        }
        while self.again.front().is_some_and(&mut hopeless) {
            given_up.extend(self.again.pop_front());
        }
        given_up
    }

    /// Everything that waits to be sent again, oldest first.
    pub(super) fn drain_again(&mut self) -> VecDeque<B> {
        std::mem::take(&mut self.again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{GivenUp, OutOfSequence, TryAgain, UsedUp};

    fn window(sets: u32) -> Window<u32> {
        let mut window = Window::default();
        for set in 0..sets {
            assert_eq!(window.send(set), u64::from(set));
        }
        window
    }

    fn answer(window: &mut Window<u32>, sequence: u64, verdict: Verdict) -> (Effect<u32>, Effect<u32>) {
        (window.answer(sequence, verdict), window.settle())
    }

    fn resend(window: &mut Window<u32>) -> Vec<(u64, u32)> {
        let mut sent = Vec::new();
        while let Some(set) = window.take_again() {
            sent.push((window.send(set), set));
        }
        sent
    }

    #[test]
    fn answers_in_any_order_end_their_sets() {
        let mut window = window(3);
        assert_eq!(answer(&mut window, 1, UsedUp).0, Effect::Ended(Some(1)));
        assert_eq!(answer(&mut window, 0, UsedUp).0, Effect::Ended(Some(0)));
        assert_eq!(window.send(9), 3);
        assert_eq!(answer(&mut window, 2, UsedUp).0, Effect::Ended(Some(2)));
        assert_eq!(answer(&mut window, 3, UsedUp).0, Effect::Ended(Some(9)));
        assert!(window.is_landed() && !window.has_again());
    }

    #[test]
    fn a_set_refused_in_the_middle_goes_out_again_with_those_behind_it_in_order() {
        let mut window = window(4);
        assert_eq!(answer(&mut window, 1, TryAgain).1, Effect::Waits);
        assert!(!window.has_room(100));
        assert_eq!(answer(&mut window, 2, OutOfSequence).1, Effect::Waits);
        assert_eq!(answer(&mut window, 0, UsedUp).0, Effect::Ended(Some(0)));
        assert_eq!(answer(&mut window, 3, OutOfSequence).1, Effect::Again);
        assert_eq!(resend(&mut window), [(1, 1), (2, 2), (3, 3)]);
    }

    #[test]
    fn the_refusal_may_arrive_after_those_that_it_caused() {
        let mut window = window(3);
        assert_eq!(answer(&mut window, 1, OutOfSequence).1, Effect::Waits);
        assert_eq!(answer(&mut window, 0, TryAgain).1, Effect::Waits);
        assert_eq!(answer(&mut window, 2, OutOfSequence).1, Effect::Again);
        assert_eq!(resend(&mut window), [(0, 0), (1, 1), (2, 2)]);
    }

    #[test]
    fn the_next_set_takes_the_number_of_one_that_is_given_up() {
        let mut window = window(3);
        assert_eq!(answer(&mut window, 0, GivenUp), (Effect::Ended(Some(0)), Effect::Waits));
        assert_eq!(answer(&mut window, 1, OutOfSequence).1, Effect::Waits);
        assert_eq!(answer(&mut window, 2, OutOfSequence).1, Effect::Again);
        assert_eq!(resend(&mut window), [(0, 1), (1, 2)]);
        assert_eq!(window.send(3), 2);
    }

    #[test]
    fn a_set_that_timed_out_while_under_way_is_not_sent_again() {
        let mut window = window(3);
        assert_eq!(window.give_up(|&set| set == 1), [1]);
        assert_eq!(answer(&mut window, 1, TryAgain).1, Effect::Waits);
        assert_eq!(answer(&mut window, 2, OutOfSequence).1, Effect::Again);
        assert_eq!(resend(&mut window), [(1, 2)]);
        assert_eq!(answer(&mut window, 0, UsedUp).0, Effect::Ended(Some(0)));
    }

    #[test]
    fn a_new_connection_begins_at_zero_with_the_oldest_unanswered_set() {
        let mut window = window(4);
        answer(&mut window, 0, UsedUp);
        answer(&mut window, 2, UsedUp);
        window.disconnect();
        assert_eq!(resend(&mut window), [(0, 1), (1, 3)]);
    }

    #[test]
    fn a_connection_lost_while_sets_wait_to_be_sent_again_keeps_their_order() {
        let mut window = window(3);
        answer(&mut window, 0, TryAgain);
        answer(&mut window, 1, OutOfSequence);
        answer(&mut window, 2, OutOfSequence);
        let first = window.take_again().unwrap();
        assert_eq!(window.send(first), 0);
        window.disconnect();
        assert_eq!(resend(&mut window), [(0, 0), (1, 1), (2, 2)]);
    }

    #[test]
    fn out_of_sequence_without_an_open_number_asks_for_a_new_connection() {
        let mut window = window(2);
        assert_eq!(answer(&mut window, 1, OutOfSequence).1, Effect::Waits);
        assert_eq!(answer(&mut window, 0, UsedUp), (Effect::Ended(Some(0)), Effect::Broken));
        assert_eq!(window.answer(7, UsedUp), Effect::Broken);
    }
}
