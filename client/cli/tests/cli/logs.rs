//! `corelane log` on the files of real brokers: beside one that runs, after an orderly stop, after a crash, after damage.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use corelane_testkit::{Broker, BrokerOptions, Finished, Process, TestDir, bin, run};
use serde_json::Value;

use crate::{DEADLINE, corelane, numbers, ok, produce};

pub(crate) const SMALL: [&str; 6] =
    ["--segment-bytes", "8KiB", "--set-bytes-max", "4KiB", "--message-bytes-max", "4KiB"];

/// A broker with a topic `t` of one partition and small segments, and 3,000 messages in it.
fn filled() -> Broker {
    let broker = Broker::start(BrokerOptions::new());
    ok(&broker, &[&["topic", "create", "t"], &SMALL[..]].concat());
    produce(&broker, &[], &numbers(0, 3_000));
    broker
}

fn log(words: &[&str], path: &Path, more: &[&str]) -> Finished {
    run(corelane().args(words).arg(path).args(more), DEADLINE)
}

fn verify(path: &Path) -> Finished {
    log(&["log", "verify"], path, &[])
}

fn verify_json(path: &Path) -> Value {
    let finished = log(&["--json", "log", "verify"], path, &[]);
    serde_json::from_slice(&finished.stdout).expect("--json prints JSON")
}

fn dump_json(path: &Path, more: &[&str]) -> Vec<Value> {
    let finished = log(&["--json", "log", "dump"], path, more).success();
    finished.text().lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// The segments of partition 0 of `t`.
fn segments(broker: &Broker) -> Vec<PathBuf> {
    segments_of(broker, "t", 0)
}

/// The segments of a partition, oldest first.
pub(crate) fn segments_of(broker: &Broker, topic: &str, partition: u32) -> Vec<PathBuf> {
    let files = |dir: &Path| -> Vec<PathBuf> {
        fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()).collect()
    };
    let topic =
        files(&broker.data_dir()).into_iter().find(|path| path.to_string_lossy().contains(&format!("/{topic}~")));
    let mut segments = files(&topic.expect("a topic's directory").join(partition.to_string()));
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    segments.sort();
    segments
}

pub(crate) fn flip(path: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("a segment");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], at).expect("written");
}

/// Everything in a directory, for comparison.
fn snapshot(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let content = fs::read(&path).expect("a file");
                all.push((path, content));
            }
        }
    }
    all.sort();
    all
}

#[test]
fn verify_beside_a_broker_under_load_raises_no_false_alarm() {
    let broker = Broker::start(BrokerOptions::new());
    ok(&broker, &[&["topic", "create", "t", "--partitions", "4", "--retention-bytes", "256KiB"], &SMALL[..]].concat());
    let mut load = broker.loadgen("produce");
    load.args(["--topic", "t", "--size", "100", "--set", "10", "--rate", "20000", "--duration", "60s"]);
    let load = Process::start(&load);
    for _ in 0..25 {
        let finished = verify(&broker.data_dir());
        assert!(finished.status.success(), "{}\n{}", finished.text(), finished.stderr);
        assert!(finished.text().contains("A broker runs on this directory"), "{}", finished.text());
    }
    let dumped = dump_json(&broker.data_dir(), &[]);
    assert!(dumped.iter().all(|line| line["crc"] == "good") && !dumped.is_empty());
    drop(load);
}

