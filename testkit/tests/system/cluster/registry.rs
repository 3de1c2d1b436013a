//! What happens to a registry as a whole: emptied, put back to an earlier state, made anew, moved.

use corelane_testkit::{Broker, BrokerOptions, Cluster, Finished, http_get, run, run_with_input, wait_until};

use super::{cli, client, client_of, count, create_and_publish, expect_alive, places, publishes_to, start, states};
use crate::support::{PATIENCE, connect, eventually, soon};

/// `corelane registry ...` on a cluster's etcd.
fn tool(cluster: &Cluster, arguments: &[&str]) -> Finished {
    let mut command = cluster.cli(1);
    command.arg("registry").args(arguments).args(["--etcd", &cluster.etcd().endpoint(), "--cluster", "test"]);
    run(&mut command, PATIENCE)
}

/// Saves the registry, and creates a topic that the copy does not know.
async fn back_up_and_create(cluster: &mut Cluster, topic: &str) {
    cluster.etcd_mut().stop();
    cluster.etcd().save("backup");
    cluster.etcd_mut().restart();
    expect_alive(cluster, 1);
    eventually("topics to be created again", async || {
        cli(cluster, 1, &["topic", "create", topic, "--if-not-exists"]).status.success()
    })
    .await;
}

/// Puts the registry back to what was saved.
fn put_back(cluster: &mut Cluster) {
    cluster.etcd_mut().stop();
    cluster.etcd().restore("backup");
    cluster.etcd_mut().restart();
}

