//! What is told of the machine beside what was measured on it.

use std::fs;

use serde::{Deserialize, Serialize};

/// What is told of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) huge_pages: String,
    /// Of these programs.
    pub(crate) version: String,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let huge_pages = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processor: processor.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            huge_pages: huge_pages.trim().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}
