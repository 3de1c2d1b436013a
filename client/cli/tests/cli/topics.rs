//! `corelane topic` and `corelane cluster`.

use serde_json::json;

use crate::{broker_with_topic, fails, json, ok, produce};

#[test]
fn topics_are_created_listed_described_altered_and_deleted() {
    let broker = broker_with_topic(2);
    let made = json(
        &broker,
        &["--json", "topic", "create", "u", "--partitions", "3", "--retention", "1h", "--segment-bytes", "64MiB"],
    );
    assert_eq!((&made["topic"], &made["partitions"], &made["created"]), (&json!("u"), &json!(3), &json!(true)));
    assert_eq!(made["settings"]["retention_ms"], 3_600_000);
    assert_eq!(made["settings"]["segment_bytes"], 64 << 20);

    let listed = json(&broker, &["--json", "topic", "list"]);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|topic| topic["topic"].as_str().unwrap()).collect();
    assert_eq!(names, ["t", "u"]);

    let described = json(&broker, &["--json", "topic", "describe", "t"]);
    let partitions = described["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 2);
    for (number, partition) in partitions.iter().enumerate() {
        for (field, value) in [("partition", number), ("start", 0), ("visible_end", 0), ("durable_end", 0)] {
            assert_eq!(partition[field], value, "{field}");
        }
    }

    ok(&broker, &["topic", "alter", "t", "--retention", "30d", "--flush-messages", "100", "--flush-interval", "20ms"]);
    let settings = &json(&broker, &["--json", "topic", "describe", "t"])["settings"];
    assert_eq!(settings["retention_ms"], 30_u64 * 24 * 3_600_000);
    assert_eq!((&settings["flush_messages"], &settings["flush_interval_ms"]), (&json!(100), &json!(20)));

    ok(&broker, &["topic", "delete", "u", "--yes"]);
    assert_eq!(json(&broker, &["--json", "topic", "list"]).as_array().unwrap().len(), 1);
}

#[test]
fn tables_are_for_people() {
    let broker = broker_with_topic(2);
    let list = String::from_utf8(ok(&broker, &["topic", "list"])).unwrap();
    assert!(list.starts_with("TOPIC") && list.lines().count() == 2, "{list}");
    let description = String::from_utf8(ok(&broker, &["topic", "describe", "t"])).unwrap();
    assert!(description.contains("DURABLE END") && description.contains("serving"), "{description}");
    let cluster = String::from_utf8(ok(&broker, &["cluster", "describe"])).unwrap();
    assert!(cluster.contains("embedded") && cluster.contains(&broker.addr().port().to_string()), "{cluster}");
    let cluster = json(&broker, &["--json", "cluster", "describe"]);
    assert_eq!((&cluster["topics"], &cluster["partitions"]), (&json!(1), &json!(2)));
    assert_eq!(cluster["brokers"][0]["port"], broker.addr().port());
}

#[test]
fn creating_a_topic_twice_fails_unless_it_was_asked_for() {
    let broker = broker_with_topic(2);
    assert!(fails(&broker, &["topic", "create", "t", "--partitions", "2"]).contains("exists"));
    let again = json(&broker, &["--json", "topic", "create", "t", "--partitions", "2", "--if-not-exists"]);
    assert_eq!(again["created"], false);
    fails(&broker, &["topic", "create", "t", "--partitions", "5", "--if-not-exists"]);
}

#[test]
fn a_broker_that_the_cluster_does_not_know_cannot_be_forgotten() {
    let broker = broker_with_topic(1);
    let message = fails(&broker, &["broker", "forget", "99", "--yes"]);
    assert!(message.contains("the cluster knows no broker 99"), "{message}");
}

#[test]
fn an_unknown_topic_is_answered_with_what_helps() {
    let broker = broker_with_topic(1);
    for args in [&["produce", "gone"][..], &["consume", "gone"]] {
        let message = fails(&broker, args);
        assert!(message.contains("corelane topic create --partitions 1 gone"), "{args:?}: {message}");
    }
    for args in [
        &["topic", "describe", "gone"][..],
        &["topic", "alter", "gone", "--retention", "1h"],
        &["topic", "trim", "gone", "--partition", "0", "--to", "0", "--yes"],
        &["topic", "delete", "gone", "--yes"],
    ] {
        let message = fails(&broker, args);
        assert!(message.contains("corelane topic list") && !message.contains("create"), "{args:?}: {message}");
    }
}

#[test]
fn what_drops_messages_is_not_done_without_yes_when_nobody_can_be_asked() {
    let broker = broker_with_topic(1);
    produce(&broker, &[], b"precious\n");
    for args in [
        &["topic", "delete", "t"][..],
        &["topic", "trim", "t", "--partition", "0", "--to", "10"],
        &["topic", "alter", "t", "--retention", "1s"],
    ] {
        let message = fails(&broker, args);
        assert!(message.contains("--yes"), "{args:?}: {message}");
    }
    assert_eq!(crate::consume_all(&broker, &[]), b"precious\n");
}

#[test]
fn a_trim_moves_the_start_to_a_segment_start() {
    let broker = broker_with_topic(1);
    ok(&broker, &["topic", "create", "small", "--partitions", "1", "--segment-bytes", "64KiB"]);
    let line = [b'x'; 1000];
    let input = [&line[..], b"\n"].concat().repeat(500);
    corelane_testkit::run_with_input(broker.cli().args(["produce", "small"]), &input, crate::DEADLINE).success();
    let end =
        json(&broker, &["--json", "topic", "describe", "small"])["partitions"][0]["visible_end"].as_u64().unwrap();
    let trimmed = json(
        &broker,
        &["--json", "topic", "trim", "small", "--partition", "0", "--to", &(end / 2).to_string(), "--yes"],
    );
    let start = trimmed["start"].as_u64().unwrap();
    assert!(start > 0 && start <= end / 2, "{start} of {end}");
    assert_eq!(json(&broker, &["--json", "topic", "describe", "small"])["partitions"][0]["start"], start);
    assert!(
        fails(&broker, &["topic", "trim", "small", "--partition", "9", "--to", "0", "--yes"])
            .contains("no partition 9")
    );
    // A position that is gone is an error with the valid range, not a silent jump.
    let gone = fails(&broker, &["consume", "small", "--from", "0", "--exit-at-end"]);
    assert!(gone.contains(&start.to_string()), "{gone}");
}
