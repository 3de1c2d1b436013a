//! Files for a warehouse: what each run writes, that nothing is there twice or missing however it is killed, that other
//! programs read the files, and that they come back.

use std::collections::BTreeSet;
use std::fs::{DirEntry, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use corelane_testkit::{Broker, BrokerOptions, TestDir, run, run_with_input, skip, wait_for, wait_until};
use rustix::process::Signal;

use crate::mirror::segments;
use crate::running::Running;
use crate::{DEADLINE, broker_with_topic, cli, fails, json, numbers, ok, produce};

fn export(broker: &Broker, to: &Path, args: &[&str]) -> serde_json::Value {
    let mut command = broker.cli();
    command.args(["--json", "export", "t", "--to"]).arg(to).args(args);
    serde_json::from_slice(&run(&mut command, DEADLINE).success().stdout).expect("--json prints JSON")
}

/// All files below a directory, by name, but for those that are hidden.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let is_hidden = path.file_name().unwrap().to_string_lossy().starts_with('.');
            if path.is_dir() {
                directories.push(path);
            } else if !is_hidden {
                files.push(path);
            }
        }
    }
    files.sort_by_key(|path| path.file_name().unwrap().to_owned());
    files
}

/// The messages of a topic's partition as objects, without what depends on where they lie.
fn messages(broker: &Broker, topic: &str, partition: &str) -> Vec<serde_json::Value> {
    let args = ["consume", topic, "--partition", partition, "--exit-at-end", "--format", "json"];
    let printed = String::from_utf8(ok(broker, &args)).unwrap();
    let message = |line: &str| {
        let mut message: serde_json::Value = serde_json::from_str(line).unwrap();
        (message["topic"], message["position"]) = (serde_json::Value::Null, serde_json::Value::Null);
        message
    };
    printed.lines().map(message).collect()
}

/// Messages of every kind in both partitions of `t`.
fn publish_all_kinds(broker: &Broker) {
    for partition in ["0", "1"] {
        let to = ["--partition", partition];
        produce(broker, &to, &numbers(0, 300));
        produce(broker, &[&to[..], &["--key", "k", "--tombstone"]].concat(), b"\n");
        let headers = ["--key", "", "--header", "a=b", "--header", "none", "--header", "a=c", "--compression", "zstd"];
        produce(broker, &[&to[..], &headers].concat(), &[&b"\xff\x00\xfe\n"[..], &numbers(0, 50)].concat());
    }
}

#[test]
fn each_run_writes_what_came_since_and_all_comes_back_in_every_format() {
    let broker = broker_with_topic(2);
    for (index, format) in ["parquet", "jsonl", "raw"].into_iter().enumerate() {
        let dir = TestDir::new("export");
        let to = dir.join("made/for/it");
        publish_all_kinds(&broker);
        let first = export(&broker, &to, &["--format", format, "--group", format, "--file-bytes", "0"]);
        assert_eq!((&first["files"], &first["messages"]), (&2.into(), &(704 * (2 * index + 1)).into()), "{first}");
        assert_eq!(export(&broker, &to, &["--format", format])["files"], 0);
        let whole = files(&to).into_iter().map(|path| (std::fs::read(&path).unwrap(), path)).collect::<Vec<_>>();
        publish_all_kinds(&broker);
        let second = export(&broker, &to, &["--format", format, "--partition-by", "time", "--group", format]);
        assert_eq!((&second["files"], &second["missed_bytes"], &second["damaged"]), (&2.into(), &0.into(), &0.into()));
        assert!(files(&to).iter().any(|path| path.parent().unwrap().to_string_lossy().contains("/date=20")));
        assert!(whole.iter().all(|(bytes, path)| std::fs::read(path).unwrap() == *bytes), "files never change");
        let group = json(&broker, &["--json", "group", "describe", format]);
        for partition in group["partitions"].as_array().unwrap() {
            assert_eq!(partition["lag_bytes"], 0, "{group}");
        }

        let copy = format!("copy-{format}");
        ok(&broker, &["topic", "create", &copy, "--partitions", "2"]);
        let to = to.to_str().unwrap();
        let imported = json(&broker, &["--json", "import", to, "--topic", &copy]);
        let messages_there = (index + 1) * 4 * 352;
        assert_eq!(
            (&imported["messages"], &imported["acknowledged"]),
            (&messages_there.into(), &messages_there.into())
        );
        for partition in ["0", "1"] {
            let published = messages(&broker, "t", partition);
            assert_eq!(published.len(), (index + 1) * 2 * 352);
            assert!(messages(&broker, &copy, partition) == published, "{format}/{partition}");
        }
        let message = fails(&broker, &["import", to, "--topic", "nowhere"]);
        assert!(message.contains("no topic \"nowhere\""), "{message}");
    }
}

