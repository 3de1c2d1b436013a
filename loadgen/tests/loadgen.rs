//! The load generator as its users meet it: the real binary against a real broker.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use corelane_testkit::{Broker, BrokerOptions, Finished, TestDir, bin, run, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// No run of these tests needs anything like it.
const DEADLINE: Duration = Duration::from_mins(2);

/// Runs the load generator and reads its report.
#[track_caller]
fn report(broker: &Broker, mode: &str, args: &[&str]) -> Value {
    let finished = run(broker.loadgen(mode).args(["--topic", "t", "--json", "-"]).args(args), DEADLINE).success();
    serde_json::from_slice(&finished.stdout).expect("--json prints JSON")
}

#[track_caller]
fn fails(mut command: Command) -> Finished {
    let finished = run(&mut command, DEADLINE);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    finished
}

#[test]
fn what_is_published_is_consumed_and_verified() {
    let broker = Broker::start(BrokerOptions::new());
    for args in [
        &["--create-partitions", "3", "--count", "20000", "--connections", "2"][..],
        &["--count", "3001", "--set", "1", "--size", "32"],
        &["--count", "20000", "--set", "1000", "--connections", "5", "--acks", "received"],
        &["--count", "20000", "--compression", "lz4", "--acks", "none"],
        &["--count", "2000", "--rate", "4000", "--set", "10"],
        &["--count", "40", "--size", "1000000", "--set", "1"],
    ] {
        let report = report(&broker, "both", args);
        let count: u64 = args[args.iter().position(|arg| *arg == "--count").unwrap() + 1].parse().unwrap();
        assert_eq!(report["produce"]["messages"], count, "{args:?}: {report}");
        assert_eq!(report["consume"]["messages"], count, "{args:?}: {report}");
        assert_eq!((&report["verified"], &report["errors"]), (&json!(true), &json!({})), "{args:?}: {report}");
    }
}

#[test]
fn keys_sizes_topics_ramps_groups_and_audiences_are_verified_too() {
    let broker = Broker::start(BrokerOptions::new());
    for (args, audiences) in [
        (&["--topics", "3", "--create-partitions", "2", "--count", "6000", "--connections", "2"][..], 1),
        (&["--create-partitions", "4", "--keys", "zipf:100", "--count", "9000", "--producers", "3"], 1),
        (&["--keys", "uniform:1k", "--set", "1", "--count", "3000", "--size", "lognormal:300..4000"], 1),
        (&["--size", "32:9,20000:1", "--count", "3000", "--compression", "zstd"], 1),
        (&["--ramp", "1k..9k/500ms", "--set", "5", "--arrivals", "poisson", "--count", "2000"], 1),
        (&["--outstanding", "2", "--set", "10", "--count", "2000", "--producers", "2"], 1),
        (&["--group", "g", "--consumers", "2", "--count", "5000"], 1),
        (&["--fan-out", "3", "--count", "5000", "--consumers", "2"], 3),
    ] {
        let report = report(&broker, "both", args);
        let count: u64 = args[args.iter().position(|arg| *arg == "--count").unwrap() + 1].parse().unwrap();
        assert_eq!(report["verification"]["acknowledged"], count, "{args:?}: {report}");
        assert_eq!(report["verification"]["consumed"], count * audiences, "{args:?}: {report}");
        assert_eq!((&report["verified"], &report["errors"]), (&json!(true), &json!({})), "{args:?}: {report}");
    }
}

