//! The Corelane broker.

fn main() {}
