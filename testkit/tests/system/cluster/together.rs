//! Brokers of a cluster at work together.

use std::collections::BTreeSet;
use std::time::Duration;

use corelane_client::{Client, NewTopic, PartitionState, Record, TopicSettings};
use corelane_testkit::{http_get, wait_until};

use super::{
    cli, client, client_of, count, create_and_publish, expect_alive, places, publishes_to, start, start_behind_proxies,
    states,
};
use crate::support::{PATIENCE, eventually, soon};

#[tokio::test(flavor = "multi_thread")]
async fn any_broker_does_what_concerns_all_and_tells_where_everything_is() {
    let Some(mut cluster) = start("any_broker_does_what_concerns_all_and_tells_where_everything_is", 2) else { return };
    create_and_publish(&client(&cluster, 2).await, "views", 4).await;
    for id in [1, 2] {
        let through = client(&cluster, id).await;
        let told = places(&through, "views").await;
        assert_eq!(told.iter().filter(|broker| **broker == 1).count(), 2, "{told:?}");
        assert_eq!(count(&through, "views").await, 12, "from wherever it lies");
    }

    // A broker that joins gets new partitions, and old ones stay where their data is.
    let before = places(&client(&cluster, 1).await, "views").await;
    let joined = cluster.add_broker();
    wait_until("the others to know the new one", PATIENCE, || {
        cli(&cluster, 1, &["broker", "list"]).success().text().lines().filter(|line| line.contains(" up ")).count() == 3
    });
    create_and_publish(&client(&cluster, 1).await, "clicks", 3).await;
    assert_eq!(places(&client(&cluster, joined).await, "clicks").await.into_iter().collect::<BTreeSet<_>>().len(), 3);
    let grown = cli(&cluster, joined, &["--json", "topic", "add-partitions", "views", "--partitions", "7", "--yes"]);
    assert!(grown.success().text().contains(r#""partitions":7"#));
    let through = client(&cluster, 2).await;
    eventually("the new partitions", async || places(&through, "views").await.len() == 7).await;
    let told = places(&through, "views").await;
    assert_eq!(told[..4], before[..]);
    assert!(told[4..].contains(&joined), "{told:?}");
    for partition in 4..7 {
        assert!(publishes_to(&through, "views", partition).await);
    }

    // What one broker is told to change, all of them change.
    cli(&cluster, 2, &["topic", "alter", "views", "--retention", "10d"]).success();
    for id in 1..=3 {
        let shown = || cli(&cluster, id, &["--json", "topic", "describe", "views"]).success().text();
        wait_until("the new retention", PATIENCE, || shown().contains(r#""retention_ms":864000000"#));
        assert!(!shown().contains(r#""start":null"#), "every broker answers for its own partitions");
    }
    let listed = cli(&cluster, 1, &["broker", "list"]).success().text();
    assert_eq!(listed.lines().filter(|line| line.contains(" up ")).count(), 3, "{listed}");
    let described = cli(&cluster, 1, &["--json", "broker", "describe", "3"]).success().text();
    assert!(described.contains(r#""topic":"clicks""#), "{described}");
    assert!(cli(&cluster, 1, &["broker", "forget", "3", "--yes"]).stderr.contains("broker 3 runs; stop it first"));

    // Deleted through one, its data goes from all, and then its tombstone.
    cli(&cluster, 3, &["topic", "delete", "views", "--yes"]).success();
    let has_directory = |id: u32| {
        let entries = std::fs::read_dir(cluster.broker(id).data_dir()).expect("a data directory");
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("views~"))
    };
    wait_until("the data's end", PATIENCE, || (1..=3).all(|id| !has_directory(id)));
    wait_until("the tombstone's end", PATIENCE, || cluster.etcd().keys(&cluster.key("deleted/")).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_down_makes_only_its_own_partitions_unavailable() {
    let Some(mut cluster) = start("a_broker_that_is_down_makes_only_its_own_partitions_unavailable", 3) else { return };
    let through = client_of(cluster.bootstrap()).await;
    create_and_publish(&through, "views", 3).await;
    let down = places(&through, "views").await[0];
    let other = down % 3 + 1;
    cluster.broker_mut(down).kill9();
    let told = client(&cluster, other).await;
    eventually("the others to notice", async || states(&told, "views").await[0] == PartitionState::Unknown).await;
    assert_eq!(states(&told, "views").await[1..], [PartitionState::Serving; 2]);
    let says = |line: &str| {
        let count = cluster.broker(other).log().matches(line).count();
        assert!(count <= 1, "{line} is said {count} times");
        count == 1
    };
    assert!(says(&format!("broker {down} is not known to run any more: its lease has ended")));
    let ready = http_get(cluster.broker(other).http_addr(), "/health/ready", PATIENCE).expect("the page answers");
    let warning = format!("warning: broker {down}, which holds 1 partition, is not known to run");
    assert!(ready.status == 200 && ready.body.contains(&warning), "{}", ready.body);
    assert!(!says(&format!("broker {down} runs")));
    assert_eq!(places(&told, "views").await[0], down, "its partitions stay its own");
    for partition in [1, 2] {
        assert!(publishes_to(&told, "views", partition).await);
    }
    let list = cli(&cluster, other, &["broker", "list"]).success().text();
    assert_eq!(list.lines().filter(|line| line.contains(" down ")).count(), 1, "{list}");
    // A new topic has no partitions there.
    create_and_publish(&told, "clicks", 4).await;
    assert!(!places(&told, "clicks").await.contains(&down));
    // A deletion waits for the one that is down, and only its data does.
    cli(&cluster, other, &["topic", "delete", "views", "--yes"]).success();
    let holders = format!(r#""holders":[{down}]"#);
    wait_until("the others to confirm", PATIENCE, || {
        cluster.etcd().key(&cluster.key("deleted/")).is_some_and(|tombstone| tombstone.value.contains(&holders))
    });
    cluster.broker_mut(down).restart();
    wait_until("the last one to confirm", PATIENCE, || cluster.etcd().keys(&cluster.key("deleted/")).is_empty());
    for (line, stop) in [("runs again", true), ("has stopped", false)] {
        let line = format!("broker {down} {line}");
        wait_until(&line, PATIENCE, || cluster.broker(other).log().contains(&line));
        if stop {
            cluster.broker_mut(down).stop();
        }
    }
    assert_eq!(
        cluster.broker(other).log().matches("its lease has ended").count(),
        1,
        "of an orderly stop no lease ends"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_cut_from_etcd_serves_on_and_is_found_through_the_others() {
    let Some(cluster) = start("a_broker_cut_from_etcd_serves_on_and_is_found_through_the_others", 2) else { return };
    create_and_publish(&client(&cluster, 1).await, "views", 2).await;
    let partition =
        places(&client(&cluster, 1).await, "views").await.iter().position(|id| *id == 2).expect("one") as u32;
    cluster.cut_from_etcd(2);
    let told = client(&cluster, 1).await;
    eventually("its lease to end", async || {
        states(&told, "views").await[partition as usize] == PartitionState::Unknown
    })
    .await;
    // It is told where it is all the same, by the other one and by itself, and it takes what it is sent.
    for id in [1, 2] {
        let through = client(&cluster, id).await;
        assert_eq!(places(&through, "views").await[partition as usize], 2);
        assert!(publishes_to(&through, "views", partition).await, "through broker {id}");
        assert_eq!(count(&through, "views").await as u32, 6 + id);
    }
    // A topic call there fails in a way that says to try elsewhere.
    let refused = soon("a refusal", client(&cluster, 2).await.admin().add_partitions("views", 3)).await;
    assert!(refused.expect_err("no registry").is_retryable());
    cluster.way(2).heal();
    expect_alive(&cluster, 2);
    eventually("it to count as up", async || {
        states(&told, "views").await[partition as usize] == PartitionState::Serving
    })
    .await;
    eventually("it to follow", async || {
        soon("an answer", client(&cluster, 2).await.admin().add_partitions("views", 3)).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keyless_messages_go_on_while_a_broker_is_cut_from_everybody() {
    let Some(mut cluster) = start("keyless_messages_go_on_while_a_broker_is_cut_from_everybody", 2) else { return };
    let through = client_of(cluster.bootstrap()).await;
    create_and_publish(&through, "views", 4).await;
    // Cut off whole: it answers nobody, and keeps its sockets.
    cluster.broker_mut(2).pause();
    let producer = through.producer().delivery_timeout(Duration::from_secs(30)).build().expect("a producer");
    eventually("a keyless message to be taken by the other one", async || {
        let delivery = producer.send(Record::to("views").value(b"keyless, twenty long")).await.expect("taken");
        tokio::time::timeout(Duration::from_secs(2), delivery).await.is_ok_and(|delivered| delivered.is_ok())
    })
    .await;
    cluster.broker_mut(2).resume();
    expect_alive(&cluster, 2);
    for partition in 0..4 {
        assert!(publishes_to(&client_of(cluster.bootstrap()).await, "views", partition).await);
    }
    let ready = http_get(cluster.broker(2).http_addr(), "/health/ready", PATIENCE).expect("the page answers");
    assert_eq!(ready.status, 200, "{}", ready.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_only_clients_cannot_reach_keeps_its_place_and_gets_what_waited_for_it() {
    let test = "a_broker_that_only_clients_cannot_reach_keeps_its_place_and_gets_what_waited_for_it";
    let Some(cluster) = start_behind_proxies(test, 2) else { return };
    let through = client_of(cluster.front(1).addr().to_string()).await;
    create_and_publish(&through, "views", 2).await;
    let places = places(&through, "views").await;
    let (theirs, ours) = if places[0] == 2 { (0, 1) } else { (1, 0) };
    cluster.front(2).refuse(true);
    cluster.front(2).cut();
    let waiting = tokio::spawn({
        let through = through.clone();
        async move {
            let producer = through.producer().delivery_timeout(PATIENCE).build().expect("a producer");
            let record = Record::to("views").partition(theirs).value(b"waits for its broker");
            Box::pin(producer.send(record)).await.expect("taken").await
        }
    });
    for _ in 0..5 {
        assert!(publishes_to(&through, "views", ours).await, "the other broker's partition goes on");
    }
    // For the registry nothing has happened, nor does anything once a lease's life is over.
    tokio::time::sleep(Duration::from_secs(cluster.lease_s() + 1)).await;
    eventually("both to be told as serving", async || states(&through, "views").await == [PartitionState::Serving; 2])
        .await;
    assert!(!waiting.is_finished());
    cluster.front(2).heal();
    soon("the message that waited", waiting).await.expect("no panic").expect("it is taken in the end");
    assert_eq!(count(&through, "views").await, 6 + 5 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_call_that_waits_holds_up_no_other_and_ends_when_its_topic_is_deleted() {
    let test = "a_topic_call_that_waits_holds_up_no_other_and_ends_when_its_topic_is_deleted";
    let Some(cluster) = start(test, 2) else { return };
    let builder = Client::builder().bootstrap(cluster.broker(1).addr().to_string()).topic_timeout(2 * PATIENCE);
    let through = soon("the client to connect", builder.build()).await.expect("a broker takes connections");
    create_and_publish(&through, "views", 2).await;
    // A broker that counts as running and never makes what it is given.
    for kind in ["brokers", "alive"] {
        let of_2 = cluster.etcd().key(&cluster.key(&format!("{kind}/0000000002"))).expect("there").value;
        cluster.etcd().put(&cluster.key(&format!("{kind}/0000000003")), &of_2);
    }
    let list = || cli(&cluster, 1, &["broker", "list"]).success().text();
    wait_until("broker 1 to see it", PATIENCE, || list().lines().filter(|line| line.contains(" up ")).count() == 3);
    let creating = tokio::spawn({
        let through = through.clone();
        async move { through.admin().create_topic(NewTopic::named("short-lived").partitions(3)).await }
    });
    eventually("broker 1 to know the topic", async || {
        states(&through, "short-lived").await.contains(&PartitionState::Opening)
    })
    .await;

    let retention = TopicSettings::new().retention(Duration::from_hours(240));
    soon("an answer", through.admin().alter_topic("views", retention)).await.expect("it has nothing to wait for");
    assert!(!creating.is_finished(), "it waits for the broker that does not make its partition");

    soon("an answer", client(&cluster, 2).await.admin().delete_topic("short-lived")).await.expect("deleted");
    let refused = soon("the creation to end", creating).await.expect("no panic").expect_err("the topic is gone");
    let message = refused.to_string();
    assert!(message.contains("UNKNOWN_TOPIC") && message.contains("was deleted while"), "{message}");
}
