//! Mirrors between two real brokers: killed in the middle, on top of each other, exact ones.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use corelane_testkit::{Broker, BrokerOptions, Finished, run, run_with_input, wait_until};
use rustix::process::Signal;

use crate::running::Running;
use crate::{DEADLINE, broker_with_topic, corelane, json, numbers, ok, produce};

/// `mirror` from one broker to another.
fn mirror(from: &Broker, to: &Broker, args: &[&str]) -> Command {
    let (from, to) = (from.addr().to_string(), to.addr().to_string());
    let mut command = corelane();
    command.args(["--json", "mirror", "--from", &from, "--to", &to]);
    if !args.contains(&"--topics") {
        command.args(["--topics", "t"]);
    }
    command.args(args);
    command
}

pub(crate) fn start(from: &Broker, to: &Broker, args: &[&str]) -> Running {
    let mut quick = vec!["--commit-interval", "200ms"];
    for (option, value) in [("--group", "m"), ("--lease", "1s"), ("--report-interval", "1h")] {
        if !args.contains(&option) {
            quick.extend([option, value]);
        }
    }
    Running::start(&mut mirror(from, to, &[args, &quick].concat()))
}

pub(crate) fn verify(from: &Broker, to: &Broker, args: &[&str]) -> Finished {
    let (from, to) = (from.addr().to_string(), to.addr().to_string());
    let mut command = corelane();
    command.args(["--json", "mirror", "verify", "--from", &from, "--to", &to, "--topics", "t"]).args(args);
    run(&mut command, DEADLINE)
}

/// Waits until everything was copied and is in order; returns how many messages are the same.
pub(crate) fn verified(from: &Broker, to: &Broker, args: &[&str]) -> u64 {
    let mut messages = 0;
    wait_until("everything to be copied", DEADLINE, || {
        let finished = verify(from, to, args);
        let findings: serde_json::Value = serde_json::from_slice(&finished.stdout).unwrap_or_default();
        let Some(findings) = findings.as_array().filter(|findings| !findings.is_empty()) else { return false };
        for finding in findings {
            let is_there = finding["problems"] == serde_json::json!([])
                || finding["problems"][0] == "the target does not have this partition"
                || finding["problems"][0].as_str().is_some_and(|problem| problem.starts_with("there is no topic "));
            assert!(is_there, "{finding}");
        }
        messages = findings.iter().map(|finding| finding["messages"].as_u64().unwrap()).sum();
        finished.status.success() && findings.iter().all(|finding| finding["not_copied_yet"] == 0)
    });
    messages
}

/// The lines of a partition, each once, in the order in which they came first.
fn lines_once(broker: &Broker, topic: &str, partition: u32) -> Vec<String> {
    let partition = partition.to_string();
    let printed =
        ok(broker, &["consume", topic, "--partition", &partition, "--exit-at-end", "--format", r"%d %k %v\n"]);
    let mut seen = BTreeSet::new();
    let lines = String::from_utf8(printed).unwrap();
    lines.lines().filter(|line| seen.insert((*line).to_owned())).map(str::to_owned).collect()
}

fn keyed(from: u32, to: u32) -> Vec<u8> {
    (from..to).flat_map(|number| format!("k{}:{number}\n", number % 97).into_bytes()).collect()
}

pub(crate) fn stop(mirror: Running) {
    ended(mirror);
}

/// Ends a mirror in order; returns what it said.
fn ended(mut mirror: Running) -> String {
    mirror.signal(Signal::TERM);
    let (status, stderr) = mirror.end();
    assert!(status.success(), "{status}: {stderr}");
    stderr
}