#[test]
fn runs_that_are_killed_and_others_beside_them_leave_each_message_in_one_file() {
    let broker = broker_with_topic(2);
    let dir = TestDir::new("export");
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let args = ["--format", "jsonl", "--file-bytes", "40KB"];
    let start = || {
        let mut command = broker.cli();
        command.args(["export", "t", "--to"]).arg(dir.path()).args(args);
        Running::start(&mut command)
    };
    for round in 0..6 {
        for partition in ["0", "1"] {
            produce(&broker, &["--partition", partition], &numbers(round * 5_000, (round + 1) * 5_000));
        }
        let running: Vec<Running> = (0..3).map(|_| start()).collect();
        for mut running in running {
            std::thread::sleep(std::time::Duration::from_millis(random.u64(0..60)));
            // It may have ended.
            let _ = running.child.kill();
        }
    }
    // Two to the end, at the same time.
    let (mut one, mut other) = (start(), start());
    assert!(one.end().0.success() && other.end().0.success());
    for partition in ["0", "1"] {
        let of_partition = format!("-0000{partition}-00000001-");
        let files = files(dir.path());
        assert!(files.iter().all(|path| path.extension().is_some_and(|extension| extension == "jsonl")), "{files:?}");
        let of_partition: Vec<_> =
            files.iter().filter(|path| path.file_name().unwrap().to_string_lossy().contains(&of_partition)).collect();
        assert!(of_partition.len() > 20, "{}", of_partition.len());
        let exported: Vec<u8> = of_partition.into_iter().flat_map(|path| std::fs::read(path).unwrap()).collect();
        let args = ["consume", "t", "--partition", partition, "--exit-at-end", "--format", "json"];
        assert!(exported == ok(&broker, &args), "partition {partition}");
    }
}

