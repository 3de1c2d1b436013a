//! The protobuf messages, generated from `proto/corelane.proto` and committed, so that no build needs a compiler of
//! `.proto` files. `tests/generated.rs` keeps them fresh: `UPDATE_GENERATED=1 cargo test -p corelane-proto --test generated`.

#![allow(missing_docs, unused_qualifications, clippy::pedantic)]

include!("pb/corelane.v1.rs");
