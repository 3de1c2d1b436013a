//! docs/json.md: each field that a command prints with `--json` has its row under that command's heading, and each row its
//! field.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use corelane_testkit::{
    Broker, BrokerOptions, Cluster, Etcd, Finished, TestDir, run, run_with_input, skip, wait_until,
};
use rustix::process::Signal;
use serde_json::{Deserializer, Value};

use crate::logs::{SMALL, flip, segments_of};
use crate::running::Running;
use crate::{DEADLINE, broker_with_topic, cli, json, mirror, numbers, ok};

/// Rows whose fields the tests do not bring about.
const RARE: [&str; 3] = [
    // Of headers, which the command line takes as text.
    "headers[].value_base64",
    // Of a recovery that finds the newest segment damaged behind the checkpoint.
    "partitions[].would_change[].make",
    "partitions[].would_change[].remove",
];

/// Of each heading: the paths of fields, as the page writes them.
type Fields = BTreeMap<String, BTreeSet<String>>;

/// What the rows of the page name.
fn page() -> Fields {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let text = fs::read_to_string(path).expect("the page");
    let (mut fields, mut heading) = (Fields::new(), "");
    for line in text.lines() {
        if let Some(begun) = line.strip_prefix("## ") {
            heading = begun;
        } else if let Some((field, _)) = line.strip_prefix("| `").and_then(|row| row.split_once('`')) {
            fields.entry(heading.to_owned()).or_default().insert(field.to_owned());
        }
    }
    fields
}

/// Adds the fields of a value, and of all that it holds.
fn add(value: &Value, path: &str, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                fields.insert(path.clone());
                add(value, &path, fields);
            }
        }
        // Of an array that is the whole document, the objects in it are what the page tells of.
        Value::Array(values) => {
            let path = if path.is_empty() { String::new() } else { format!("{path}[]") };
            for value in values {
                add(value, &path, fields);
            }
        }
        _ => {}
    }
}

/// What commands have printed, under the headings of the page.
struct Printed {
    page: Fields,
    fields: Fields,
}

impl Printed {
    fn new() -> Self {
        Self { page: page(), fields: Fields::new() }
    }

    /// Takes documents, one or several, that stand under the heading which names `command`.
    #[track_caller]
    fn take(&mut self, command: &str, documents: &[u8]) {
        let is_named = |heading: &&String| heading.contains(&format!("`{command}`")) || *heading == command;
        let heading = self.page.keys().find(is_named).unwrap_or_else(|| panic!("no heading names {command}")).clone();
        let fields = self.fields.entry(heading).or_default();
        let mut is_some = false;
        for document in Deserializer::from_slice(documents).into_iter() {
            let document: Value = document.expect("--json prints JSON");
            is_some |= document.as_array().is_none_or(|objects| !objects.is_empty());
            add(&document, "", fields);
        }
        assert!(is_some, "{command} tells of nothing: {}", String::from_utf8_lossy(documents));
    }

    /// Runs a command, whose first words are its name.
    #[track_caller]
    fn run(&mut self, broker: &Broker, name: &str, args: &[&str]) {
        let words = name.split(' ').collect::<Vec<_>>();
        self.take(name, &ok(broker, &[&["--json"], &words[..], args].concat()));
    }

    /// The same for one that may fail, after it has told what it found.
    #[track_caller]
    fn run_anyhow(&mut self, broker: &Broker, name: &str, args: &[&str]) -> Finished {
        let finished = run(broker.cli().arg("--json").args(name.split(' ')).args(args), DEADLINE);
        self.take(name, &finished.stdout);
        finished
    }

    /// Compares with the page, as far as commands have been run.
    #[track_caller]
    fn check(&self) {
        let mut differences = Vec::new();
        for (heading, printed) in &self.fields {
            let rows = &self.page[heading];
            differences.extend(printed.difference(rows).map(|field| format!("{heading}: no row for {field}")));
            let unseen = rows.difference(printed).filter(|field| !RARE.contains(&field.as_str()));
            differences.extend(unseen.map(|field| format!("{heading}: {field} is never printed")));
        }
        assert!(differences.is_empty(), "docs/json.md is not true:\n{}", differences.join("\n"));
    }
}

#[test]
fn the_page_names_what_commands_tell_of_topics_messages_groups_and_brokers() {
    let broker = Broker::start(BrokerOptions::new());
    let mut printed = Printed::new();
    printed.run(&broker, "topic create", &["t", "--partitions", "1"]);
    let publish = |args: &[&str], input: &[u8]| {
        let mut command = broker.cli();
        run_with_input(command.args(["--json", "produce", "t"]).args(args), input, DEADLINE).success()
    };
    printed.take("produce", &publish(&["--header", "a=b"], b"text\n").stdout);
    publish(&["--key-separator", ":"], b"\xff:\xff\n");
    printed.run(&broker, "consume", &["t", "--exit-at-end"]);
    let mut member = Running::start(broker.cli().args(["consume", "t", "--group", "g"]));
    member.line();
    printed.run(&broker, "topic list", &[]);
    printed.run(&broker, "topic alter", &["t", "--flush-messages", "100"]);
    printed.run(&broker, "topic add-partitions", &["t", "--partitions", "2", "--yes"]);
    printed.run(&broker, "topic describe", &["t"]);
    printed.run(&broker, "topic trim", &["t", "--partition", "0", "--to", "0", "--yes"]);
    printed.run(&broker, "group list", &[]);
    printed.run(&broker, "group describe", &["g"]);
    printed.run(&broker, "group verify", &["g", "--wait", "60s"]);
    member.signal(Signal::TERM);
    assert!(member.end().0.success());
    printed.run(&broker, "group reset", &["g", "--topic", "t", "--to", "earliest"]);
    printed.run(&broker, "group delete", &["g", "--yes"]);
    printed.run(&broker, "cluster describe", &[]);
    printed.run(&broker, "broker list", &[]);
    printed.run(&broker, "broker describe", &["1"]);
    printed.run(&broker, "topic delete", &["t", "--yes"]);
    let failed = cli(&broker, &["--json", "topic", "describe", "t"]);
    printed.take("Failures", failed.stderr.as_bytes());
    printed.check();
}

