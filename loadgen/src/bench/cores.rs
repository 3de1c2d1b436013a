//! Which of the machine's cores the broker and the load get.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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