#[test]
fn the_results_have_the_documented_shape_and_make_a_page_and_a_comparison() {
    let broker = Broker::start(BrokerOptions::new());
    let directory = TestDir::new("loadgen");
    let path = |name: &str| directory.join(name).to_str().expect("a path that is text").to_owned();
    let (json, html) = (path("run.json"), path("run.html"));
    let args = ["--topic", "t", "--create-partitions", "1", "--count", "200k", "--warmup", "1ms"];
    let args = args.into_iter().chain(["--interval", "10ms", "--json", &json, "--html", &html, "--name", "one <run>"]);
    run(broker.loadgen("both").args(args), DEADLINE).success();
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    // Sorted by name, as serde_json reads them.
    assert_eq!(
        fields(&results),
        "ack_us arguments behind brokers consume curves end_to_end_us errors faults format generator interrupted \
         late_us machine name produce service_us settings started timeline verification verified"
    );
    for flow in ["produce", "consume"] {
        assert_eq!(fields(&results[flow]), "bytes mb_per_s messages messages_per_s seconds");
        assert!((1..=200_000).contains(&results[flow]["messages"].as_u64().unwrap()));
    }
    for latencies in ["ack_us", "end_to_end_us"] {
        assert_eq!(fields(&results[latencies]), "count max mean p50 p90 p99 p999 p9999");
        assert!(results[latencies]["p50"].as_u64().unwrap() > 0);
        assert!(results["curves"][latencies].as_array().unwrap().len() > 2);
    }
    assert_eq!((&results["format"], &results["verification"]["consumed"]), (&json!(1), &json!(200_000)), "{results}");
    assert_eq!(results["brokers"].as_array().map(Vec::len), Some(1));
    assert_eq!((&results["behind"], &results["late_us"]), (&Value::Null, &Value::Null), "there is no rate");
    let moments = results["timeline"].as_array().unwrap();
    assert!(moments[0]["warm_up"] == true && moments.last().unwrap()["warm_up"] == false);

    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("one &lt;run&gt;") && page.matches("<svg").count() == page.matches("</svg>").count());
    let mut report = Command::new(bin("corelane-loadgen"));
    let both = run(report.args(["report", &json, &json, "--html", "-"]), DEADLINE).success().text();
    assert!(both.contains("one &lt;run&gt; (2)"), "the second of the same name is told apart");

    let compare = |before: &str, after: &str| {
        let mut compare = Command::new(bin("corelane-loadgen"));
        run(compare.args(["compare", before, after, "--fail-above", "10"]), DEADLINE)
    };
    assert!(compare(&json, &json).success().text().contains("1.000"));
    let mut slower = results;
    slower["produce"]["messages_per_s"] = json!(slower["produce"]["messages_per_s"].as_f64().unwrap() / 2.0);
    std::fs::write(path("slower.json"), slower.to_string()).unwrap();
    let finished = compare(&json, &path("slower.json"));
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.text().contains("FAILED"), "{}", finished.text());
    compare(&path("slower.json"), &json).success();
    for wrong in ["{}", "[]", "{\"format\": 2}", "no JSON"] {
        std::fs::write(path("wrong.json"), wrong).unwrap();
        let finished = compare(&json, &path("wrong.json"));
        assert_eq!(finished.status.code(), Some(2), "{wrong}: {}", finished.stderr);
        assert!(finished.stderr.contains("wrong.json"), "{}", finished.stderr);
    }
}

#[test]
fn the_completion_script_is_one_for_the_shell() {
    let mut completions = Command::new(bin("corelane-loadgen"));
    let script = run(completions.args(["completions", "bash"]), DEADLINE).success().text();
    assert!(script.contains("--create-partitions") && script.contains("complete -F"));
}

#[test]
fn another_run_is_consumed_and_verified_later() {
    let broker = Broker::start(BrokerOptions::new());
    let directory = TestDir::new("loadgen");
    let file = directory.join("report.json");
    let published = report(&broker, "produce", &["--create-partitions", "2", "--count", "5000", "--connections", "2"]);
    assert_eq!((&published["consume"], &published["end_to_end_us"]), (&Value::Null, &Value::Null));
    let consume = ["--topic", "t", "--exit-at-end", "--connections", "2", "--json", file.to_str().unwrap()];
    let finished = run(broker.loadgen("consume").args(consume), DEADLINE).success();
    assert!(finished.text().contains("verified"), "a table as well: {}", finished.text());
    let consumed: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!((&consumed["consume"]["messages"], &consumed["verified"]), (&json!(5000), &json!(true)), "{consumed}");
    assert_eq!((&consumed["produce"], &consumed["ack_us"]), (&Value::Null, &Value::Null));
}

