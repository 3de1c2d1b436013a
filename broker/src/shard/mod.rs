//! A shard: a core's thread, its executor, its partitions and its connections. It accepts and hands over connections,
//! reads frames, gives each request to its service and sends the answers.

mod accept;
mod activity;
mod admission;
pub mod boot;
mod budget;
mod connection;
mod durable;
mod figures;
mod file_reader;
mod noise;
mod outgoing;
mod partitions;
mod receiver;
mod reclaim;
mod stalls;
mod state;
