//! A real etcd of a test's own, from the system's package: one member on 127.0.0.1, with its own directory and ports,
//! killed, stopped, started again and put back to an earlier state as the test likes.

mod api;

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::child::{mortal, spawn};
use crate::dir::TestDir;
use crate::ports::Port;
use crate::wait::wait_until;
pub use api::EtcdKey;

/// It elects itself within a second or two; only a machine that is stuck needs longer.
const READY_WITHIN: Duration = Duration::from_mins(1);
const STOP_WITHIN: Duration = Duration::from_secs(30);
/// What it logs, in every version so far, once it takes requests.
const READY_LINE: &str = "serving client traffic";

/// An etcd server and what belongs to it. Killed when dropped.
#[derive(Debug)]
pub struct Etcd {
    // Dropped in this order: the process before its directory.
    child: Option<Child>,
    program: PathBuf,
    args: Vec<String>,
    /// Another address than a port of 127.0.0.1, and what stands before the command.
    elsewhere: Option<(SocketAddr, Vec<String>)>,
    client: Port,
    peer: Port,
    home: TestDir,
}

impl Etcd {
    /// Where the server is installed; `None` where it is not, for [`skip`](crate::skip).
    pub fn installed() -> Option<PathBuf> {
        ["/usr/bin/etcd", "/usr/local/bin/etcd"].into_iter().map(PathBuf::from).find(|path| path.exists())
    }

    /// Starts one with further arguments, on an empty directory. Panics where it is not installed.
    #[track_caller]
    pub fn start(args: &[&str]) -> Etcd {
        Etcd::new(args, None)
    }

    /// The same at an address that may be another machine's, by a command behind these words.
    #[track_caller]
    pub fn start_at(addr: SocketAddr, wrapper: impl IntoIterator<Item = String>) -> Etcd {
        Etcd::new(&[], Some((addr, wrapper.into_iter().collect())))
    }

    #[track_caller]
    fn new(args: &[&str], elsewhere: Option<(SocketAddr, Vec<String>)>) -> Etcd {
        let program = Etcd::installed().expect("etcd is installed");
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        let (client, peer) = (Port::reserve(), Port::reserve());
        let mut etcd = Etcd { child: None, program, args, elsewhere, client, peer, home: TestDir::new("etcd") };
        etcd.restart();
        etcd
    }

    /// Where clients connect, as a URL; the same after a restart.
    pub fn endpoint(&self) -> String {
        let tls = self.args.iter().any(|arg| arg == "--cert-file");
        format!("{}://{}", if tls { "https" } else { "http" }, self.addr())
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.elsewhere.as_ref().map_or_else(|| self.client.addr(), |(addr, _)| *addr)
    }

    /// Its data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.home.join("data")
    }

    /// The process id. Panics when it does not run.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("etcd runs").id()
    }

    /// What it wrote to its standard error, over all its starts.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.home.join("etcd.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Kills it as a crash would (SIGKILL), and waits until it is gone.
    pub fn kill9(&mut self) {
        let mut child = self.child.take().expect("etcd runs");
        // Fails only when it has just ended by itself.
        let _ = child.kill();
        child.wait().expect("a child can be awaited");
    }

    /// Stops its clock (SIGSTOP): it keeps its sockets and answers nothing.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a process id is not 0");
        kill_process(pid, signal).expect("a signal reaches an own child that was not awaited yet");
    }

    /// Empties it: what it held is gone, and it is another cluster to its clients. It must not run.
    pub fn empty(&self) {
        assert!(self.child.is_none(), "the data of a server that runs cannot be removed");
        fs::remove_dir_all(self.data_dir()).expect("the data can be removed");
    }

    /// Stops it in order (SIGTERM).
    #[track_caller]
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        let mut child = self.child.take().expect("etcd runs");
        wait_until("etcd's end", STOP_WITHIN, || child.try_wait().expect("a child can be awaited").is_some());
    }

    /// Starts it again on what its directory holds, stopping it in order first if it runs; waits until it takes requests.
    #[track_caller]
    pub fn restart(&mut self) {
        if self.child.is_some() {
            self.stop();
        }
        let log_start = self.log().len();
        let log = OpenOptions::new().create(true).append(true).open(self.home.join("etcd.log"));
        let mut command = mortal(&self.command());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("the log can be opened"));
        let mut child = spawn(command).unwrap_or_else(|error| panic!("cannot start etcd: {error}"));
        wait_until("etcd", READY_WITHIN, || {
            let ended = child.try_wait().expect("a child can be awaited");
            assert!(ended.is_none(), "etcd ended at its start:\n{}", &self.log()[log_start..]);
            self.log()[log_start..].contains(READY_LINE)
        });
        self.child = Some(child);
    }

    /// Copies its data aside under a name, as a backup would. It must not run.
    pub fn save(&self, name: &str) {
        assert!(self.child.is_none(), "the data of a server that runs cannot be copied");
        copy(&self.data_dir(), &self.home.join(name)).expect("the data can be copied");
    }

    /// Puts what was saved in the place of its data. It must not run.
    pub fn restore(&self, name: &str) {
        assert!(self.child.is_none(), "the data of a server that runs cannot be replaced");
        fs::remove_dir_all(self.data_dir()).expect("the data can be removed");
        copy(&self.home.join(name), &self.data_dir()).expect("the data can be copied");
    }

    fn command(&self) -> Command {
        let client = self.endpoint();
        let peer = format!("http://{}", self.peer.addr());
        let wrapper = self.elsewhere.iter().flat_map(|(_, wrapper)| wrapper.iter().map(OsString::from));
        let mut words = wrapper.chain([self.program.clone().into_os_string()]);
        let mut command = Command::new(words.next().expect("at least the program"));
        command.args(words).arg("--data-dir").arg(self.data_dir());
        command.args(["--name", "test", "--logger", "zap", "--log-outputs", "stderr"]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("test={peer}")]);
        command.args(&self.args);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(name);
        }
        command
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Both fail only when it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&source, &target)?;
        } else {
            fs::copy(&source, &target)?;
        }
    }
    // etcd insists on a directory that nobody else reads.
    fs::set_permissions(to, fs::metadata(from)?.permissions())
}
