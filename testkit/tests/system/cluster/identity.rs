//! Which directory is which broker: what is on disk wins over what is missing in the registry, nothing is guessed where
//! data is at stake, and of two that claim to be the same broker one writes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use corelane_client::PartitionState;
use corelane_testkit::{BrokerOptions, Cluster, StartFailure, TestDir, wait_until};

use super::{cli, client, client_of, count, create_and_publish, places, publishes_to, start, states};
use crate::support::{PATIENCE, eventually};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("listed").flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

/// A broker that must not get ready; it says why in one line.
#[track_caller]
fn refused(started: Result<impl Sized, StartFailure>, says: &str) {
    let failure = started.err().expect("the broker is refused");
    assert!(failure.status.is_some(), "it ends: {failure:?}");
    let line = failure.stderr.lines().last().unwrap_or_default().to_owned();
    assert!(line.starts_with("corelane-broker: ") && line.contains(says), "{says:?} is not said in {line:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_not_the_broker_s_own_is_refused() {
    let Some(mut cluster) = start("a_directory_that_is_not_the_broker_s_own_is_refused", 2) else { return };
    create_and_publish(&client(&cluster, 1).await, "views", 2).await;

    // A new directory under a number that has one, while that one runs and while it does not.
    refused(cluster.try_start_as(1, |options| options), "has another data directory");
    cluster.broker_mut(1).stop();
    refused(cluster.try_start_as(1, |options| options), "has another data directory");

    // A copy that is older than the directory that was started since; being tried again and again makes it no newer.
    let older = TestDir::new("older");
    copy(&cluster.broker(1).data_dir(), &older.join("data"));
    cluster.broker_mut(1).restart();
    cluster.broker_mut(1).stop();
    for _ in 0..3 {
        refused(cluster.try_start_as(1, |options| options.data(older.join("data"))), "is an older copy");
    }
    // Not even where it runs ahead without a registry for a while: then it is found out when that is back.
    cluster.broker_mut(1).restart();
    cluster.cut_from_etcd(1);
    cluster.broker_mut(1).stop();
    let mut copied = cluster.try_start_as(1, |options| options.data(older.join("data"))).expect("nobody can tell yet");
    copied.restart();
    copied.restart();
    copied.restart();
    cluster.way(1).heal();
    wait_until("it to be found out", PATIENCE, || copied.log().contains("is an older copy"));
    let through = client_of(copied.addr().to_string()).await;
    eventually("it to be closed for writes", async || {
        states(&through, "views").await.contains(&PartitionState::ClosedForWrites)
    })
    .await;
    copied.stop();
    cluster.broker_mut(1).restart();
    assert_eq!(count(&client_of(cluster.bootstrap()).await, "views").await, 6);

    // Another broker's directory, and another cluster's.
    let taken = cluster.broker(1).data_dir();
    refused(cluster.try_start_as(3 - 1, |options| options.data(&taken)), "another broker");
    cluster.broker_mut(1).stop();
    refused(cluster.try_start_as(2, |options| options.data(&taken)), "belongs to broker 1, this is broker 2");
    let other = Cluster::start(1);
    refused(other.try_start_as(1, |options| options.data(&taken)), "belongs to cluster");
    cluster.broker_mut(1).restart();
    assert_eq!(count(&client_of(cluster.bootstrap()).await, "views").await, 6, "nothing of all that left a trace");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_brokers_with_one_directory_s_identity_the_earlier_one_writes_no_more() {
    let test = "of_two_brokers_with_one_directory_s_identity_the_earlier_one_writes_no_more";
    let Some(mut cluster) = start(test, 1) else { return };
    create_and_publish(&client(&cluster, 1).await, "views", 1).await;
    // As a virtual machine that was cloned while it stood still.
    let clone = TestDir::new("clone");
    cluster.broker_mut(1).pause();
    copy(&cluster.broker(1).data_dir(), &clone.join("data"));
    let second = cluster.try_start_as(1, |options| options.data(clone.join("data"))).expect("it takes the place");
    cluster.broker_mut(1).resume();
    let earlier = client(&cluster, 1).await;
    eventually("the earlier one to be closed for writes", async || {
        states(&earlier, "views").await == [PartitionState::ClosedForWrites]
    })
    .await;
    assert!(!publishes_to(&earlier, "views", 0).await);
    assert_eq!(count(&earlier, "views").await, 3, "what it holds can be read");
    let later = client_of(second.addr().to_string()).await;
    assert!(publishes_to(&later, "views", 0).await);
    // It does not take the place back, however long it runs.
    let entry = || cluster.etcd().key(&cluster.key("alive/0000000001")).map(|found| found.lease);
    let lease = entry();
    tokio::time::sleep(Duration::from_secs(2 * cluster.lease_s())).await;
    assert_eq!(entry(), lease);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_directory_s_partitions_begin_anew_only_when_an_operator_says_so() {
    let test = "a_lost_directory_s_partitions_begin_anew_only_when_an_operator_says_so";
    let Some(mut cluster) = start(test, 2) else { return };
    create_and_publish(&client(&cluster, 1).await, "views", 4).await;
    let held = places(&client(&cluster, 1).await, "views").await;
    let of_2: Vec<u32> = (0..4).filter(|partition| held[*partition as usize] == 2).collect();

    // One partition's directory is gone: it is not served as if it were empty, and the others are.
    cluster.broker_mut(2).stop();
    let data = cluster.broker(2).data_dir();
    let topic = fs::read_dir(&data).expect("listed").flatten();
    let topic = topic.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("views~")).expect("there");
    fs::remove_dir_all(topic.join(of_2[0].to_string())).expect("removed");
    cluster.broker_mut(2).restart();
    let through = client(&cluster, 2).await;
    assert_eq!(states(&through, "views").await[of_2[0] as usize], PartitionState::Refused);
    assert!(publishes_to(&through, "views", of_2[1]).await);
    let lost = of_2[0].to_string();
    let kept = of_2[1].to_string();
    let serves = cli(&cluster, 1, &["topic", "accept-loss", "views", "--partition", &kept, "--yes"]);
    assert!(!serves.status.success() && serves.stderr.contains("nothing of it is lost"), "{}", serves.stderr);
    let accepted = cli(&cluster, 1, &["--json", "topic", "accept-loss", "views", "--partition", &lost, "--yes"]);
    assert!(accepted.success().text().contains(r#""broker_id":2,"epoch":2"#));
    eventually("it to begin anew", async || publishes_to(&through, "views", of_2[0]).await).await;

    // The whole directory is gone, for good.
    cluster.broker_mut(2).kill9();
    fs::remove_dir_all(&data).expect("removed");
    refused(cluster.broker_mut(2).try_restart(), "corelane broker forget 2");
    eventually("broker 1 to know that broker 2 is gone", async || {
        cli(&cluster, 1, &["--json", "broker", "list"]).success().text().contains(r#""alive":false"#)
    })
    .await;
    let early = cli(&cluster, 1, &["topic", "accept-loss", "views", "--partition", &kept, "--yes"]);
    assert!(early.stderr.contains("corelane broker forget 2"), "{}", early.stderr);
    let forgotten = cli(&cluster, 1, &["--json", "broker", "forget", "2", "--yes"]).success().text();
    assert!(forgotten.contains(r#""was_known":true"#) && forgotten.contains(r#""partitions":2"#), "{forgotten}");
    let again = cli(&cluster, 1, &["broker", "forget", "2", "--yes"]).success().text();
    assert!(again.contains("2 partitions left to accept"), "it may be asked for again: {again}");
    let elsewhere = cli(&cluster, 1, &["--json", "topic", "accept-loss", "views", "--partition", &kept, "--yes"]);
    assert!(elsewhere.success().text().contains(r#""broker_id":1"#));
    let first = client(&cluster, 1).await;
    eventually("it to begin anew elsewhere", async || publishes_to(&first, "views", of_2[1]).await).await;
    // The number is free for a new directory, which is given nothing that it does not hold.
    let _new = cluster.try_start_as(2, |options: BrokerOptions| options).expect("the number is free");
    eventually("what was lost with it to stay refused", async || {
        states(&client(&cluster, 1).await, "views").await[of_2[0] as usize] != PartitionState::Opening
    })
    .await;
}
