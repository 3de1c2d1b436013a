//! A command that runs beside the test: its output read line by line, signals sent to it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use corelane_testkit::wait_for;
use rustix::process::{Pid, Signal, kill_process};

use crate::DEADLINE;

/// A command under way, its standard output piped; killed when dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    /// None: the reader has left.
    pub(crate) stdout: Option<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the CLI can be started");
        let stdout = child.stdout.take().map(BufReader::new);
        Self { child, stdout }
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.as_mut().expect("nobody has left").read_line(&mut line).expect("text");
        line
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process id is not 0");
        kill_process(pid, signal).expect("the command runs");
    }

    /// Its end and what it said on standard error.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        let status = wait_for("the command to end", DEADLINE, || self.child.try_wait().unwrap());
        let mut stderr = String::new();
        self.child.stderr.take().expect("standard error is piped").read_to_string(&mut stderr).expect("text");
        (status, stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
