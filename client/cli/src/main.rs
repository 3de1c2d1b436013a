//! The Corelane command line.

fn main() {}
