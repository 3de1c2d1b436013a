//! The Corelane broker as a library: shards that own the log, one control thread that owns the rest.
//! A file uses only what stands below it in this list: shard, service, io, registry, telemetry, config, limits.

pub mod config;
pub mod io;
pub mod limits;
pub mod messages;
pub mod registry;
pub mod service;
pub mod shard;
