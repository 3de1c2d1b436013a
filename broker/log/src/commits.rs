//! How the small commits of a shard's partitions make room for each other. Each costs about as much whatever it carries, so
//! while many are in flight one that could begin waits until a few of them have ended, and carries what arrives meanwhile.
//! It waits for a small part of what it takes by itself. One thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use crate::shard::Tenant;

/// The commits of one shard.
#[derive(Default)]
pub(crate) struct Commits {
    in_flight: Cell<usize>,
    ended: Cell<u64>,
    /// Who waits, and how many must have ended: it grows.
    waiting: RefCell<VecDeque<(u64, Weak<dyn Tenant>)>>,
}

impl Commits {
    /// Whether a commit is to wait until one part in `part` of those in flight has ended: then `tenant` is told.
    pub(crate) fn wait(&self, tenant: Weak<dyn Tenant>, part: usize) -> bool {
        let others = self.in_flight.get() / part;
        if others == 0 {
            return false;
        }
        let mut waiting = self.waiting.borrow_mut();
        let until = self.ended.get() + others as u64;
        // Fewer may be in flight than when the last one began to wait: nobody is told before who came first.
        let until = waiting.back().map_or(until, |(last, _)| until.max(*last));
        waiting.push_back((until, tenant));
        true
    }

    /// A commit begins; it ends when the answer is dropped, whatever becomes of it.
    pub(crate) fn begin(self: &Rc<Self>) -> Commit {
        self.in_flight.set(self.in_flight.get() + 1);
        Commit(Rc::clone(self))
    }

    fn end(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
        self.ended.set(self.ended.get() + 1);
        loop {
            let mut waiting = self.waiting.borrow_mut();
            let Some((_, first)) = waiting.pop_front_if(|(until, _)| *until <= self.ended.get()) else { return };
            drop(waiting);
            if let Some(tenant) = first.upgrade() {
                tenant.others_ended();
            }
        }
    }
}

/// A commit in flight.
pub(crate) struct Commit(Rc<Commits>);

impl Drop for Commit {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Told(Cell<u32>);

    impl Tenant for Told {
        fn evict(&self, _number: u64) {}
        fn flush_for_memory(&self) {}
        fn close_read_file(&self, _base: u64) {}

        fn others_ended(&self) {
            self.0.set(self.0.get() + 1);
        }
    }

    fn weak(told: &Rc<Told>) -> Weak<dyn Tenant> {
        let tenant: Rc<dyn Tenant> = Rc::<Told>::clone(told);
        Rc::downgrade(&tenant)
    }

    #[test]
    fn few_in_flight_hold_up_nobody() {
        let (commits, told) = (Rc::new(Commits::default()), Rc::new(Told::default()));
        let _in_flight: Vec<_> = (0..3).map(|_| commits.begin()).collect();
        assert!(!commits.wait(weak(&told), 4));
        assert!(commits.waiting.borrow().is_empty());
    }

    #[test]
    fn a_part_of_those_in_flight_must_end() {
        let (commits, told) = (Rc::new(Commits::default()), Rc::new(Told::default()));
        let mut in_flight: Vec<_> = (0..8).map(|_| commits.begin()).collect();
        assert!(commits.wait(weak(&told), 4));
        in_flight.pop();
        assert_eq!(told.0.get(), 0);
        in_flight.pop();
        assert_eq!(told.0.get(), 1, "two of eight");
        in_flight.clear();
        assert_eq!(told.0.get(), 1, "told once");
    }

    /// Whoever waits is told when all that were in flight have ended, at the latest: also behind somebody who waits longer,
    /// and behind somebody who has gone.
    #[test]
    fn nobody_waits_for_ever() {
        let (commits, told) = (Rc::new(Commits::default()), Rc::new(Told::default()));
        let mut in_flight: Vec<_> = (0..8).map(|_| commits.begin()).collect();
        let gone = Rc::new(Told::default());
        assert!(commits.wait(weak(&gone), 1));
        drop(gone);
        in_flight.truncate(4);
        assert!(commits.wait(weak(&told), 4));
        in_flight.clear();
        assert_eq!(told.0.get(), 1);
        assert!(!commits.wait(weak(&told), 1), "nothing is in flight");
    }
}
