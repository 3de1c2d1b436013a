//! What a group promises when one member pauses, leaves, comes back or dies, and when very many come at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use corelane_client::{Client, GroupConsumer};
use corelane_testkit::{Broker, BrokerOptions, full};

use super::history::{What, quantile};
use super::world::{
    GROUP, Manner, Member, Members, PATIENCE, Publisher, TOPIC, assert_holds, catch_up, client_of, client_with_topic,
    describe, is_settled, make_topic, now, read_topic, settle,
};

async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// A broker by itself, with the topic.
async fn alone(partitions: u32) -> (Broker, Client) {
    let broker = Broker::start(BrokerOptions::new().shards(1).args(["--pin-shards", "false"]));
    let client = client_of(broker.addr().to_string()).await;
    make_topic(&client, partitions).await;
    (broker, client)
}

/// Pauses a member between the delivery of a message and its commit.
async fn pause_with_a_message_in_hand(member: &mut Member, members: &Members) {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "the member never has a message in hand");
        member.process.pause();
        // What it was writing when the signal came is there by then.
        pause(Duration::from_millis(20)).await;
        let events = members.history().events;
        let last = events.iter().filter(|event| event.member == member.number).max_by_key(|event| event.at);
        if last.is_some_and(|event| matches!(event.what, What::Deliver { .. })) {
            return;
        }
        member.process.resume();
        pause(Duration::from_millis(30)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_slept_past_its_lease_delivers_nothing_more_and_what_it_held_is_not_committed() {
    const PARTITIONS: u32 = 4;
    let (broker, client) = alone(PARTITIONS).await;
    let lease = Duration::from_millis(1_500);
    let manner = Manner { lease, hold: Duration::from_millis(100), commit_every: 1 };
    let mut members = Members::new(broker.addr().to_string(), manner);
    let publisher = Publisher::start(&client, PARTITIONS, Duration::from_millis(500));
    let (mut sleeper, _other) = (members.start(), members.start());
    settle(&client, PARTITIONS, 2).await;
    pause_with_a_message_in_hand(&mut sleeper, &members).await;
    let slept = now();
    settle(&client, PARTITIONS, 1).await;
    pause(2 * lease).await;
    sleeper.process.resume();
    settle(&client, PARTITIONS, 2).await;
    pause(Duration::from_millis(500)).await;
    let published = publisher.stop().await;
    catch_up(&client).await;

    let (topic, history) = (read_topic(&client).await, members.history());
    assert_holds(&topic, &published);
    assert_eq!(history.check(&topic), Vec::<String>::new());
    // The messages that it had asked for with the last one are there, in its memory, when it wakes up.
    let own = history.events.iter().filter(|event| event.member == sleeper.number && event.at > slept);
    let woke: Vec<_> = own.take_while(|event| !matches!(event.what, What::Claim(..))).collect();
    let delivered = woke.iter().filter(|event| matches!(event.what, What::Deliver { .. })).count();
    // One may have been on its way from the check to the file.
    assert!(delivered <= 1, "{woke:?}");
    assert!(woke.iter().any(|event| matches!(event.what, What::Lost(..))), "it was told of no loss: {woke:?}");
    let figures = history.figures(&topic);
    assert!(figures.refused_commits > 0, "what it held was committed all the same: {figures:?}");
}

/// How often a member leaves, and is killed, and the quiet before: while changes come one upon the other they are gathered.
fn rounds() -> (usize, usize, Duration) {
    if full() { (20, 10, Duration::from_millis(3_500)) } else { (4, 2, Duration::from_millis(200)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_leaves_and_comes_back_stops_nobody_else_and_its_share_is_read_on_at_once() {
    const PARTITIONS: u32 = 20;
    const MEMBERS: usize = 10;
    let test = "one_that_leaves_and_comes_back_stops_nobody_else_and_its_share_is_read_on_at_once";
    let Some(cluster) = super::start(test, 2) else { return };
    let client = client_with_topic(&cluster, PARTITIONS).await;
    let lease = Duration::from_secs(2);
    let manner = Manner { lease, hold: Duration::ZERO, commit_every: 0 };
    let mut members = Members::new(cluster.bootstrap(), manner);
    let publisher = Publisher::start(&client, PARTITIONS, Duration::from_millis(40));
    let mut live: Vec<_> = (0..MEMBERS).map(|_| members.start()).collect();
    settle(&client, PARTITIONS, MEMBERS).await;
    pause(Duration::from_millis(500)).await;
    let (leaves, kills, quiet) = rounds();
    let mut gone = Vec::new();
    for round in 0..leaves + kills {
        pause(quiet).await;
        let mut member = live.remove(0);
        let at = now();
        if round < leaves {
            member.process.terminate();
        } else {
            member.process.kill9();
        }
        gone.push((round < leaves, member.number, at));
        settle(&client, PARTITIONS, MEMBERS - 1).await;
        pause(Duration::from_millis(200)).await;
        live.push(members.start());
        settle(&client, PARTITIONS, MEMBERS).await;
    }
    let published = publisher.stop().await;
    catch_up(&client).await;

    let (topic, history) = (read_topic(&client).await, members.history());
    assert_holds(&topic, &published);
    assert_eq!(history.check(&topic), Vec::<String>::new());
    for (is_leave, how) in [(true, "a clean leave"), (false, "a kill")] {
        let of_kind = gone.iter().filter(|(kind, ..)| *kind == is_leave);
        let mut taken: Vec<Duration> = of_kind
            .flat_map(|(_, member, at)| {
                let partitions = history.owned_by(*member, *at).into_iter();
                partitions.filter_map(|partition| history.taken_over(partition, *member, *at))
            })
            .collect();
        taken.sort();
        let (p50, p99) = (quantile(&taken, 0.5), quantile(&taken, 0.99));
        println!(
            "from {how} (lease {lease:?}) to the next owner's first message: {} times, p50 {p50:?}, p99 {p99:?}",
            taken.len()
        );
        assert!(!taken.is_empty());
    }
    let pauses = history.pauses();
    let (p50, p999, longest) = (quantile(&pauses, 0.5), quantile(&pauses, 0.999), quantile(&pauses, 1.0));
    println!(
        "between two messages of a partition that stayed (published every 40 ms): p50 {p50:?}, p99.9 {p999:?}, longest {longest:?}"
    );
    assert!(longest < PATIENCE / 4, "others stood still for {longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn very_many_members_that_come_at_once_settle_and_the_group_can_be_looked_at_meanwhile() {
    let (members, partitions) = if full() { (500, 2_000) } else { (60, 240) };
    let (broker, client) = alone(partitions).await;
    let claims = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut consumers: Vec<GroupConsumer> = Vec::new();
    let join = || {
        let claims = claims.clone();
        let count = move |_: &corelane_client::GroupPartition| {
            claims.fetch_add(1, Ordering::Relaxed);
        };
        client.group(GROUP).topic(TOPIC).on_claim(count).build().expect("a member")
    };
    let mut slowest = Duration::ZERO;
    let mut settled = None;
    while settled.is_none() {
        let due = (began.elapsed().as_secs_f64() / 5.0 * members as f64) as usize + 1;
        while consumers.len() < due.min(members) {
            consumers.push(join());
        }
        let asked = Instant::now();
        let group = describe(&client).await;
        slowest = slowest.max(asked.elapsed());
        settled = group.filter(|group| is_settled(group, partitions, members));
        assert!(began.elapsed() < PATIENCE, "{members} members are not settled after {PATIENCE:?}");
        pause(Duration::from_millis(100)).await;
    }
    let claims = claims.load(Ordering::Relaxed);
    println!(
        "{members} members on {partitions} partitions: settled {:?} after the first came, {claims} claims, slowest look {slowest:?}",
        began.elapsed()
    );
    assert!(slowest < PATIENCE / 4, "a look at the group took {slowest:?}");
    drop(consumers);
    drop(broker);
}