#[test]
fn all_arrives_at_least_once_and_in_order_though_mirrors_and_brokers_are_killed() {
    let mut source = broker_with_topic(4);
    let mut target = Broker::start(BrokerOptions::new());
    produce(&source, &["--key-separator", ":"], &keyed(0, 20_000));
    // Two share the work; the rate makes sure that they are killed in the middle of it.
    let mut mirrors =
        vec![start(&source, &target, &["--rate", "400KB"]), start(&source, &target, &["--rate", "400KB"])];
    let copied = |target: &Broker, lines: usize| {
        wait_until("some of it to be copied", DEADLINE, || {
            let consumed = run(target.cli().args(["consume", "t", "--exit-at-end"]), DEADLINE);
            consumed.text().lines().count() >= lines
        });
    };
    copied(&target, 1_000);
    mirrors.remove(0).child.kill().unwrap();
    target.kill9();
    target.restart();
    mirrors.push(start(&source, &target, &[]));
    copied(&target, 8_000);
    source.kill9();
    source.restart();
    produce(&source, &["--key-separator", ":"], &keyed(20_000, 30_000));
    assert_eq!(verified(&source, &target, &[]), 30_000);
    for partition in 0..4 {
        let published = lines_once(&source, "t", partition);
        assert!(published.len() > 1_000, "{}", published.len());
        assert_eq!(lines_once(&target, "t", partition), published, "partition {partition}");
    }
    mirrors.into_iter().for_each(stop);
    // What was committed was copied, and all of it was.
    let group = json(&source, &["--json", "group", "describe", "m"]);
    for partition in group["partitions"].as_array().unwrap() {
        assert_eq!(partition["lag_bytes"], 0, "{group}");
    }
    assert_eq!(json(&target, &["--json", "topic", "describe", "t"])["partitions"].as_array().unwrap().len(), 4);
}

#[test]
fn two_clusters_that_mirror_each_other_copy_each_message_once_and_a_third_joins_in() {
    let (one, other, third) = (broker_with_topic(2), Broker::start(BrokerOptions::new()), broker_with_topic(3));
    let itself = run(&mut mirror(&one, &one, &["--group", "m"]), DEADLINE);
    assert_eq!(itself.status.code(), Some(1));
    assert!(itself.stderr.contains("are the same cluster"), "{}", itself.stderr);

    produce(&one, &["--key-separator", ":"], &keyed(0, 500));
    produce(&third, &["--key-separator", ":"], &keyed(2_000, 2_300));
    let there = start(&one, &other, &[]);
    let count = |broker: &Broker| {
        let consumed = run(broker.cli().args(["consume", "t", "--exit-at-end"]), DEADLINE);
        consumed.text().lines().count()
    };
    wait_until("the first to be copied", DEADLINE, || count(&other) == 500);
    let back = start(&other, &one, &[]);
    // Another source into the same target, with another number of partitions.
    let joining = start(&third, &other, &[]);
    wait_until("the third to be copied", DEADLINE, || count(&other) == 800);
    produce(&other, &["--key-separator", ":"], &keyed(1_000, 1_200));
    // 500 of its own, 200 of the other, 300 of the third, and nothing twice.
    wait_until("all to be everywhere", DEADLINE, || (count(&one), count(&other)) == (1_000, 1_000));
    produce(&one, &[], b"k:last\n");
    wait_until("the last to arrive", DEADLINE, || count(&other) == 1_001);
    [there, back, joining].into_iter().for_each(stop);
    assert_eq!((count(&one), count(&other)), (1_001, 1_001));
    assert_eq!(verified(&one, &other, &[]), 501);
    let findings: serde_json::Value = serde_json::from_slice(&verify(&one, &other, &[]).stdout).unwrap();
    let left_out: u64 = findings.as_array().unwrap().iter().map(|finding| finding["left_out"].as_u64().unwrap()).sum();
    assert_eq!(left_out, 500, "what came from there is told: {findings}");
    assert_eq!(verified(&third, &other, &[]), 300);
    // Each key of the third lies in one partition, in order.
    for key in 0..97 {
        let of_key = |lines: Vec<String>| -> Vec<String> {
            lines.into_iter().filter(|line| line.split(' ').nth(1) == Some(&format!("k{key}"))).collect()
        };
        let published: Vec<String> = (0..3).flat_map(|partition| of_key(lines_once(&third, "t", partition))).collect();
        let copied: Vec<Vec<String>> = (0..2)
            .map(|partition| of_key(lines_once(&other, "t", partition)))
            .map(|lines| lines.into_iter().filter(|line| published.contains(line)).collect())
            .filter(|lines: &Vec<String>| !lines.is_empty())
            .collect();
        assert!(copied.len() == usize::from(!published.is_empty()), "key {key}: {copied:?}");
        assert!(copied.iter().all(|lines| *lines == published), "key {key}: {copied:?} {published:?}");
    }
}

