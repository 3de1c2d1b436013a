//! Corelane's partition log: segments, recovery, flush and retention over a small disk trait.
//! Names no runtime, opens no socket, has no clock of its own.
//!
//! A [`Shard`] is what the partitions of one thread share. [`Partition::create`] and [`Partition::open`] give a partition
//! and its [`Driver`], the one task that changes the disk. A publish asks for a [`Landing`], lets the bytes arrive there,
//! and gives it to [`Partition::append`]; a fetch takes [`Piece`]s from [`Partition::read`].

pub mod blocking;
pub mod checkpoint;
pub mod config;
mod coverage;
pub mod data_dir;
pub mod env;
pub mod error;
mod index;
pub mod inspect;
mod landing;
pub mod limits;
pub mod lock;
mod names;
mod notify;
mod partition;
mod plan;
mod recovery;
mod retention;
mod scan;
mod sealed;
mod segment;
mod shard;
#[cfg(feature = "sim")]
pub mod sim;
mod summary;
mod tail;
mod tuning;

pub use checkpoint::{CheckpointEntry, LastMessage};
pub use config::{InvalidConfig, PartitionOptions, TopicConfig};
pub use error::{AppendError, ClosedReason, KeepError, OpenError, ReadError};
pub use landing::Landing;
pub use partition::{Appended, Bounds, Driver, Partition, PartitionStats, Piece, Promise, Target};
pub use recovery::Recovered;
pub use sealed::SealError;
pub use shard::{EnvChunk, EnvFile, EnvSlice, Shard};
#[doc(hidden)]
pub use tuning::Tuning;
