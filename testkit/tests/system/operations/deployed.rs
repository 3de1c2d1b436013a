//! What `deploy/` holds: the broker takes what it is passed there, and the metrics that are named there and in the documents
//! are on the page of a broker.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use corelane_testkit::{Broker, BrokerOptions, TestDir, bin, run, run_with_input, skip};

use super::running::check;
use super::{Metrics, get};
use crate::support::PATIENCE;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A broker with a topic and a group, so that its page has every metric.
fn busy_broker() -> Broker {
    let broker = Broker::start(BrokerOptions::new());
    run(broker.cli().args(["topic", "create", "views"]), PATIENCE).success();
    run_with_input(broker.cli().args(["produce", "views"]), b"one\n", PATIENCE).success();
    run(broker.cli().args(["consume", "views", "--group", "loaders", "--max", "1"]), PATIENCE).success();
    broker
}

/// The names in a text that begin as our metrics do, each with what follows it.
fn names(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins =
        ["corelane_", "process_"].into_iter().flat_map(move |prefix| text.match_indices(prefix).map(|(at, _)| at));
    begins.filter(move |at| *at == 0 || !is_part(text.as_bytes()[at - 1])).map(move |at| {
        let end = text.as_bytes()[at..].iter().position(|byte| !is_part(*byte)).map_or(text.len(), |bytes| at + bytes);
        (&text[at..end], &text[end..])
    })
}

/// Values of labels in a selector such as `{status="OK", operation=~"flush|read"}`.
fn wanted_labels(selector: &str) -> Vec<(String, String)> {
    let Some(inside) = selector.strip_prefix('{').and_then(|rest| rest.split('}').next()) else { return Vec::new() };
    let inside = inside.replace("\\\"", "\"");
    let parts = inside.split(',').filter_map(|part| {
        let (label, value) = part.split_once('=')?;
        let value = value.trim_start_matches('~').trim().trim_matches('"').to_owned();
        Some((label.trim().trim_end_matches('!').to_owned(), value))
    });
    // Those are the scrape's, or variables of the dashboard.
    parts.filter(|(label, value)| !matches!(label.as_str(), "job" | "instance") && !value.contains('$')).collect()
}

#[test]
fn every_metric_that_alerts_dashboard_and_documents_name_is_there_with_the_labels_they_ask_for() {
    let broker = busy_broker();
    let metrics = Metrics::of(&broker, "?topics=1&partitions=1");
    // A histogram is named by itself in a document, and by its parts in an alert.
    let lines = metrics.lines.keys().map(|line| line.split('{').next().expect("split gives one part at least"));
    let there: BTreeSet<&str> = lines.chain(metrics.kinds.keys().map(String::as_str)).collect();
    let crates = ["corelane_broker", "corelane_client", "corelane_log", "corelane_proto", "corelane_testkit"];
    let mirrors = repository().join("client/cli/src/mirror/progress.rs");
    let mirrors = std::fs::read_to_string(mirrors).expect("the mirror's metrics");
    let mut files: Vec<PathBuf> =
        ["deploy/prometheus/rules.yml", "deploy/prometheus/rules.test.yml", "deploy/grafana/corelane.json"]
            .iter()
            .map(|file| repository().join(file))
            .collect();
    let docs = std::fs::read_dir(repository().join("docs")).expect("there are documents");
    files.extend(
        docs.map(|entry| entry.expect("readable").path()).filter(|path| path.extension().is_some_and(|e| e == "md")),
    );
    let mut count = 0;
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for (name, rest) in names(&text) {
            if crates.contains(&name) {
                continue;
            }
            // A mirror has a file of its own for them.
            if let Some(name) = name.strip_prefix("corelane_mirror_") {
                let is_there = mirrors.contains(&format!("\"{name}\""));
                assert!(is_there, "{} names {name}, which no mirror writes", file.display());
                continue;
            }
            assert!(there.contains(name), "{} names {name}, which is not on the page", file.display());
            for (label, values) in wanted_labels(rest) {
                // A value may never have occurred; that of a label that tells kinds apart is always there.
                let labels = values.split('|').map(|value| format!("{label}=\"{value}\""));
                let is_there = |label: &String| metrics.with(name, &[label]).next().is_some();
                let labels: Vec<String> = labels.collect();
                let is_free = matches!(label.as_str(), "group" | "topic" | "shard");
                assert!(is_free || labels.iter().all(is_there), "{}: {name} has no {labels:?}", file.display());
            }
            count += 1;
        }
    }
    assert!(count > 100, "only {count} names were found");
}