#[test]
fn topics_are_renamed_and_messages_keep_all_but_carry_their_origin() {
    let (source, target) = (broker_with_topic(1), Broker::start(BrokerOptions::new()));
    ok(&source, &["topic", "alter", "t", "--retention", "30d"]);
    produce(&source, &["--header", "a=b", "--key", "k"], b"v\n");
    produce(&source, &["--key", "k", "--tombstone"], b"\n");
    let running = start(&source, &target, &["--rename", "*=copy.*", "--compression", "zstd"]);
    let copies = || json_lines(&target, "copy.t");
    wait_until("both to be copied", DEADLINE, || copies().len() == 2);
    let described = json(&source, &["--json", "topic", "describe", "t"]);
    let id = &described["topic_id"].as_str().unwrap()[..8];
    let cluster = json(&source, &["--json", "cluster", "describe"])["cluster_id"].as_str().unwrap().to_owned();
    for (mut copy, mut published) in copies().into_iter().zip(json_lines(&source, "t")) {
        let position = published["position"].take().as_u64().unwrap();
        copy["position"].take();
        published["topic"] = "copy.t".into();
        let origin =
            serde_json::json!({"name": "corelane-origin", "value": format!("{cluster}/t/{id}/0/1/{position}")});
        published["headers"].as_array_mut().unwrap().push(origin);
        assert_eq!(copy, published);
    }
    let settings = json(&target, &["--json", "topic", "describe", "copy.t"]);
    assert_eq!(settings["settings"]["retention_ms"], 30 * 24 * 3_600_000_u64, "{settings}");

    // A topic that is made again has the positions of the first one again, and other origins.
    ok(&source, &["topic", "delete", "t", "--yes"]);
    ok(&source, &["topic", "create", "t"]);
    produce(&source, &[], b"one\ntwo\nthree\n");
    assert_eq!(verified(&source, &target, &["--rename", "*=copy.*"]), 3);
    assert_eq!(copies().len(), 5);
    stop(running);
}