#[test]
fn a_load_begins_where_it_is_told_and_ends_at_a_time_and_what_retention_took_is_told() {
    let broker = broker_with_topic(1);
    let dir = TestDir::new("export");
    for (time, from) in [(1_000, 0), (2_000, 100), (3_000, 200)] {
        let line = |number: u32| {
            format!(r#"{{"position":{number},"timestamp_ms":{},"key":null,"value":"{number}"}}"#, time * 86_400) + "\n"
        };
        let lines: String = (from..from + 100).map(line).collect();
        std::fs::write(dir.join("t-00c0ffee-00000-00000001-00000000000000000000.jsonl"), lines).unwrap();
        ok(&broker, &["import", dir.path().to_str().unwrap(), "--topic", "t"]);
    }
    let to = dir.join("to");
    let some = export(&broker, &to, &["--from", "@172800.000", "--until", "@259200.000", "--partition-by", "time"]);
    assert_eq!((&some["messages"], &some["files"]), (&100.into(), &1.into()));
    // Behind the files that are there, whatever --from says.
    let rest = export(&broker, &to, &["--partition-by", "time"]);
    assert_eq!((&rest["messages"], &rest["files"]), (&100.into(), &1.into()));
    let days: Vec<String> = files(&to)
        .iter()
        .map(|path| path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(days, ["date=1970-01-03", "date=1970-01-04"]);

    ok(
        &broker,
        &[
            "topic",
            "create",
            "u",
            "--segment-bytes",
            "1MiB",
            "--set-bytes-max",
            "64KiB",
            "--message-bytes-max",
            "64KiB",
        ],
    );
    let fill = || {
        let lines = vec![b'x'; 2_000].into_iter().chain([b'\n']).collect::<Vec<u8>>().repeat(2_000);
        run_with_input(broker.cli().args(["produce", "u"]), &lines, DEADLINE).success();
    };
    let export_u = || {
        let mut command = broker.cli();
        command.args(["--json", "export", "u", "--to"]).arg(&to);
        let finished = run(&mut command, DEADLINE).success();
        serde_json::from_slice::<serde_json::Value>(&finished.stdout).unwrap()
    };
    fill();
    assert_eq!(export_u()["messages"], 2_000);
    fill();
    let end = json(&broker, &["--json", "topic", "describe", "u"])["partitions"][0]["visible_end"].to_string();
    ok(&broker, &["topic", "trim", "u", "--partition", "0", "--to", &end, "--yes"]);
    let missed = export_u();
    assert!(missed["missed_bytes"].as_u64().unwrap() > 1_000_000, "{missed}");
    assert!(missed["messages"].as_u64().unwrap() < 2_000, "{missed}");
}

#[test]
fn of_two_runs_one_waits_for_the_other_and_says_so() {
    let broker = broker_with_topic(1);
    let dir = TestDir::new("export");
    produce(&broker, &[], &numbers(0, 5));
    let lock = File::create(dir.join(".corelane-export-t.lock")).unwrap();
    lock.lock().unwrap();
    let mut command = broker.cli();
    command.args(["export", "t", "--partition-by", "time", "--to"]).arg(dir.path());
    let mut running = Running::start(&mut command);
    let mut line = String::new();
    BufReader::new(running.child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("another run exports t"), "{line}");
    assert_eq!(files(dir.path()), [] as [PathBuf; 0]);
    drop(lock);
    assert!(running.end().0.success());
    assert_eq!(files(dir.path()).len(), 1);
}

#[test]
fn a_group_keeps_where_the_first_run_began() {
    let broker = broker_with_topic(1);
    let dir = TestDir::new("export");
    produce(&broker, &[], &numbers(0, 5));
    let to = dir.path().to_str().unwrap();
    let message = fails(&broker, &["export", "t", "--to", to, "--from", "latest"]);
    assert!(message.contains("--from latest needs --group"), "{message}");
    let args = ["--from", "latest", "--group", "g"];
    assert_eq!(export(&broker, dir.path(), &args)["messages"], 0);
    produce(&broker, &[], &numbers(5, 8));
    assert_eq!(export(&broker, dir.path(), &args)["messages"], 3);

    // A group whose members keep its positions themselves is refused before anything is written.
    let mut member = Running::start(broker.cli().args(["consume", "t", "--group", "of-others"]));
    assert_eq!(member.line(), "0\n");
    let other = TestDir::new("export");
    let message = fails(&broker, &["export", "t", "--to", other.path().to_str().unwrap(), "--group", "of-others"]);
    assert!(message.contains("group of-others has a member"), "{message}");
    assert_eq!(files(other.path()), [] as [PathBuf; 0]);
}

#[test]
fn from_says_where_the_first_run_begins_and_what_appears_later_is_exported_from_its_start() {
    let broker = broker_with_topic(1);
    for (index, from) in [&["--from", "latest", "--group", "g"][..], &["--from", "-1s"]].into_iter().enumerate() {
        let dir = TestDir::new("export");
        let args = [from, &["--format", "jsonl"]].concat();
        ok(&broker, &["topic", "delete", "t", "--yes"]);
        ok(&broker, &["topic", "create", "t", "--partitions", "2"]);
        produce(&broker, &["--partition", "0"], &numbers(0, 5));
        wait_until("a time ago to begin behind them", DEADLINE, || {
            export(&broker, &dir.join(fastrand::u64(..).to_string()), &["--from", "-1s"])["messages"] == 0
        });
        assert_eq!(export(&broker, dir.path(), &args)["messages"], 0, "{from:?}");

        produce(&broker, &["--partition", "1"], &numbers(0, 3));
        ok(&broker, &["topic", "add-partitions", "t", "--partitions", "3", "--yes"]);
        produce(&broker, &["--partition", "2"], &numbers(0, 7));
        // A time ago lies behind these then.
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        assert_eq!(export(&broker, dir.path(), &args)["messages"], 10, "{from:?}, round {index}");
        produce(&broker, &["--partition", "0"], &numbers(5, 6));
        assert_eq!(export(&broker, dir.path(), &args)["messages"], 1, "{from:?}");

        // Of a topic that was created again before its first file, too.
        let dir = TestDir::new("export");
        assert!(export(&broker, dir.path(), &args)["files"].as_u64().is_some());
        ok(&broker, &["topic", "delete", "t", "--yes"]);
        ok(&broker, &["topic", "create", "t"]);
        produce(&broker, &[], &numbers(0, 4));
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        assert_eq!(export(&broker, dir.path(), &args)["messages"], 4, "{from:?}");
        // Another beginning counts in a directory that was emptied.
        for path in files(dir.path()) {
            std::fs::remove_file(path).unwrap();
        }
        if index == 1 {
            assert_eq!(export(&broker, dir.path(), &["--format", "jsonl", "--from", "@1000"])["messages"], 4);
        }
    }
}

/// Copies a data directory while its broker is stopped.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

#[test]
fn a_log_that_was_restored_from_an_older_copy_is_not_gone_on_with() {
    let mut broker = broker_with_topic(1);
    let formats = ["parquet", "jsonl", "raw"];
    let (dir, backup) = (TestDir::new("export"), TestDir::new("backup"));
    produce(&broker, &[], &numbers(0, 100));
    broker.stop();
    copy(&broker.data_dir(), &backup.join("data"));
    broker.restart();
    produce(&broker, &["--compression", "zstd"], &numbers(1_000, 1_200));
    let to = |format: &str| dir.join(format);
    for format in formats {
        assert_eq!(export(&broker, &to(format), &["--format", format])["files"], 1);
    }
    broker.stop();
    std::fs::remove_dir_all(broker.data_dir()).unwrap();
    copy(&backup.join("data"), &broker.data_dir());
    broker.restart();
    let refused = |format: &str, told: &str| {
        let to = to(format);
        let args = ["--json", "export", "t", "--format", format, "--to", to.to_str().unwrap()];
        let finished = cli(&broker, &args);
        assert_eq!(finished.status.code(), Some(1), "{format}: {}", finished.stderr);
        assert!(finished.stderr.contains(told), "{format}: {}", finished.stderr);
        assert!(finished.stderr.contains("restored from an older copy"), "{format}: {}", finished.stderr);
        assert_eq!(files(&to).len(), 1, "{format}");
    };
    for format in formats {
        refused(format, "its log ends at");
    }
    produce(&broker, &[], &numbers(2_000, 4_000));
    for format in formats {
        refused(format, "is not what is in");
        let other = dir.join(format!("other-{format}"));
        assert!(export(&broker, &other, &["--format", format])["messages"].as_u64().unwrap() >= 2_100);
    }
}

#[test]
fn a_partition_that_is_refused_does_not_keep_the_others_from_being_exported() {
    let mut broker = Broker::start(BrokerOptions::new());
    let sizes = ["--segment-bytes", "64KiB", "--set-bytes-max", "32KiB", "--message-bytes-max", "32KiB"];
    ok(&broker, &[&["topic", "create", "t", "--partitions", "3"][..], &sizes].concat());
    for partition in ["0", "1", "2"] {
        produce(&broker, &["--partition", partition], &numbers(0, 8_000));
    }
    broker.stop();
    let of_refused = segments(&broker, 0);
    std::fs::remove_file(&of_refused[of_refused.len() / 2]).unwrap();
    broker.restart();
    let dir = TestDir::new("export");
    let finished = cli(&broker, &["--json", "export", "t", "--to", dir.path().to_str().unwrap(), "--group", "g"]);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("1 of 3 partitions was not exported to the end: t/0"), "{}", finished.stderr);
    let exported: serde_json::Value = serde_json::from_slice(&finished.stdout).unwrap();
    assert_eq!((&exported["messages"], files(dir.path()).len()), (&16_000.into(), 2), "{exported}");
}

#[test]
fn a_newest_file_that_was_cut_short_keeps_its_own_partition_only_and_is_made_again_once_it_is_gone() {
    let broker = broker_with_topic(2);
    for (format, bytes) in [("parquet", 100), ("jsonl", 5_000), ("raw", 0), ("jsonl", 0), ("raw", 5_001)] {
        let dir = TestDir::new("export");
        for partition in ["0", "1"] {
            produce(&broker, &["--partition", partition], &numbers(0, 300));
        }
        export(&broker, dir.path(), &["--format", format]);
        let cut = files(dir.path()).pop().unwrap();
        assert!(cut.to_str().unwrap().contains("-00001-"), "{}", cut.display());
        OpenOptions::new().write(true).open(&cut).unwrap().set_len(bytes).unwrap();
        produce(&broker, &["--partition", "0"], b"news\n");
        produce(&broker, &["--partition", "1"], b"news\n");
        let finished = cli(&broker, &["export", "t", "--format", format, "--to", dir.path().to_str().unwrap()]);
        assert_eq!(finished.status.code(), Some(1), "{format}: {}", finished.stderr);
        let told = "1 of 2 partitions was not exported to the end: t/1";
        assert!(finished.stderr.contains(told), "{format}: {}", finished.stderr);
        assert!(finished.stderr.contains("put it back from a copy"), "{format}: {}", finished.stderr);
        assert_eq!(files(dir.path()).len(), 3, "{format}: the other partition has gone on");
        std::fs::remove_file(cut).unwrap();
        let made_again = export(&broker, dir.path(), &["--format", format]);
        assert!(made_again["messages"].as_u64() > Some(300), "{format}: {made_again}");
    }
}

#[test]
fn days_may_be_links_to_where_there_is_more_room() {
    let broker = broker_with_topic(1);
    let (dir, elsewhere) = (TestDir::new("export"), TestDir::new("elsewhere"));
    for round in 0..3 {
        produce(&broker, &[], &numbers(round, round + 1));
        assert_eq!(export(&broker, dir.path(), &["--partition-by", "time"])["messages"], 1);
        for entry in std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap()) {
            let name = entry.file_name();
            if name.to_string_lossy().starts_with("date=") && !entry.path().is_symlink() {
                std::fs::rename(entry.path(), elsewhere.join(&name)).unwrap();
                std::os::unix::fs::symlink(elsewhere.join(&name), entry.path()).unwrap();
            }
        }
    }
    assert_eq!(files(dir.path()).len(), 3);
}