#[test]
fn a_directory_in_order_is_clean_and_a_look_changes_nothing() {
    let mut broker = filled();
    broker.stop();
    let before = snapshot(&broker.data_dir());
    let report = verify_json(&broker.data_dir());
    assert_eq!((&report["result"], &report["stopped_clean"]), (&"clean".into(), &true.into()), "{report}");
    assert_eq!(report["partitions"][0]["messages"], 3_000);
    let text = verify(&broker.data_dir()).success().text();
    assert!(text.contains("t/0") && text.contains("clean"), "{text}");

    let all = dump_json(&broker.data_dir(), &[]);
    assert_eq!(all.len(), 3_000);
    let place = |line: &Value| (line["position"].as_u64().expect("a position"), line["bytes"].as_u64().expect("bytes"));
    assert!(
        all.windows(2).all(|pair| place(&pair[0]).0 + place(&pair[0]).1 == place(&pair[1]).0),
        "ids are contiguous"
    );
    // From any byte of a message on, that message is the first.
    let from = (place(&all[1_500]).0 + 3).to_string();
    assert_eq!(dump_json(&broker.data_dir(), &["--from", &from, "--max", "7"]), all[1_500..1_507]);
    // A segment alone, where it is and elsewhere.
    let segment = &segments(&broker)[1];
    let of_segment = dump_json(segment, &[]);
    assert!(of_segment.len() > 10 && all.windows(of_segment.len()).any(|window| window == of_segment));
    let elsewhere = TestDir::new("elsewhere");
    let copy = elsewhere.join(segment.file_name().expect("a name"));
    fs::copy(segment, &copy).expect("copied");
    let positions = |lines: &[Value]| lines.iter().map(place).collect::<Vec<_>>();
    assert_eq!(positions(&dump_json(&copy, &[])), positions(&of_segment));

    let of_file = verify(segment);
    assert_eq!(of_file.status.code(), Some(2));
    assert!(of_file.stderr.contains("is not a directory; `corelane log dump` looks at"), "{}", of_file.stderr);
    let beyond = log(&["log", "dump"], &broker.data_dir(), &["--from", "99999999"]).success();
    assert!(beyond.stderr.contains(", and 99999999 lies beyond"), "{}", beyond.stderr);

    let dry = log(&["log", "repair"], &broker.data_dir(), &["--dry-run"]).success().text();
    assert!(dry.contains("nothing to recover") && dry.contains("Nothing was changed."), "{dry}");
    assert!(before == snapshot(&broker.data_dir()), "a look has changed something");
}

#[test]
fn damage_is_found_and_told_with_its_place_and_status_1() {
    let mut broker = filled();
    broker.stop();
    let segments = segments(&broker);
    let third = dump_json(&segments[1], &["--max", "3"])[2].clone();
    let base: u64 = segments[1].file_name().unwrap().to_string_lossy()[..20].parse().expect("a base");
    let position = third["position"].as_u64().expect("a position");
    flip(&segments[1], position - base + 24);
    let finished = verify(&broker.data_dir());
    assert_eq!(finished.status.code(), Some(1), "{}", finished.text());
    let bytes = third["bytes"].as_u64().expect("bytes");
    assert!(finished.text().contains(&format!("at {position}, {bytes} bytes: a message whose checksum is wrong")));
    assert!(finished.stderr.contains("damage was found"), "{}", finished.stderr);
    let report = verify_json(&broker.data_dir());
    assert_eq!(
        (&report["partitions"][0]["bad_messages"], &report["partitions"][0]["messages"]),
        (&1.into(), &2_999.into())
    );
    let bad: Vec<Value> = dump_json(&broker.data_dir(), &[]).into_iter().filter(|line| line["crc"] != "good").collect();
    assert_eq!((bad.len(), &bad[0]["position"]), (1, &third["position"]));

    // Below the checkpoint recovery reads nothing, and does not say that it is good.
    let dry = log(&["log", "repair"], &broker.data_dir(), &["--dry-run"]).success().text();
    assert!(dry.contains("nothing to recover") && dry.contains("`corelane log verify` says"), "{dry}");

    // A segment that is gone is a gap; the rest is still read, and repair says what it cannot do.
    fs::remove_file(&segments[2]).expect("removed");
    let report = verify_json(&broker.data_dir());
    let kinds: Vec<&str> =
        report["partitions"][0]["findings"].as_array().unwrap().iter().filter_map(|f| f["kind"].as_str()).collect();
    assert!(kinds.contains(&"gap") && kinds.contains(&"bad_message"), "{kinds:?}");
    let repair = log(&["log", "repair"], &broker.data_dir(), &[]);
    assert_eq!(repair.status.code(), Some(1));
    assert!(repair.text().contains("put the missing segment file back"), "{}", repair.text());
}