#[test]
fn mirrors_that_rename_both_ways_make_no_topics_of_each_other_s_and_a_pattern_that_fits_none_is_told() {
    let (one, other) = (broker_with_topic(1), broker_with_topic(1));
    let there = start(&one, &other, &["--topics", ".*", "--rename", "*=eu.*"]);
    let back = start(&other, &one, &["--topics", ".*", "--rename", "*=us.*"]);
    for broker in [&one, &other] {
        produce(broker, &[], b"message\n");
    }
    for (broker, copy) in [(&one, "us.t"), (&other, "eu.t")] {
        wait_until("the copy to be read by the mirror back, and left out", DEADLINE, || {
            let group = run(broker.cli().args(["--json", "group", "describe", "m"]), DEADLINE);
            let group: serde_json::Value = serde_json::from_slice(&group.stdout).unwrap_or_default();
            let is_passed = |at: &serde_json::Value| at["topic"] == copy && at["committed"].as_u64() > Some(0);
            group["partitions"].as_array().is_some_and(|partitions| partitions.iter().any(is_passed))
        });
    }
    let topics = |broker: &Broker| -> Vec<String> {
        let topics = json(broker, &["--json", "topic", "list"]);
        topics.as_array().unwrap().iter().map(|topic| topic["topic"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((topics(&one), topics(&other)), (vec!["t".into(), "us.t".into()], vec!["eu.t".into(), "t".into()]));
    [there, back].into_iter().for_each(stop);

    let mut idle = start(&one, &other, &["--topics", "nosuch", "--report-interval", "100ms"]);
    let report: serde_json::Value = serde_json::from_str(&idle.line()).unwrap();
    assert_eq!((&report["partitions"], &report["lag_bytes"]), (&0.into(), &serde_json::Value::Null), "{report}");
    idle.signal(Signal::TERM);
    let (_, stderr) = idle.end();
    assert!(stderr.contains("no topic of the source matches \"nosuch\" yet"), "{stderr}");
}

#[test]
fn what_has_arrived_is_committed_and_told_while_the_next_message_waits_for_its_time() {
    let (source, target) = (broker_with_topic(1), Broker::start(BrokerOptions::new()));
    produce(&source, &[], b"small\n");
    // Several minutes' worth.
    produce(&source, &[], &[&vec![b'x'; 500_000][..], b"\n"].concat());
    let mut running = start(&source, &target, &["--rate", "1KB", "--report-interval", "100ms", "--lease", "30s"]);
    wait_until("the first message to be committed", DEADLINE, || {
        let group = run(source.cli().args(["--json", "group", "describe", "m"]), DEADLINE);
        let group: serde_json::Value = serde_json::from_slice(&group.stdout).unwrap_or_default();
        group["partitions"][0]["committed"].as_u64() > Some(0)
    });
    wait_until("that to be told", DEADLINE, || {
        let report: serde_json::Value = serde_json::from_str(&running.line()).unwrap();
        (&report["messages"], &report["on_their_way"]) == (&1.into(), &0.into())
    });
    stop(running);
}

#[test]
fn an_exact_mirror_keeps_to_its_rate_by_whole_sets() {
    let (source, target) = (broker_with_topic(1), Broker::start(BrokerOptions::new()));
    produce(&source, &[], b"small\n");
    // A minute's worth in few sets, of which the last messages are next to nothing.
    produce(&source, &[], &numbers(0, 2_000));
    let mut running = start(&source, &target, &["--exact", "--rate", "1KB", "--report-interval", "100ms"]);
    let mut copied = || {
        let report: serde_json::Value = serde_json::from_str(&running.line()).unwrap();
        report["messages"].as_u64().unwrap()
    };
    wait_until("the first message to be copied", DEADLINE, || copied() == 1);
    for _ in 0..20 {
        assert_eq!(copied(), 1, "the set behind it came before its time");
    }
    stop(running);
}

fn json_lines(broker: &Broker, topic: &str) -> Vec<serde_json::Value> {
    let finished = run(broker.cli().args(["consume", topic, "--exit-at-end", "--format", "json"]), DEADLINE);
    finished.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A topic whose first segments are gone, of plain and of compressed sets.
pub(crate) fn a_log_that_does_not_begin_at_0() -> Broker {
    let source = Broker::start(BrokerOptions::new());
    let sizes = ["--segment-bytes", "64KiB", "--set-bytes-max", "32KiB", "--message-bytes-max", "32KiB"];
    ok(&source, &[&["topic", "create", "t", "--partitions", "2"][..], &sizes].concat());
    for (round, compression) in ["none", "zstd", "lz4", "none"].into_iter().enumerate() {
        let from = u32::try_from(round).unwrap() * 10_000;
        for partition in ["0", "1"] {
            let args = ["--partition", partition, "--compression", compression, "--key-separator", ":"];
            produce(&source, &args, &keyed(from, from + 8_000));
        }
    }
    ok(&source, &["topic", "trim", "t", "--partition", "1", "--to", "200000", "--yes"]);
    source
}

fn all_with_positions(broker: &Broker) -> Vec<Vec<u8>> {
    let of = |partition: &str| {
        ok(broker, &["consume", "t", "--partition", partition, "--exit-at-end", "--format", r"%i %d %k %v\n"])
    };
    vec![of("0"), of("1")]
}

#[test]
fn an_exact_mirror_has_the_same_bytes_at_the_same_positions_however_often_it_is_killed() {
    let mut source = a_log_that_does_not_begin_at_0();
    let mut target = Broker::start(BrokerOptions::new());
    for round in 0..4 {
        let mut running = start(&source, &target, &["--exact", "--rate", "200KB"]);
        wait_until("some more to be copied", DEADLINE, || {
            let topic = run(target.cli().args(["--json", "topic", "describe", "t"]), DEADLINE);
            let topic: serde_json::Value = serde_json::from_slice(&topic.stdout).unwrap_or_default();
            topic["partitions"][0]["visible_end"].as_u64().is_some_and(|end| end > 60_000 * (round + 1))
        });
        if round == 1 {
            target.kill9();
            target.restart();
        }
        running.child.kill().unwrap();
        running.end();
    }
    produce(&source, &["--partition", "0"], b"in the end\n");
    let running = start(&source, &target, &["--exact"]);
    assert!(verified(&source, &target, &["--exact"]) > 16_000);
    let copied = all_with_positions(&target);
    assert!(copied == all_with_positions(&source));
    let begins =
        |broker: &Broker| json(broker, &["--json", "topic", "describe", "t"])["partitions"][1]["start"].clone();
    assert!(begins(&target).as_u64().unwrap() > 100_000);
    assert_eq!(begins(&target), begins(&source));
    let by_origin = verify(&source, &target, &[]);
    assert!(by_origin.status.code() == Some(1) && by_origin.text().contains("compare it with --exact"));
    stop(running);

    // Somebody else publishes into the copy: it is one no more, and says so.
    ok(&target, &["group", "list"]);
    run_with_input(target.cli().args(["produce", "t", "--partition", "0"]), b"not of the source\n", DEADLINE).success();
    produce(&source, &["--partition", "0"], b"more of the source, and more than that\n");
    let (status, stderr) = start(&source, &target, &["--exact"]).end();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("t/0 cannot be copied exactly") && stderr.contains("in the target"), "{stderr}");
    let differs = verify(&source, &target, &["--exact"]);
    assert_eq!(differs.status.code(), Some(1), "{}", differs.text());
    source.stop();
}

#[test]
fn an_exact_mirror_does_not_take_what_somebody_else_published_for_its_own() {
    let (source, target) = (broker_with_topic(1), Broker::start(BrokerOptions::new()));
    produce(&source, &[], b"aaaaaaaa\n");
    let before = start(&source, &target, &["--exact"]);
    assert_eq!(verified(&source, &target, &["--exact"]), 1);
    stop(before);
    // Whatever is committed, the target's end says where to go on, also while nothing new comes.
    let fresh = Broker::start(BrokerOptions::new());
    let into_fresh = start(&source, &fresh, &["--exact"]);
    assert_eq!(verified(&source, &fresh, &["--exact"]), 1);
    stop(into_fresh);
    let mut running = start(&source, &target, &["--exact"]);
    // As large as what comes next.
    run_with_input(target.cli().args(["produce", "t"]), b"FOREIGN1\n", DEADLINE).success();
    produce(&source, &[], b"bbbbbbbb\n");
    let (status, stderr) = running.end();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("t/0 in the target is no copy") && stderr.contains("are not the same"), "{stderr}");
}

#[test]
fn an_exact_mirror_stops_with_a_report_at_a_damaged_message() {
    let mut source = a_log_that_does_not_begin_at_0();
    let target = Broker::start(BrokerOptions::new());
    source.stop();
    let damaged = segments(&source, 0).remove(1);
    let file = OpenOptions::new().write(true).open(&damaged).unwrap();
    file.write_all_at(&[0xff; 8], 20_000).unwrap();
    source.restart();
    let (status, stderr) = start(&source, &target, &["--exact"]).end();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("t/0 cannot be copied exactly") && stderr.contains("cannot be read"), "{stderr}");
    // Up to there it is the same log; one that is not exact leaves the damaged message out and goes on.
    let until = json(&target, &["--json", "topic", "describe", "t"])["partitions"][0]["visible_end"].as_u64().unwrap();
    assert!(until > 50_000, "{until}");
    let other = Broker::start(BrokerOptions::new());
    let running = start(&source, &other, &["--group", "plain"]);
    assert!(verified(&source, &other, &[]) > 16_000);
    let findings: serde_json::Value = serde_json::from_slice(&verify(&source, &other, &[]).stdout).unwrap();
    assert_eq!(findings[0]["damaged"], 1, "{findings}");
    assert!(findings[0]["notes"][0].as_str().unwrap().contains("1 damaged message"), "{findings}");
    let stderr = ended(running);
    assert!(stderr.contains("t/0: what lies from ") && stderr.contains(" is damaged, and is not copied"), "{stderr}");
}

pub(crate) fn segments(broker: &Broker, partition: u32) -> Vec<PathBuf> {
    let topic = std::fs::read_dir(broker.data_dir()).unwrap().map(|entry| entry.unwrap().path());
    let mut topic = topic.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("t~"));
    let partition = topic.next().unwrap().join(partition.to_string());
    let mut segments: Vec<PathBuf> = std::fs::read_dir(partition)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    segments.sort();
    segments
}