#[test]
fn what_is_damaged_or_lacks_what_a_message_has_is_not_imported() {
    let broker = broker_with_topic(1);
    let dir = TestDir::new("export");
    ok(&broker, &["topic", "create", "copy"]);
    produce(&broker, &["--key", "k"], &numbers(0, 3_000));
    export(&broker, dir.path(), &[]);
    let path = &files(dir.path())[0];
    let whole = std::fs::read(path).unwrap();
    let to = dir.path().to_str().unwrap();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..10 {
        let mut damaged = whole.clone();
        // The rows make up more than half of it; the metadata behind them stand for themselves.
        let at = random.usize(4..whole.len() / 2);
        damaged[at] ^= 1 << random.u8(0..8);
        std::fs::write(path, &damaged).unwrap();
        let message = cli(&broker, &["import", to, "--topic", "copy"]);
        assert_eq!(message.status.code(), Some(1), "byte {at}");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(message.stderr.contains(name) && message.stderr.contains("checksum"), "{}", message.stderr);
    }
    std::fs::remove_file(path).unwrap();
    let line = r#"{"position":0,"timestamp_ms":1,"key":"k","val":"v"}"#;
    std::fs::write(dir.join("t-00c0ffee-00000-00000001-00000000000000000000.jsonl"), line).unwrap();
    let message = cli(&broker, &["import", to, "--topic", "copy", "--topic-id", "00c0ffee"]);
    assert_eq!(message.status.code(), Some(1));
    assert!(message.stderr.contains("line 1: it has neither value nor value_base64"), "{}", message.stderr);
    for format in ["raw", "jsonl"] {
        std::fs::write(dir.join(format!("t-00c0ffee-00000-00000001-00000000000000000000.{format}")), b"").unwrap();
        let message = cli(&broker, &["import", to, "--topic", "copy", "--topic-id", "00c0ffee", "--format", format]);
        assert_eq!(message.status.code(), Some(1));
        assert!(message.stderr.contains("it is empty"), "{}", message.stderr);
    }
    assert_eq!(ok(&broker, &["consume", "copy", "--exit-at-end"]), b"");
}

