//! What the whole system promises, attacked from outside: real brokers, the real client, the real command line. One test
//! executable, a file per family of promises. `make test` runs the short forms; `CORELANE_FULL=1` (`make test-full`) the
//! long ones.

mod clients;
mod cluster;
mod crash;
mod damage;
mod disk_faults;
mod disk_full;
mod far_away;
mod faults;
mod flush;
mod hostile;
mod lifecycle;
mod members;
mod memory;
mod operations;
mod places;
mod retention;
mod sample_logs;
mod sizes;
mod stalls;
mod support;
mod survival;
mod topics;
