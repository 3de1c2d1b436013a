//! Corelane's wire protocol and message format: the only encoder and the only parser of both.
//!
//! - [`ids`]: positions, epochs, topic ids and names;
//! - [`frame`]: what travels on a connection: frame header, method numbers, status codes;
//! - [`pb`]: the protobuf messages inside the frames, generated from `proto/corelane.proto`;
//! - [`message`]: one message: parser that borrows, encoder;
//! - [`set`]: message sets, the unit of publishing: check, walk, build;
//! - [`wrapper`]: message sets compressed into one message.
//!
//! Bytes from outside never panic and never cost more memory than they warrant. Everything here is pure: no I/O, no
//! clock, no threads. The formats are described, byte by byte, in `docs/format.md` and `docs/protocol.md`.

pub mod codec;
mod fields;
pub mod frame;
pub mod ids;
pub mod message;
mod method;
pub mod pb;
pub mod set;
mod set_builder;
mod status;
pub mod wrapper;