#[test]
fn an_import_ends_soon_after_a_signal_and_at_once_after_the_second_one() {
    let mut broker = broker_with_topic(1);
    let dir = TestDir::new("export");
    let line = "{\"position\":0,\"timestamp_ms\":1,\"key\":null,\"value\":\"v\"}\n";
    let path = dir.join("t-00c0ffee-00000-00000001-00000000000000000000.jsonl");
    std::fs::write(path, line.repeat(2_000_000)).unwrap();
    let start = |broker: &Broker| {
        let to = dir.path().to_str().unwrap();
        Running::start(broker.cli().args(["import", to, "--topic", "t"]))
    };
    for signals in [1, 2] {
        let end = || json(&broker, &["--json", "topic", "describe", "t"])["partitions"][0]["visible_end"].as_u64();
        let before = end();
        let mut importing = start(&broker);
        wait_until("the import to publish", DEADLINE, || end() > before);
        broker.pause();
        let signalled = std::time::Instant::now();
        importing.signal(Signal::INT);
        let mut expected = 130;
        if signals == 2 {
            std::thread::sleep(std::time::Duration::from_millis(300));
            // The first signal is enough where all that was published had been acknowledged.
            if importing.child.try_wait().unwrap().is_none() {
                importing.signal(Signal::TERM);
                expected = 143;
            }
        }
        let (status, stderr) = importing.end();
        broker.resume();
        assert_eq!(status.code(), Some(expected), "{stderr}");
        let limit = if signals == 1 { 20 } else { 8 };
        assert!(signalled.elapsed().as_secs() < limit, "{signals}: {:?}", signalled.elapsed());
    }
}

