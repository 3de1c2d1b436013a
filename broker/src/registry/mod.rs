//! The registry: what brokers must agree on. Key layout, records and decisions are pure; the store seam has one
//! implementation for each place the registry may lie; what topics mean is written once, above the seam. Runs on the
//! control thread.

pub mod assignment;
pub mod embedded;
pub mod epochs;
pub mod etcd;
pub mod group_records;
pub mod groups;
pub mod keys;
pub mod membership;
pub mod nowhere;
pub mod placement;
pub mod records;
pub mod store;
pub mod topics;
pub mod transfer;
mod txn_rules;
pub mod view;
