//! Where `consume` begins and how it ends.

use std::time::{SystemTime, UNIX_EPOCH};

use corelane_testkit::{Broker, Process, wait_until};
use rustix::process::Signal;

use crate::running::Running;
use crate::{DEADLINE, broker_with_topic, consume_all, fails, numbers, ok, produce};

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set").as_millis()
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
fn following_outlives_a_restart_of_the_broker() {
    let mut broker = broker_with_topic(1);
    let mut following = Running::start(broker.cli().args(["consume", "t"]));
    for round in 0..3 {
        produce(&broker, &[], format!("{round}\n").as_bytes());
        assert_eq!(following.line(), format!("{round}\n"));
        // Once in order, then as after a crash.
        if round > 0 {
            broker.kill9();
        }
        broker.restart();
    }
    produce(&broker, &[], b"last\n");
    assert_eq!(following.line(), "last\n");
    following.signal(Signal::TERM);
    assert_eq!(following.end().0.code(), Some(0));
}

#[test]
fn one_that_is_to_end_does_not_hang_on_a_dead_broker() {
    let mut broker = broker_with_topic(1);
    produce(&broker, &[], b"one\n");
    let mut waiting = Running::start(broker.cli().args(["--timeout", "1s", "consume", "t", "--max", "2"]));
    assert_eq!(waiting.line(), "one\n");
    broker.kill9();
    let (status, stderr) = waiting.end();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&broker.addr().to_string()), "{stderr}");
}

#[test]
fn a_topic_that_is_deleted_ends_its_readers() {
    let broker = broker_with_topic(2);
    produce(&broker, &[], b"one\n");
    let mut following = Running::start(broker.cli().args(["consume", "t"]));
    assert_eq!(following.line(), "one\n");
    ok(&broker, &["topic", "delete", "t", "--yes"]);
    let (status, stderr) = following.end();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("deleted"), "{stderr}");
}
