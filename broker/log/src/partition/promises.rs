//! What was promised to readers and not sent yet, and the segments that retention has taken meanwhile: their names are
//! gone, their bytes are read through the files that are kept open here.

use std::collections::{BTreeMap, VecDeque};

use crate::env::Env;
use crate::shard::EnvFile;

/// A segment that has left the log.
pub(super) struct Departed<E: Env> {
    pub(super) base: u64,
    pub(super) end: u64,
    pub(super) file: EnvFile<E>,
}

pub(super) struct Promises<E: Env> {
    /// Where the promised bytes begin, and how many promises begin there.
    begins: BTreeMap<u64, usize>,
    /// By base; of each, bytes were promised when it left, and some promise from before its end still stands.
    departed: VecDeque<Departed<E>>,
}

impl<E: Env> Default for Promises<E> {
    fn default() -> Self {
        Self { begins: BTreeMap::new(), departed: VecDeque::new() }
    }
}

impl<E: Env> Promises<E> {
    pub(super) fn begin(&mut self, from: u64) {
        *self.begins.entry(from).or_default() += 1;
    }

    pub(super) fn end(&mut self, from: u64) {
        let count = self.begins.get_mut(&from).expect("a promise that ends has begun");
        *count -= 1;
        if *count == 0 {
            self.begins.remove(&from);
        }
        while self.departed.front().is_some_and(|departed| !reach_below(&self.begins, departed.end)) {
            self.departed.pop_front();
        }
    }

    /// Whether bytes below `end` may be promised.
    pub(super) fn reach_below(&self, end: u64) -> bool {
        reach_below(&self.begins, end)
    }

    pub(super) fn depart(&mut self, departed: Departed<E>) {
        if self.reach_below(departed.end) {
            self.departed.push_back(departed);
        }
    }

    /// The segment that holds `at`, if it has left.
    pub(super) fn departed(&self, at: u64) -> Option<&Departed<E>> {
        self.departed.iter().find(|departed| (departed.base..departed.end).contains(&at))
    }
}

fn reach_below(begins: &BTreeMap<u64, usize>, end: u64) -> bool {
    begins.first_key_value().is_some_and(|(from, _)| *from < end)
}
