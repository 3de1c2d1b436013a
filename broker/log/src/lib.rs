//! Corelane's partition log: segments, recovery, flush and retention over a small disk trait.
//! Names no runtime, opens no socket, has no clock of its own.

pub mod blocking;
pub mod checkpoint;
pub mod config;
pub mod data_dir;
pub mod env;
pub mod limits;
mod sealed;
#[cfg(feature = "sim")]
pub mod sim;
pub use sealed::SealError;