#[test]
fn the_page_names_what_commands_tell_that_copy_messages() {
    let (source, target) = (broker_with_topic(1), Broker::start(BrokerOptions::new()));
    crate::produce(&source, &[], &numbers(0, 10));
    let mut printed = Printed::new();
    let mut running = mirror::start(&source, &target, &["--report-interval", "100ms"]);
    printed.take("mirror", running.line().as_bytes());
    mirror::stop(running);
    printed.take("mirror verify", &mirror::verify(&source, &target, &[]).stdout);
    let dir = TestDir::new("exported");
    let to = dir.path().to_str().expect("a plain path");
    printed.run(&source, "export", &["t", "--to", to, "--format", "jsonl"]);
    ok(&source, &["topic", "create", "u"]);
    printed.run(&source, "import", &[to, "--topic", "u"]);
    printed.check();
}

/// A topic of small segments with messages in each partition.
fn fill(broker: &Broker, topic: &str, partitions: &[&str]) {
    ok(broker, &[&["topic", "create", topic, "--partitions", &partitions.len().to_string()], &SMALL[..]].concat());
    for partition in partitions {
        let mut command = broker.cli();
        run_with_input(command.args(["produce", topic, "--partition", partition]), &numbers(0, 1_000), DEADLINE)
            .success();
    }
}

#[test]
fn the_page_names_what_commands_tell_of_files() {
    let mut broker = Broker::start(BrokerOptions::new());
    fill(&broker, "t", &["0"]);
    fill(&broker, "lost", &["0", "1"]);
    broker.stop();
    let data = broker.data_dir();
    let path = data.to_str().expect("a plain path");
    let mut printed = Printed::new();
    let export = ok(&broker, &["--json", "registry", "export", "--data", path]);
    let mut document: Value = serde_json::from_slice(&export).expect("one document");
    let records = document["records"].as_array_mut().expect("an array");
    assert!(records.drain(..).all(|record| record.as_array().is_some_and(|record| record.len() == 2)));
    printed.take("registry export", document.to_string().as_bytes());
    let empty = TestDir::new("registry");
    let mut import = broker.cli();
    import.args(["--json", "registry", "import", "--data"]).arg(empty.path());
    printed.take("registry import", &run_with_input(&mut import, &export, DEADLINE).success().stdout);
    printed.run_anyhow(&broker, "registry restore-from", &[path]);

    // A length that leads nowhere, and half a message behind the end.
    let segments = segments_of(&broker, "t", 0);
    flip(&segments[1], 3);
    let newest = segments.last().expect("a segment");
    let dump = ok(&broker, &["--json", "log", "dump", newest.to_str().expect("a plain path")]);
    let last = Deserializer::from_slice(&dump).into_iter::<Value>().last().expect("a message").expect("a line of JSON");
    let end = last["position"].as_u64().expect("a position") + last["bytes"].as_u64().expect("bytes");
    let base: u64 = newest.file_name().expect("a name").to_string_lossy()[..20].parse().expect("a base");
    let torn = &fs::read(newest).expect("a segment")[..20];
    OpenOptions::new().write(true).open(newest).unwrap().write_all_at(torn, end - base).expect("written");
    // A partition with a gap, and one that is not there.
    let lost = segments_of(&broker, "lost", 0);
    fs::remove_file(&lost[1]).expect("removed");
    fs::remove_dir_all(lost[0].parent().expect("a directory").with_file_name("1")).expect("removed");

    assert_eq!(printed.run_anyhow(&broker, "log verify", &[path]).status.code(), Some(1));
    printed.run_anyhow(&broker, "log dump", &[path]);
    let copy = empty.join("copy");
    fs::copy(newest, &copy).expect("copied");
    printed.run_anyhow(&broker, "log dump", &[copy.to_str().expect("a plain path")]);
    let salvaged = empty.join("salvaged");
    printed.run_anyhow(
        &broker,
        "log repair",
        &[path, "--dry-run", "--salvage", salvaged.to_str().expect("a plain path")],
    );
    printed.check();
}

#[test]
fn the_page_names_what_commands_tell_of_brokers_that_are_gone() {
    if Etcd::installed().is_none() {
        return skip("the_page_names_what_commands_tell_of_brokers_that_are_gone", "etcd is not installed");
    }
    let mut cluster = Cluster::start(2);
    ok(cluster.broker(1), &["topic", "create", "t", "--partitions", "2"]);
    cluster.broker_mut(2).stop();
    let first = cluster.broker(1);
    wait_until("broker 1 to know that broker 2 is gone", DEADLINE, || {
        json(first, &["--json", "broker", "list"])[1]["alive"] == false
    });
    let mut printed = Printed::new();
    printed.run(first, "broker forget", &["2", "--yes"]);
    let described = json(first, &["--json", "topic", "describe", "t"]);
    let partitions = described["partitions"].as_array().expect("an array");
    let lost = partitions.iter().find(|partition| partition["broker_id"] == 2).expect("broker 2 had a partition");
    printed.run(first, "topic accept-loss", &["t", "--partition", &lost["partition"].to_string(), "--yes"]);
    printed.check();
}
