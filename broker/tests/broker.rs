//! A real broker process: what it refuses to start on and how it says so, what it keeps over restarts, what becomes of
//! topics whose directory and registry disagree, its pages, its stop.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use corelane_broker::registry::embedded::{EmbeddedOptions, EmbeddedStore};
use corelane_broker::registry::keys::{Key, Keys};
use corelane_broker::registry::records::{CreatingRecord, PartitionRecord, Record};
use corelane_broker::registry::store::{Store, Txn};
use corelane_proto::frame::{Method, Status};
use corelane_proto::ids::{TopicId, TopicName};
use corelane_proto::pb;
use corelane_testkit::{Broker, BrokerOptions, StartFailure, TestDir, bin, http_get, run};
use support::{Wire, set_of};

/// What the issue of every start-up failure promises.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(30);

/// One line with cause and remedy, quickly, and a failing exit.
#[track_caller]
fn refusal(options: BrokerOptions) -> String {
    let failure: StartFailure = Broker::try_start(options).expect_err("the start is refused");
    explained(&failure)
}

#[track_caller]
fn explained(failure: &StartFailure) -> String {
    let status = failure.status.unwrap_or_else(|| panic!("the broker gives up by itself: {failure:#?}"));
    assert_eq!(status.code(), Some(1), "{failure:#?}");
    assert!(failure.took < REFUSED_WITHIN, "took {:?}", failure.took);
    let lines: Vec<&str> = failure.stderr.lines().filter(|line| line.starts_with("corelane-broker: ")).collect();
    assert_eq!(lines.len(), 1, "{}", failure.stderr);
    lines[0].to_owned()
}

fn wire(broker: &Broker) -> Wire {
    let mut wire = Wire::open(broker.addr());
    wire.call(Method::Hello, &support::hello(None), &[]).ok::<pb::HelloResponse>();
    wire
}

fn create(wire: &mut Wire, name: &str, partitions: u32) -> pb::Topic {
    let request = pb::CreateTopicRequest { name: name.to_owned(), partitions, ..Default::default() };
    let created: pb::CreateTopicResponse = wire.call(Method::CreateTopic, &request, &[]).ok();
    assert!(created.created);
    created.topic.expect("the topic")
}

fn topics(wire: &mut Wire) -> Vec<pb::Topic> {
    wire.call(Method::Metadata, &pb::MetadataRequest::default(), &[]).ok::<pb::MetadataResponse>().topics
}

fn publish(topic: &pb::Topic, partition: u32) -> pb::PublishRequest {
    pb::PublishRequest { topic_id: topic.topic_id.clone(), partition, epoch: 1, ..Default::default() }
}

/// Publishes one set to a partition, through a connection to its shard, and answers the set.
fn publish_one(broker: &Broker, topic: &pb::Topic, partition: u32) -> Vec<u8> {
    let mut wire = Wire::greet(broker.addr(), topic.partitions[partition as usize].shard);
    let set = set_of(&[format!("{}/{partition}", topic.name)]);
    wire.call(Method::Publish, &publish(topic, partition), &set).ok::<pb::PublishResponse>();
    set
}

fn fetch_all(broker: &Broker, topic: &pb::Topic, partition: u32) -> support::Answered {
    let mut wire = Wire::greet(broker.addr(), topic.partitions[partition as usize].shard);
    let request = pb::FetchRequest {
        topic_id: topic.topic_id.clone(),
        partition,
        epoch: 1,
        max_bytes: 1 << 20,
        ..Default::default()
    };
    wire.call(Method::Fetch, &request, &[])
}

fn topic_dir(broker: &Broker, topic: &pb::Topic) -> PathBuf {
    broker.data_dir().join(format!("{}~{}", topic.name, id(topic).short()))
}

fn id(topic: &pb::Topic) -> TopicId {
    TopicId::try_from(topic.topic_id.as_slice()).expect("a whole id")
}

/// Changes the registry of a broker that does not run.
fn with_registry<T>(data: &Path, change: impl AsyncFnOnce(&EmbeddedStore, &Keys) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = EmbeddedStore::open(&data.join("registry.redb"), EmbeddedOptions::default())
            .expect("nobody else has it open");
        let result = change(&store, &Keys::new("main")).await;
        store.close();
        result
    })
}

