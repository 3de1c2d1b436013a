//! Who may connect to a shard: so many in all, so many from one address. And what became of those who did, counted for the
//! metrics page.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use crate::figures::{Closing, Refusal};
use crate::service::context::Level;

/// The places of a shard's connections, taken and free.
#[derive(Clone)]
pub(super) struct Admission(Rc<State>);

struct State {
    connections_max: usize,
    per_address_max: usize,
    taken: Level,
    per_address: RefCell<HashMap<IpAddr, usize>>,
    accepted: Cell<u64>,
    refused: [Cell<u64>; Refusal::ALL.len()],
    closed: [Cell<u64>; Closing::ALL.len()],
}

/// A connection's place, until dropped.
pub(super) struct Place {
    admission: Admission,
    address: Option<IpAddr>,
}

impl Admission {
    pub(super) fn new(connections_max: usize, per_address_max: usize) -> Self {
        Self(Rc::new(State {
            connections_max,
            per_address_max,
            taken: Level::default(),
            per_address: RefCell::default(),
            accepted: Cell::default(),
            refused: Default::default(),
            closed: Default::default(),
        }))
    }

    /// A place for a connection from `address`, if there is one. A peer that has left already has no address.
    pub(super) fn admit(&self, address: Option<IpAddr>) -> Result<Place, Refusal> {
        if self.0.taken.get() >= self.0.connections_max {
            return Err(self.refuse(Refusal::Connections));
        }
        if let Some(address) = address {
            let mut per_address = self.0.per_address.borrow_mut();
            let from_there = per_address.entry(address).or_default();
            if *from_there >= self.0.per_address_max {
                return Err(self.refuse(Refusal::Address));
            }
            *from_there += 1;
        }
        self.0.taken.rise();
        Ok(Place { admission: self.clone(), address })
    }

    /// What is said of a refusal.
    pub(super) fn explain(&self, refusal: Refusal) -> String {
        match refusal {
            Refusal::Connections => format!("connections_max ({}) is reached", self.0.connections_max),
            Refusal::Address => format!("connections_per_address_max ({}) is reached", self.0.per_address_max),
            Refusal::HandOvers => "it has too many to take over".to_owned(),
        }
    }

    /// Connections that have a place.
    pub(super) fn taken(&self) -> usize {
        self.0.taken.get()
    }

    /// How many had one at most since the last call.
    pub(super) fn take_highest(&self) -> usize {
        self.0.taken.take_highest()
    }

    pub(super) fn connections_max(&self) -> usize {
        self.0.connections_max
    }

    /// A connection was accepted, whatever becomes of it.
    pub(super) fn accepted(&self) {
        self.0.accepted.set(self.0.accepted.get() + 1);
    }

    pub(super) fn refuse(&self, refusal: Refusal) -> Refusal {
        let counter = &self.0.refused[refusal as usize];
        counter.set(counter.get() + 1);
        refusal
    }

    pub(super) fn closed(&self, why: Closing) {
        let counter = &self.0.closed[why as usize];
        counter.set(counter.get() + 1);
    }

    /// Accepted; refused by reason; closed by reason.
    pub(super) fn totals(&self) -> (u64, [u64; Refusal::ALL.len()], [u64; Closing::ALL.len()]) {
        (self.0.accepted.get(), self.0.refused.each_ref().map(Cell::get), self.0.closed.each_ref().map(Cell::get))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let state = &self.admission.0;
        state.taken.fall();
        let Some(address) = self.address else { return };
        let mut per_address = state.per_address.borrow_mut();
        if let Some(from_there) = per_address.get_mut(&address) {
            *from_there -= 1;
            if *from_there == 0 {
                per_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, last).into()
    }

    #[test]
    fn places_are_bounded_in_all_and_per_address_and_come_back() {
        let admission = Admission::new(5, 3);
        let mut places: Vec<Place> = (0..3).map(|_| admission.admit(Some(address(1))).expect("a place")).collect();
        assert_eq!(admission.admit(Some(address(1))).err(), Some(Refusal::Address));
        places.push(admission.admit(Some(address(2))).expect("another address has places"));
        places.push(admission.admit(None).expect("one that has left counts in all"));
        assert_eq!(admission.admit(Some(address(3))).err(), Some(Refusal::Connections));
        assert_eq!(admission.taken(), 5);
        assert_eq!(admission.totals().1, [1, 1, 0]);
        places.remove(0);
        places.push(admission.admit(Some(address(1))).expect("its place came back"));
        places.clear();
        assert_eq!(admission.taken(), 0);
        assert!(admission.0.per_address.borrow().is_empty(), "an address without connections costs nothing");
    }

    #[test]
    fn reasons_are_counted_where_their_names_say() {
        for (at, (refusal, _)) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, at);
        }
        for (at, (closing, _)) in Closing::ALL.into_iter().enumerate() {
            assert_eq!(closing as usize, at);
        }
    }
}
