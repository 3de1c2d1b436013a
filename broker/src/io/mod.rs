//! What touches the system: a shard's arena, ring, disk and sockets. `unsafe` lives here, each block with its argument.
#![allow(unsafe_code, reason = "the one layer that may, block by block with an argument")]

pub mod arena;
mod buddy;
pub mod checks;
pub mod disk;
pub mod env;
pub mod memory;
mod operations;
pub mod pipe;
pub mod ring;
pub mod signal;
pub mod socket;
pub mod task;
pub mod turns;
pub mod zero_copy;