#[test]
fn what_is_not_all_there_is_not_verified() {
    let broker = Broker::start(BrokerOptions::new());
    report(&broker, "produce", &["--create-partitions", "1", "--count", "1000"]);
    let mut consume = broker.loadgen("consume");
    consume.args(["--topic", "t", "--count", "1001", "--duration", "1s"]);
    assert!(fails(consume).text().contains("NOT VERIFIED"));
}

#[test]
fn what_carries_no_number_and_what_is_not_there_is_not_verified() {
    let broker = Broker::start(BrokerOptions::new());
    let topic = ["topic", "create", "t", "--partitions", "1"];
    run(broker.cli().args(topic), DEADLINE).success();
    let consume = || {
        let mut consume = broker.loadgen("consume");
        consume.args(["--topic", "t", "--exit-at-end"]);
        fails(consume).text()
    };
    assert!(consume().contains("NOT VERIFIED"), "nothing is there");
    let directory = TestDir::new("loadgen");
    let source = directory.join("lines");
    std::fs::write(&source, "one\ntwo\n").unwrap();
    run(broker.cli().args(["produce", "t", "--file", source.to_str().unwrap()]), DEADLINE).success();
    let report = consume();
    assert!(report.contains("NOT VERIFIED") && report.contains("values without a number"), "{report}");
}

#[test]
fn an_unknown_topic_and_a_dead_address_are_errors() {
    let mut broker = Broker::start(BrokerOptions::new());
    let mut unknown = broker.loadgen("both");
    unknown.args(["--topic", "gone"]);
    let message = fails(unknown).stderr;
    assert!(message.contains("--create-partitions"), "{message}");
    broker.kill9();
    let mut dead = broker.loadgen("both");
    dead.args(["--topic", "t", "--timeout", "1s"]);
    let message = fails(dead).stderr;
    assert!(message.contains(&broker.addr().to_string()), "{message}");
}

/// A run under way on one partition of a topic `t` that it makes.
fn start_both(broker: &Broker, args: &[&str]) -> Child {
    let mut command = broker.loadgen("both");
    command.args(["--topic", "t", "--create-partitions", "1", "--json", "-"]).args(args);
    command.stdout(Stdio::piped()).spawn().expect("the load generator can be started")
}

/// Waits until consumers may read so much of the topic.
fn wait_for_bytes(broker: &Broker, bytes: u64) {
    wait_for("messages to be there", DEADLINE, || {
        let described = run(broker.cli().args(["--json", "topic", "describe", "t"]), DEADLINE);
        let described: Value = serde_json::from_slice(&described.stdout).ok()?;
        (described["partitions"][0]["visible_end"].as_u64()? > bytes).then_some(())
    });
}

#[test]
fn a_broker_that_is_killed_under_load_loses_nothing() {
    let mut broker = Broker::start(BrokerOptions::new());
    let mut child = start_both(&broker, &["--count", "60000", "--rate", "20000"]);
    for bytes in [1_000_000, 4_000_000] {
        wait_for_bytes(&broker, bytes);
        broker.kill9();
        broker.restart();
    }
    let status = wait_for("the end", DEADLINE, || child.try_wait().expect("a child can be awaited"));
    let report: Value = serde_json::from_reader(child.stdout.take().expect("piped")).expect("a report");
    assert!(status.success(), "{report}");
    assert_eq!((&report["verified"], &report["produce"]["messages"]), (&json!(true), &json!(60_000)), "{report}");
}

#[test]
fn ctrl_c_ends_a_run_with_its_report() {
    let broker = Broker::start(BrokerOptions::new());
    let mut child = start_both(&broker, &["--duration", "10m", "--rate", "5000"]);
    wait_for_bytes(&broker, 100_000);
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id is not 0");
    kill_process(pid, Signal::INT).expect("the load generator runs");
    let status = wait_for("the end", DEADLINE, || child.try_wait().expect("a child can be awaited"));
    assert!(status.success(), "{status}");
    let report: Value = serde_json::from_reader(child.stdout.take().expect("piped")).expect("a report");
    assert_eq!(report["verified"], true);
    assert_eq!(report["produce"]["messages"], report["consume"]["messages"]);
}
