//! Groups with real processes: members, brokers and etcd are killed, paused and cut off, and what the members wrote down is
//! checked afterwards. One test executable. `make test` runs the short forms; `CORELANE_FULL=1` (`make test-full`) the long
//! ones.

mod chaos;
mod history;
mod networks;
mod promises;
mod world;

use corelane_testkit::{Cluster, Etcd, skip};

/// A cluster of so many brokers behind proxies, or a note that the test cannot run here.
fn start(test: &str, brokers: usize) -> Option<Cluster> {
    if Etcd::installed().is_none() {
        skip(test, "no etcd; the Debian package etcd-server has it");
        return None;
    }
    Some(Cluster::start_behind_proxies(brokers))
}
