//! What operators see: log lines on stderr, metrics and health on the HTTP page. Runs on the control thread.

pub mod http;
pub mod logs;
pub mod metrics;
