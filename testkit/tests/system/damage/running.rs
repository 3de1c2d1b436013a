//! Damage that comes while the broker runs: whoever reads meets it, is led around it, and everybody is told.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use corelane_client::{Record, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, TestDir};

use super::fixture::{Stored, healthy, lay, stored};
use super::{TOPIC, kinds, metric, read_partition, verify};
use crate::support::{connect, create, detail, soon};

/// A broker on the healthy directory that has read nothing of it yet but its end.
fn started(dir: &TestDir) -> (Broker, PathBuf) {
    let data = dir.join("data");
    lay(&healthy(), &data);
    (Broker::start(BrokerOptions::new().data(&data).shards(2)), data)
}

fn write(data: &Path, message: &Stored, at: usize, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(data.join(&message.path)).expect("a segment");
    file.write_all_at(bytes, (message.offset + at) as u64).expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_a_running_broker_is_led_around_bad_bytes_and_gets_all_that_is_good() {
    let dir = TestDir::new("running");
    let (broker, data) = started(&dir);
    let tree = healthy();
    let messages = stored(&tree, 0);
    // A bit of a value, a length, a header of zeros, in three closed segments; a value in the active one.
    write(&data, &messages[1], 35, &[!tree[&messages[1].path][messages[1].offset + 35]]);
    write(&data, &messages[6], 0, &[0; 24]);
    write(&data, &messages[8], 1, &[0x7f]);
    write(&data, &messages[12], 35, &[!tree[&messages[12].path][messages[12].offset + 35]]);
    let lost = [1, 6, 7, 8, 9, 10, 12];
    let client = connect(&broker).await;
    let expected: Vec<_> = messages
        .into_iter()
        .enumerate()
        .filter(|(number, _)| !lost.contains(number))
        .flat_map(|(_, stored)| stored.got)
        .collect();
    let (got, stats) = read_partition(&client, 0, Start::Earliest).await;
    assert_eq!(got, expected);
    assert_eq!(stats.bad_messages, 4, "one for each place");
    assert_eq!(detail(&client, TOPIC).await.bad_messages, 4);
    assert_eq!(metric(&broker, "corelane_bad_messages_total"), 4);
    assert_eq!(broker.log().matches("a reader met a bad message at").count(), 4);
    // The offline look says the same, beside the broker.
    let (status, report) = verify(&data);
    assert_eq!((status, &report["broker_runs"]), (1, &true.into()), "{report}");
    assert_eq!(report["partitions"][0]["bad_messages"], 4, "{report}");
    assert!(kinds(&report).contains("bad_message") && kinds(&report).contains("damaged_bytes"), "{report}");
    // New messages come and are read behind it all.
    let producer = client.producer().build().expect("a producer");
    let sent = producer.send(Record::to(TOPIC).partition(0).value(b"new")).await.expect("taken");
    soon("an acknowledgement", sent).await.expect("acknowledged");
    assert_eq!(read_partition(&client, 0, Start::Earliest).await.0.last().expect("messages").1, "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_goes_or_shrinks_under_a_running_broker_is_named_and_the_others_are_served() {
    for is_removed in [true, false] {
        let dir = TestDir::new("shrunk");
        let (broker, data) = started(&dir);
        let messages = stored(&healthy(), 0);
        let (path, behind) = (messages[5].path.clone(), messages[8].got[0].0);
        if is_removed {
            fs::remove_file(data.join(&path)).expect("removed");
        } else {
            let file = fs::OpenOptions::new().write(true).open(data.join(&path)).expect("a segment");
            file.set_len(40).expect("shortened");
        }
        let client = connect(&broker).await;
        let builder = client.consumer().partition(TOPIC, 0).start(Start::Earliest).until_end(true);
        let mut consumer = soon("the consumer to be built", builder.build()).await.expect("a consumer");
        let mut before = Vec::new();
        let error = loop {
            match soon("a message or an error", consumer.next()).await.expect("the end cannot be reached") {
                Ok(message) => before.push(message.position()),
                Err(error) => break error.to_string(),
            }
        };
        let expected: Vec<u64> = messages[..5].iter().map(|stored| stored.got[0].0).collect();
        assert_eq!(before, expected, "what lies before it is served");
        let name = path.rsplit('/').next().expect("a name");
        assert!(error.contains(name), "the reader is told which file: {error}");
        drop(consumer);
        assert!(broker.log().contains(name), "the log names it");
        assert!(metric(&broker, "corelane_unreadable_segments_total") >= 1);
        // Whoever starts behind it is served.
        let expected: Vec<_> = messages[8..].iter().flat_map(|stored| stored.got.clone()).collect();
        assert_eq!(read_partition(&client, 0, Start::Position(behind)).await.0, expected);
        let producer = client.producer().delivery_timeout(Duration::from_mins(1)).build().expect("a producer");
        let sent = producer.send(Record::to(TOPIC).partition(0).value(b"new")).await.expect("taken");
        soon("an acknowledgement", sent).await.expect("publishing goes on");
        assert_eq!(verify(&data).0, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_more_is_acknowledged_into_a_newest_segment_that_was_removed_or_cut_short() {
    for is_removed in [true, false] {
        let dir = TestDir::new("newest");
        let (broker, data) = started(&dir);
        let client = connect(&broker).await;
        let producer = client.producer().delivery_timeout(Duration::from_secs(2)).build().expect("a producer");
        let patient = client.producer().delivery_timeout(Duration::from_mins(1)).build().expect("a producer");
        create(&client, "newest", 1, TopicSettings::new()).await;
        for _ in 0..3 {
            let sent = patient.send(Record::to("newest").partition(0).value(&vec![7; 50_000])).await.expect("taken");
            soon("an acknowledgement", sent).await.expect("acknowledged");
        }
        let topics = fs::read_dir(&data).expect("a directory").map(|entry| entry.expect("an entry").path());
        let is_ours =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("newest~"));
        let name = "00000000000000000000-00000001.log";
        let path = topics.into_iter().find(is_ours).expect("the topic's directory").join("0").join(name);
        if is_removed {
            fs::remove_file(&path).expect("removed");
        } else {
            let file = fs::OpenOptions::new().write(true).open(&path).expect("a segment");
            file.set_len(40).expect("shortened");
        }
        // The look comes with the checkpoint, within a second or two of a change.
        let refused = async {
            loop {
                let sent = producer.send(Record::to("newest").partition(0).value(b"new")).await.expect("taken");
                // Tried again until its time is over; a slow machine may let it run out for other reasons.
                if let Err(error) = sent.await
                    && error.to_string().contains(name)
                {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        soon("a refusal that names the file", refused).await;
        assert!(broker.log().contains(&format!("keeping {name} failed")), "the log names it");
        assert_eq!(metric(&broker, "corelane_partitions_closed"), 1);
        let sent = patient.send(Record::to(TOPIC).partition(0).value(b"beside")).await.expect("taken");
        soon("an acknowledgement", sent).await.expect("the partition beside it goes on");
    }
}