#[test]
fn promtool_is_content_with_the_alerts_and_the_page() {
    let promtool = Path::new("/usr/bin/promtool");
    if !promtool.exists() {
        return skip("promtool_is_content_with_the_alerts_and_the_page", "promtool is not installed");
    }
    let dir = repository().join("deploy/prometheus");
    for args in
        [["check", "rules", "rules.yml"], ["check", "config", "prometheus.yml"], ["test", "rules", "rules.test.yml"]]
    {
        let checked = run(Command::new(promtool).args(args).current_dir(&dir), PATIENCE);
        assert!(checked.status.success(), "{args:?}: {}{}", checked.text(), checked.stderr);
    }
    let broker = busy_broker();
    let page = get(&broker, "/metrics?topics=1&partitions=1").body;
    let home = TestDir::new("operations");
    let checked = run_with_input(
        Command::new(promtool).args(["check", "metrics"]).current_dir(home.path()),
        page.as_bytes(),
        PATIENCE,
    );
    assert!(checked.status.success(), "{}{}", checked.text(), checked.stderr);
}

/// The words of a list as YAML writes it on one line.
fn words(list: &str) -> Vec<String> {
    let list = list.trim().trim_start_matches('[').trim_end_matches(']');
    list.split(", ").map(|word| word.trim_matches('"').to_owned()).collect()
}

#[test]
fn what_the_compose_file_passes_to_the_brokers_is_taken_and_no_two_are_the_same() {
    let file = std::fs::read_to_string(repository().join("deploy").join("compose.yaml")).expect("the compose file");
    let commands: Vec<Vec<String>> =
        file.lines().filter_map(|line| Some(words(line.trim().strip_prefix("command: [")?))).collect();
    assert_eq!(commands.len(), 3);
    let mut ids = BTreeSet::new();
    for command in &commands {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        let checked = run(&mut check(&args), PATIENCE).success();
        assert!(checked.text().contains("etcd = \"http://etcd:2379\""), "{}", checked.text());
        let at = args.iter().position(|word| *word == "--broker-id").expect("each has a number");
        assert!(ids.insert(args[at + 1]), "{args:?}");
    }
    let dockerfile =
        std::fs::read_to_string(repository().join("deploy").join("Dockerfile")).expect("the image's recipe");
    let variables = dockerfile.lines().find_map(|line| line.strip_prefix("ENV ")).expect("it sets where to listen");
    let mut command = check(&[]);
    command.envs(variables.split(' ').filter_map(|one| one.split_once('=')));
    assert!(run(&mut command, PATIENCE).success().text().contains("listen = \"0.0.0.0:9400\""));
}

#[test]
fn systemd_is_content_with_the_unit() {
    let analyze = Path::new("/usr/bin/systemd-analyze");
    if !analyze.exists() {
        return skip("systemd_is_content_with_the_unit", "systemd-analyze is not installed");
    }
    let unit = std::fs::read_to_string(repository().join("deploy").join("corelane.service")).expect("the unit");
    let (dir, broker) = (TestDir::new("operations"), bin("corelane-broker"));
    let path = dir.path().join("corelane.service");
    std::fs::write(&path, unit.replace("/usr/bin/corelane-broker", broker.to_str().expect("a name"))).expect("written");
    let verified = run(Command::new(analyze).args(["verify", "--man=no"]).arg(&path), PATIENCE);
    assert!(verified.status.success(), "{}{}", verified.text(), verified.stderr);
    let complaint = verified.stderr.lines().find(|line| line.contains("corelane.service"));
    assert_eq!(complaint, None);
}
