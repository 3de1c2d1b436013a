//! Where `consume` begins and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use corelane_testkit::{Broker, Process, wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::{DEADLINE, broker_with_topic, consume_all, fails, ok, produce};

/// Lines `from..to` as the tests publish and expect them.
fn numbers(from: u32, to: u32) -> Vec<u8> {
    (from..to).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set").as_millis()
}

/// A command under way, its standard output piped; killed when dropped.
struct Running {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the CLI can be started");
        let stdout = child.stdout.take().map(BufReader::new);
        Self { child, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.as_mut().expect("nobody has left").read_line(&mut line).expect("text");
        line
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process id is not 0");
        kill_process(pid, signal).expect("the command runs");
    }

    /// Its end and what it said on standard error.
    fn end(&mut self) -> (ExitStatus, String) {
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

/// The positions of all messages of `t`.
fn positions(broker: &Broker) -> Vec<u64> {
    let text = String::from_utf8(consume_all(broker, &["--format", r"%i\n"])).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn it_begins_where_it_is_told_to() {
    let broker = broker_with_topic(1);
    produce(&broker, &[], &numbers(0, 100));
    let before_ms = now_ms();
    wait_until("the next millisecond", DEADLINE, || now_ms() > before_ms);
    let between = now_ms();
    produce(&broker, &["--compression", "zstd"], &numbers(100, 200));
    let positions = positions(&broker);
    let from = |place: &str| consume_all(&broker, &["--from", place]);
    assert_eq!(from("earliest"), numbers(0, 200));
    assert_eq!(from("latest"), b"");
    assert_eq!(from(&positions[60].to_string()), numbers(60, 200));
    assert_eq!(from(&(positions[60] + 1).to_string()), numbers(61, 200), "the position after a message");
    assert_eq!(from(&positions[150].to_string()), numbers(150, 200), "inside a compressed set");
    assert_eq!(from(&format!("@{between}")), numbers(100, 200));
    assert_eq!(from("-1h"), numbers(0, 200));
    assert_eq!(from("2001-01-01"), numbers(0, 200));
    assert_eq!(consume_all(&broker, &["--until", &format!("@{between}")]), numbers(0, 100));
    assert_eq!(consume_all(&broker, &["--max", "7", "--from", &positions[90].to_string()]), numbers(90, 97));
    assert_eq!(consume_all(&broker, &["--max", "0"]), b"");
    for last in [0_u32, 1, 30, 99, 101, 150, 200, 1000] {
        let expected = numbers(200_u32.saturating_sub(last), 200);
        assert_eq!(consume_all(&broker, &["--last", &last.to_string()]), expected, "last {last}");
    }
    let beyond = fails(&broker, &["consume", "t", "--from", "999999999", "--exit-at-end"]);
    assert!(beyond.contains("999999999") && beyond.contains("out of range"), "{beyond}");
}

#[test]
fn partitions_can_be_chosen() {
    let broker = broker_with_topic(3);
    for partition in ["0", "1", "2"] {
        produce(&broker, &["--partition", partition], format!("in {partition}\n").as_bytes());
    }
    assert_eq!(consume_all(&broker, &["--partition", "1"]), b"in 1\n");
    let mut both = consume_all(&broker, &["--partition", "2", "--partition", "0", "--partition", "2"]);
    both.sort_unstable();
    let mut expected = b"in 0\nin 2\n".to_vec();
    expected.sort_unstable();
    assert_eq!(both, expected);
    assert!(fails(&broker, &["consume", "t", "--partition", "3"]).contains("no partition 3"));
}

#[test]
fn it_stops_at_the_ends_seen_at_start_however_busy_the_topic_is() {
    let broker = broker_with_topic(2);
    let _busy =
        Process::start(broker.loadgen("produce").args(["--topic", "t", "--duration", "120s", "--rate", "20000"]));
    wait_until("the topic to be busy", DEADLINE, || {
        consume_all(&broker, &["--max", "1000", "--format", "%p"]).len() == 1000
    });
    for _ in 0..3 {
        assert!(consume_all(&broker, &["--format", "%p"]).len() >= 1000);
    }
}

#[test]
fn it_follows_and_prints_at_once() {
    let broker = broker_with_topic(2);
    produce(&broker, &[], b"before\n");
    let mut following = Running::start(broker.cli().args(["consume", "t"]));
    assert_eq!(following.line(), "before\n");
    for number in 0..5 {
        produce(&broker, &[], format!("{number}\n").as_bytes());
        assert_eq!(following.line(), format!("{number}\n"));
    }
    following.signal(Signal::INT);
    assert_eq!(following.end().0.code(), Some(0), "a signal is how following ends");
    let mut following = Running::start(broker.cli().args(["consume", "t"]));
    following.line();
    following.signal(Signal::TERM);
    assert_eq!(following.end().0.code(), Some(0));
}

#[test]
fn a_signal_before_the_end_asked_for_is_told_by_the_status() {
    let broker = broker_with_topic(1);
    produce(&broker, &[], b"one\n");
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut waiting = Running::start(broker.cli().args(["consume", "t", "--max", "2"]));
        assert_eq!(waiting.line(), "one\n");
        waiting.signal(signal);
        assert_eq!(waiting.end().0.code(), Some(status));
    }
}

#[test]
fn a_reader_that_leaves_ends_it_with_0() {
    let broker = broker_with_topic(1);
    produce(&broker, &[], &numbers(0, 200_000));
    for arguments in [&["consume", "t"][..], &["consume", "t", "--exit-at-end"], &["consume", "t", "--last", "1"]] {
        let mut command = Running::start(broker.cli().args(arguments));
        command.line();
        // The reader leaves: while it still writes in the first two, while it only waits in the last.
        command.stdout = None;
        let (status, stderr) = command.end();
        assert_eq!((status.code(), stderr.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_does_not_read_does_not_hold_up_a_signal() {
    let broker = broker_with_topic(1);
    produce(&broker, &[], &[[b'x'; 1000].as_slice(), b"\n"].concat().repeat(8_000));
    let mut stuck = Running::start(broker.cli().args(["consume", "t"]));
    let first = stuck.line();
    assert_eq!(first.len(), 1001);
    // Far more than a pipe holds is on its way by now, and nobody reads it.
    stuck.signal(Signal::INT);
    assert_eq!(stuck.end().0.code(), Some(0));
}

#[test]
fn an_output_that_is_full_is_a_failure() {
    let broker = broker_with_topic(1);
    produce(&broker, &[], b"one\n");
    let message = fails(&broker, &["consume", "t", "--exit-at-end", "--output", "/dev/full"]);
    assert!(message.contains("cannot be written"), "{message}");
    let message = fails(&broker, &["consume", "t", "--exit-at-end", "--output", "/no/such/directory/file"]);
    assert!(message.contains("/no/such/directory/file"), "{message}");
}

#[test]
fn until_a_time_to_come_ends_when_it_has_come() {
    let broker = broker_with_topic(2);
    produce(&broker, &[], b"one\n");
    let soon_ms = now_ms() + 1_500;
    let printed = ok(&broker, &["consume", "t", "--until", &format!("@{soon_ms}")]);
    assert!(now_ms() >= soon_ms);
    assert_eq!(printed, b"one\n");
}

#[test]
fn ctrl_c_publishes_what_was_read_and_reports() {
    let broker = broker_with_topic(1);
    let mut typing = Running::start(broker.cli().args(["produce", "t"]));
    let mut stdin = typing.child.stdin.take().expect("standard input is piped");
    stdin.write_all(b"one\ntwo\nunfinished").expect("the command reads");
    wait_until("the lines to be there", DEADLINE, || consume_all(&broker, &[]) == b"one\ntwo\n");
    typing.signal(Signal::INT);
    let (status, stderr) = typing.end();
    assert_eq!(status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("2 messages read, 2 acknowledged, 0 failed"), "{stderr}");
    drop(stdin);
}

#[test]
fn a_broker_that_dies_is_told_in_the_summary_and_the_status() {
    let mut broker = broker_with_topic(1);
    let mut typing = Running::start(broker.cli().args(["--timeout", "1s", "produce", "t", "--delivery-timeout", "1s"]));
    let mut stdin = typing.child.stdin.take().expect("standard input is piped");
    stdin.write_all(b"one\n").expect("the command reads");
    wait_until("the line to be there", DEADLINE, || consume_all(&broker, &[]) == b"one\n");
    broker.kill9();
    stdin.write_all(b"two\nthree\n").expect("the command reads");
    drop(stdin);
    let (status, stderr) = typing.end();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("3 messages read, 1 acknowledged, 2 failed"), "{stderr}");
}

#[test]
fn every_line_is_accounted_for_when_the_broker_stops_answering() {
    let mut broker = broker_with_topic(1);
    let arguments = ["--json", "--timeout", "1s", "produce", "t", "--delivery-timeout", "1s"];
    let mut typing = Running::start(broker.cli().args(arguments));
    let mut stdin = typing.child.stdin.take().expect("standard input is piped");
    stdin.write_all(&numbers(0, 10)).expect("the command reads");
    wait_until("the lines to be there", DEADLINE, || consume_all(&broker, &[]) == numbers(0, 10));
    broker.pause();
    stdin.write_all(&numbers(10, 20_000)).expect("the command reads");
    drop(stdin);
    let summary: serde_json::Value = serde_json::from_str(&typing.line()).expect("--json prints JSON");
    let (status, stderr) = typing.end();
    broker.resume();
    assert_eq!(status.code(), Some(1), "{stderr}");
    let count = |field: &str| summary[field].as_u64().expect("a number");
    assert_eq!(count("messages"), 20_000);
    assert_eq!(count("acknowledged") + count("failed") + count("unsent"), 20_000, "{summary}");
    // What was acknowledged is there, from the first line on: order is kept.
    let acknowledged = numbers(0, u32::try_from(count("acknowledged")).expect("at most 20,000"));
    assert!(consume_all(&broker, &[]).starts_with(&acknowledged));
}