#[test]
fn what_a_topic_is_a_copy_of_is_kept_as_it_was_said_and_only_what_can_be_printed() {
    let mut broker = Broker::start(BrokerOptions::new());
    let mut client = wire(&broker);
    let request = |steps: &[&str]| pb::CreateTopicRequest {
        name: "copy".to_owned(),
        partitions: 1,
        copy_of: steps.iter().map(|step| (*step).to_owned()).collect(),
        ..Default::default()
    };
    for steps in [&["a/t/00c0ffee"; 17][..], &[""], &["a/\n"], &["a b"], &[&"x".repeat(481)]] {
        let refused = client.call(Method::CreateTopic, &request(steps), &[]);
        assert_eq!((refused.status, refused.error().field.as_deref()), (Status::InvalidRequest, Some("copy_of")));
    }
    let steps = ["a/t/00c0ffee", "b/a.t/0badcafe"];
    let _: pb::CreateTopicResponse = client.call(Method::CreateTopic, &request(&steps), &[]).ok();
    broker.kill9();
    broker.restart();
    let asked = pb::DescribeTopicRequest { name: "copy".to_owned() };
    let described: pb::DescribeTopicResponse = wire(&broker).call(Method::DescribeTopic, &asked, &[]).ok();
    assert_eq!(described.topic.expect("the topic").copy_of, steps);
}

#[test]
fn a_log_begins_where_it_is_told_also_after_a_kill_and_nowhere_impossible() {
    let mut broker = Broker::start(BrokerOptions::new());
    let mut client = wire(&broker);
    let request = |starts: &[u64]| pb::CreateTopicRequest {
        name: "copy".to_owned(),
        partitions: 3,
        starts: starts.to_vec(),
        ..Default::default()
    };
    for starts in [&[1, 2][..], &[0; 4], &[0, 0, (1 << 62) + 1]] {
        let refused = client.call(Method::CreateTopic, &request(starts), &[]);
        assert_eq!((refused.status, refused.error().field.as_deref()), (Status::InvalidRequest, Some("starts")));
    }
    let starts = [0, 4_097, 1 << 62];
    let created: pb::CreateTopicResponse = client.call(Method::CreateTopic, &request(&starts), &[]).ok();
    let topic = created.topic.expect("the topic");
    let bounds = |broker: &Broker| -> Vec<(u64, u64)> {
        let request = pb::DescribeTopicRequest { name: "copy".to_owned() };
        let described: pb::DescribeTopicResponse = wire(broker).call(Method::DescribeTopic, &request, &[]).ok();
        described.details.iter().map(|detail| (detail.start, detail.visible_end)).collect()
    };
    assert_eq!(bounds(&broker), starts.map(|start| (start, start)));
    broker.kill9();
    broker.restart();
    assert_eq!(bounds(&broker), starts.map(|start| (start, start)), "an empty log keeps its start");
    for (partition, start) in (0..).zip(starts) {
        let set = set_of(&["first"]);
        let mut shard = Wire::greet(broker.addr(), topic.partitions[partition as usize].shard);
        let expected = pb::PublishRequest { expected_id: Some(start), ..publish(&topic, partition) };
        let published: pb::PublishResponse = shard.call(Method::Publish, &expected, &set).ok();
        assert_eq!((published.first_id, published.next_id), (start, start + set.len() as u64));
    }
    let ends = bounds(&broker);
    broker.kill9();
    broker.restart();
    assert_eq!(bounds(&broker), ends);
}

