//! Clients that are hostile, broken or merely unlucky, against a real broker: it lives, its other clients do not notice, what
//! was taken comes back. One test executable. `make test` runs the short forms; `CORELANE_FULL=1` (`make test-full`) the
//! long ones.

mod asking;
mod floods;
mod fuzz;
mod half_open;
mod lagging;
mod memory;
mod stalling;
mod starts;
mod unsent;
mod wire;
