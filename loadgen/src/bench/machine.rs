//! The machine: what is told of it, and which of its cores the broker and the load get.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// What is told of the machine.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) huge_pages: String,
    pub(crate) version: &'static str,
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
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// The broker has the first core that this process may use, the load the others; on a machine with one core they share it.
#[derive(Clone)]
pub(crate) struct Cores {
    broker: CpuSet,
    load: CpuSet,
}

impl Cores {
    pub(crate) fn divide() -> Result<Self, String> {
        let allowed =
            sched_getaffinity(None).map_err(|error| format!("cannot learn which cores there are: {error}"))?;
        let (mut broker, mut load) = (CpuSet::new(), CpuSet::new());
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        broker.set(cores.next().ok_or("there is no core")?);
        cores.for_each(|core| load.set(core));
        if load.count() == 0 {
            load = broker;
        }
        Ok(Self { broker, load })
    }

    /// What this thread starts from now on, threads and processes, runs on the broker's core. So does the thread itself.
    pub(crate) fn as_broker(&self) {
        set(&self.broker);
    }

    /// The same, on the load's cores.
    pub(crate) fn as_load(&self) {
        set(&self.load);
    }
}

fn set(cores: &CpuSet) {
    if let Err(error) = sched_setaffinity(None, cores) {
        eprintln!("corelane-bench: cannot choose the core: {error}");
    }
}
