//! Corelane's partition log: segments, recovery, flush and retention over a small disk trait.
//! Names no runtime, opens no socket, has no clock of its own.

pub mod env;
#[cfg(feature = "sim")]
pub mod sim;