#[test]
fn topics_and_their_messages_outlive_stops_and_kills() {
    let mut broker = Broker::start(BrokerOptions::new());
    let mut client = wire(&broker);
    let views = create(&mut client, "views", 5);
    create(&mut client, "clicks", 1);
    let request = pb::CreateTopicRequest { name: "views".to_owned(), partitions: 5, ..Default::default() };
    assert_eq!(client.call(Method::CreateTopic, &request, &[]).status, Status::TopicExists);
    let welcome = pb::CreateTopicRequest { if_not_exists: true, ..request.clone() };
    let again: pb::CreateTopicResponse = client.call(Method::CreateTopic, &welcome, &[]).ok();
    assert!(!again.created && again.topic.as_ref() == Some(&views));
    let other_count = pb::CreateTopicRequest { partitions: 4, ..welcome };
    assert_eq!(client.call(Method::CreateTopic, &other_count, &[]).status, Status::TopicExists);

    let sets: Vec<_> = (0..5).map(|partition| publish_one(&broker, &views, partition)).collect();
    for round in 0..3 {
        if round == 1 {
            broker.stop();
            broker.restart();
        } else if round == 2 {
            broker.kill9();
            broker.restart();
        }
        let known = topics(&mut wire(&broker));
        assert_eq!(known.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["clicks", "views"]);
        assert_eq!(known[1], views);
        for (partition, set) in sets.iter().enumerate() {
            assert!(
                fetch_all(&broker, &views, partition as u32).payload == *set,
                "round {round} partition {partition}"
            );
        }
    }
}

#[test]
fn a_topic_is_altered_described_trimmed_and_deleted() {
    let broker = Broker::start(BrokerOptions::new());
    let mut client = wire(&broker);
    let views = create(&mut client, "views", 2);
    publish_one(&broker, &views, 0);

    let config = pb::TopicConfig { retention_ms: Some(1_000_000), set_bytes_max: Some(100), ..Default::default() };
    let alter = pb::AlterTopicRequest { name: "views".to_owned(), config: Some(config) };
    let refused = client.call(Method::AlterTopic, &alter, &[]);
    assert_eq!((refused.status, refused.error().field.as_deref()), (Status::InvalidRequest, Some("message_bytes_max")));
    let mut alter = alter;
    alter.config.as_mut().expect("set above").message_bytes_max = Some(100);
    let altered: pb::AlterTopicResponse = client.call(Method::AlterTopic, &alter, &[]).ok();
    let config = altered.topic.expect("the topic").config.expect("its configuration");
    assert_eq!(
        (config.retention_ms, config.segment_bytes),
        (Some(1_000_000), views.config.expect("set").segment_bytes)
    );
    let mut shard = Wire::greet(broker.addr(), views.partitions[0].shard);
    let refused = shard.call(Method::Publish, &publish(&views, 0), &set_of(&[vec![0; 200]]));
    assert_eq!((refused.status, refused.error().limit), (Status::TooLarge, Some(100)), "the shards know it");

    let describe = pb::DescribeTopicRequest { name: "views".to_owned() };
    let described: pb::DescribeTopicResponse = client.call(Method::DescribeTopic, &describe, &[]).ok();
    assert_eq!(described.details.iter().map(|detail| detail.partition).collect::<Vec<_>>(), [0, 1]);
    assert!(described.details[0].durable_end > 0 && described.details[1].end == 0);

    let trim = |position| pb::TrimTopicRequest { topic_id: views.topic_id.clone(), partition: 0, epoch: 1, position };
    let end = described.details[0].end;
    let trimmed: pb::TrimTopicResponse = shard.call(Method::TrimTopic, &trim(end), &[]).ok();
    assert_eq!(trimmed.start, 0, "the active segment begins there");
    assert_eq!(shard.call(Method::TrimTopic, &trim(end + 1), &[]).error().end, Some(end));

    let directory = topic_dir(&broker, &views);
    assert!(directory.is_dir());
    let wrong = pb::DeleteTopicRequest { name: "views".to_owned(), topic_id: vec![1; 16] };
    assert_eq!(client.call(Method::DeleteTopic, &wrong, &[]).status, Status::UnknownTopic);
    let delete = pb::DeleteTopicRequest { name: "views".to_owned(), topic_id: Vec::new() };
    client.call(Method::DeleteTopic, &delete, &[]).ok::<pb::DeleteTopicResponse>();
    assert!(!directory.exists(), "its data is out of use at once");
    assert!(topics(&mut client).is_empty());
    assert_eq!(fetch_all(&broker, &views, 0).status, Status::UnknownTopic);

    let namesake = create(&mut client, "views", 2);
    assert_ne!(namesake.topic_id, views.topic_id);
    assert_eq!(fetch_all(&broker, &views, 0).status, Status::UnknownTopic, "the namesake is another topic");
    assert!(fetch_all(&broker, &namesake, 0).payload.is_empty());
}

