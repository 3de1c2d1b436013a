//! `corelane cluster`: the brokers, and what they hold together.

use clap::Subcommand;
use comfy_table::CellAlignment::{Left, Right};
use corelane_client::{BrokerInfo, ClusterDescription};
use serde_json::{Value, json};

use crate::args::Shared;
use crate::error::CliError;
use crate::output::{count, print, print_json, print_table, table};

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the cluster's id, its registry, its brokers, and how many topics and partitions it has
    #[command(after_help = "\
Examples:
  corelane cluster describe
  corelane --broker 10.0.0.5:9400 --json cluster describe")]
    Describe,
}

pub(crate) async fn run(shared: &Shared, command: &ClusterCommand) -> Result<(), CliError> {
    match command {
        ClusterCommand::Describe => describe(shared).await,
    }
}

async fn describe(shared: &Shared) -> Result<(), CliError> {
    let client = shared.connect().await?;
    let cluster = client.admin().describe_cluster().await?;
    if shared.json {
        return print_json(&to_json(&cluster));
    }
    print(&format!(
        "cluster {} (registry: {}), {}, {}\n",
        cluster.cluster_id,
        cluster.registry,
        count(cluster.topics, "topic"),
        count(cluster.partitions, "partition")
    ))?;
    let mut brokers =
        table(&[("BROKER", Right), ("ADDRESS", Left), ("SHARDS", Right), ("STATE", Left), ("VERSION", Left)]);
    for broker in &cluster.brokers {
        brokers.add_row(vec![
            broker.broker_id.to_string(),
            address(broker),
            broker.shards.to_string(),
            if broker.alive { "up" } else { "down" }.to_owned(),
            broker.version.clone(),
        ]);
    }
    print_table(&brokers)
}

/// `host:port`, in the brackets that an IPv6 address needs.
pub(crate) fn address(broker: &BrokerInfo) -> String {
    if broker.host.contains(':') {
        format!("[{}]:{}", broker.host, broker.port)
    } else {
        format!("{}:{}", broker.host, broker.port)
    }
}

fn to_json(cluster: &ClusterDescription) -> Value {
    let brokers: Vec<Value> = cluster
        .brokers
        .iter()
        .map(|broker| {
            json!({
                "broker_id": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "shards": broker.shards,
                "alive": broker.alive,
                "version": broker.version,
            })
        })
        .collect();
    json!({
        "cluster_id": cluster.cluster_id,
        "registry": cluster.registry,
        "topics": cluster.topics,
        "partitions": cluster.partitions,
        "brokers": brokers,
    })
}
