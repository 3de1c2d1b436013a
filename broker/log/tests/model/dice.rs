//! The randomness of a history, shared by all its actors. One seed, one order of draws.

use std::cell::RefCell;
use std::rc::Rc;

#[derive(Clone)]
pub(crate) struct Dice {
    rng: Rc<RefCell<fastrand::Rng>>,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        // Another stream than the simulated world's, which is seeded with the seed itself.
        Self { rng: Rc::new(RefCell::new(fastrand::Rng::with_seed(!seed))) }
    }

    /// A number below `n`; 0 when `n` is.
    pub(crate) fn below(&self, n: usize) -> usize {
        if n == 0 { 0 } else { self.rng.borrow_mut().usize(..n) }
    }

    /// True with probability `p`.
    pub(crate) fn chance(&self, p: f64) -> bool {
        self.rng.borrow_mut().f64() < p
    }

    /// One of `choices`.
    pub(crate) fn pick<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A number from 1 to about `most`, small ones as likely as large ones.
    pub(crate) fn scale(&self, most: usize) -> usize {
        let bits = self.below(most.ilog2() as usize + 1);
        (1 << bits) + self.below(1 << bits)
    }
}
