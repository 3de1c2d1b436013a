//! The pure parts of what a message passes through, for counting instructions: `instructions PART MESSAGES` does one part
//! for so many messages of 200 bytes and nothing else worth mentioning. `make bench` runs it under valgrind.

use std::hint::black_box;
use std::pin::pin;

use corelane_log::blocking::{self, BlockingEnv};
use corelane_log::{Partition, PartitionOptions, Shard};
use corelane_proto::ids::TopicId;
use corelane_proto::message::{Message, MessageParts};
use corelane_proto::set::{Reserved, SetBuilder, SetLimits, check_set};
use futures_util::future::{Either, select};

const SET_MESSAGES: usize = 50;
const VALUE: [u8; 200] = [b'x'; 200];
const LIMITS: SetLimits = SetLimits {
    message_bytes_max: 1 << 20,
    set_bytes_max: 8 << 20,
    uncompressed_bytes_max: 1 << 20,
    reserved: Reserved::Refuse,
};

fn set(messages: usize) -> bytes::Bytes {
    let mut builder = SetBuilder::new();
    for index in 0..messages {
        let message = MessageParts { value: Some(&VALUE), timestamp_ms: index as i64, ..MessageParts::default() };
        builder.push(&message).expect("a small message is no larger than allowed");
    }
    builder.finish()
}

fn encode(sets: usize) {
    for _ in 0..sets {
        black_box(set(SET_MESSAGES));
    }
}

fn check(sets: usize) {
    let set = set(SET_MESSAGES);
    for _ in 0..sets {
        black_box(check_set(black_box(&set), &LIMITS)).expect("the set is good");
    }
}

fn parse(sets: usize) {
    let set = set(SET_MESSAGES);
    for _ in 0..sets {
        let mut rest = black_box(&set[..]);
        while !rest.is_empty() {
            let message = Message::view(rest).expect("the set is good");
            black_box(message.value());
            rest = &rest[message.length() as usize..];
        }
    }
}

/// One message a set: landing, copy, check, append, and the driver's writes into a plain file.
fn commit(sets: usize) {
    let set = set(1);
    let directory = tempfile::tempdir().expect("a directory for the log");
    let shard = Shard::new(BlockingEnv::default());
    let options = PartitionOptions::new("instructions".parse().expect("a name"), TopicId([1; 16]), 0);
    let (partition, driver) = blocking::run(Partition::create(&shard, directory.path(), &options))
        .expect("a partition in an empty directory");
    let appending = async {
        for _ in 0..sets {
            let mut landing = partition.landing(set.len()).await.expect("there is room");
            landing.copy_from(&set);
            black_box(partition.append(landing, None).await.expect("the set is good"));
        }
    };
    match blocking::run(select(pin!(appending), pin!(driver.run()))) {
        Either::Left(_) => {}
        Either::Right(_) => panic!("the driver runs as long as the partition"),
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (part, messages) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let messages: usize = messages.parse().expect("instructions PART MESSAGES");
    match part.as_str() {
        "encode" => encode(messages / SET_MESSAGES),
        "check" => check(messages / SET_MESSAGES),
        "parse" => parse(messages / SET_MESSAGES),
        "commit" => commit(messages),
        other => panic!("there is no part {other:?}: encode, check, parse, commit"),
    }
}
