//! The registry: what brokers must agree on. Key layout and records are pure; the store seam has one implementation for
//! each place the registry may lie; what topics mean is written once, above the seam. Runs on the control thread.

pub mod embedded;
pub mod keys;
pub mod records;
pub mod store;
mod txn_rules;
