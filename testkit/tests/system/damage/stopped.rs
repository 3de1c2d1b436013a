//! Damage that was done while the broker was stopped: a real broker on each of the kept directories.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use corelane_client::{Client, ConsumeError, Find, Record, Start};
use corelane_testkit::{Broker, BrokerOptions, TestDir};

use super::cases::{CASES, Case, Served};
use super::fixture::{damaged, healthy, lay, partition_dir, segments, stored};
use super::recipes::RECIPES;
use super::{Got, TOPIC, kinds, metric, read_partition, verify};
use crate::support::{connect, from_start, soon};

/// Runs those of the cases whose number leaves `rest` when divided by 4.
async fn check_cases(rest: usize) {
    for case in CASES.iter().skip(rest).step_by(4) {
        println!("{}", case.name);
        check(case).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_damaged_directory_ends_with_a_line_a_counter_and_the_good_messages_served_1() {
    assert_eq!(CASES.map(|case| case.name).len(), RECIPES.len());
    assert!(RECIPES.iter().all(|(name, _)| CASES.iter().any(|case| case.name == *name)), "each recipe has its case");
    check_cases(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_damaged_directory_ends_with_a_line_a_counter_and_the_good_messages_served_2() {
    check_cases(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_damaged_directory_ends_with_a_line_a_counter_and_the_good_messages_served_3() {
    check_cases(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_damaged_directory_ends_with_a_line_a_counter_and_the_good_messages_served_4() {
    check_cases(3).await;
}

/// Messages of a healthy partition but for those of a range.
fn all_but(partition: u32, lost: &std::ops::Range<usize>) -> Vec<Got> {
    let stored = stored(&healthy(), partition).into_iter().enumerate();
    stored.filter(|(number, _)| !lost.contains(number)).flat_map(|(_, stored)| stored.got).collect()
}

async fn check(case: &Case) {
    let dir = TestDir::new(case.name);
    let data = dir.join("data");
    lay(&damaged(case.name), &data);
    let (status, report) = verify(&data);
    let found = kinds(&report);
    assert!(case.verify.iter().all(|kind| found.contains(*kind)), "{}: verify finds {found:?}", case.name);
    assert_eq!(status, i32::from(case.is_damage), "{}: {report}", case.name);

    let started = Broker::try_start(BrokerOptions::new().data(&data).shards(2));
    let broker = match (started, &case.served) {
        (Ok(broker), served) if !matches!(served, Served::NoStart) => broker,
        (Err(failure), Served::NoStart) => {
            assert!(failure.stderr.contains(case.log), "{}: {}", case.name, failure.stderr);
            assert!(failure.status.is_some(), "{}: it hangs instead of saying so", case.name);
            return;
        }
        (Ok(_), _) => panic!("{}: the broker starts", case.name),
        (Err(failure), _) => panic!("{}: {failure:#?}", case.name),
    };
    let client = connect(&broker).await;
    match &case.served {
        Served::But(lost) => check_served(case, &client, lost).await,
        Served::Newer(message) => check_newer(case, &client, *message).await,
        Served::AsItLies => {
            let expected: Vec<Got> = stored(&damaged(case.name), 0).into_iter().flat_map(|stored| stored.got).collect();
            let (got, stats) = read_partition(&client, 0, Start::Earliest).await;
            assert_eq!((got, stats.bad_messages), (expected, 0), "{}", case.name);
        }
        Served::Refused => check_refused(case, &client, 0).await,
        Served::TopicRefused | Served::NoStart => {
            check_refused(case, &client, 0).await;
            check_refused(case, &client, 1).await;
        }
    }
    if !matches!(case.served, Served::TopicRefused) {
        let (beside, stats) = read_partition(&client, 1, Start::Earliest).await;
        assert_eq!((beside, stats.bad_messages), (all_but(1, &(0..0)), 0), "{}: the partition beside it", case.name);
    }
    let log = broker.log();
    assert!(log.contains(case.log), "{}: the log does not say `{}`:\n{log}", case.name, case.log);
    if let Some((name, least)) = case.metric {
        let value = metric(&broker, name);
        assert!(value >= least, "{}: {name} is {value}, at least {least} was expected", case.name);
    }
}

/// Partition 0 gives exactly the good messages, counts the bad ones, and goes on behind them.
async fn check_served(case: &Case, client: &Client, lost: &std::ops::Range<usize>) {
    let expected = all_but(0, lost);
    let (got, stats) = read_partition(client, 0, Start::Earliest).await;
    assert_eq!(got, expected, "{}", case.name);
    let detail =
        soon("a description", client.admin().describe_topic(TOPIC)).await.expect("described").details[0].clone();
    if lost.is_empty() {
        assert_eq!((stats.bad_messages, detail.bad_messages), (0, 0), "{}: nothing is bad", case.name);
    } else {
        assert!(stats.bad_messages > 0, "{}: the client counts", case.name);
        assert!(detail.bad_messages >= stats.bad_messages, "{}: the broker counts", case.name);
    }
    // Whoever looks by time needs every summary.
    let found = soon("an answer", client.admin().find(TOPIC, 0, Find::TimeMs(i64::MAX))).await.expect("a place");
    assert_eq!(found.position, detail.visible_end);
    let producer = client.producer().build().expect("a producer");
    let sent = producer.send(Record::to(TOPIC).partition(0).value(b"after the damage")).await.expect("taken");
    let position = soon("an acknowledgement", sent).await.expect("acknowledged").position.expect("a position");
    let (got, _) = read_partition(client, 0, Start::Earliest).await;
    assert_eq!(got[..expected.len()], expected, "{}: after a publish", case.name);
    assert_eq!(got[expected.len()..], [(position, "after the damage".to_owned())], "{}", case.name);
}

/// A reader stops at a message of a version that it does not know, and nothing is lost when it goes on behind it.
async fn check_newer(case: &Case, client: &Client, message: usize) {
    let mut consumer = from_start(client, TOPIC).await;
    let error = loop {
        if let Err(error) = soon("messages, then an error", consumer.next()).await.expect("the consumer goes on") {
            break error;
        }
    };
    let ConsumeError::NewerVersion { partition: 0, position, next_position, version: 9, .. } = error else {
        panic!("{}: {error}", case.name)
    };
    assert_eq!(consumer.stats().bad_messages, 0, "{}: it is good", case.name);
    let stored = stored(&healthy(), 0);
    let begins = |number: usize| stored[number].got[0].0;
    assert_eq!((position, next_position), (begins(message), begins(message + 1)), "{}", case.name);
    let (behind, _) = read_partition(client, 0, Start::Position(next_position)).await;
    let expected: Vec<Got> = stored.into_iter().skip(message + 1).flat_map(|stored| stored.got).collect();
    assert_eq!(behind, expected, "{}", case.name);
}

/// Clients are told that a partition is not served, and why.
async fn check_refused(case: &Case, client: &Client, partition: usize) {
    let description = soon("a description", client.admin().describe_topic(TOPIC)).await.expect("described");
    let told = &description.topic.partitions[partition];
    assert_eq!(told.state.name(), "refused", "{}: partition {partition} is {told:?}", case.name);
    assert!(told.reason.contains(case.log), "{}: clients are told `{}`", case.name, told.reason);
}

/// The user that a broker of this test runs as.
const USER: u32 = 65_534;

fn give(path: &Path) {
    chown(path, Some(USER), Some(USER)).expect("root gives files away");
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            give(&entry.expect("an entry").path());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_of_another_owner_refuses_its_partition_and_names_the_file() {
    // Below /var/tmp, where another user can come in.
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let data = dir.path().join("data");
    let tree = healthy();
    lay(&tree, &data);
    give(&data);
    let newest = data.join(segments(&tree, 0).pop().expect("a segment"));
    chown(&newest, Some(0), Some(0)).expect("root takes files");
    fs::set_permissions(&newest, fs::Permissions::from_mode(0o600)).expect("a mode");
    let user = USER.to_string();
    let wrapper = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"];
    let options = BrokerOptions::new().data(&data).shards(2).wrapper(wrapper).ready_within(Duration::from_mins(1));
    let broker = match Broker::try_start(options) {
        Ok(broker) => broker,
        Err(failure) => panic!("{failure:#?}"),
    };
    let client = connect(&broker).await;
    let description = soon("a description", client.admin().describe_topic(TOPIC)).await.expect("described");
    let told = &description.topic.partitions[0];
    let name = newest.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(told.state.name() == "refused" && told.reason.contains(&name), "{told:?}");
    assert!(told.reason.contains("check the disk and the permissions"), "{told:?}");
    assert!(broker.log().contains(&name));
    assert_eq!(metric(&broker, "corelane_partitions_refused"), 1);
    assert_eq!(read_partition(&client, 1, Start::Earliest).await.0, all_but(1, &(0..0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_checkpoint_knows_of_a_refused_partition_outlives_lives_without_it() {
    let dir = TestDir::new("carried");
    let data = dir.join("data");
    let tree = healthy();
    lay(&tree, &data);
    let path = segments(&tree, 0)[1].clone();
    let away = dir.join("away");
    fs::rename(data.join(&path), &away).expect("moved");
    let floor_of = |partition: u32| {
        let disk = corelane_log::blocking::BlockingDisk;
        let floors =
            corelane_log::blocking::run(corelane_log::checkpoint::read_all(&disk, &data)).expect("checkpoints");
        floors.entries().find(|entry| entry.partition == partition).copied()
    };
    let before = floor_of(0).expect("the healthy directory has a checkpoint");
    let mut broker = Broker::start(BrokerOptions::new().data(&data).shards(2));
    // Two lives in which the partition is refused, one of them with another number of shards; each writes checkpoints.
    for shards in [1, 2] {
        let client = connect(&broker).await;
        let producer = client.producer().build().expect("a producer");
        let sent = producer.send(Record::to(TOPIC).partition(1).value(b"beside")).await.expect("taken");
        soon("an acknowledgement", sent).await.expect("acknowledged");
        drop(client);
        broker.set_options(BrokerOptions::new().data(&data).shards(shards));
        broker.restart();
        assert_eq!(floor_of(0), Some(before), "it is carried on as it was");
    }
    broker.stop();
    assert_eq!(verify(&data).1["stopped_clean"], false, "a life that could not open everything was not clean");
    // The segment is put back, and the newest one loses its last set: below the floor that is damage, and kept.
    fs::rename(&away, data.join(&path)).expect("moved back");
    let newest = data.join(segments(&tree, 0).pop().expect("a segment"));
    let content = fs::read(&newest).expect("a segment");
    fs::write(&newest, &content[..content.len() - 10]).expect("written");
    broker.restart();
    let client = connect(&broker).await;
    assert_eq!(read_partition(&client, 0, Start::Earliest).await.0, all_but(0, &(14..15)));
    assert!(broker.log().contains("everything is kept, readers skip what is bad"), "the floor was known");
}

/// `log verify` names what was found, the broker refuses partition 0 with that reason and serves the one beside it.
async fn refused_as(data: &Path, kind: &str, reason: &str) {
    let (status, report) = verify(data);
    assert_eq!(status, 1, "{report}");
    assert!(kinds(&report).contains(kind), "{report}");
    let broker = Broker::start(BrokerOptions::new().data(data).shards(2));
    let client = connect(&broker).await;
    let description = soon("a description", client.admin().describe_topic(TOPIC)).await.expect("described");
    let told = &description.topic.partitions[0];
    assert!(told.state.name() == "refused" && told.reason.contains(reason), "{told:?}");
    assert!(broker.log().contains(reason));
    assert!(metric(&broker, "corelane_partitions_refused") >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_oldest_segment_and_an_overlapping_one_refuse_their_partition_and_are_named() {
    let dir = TestDir::new("oldest");
    let data = dir.join("data");
    let tree = healthy();
    lay(&tree, &data);
    // As a log of this version: the file that names the start is there.
    let in_partition = |name: &str| data.join(partition_dir(&tree, 0)).join(name);
    let mark = in_partition("00000000000000000000.start");
    fs::write(&mark, b"").expect("written");
    let paths = segments(&tree, 0);
    let away = dir.join("away");
    fs::rename(data.join(&paths[0]), &away).expect("moved");
    refused_as(&data, "gap", "the log's oldest bytes, 0 to").await;
    fs::rename(&away, data.join(&paths[0])).expect("moved back");
    // A copy of the second segment under a base in the first one.
    let copy = in_partition("00000000000000000100-00000001.log");
    let mut longer = tree[&paths[1]].clone();
    longer.resize(3 * 4096, 1);
    fs::write(&copy, longer).expect("written");
    refused_as(&data, "overlap", "two segments overlap").await;
    fs::remove_file(&copy).expect("removed");
    for shard in 0..2 {
        fs::remove_file(data.join(format!("checkpoint-{shard:03}"))).expect("removed");
    }
    let broker = Broker::start(BrokerOptions::new().data(&data).shards(2));
    let client = connect(&broker).await;
    assert_eq!(read_partition(&client, 0, Start::Earliest).await.0, all_but(0, &(0..0)));
    assert!(broker.log().contains("no checkpoint is there"), "the broker says that they are gone");
}
