//! `corelane broker`: the brokers of the cluster, what each of them holds, and how one that is gone for good is forgotten.

use std::collections::BTreeMap;

use clap::Subcommand;
use comfy_table::CellAlignment::{Left, Right};
use corelane_client::{BrokerInfo, Client, PartitionInfo, TopicInfo};
use serde_json::{Value, json};

use crate::args::Shared;
use crate::cluster::address;
use crate::error::CliError;
use crate::output::{confirm, print, print_json, print_table, table};
use crate::topic::plural;

#[derive(Debug, Subcommand)]
pub(crate) enum BrokerCommand {
    /// List the brokers
    #[command(after_help = "\
Examples:
  corelane broker list
  corelane --json broker list")]
    List,
    /// Show a broker and the partitions that it holds
    #[command(after_help = "\
Examples:
  corelane broker describe 2
  corelane --json broker describe 2")]
    Describe {
        /// Its number
        broker_id: u32,
    },
    /// Forget a broker that will never come back, its data being lost
    #[command(after_help = "\
Its number is free for another data directory, and topics that were deleted no longer wait for it. Its partitions stay \
unavailable until their loss is accepted: corelane topic accept-loss.

Examples:
  corelane broker forget 2
  corelane broker forget 2 --yes")]
    Forget {
        /// Its number
        broker_id: u32,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

pub(crate) async fn run(shared: &Shared, command: &BrokerCommand) -> Result<(), CliError> {
    let client = shared.connect().await?;
    match command {
        BrokerCommand::List => list(&client, shared.json).await,
        BrokerCommand::Describe { broker_id } => describe(&client, shared.json, *broker_id).await,
        BrokerCommand::Forget { broker_id, yes } => forget(&client, shared.json, *broker_id, *yes).await,
    }
}

/// The partitions of each broker, with the names of their topics.
type Held = BTreeMap<u32, Vec<(String, PartitionInfo)>>;

async fn held(client: &Client) -> Result<Held, CliError> {
    Ok(by_broker(client.admin().list_topics().await?))
}

fn by_broker(topics: Vec<TopicInfo>) -> Held {
    let mut held = Held::new();
    for topic in topics {
        for partition in topic.partitions {
            held.entry(partition.broker_id).or_default().push((topic.name.clone(), partition));
        }
    }
    held
}

async fn list(client: &Client, json: bool) -> Result<(), CliError> {
    let (brokers, held) = (client.admin().describe_cluster().await?.brokers, held(client).await?);
    let count = |broker: &BrokerInfo| held.get(&broker.broker_id).map_or(0, Vec::len);
    if json {
        return print_json(&brokers.iter().map(|broker| to_json(broker, count(broker))).collect::<Vec<_>>());
    }
    let mut rows = table(&[
        ("BROKER", Right),
        ("ADDRESS", Left),
        ("SHARDS", Right),
        ("PARTITIONS", Right),
        ("STATE", Left),
        ("VERSION", Left),
    ]);
    for broker in &brokers {
        rows.add_row(vec![
            broker.broker_id.to_string(),
            address(broker),
            broker.shards.to_string(),
            count(broker).to_string(),
            state(broker).to_owned(),
            broker.version.clone(),
        ]);
    }
    print_table(&rows)
}

async fn describe(client: &Client, json: bool, broker_id: u32) -> Result<(), CliError> {
    let (brokers, mut held) = (client.admin().describe_cluster().await?.brokers, held(client).await?);
    let broker = brokers.iter().find(|broker| broker.broker_id == broker_id);
    let mut partitions = held.remove(&broker_id).unwrap_or_default();
    let Some(broker) = broker else {
        let left = match partitions.len() {
            0 => String::new(),
            left => format!("; {left} partition{} wait for their loss to be accepted", plural(left)),
        };
        return Err(CliError::Argument(format!("the cluster knows no broker {broker_id}{left}")));
    };
    if broker.alive
        && let Ok(topics) = client.admin().list_topics_of(broker_id).await
    {
        partitions = by_broker(topics).remove(&broker_id).unwrap_or_default();
        partitions.sort_by(|(a, one), (b, other)| (a, one.partition).cmp(&(b, other.partition)));
    }
    if json {
        let mut document = to_json(broker, partitions.len());
        document["partitions"] = partitions.iter().map(partition_json).collect();
        return print_json(&document);
    }
    print(&format!(
        "broker {broker_id} at {}, {}, {} shard{}, version {}\n",
        address(broker),
        state(broker),
        broker.shards,
        plural(broker.shards as usize),
        broker.version
    ))?;
    let mut rows = table(&[("TOPIC", Left), ("PARTITION", Right), ("SHARD", Right), ("EPOCH", Right), ("STATE", Left)]);
    for (topic, partition) in &partitions {
        let state = partition.state.name();
        rows.add_row(vec![
            topic.clone(),
            partition.partition.to_string(),
            partition.shard.to_string(),
            partition.epoch.to_string(),
            if partition.reason.is_empty() { state.to_owned() } else { format!("{state}: {}", partition.reason) },
        ]);
    }
    print_table(&rows)
}

async fn forget(client: &Client, json: bool, broker_id: u32, yes: bool) -> Result<(), CliError> {
    let holds = held(client).await?.get(&broker_id).map_or(0, Vec::len);
    let question =
        format!("Broker {broker_id} counts as gone for good, with what its {holds} partition{} held.", plural(holds));
    confirm(&question, yes)?;
    let forgotten = client.admin().forget_broker(broker_id).await?;
    // One that was forgotten before may have left something behind.
    if !forgotten.was_known && forgotten.tombstones == 0 && forgotten.partitions == 0 {
        return Err(CliError::Argument(format!("the cluster knows no broker {broker_id}; nothing was done")));
    }
    if json {
        return print_json(&json!({
            "broker_id": broker_id,
            "was_known": forgotten.was_known,
            "tombstones": forgotten.tombstones,
            "partitions": forgotten.partitions,
        }));
    }
    let done = if forgotten.was_known { "forgot broker" } else { "the cluster knows no more of broker" };
    let left = forgotten.partitions;
    print(&format!("{done} {broker_id}; {left} partition{} left to accept the loss of\n", plural(left as usize)))
}

fn state(broker: &BrokerInfo) -> &'static str {
    if broker.alive { "up" } else { "down" }
}

fn to_json(broker: &BrokerInfo, partitions: usize) -> Value {
    json!({
        "broker_id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "shards": broker.shards,
        "alive": broker.alive,
        "version": broker.version,
        "partitions": partitions,
    })
}

fn partition_json((topic, partition): &(String, PartitionInfo)) -> Value {
    json!({
        "topic": topic,
        "partition": partition.partition,
        "shard": partition.shard,
        "epoch": partition.epoch,
        "state": partition.state.name(),
        "reason": partition.reason,
    })
}
