//! Connections: addresses, greeting, the calls that share a connection. Nothing here knows what producers and consumers
//! do with the connections of their own.

pub(crate) mod address;
pub(crate) mod backoff;
pub(crate) mod calls;
pub(crate) mod connect;
pub(crate) mod incoming;
#[cfg(target_os = "linux")]
mod local;
pub(crate) mod refusal;