/// Starts an export, and stops it in the middle of its first file, of a topic that is large enough for that.
fn stopped_in_the_middle(broker: &Broker, to: &Path) -> Running {
    wait_for("an export to be caught while it writes", DEADLINE, || {
        let mut command = broker.cli();
        let mut running = Running::start(command.args(["--json", "export", "t", "--format", "jsonl", "--to"]).arg(to));
        while running.child.try_wait().unwrap().is_none() {
            let entries = std::fs::read_dir(to).into_iter().flatten().flatten();
            let is_written = |entry: &DirEntry| {
                let is_temporary = entry.path().extension().is_some_and(|extension| extension == "tmp");
                is_temporary && entry.metadata().is_ok_and(|metadata| metadata.len() > 1 << 20)
            };
            if entries.into_iter().any(|entry| is_written(&entry)) {
                running.signal(Signal::STOP);
                // It may have been faster.
                if files(to).is_empty() {
                    return Some(running);
                }
                running.signal(Signal::CONT);
            }
        }
        for path in files(to) {
            std::fs::remove_file(path).unwrap();
        }
        None
    })
}

#[test]
fn what_was_read_is_kept_when_retention_is_faster_and_all_that_is_missing_is_told() {
    let broker = Broker::start(BrokerOptions::new());
    ok(&broker, &["topic", "create", "t", "--partitions", "2", "--segment-bytes", "4MiB"]);
    // More than an export fetches ahead.
    let line = vec![b'x'; 60_000].into_iter().chain([b'\n']).collect::<Vec<u8>>();
    produce(&broker, &["--partition", "0"], &line.repeat(800));
    produce(&broker, &["--partition", "1"], &line.repeat(200));
    let dir = TestDir::new("export");
    let mut running = stopped_in_the_middle(&broker, dir.path());
    let mut ends = 0;
    for partition in json(&broker, &["--json", "topic", "describe", "t"])["partitions"].as_array().unwrap() {
        let (number, end) = (partition["partition"].to_string(), partition["visible_end"].to_string());
        ok(&broker, &["topic", "trim", "t", "--partition", &number, "--to", &end, "--yes"]);
        ends += partition["visible_end"].as_u64().unwrap();
    }
    running.signal(Signal::CONT);
    let summary: serde_json::Value = serde_json::from_str(&running.line()).unwrap();
    let (status, stderr) = running.end();
    assert!(status.success(), "{stderr}");
    assert_eq!(stderr.matches("retention has taken").count(), 2, "{stderr}");
    assert_eq!(summary["bytes"].as_u64().unwrap() + summary["missed_bytes"].as_u64().unwrap(), ends, "{summary}");
    let files = files(dir.path());
    assert_eq!(files.len(), 3, "the beginning and the end of one partition, the end of the other: {files:?}");
    assert_eq!(export(&broker, dir.path(), &["--format", "jsonl"])["missed_bytes"], 0);
}

