//! The Corelane load generator.

fn main() {}
