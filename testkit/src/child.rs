//! Starting processes that die with the test process, however that ends.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

use std::ffi::OsStr;
use std::path::Path;

type Order = (Command, Sender<io::Result<Child>>);

/// A command whose process the kernel kills when its parent goes, through util-linux's `setpriv` (which executes the
/// program in its own place, so the process id is the program's). Where that is missing, only `Drop` cleans up.
pub(crate) fn mortal(program: impl AsRef<OsStr>) -> Command {
    let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"].into_iter().find(|path| Path::new(path).exists());
    match setpriv {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL"]).arg(program);
            command
        }
        None => Command::new(program),
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