#[test]
fn raw_files_have_whole_sets_only_whatever_is_damaged() {
    let mut broker = Broker::start(BrokerOptions::new());
    let sizes = ["--segment-bytes", "64KiB", "--set-bytes-max", "32KiB", "--message-bytes-max", "32KiB"];
    ok(&broker, &[&["topic", "create", "t"][..], &sizes].concat());
    ok(&broker, &["topic", "create", "copy"]);
    produce(&broker, &[], &numbers(0, 8_000));
    broker.stop();
    let file = OpenOptions::new().write(true).open(&segments(&broker, 0)[0]).unwrap();
    file.write_all_at(&[0xff; 8], 20_000).unwrap();
    broker.restart();
    let dir = TestDir::new("export");
    let to = dir.path().to_str().unwrap();
    let finished = cli(&broker, &["--json", "export", "t", "--format", "raw", "--to", to]);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let exported: serde_json::Value = serde_json::from_slice(&finished.stdout).unwrap();
    // The damaged one, and what its set has besides.
    assert!(exported["damaged"].as_u64().unwrap() > 10, "{exported}");
    let imported = json(&broker, &["--json", "import", to, "--topic", "copy"]);
    assert_eq!(imported["acknowledged"], exported["messages"], "{exported}");
    let copied = String::from_utf8(ok(&broker, &["consume", "copy", "--exit-at-end"])).unwrap();
    let copied: Vec<u32> = copied.lines().map(|line| line.parse().unwrap()).collect();
    assert!(copied.len() > 5_000 && copied.is_sorted_by(|one, other| one < other) && copied.last() == Some(&7_999));
}

#[test]
fn an_import_takes_one_topic_of_one_life_in_one_format_and_each_key_to_where_it_belongs() {
    let broker = broker_with_topic(4);
    let keyed: Vec<u8> = (0..40).flat_map(|number| format!("k{number}:v{number}\n").into_bytes()).collect();
    produce(&broker, &["--key-separator", ":", "--compression", "zstd"], &keyed);
    let dir = TestDir::new("export");
    let to = dir.path().to_str().unwrap();
    assert_eq!(export(&broker, dir.path(), &["--format", "jsonl"])["messages"], 40);
    let places = |topic: &str| -> BTreeSet<String> {
        let printed = String::from_utf8(ok(&broker, &["consume", topic, "--exit-at-end", "--format", r"%p %k\n"]));
        printed.unwrap().lines().map(str::to_owned).collect()
    };
    for (copy, partitions) in [("same", "4"), ("more", "7"), ("fewer", "3"), ("kept", "7")] {
        ok(&broker, &["topic", "create", copy, "--partitions", partitions]);
        let args = ["import", to, "--topic", copy, "--keep-partitions"];
        ok(&broker, if copy == "kept" { &args } else { &args[..4] });
    }
    assert_eq!(places("same"), places("t"));
    assert_eq!(places("kept"), places("t"));
    for copy in ["more", "fewer"] {
        run_with_input(broker.cli().args(["produce", copy, "--key-separator", ":"]), &keyed, DEADLINE).success();
        assert_eq!(places(copy).len(), 40, "what is published later goes to the same partitions");
    }

    // Raw sets cannot be parted, so nothing of them goes where there is no room for all.
    let raw = TestDir::new("export");
    let from = raw.path().to_str().unwrap();
    assert_eq!(export(&broker, raw.path(), &["--format", "raw"])["messages"], 40);
    ok(&broker, &["topic", "create", "none", "--partitions", "2"]);
    for args in [&["import", from, "--topic", "none"][..], &["import", from, "--topic", "none", "--keep-partitions"]] {
        let message = fails(&broker, args);
        assert!(message.contains("nothing was published"), "{message}");
    }
    assert!(places("none").is_empty());
    let message = fails(&broker, &["import", from, "--topic", "more"]);
    assert!(message.contains("more has 7 partitions, what was exported had 4"), "{message}");

    export(&broker, dir.path(), &["--format", "raw"]);
    let refused = |args: &[&str], told: &[&str]| {
        let message = fails(&broker, &[&["import", to, "--topic", "none"][..], args].concat());
        assert!(told.iter().all(|told| message.contains(told)), "{message}");
    };
    refused(&[], &["in several formats: jsonl, raw", "--format"]);
    let mut of_other = broker.cli();
    of_other.args(["export", "same", "--format", "jsonl", "--to", to]);
    run(&mut of_other, DEADLINE).success();
    refused(&["--format", "jsonl"], &["of several topics: same, t", "--source-topic"]);
    ok(&broker, &["topic", "delete", "t", "--yes"]);
    ok(&broker, &["topic", "create", "t"]);
    produce(&broker, &[], &numbers(0, 5));
    export(&broker, dir.path(), &["--format", "jsonl"]);
    let of_t = ["--format", "jsonl", "--source-topic", "t"];
    refused(&of_t, &["one created after the other", "--topic-id"]);
    let id = json(&broker, &["--json", "topic", "describe", "t"])["topic_id"].as_str().unwrap()[..8].to_owned();
    ok(&broker, &[&["import", to, "--topic", "none", "--topic-id", &id][..], &of_t].concat());
    assert_eq!(ok(&broker, &["consume", "none", "--exit-at-end"]), numbers(0, 5));
}