#[test]
fn repair_does_what_it_said_and_keeps_a_copy_of_what_it_cuts() {
    let mut broker = filled();
    let refused = log(&["log", "repair"], &broker.data_dir(), &["--dry-run"]);
    assert_eq!(refused.status.code(), Some(2), "beside a broker: {}", refused.text());
    assert!(refused.stderr.contains("stop the broker first"), "{}", refused.stderr);
    broker.stop();
    // Half a message behind the end, as a crash leaves it.
    let newest = segments(&broker).pop().expect("a segment");
    let last = dump_json(&broker.data_dir(), &[]).pop().expect("a message");
    let end = last["position"].as_u64().unwrap() + last["bytes"].as_u64().unwrap();
    let base: u64 = newest.file_name().unwrap().to_string_lossy()[..20].parse().expect("a base");
    let torn = &fs::read(&newest).expect("a segment")[..20];
    fs::OpenOptions::new().write(true).open(&newest).unwrap().write_all_at(torn, end - base).expect("written");

    let text = verify(&broker.data_dir()).success().text();
    assert!(text.contains("a torn tail, as a crash leaves it"), "{text}");
    let before = snapshot(&broker.data_dir());
    let dry = log(&["log", "repair"], &broker.data_dir(), &["--dry-run"]).success().text();
    assert!(dry.contains(&format!("a torn tail of 20 bytes behind {end} would be cut off")), "{dry}");
    assert!(before == snapshot(&broker.data_dir()), "a dry run has changed something");
    let done = log(&["log", "repair"], &broker.data_dir(), &[]).success().text();
    assert!(done.contains(&format!("a torn tail of 20 bytes behind {end} was cut off")), "{done}");
    let copies: Vec<PathBuf> =
        fs::read_dir(newest.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let copy = copies.iter().find(|path| path.to_string_lossy().contains(".log.cut-")).expect("a copy was kept");
    assert_eq!(fs::read(copy).expect("the copy"), torn);
    let again = log(&["log", "repair"], &broker.data_dir(), &[]).success().text();
    assert!(again.contains(&format!("nothing to recover, ends at {end}")), "{again}");
    broker.restart();
    produce(&broker, &[], &numbers(3_000, 3_010));
    assert_eq!(crate::consume_all(&broker, &[]), numbers(0, 3_010));
}

#[test]
fn salvage_writes_candidates_elsewhere_and_touches_nothing() {
    let mut broker = filled();
    broker.stop();
    let segments = segments(&broker);
    let messages = dump_json(&segments[1], &[]);
    // A length that leads nowhere: all that follows in the segment cannot be told apart any more.
    flip(&segments[1], 3);
    let before = snapshot(&broker.data_dir());
    let out = TestDir::new("salvage");
    let to = out.join("candidates");
    let to_text = to.to_str().expect("a plain path");
    let more = ["--dry-run", "--salvage", to_text];
    let text = log(&["log", "repair"], &broker.data_dir(), &more).success().text();
    assert!(before == snapshot(&broker.data_dir()), "salvage has changed something");
    assert!(text.contains(&format!("{} candidates", messages.len() - 1)), "{text}");
    let list = fs::read_to_string(to.join("candidates.jsonl")).expect("a list");
    let found: Vec<Value> = list.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let positions = |lines: &[Value]| lines.iter().map(|line| line["position"].clone()).collect::<Vec<_>>();
    assert_eq!(positions(&found), positions(&messages[1..]));
    assert!(found.iter().all(|candidate| candidate["leads_on"] == true), "the chain leads to the next segment");
    let file = to.join(found[0]["file"].as_str().expect("a file"));
    assert_eq!(dump_json(&file, &[]).len(), messages.len() - 1, "the messages can be dumped");
    let again = log(&["log", "repair"], &broker.data_dir(), &more);
    assert_eq!(again.status.code(), Some(1), "an earlier salvage is not overwritten");
}

#[test]
fn what_cannot_be_looked_at_ends_with_2_and_what_to_do() {
    let dir = TestDir::new("nothing");
    let finished = verify(&dir.join("not there"));
    assert_eq!(finished.status.code(), Some(2));
    let finished = verify(&dir.join(""));
    assert_eq!(finished.status.code(), Some(2));
    assert!(finished.stderr.contains("--data"), "{}", finished.stderr);
    // Of another user's files nothing is known.
    let broker = filled();
    let partition = segments(&broker)[0].parent().expect("a directory").to_owned();
    fs::set_permissions(&partition, fs::Permissions::from_mode(0o700)).expect("a mode");
    let mut unprivileged = Command::new("setpriv");
    unprivileged.args(["--reuid=65534", "--clear-groups"]).arg(bin("corelane")).args(["log", "verify"]);
    let finished = run(unprivileged.arg(broker.data_dir()), DEADLINE);
    assert_eq!(finished.status.code(), Some(2), "{} {}", finished.text(), finished.stderr);
    assert!(finished.text().contains("run this as the user that the broker runs as"), "{}", finished.text());
}
