//! What the system says of this process and of the disk under its data. Read when a page is asked for; zero where the
//! system does not say.

use std::path::Path;
use std::time::Duration;

/// The figures.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessFigures {
    /// Memory in use, in bytes.
    pub resident_bytes: u64,
    /// Address space, in bytes.
    pub virtual_bytes: u64,
    /// CPU time used.
    pub cpu: Duration,
    /// When it was started, since the Unix epoch.
    pub started: Duration,
    /// Open file descriptors.
    pub descriptors: u64,
    /// How many it may open.
    pub descriptors_max: u64,
    /// Threads.
    pub threads: u64,
    /// The size of the data directory's file system, in bytes.
    pub disk_bytes: u64,
    /// What of it is free for this process, in bytes.
    pub disk_free_bytes: u64,
}

impl ProcessFigures {
    /// As it is now.
    pub fn read(data: &Path) -> Self {
        // proc(5): statm has the address space first and the resident pages second. stat has, counted from 1, user and
        // system time 14th and 15th, the threads 20th and the start after the boot 22nd; the process's name, which may hold
        // anything, stands in parentheses second.
        let (statm, stat) = (numbers("/proc/self/statm", "\0"), numbers("/proc/self/stat", ")"));
        let at = |numbers: &[u64], index: usize| numbers.get(index).copied().unwrap_or(0);
        let page_bytes = rustix::param::page_size() as u64;
        let ticks = |count: u64| Duration::from_millis(count * 1000 / rustix::param::clock_ticks_per_second().max(1));
        let boot = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let boot_s = boot.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok()).unwrap_or(0);
        let disk = rustix::fs::statvfs(data).ok();
        Self {
            resident_bytes: at(&statm, 1) * page_bytes,
            virtual_bytes: at(&statm, 0) * page_bytes,
            cpu: ticks(at(&stat, 11) + at(&stat, 12)),
            started: Duration::from_secs(boot_s) + ticks(at(&stat, 19)),
            descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
            descriptors_max: rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(0),
            threads: at(&stat, 17),
            disk_bytes: disk.as_ref().map_or(0, |disk| disk.f_blocks * disk.f_frsize),
            disk_free_bytes: disk.as_ref().map_or(0, |disk| disk.f_bavail * disk.f_frsize),
        }
    }
}

/// The numbers in a file that follow the last occurrence of some text.
fn numbers(file: &str, behind: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let rest = text.rsplit_once(behind).map_or(text.as_str(), |(_, rest)| rest);
    rest.split_whitespace().map(|number| number.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_knows_what_it_uses() {
        let figures = ProcessFigures::read(Path::new("/"));
        assert!(figures.resident_bytes > 1 << 20 && figures.virtual_bytes >= figures.resident_bytes);
        assert!(figures.threads >= 1 && figures.descriptors >= 3 && figures.descriptors_max >= figures.descriptors);
        assert!(figures.disk_bytes >= figures.disk_free_bytes && figures.disk_bytes > 0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after the epoch");
        let age = now.saturating_sub(figures.started);
        assert!(age < Duration::from_hours(24) && figures.started > Duration::from_hours(1), "{age:?}");
    }
}
