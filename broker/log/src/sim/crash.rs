//! The ends of a life, as the simulated disk sees them: what a power cut leaves, what SIGKILL leaves, and the check that an
//! orderly stop has left nothing.

use super::disk::SimDisk;
use super::flight::{Flight, Write};

impl SimDisk {
    pub(super) fn power_cut(&self) {
        let world = &self.inner.world;
        world.trace(|| format!("POWER CUT, in flight: {}", self.describe_flights()));
        self.inner.life.set(self.inner.life.get() + 1);
        let mut flights: Vec<Flight> = std::mem::take(&mut *self.inner.in_flight.borrow_mut()).into_values().collect();
        world.shuffle(&mut flights);
        let lands = world.pick(&[0.0, 0.5, 0.5, 0.9]);
        for flight in flights {
            match flight {
                Flight::Write(write) => self.land_some(&write, lands),
                Flight::Change(effect) if world.chance(0.5) => effect(self),
                Flight::Change(_) | Flight::Read(_) => {}
            }
        }
        let keep = world.pick(&[0.0, 0.2, 0.5, 0.5, 0.8, 1.0]);
        for file in self.inner.files.borrow_mut().values_mut() {
            if !file.is_clean() {
                file.power_cut(world, keep);
            }
            file.locked = false;
            file.handles = 0;
        }
        self.inner.names.borrow_mut().power_cut(world, self.inner.journal);
    }

    pub(super) fn kill(&self) {
        let world = &self.inner.world;
        world.trace(|| format!("KILL -9, in flight: {}", self.describe_flights()));
        self.inner.life.set(self.inner.life.get() + 1);
        for file in self.inner.files.borrow_mut().values_mut() {
            file.locked = false;
            file.handles = 0;
        }
        let mut flights: Vec<(u64, Flight)> =
            std::mem::take(&mut *self.inner.in_flight.borrow_mut()).into_iter().collect();
        world.shuffle(&mut flights);
        for (id, flight) in flights {
            match flight {
                // Lands at the time that was drawn for its end, holding the lock until then.
                Flight::Write(mut write) if write.orphan || world.chance(0.6) => {
                    write.orphan = true;
                    write.parts.clear();
                    self.file(write.handle.file, |file| file.locked = true);
                    self.inner.in_flight.borrow_mut().insert(id, Flight::Write(write));
                }
                Flight::Write(write) => self.land_some(&write, 0.6),
                Flight::Change(effect) if world.chance(0.5) => effect(self),
                Flight::Change(_) | Flight::Read(_) => {}
            }
        }
    }

    /// An orderly end of a life: everything was waited for, everything is closed.
    pub(super) fn assert_idle(&self) {
        self.inner.world.trace(|| "STOP".to_owned());
        // What a killed process has left to the kernel may still land in a file of a topic that was deleted since: nobody waits for
        // that.
        let is_of_this_life = |flight: &Flight| !matches!(flight, Flight::Write(write) if write.orphan);
        let in_flight = self.inner.in_flight.borrow().values().filter(|flight| is_of_this_life(flight)).count();
        assert_eq!(in_flight, 0, "operations in flight after an orderly stop");
        for (path, id) in self.inner.names.borrow().files() {
            let file = &self.inner.files.borrow()[&id];
            assert_eq!(file.handles, 0, "{} is still open after an orderly stop", path.display());
            assert!(!file.locked, "{} is still written by a killed process after an orderly stop", path.display());
        }
        self.inner.life.set(self.inner.life.get() + 1);
    }

    fn describe_flights(&self) -> String {
        let flights = self.inner.in_flight.borrow();
        let writes = flights.values().filter_map(|flight| match flight {
            Flight::Write(write) => Some(format!("file {} blocks {:?}", write.handle.file, write.block_range())),
            Flight::Change(_) | Flight::Read(_) => None,
        });
        format!("{} operations, writes {:?}", flights.len(), writes.collect::<Vec<_>>())
    }

    /// The end of the world: nothing in flight ends any more.
    pub(super) fn forget_flights(&self) {
        self.inner.life.set(self.inner.life.get() + 1);
        drop(self.inner.in_flight.take());
    }

    pub(super) fn land_some(&self, write: &Write, lands: f64) {
        let world = &self.inner.world;
        let sequence = world.next();
        self.file(write.handle.file, |file| {
            for (index, content) in write.block_range().zip(&write.blocks) {
                if world.chance(lands) {
                    file.land(sequence, index, content.clone());
                }
            }
        });
    }
}
