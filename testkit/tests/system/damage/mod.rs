//! Damage on the disk: bits, zeros, cuts, swapped, missing and foreign files, other versions and owners, in closed and in
//! active segments, with the broker stopped and running. Each case ends with a line in the log, a counter, and the good
//! messages served. The damaged directories are kept in `testkit/fixtures`, see its README.

mod cases;
mod fixture;
mod golden;
mod recipes;
mod running;
mod stopped;
mod tears;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use corelane_client::{Client, ConsumerStats, Start};
use corelane_testkit::{Broker, Finished, bin, http_get, run};
use serde_json::Value;

use crate::support::{PATIENCE, soon};

/// The topic of the kept directories. Partition 0 is the one that is damaged, partition 1 the one beside it.
const TOPIC: &str = "orders";

/// A message as a consumer gets it: its number and its value.
type Got = (u64, String);

/// All that a partition gives to a consumer that begins at `start`, and what the consumer says of it.
async fn read_partition(client: &Client, partition: u32, start: Start) -> (Vec<Got>, ConsumerStats) {
    read(client, TOPIC, partition, start).await
}

async fn read(client: &Client, topic: &str, partition: u32, start: Start) -> (Vec<Got>, ConsumerStats) {
    let builder = client.consumer().partition(topic, partition).start(start).until_end(true);
    let mut consumer = soon("the consumer to be built", builder.build()).await.expect("a consumer");
    let mut got = Vec::new();
    while let Some(message) = soon("a message or the end", consumer.next()).await {
        let message = message.expect("a message without an error");
        let value = String::from_utf8_lossy(message.value().unwrap_or_default()).into_owned();
        got.push((message.position(), value));
    }
    (got, consumer.stats())
}

/// The sum of a metric over the shards.
fn metric(broker: &Broker, name: &str) -> u64 {
    let page = http_get(broker.http_addr(), "/metrics", PATIENCE).expect("a broker that runs has metrics").body;
    let values = page.lines().filter_map(|line| {
        let (found, value) = line.split_once(' ')?;
        (found.split('{').next() == Some(name)).then(|| value.parse::<f64>().expect("a number") as u64)
    });
    let values: Vec<u64> = values.collect();
    assert!(!values.is_empty(), "there is no metric {name}");
    values.iter().sum()
}

/// `corelane --json log verify DIR`: its exit status and its report.
fn verify(data: &Path) -> (i32, Value) {
    let mut command = std::process::Command::new(bin("corelane"));
    let finished: Finished = run(command.args(["--json", "log", "verify"]).arg(data), Duration::from_mins(1));
    let report = serde_json::from_slice(&finished.stdout).unwrap_or(Value::Null);
    (finished.status.code().expect("no signal"), report)
}

/// The kinds of what a report found.
fn kinds(report: &Value) -> BTreeSet<String> {
    let of = |value: &Value| -> Vec<String> {
        let findings = value["findings"].as_array().cloned().unwrap_or_default();
        findings.iter().filter_map(|finding| Some(finding["kind"].as_str()?.to_owned())).collect()
    };
    let partitions = report["partitions"].as_array().cloned().unwrap_or_default();
    of(report).into_iter().chain(partitions.iter().flat_map(of)).collect()
}
