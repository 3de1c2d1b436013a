//! The load generator as its users meet it: the real binary against a real broker.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use corelane_testkit::{Broker, BrokerOptions, Finished, TestDir, run, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// No run of these tests needs anything like it.
const DEADLINE: Duration = Duration::from_mins(2);

/// Runs the load generator and reads its report.
#[track_caller]
fn report(broker: &Broker, mode: &str, args: &[&str]) -> Value {
    let finished = run(broker.loadgen(mode).args(["--topic", "t", "--json", "-"]).args(args), DEADLINE).success();
    serde_json::from_slice(&finished.stdout).expect("--json prints JSON")
}

#[track_caller]
fn fails(mut command: Command) -> Finished {
    let finished = run(&mut command, DEADLINE);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    finished
}

#[test]
fn what_is_published_is_consumed_and_verified() {
    let broker = Broker::start(BrokerOptions::new());
    for args in [
        &["--create-partitions", "3", "--count", "20000", "--connections", "2"][..],
        &["--count", "3001", "--set", "1", "--size", "32"],
        &["--count", "20000", "--set", "1000", "--connections", "5", "--acks", "received"],
        &["--count", "20000", "--compression", "lz4", "--acks", "none"],
        &["--count", "2000", "--rate", "4000", "--set", "10"],
        &["--count", "40", "--size", "1000000", "--set", "1"],
    ] {
        let report = report(&broker, "both", args);
        let count: u64 = args[args.iter().position(|arg| *arg == "--count").unwrap() + 1].parse().unwrap();
        assert_eq!(report["produce"]["messages"], count, "{args:?}: {report}");
        assert_eq!(report["consume"]["messages"], count, "{args:?}: {report}");
        assert_eq!((&report["verified"], &report["errors"]), (&json!(true), &json!({})), "{args:?}: {report}");
    }
}

#[test]
fn the_report_has_the_documented_shape() {
    let broker = Broker::start(BrokerOptions::new());
    let report = report(&broker, "both", &["--create-partitions", "1", "--count", "1000"]);
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    // Sorted by name, as serde_json reads them.
    assert_eq!(fields(&report), "ack_us consume end_to_end_us errors produce verified");
    for flow in ["produce", "consume"] {
        assert_eq!(fields(&report[flow]), "bytes mb_per_s messages messages_per_s seconds");
        assert_eq!(report[flow]["bytes"], 200_000);
    }
    for latencies in ["ack_us", "end_to_end_us"] {
        assert_eq!(fields(&report[latencies]), "max p50 p90 p99 p999");
        assert!(report[latencies]["p50"].as_u64().unwrap() > 0);
    }
}

#[test]
fn another_run_is_consumed_and_verified_later() {
    let broker = Broker::start(BrokerOptions::new());
    let directory = TestDir::new("loadgen");
    let file = directory.join("report.json");
    let published = report(&broker, "produce", &["--create-partitions", "2", "--count", "5000", "--connections", "2"]);
    assert_eq!((&published["consume"], &published["end_to_end_us"]), (&Value::Null, &Value::Null));
    let consume = ["--topic", "t", "--exit-at-end", "--connections", "2", "--json", file.to_str().unwrap()];
    let finished = run(broker.loadgen("consume").args(consume), DEADLINE).success();
    assert!(finished.text().contains("verified"), "a table as well: {}", finished.text());
    let consumed: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!((&consumed["consume"]["messages"], &consumed["verified"]), (&json!(5000), &json!(true)), "{consumed}");
    assert_eq!((&consumed["produce"], &consumed["ack_us"]), (&Value::Null, &Value::Null));
}

#[test]
fn what_is_not_all_there_is_not_verified() {
    let broker = Broker::start(BrokerOptions::new());
    report(&broker, "produce", &["--create-partitions", "1", "--count", "1000"]);
    let mut consume = broker.loadgen("consume");
    consume.args(["--topic", "t", "--count", "1001", "--duration", "1s"]);
    assert!(fails(consume).text().contains("NOT VERIFIED"));
}