#[test]
fn of_a_topic_that_was_created_again_all_is_exported() {
    let broker = broker_with_topic(1);
    for format in ["parquet", "jsonl", "raw"] {
        let dir = TestDir::new("export");
        let export = || export(&broker, dir.path(), &["--format", format]);
        produce(&broker, &[], &numbers(0, 5));
        assert!(export()["messages"].as_u64().unwrap() > 0);
        ok(&broker, &["topic", "delete", "t", "--yes"]);
        ok(&broker, &["topic", "create", "t"]);
        produce(&broker, &[], &numbers(100, 120));
        assert_eq!((export()["messages"].clone(), export()["files"].clone()), (20.into(), 0.into()), "{format}");
    }
}

/// A Python that reads Parquet, and by which module.
fn python() -> Option<(String, &'static str)> {
    let python = std::env::var("CORELANE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = |module: &&str| {
        let check = Command::new(&python).args(["-c", &format!("import {module}")]).output();
        check.is_ok_and(|check| check.status.success())
    };
    let module = ["duckdb", "pyarrow.parquet"].into_iter().find(has)?;
    Some((python, module))
}

const WITH_DUCKDB: &str = "
import duckdb, json, sys
rows = duckdb.sql(f\"select topic, partition, position, epoch_ms(timestamp) as ms, key, headers, value from \
read_parquet('{sys.argv[1]}/*.parquet') order by partition, position\").fetchall()
hexed = lambda b: None if b is None else bytes(b).hex()
for t, p, i, ms, k, hs, v in rows:
    print(json.dumps([t, p, i, ms, hexed(k), [[h['name'], hexed(h['value'])] for h in hs], hexed(v)]))
";
const WITH_PYARROW: &str = "
import json, os, sys
import pyarrow.parquet as parquet
hexed = lambda b: None if b is None else b.hex()
for name in sorted(name for name in os.listdir(sys.argv[1]) if name.endswith('.parquet')):
    for r in parquet.read_table(os.path.join(sys.argv[1], name)).to_pylist():
        ms = round(r['timestamp'].timestamp() * 1000)
        headers = [[h['name'], hexed(h['value'])] for h in r['headers']]
        print(json.dumps([r['topic'], r['partition'], r['position'], ms, hexed(r['key']), headers, hexed(r['value'])]))
";

#[test]
fn parquet_files_are_read_by_other_programs_as_they_are() {
    let Some((python, module)) = python() else {
        skip("parquet_files_are_read_by_other_programs_as_they_are", "no Python with DuckDB or PyArrow");
        return;
    };
    let broker = broker_with_topic(2);
    let dir = TestDir::new("export");
    publish_all_kinds(&broker);
    export(&broker, dir.path(), &[]);
    let program = if module == "duckdb" { WITH_DUCKDB } else { WITH_PYARROW };
    let read = run(Command::new(python).args(["-c", program]).arg(dir.path()), DEADLINE).success();
    let rows: Vec<serde_json::Value> = read.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let hexed = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let mut expected = Vec::new();
    for partition in ["0", "1"] {
        let args = ["consume", "t", "--partition", partition, "--exit-at-end", "--format", "json"];
        for line in String::from_utf8(ok(&broker, &args)).unwrap().lines() {
            let message: serde_json::Value = serde_json::from_str(line).unwrap();
            let bytes = |of: &serde_json::Value, name: &str| match (&of[name], &of[format!("{name}_base64")]) {
                (serde_json::Value::String(text), _) => serde_json::json!(hexed(text.as_bytes())),
                (_, serde_json::Value::String(encoded)) if encoded == "/wD+" => serde_json::json!("ff00fe"),
                _ => serde_json::Value::Null,
            };
            let headers: Vec<_> = message["headers"]
                .as_array()
                .unwrap()
                .iter()
                .map(|header| serde_json::json!([header["name"], bytes(header, "value")]))
                .collect();
            expected.push(serde_json::json!([
                message["topic"],
                message["partition"],
                message["position"],
                message["timestamp_ms"],
                bytes(&message, "key"),
                headers,
                bytes(&message, "value"),
            ]));
        }
    }
    assert_eq!(rows.len(), 2 * 352);
    assert!(rows == expected, "{:?}", rows.iter().zip(&expected).find(|(row, expected)| row != expected));
}
