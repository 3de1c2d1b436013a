//! Several brokers on a real etcd act as one system: what any of them is asked, all of them do; what one of them loses,
//! the others do not notice; what etcd loses, nobody's data pays for.

mod identity;
mod losses;
mod registry;
mod tls;
mod together;

use std::time::Duration;

use corelane_client::{Client, PartitionState, TopicSettings};
use corelane_testkit::{Cluster, Etcd, Finished, run, skip, wait_until};

use crate::support::{PATIENCE, create, publish_numbered, read_all, soon};

/// A cluster of so many brokers, or a note that the test cannot run here.
fn start(test: &str, brokers: usize) -> Option<Cluster> {
    has_etcd(test).then(|| Cluster::start(brokers))
}

/// The same, with a proxy between each broker and its clients.
fn start_behind_proxies(test: &str, brokers: usize) -> Option<Cluster> {
    has_etcd(test).then(|| Cluster::start_behind_proxies(brokers))
}

fn has_etcd(test: &str) -> bool {
    let is_there = Etcd::installed().is_some();
    if !is_there {
        skip(test, "no etcd; the Debian package etcd-server has it");
    }
    is_there
}

/// A client that begins with these brokers.
async fn client_of(bootstrap: String) -> Client {
    // A refusal is repeated until the time-out; here it is what is waited for.
    let builder = Client::builder().bootstrap(bootstrap).topic_timeout(Duration::from_secs(15));
    soon("the client to connect", builder.build()).await.expect("a broker takes connections")
}

/// A client that begins with broker `id`.
async fn client(cluster: &Cluster, id: u32) -> Client {
    client_of(cluster.broker(id).addr().to_string()).await
}

/// The command line, talking to broker `id`.
fn cli(cluster: &Cluster, id: u32, arguments: &[&str]) -> Finished {
    run(cluster.cli(id).args(arguments), PATIENCE)
}

/// A topic with three messages of 20 bytes in each partition.
async fn create_and_publish(client: &Client, topic: &str, partitions: u32) {
    create(client, topic, partitions, TopicSettings::new()).await;
    let producer = client.producer().build().expect("a producer");
    for partition in 0..partitions {
        publish_numbered(&producer, topic, partition, 0..3, 20).await;
    }
}

/// How many messages a topic holds.
async fn count(client: &Client, topic: &str) -> usize {
    read_all(client, topic).await.len()
}

/// The broker of each partition, as `client`'s broker tells it.
async fn places(client: &Client, topic: &str) -> Vec<u32> {
    let topics = soon("metadata", client.admin().list_topics()).await.expect("metadata");
    let found = topics.into_iter().find(|found| found.name == topic);
    found.map(|found| found.partitions.iter().map(|partition| partition.broker_id).collect()).unwrap_or_default()
}

/// The state of each partition, as `client`'s broker tells it.
async fn states(client: &Client, topic: &str) -> Vec<PartitionState> {
    let topics = soon("metadata", client.admin().list_topics()).await.expect("metadata");
    let found = topics.into_iter().find(|found| found.name == topic);
    found.map(|found| found.partitions.iter().map(|partition| partition.state).collect()).unwrap_or_default()
}

/// Publishes one message to a partition and waits until it is durable.
async fn publishes_to(client: &Client, topic: &str, partition: u32) -> bool {
    use corelane_client::Record;
    let builder = client.producer().delivery_timeout(Duration::from_secs(8));
    let producer = builder.build().expect("a producer");
    let record = Record::to(topic).partition(partition).value(b"one more message, 20");
    // The client's futures are large.
    match Box::pin(soon("the message to be taken", producer.send(record))).await {
        Ok(delivery) => Box::pin(soon("its fate", delivery)).await.is_ok(),
        Err(_) => false,
    }
}

/// Waits until broker `id`'s entry stands in the registry under a lease that is alive. A lease's life and five seconds are
/// enough, but on a machine that is busy with other things.
#[track_caller]
fn expect_alive(cluster: &Cluster, id: u32) {
    let key = cluster.key(&format!("alive/{id:010}"));
    wait_until("the broker's entry", PATIENCE, || cluster.etcd().key(&key).is_some_and(|found| found.lease != 0));
}
