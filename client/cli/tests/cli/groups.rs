//! Groups as their users meet them: members that come and go, what `group` says of them and does to them.

use std::collections::BTreeSet;

use corelane_testkit::{Broker, run_with_input, wait_until};
use rustix::process::Signal;

use crate::running::Running;
use crate::{DEADLINE, broker_with_topic, cli, fails, json, numbers, ok, produce};

fn text(broker: &Broker, args: &[&str]) -> String {
    String::from_utf8(ok(broker, args)).unwrap()
}

fn member(broker: &Broker, args: &[&str]) -> Running {
    Running::start(broker.cli().args(["consume", "t", "--group", "g"]).args(args))
}

/// So many partitions are owned, each by a live member.
fn verified(broker: &Broker, members: u64) {
    // A member that has just joined owns nothing yet, and the group is in order all the same.
    wait_until("the group to settle", DEADLINE, || {
        let group = json(broker, &["--json", "group", "describe", "g"]);
        let owner = |partition: &serde_json::Value| partition["owner"].as_str().map(str::to_owned);
        let owners: BTreeSet<Option<String>> = group["partitions"].as_array().unwrap().iter().map(owner).collect();
        owners.len() as u64 == members && !owners.contains(&None)
    });
    ok(broker, &["group", "verify", "g", "--wait", "60s"]);
}

