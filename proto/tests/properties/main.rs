//! Properties of the formats, over messages of every shape and over bytes of none. `PROPTEST_CASES` makes the runs longer;
//! a failure prints its seed.

mod hostile_bytes;
mod round_trips;
mod support;
