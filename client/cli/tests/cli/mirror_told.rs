//! What mirrors say and refuse: losses in the source, copies that would come back, a target that is another one, and what
//! `mirror verify` cannot compare.

use corelane_testkit::{Broker, BrokerOptions, run, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::mirror::{a_log_that_does_not_begin_at_0, start, stop, verified, verify};
use crate::running::Running;
use crate::{DEADLINE, broker_with_topic, json, numbers, ok, produce};

/// What verify has found of the only partition, and whether it succeeded.
fn found(from: &Broker, to: &Broker, args: &[&str]) -> (bool, Value) {
    let finished = verify(from, to, args);
    let findings: Value = serde_json::from_slice(&finished.stdout).unwrap_or_else(|_| panic!("{}", finished.stderr));
    (finished.status.success(), findings[0].clone())
}

/// Ends a mirror in order: its summary, and what it said.
fn summary(mut mirror: Running) -> (Value, String) {
    mirror.signal(Signal::TERM);
    let summary = loop {
        let line: Value = serde_json::from_str(&mirror.line()).expect("a summary comes");
        if line["done"] == true {
            break line;
        }
    };
    let (status, stderr) = mirror.end();
    assert!(status.success(), "{status}: {stderr}");
    (summary, stderr)
}

/// Waits until a mirror reports what is wanted.
fn reported(mirror: &mut Running, is_it: impl Fn(&Value) -> bool) {
    wait_until("a report", DEADLINE, || is_it(&serde_json::from_str(&mirror.line()).unwrap()));
}

fn lines(broker: &Broker, topic: &str) -> usize {
    let consumed = run(broker.cli().args(["consume", topic, "--exit-at-end"]), DEADLINE);
    consumed.text().lines().count()
}

fn topics(broker: &Broker) -> Vec<String> {
    let topics = json(broker, &["--json", "topic", "list"]);
    topics.as_array().unwrap().iter().map(|topic| topic["topic"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the mirror's group has come to the end of a topic, whatever became of it.
fn passed(broker: &Broker, topic: &str, group: &str) {
    wait_until("the topic to be passed", DEADLINE, || {
        let group = run(broker.cli().args(["--json", "group", "describe", group]), DEADLINE);
        let group: Value = serde_json::from_slice(&group.stdout).unwrap_or_default();
        let is_passed = |at: &Value| at["topic"] == topic && at["committed"].as_u64() > Some(0) && at["lag_bytes"] == 0;
        group["partitions"].as_array().is_some_and(|partitions| partitions.iter().any(is_passed))
    });
}

/// A source with small segments that was copied up to its first thousand, and has gone on.
fn a_source_that_is_ahead(target: &Broker) -> Broker {
    let source = Broker::start(BrokerOptions::new());
    let sizes = ["--segment-bytes", "64KiB", "--set-bytes-max", "64KiB", "--message-bytes-max", "32KiB"];
    ok(&source, &[&["topic", "create", "t"][..], &sizes].concat());
    produce(&source, &[], &numbers(0, 1_000));
    let before = start(&source, target, &[]);
    assert_eq!(verified(&source, target, &[]), 1_000);
    stop(before);
    produce(&source, &[], &numbers(1_000, 20_000));
    source
}

#[test]
fn what_retention_takes_before_it_is_copied_is_told_with_its_positions_counted_and_found_by_verify() {
    let target = Broker::start(BrokerOptions::new());
    let source = a_source_that_is_ahead(&target);
    let from = json(&source, &["--json", "group", "describe", "m"])["partitions"][0]["committed"].as_u64().unwrap();
    ok(&source, &["topic", "trim", "t", "--partition", "0", "--to", "400000", "--yes"]);
    let to = json(&source, &["--json", "topic", "describe", "t"])["partitions"][0]["start"].as_u64().unwrap();
    assert!(to > from, "{from} {to}");
    let (is_same, finding) = found(&source, &target, &["--group", "m"]);
    let problem = finding["problems"][0].as_str().unwrap_or_default().to_owned();
    assert!(!is_same && problem.contains(&format!("the group has come to {from}")), "{finding}");

    let dir = tempfile::tempdir().unwrap();
    let metrics = dir.path().join("mirror.prom");
    let running = start(&source, &target, &["--metrics-file", metrics.to_str().unwrap()]);
    passed(&source, "t", "m");
    let (summary, stderr) = summary(running);
    let told = format!("retention has taken {} bytes of t/0 before they were copied, from {from} to {to}", to - from);
    assert!(stderr.contains(&told), "{stderr}");
    assert_eq!(summary["lost_bytes"], to - from, "{summary}");
    let metrics = std::fs::read_to_string(&metrics).unwrap();
    assert!(metrics.contains(&format!("\ncorelane_mirror_lost_bytes_total {}\n", to - from)), "{metrics}");
    let (is_same, finding) = found(&source, &target, &[]);
    let problem = format!("{} bytes of the source were gone before they were copied, from {from} on", to - from);
    assert!(!is_same && finding["problems"] == serde_json::json!([problem]), "{finding}");
}

#[test]
fn exact_mirrors_that_rename_both_ways_make_no_copies_of_each_other_s_copies() {
    let (one, other) = (broker_with_topic(1), broker_with_topic(1));
    for broker in [&one, &other] {
        produce(broker, &[], b"message\n");
    }
    let there = start(&one, &other, &["--exact", "--topics", ".*t", "--rename", "*=b.*"]);
    let back = start(&other, &one, &["--exact", "--topics", ".*t", "--rename", "*=a.*"]);
    passed(&one, "a.t", "m");
    passed(&other, "b.t", "m");
    for mirror in [there, back] {
        let (summary, stderr) = summary(mirror);
        assert!(stderr.contains(".t is not copied: it is an exact copy of t, which comes from"), "{stderr}");
        assert_eq!((&summary["messages"], &summary["skipped"]), (&1.into(), &1.into()), "{summary}");
    }
    assert_eq!((topics(&one), topics(&other)), (vec!["a.t".into(), "t".into()], vec!["b.t".into(), "t".into()]));
    let cluster = json(&one, &["--json", "cluster", "describe"])["cluster_id"].as_str().unwrap().to_owned();
    let original = json(&one, &["--json", "topic", "describe", "t"])["topic_id"].as_str().unwrap()[..8].to_owned();
    let described = json(&other, &["--json", "topic", "describe", "b.t"]);
    assert_eq!(described["copy_of"], serde_json::json!([format!("{cluster}/t/{original}")]), "{described}");
}

#[test]
fn what_came_by_an_exact_mirror_does_not_come_back_by_others_also_not_through_a_third_cluster() {
    let (one, other, third) =
        (broker_with_topic(1), Broker::start(BrokerOptions::new()), Broker::start(BrokerOptions::new()));
    produce(&one, &[], &numbers(0, 100));
    let mirrors = vec![
        start(&one, &other, &["--exact"]),
        start(&other, &third, &["--group", "on"]),
        start(&other, &one, &["--group", "back"]),
        start(&third, &one, &["--group", "round"]),
    ];
    wait_until("all to be copied on", DEADLINE, || lines(&third, "t") == 100);
    assert_eq!(verified(&other, &third, &[]), 100);
    passed(&other, "t", "back");
    passed(&third, "t", "round");
    mirrors.into_iter().for_each(stop);
    assert_eq!([&one, &other, &third].map(|broker| lines(broker, "t")), [100; 3]);
    let (is_same, finding) = found(&other, &one, &[]);
    let note = finding["notes"][0].as_str().unwrap_or_default().to_owned();
    assert!(is_same && note.contains("not compared, and not copied: it is an exact copy of t"), "{finding}");
    // Into the very log that it is a copy of it can be taken, and adds nothing.
    let fail_back = start(&other, &one, &["--exact", "--group", "fail-back"]);
    produce(&other, &[], b"published after a move\n");
    wait_until("the last to come", DEADLINE, || lines(&one, "t") == 101);
    stop(fail_back);
}

#[test]
fn a_topic_that_was_restored_is_copied_to_a_cluster_that_never_had_it() {
    let (one, other, third) =
        (broker_with_topic(1), Broker::start(BrokerOptions::new()), Broker::start(BrokerOptions::new()));
    produce(&one, &[], &numbers(0, 20));
    let there = start(&one, &other, &[]);
    assert_eq!(verified(&one, &other, &[]), 20);
    stop(there);
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("t").to_str().unwrap().to_owned();
    ok(&one, &["topic", "delete", "t", "--yes"]);
    ok(&other, &["export", "t", "--to", &copy, "--format", "jsonl"]);
    ok(&one, &["topic", "create", "t"]);
    ok(&one, &["import", &copy, "--topic", "t"]);
    let to_third = start(&one, &third, &["--group", "third"]);
    assert_eq!(verified(&one, &third, &[]), 20);
    stop(to_third);
    assert_eq!(lines(&third, "t"), 20);
    // Back to where it came from it is not taken, and verify says so.
    let (is_same, finding) = found(&third, &one, &[]);
    assert!(is_same && finding["left_out"] == 20, "{finding}");
}

#[test]
fn a_target_that_lost_its_copies_is_told_at_the_next_start_and_by_verify_and_filled_anew_after_a_reset() {
    let (source, target) = (broker_with_topic(1), Broker::start(BrokerOptions::new()));
    produce(&source, &[], &numbers(0, 100));
    let before = start(&source, &target, &[]);
    assert_eq!(verified(&source, &target, &["--group", "m"]), 100);
    stop(before);
    ok(&target, &["topic", "delete", "t", "--yes"]);
    let (is_same, finding) = found(&source, &target, &[]);
    assert!(!is_same && finding["problems"][0] == "there is no topic t in the target", "{finding}");
    let told = |stderr: &str, reason: &str| {
        let is_told = stderr.contains(reason) && stderr.contains("corelane group reset m --topic t --to earliest");
        assert!(is_told, "{stderr}");
    };
    let mut running = start(&source, &target, &["--report-interval", "100ms"]);
    reported(&mut running, |report| report["partitions_without_copies"] == 1);
    told(&summary(running).1, "there is no topic t in the target");

    // Made again, it may be waited for: only the group knows what it should have.
    ok(&target, &["topic", "create", "t"]);
    assert!(found(&source, &target, &[]).0);
    let (is_same, finding) = found(&source, &target, &["--group", "m"]);
    let problem = finding["problems"][0].as_str().unwrap_or_default().to_owned();
    assert!(!is_same && problem.contains("100 messages are missing in the target"), "{finding}");
    let mut running = start(&source, &target, &["--report-interval", "100ms"]);
    reported(&mut running, |report| report["partitions_without_copies"] == 1);
    told(&summary(running).1, "t in the target has nothing of it");

    ok(&source, &["group", "reset", "m", "--topic", "t", "--to", "earliest"]);
    let anew = start(&source, &target, &[]);
    assert_eq!(verified(&source, &target, &["--group", "m"]), 100);
    let (summary, stderr) = summary(anew);
    assert_eq!(summary["partitions_without_copies"], 0, "{stderr}");
    assert!(stderr.is_empty() || !stderr.contains("has nothing of it"), "{stderr}");
}

#[test]
fn verify_of_an_exact_copy_tells_a_front_that_is_gone_and_partitions_that_are_too_many() {
    let (source, target) = (a_log_that_does_not_begin_at_0(), Broker::start(BrokerOptions::new()));
    let running = start(&source, &target, &["--exact"]);
    assert!(verified(&source, &target, &["--exact"]) > 16_000);
    stop(running);
    ok(&target, &["topic", "trim", "t", "--partition", "0", "--to", "150000", "--yes"]);
    let begin = json(&target, &["--json", "topic", "describe", "t"])["partitions"][0]["start"].as_u64().unwrap();
    assert!(begin > 0);
    let (is_same, finding) = found(&source, &target, &["--exact"]);
    let note = format!("the target begins at {begin}, the source at 0: what lies before {begin} cannot be compared");
    assert!(is_same && finding["notes"] == serde_json::json!([note]), "{finding}");
    ok(&target, &["topic", "add-partitions", "t", "--partitions", "3", "--yes"]);
    let differs = verify(&source, &target, &["--exact"]);
    assert_eq!(differs.status.code(), Some(1), "{}", differs.text());
    assert!(differs.text().contains("the target has 3 partitions, the source 2"), "{}", differs.text());
}

#[test]
fn what_the_target_s_own_retention_took_is_told_and_not_called_missing() {
    let target = Broker::start(BrokerOptions::new());
    let source = a_source_that_is_ahead(&target);
    let running = start(&source, &target, &[]);
    assert_eq!(verified(&source, &target, &[]), 20_000);
    stop(running);
    ok(&target, &["topic", "trim", "t", "--partition", "0", "--to", "1000000", "--yes"]);
    let (is_same, finding) = found(&source, &target, &[]);
    let (gone, same) = (finding["gone_from_target"].as_u64().unwrap(), finding["messages"].as_u64().unwrap());
    assert!(is_same && gone > 0 && same > 0 && gone + same == 20_000, "{finding}");
    assert!(finding["notes"][0].as_str().unwrap_or_default().contains("the target begins later"), "{finding}");
}

#[test]
fn a_mirror_that_waits_for_its_target_says_why_and_counts_it() {
    let (source, mut target) = (broker_with_topic(1), Broker::start(BrokerOptions::new()));
    produce(&source, &[], &numbers(0, 10));
    let mut running = start(&source, &target, &["--report-interval", "100ms"]);
    assert_eq!(verified(&source, &target, &[]), 10);
    target.kill9();
    produce(&source, &[], &numbers(10, 20));
    reported(&mut running, |report| report["obstacle"].is_string() && report["errors"].as_u64() > Some(0));
    target.restart();
    reported(&mut running, |report| report["obstacle"].is_null() && report["on_their_way"] == 0);
    assert_eq!(verified(&source, &target, &[]), 20);
    let (_, stderr) = summary(running);
    assert!(stderr.contains("what is to go there waits"), "{stderr}");
}
