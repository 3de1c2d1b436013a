//! Load on a broker, by the load generator as its users start it or by prepared sets, with what it costs the broker.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::broker::Broker;
use crate::cores::Cores;
use crate::publish::{self, Flow, Offer};

/// Bytes that a message of the bench has in the log: a value of 200 and its frame.
pub(crate) const MESSAGE_BYTES: f64 = 224.0;

/// What a run of the load generator was.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    pub(crate) published: f64,
    pub(crate) published_per_s: f64,
    pub(crate) consumed: f64,
    pub(crate) consumed_per_s: f64,
    pub(crate) end_to_end_p50_us: f64,
    pub(crate) end_to_end_p99_us: f64,
    /// The broker's CPU-seconds meanwhile.
    pub(crate) cpu_s: f64,
}

impl Load {
    pub(crate) fn published_gb(&self) -> f64 {
        self.published * MESSAGE_BYTES / 1e9
    }

    pub(crate) fn consumed_gb(&self) -> f64 {
        self.consumed * MESSAGE_BYTES / 1e9
    }

    /// MB of the log a second.
    pub(crate) fn published_mb_per_s(&self) -> f64 {
        self.published_per_s * MESSAGE_BYTES / 1e6
    }
}

/// Runs the load generator with `arguments`, split at blanks, on the topic `bench`.
pub(crate) fn run(binaries: &Path, cores: &Cores, broker: &Broker, arguments: &str) -> Result<Load, String> {
    cores.as_load();
    let (output, cpu_s) = with_cpu(broker, || {
        Command::new(binaries.join("corelane-loadgen"))
            .args(arguments.split(' '))
            .args(["--topic", "bench", "--broker", &broker.address, "--json", "-"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("corelane-loadgen: {error}"))
    })?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("the load generator: {error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    if !output.status.success() {
        return Err(format!("`{arguments}` was not verified: {}", report["errors"]));
    }
    let number = |object: &str, field: &str| report[object][field].as_f64().unwrap_or(0.0);
    Ok(Load {
        published: number("produce", "messages"),
        published_per_s: number("produce", "messages_per_s"),
        consumed: number("consume", "messages"),
        consumed_per_s: number("consume", "messages_per_s"),
        end_to_end_p50_us: number("end_to_end_us", "p50"),
        end_to_end_p99_us: number("end_to_end_us", "p99"),
        cpu_s,
    })
}

/// Publishes prepared sets.
pub(crate) fn offer(cores: &Cores, broker: &Broker, offer: Offer) -> Result<Load, String> {
    with_cost(cores, broker, || publish::publish(&broker.address, offer))
}

/// The same, while the client's iterator consumes them.
pub(crate) fn offer_and_consume(cores: &Cores, broker: &Broker, offer: Offer) -> Result<Load, String> {
    with_cost(cores, broker, || publish::publish_and_consume(&broker.address, offer))
}

fn with_cost(cores: &Cores, broker: &Broker, work: impl FnOnce() -> Result<Flow, String>) -> Result<Load, String> {
    cores.as_load();
    let (flow, cpu_s) = with_cpu(broker, work)?;
    Ok(Load {
        published: flow.published,
        published_per_s: flow.published / flow.publishing_s,
        consumed: flow.consumed,
        consumed_per_s: flow.consumed / flow.consuming_s,
        cpu_s,
        ..Load::default()
    })
}

/// Does something; the broker's CPU-seconds meanwhile come with the outcome.
pub(crate) fn with_cpu<T>(broker: &Broker, work: impl FnOnce() -> Result<T, String>) -> Result<(T, f64), String> {
    let before = broker.cpu_s();
    let outcome = work()?;
    Ok((outcome, broker.cpu_s() - before))
}
