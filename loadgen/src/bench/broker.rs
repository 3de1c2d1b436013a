//! A broker under measurement: one shard on one core, otherwise started as the README does, with a directory of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cores::Cores;

/// A broker that runs; killed when dropped.
pub(crate) struct Broker {
    child: Child,
    pub(crate) address: String,
    begun: Instant,
    /// From the start of the process to its ready line.
    pub(crate) start: Duration,
}

impl Broker {
    /// Starts one on the log in `data`.
    pub(crate) fn start(binaries: &Path, cores: &Cores, data: &Path) -> Result<Self, String> {
        let log =
            fs::File::create(data.with_extension("log")).map_err(|error| format!("{}: {error}", data.display()))?;
        let begun = Instant::now();
        cores.as_broker();
        let child = Command::new(binaries.join("corelane-broker"))
            .arg("--data")
            .arg(data)
            .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--shards", "1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn();
        cores.as_load();
        let mut child = child.map_err(|error| format!("corelane-broker: {error}"))?;
        let stdout = child.stdout.take().expect("it was piped");
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        let start = begun.elapsed();
        let address = line.split_whitespace().find_map(|word| word.strip_prefix("listen=")).map(str::to_owned);
        if let (Ok(_), Some(address)) = (read, address) {
            return Ok(Self { child, address, begun, start });
        }
        let _ = child.kill();
        let _ = child.wait();
        let said = fs::read_to_string(data.with_extension("log")).unwrap_or_default();
        Err(format!("the broker did not get ready: {said}"))
    }

    /// CPU-seconds so far, of all its threads.
    pub(crate) fn cpu_s(&self) -> f64 {
        let stat = self.proc("stat");
        // Behind the name in parentheses: state, then numbers; the 12th and 13th are user and system time.
        let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / rustix::param::clock_ticks_per_second() as f64
    }

    /// The time since its process was started.
    pub(crate) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// How long its threads have run so far, in seconds: finer than their CPU-seconds, which are counted in ticks.
    pub(crate) fn ran_s(&self) -> f64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let ran_ns = threads.filter_map(|thread| {
            let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            stat.split_whitespace().next()?.parse::<f64>().ok()
        });
        ran_ns.sum::<f64>() / 1e9
    }

    /// Bytes that it has read from the disk.
    pub(crate) fn read_bytes(&self) -> f64 {
        number_of(&self.proc("io"), "read_bytes:")
    }

    /// Memory that it has, in MB: now and at most.
    pub(crate) fn memory_mb(&self) -> (f64, f64) {
        let status = self.proc("status");
        (number_of(&status, "VmRSS:") * 1024.0 / 1e6, number_of(&status, "VmHWM:") * 1024.0 / 1e6)
    }

    /// Memory of mappings as large as an arena, in MB: what of the arena has been touched.
    pub(crate) fn arena_mb(&self, arena_bytes: u64) -> f64 {
        let mut resident_kib = 0.0;
        let mut is_arena = false;
        for line in self.proc("smaps").lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let ends = range
                .and_then(|(from, to)| Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?)));
            if let Some((from, to)) = ends {
                is_arena = to - from >= arena_bytes;
            } else if is_arena && line.starts_with("Rss:") {
                resident_kib += number_of(line, "Rss:");
            }
        }
        resident_kib * 1024.0 / 1e6
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_default()
    }

    /// Stops it in order.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).map_err(|error| format!("the broker cannot be stopped: {error}"))?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the broker ended with {status}")) }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number behind `name` in a file of /proc.
fn number_of(text: &str, name: &str) -> f64 {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

/// The files below a directory.
pub(crate) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { left.push(path) } else { files.push(path) }
        }
    }
    files
}
