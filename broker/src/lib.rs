//! The Corelane broker as a library.
