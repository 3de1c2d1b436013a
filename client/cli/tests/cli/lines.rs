//! Lines in, the same bytes out; keys, headers, tombstones and formats.

use serde_json::json;

use crate::{DEADLINE, broker_with_topic, consume_all, produce};

/// Carriage returns, empty lines, bytes that are not UTF-8, a line longer than a read, no newline at the end.
fn odd_input() -> Vec<u8> {
    let mut input = b"one\r\ntwo\n\n\r\n\xff\xfe\x00\x01odd\ntab\there\rstill here\n".to_vec();
    input.extend(std::iter::repeat_n(b'y', 700_000));
    input.extend_from_slice(b"\nlast, without a newline");
    input
}

#[test]
fn lines_come_back_byte_for_byte_whatever_the_codec() {
    let input = odd_input();
    let expected = [&input[..], b"\n"].concat();
    for codec in ["none", "lz4", "zstd", "snappy", "gzip"] {
        let broker = broker_with_topic(1);
        let finished = produce(&broker, &["--compression", codec], &input);
        assert!(finished.stderr.contains("8 messages read, 8 acknowledged, 0 failed"), "{}", finished.stderr);
        assert_eq!(finished.text(), "");
        assert!(consume_all(&broker, &[]) == expected, "{codec}");
    }
}

#[test]
fn a_file_in_and_a_file_out_are_the_same() {
    let broker = broker_with_topic(1);
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("in"), directory.path().join("out"));
    std::fs::write(&from, odd_input()).unwrap();
    std::fs::write(&to, "what was there before").unwrap();
    let file = from.to_str().unwrap();
    let summary = crate::json(&broker, &["--json", "produce", "t", "--file", file]);
    assert_eq!((&summary["messages"], &summary["acknowledged"], &summary["failed"]), (&json!(8), &json!(8), &json!(0)));
    assert_eq!(consume_all(&broker, &["--output", to.to_str().unwrap()]), b"");
    assert!(std::fs::read(&to).unwrap() == [odd_input(), b"\n".to_vec()].concat());
    let missing = crate::fails(&broker, &["produce", "t", "--file", "/no/such/file"]);
    assert!(missing.contains("/no/such/file"), "{missing}");
}

#[test]
fn no_input_publishes_nothing_and_an_empty_line_is_a_message() {
    let broker = broker_with_topic(1);
    produce(&broker, &[], b"");
    assert_eq!(consume_all(&broker, &[]), b"");
    produce(&broker, &[], b"\n\n");
    assert_eq!(consume_all(&broker, &[]), b"\n\n");
}

#[test]
fn every_acks_setting_delivers() {
    let broker = broker_with_topic(1);
    for acks in ["none", "received", "durable"] {
        produce(&broker, &["--acks", acks], format!("{acks}\n").as_bytes());
    }
    // Without an acknowledgement nothing says when the message is there.
    corelane_testkit::wait_until("all three", DEADLINE, || consume_all(&broker, &[]) == b"none\nreceived\ndurable\n");
}

#[test]
fn keys_headers_and_tombstones_come_back_in_every_format() {
    let broker = broker_with_topic(1);
    let input = b"k1\tv1\r\nno key\nk2\t\n\t\xff\n";
    let args = ["--key-separator", r"\t", "--tombstone", "--header", "host=web 1", "--header", "flag"];
    produce(&broker, &args, input);
    produce(&broker, &["--key", "fixed"], b"v=1\n");

    let lines = consume_all(&broker, &["--format", r"%t|%p|%k|%v|%h|100%%\n"]);
    let expected =
        b"t|0|k1|v1\r|host=web 1,flag|100%\nt|0||no key|host=web 1,flag|100%\nt|0|k2||host=web 1,flag|100%\n\
        t|0||\xff|host=web 1,flag|100%\nt|0|fixed|v=1||100%\n";
    assert_eq!(lines.escape_ascii().to_string(), expected.escape_ascii().to_string());

    let output = String::from_utf8(consume_all(&broker, &["--format", "json"])).unwrap();
    let objects: Vec<serde_json::Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let headers = json!([{"name": "host", "value": "web 1"}, {"name": "flag", "value": null}]);
    let parts: Vec<_> = objects.iter().map(|object| (&object["key"], &object["value"])).collect();
    assert_eq!(parts[0], (&json!("k1"), &json!("v1\r")));
    assert_eq!(parts[1], (&json!(null), &json!("no key")));
    assert_eq!(parts[2], (&json!("k2"), &json!(null)));
    assert_eq!((&objects[3]["key"], &objects[3]["value_base64"]), (&json!(""), &json!("/w==")));
    assert!(objects[..4].iter().all(|object| object["headers"] == headers));
    assert!(objects.iter().all(|object| object["topic"] == "t" && object["partition"] == 0));
    assert_eq!(output.as_bytes(), consume_all(&broker, &["--json"]));

    // What %i and %d print is what JSON calls position and timestamp_ms.
    let numbers = String::from_utf8(consume_all(&broker, &["--format", r"%i %d\n"])).unwrap();
    for (line, object) in numbers.lines().zip(&objects) {
        assert_eq!(line, format!("{} {}", object["position"], object["timestamp_ms"]));
    }
}

#[test]
fn keys_choose_the_partition_and_a_partition_can_be_named() {
    let broker = broker_with_topic(4);
    produce(&broker, &["--key", "same"], &b"x\n".repeat(50));
    let partitions = consume_all(&broker, &["--format", r"%p\n"]);
    assert!(partitions.windows(2).step_by(2).all(|pair| pair == &partitions[..2]), "one key, one partition");
    produce(&broker, &["--partition", "3"], b"named\n");
    assert!(consume_all(&broker, &["--partition", "3"]).ends_with(b"named\n"));
    let refused = crate::fails(&broker, &["produce", "t", "--partition", "4"]);
    assert!(refused.contains("no partition 4"), "{refused}");
}

#[test]
fn a_line_that_is_too_long_fails_alone() {
    let broker = broker_with_topic(1);
    let long = vec![b'z'; 9 << 20];
    let input = [b"before\n", &long[..], b"\nafter\n"].concat();
    let finished = corelane_testkit::run_with_input(broker.cli().args(["produce", "t"]), &input, DEADLINE);
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("3 messages read, 2 acknowledged, 1 failed"), "{}", finished.stderr);
    assert!(finished.stderr.contains("line 2"), "{}", finished.stderr);
    assert_eq!(consume_all(&broker, &[]), b"before\nafter\n");
}

#[test]
fn sample_logs_come_back_whole() {
    let Some(logs) = corelane_testkit::sample_logs() else {
        return corelane_testkit::skip("sample_logs_come_back_whole", "no sample logs beside the repository");
    };
    let broker = broker_with_topic(1);
    let mut expected = Vec::new();
    for log in logs {
        produce(&broker, &["--file", log.to_str().unwrap(), "--compression", "lz4"], b"");
        expected.extend(std::fs::read(&log).unwrap());
        if !expected.ends_with(b"\n") {
            expected.push(b'\n');
        }
    }
    assert!(consume_all(&broker, &[]) == expected);
}
