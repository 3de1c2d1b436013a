//! Running a program to its end, with a deadline.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What a finished program left.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error, bytes that are not UTF-8 replaced.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

impl Finished {
    /// Itself, after asserting that it ended with status 0.
    #[track_caller]
    pub fn success(self) -> Finished {
        assert!(self.status.success(), "{}\n{}", self.status, self.stderr);
        self
    }

    /// Its standard output as text, bytes that are not UTF-8 replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Runs `command` with nothing on its standard input. Kills it and panics when `within` has passed.
#[track_caller]
pub fn run(command: &mut Command, within: Duration) -> Finished {
    run_with_input(command, &[], within)
}

/// Runs `command` with `input` on its standard input. Kills it and panics when `within` has passed.
#[track_caller]
pub fn run_with_input(command: &mut Command, input: &[u8], within: Duration) -> Finished {
    // Files instead of pipes: the program never waits for us, and no thread is needed to drain it.
    let mut stdin = tempfile::tempfile().expect("a temporary file");
    stdin.write_all(input).and_then(|()| stdin.rewind()).expect("a temporary file can be written");
    let stdout = tempfile::tempfile().expect("a temporary file");
    let stderr = tempfile::tempfile().expect("a temporary file");
    let share = |file: &File| Stdio::from(file.try_clone().expect("a descriptor can be duplicated"));
    let started = Instant::now();
    let mut child = command
        .stdin(share(&stdin))
        .stdout(share(&stdout))
        .stderr(share(&stderr))
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be awaited") {
            break status;
        }
        if started.elapsed() > within {
            // It may end by itself between the check and the kill; the panic says what matters either way.
            let _ = child.kill();
            let _ = child.wait();
            panic!("{command:?} still ran after {within:?}\n{}", String::from_utf8_lossy(&contents(stderr)));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = started.elapsed();
    let stderr = String::from_utf8_lossy(&contents(stderr)).into_owned();
    Finished { status, stdout: contents(stdout), stderr, took }
}

fn contents(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file can be read");
    bytes
}
