//! What operators see: log lines, the metrics page, health, the status page.

pub mod http;
pub mod logs;
pub mod metrics;
pub mod process;
pub mod snapshot;
pub mod status;
