//! `produce` when it is stopped, or its broker is: every line is accounted for.

use std::io::{BufRead, BufReader, Write};

use corelane_testkit::{Broker, wait_until};
use rustix::process::Signal;

use crate::running::Running;
use crate::{DEADLINE, broker_with_topic, consume_all, numbers};

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
fn a_broker_that_is_away_at_the_start_is_waited_for_and_a_signal_ends_that() {
    let mut broker = broker_with_topic(1);
    broker.stop();
    let start = |broker: &Broker| {
        let mut typing = Running::start(broker.cli().args(["produce", "t"]));
        let mut line = String::new();
        BufReader::new(typing.child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("no broker can be reached") && line.contains("trying for 30 s"), "{line}");
        typing
    };
    let mut waiting = start(&broker);
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.end().0.code(), Some(143));
    let mut typing = start(&broker);
    typing.child.stdin.take().unwrap().write_all(b"one\n").unwrap();
    broker.restart();
    assert!(typing.end().0.success());
    assert_eq!(consume_all(&broker, &[]), b"one\n");
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
