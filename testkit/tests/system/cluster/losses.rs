//! What brokers lose in the registry comes back by itself, and what was known is served all the while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use corelane_client::{Client, Record};
use corelane_testkit::{Cluster, http_get, wait_until};
use tokio::task::JoinHandle;

use super::{cli, client, client_of, count, create_and_publish, expect_alive, places, start};
use crate::support::{PATIENCE, eventually, soon};

/// Publishes to one partition until it is told to stop: every message must be acknowledged, none may take long.
struct Publishing {
    stop: Arc<AtomicBool>,
    task: JoinHandle<usize>,
}

impl Publishing {
    fn start(client: Client, topic: &'static str, partition: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let producer = client.producer().delivery_timeout(PATIENCE).build().expect("a producer");
            let mut published = 0;
            while !stopped.load(Ordering::Relaxed) {
                let record = Record::to(topic).partition(partition).value(b"served all the while");
                let delivery = producer.send(record).await.expect("a message is taken");
                soon("an acknowledgement", delivery).await.expect("known partitions are served");
                published += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            published
        });
        Self { stop, task }
    }

    async fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let published = soon("the last message", self.task).await.expect("no message failed");
        assert!(published > 0);
        published
    }
}

/// Starts publishing to the partition of broker `id`.
async fn publish_to(cluster: &Cluster, id: u32) -> Publishing {
    let through = client(cluster, id).await;
    let partition = places(&through, "views").await.iter().position(|place| *place == id).expect("it has one");
    Publishing::start(through, "views", partition as u32)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_s_entry_comes_back_after_every_kind_of_loss() {
    let Some(mut cluster) = start("a_broker_s_entry_comes_back_after_every_kind_of_loss", 2) else { return };
    create_and_publish(&client(&cluster, 1).await, "views", 2).await;
    let alive = cluster.key("alive/0000000001");
    let publishing = publish_to(&cluster, 1).await;

    // The key is deleted by hand; then the lasting one, too; then everything that says that brokers are there.
    for gone in ["alive/0000000001", "brokers/0000000001", "alive/", "brokers/"] {
        cluster.etcd().delete(&cluster.key(gone));
        expect_alive(&cluster, 1);
        let lasting = cluster.key("brokers/0000000001");
        wait_until("the lasting record", PATIENCE, || cluster.etcd().key(&lasting).is_some());
    }
    let lease = cluster.etcd().key(&alive).expect("there").lease;

    // etcd stands still for three lease times: every lease has ended by the time it goes on.
    cluster.etcd().pause();
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(3 * cluster.lease_s())).await;
    cluster.etcd().resume();
    println!("etcd stood still for {:?}", began.elapsed());
    for id in [1, 2] {
        expect_alive(&cluster, id);
    }
    eventually("all to be as before", async || {
        cli(&cluster, 2, &["broker", "list"]).text().lines().filter(|line| line.contains(" up ")).count() == 2
    })
    .await;
    let published = publishing.stop().await;
    assert_eq!(count(&client(&cluster, 2).await, "views").await, 6 + published);

    // Killed and started within the life of its old lease: the old entry is taken over, and does not take the new one along.
    cluster.broker_mut(1).kill9();
    cluster.broker_mut(1).restart();
    let restarted = Instant::now();
    expect_alive(&cluster, 1);
    let renewed = cluster.etcd().key(&alive).expect("there");
    assert_ne!(renewed.lease, lease);
    while restarted.elapsed() < Duration::from_secs(2 * cluster.lease_s()) {
        assert_eq!(cluster.etcd().key(&alive).map(|found| found.lease), Some(renewed.lease), "it stands");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_flows_while_etcd_is_full_or_away_and_all_recovers_alone() {
    let Some(mut cluster) = start("data_flows_while_etcd_is_full_or_away_and_all_recovers_alone", 2) else { return };
    let through = client_of(cluster.bootstrap()).await;
    create_and_publish(&through, "views", 2).await;
    let publishing = publish_to(&cluster, 2).await;

    cluster.etcd().raise_alarm();
    let full = soon("a refusal", through.admin().add_partitions("views", 3)).await.expect_err("etcd takes no writes");
    assert!(full.is_retryable(), "{full}");
    wait_until("the page to say so", PATIENCE, || {
        let ready = http_get(cluster.broker(1).http_addr(), "/health/ready", PATIENCE).expect("the page answers");
        assert_eq!(ready.status, 200, "it serves: {}", ready.body);
        ready.body.contains("NOSPACE")
    });
    cluster.etcd().disarm_alarm();
    soon("an answer", through.admin().add_partitions("views", 3)).await.expect("there is room again");

    cluster.etcd_mut().kill9();
    let away = soon("a refusal", through.admin().add_partitions("views", 4)).await.expect_err("etcd is away");
    assert!(away.is_retryable(), "{away}");
    // A broker that starts now knows what it knew: its own data, and where everything else is.
    cluster.broker_mut(1).restart();
    let first = client(&cluster, 1).await;
    assert_eq!(places(&first, "views").await, places(&client(&cluster, 2).await, "views").await);
    let here = publish_to(&cluster, 1).await;
    assert!(count(&first, "views").await >= 6);
    let metrics = http_get(cluster.broker(1).http_addr(), "/metrics", PATIENCE).expect("the page answers").body;
    assert!(metrics.contains("corelane_registry_up 0"), "{metrics}");

    cluster.etcd_mut().restart();
    for id in [1, 2] {
        expect_alive(&cluster, id);
    }
    eventually("topics to grow again", async || {
        soon("an answer", through.admin().add_partitions("views", 4)).await.is_ok()
    })
    .await;
    let published = publishing.stop().await + here.stop().await;
    assert_eq!(count(&client_of(cluster.bootstrap()).await, "views").await, 6 + published, "nothing is lost");
}