#[test]
fn what_cannot_be_created_is_refused_with_the_field() {
    let broker = Broker::start(BrokerOptions::new().arg("--partitions-max").arg("10"));
    let mut client = wire(&broker);
    let mut refused = |name: &str, partitions, config: pb::TopicConfig| {
        let request =
            pb::CreateTopicRequest { name: name.to_owned(), partitions, config: Some(config), ..Default::default() };
        let refused = client.call(Method::CreateTopic, &request, &[]);
        assert_eq!(refused.status, Status::InvalidRequest, "{name} {partitions}");
        refused.error().field.expect("a field")
    };
    let default = pb::TopicConfig::default;
    assert_eq!(refused("a/b", 1, default()), "name");
    assert_eq!(refused("..", 1, default()), "name");
    assert_eq!(refused("t", 0, default()), "partitions");
    assert_eq!(refused("t", u32::MAX, default()), "partitions");
    assert_eq!(refused("t", 11, default()), "partitions");
    assert_eq!(refused("t", 1, pb::TopicConfig { segment_bytes: Some(1), ..default() }), "segment_bytes");
    assert_eq!(refused("t", 1, pb::TopicConfig { set_bytes_max: Some(1 << 30), ..default() }), "set_bytes_max");
    create(&mut client, "t", 10);
    let delete = pb::DeleteTopicRequest { name: "other".to_owned(), topic_id: Vec::new() };
    assert_eq!(client.call(Method::DeleteTopic, &delete, &[]).status, Status::UnknownTopic);
}

#[test]
fn a_lost_log_is_not_served_as_an_empty_one_and_the_others_serve() {
    let mut broker = Broker::start(BrokerOptions::new());
    let mut client = wire(&broker);
    let views = create(&mut client, "views", 2);
    let set = publish_one(&broker, &views, 0);
    publish_one(&broker, &views, 1);
    broker.stop();
    let (log, elsewhere) = (topic_dir(&broker, &views).join("0"), broker.data_dir().join("elsewhere"));
    fs::rename(&log, &elsewhere).expect("moved");
    broker.restart();
    let refused = fetch_all(&broker, &views, 0);
    assert_eq!(refused.status, Status::PartitionRefused);
    assert!(refused.error().message.contains("put its directory back"), "{}", refused.error().message);
    assert!(!fetch_all(&broker, &views, 1).payload.is_empty());
    assert_eq!(topics(&mut wire(&broker))[0].partitions[0].state(), pb::PartitionState::Refused);
    let ready = http_get(broker.http_addr(), "/health/ready", PATIENCE).expect("a page");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("views/0: "), "{}", ready.body);
    assert!(!log.exists(), "nothing was made in its place");
    broker.stop();
    fs::rename(&elsewhere, &log).expect("moved back");
    broker.restart();
    assert!(fetch_all(&broker, &views, 0).payload == set);
    assert_eq!(http_get(broker.http_addr(), "/health/ready", PATIENCE).expect("a page").status, 200);
}

#[test]
fn a_log_that_was_made_without_the_registry_hearing_of_it_is_kept() {
    let mut broker = Broker::start(BrokerOptions::new());
    let views = create(&mut wire(&broker), "views", 1);
    let set = publish_one(&broker, &views, 0);
    broker.kill9();
    let made = async |store: &EmbeddedStore, key: &str| {
        let entry = store.get(key).await.expect("read").expect("there");
        PartitionRecord::from_bytes(&entry.value).expect("readable")
    };
    with_registry(&broker.data_dir(), async |store, keys| {
        let key = keys.key(&Key::Partition(id(&views), 0));
        let record = made(store, &key).await;
        assert_eq!(record.made, Some(record.epoch), "recorded before anything was acknowledged");
        let forgotten = PartitionRecord { made: None, ..record };
        store.commit(Txn::new().put(key, forgotten.to_bytes())).await.expect("written");
    });
    broker.restart();
    assert!(fetch_all(&broker, &views, 0).payload == set);
    broker.stop();
    with_registry(&broker.data_dir(), async |store, keys| {
        let record = made(store, &keys.key(&Key::Partition(id(&views), 0))).await;
        assert_eq!(record.made, Some(record.epoch), "and recorded again");
    });
}