#[test]
fn members_share_the_messages_and_one_that_is_stopped_commits_what_it_printed() {
    let broker = broker_with_topic(4);
    produce(&broker, &[], &numbers(0, 100));
    let mut first = member(&broker, &["--format", r"%v\n"]);
    let mut seen: Vec<u32> = (0..100).map(|_| first.line().trim().parse().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    let mut second = member(&broker, &["--format", r"%v\n"]);
    verified(&broker, 2);
    // One message for each partition: two of them go to each member.
    for partition in ["0", "1", "2", "3"] {
        produce(&broker, &["--partition", partition], format!("10{partition}\n").as_bytes());
    }
    let mut shared: BTreeSet<String> = (0..2).map(|_| first.line()).collect();
    shared.extend((0..2).map(|_| second.line()));
    assert_eq!(shared.len(), 4);
    for (mut member, signal) in [(first, Signal::TERM), (second, Signal::INT)] {
        member.signal(signal);
        let (status, stderr) = member.end();
        assert!(status.success(), "{status}: {stderr}");
    }
    let group = json(&broker, &["--json", "group", "describe", "g"]);
    assert_eq!(group["members"].as_array().unwrap().len(), 0);
    let partitions = group["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 4);
    for partition in partitions {
        assert_eq!((&partition["lag_bytes"], &partition["owner"]), (&0.into(), &serde_json::Value::Null), "{group}");
    }
    // Another one goes on behind what was printed.
    produce(&broker, &[], b"last\n");
    assert_eq!(ok(&broker, &["consume", "t", "--group", "g", "--max", "1"]), b"last\n");
    // Another group gets everything.
    let all = text(&broker, &["consume", "t", "--group", "other", "--max", "105"]);
    assert_eq!(all.lines().count(), 105);
}

#[test]
fn a_member_that_waits_for_news_has_committed_all_that_it_wrote() {
    let broker = broker_with_topic(2);
    let mut reader = Running::start(broker.cli().args([
        "consume",
        "t",
        "--group",
        "g",
        "--commit-interval",
        "50ms",
        "--output",
        "/dev/null",
    ]));
    // Again and again: whether the last buffer is written before the member begins to wait is a matter of chance.
    for round in 0..20 {
        produce(&broker, &[], &numbers(10 * round, 10 * round + 10));
        wait_until("the lag to be gone", DEADLINE, || {
            let group = cli(&broker, &["--json", "group", "describe", "g"]);
            let group: serde_json::Value = serde_json::from_slice(&group.stdout).unwrap_or_default();
            let partitions = group["partitions"].as_array().map_or(&[][..], Vec::as_slice);
            partitions.len() == 2 && partitions.iter().all(|partition| partition["lag_bytes"] == 0)
        });
    }
    reader.signal(Signal::TERM);
    assert!(reader.end().0.success());
}

#[test]
fn groups_are_listed_described_reset_verified_and_deleted() {
    let broker = broker_with_topic(2);
    for partition in ["0", "1"] {
        produce(&broker, &["--partition", partition], &numbers(0, 50));
    }
    assert!(fails(&broker, &["group", "describe", "g"]).contains("no group \"g\""));
    let mut patient = Running::start(broker.cli().args(["group", "verify", "g", "--wait", "60s"]));
    let mut reader = member(&broker, &[]);
    reader.line();
    verified(&broker, 1);
    assert!(patient.end().0.success(), "it waits for the group as well");
    let list = text(&broker, &["group", "list"]);
    assert!(list.starts_with("GROUP") && list.contains("\ng "), "{list}");
    let table = text(&broker, &["group", "describe", "g"]);
    assert!(table.contains("1 member, 2 partitions") && table.contains("COMMITTED"), "{table}");
    let verified = text(&broker, &["group", "verify", "g"]);
    assert_eq!(verified, "group g: 2 partitions, 1 member, one owner each\n");
    let reset = ["group", "reset", "g", "--topic", "t", "--to", "earliest"];
    assert!(fails(&broker, &reset).contains("has 1 member; stop them first"));
    assert!(fails(&broker, &["group", "delete", "g", "--yes"]).contains("has 1 member; stop them first"));
    reader.signal(Signal::TERM);
    assert!(reader.end().0.success());

    let unverified = cli(&broker, &["group", "verify", "g"]);
    assert_eq!(unverified.status.code(), Some(1));
    assert!(unverified.text().contains("no members"), "{}", unverified.text());
    let plan = text(&broker, &[&reset[..], &["--partition", "1", "--dry-run"]].concat());
    assert!(plan.contains("dry run") && plan.lines().count() == 3, "{plan}");
    assert!(text(&broker, &reset).ends_with("\n2 positions set\n"));
    let behind = json(&broker, &["--json", "group", "describe", "g"]);
    for partition in behind["partitions"].as_array().unwrap() {
        assert_eq!((&partition["committed"], &partition["lag_messages"]), (&0.into(), &50.into()), "{behind}");
        assert!(partition["behind_ms"].as_u64().is_some() && partition["lag_messages_exact"] == true, "{behind}");
    }
    ok(&broker, &["group", "reset", "g", "--topic", "t", "--to", "latest"]);
    let outside = fails(&broker, &["group", "reset", "g", "--topic", "t", "--to", "999999"]);
    assert!(outside.contains("outside of what t/0 retains"), "{outside}");
    ok(&broker, &["group", "reset", "g", "--topic", "t", "--to", "-1h"]);
    let again = text(&broker, &["consume", "t", "--group", "g", "--max", "100"]);
    assert_eq!(again.lines().count(), 100);
    assert_eq!(text(&broker, &["group", "delete", "g", "--yes"]), "deleted group g\n");
    assert!(fails(&broker, &["group", "delete", "g", "--yes"]).contains("no group"));

    // As consumers that come from another cluster do.
    let made = ["group", "reset", "g", "--topic", "t", "--to", "latest"];
    assert!(fails(&broker, &made).contains("no group"));
    ok(&broker, &[&made[..], &["--create"]].concat());
    produce(&broker, &["--partition", "1"], b"news\n");
    assert_eq!(text(&broker, &["consume", "t", "--group", "g", "--max", "1"]), "news\n");
    ok(&broker, &[&made[..], &["--create"]].concat());
}

#[test]
fn a_member_by_pattern_reads_topics_that_come_later_under_the_name_that_it_was_given() {
    let broker = broker_with_topic(1);
    produce(&broker, &[], b"first\n");
    let mut member = Running::start(broker.cli().args([
        "--client-name",
        "reader-7",
        "consume",
        "--pattern",
        "t|later-.*",
        "--group",
        "g",
        "--format",
        r"%t %v\n",
    ]));
    assert_eq!(member.line(), "t first\n");
    let group = json(&broker, &["--json", "group", "describe", "g"]);
    assert_eq!(group["members"][0]["client_name"], "reader-7", "{group}");
    assert_eq!(group["members"][0]["pattern"], "t|later-.*", "{group}");
    ok(&broker, &["topic", "create", "later-1", "--partitions", "1"]);
    run_with_input(broker.cli().args(["produce", "later-1"]), b"second\n", DEADLINE).success();
    assert_eq!(member.line(), "later-1 second\n");
    for args in
        [&["consume", "--pattern", ".*"][..], &["consume", "t", "--pattern", ".*", "--group", "g"], &["consume"]]
    {
        assert_eq!(cli(&broker, args).status.code(), Some(2), "{args:?}");
    }
}