fn expect_next_incarnation(cluster: &Cluster) {
    wait_until("the registry's next incarnation", PATIENCE, || {
        cluster.etcd().key(&cluster.key("cluster")).expect("there").value.contains(r#""incarnation":2"#)
    });
}

/// The operator says that what lies on broker 1's disk counts.
fn restore_from_broker_1(cluster: &mut Cluster) {
    cluster.broker_mut(1).stop();
    let directory = cluster.broker(1).data_dir().display().to_string();
    tool(cluster, &["restore-from", &directory]).success();
    cluster.broker_mut(1).restart();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_registry_takes_nothing_away_and_is_made_anew_from_the_directories() {
    let test = "an_emptied_registry_takes_nothing_away_and_is_made_anew_from_the_directories";
    let Some(mut cluster) = start(test, 3) else { return };
    // It has never heard of a topic.
    cluster.broker_mut(3).stop();
    let through = client_of(cluster.bootstrap()).await;
    create_and_publish(&through, "views", 4).await;
    let before = places(&through, "views").await;
    cluster.etcd_mut().stop();
    cluster.etcd().empty();
    cluster.etcd_mut().restart();
    for id in [1, 2] {
        wait_until("the broker to notice", PATIENCE, || cluster.broker(id).log().contains("the registry is empty"));
    }
    // Brokers that run serve on and write nothing into it.
    for partition in 0..4 {
        assert!(publishes_to(&client_of(cluster.bootstrap()).await, "views", partition).await);
    }
    let refused = soon("a refusal", through.admin().add_partitions("views", 5)).await.expect_err("it is not believed");
    assert!(refused.is_retryable(), "{refused}");
    assert_eq!(cluster.etcd().keys("/"), []);
    // One that is to start does not, whatever it holds, until an operator has said that this is the registry.
    cluster.broker_mut(2).stop();
    for id in [2, 3] {
        let failure = cluster.broker_mut(id).try_restart().expect_err("refused");
        assert!(failure.stderr.contains("corelane registry restore-from"), "{}", failure.stderr);
        assert_eq!(cluster.etcd().keys("/"), []);
    }

    let directory = [1, 2].map(|id| cluster.broker(id).data_dir().display().to_string());
    let used = tool(&cluster, &["restore-from", &directory[0]]);
    assert!(used.stderr.contains("another broker"), "a broker uses it: {}", used.stderr);
    let restored = tool(&cluster, &["restore-from", &directory[1]]).success().text();
    assert_eq!(restored, "restored 1 topics, 2 partitions\n");
    // What broker 1 holds, which runs, is not lost, though nothing was brought back from its directory so far.
    cluster.broker_mut(2).restart();
    let held = (0..4).find(|partition| before[*partition] == 1).expect("the partitions are spread").to_string();
    eventually("broker 1 to say what it holds", async || {
        let refused = cli(&cluster, 2, &["topic", "accept-loss", "views", "--partition", &held, "--yes"]);
        assert!(!refused.status.success(), "{}", refused.text());
        refused.stderr.contains("in the data directory of broker 1 are unknown to the registry")
    })
    .await;
    cluster.broker_mut(1).stop();
    tool(&cluster, &["restore-from", &directory[0]]).success();
    tool(&cluster, &["restore-from", &directory[0]]).success();
    for id in [1, 3] {
        cluster.broker_mut(id).restart();
    }
    let through = client_of(cluster.bootstrap()).await;
    eventually("all partitions to be served", async || {
        states(&through, "views").await == [corelane_client::PartitionState::Serving; 4]
    })
    .await;
    assert_eq!(places(&through, "views").await, before);
    assert_eq!(count(&through, "views").await, 4 * 3 + 4);
    soon("an answer", through.admin().add_partitions("views", 5)).await.expect("topics can be changed again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_put_back_to_an_earlier_state_deletes_nothing_and_serves_nothing_as_empty() {
    let test = "a_registry_put_back_to_an_earlier_state_deletes_nothing_and_serves_nothing_as_empty";
    let Some(mut cluster) = start(test, 1) else { return };
    let through = client(&cluster, 1).await;
    create_and_publish(&through, "kept", 1).await;
    create_and_publish(&through, "deleted-since", 1).await;
    back_up_and_create(&mut cluster, "made-since").await;
    cli(&cluster, 1, &["topic", "delete", "deleted-since", "--yes"]).success();
    put_back(&mut cluster);
    wait_until("the broker to notice", PATIENCE, || cluster.broker(1).log().contains("restored to an earlier state"));
    expect_alive(&cluster, 1);
    assert!(publishes_to(&client(&cluster, 1).await, "kept", 0).await);
    expect_next_incarnation(&cluster);
    eventually("what is not known any more to be kept and not served", async || {
        let through = client(&cluster, 1).await;
        places(&through, "made-since").await.is_empty() && places(&through, "deleted-since").await == [1]
    })
    .await;
    assert!(
        !publishes_to(&client(&cluster, 1).await, "deleted-since", 0).await,
        "its data is gone: not served as empty"
    );
    // It is counted and named while the broker runs, until it counts again.
    let (at, of_made) = (cluster.broker(1).http_addr(), "warning: the registry does not know the topic made-since");
    wait_until("it to be named", PATIENCE, || {
        let ready = http_get(at, "/health/ready", PATIENCE).expect("the page answers").body;
        ready.contains(of_made) && ready.contains("corelane registry restore-from")
    });
    let metrics = http_get(at, "/metrics", PATIENCE).expect("the page answers").body;
    assert!(metrics.contains("\ncorelane_directories_set_aside 1\n"), "{metrics}");
    let entries = std::fs::read_dir(cluster.broker(1).data_dir()).expect("listed").flatten();
    let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(names.iter().any(|name| name.starts_with("made-since~")), "{names:?}");
    restore_from_broker_1(&mut cluster);
    assert!(publishes_to(&client(&cluster, 1).await, "made-since", 0).await);
    let ready = http_get(cluster.broker(1).http_addr(), "/health/ready", PATIENCE).expect("the page answers").body;
    assert!(!ready.contains(of_made), "{ready}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_put_back_while_a_broker_was_down_is_noticed_when_it_starts() {
    let test = "a_registry_put_back_while_a_broker_was_down_is_noticed_when_it_starts";
    let Some(mut cluster) = start(test, 1) else { return };
    let through = client(&cluster, 1).await;
    create_and_publish(&through, "kept", 1).await;
    back_up_and_create(&mut cluster, "made-since").await;
    assert!(publishes_to(&through, "made-since", 0).await);
    // Nobody runs who could have seen it happen; what was seen last is in the directory.
    cluster.broker_mut(1).stop();
    put_back(&mut cluster);
    cluster.broker_mut(1).restart();
    expect_alive(&cluster, 1);
    expect_next_incarnation(&cluster);
    let through = client(&cluster, 1).await;
    assert!(publishes_to(&through, "kept", 0).await);
    assert_eq!(count(&through, "kept").await, 4);
    assert!(places(&through, "made-since").await.is_empty(), "not known any more, and not served");
    restore_from_broker_1(&mut cluster);
    assert_eq!(count(&client(&cluster, 1).await, "made-since").await, 1, "it was kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_directory_brings_back_is_named_and_begins_anew_when_an_operator_says_so() {
    let test = "what_no_directory_brings_back_is_named_and_begins_anew_when_an_operator_says_so";
    let Some(mut cluster) = start(test, 2) else { return };
    create_and_publish(&client_of(cluster.bootstrap()).await, "views", 4).await;
    let before = places(&client(&cluster, 1).await, "views").await;
    // The registry is lost, and one of the two directories with it.
    for id in [1, 2] {
        cluster.broker_mut(id).stop();
    }
    cluster.etcd_mut().stop();
    cluster.etcd().empty();
    cluster.etcd_mut().restart();
    let directory = cluster.broker(1).data_dir().display().to_string();
    let restored = tool(&cluster, &["restore-from", &directory]).success();
    assert_eq!(restored.text(), "restored 1 topics, 2 partitions\n");
    let lost: Vec<String> = (0..4).filter(|p| before[*p] == 2).map(|p| p.to_string()).collect();
    let remedy = format!("corelane topic accept-loss views --partition {}", lost.join(","));
    assert!(restored.stderr.contains(&remedy), "{}", restored.stderr);
    cluster.broker_mut(1).restart();
    // As soon as it is sure that no broker that runs holds it.
    eventually("the loss to be accepted", async || {
        let accept = ["topic", "accept-loss", "views", "--partition", &lost.join(","), "--yes"];
        cli(&cluster, 1, &accept).status.success()
    })
    .await;
    let through = client(&cluster, 1).await;
    eventually("all partitions to be served", async || {
        states(&through, "views").await == [corelane_client::PartitionState::Serving; 4]
    })
    .await;
    assert_eq!(places(&through, "views").await, [1; 4]);
    for partition in 0..4 {
        assert!(publishes_to(&through, "views", partition).await);
    }
    assert_eq!(count(&through, "views").await, 2 * 3 + 4);
    // The directory turns up after all: what it holds is set aside, not mixed with what has begun since.
    let found = cluster.broker(2).data_dir().display().to_string();
    let left = tool(&cluster, &["restore-from", &found]).success().stderr;
    assert_eq!(left.matches("broker 1 holds it, with epoch").count(), 2, "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_broker_becomes_the_first_of_a_cluster_by_export_and_import() {
    let test = "a_single_broker_becomes_the_first_of_a_cluster_by_export_and_import";
    let Some(cluster) = start(test, 0) else { return };
    let mut broker = Broker::start(BrokerOptions::new().shards(1));
    create_and_publish(&connect(&broker).await, "views", 2).await;
    broker.stop();
    let data = broker.data_dir().display().to_string();
    let registry = |broker: &Broker, arguments: &[&str], input: &[u8]| {
        let mut command = broker.cli();
        command.arg("registry").args(arguments);
        run_with_input(&mut command, input, PATIENCE)
    };
    let exported = registry(&broker, &["export", "--data", &data], &[]).success();
    let (endpoint, etcd) = (cluster.etcd().endpoint(), ["--etcd", "--cluster", "test"]);
    let into = ["import", etcd[0], &endpoint, etcd[1], etcd[2]];
    let imported = registry(&broker, &into, &exported.stdout).success();
    assert!(imported.stderr.contains("imported 5 records"), "{}", imported.stderr);
    let twice = registry(&broker, &into, &exported.stdout);
    assert!(twice.stderr.contains("has keys of this cluster already"), "{}", twice.stderr);
    let options = BrokerOptions::new().shards(1).args(["--etcd", &endpoint, "--cluster", "test"]);
    broker.set_options(options);
    broker.restart();
    let through = connect(&broker).await;
    assert_eq!(count(&through, "views").await, 6);
    assert_eq!(soon("metadata", through.admin().describe_cluster()).await.expect("metadata").registry, "etcd");
    assert!(publishes_to(&through, "views", 1).await);
    assert!(broker.log().contains("the registry is etcd now, and was embedded"));
    assert!(!broker.log().contains("the registry was restored"));

    // What it left behind is not gone on with, unless an operator moves everything back.
    broker.stop();
    broker.set_options(BrokerOptions::new().shards(1));
    let failure = broker.try_restart().expect_err("refused");
    assert!(failure.stderr.contains("start it with --etcd and --cluster"), "{}", failure.stderr);
    let exported = registry(&broker, &["export", etcd[0], &endpoint, etcd[1], etcd[2]], &[]).success();
    std::fs::remove_file(broker.data_dir().join("registry.redb")).expect("moved away");
    let imported = registry(&broker, &["import", "--data", &data, "--json"], &exported.stdout).success().text();
    assert!(imported.starts_with(r#"{"records":"#), "{imported}");
    broker.restart();
    assert_eq!(count(&connect(&broker).await, "views").await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_own_registry_is_damaged_serves_what_lies_on_its_disk() {
    let mut broker = Broker::start(BrokerOptions::new().shards(1));
    create_and_publish(&connect(&broker).await, "views", 2).await;
    broker.stop();
    let registry = broker.data_dir().join("registry.redb");
    std::fs::write(&registry, b"not what it was").expect("written");
    // Clients are told where it is now, not where the registry knew it.
    let elsewhere = Broker::start(BrokerOptions::new()).addr();
    broker.set_options(BrokerOptions::new().shards(2).listen(elsewhere));
    broker.restart();
    let through = client_of(broker.addr().to_string()).await;
    assert_eq!(count(&through, "views").await, 6);
    assert!(publishes_to(&through, "views", 1).await);
    let refused = soon("a refusal", through.admin().add_partitions("views", 3)).await.expect_err("nothing is changed");
    assert!(refused.is_retryable() && refused.to_string().contains("registry restore-from"), "{refused}");
    // Moved away, and made anew.
    broker.stop();
    std::fs::remove_file(&registry).expect("moved away");
    let data = broker.data_dir().display().to_string();
    let restored = run(broker.cli().args(["--json", "registry", "restore-from", &data]), PATIENCE).success().text();
    assert!(restored.contains(r#""partitions":2,"topics":1"#), "{restored}");
    broker.restart();
    let through = client_of(broker.addr().to_string()).await;
    assert_eq!(count(&through, "views").await, 7);
    soon("an answer", through.admin().add_partitions("views", 3)).await.expect("topics can be changed again");
}