#[test]
fn absence_in_the_registry_deletes_nothing_and_a_tombstone_does() {
    let mut broker = Broker::start(BrokerOptions::new());
    let mut client = wire(&broker);
    let (forgotten, deleted) = (create(&mut client, "forgotten", 1), create(&mut client, "deleted", 1));
    let set = publish_one(&broker, &forgotten, 0);
    let (kept, gone) = (topic_dir(&broker, &forgotten), topic_dir(&broker, &deleted));
    broker.stop();
    let taken = with_registry(&broker.data_dir(), async |store, keys| {
        // What an operator who deletes the wrong key does, and what a broker does that dies right after the commit.
        let key = keys.key(&Key::Topic(TopicName::new("forgotten").expect("a name")));
        let taken = store.get(&key).await.expect("read").expect("there").value;
        store.commit(Txn::new().delete(key)).await.expect("written");
        let topics = corelane_broker::registry::topics::Topics::new(store.clone(), keys.clone(), "test".to_owned());
        topics.delete(&TopicName::new("deleted").expect("a name"), None).await.expect("deleted");
        taken
    });
    broker.restart();
    assert!(topics(&mut wire(&broker)).is_empty());
    assert!(kept.join("0").is_dir() && !gone.exists());
    let log = broker.log();
    assert!(log.contains("is set aside, kept, not served") && log.contains("forgotten"), "{log}");
    assert_eq!(fetch_all(&broker, &forgotten, 0).status, Status::UnknownTopic);
    broker.stop();
    with_registry(&broker.data_dir(), async |store, keys| {
        assert_eq!(store.get(&keys.key(&Key::Deleted(id(&deleted)))).await.expect("read"), None, "confirmed");
        let key = keys.key(&Key::Topic(TopicName::new("forgotten").expect("a name")));
        store.commit(Txn::new().put(key, taken)).await.expect("written");
    });
    broker.restart();
    assert!(fetch_all(&broker, &forgotten, 0).payload == set, "untouched");
}

#[test]
fn a_creation_that_died_is_swept_at_the_next_start() {
    let mut broker = Broker::start(BrokerOptions::new());
    broker.kill9();
    let topic_id = TopicId([7; 16]);
    with_registry(&broker.data_dir(), async |store, keys| {
        let name = TopicName::new("dead").expect("a name");
        let marker = CreatingRecord { name, from: 0, partitions: 2, instance: "one that died".to_owned() };
        let marked = Txn::new()
            .put(keys.key(&Key::Creating(topic_id)), marker.to_bytes())
            .put(keys.key(&Key::Partition(topic_id, 0)), b"{}".to_vec());
        store.commit(marked).await.expect("written");
    });
    broker.restart();
    create(&mut wire(&broker), "dead", 1);
    broker.stop();
    assert!(broker.log().contains("a creation that had died was taken back"));
    with_registry(&broker.data_dir(), async |store, keys| {
        assert_eq!(store.get(&keys.key(&Key::Creating(topic_id))).await.expect("read"), None);
        assert_eq!(store.get(&keys.key(&Key::Partition(topic_id, 0))).await.expect("read"), None);
    });
}

#[test]
fn a_second_broker_on_the_same_directory_is_refused_with_the_pid_of_the_first() {
    let broker = Broker::start(BrokerOptions::new());
    let line = refusal(BrokerOptions::new().data(broker.data_dir()));
    assert!(line.contains(&format!("(pid {})", broker.pid())) && line.contains("--data"), "{line}");
}

