//! `corelane topic add-partitions` and `accept-loss`: what changes a topic's partitions for good.

use clap::Args;
use corelane_client::Client;
use serde_json::json;

use super::{plural, view};
use crate::error::CliError;
use crate::output::{confirm, print, print_json};

#[derive(Debug, Args)]
pub(crate) struct AddPartitionsArgs {
    /// The topic
    name: String,
    /// How many partitions the topic is to have in all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    partitions: u32,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AcceptLossArgs {
    /// The topic
    name: String,
    /// The partitions whose data is given up
    #[arg(long, value_name = "P[,...]", value_delimiter = ',', required = true)]
    partition: Vec<u32>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(super) async fn add_partitions(client: &Client, json: bool, args: &AddPartitionsArgs) -> Result<(), CliError> {
    let current = client.admin().describe_topic(&args.name).await?.topic.partitions.len();
    let question = format!(
        "Topic {} goes from {current} to {} partitions: keys go to other partitions from then on, and there is no way back.",
        args.name, args.partitions
    );
    if args.partitions as usize != current {
        confirm(&question, args.yes)?;
    }
    let topic = client.admin().add_partitions(&args.name, args.partitions).await?;
    if json {
        return print_json(&view::topic_json(&topic));
    }
    let partitions = topic.partitions.len();
    print(&format!("topic {} has {partitions} partition{} now\n", topic.name, plural(partitions)))
}

pub(super) async fn accept_loss(client: &Client, json: bool, args: &AcceptLossArgs) -> Result<(), CliError> {
    let partitions: Vec<String> = args.partition.iter().map(ToString::to_string).collect();
    let question = format!(
        "What topic {}, partition{} {}, held is given up for good.",
        args.name,
        plural(partitions.len()),
        partitions.join(", ")
    );
    confirm(&question, args.yes)?;
    let mut documents = Vec::new();
    for partition in &args.partition {
        let begun = client.admin().accept_loss(&args.name, *partition).await?;
        if json {
            documents.push(json!({
                "topic": args.name, "partition": partition, "epoch": begun.epoch, "broker_id": begun.broker_id,
            }));
        } else {
            print(&format!(
                "topic {}, partition {partition}: begins anew on broker {}, epoch {}\n",
                args.name, begun.broker_id, begun.epoch
            ))?;
        }
    }
    if json { print_json(&documents) } else { Ok(()) }
}
