//! Starting processes that die with the test process, however that ends.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::ProcessStats;

type Order = (Command, Sender<io::Result<Child>>);

/// The same command, whose process the kernel kills when its parent goes, through util-linux's `setpriv` (which executes
/// the program in its own place, so the process id is the program's). Where that is missing, only `Drop` cleans up.
/// Standard streams are not carried over.
pub(crate) fn mortal(command: &Command) -> Command {
    let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"].into_iter().find(|path| Path::new(path).exists());
    let mut wrapped = match setpriv {
        Some(setpriv) => {
            let mut wrapped = Command::new(setpriv);
            wrapped.args(["--pdeathsig", "KILL"]).arg(command.get_program());
            wrapped
        }
        None => Command::new(command.get_program()),
    };
    wrapped.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

/// A program that runs beside a test, its standard streams on /dev/null. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts `command`: its program, arguments and environment.
    pub fn start(command: &Command) -> Process {
        let mut wrapped = mortal(command);
        wrapped.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn(wrapped).unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Process { child }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Memory, CPU time, descriptors and threads at this moment.
    pub fn stats(&self) -> ProcessStats {
        ProcessStats::of(self.pid())
    }

    /// Kills it as a crash would (SIGKILL), and waits until it is gone.
    pub fn kill9(&mut self) {
        // Fails only when it has ended already.
        let _ = self.child.kill();
        self.child.wait().expect("a child can be awaited");
    }

    /// Asks it to end (SIGTERM), without waiting.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Stops its clock (SIGSTOP): it keeps its sockets and answers nothing.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Whether it is there (paused or not).
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be awaited").is_none()
    }

    /// One that has ended hears nothing.
    fn signal(&mut self, signal: Signal) {
        if self.is_running() {
            let pid = Pid::from_raw(self.pid().cast_signed()).expect("a process id is not 0");
            kill_process(pid, signal).expect("a signal reaches an own child that was not awaited yet");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Spawns from a thread that lives as long as the process: the kernel's death signal follows the thread that forked, and
/// a test's own thread may end before its broker does.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, reply) in inbox {
                    // The caller waits for the answer, so it cannot have gone.
                    let _ = reply.send(command.spawn());
                }
            })
            .expect("a thread starts");
        Mutex::new(orders)
    });
    let (reply, answer) = channel();
    spawner.lock().expect("the spawner's lock").send((command, reply)).expect("the spawner lives");
    answer.recv().expect("the spawner answers")
}