#[test]
fn ports_in_use_are_named_with_the_remedy() {
    let broker = Broker::start(BrokerOptions::new());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let line = refusal(BrokerOptions::new().listen(address));
    assert!(line.contains(&address.to_string()) && line.contains("--listen"), "{line}");
    let line = refusal(BrokerOptions::new().arg("--http").arg(broker.http_addr().to_string()));
    assert!(line.contains(&broker.http_addr().to_string()) && line.contains("--http"), "{line}");
}

#[test]
fn a_directory_that_does_not_belong_to_this_broker_is_refused_and_left_alone() {
    let mut broker = Broker::start(BrokerOptions::new());
    let views = create(&mut wire(&broker), "views", 1);
    let set = publish_one(&broker, &views, 0);
    broker.stop();
    let data = broker.data_dir();
    let again = || BrokerOptions::new().data(&data);
    assert!(refusal(again().arg("--broker-id").arg("7")).contains("start with --broker-id 1"));
    // Without its registry.
    let (registry, aside) = (data.join("registry.redb"), data.join("aside"));
    fs::rename(&registry, &aside).expect("moved");
    let line = refusal(again());
    assert!(line.contains("the registry is empty") && line.contains("knows 1 of its topics"), "{line}");
    // With another cluster's.
    let other = Broker::start(BrokerOptions::new());
    let other_data = other.data_dir();
    let mut other = other;
    other.stop();
    fs::copy(other_data.join("registry.redb"), &registry).expect("copied");
    assert!(refusal(again()).contains("belongs to cluster"));
    // Without its identity.
    fs::rename(&aside, &registry).expect("moved back");
    let identity = fs::read(data.join("identity")).expect("read");
    fs::remove_file(data.join("identity")).expect("removed");
    assert!(refusal(again()).contains("no identity file"));
    // An older copy of it.
    fs::write(data.join("identity"), &identity).expect("written");
    broker.restart();
    broker.stop();
    let newer = fs::read(data.join("identity")).expect("read");
    fs::write(data.join("identity"), &identity).expect("written");
    for _ in 0..3 {
        let line = refusal(again());
        assert!(line.contains("is an older copy"), "it does not catch up by being tried: {line}");
    }
    fs::write(data.join("identity"), &newer).expect("written");
    broker.restart();
    assert!(fetch_all(&broker, &views, 0).payload == set);
}

#[test]
fn settings_that_are_wrong_stop_the_start_and_are_named() {
    for (options, expected) in [
        (BrokerOptions::new().config("segment_byte = 1"), "unknown setting segment_byte"),
        (BrokerOptions::new().config("retention = \"7\""), "retention: "),
        (BrokerOptions::new().env("CORELANE_ARENA_BYTES", "1KiB"), "arena_bytes: 1KiB is out of range"),
        (BrokerOptions::new().args(["--set-bytes-max", "8MiB", "--segment-bytes", "1MiB"]), "set_bytes_max: "),
        (BrokerOptions::new().args(["--log-level", "x=y=z"]), "log_level: "),
    ] {
        let line = refusal(options);
        assert!(line.contains(expected), "{line}");
    }
    let file = TestDir::new("file");
    fs::write(file.join("f"), b"").expect("written");
    assert!(refusal(BrokerOptions::new().data(file.join("f"))).contains("is not a directory"));
}

