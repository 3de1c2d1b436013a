//! The pages over a real socket: what they count is what clients did.

use std::io::Read;
use std::net::TcpStream;

use corelane_client::TopicSettings;
use corelane_testkit::{Broker, BrokerOptions, http_put, run, run_with_input, wait_until};

use super::{Metrics, get};
use crate::support::{PATIENCE, connect, create, from_start, next, numbered, publish_numbered};

const MESSAGES: u64 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_page_counts_what_clients_did() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "views", 4, TopicSettings::new()).await;
    let before = Metrics::of(&broker, "");
    let no_space = &["method=\"publish\"", "status=\"NO_SPACE\""];
    assert_eq!(before.count("corelane_requests_total", no_space), 0, "told before there are any");
    let producer = client.producer().build().expect("a producer");
    for partition in 0..4 {
        publish_numbered(&producer, "views", partition, 0..MESSAGES / 4, 100).await;
    }
    let mut consumer = from_start(&client, "views").await;
    for _ in 0..MESSAGES {
        next(&mut consumer).await;
    }
    let existing = run(broker.cli().args(["topic", "create", "views"]), PATIENCE);
    assert!(!existing.status.success());

    let now = Metrics::of(&broker, "");
    assert_eq!(now.count("corelane_published_messages_total", &[]), MESSAGES);
    let (published, fetched) =
        (now.count("corelane_published_bytes_total", &[]), now.count("corelane_fetched_bytes_total", &[]));
    assert!(published > MESSAGES * 100 && fetched >= published, "{published} in, {fetched} out");
    let sets = now.count("corelane_published_sets_total", &[]);
    assert_eq!(now.count("corelane_requests_total", &["method=\"publish\"", "status=\"OK\""]), sets);
    let times = "corelane_request_duration_seconds";
    assert_eq!(now.count(&format!("{times}_count"), &["method=\"publish\""]), sets, "each publish has its time");
    assert_eq!(now.count(&format!("{times}_bucket"), &["method=\"publish\"", "le=\"+Inf\""]), sets);
    let took = now.sum(&format!("{times}_sum"), &["method=\"publish\""]);
    assert!(took > 0.0 && took < 600.0 * sets as f64, "{took} s");
    assert_eq!(now.count("corelane_requests_total", &["method=\"create_topic\"", "status=\"TOPIC_EXISTS\""]), 1);
    let durable = |operation| now.count("corelane_disk_duration_seconds_count", &[operation]);
    assert!(durable("operation=\"flush\"") + durable("operation=\"synchronous_write\"") >= 1);
    for (name, least) in [
        ("corelane_ready", 1),
        ("corelane_topics", 1),
        ("corelane_partitions", 4),
        ("corelane_brokers_running", 1),
        ("corelane_registry_up", 1),
        ("corelane_connections", 1),
        ("corelane_log_bytes", published),
        ("corelane_log_segments", 4),
        ("corelane_arena_bytes", 1),
        ("corelane_disk_free_bytes", 1),
        ("process_resident_memory_bytes", 1_000_000),
        ("process_open_fds", 10),
    ] {
        assert!(now.count(name, &[]) >= least, "{name}");
    }
    assert_eq!(now.count("corelane_build_info", &["broker_id=\"1\""]), 1);
    for (name, kind) in &now.kinds {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
    }

    // Topics and partitions by name only where they are asked for.
    assert_eq!(now.lines.keys().find(|line| line.contains("views")), None);
    let of_topics = Metrics::of(&broker, "?topics=1");
    assert_eq!(of_topics.count("corelane_topic_published_messages_total", &["topic=\"views\""]), MESSAGES);
    assert_eq!(of_topics.lines.keys().find(|line| line.contains("partition=")), None);
    let of_partitions = Metrics::of(&broker, "?topics=0&partitions=1");
    assert_eq!(of_partitions.count("corelane_partition_published_messages_total", &["partition=\"3\""]), MESSAGES / 4);
    assert_eq!(of_partitions.count("corelane_partition_visible_end", &["topic=\"views\""]), published);
    assert_eq!(get(&broker, "/metrics?partition=1").status, 400, "a query that is not known");

    // What was counted goes on to count when the topic has gone.
    run(broker.cli().args(["topic", "delete", "views", "--yes"]), PATIENCE).success();
    let after = Metrics::of(&broker, "?topics=1");
    assert_eq!(after.count("corelane_published_messages_total", &[]), MESSAGES);
    assert_eq!(after.count("corelane_log_segments", &[]), 0);
    assert_eq!(after.lines.keys().find(|line| line.contains("views")), None);
}

