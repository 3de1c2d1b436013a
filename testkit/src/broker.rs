//! A real broker under test: the binary in a directory and on ports of its own, stopped, killed, paused and started again
//! as the test likes. When a test fails, the end of its broker's log is printed with it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::binaries::bin;
use crate::child::{mortal, spawn};
use crate::dir::TestDir;
use crate::ports::Port;
use crate::process::ProcessStats;

/// A broker that takes longer than this to stop is broken, whatever the machine; the promise itself (10 s) has a test.
const STOP_DEADLINE: Duration = Duration::from_mins(1);
const LOG_LINES_SHOWN: usize = 60;

/// How to start a broker. What is not said is the binary's default.
#[derive(Debug, Clone)]
pub struct BrokerOptions {
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    config: Option<String>,
    data: Option<PathBuf>,
    listen: Option<SocketAddr>,
    shards: usize,
    wrapper: Vec<OsString>,
    ready_within: Duration,
}

impl Default for BrokerOptions {
    fn default() -> BrokerOptions {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        BrokerOptions {
            args: Vec::new(),
            env: Vec::new(),
            config: None,
            data: None,
            listen: None,
            shards: cores.min(2),
            wrapper: Vec::new(),
            ready_within: Duration::from_mins(1),
        }
    }
}

impl BrokerOptions {
    /// The defaults: two shards where there are two cores, a data directory of its own, free ports.
    pub fn new() -> BrokerOptions {
        BrokerOptions::default()
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> BrokerOptions {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> BrokerOptions {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> BrokerOptions {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The text of a configuration file, given by `--config`.
    pub fn config(mut self, toml: impl Into<String>) -> BrokerOptions {
        self.config = Some(toml.into());
        self
    }

    /// A data directory that is not the broker's to remove.
    pub fn data(mut self, directory: impl Into<PathBuf>) -> BrokerOptions {
        self.data = Some(directory.into());
        self
    }

    /// An address to listen on instead of a free port on 127.0.0.1.
    pub fn listen(mut self, addr: SocketAddr) -> BrokerOptions {
        self.listen = Some(addr);
        self
    }

    /// The number of shards.
    pub fn shards(mut self, shards: usize) -> BrokerOptions {
        self.shards = shards;
        self
    }

    /// A program and its arguments in front of the broker's own, such as `prlimit`; it must execute what follows.
    pub fn wrapper<A: Into<OsString>>(mut self, words: impl IntoIterator<Item = A>) -> BrokerOptions {
        self.wrapper = words.into_iter().map(Into::into).collect();
        self
    }

    /// How long the ready line may take.
    pub fn ready_within(mut self, deadline: Duration) -> BrokerOptions {
        self.ready_within = deadline;
        self
    }
}

/// A broker that did not get ready.
#[derive(Debug)]
pub struct StartFailure {
    /// How it ended; `None` when it was still trying at the deadline and was killed.
    pub status: Option<ExitStatus>,
    /// What it wrote to its standard error at this start.
    pub stderr: String,
    /// How long it took to give up.
    pub took: Duration,
}

/// A time that a shard was kept from its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// How long, without what it waited for its core.
    pub time: Duration,
    /// Of that, how long the shard ran; the rest it was blocked, or the machine stood still.
    pub ran: Duration,
}

impl Stall {
    fn parse(line: &str) -> Stall {
        let [time, ran] = ["\"stall_us\":", "\"ran_us\":"].map(|name| {
            let digits = line.split_once(name).map_or("", |(_, rest)| rest);
            let digits = &digits[..digits.find(|other: char| !other.is_ascii_digit()).unwrap_or(digits.len())];
            Duration::from_micros(digits.parse().expect("a line about a stall says how long"))
        });
        Stall { time, ran }
    }
}

/// A broker process and what belongs to it. Killed when dropped.
#[derive(Debug)]
pub struct Broker {
    options: BrokerOptions,
    // Dropped in this order: the process before its directory.
    running: Option<Running>,
    listen: Port,
    http: Port,
    home: TestDir,
}

#[derive(Debug)]
struct Running {
    child: Child,
    paused: bool,
    ready_line: String,
    took: Duration,
}

impl Broker {
    /// Starts a broker and waits until it is ready. Panics with its log when it does not get ready.
    #[track_caller]
    pub fn start(options: BrokerOptions) -> Broker {
        match Broker::try_start(options) {
            Ok(broker) => broker,
            Err(failure) => panic!("the broker did not start: {failure:#?}"),
        }
    }

    /// Starts a broker that may refuse to.
    pub fn try_start(options: BrokerOptions) -> Result<Broker, StartFailure> {
        let mut broker = Broker {
            options,
            running: None,
            listen: Port::reserve(),
            http: Port::reserve(),
            home: TestDir::new("broker"),
        };
        broker.launch()?;
        Ok(broker)
    }

    /// Where clients connect; the same after a restart.
    pub fn addr(&self) -> SocketAddr {
        self.options.listen.unwrap_or_else(|| self.listen.addr())
    }

    /// Where the HTTP pages are; the same after a restart.
    pub fn http_addr(&self) -> SocketAddr {
        self.http.addr()
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.options.data.clone().unwrap_or_else(|| self.home.join("data"))
    }

    /// The process id. Panics when the broker does not run.
    pub fn pid(&self) -> u32 {
        self.running().child.id()
    }

    /// The ready line of the last start.
    pub fn ready_line(&self) -> &str {
        &self.running().ready_line
    }

    /// The time from the last start to its ready line.
    pub fn start_took(&self) -> Duration {
        self.running().took
    }

    /// Memory, CPU time, descriptors and threads at this moment.
    pub fn stats(&self) -> ProcessStats {
        ProcessStats::of(self.pid())
    }

    /// Resident memory, in bytes.
    pub fn rss_bytes(&self) -> u64 {
        self.stats().rss_bytes
    }

    /// CPU time since the last start, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        self.stats().cpu_seconds
    }

    /// Open file descriptors.
    pub fn descriptors(&self) -> usize {
        self.stats().descriptors
    }

    /// What the broker wrote to its standard error, over all its starts.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What it has said of shards that did not come back to their rings in time, if it was started with `--stall-warning`.
    pub fn stalls(&self) -> Vec<Stall> {
        let log = self.log();
        assert!(!log.contains("nobody watches"), "the watch does not work here:\n{log}");
        log.lines().filter(|line| line.contains("did not come back in time")).map(Stall::parse).collect()
    }

    /// Where that log is.
    pub fn log_path(&self) -> PathBuf {
        self.home.join("stderr.log")
    }

    /// The CLI with this broker's address in its environment, ready for arguments.
    pub fn cli(&self) -> Command {
        let mut command = Command::new(bin("corelane"));
        forget_own_variables(&mut command);
        command.env("CORELANE_BROKER", self.addr().to_string());
        command
    }

    /// The load generator for this broker: the first argument is its mode.
    pub fn loadgen(&self, mode: &str) -> Command {
        let mut command = Command::new(bin("corelane-loadgen"));
        command.arg(mode).arg("--broker").arg(self.addr().to_string());
        command
    }

    /// Kills the process as a crash would (SIGKILL), and waits until it is gone.
    pub fn kill9(&mut self) {
        let mut running = self.running.take().expect("the broker runs");
        // Fails only when it has just ended by itself.
        let _ = running.child.kill();
        running.child.wait().expect("a child can be awaited");
    }

    /// Sends SIGTERM without waiting.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Stops the broker in order (SIGTERM), asserts that it ended with status 0, and tells how long that took.
    #[track_caller]
    pub fn stop(&mut self) -> Duration {
        if self.running().paused {
            self.resume();
        }
        let started = Instant::now();
        self.terminate();
        match self.wait(STOP_DEADLINE) {
            Some(status) => assert!(status.success(), "after SIGTERM the broker ended with {status}"),
            None => panic!("the broker still runs {STOP_DEADLINE:?} after SIGTERM"),
        }
        started.elapsed()
    }

    /// Waits for the process to end by itself; `None` when it still runs at the deadline.
    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        let running = self.running.as_mut().expect("the broker runs");
        let started = Instant::now();
        loop {
            if let Some(status) = running.child.try_wait().expect("a child can be awaited") {
                self.running = None;
                return Some(status);
            }
            if started.elapsed() > within {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether the process is there (paused or not).
    pub fn is_running(&mut self) -> bool {
        let ended = |running: &mut Running| running.child.try_wait().expect("a child can be awaited").is_some();
        self.running.as_mut().is_some_and(|running| !ended(running))
    }

    /// Starts the broker again on the same directory and ports, stopping it in order first if it runs.
    #[track_caller]
    pub fn restart(&mut self) {
        if let Err(failure) = self.try_restart() {
            panic!("the broker did not start again: {failure:#?}");
        }
    }

    /// [`restart`](Broker::restart) for a start that may be refused.
    #[track_caller]
    pub fn try_restart(&mut self) -> Result<(), StartFailure> {
        if self.running.is_some() {
            self.stop();
        }
        self.launch()
    }

    /// Other options for the next start. Data directory and address stay unless they name others.
    pub fn set_options(&mut self, options: BrokerOptions) {
        let data = options.data.clone().or_else(|| self.options.data.clone());
        let listen = options.listen.or(self.options.listen);
        self.options = BrokerOptions { data, listen, ..options };
    }

    /// Stops the process's clock (SIGSTOP): it keeps its sockets and answers nothing.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
        self.running.as_mut().expect("the broker runs").paused = true;
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
        self.running.as_mut().expect("the broker runs").paused = false;
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the broker runs")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a process id is not 0");
        kill_process(pid, signal).expect("a signal reaches an own child that was not awaited yet");
    }

    fn command(&self) -> Command {
        let binary = bin("corelane-broker");
        let mut words = self.options.wrapper.iter().cloned().chain([binary.into_os_string()]);
        let mut command = Command::new(words.next().expect("at least the binary"));
        forget_own_variables(&mut command);
        command.args(words);
        if let Some(toml) = &self.options.config {
            let path = self.home.join("broker.toml");
            fs::write(&path, toml).expect("the broker's directory can be written");
            command.arg("--config").arg(path);
        }
        command.arg("--data").arg(self.data_dir());
        command.args(["--listen", &self.addr().to_string(), "--http", &self.http_addr().to_string()]);
        command.args(["--shards", &self.options.shards.to_string()]);
        command.args(&self.options.args);
        command.envs(self.options.env.iter().map(|(name, value)| (name, value)));
        command
    }

    fn launch(&mut self) -> Result<(), StartFailure> {
        let log_path = self.log_path();
        let log = OpenOptions::new().create(true).append(true).open(&log_path).expect("the log can be opened");
        let log_start = log.metadata().expect("an open file has metadata").len() as usize;
        let mut command = mortal(&self.command());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let started = Instant::now();
        let mut child = spawn(command).unwrap_or_else(|error| panic!("cannot start the broker: {error}"));
        let stdout = child.stdout.take().expect("standard output was piped");
        match ready_line(stdout, self.options.ready_within) {
            Ok(line) => {
                self.running = Some(Running { child, paused: false, ready_line: line, took: started.elapsed() });
                Ok(())
            }
            Err(wait) => {
                if wait == RecvTimeoutError::Timeout {
                    // Fails only when it has just ended by itself.
                    let _ = child.kill();
                }
                let status = child.wait().expect("a child can be awaited");
                let status = (wait == RecvTimeoutError::Disconnected).then_some(status);
                let stderr = fs::read(&log_path).unwrap_or_default().split_off(log_start);
                let stderr = String::from_utf8_lossy(&stderr).into_owned();
                Err(StartFailure { status, stderr, took: started.elapsed() })
            }
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            let before = running.child.try_wait();
            // Both fail only when it has ended already.
            let _ = running.child.kill();
            let _ = running.child.wait();
            if let (true, Ok(Some(status))) = (std::thread::panicking(), before) {
                eprintln!("the broker had ended by itself: {status}");
            }
        }
        if std::thread::panicking() {
            eprintln!("{}", last_lines(&self.log(), &self.log_path()));
        }
    }
}

/// Takes the tests' own variables out of a program's environment, where they would count as settings.
fn forget_own_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CORELANE_") {
            command.env_remove(name);
        }
    }
}

/// Waits for the first line that says ready. The rest of the output is read and dropped, so that the broker never meets
/// a closed or a full pipe.
fn ready_line(stdout: ChildStdout, within: Duration) -> Result<String, RecvTimeoutError> {
    let (lines, ready) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line.starts_with("corelane-broker ready ") {
                // Nobody waits any more when the deadline has passed.
                let _ = lines.send(line);
            }
        }
    });
    ready.recv_timeout(within)
}

fn last_lines(log: &str, path: &Path) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
    let mut text =
        format!("--- the broker's log, last {} of {} lines of {}\n", shown.len(), lines.len(), path.display());
    for line in shown {
        writeln!(text, "    {line}").expect("a string can be written");
    }
    text
}