/// The binary, without what the tests' own settings would mean to it.
fn binary() -> Command {
    let mut command = Command::new(bin("corelane-broker"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CORELANE_")) {
        command.env_remove(name);
    }
    command
}

#[test]
fn the_effective_settings_are_printed_and_load_again() {
    let dir = TestDir::new("settings");
    let file = dir.join("corelane.toml");
    let mut command = binary();
    command.args(["--print-config", "--retention", "36h"]).env("CORELANE_SHARDS", "3");
    let printed = run(&mut command, PATIENCE).success().text();
    assert!(printed.contains("retention = \"36h\"") && printed.contains("shards = \"3\""), "{printed}");
    fs::write(&file, &printed).expect("written");
    let mut command = binary();
    command.arg("--print-config").arg("--config").arg(&file);
    assert_eq!(run(&mut command, PATIENCE).success().text(), printed);
    let mut command = binary();
    let help = run(command.arg("--help"), PATIENCE).success().text();
    for setting in corelane_broker::config::SETTINGS {
        assert!(
            help.contains(&format!("--{} ", setting.flag())) && help.contains(&setting.variable()),
            "{}",
            setting.name
        );
    }
    assert!(help.contains("Examples:"));
    let refused = run(binary().args(["--print-config", "--log-level", "x=y=z"]), PATIENCE);
    assert!(!refused.status.success() && refused.stderr.contains("log_level: "), "{}", refused.stderr);
}

#[test]
fn the_pages_tell_health_and_figures() {
    let broker = Broker::start(BrokerOptions::new().shards(2));
    let views = create(&mut wire(&broker), "views", 4);
    publish_one(&broker, &views, 0);
    let get = |path: &str| http_get(broker.http_addr(), path, PATIENCE).expect("a page");
    assert_eq!((get("/health/live").status, get("/health/ready").status, get("/nothing").status), (200, 200, 404));
    assert_eq!(get("/").status, 200);
    for page in ["/", "/nothing"] {
        assert!(get(page).body.contains("/metrics, /health/live"), "{page} says what there is");
    }
    let metrics = get("/metrics").body;
    let sum = |name: &str| -> u64 {
        let lines = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        lines.map(|line| line.rsplit(' ').next().expect("a value").parse::<u64>().expect("a number")).sum()
    };
    assert_eq!((sum("corelane_partitions"), sum("corelane_published_sets_total")), (4, 1));
    assert!(metrics.contains("corelane_topics 1\n"));
}

#[test]
fn a_stop_in_the_middle_of_a_large_creation_leaves_the_topic_whole_or_not_at_all() {
    let mut broker = Broker::start(BrokerOptions::new());
    let mut client = wire(&broker);
    let request = pb::CreateTopicRequest { name: "large".to_owned(), partitions: 2_000, ..Default::default() };
    client.send(Method::CreateTopic, &request, &[]);
    // Once the topic is told, its partitions are being made; whether or not that is so yet, the stop is orderly.
    let mut other = wire(&broker);
    let began = Instant::now();
    while topics(&mut other).is_empty() && began.elapsed() < PATIENCE {}
    let took = broker.stop();
    assert!(took < Duration::from_secs(10), "{took:?}");
    broker.restart();
    let known = topics(&mut wire(&broker));
    for topic in &known {
        assert_eq!(topic.partitions.len(), 2_000);
        let bad = topic.partitions.iter().find(|partition| partition.state() != pb::PartitionState::Serving);
        assert_eq!(bad, None);
    }
    assert!(!known.is_empty(), "it had been told before the stop");
}

#[test]
fn a_stop_in_the_middle_of_everything_is_orderly_and_quick() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut broker = Broker::start(BrokerOptions::new());
        let views = create(&mut wire(&broker), "views", 4);
        let (mut waiting, mut half) = (wire(&broker), Wire::greet(broker.addr(), views.partitions[0].shard));
        let fetch = pb::FetchRequest {
            topic_id: views.topic_id.clone(),
            epoch: 1,
            max_bytes: 1,
            max_wait_ms: 60_000,
            partition: 1,
            ..Default::default()
        };
        waiting.send(Method::Fetch, &fetch, &[]);
        // Half a set: the rest never comes.
        let set = set_of(&[vec![1; 100_000]]);
        let mut frame = bytes::BytesMut::new();
        corelane_proto::frame::encode_request(&mut frame, Method::Publish, 9, &publish(&views, 0), set.len());
        frame.extend_from_slice(&set[..50_000]);
        std::io::Write::write_all(&mut half.stream, &frame).expect("sent");
        let sets: Vec<_> = (0..4).map(|partition| publish_one(&broker, &views, partition)).collect();
        let (pid, began) = (broker.pid(), Instant::now());
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("signalled");
        let status = broker.wait(PATIENCE).expect("it ends");
        assert!(status.success() && began.elapsed() < Duration::from_secs(10), "{status} {:?}", began.elapsed());
        broker.restart();
        for (partition, set) in sets.iter().enumerate() {
            assert!(fetch_all(&broker, &views, partition as u32).payload == *set, "no half set, nothing lost");
        }
    }
}
