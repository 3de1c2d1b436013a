//! What a broker's log tells of a group's members.

use std::time::Duration;

use corelane_client::{GroupConsumer, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, wait_until};

use crate::support::{PATIENCE, connect, create, eventually, publish_numbered, soon};

/// A member with a short lease.
async fn join(broker: &Broker) -> GroupConsumer {
    let builder = connect(broker).await.group("readers").topic("views").lease(Duration::from_secs(1));
    builder.build().expect("a member")
}

/// Reads until the member owns a partition.
async fn until_it_owns(member: &mut GroupConsumer) {
    eventually("a partition", async || {
        let _ = tokio::time::timeout(Duration::from_millis(20), member.next()).await;
        !member.assignment().is_empty()
    })
    .await;
}

#[test]
fn a_member_that_is_killed_is_told_in_the_log_and_why_there_is_a_new_target() {
    let broker = Broker::start(BrokerOptions::new().shards(1));
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let (of_others, of_killed) = (runtime(), runtime());
    let mut stays = of_others.block_on(async {
        let client = connect(&broker).await;
        create(&client, "views", 2, TopicSettings::new()).await;
        let producer = client.producer().build().expect("a producer");
        publish_numbered(&producer, "views", 0, 0..3, 20).await;
        // One that leaves is no loss.
        let mut leaves = join(&broker).await;
        until_it_owns(&mut leaves).await;
        soon("it to leave", leaves.close()).await.expect("left");
        join(&broker).await
    });
    let stays = of_others.spawn(async move { while stays.next().await.is_some() {} });
    // One that ends like a process that is killed: all of it stops at once.
    let killed = of_killed.block_on(async {
        let mut killed = join(&broker).await;
        until_it_owns(&mut killed).await;
        killed
    });
    of_killed.shutdown_background();
    let lines = |words: [&str; 2]| {
        let log = broker.log();
        let found = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
        found.map(str::to_owned).collect::<Vec<_>>()
    };
    wait_until("its lease to end", PATIENCE, || !lines(["a member is gone", "its lease has ended"]).is_empty());
    wait_until("the others' target", PATIENCE, || {
        let last = lines(["the group has a new target", ""]).pop().expect("there were some");
        last.contains("a member is gone")
    });
    let told = lines(["a member is gone", "its lease has ended"]);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("readers") && told[0].contains("127.0.0.1"), "{told:?}");
    assert!(!lines(["the group has a new target", "a member has joined"]).is_empty());
    assert_eq!(lines(["a member has left", "readers"]).len(), 1);
    assert!(!stays.is_finished());
    drop(killed);
}