#[test]
fn what_a_group_is_behind_is_told_in_bytes() {
    let broker = Broker::start(BrokerOptions::new());
    run(broker.cli().args(["topic", "create", "views", "--partitions", "2"]), PATIENCE).success();
    let publish = |from: u32| {
        let lines = (from..from + 50).map(|number| number.to_string()).collect::<Vec<_>>().join("\n") + "\n";
        run_with_input(broker.cli().args(["produce", "views"]), lines.as_bytes(), PATIENCE).success();
    };
    publish(0);
    let consume = ["consume", "views", "--group", "loaders", "--from", "earliest", "--max", "50"];
    run(broker.cli().args(consume), PATIENCE).success();
    let lag = |metrics: &Metrics| metrics.count("corelane_group_lag_bytes", &["group=\"loaders\"", "topic=\"views\""]);
    let caught_up = Metrics::of(&broker, "");
    assert_eq!((lag(&caught_up), caught_up.count("corelane_group_members", &["group=\"loaders\""])), (0, 0));
    publish(50);
    let behind = Metrics::of(&broker, "");
    let bytes = |metrics: &Metrics| metrics.count("corelane_published_bytes_total", &[]);
    assert!(lag(&behind) > 0);
    assert_eq!(lag(&behind), bytes(&behind) - bytes(&caught_up));
    let status: serde_json::Value = serde_json::from_str(&get(&broker, "/status.json").body).expect("JSON");
    assert_eq!(status["groups"][0]["name"], "loaders");
    assert_eq!(status["groups"][0]["lag_bytes"].as_u64(), Some(lag(&behind)));
    run(broker.cli().args(["group", "delete", "loaders", "--yes"]), PATIENCE).success();
    wait_until("the group to be gone from the page", PATIENCE, || {
        let metrics = Metrics::of(&broker, "");
        let is_gone = metrics.with("corelane_group_lag_bytes", &[]).next().is_none();
        is_gone && metrics.count("corelane_groups", &[]) == 0
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_page_shows_brokers_topics_and_shards_and_asks_nobody_else() {
    let broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "views", 1, TopicSettings::new()).await;
    let producer = client.producer().build().expect("a producer");
    publish_numbered(&producer, "views", 0, 0..10, 100).await;
    let page = get(&broker, "/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-type: text/html; charset=utf-8"), "{}", page.head);
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
    for part in [
        "id=\"topics\"",
        "id=\"groups\"",
        "id=\"brokers\"",
        "id=\"shards\"",
        "prefers-color-scheme: dark",
        "width=device-width",
        "status.json",
    ] {
        assert!(page.body.contains(part), "the page has {part}");
    }
    for outside in ["http://", "https://", "innerHTML", " src=", "@import"] {
        assert!(!page.body.contains(outside), "the page has {outside}");
    }
    let answer = get(&broker, "/status.json");
    assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
    let status: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(status["topics"][0]["name"], "views");
    assert_eq!(status["topics"][0]["published_messages"], 10);
    assert_eq!(status["totals"]["published_messages"], 10);
    assert_eq!(status["brokers"][0]["address"], broker.addr().to_string());
    assert_eq!(status["brokers"][0]["is_running"], true);
    let partitions: u64 =
        status["shards"].as_array().expect("a list").iter().filter_map(|s| s["partitions"].as_u64()).sum();
    assert_eq!(partitions, 1);
    assert_eq!((&status["reasons"], &status["groups"]), (&serde_json::json!([]), &serde_json::json!([])));
}

#[test]
fn the_level_of_the_log_changes_while_the_broker_runs_and_not_for_strangers() {
    let broker = Broker::start(BrokerOptions::new());
    assert_eq!(get(&broker, "/log/level").body, "info\n");
    let put = |headers: &str, level: &str| {
        http_put(broker.http_addr(), "/log/level", headers, level, PATIENCE).expect("the page answers")
    };
    let connect = || run(broker.cli().args(["cluster", "describe"]), PATIENCE).success();
    connect();
    assert!(!broker.log().contains("a connection is served"), "that is a line of the level debug");
    let refused = put("Origin: http://elsewhere.example\r\n", "debug");
    assert_eq!((refused.status, get(&broker, "/log/level").body.as_str()), (403, "info\n"));
    let wrong = put("", "x=y=z");
    assert!(wrong.status == 400 && wrong.body.contains("is not a filter"), "{}", wrong.body);
    assert_eq!(put("", &"x".repeat(5_000)).status, 413, "longer than any filter");
    assert_eq!(put("", "warn,corelane_broker::shard=debug\n").status, 200);
    assert_eq!(get(&broker, "/log/level").body, "warn,corelane_broker::shard=debug\n");
    connect();
    wait_until("the line", PATIENCE, || broker.log().contains("a connection is served"));
    let line = broker.log().lines().find(|line| line.contains("a connection is served")).map(str::to_owned);
    let line: serde_json::Value =
        serde_json::from_str(&line.expect("found above")).expect("JSON, not being on a terminal");
    assert_eq!(line["level"], "DEBUG");
    assert!(broker.log().contains("the level of the log is changed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_not_served_makes_the_broker_unready_with_the_reason() {
    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "views", 1, TopicSettings::new()).await;
    let producer = client.producer().build().expect("a producer");
    let value = numbered(0, 100);
    let record = corelane_client::Record::to("views").value(&value);
    producer.send(record).await.expect("taken").await.expect("acknowledged");
    assert_eq!((get(&broker, "/health/ready").status, get(&broker, "/health/live").status), (200, 200));
    broker.stop();
    let mut entries =
        std::fs::read_dir(broker.data_dir()).expect("the data directory").map(|entry| entry.expect("readable"));
    let topic = entries.find(|entry| entry.file_name().to_string_lossy().starts_with("views~")).expect("the topic's");
    std::fs::rename(topic.path().join("0"), broker.data_dir().join("aside")).expect("moved");
    broker.restart();
    let ready = get(&broker, "/health/ready");
    assert!(ready.status == 503 && ready.body.contains("views/0: "), "{} {}", ready.status, ready.body);
    assert_eq!(get(&broker, "/health/live").status, 200, "it lives all the same");
    let metrics = Metrics::of(&broker, "");
    assert_eq!((metrics.count("corelane_ready", &[]), metrics.count("corelane_partitions_refused", &[])), (0, 1));
    let status: serde_json::Value = serde_json::from_str(&get(&broker, "/status.json").body).expect("JSON");
    assert!(status["reasons"][0].as_str().is_some_and(|reason| reason.starts_with("views/0: ")), "{status}");
}

#[test]
fn connections_that_ask_for_nothing_do_not_silence_the_pages() {
    let broker = Broker::start(BrokerOptions::new());
    let pages = broker.http_addr();
    // Twice as many as have a place.
    let idle: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(pages).expect("the pages listen")).collect();
    assert_eq!(get(&broker, "/health/live").status, 200);
    let is_closed = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).expect("a socket");
        matches!(stream.read(&mut [0]), Ok(0))
    };
    assert!(!is_closed(&idle[63]), "the last one that came kept its place, so nothing was waited for");
    wait_until("the oldest to be closed", PATIENCE, || is_closed(&idle[0]));
}
