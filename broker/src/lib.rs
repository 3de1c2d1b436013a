//! The Corelane broker as a library: shards that own the log, one control thread that owns the rest.
//! A file uses only what stands below it in this list: control, shard, service, io, registry, telemetry, messages,
//! figures, config, limits.

pub mod config;
pub mod control;
pub mod figures;
pub mod io;
pub mod limits;
pub mod messages;
pub mod registry;
pub mod service;
pub mod shard;
pub mod telemetry;
