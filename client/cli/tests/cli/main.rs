//! The command line as its users meet it: the real binary against a real broker.

mod consume;
mod documented;
mod export;
mod groups;
mod interrupted;
mod lines;
mod logs;
mod mirror;
mod mirror_told;
mod running;
mod terminal;
mod topics;
mod unreachable;
mod usage;

use std::process::Command;
use std::time::Duration;

use corelane_testkit::{Broker, BrokerOptions, Finished, bin, run, run_with_input};

/// No command of these tests needs anything like it; one that takes so long hangs.
const DEADLINE: Duration = Duration::from_mins(1);

/// The CLI without a broker.
fn corelane() -> Command {
    let mut command = Command::new(bin("corelane"));
    command.env_remove("CORELANE_BROKER");
    command
}

/// A broker with a topic of so many partitions, called `t`.
fn broker_with_topic(partitions: u32) -> Broker {
    let broker = Broker::start(BrokerOptions::new());
    ok(&broker, &["topic", "create", "t", "--partitions", &partitions.to_string()]);
    broker
}

/// Runs the CLI to its end.
#[track_caller]
fn cli(broker: &Broker, args: &[&str]) -> Finished {
    run(broker.cli().args(args), DEADLINE)
}

/// Runs the CLI, asserts that it succeeds, and gives its standard output.
#[track_caller]
fn ok(broker: &Broker, args: &[&str]) -> Vec<u8> {
    cli(broker, args).success().stdout
}

/// Runs the CLI, asserts that it fails with status 1 and says nothing on standard output, and gives its messages.
#[track_caller]
fn fails(broker: &Broker, args: &[&str]) -> String {
    let finished = cli(broker, args);
    assert_eq!(finished.status.code(), Some(1), "{args:?}: {}", finished.stderr);
    assert_eq!(finished.text(), "", "{args:?}");
    finished.stderr
}

/// Runs the CLI and parses its JSON.
#[track_caller]
fn json(broker: &Broker, args: &[&str]) -> serde_json::Value {
    serde_json::from_slice(&ok(broker, args)).expect("--json prints JSON")
}

/// Publishes `input` with `corelane produce t`.
#[track_caller]
fn produce(broker: &Broker, args: &[&str], input: &[u8]) -> Finished {
    run_with_input(broker.cli().args(["produce", "t"]).args(args), input, DEADLINE).success()
}

/// Everything that `corelane consume t --exit-at-end` prints.
#[track_caller]
fn consume_all(broker: &Broker, args: &[&str]) -> Vec<u8> {
    run(broker.cli().args(["consume", "t", "--exit-at-end"]).args(args), DEADLINE).success().stdout
}

/// Lines `from..to` as the tests publish and expect them.
fn numbers(from: u32, to: u32) -> Vec<u8> {
    (from..to).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}