#[test]
fn what_carries_no_number_and_what_is_not_there_is_not_verified() {
    let broker = Broker::start(BrokerOptions::new());
    let topic = ["topic", "create", "t", "--partitions", "1"];
    run(broker.cli().args(topic), DEADLINE).success();
    let consume = || {
        let mut consume = broker.loadgen("consume");
        consume.args(["--topic", "t", "--exit-at-end"]);
        fails(consume).text()
    };
    assert!(consume().contains("NOT VERIFIED"), "nothing is there");
    let directory = TestDir::new("loadgen");
    let source = directory.join("lines");
    std::fs::write(&source, "one\ntwo\n").unwrap();
    run(broker.cli().args(["produce", "t", "--file", source.to_str().unwrap()]), DEADLINE).success();
    let report = consume();
    assert!(report.contains("NOT VERIFIED") && report.contains("values without a number"), "{report}");
}

#[test]
fn an_unknown_topic_and_a_dead_address_are_errors() {
    let mut broker = Broker::start(BrokerOptions::new());
    let mut unknown = broker.loadgen("both");
    unknown.args(["--topic", "gone"]);
    let message = fails(unknown).stderr;
    assert!(message.contains("--create-partitions"), "{message}");
    broker.kill9();
    let mut dead = broker.loadgen("both");
    dead.args(["--topic", "t", "--timeout", "1s"]);
    let message = fails(dead).stderr;
    assert!(message.contains(&broker.addr().to_string()), "{message}");
}

/// A run under way on one partition of a topic `t` that it makes.
fn start_both(broker: &Broker, args: &[&str]) -> Child {
    let mut command = broker.loadgen("both");
    command.args(["--topic", "t", "--create-partitions", "1", "--json", "-"]).args(args);
    command.stdout(Stdio::piped()).spawn().expect("the load generator can be started")
}

/// Waits until consumers may read so much of the topic.
fn wait_for_bytes(broker: &Broker, bytes: u64) {
    wait_for("messages to be there", DEADLINE, || {
        let described = run(broker.cli().args(["--json", "topic", "describe", "t"]), DEADLINE);
        let described: Value = serde_json::from_slice(&described.stdout).ok()?;
        (described["partitions"][0]["visible_end"].as_u64()? > bytes).then_some(())
    });
}

#[test]
fn a_broker_that_is_killed_under_load_loses_nothing() {
    let mut broker = Broker::start(BrokerOptions::new());
    let mut child = start_both(&broker, &["--count", "60000", "--rate", "20000"]);
    for bytes in [1_000_000, 4_000_000] {
        wait_for_bytes(&broker, bytes);
        broker.kill9();
        broker.restart();
    }
    let status = wait_for("the end", DEADLINE, || child.try_wait().expect("a child can be awaited"));
    let report: Value = serde_json::from_reader(child.stdout.take().expect("piped")).expect("a report");
    assert!(status.success(), "{report}");
    assert_eq!((&report["verified"], &report["produce"]["messages"]), (&json!(true), &json!(60_000)), "{report}");
}

#[test]
fn ctrl_c_ends_a_run_with_its_report() {
    let broker = Broker::start(BrokerOptions::new());
    let mut child = start_both(&broker, &["--duration", "10m", "--rate", "5000"]);
    wait_for_bytes(&broker, 100_000);
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id is not 0");
    kill_process(pid, Signal::INT).expect("the load generator runs");
    let status = wait_for("the end", DEADLINE, || child.try_wait().expect("a child can be awaited"));
    assert!(status.success(), "{status}");
    let report: Value = serde_json::from_reader(child.stdout.take().expect("piped")).expect("a report");
    assert_eq!(report["verified"], true);
    assert_eq!(report["produce"]["messages"], report["consume"]["messages"]);
}
