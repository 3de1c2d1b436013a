//! What the kernel tells of a process in /proc.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};

/// Resources of a process at one moment.
#[derive(Debug, Clone, Copy)]
pub struct ProcessStats {
    /// Resident memory, in bytes.
    pub rss_bytes: u64,
    /// CPU time spent so far, user and system, in seconds.
    pub cpu_seconds: f64,
    /// Open file descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
}

impl ProcessStats {
    /// Reads them. Panics when there is no such process.
    pub fn of(pid: u32) -> ProcessStats {
        let stat =
            fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_else(|error| panic!("no process {pid}: {error}"));
        // The second field, the program's name in parentheses, may hold spaces; the third follows the last parenthesis.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |number: usize| -> u64 {
            fields.get(number - 3).and_then(|text| text.parse().ok()).expect("proc(5) names the fields of stat")
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        ProcessStats {
            rss_bytes: field(24) * page_size() as u64,
            cpu_seconds: (field(14) + field(15)) as f64 / clock_ticks_per_second() as f64,
            descriptors,
            threads: field(20) as usize,
        }
    }
}
