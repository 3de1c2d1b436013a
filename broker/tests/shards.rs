//! Shards over real sockets: who serves a connection, what happens to what does not belong there, the order of answers,
//! back-pressure, leaving, stopping.

mod support;

use std::io::{Read, Write};

use corelane_broker::messages::ToShard;
use corelane_proto::frame::{Method, Status, encode_request};
use corelane_proto::pb;
use corelane_testkit::wait_until;
use support::{Bench, Wire, fetch, hello, publish, set_of};

#[test]
fn what_is_published_is_fetched_byte_for_byte() {
    let bench = Bench::start(1);
    let mut wire = Wire::greet(bench.address(), 0);
    let mut log = Vec::new();
    for sequence in 0..50 {
        let set = set_of(&(0..=sequence).map(|number| vec![number as u8; 37 * number as usize]).collect::<Vec<_>>());
        let answered = wire.call(Method::Publish, &publish(0, sequence, pb::Acks::Durable), &set);
        let published: pb::PublishResponse = answered.ok();
        assert_eq!(published.first_id, log.len() as u64);
        log.extend_from_slice(&set);
        assert_eq!(published.next_id, log.len() as u64);
        assert!(published.durable_end >= published.next_id);
    }
    let mut fetched = Vec::new();
    while fetched.len() < log.len() {
        let answered = wire.call(Method::Fetch, &fetch(0, fetched.len() as u64, 1000), &[]);
        let response: pb::FetchResponse = answered.ok();
        assert_eq!(response.begin, fetched.len() as u64);
        assert!(!answered.payload.is_empty());
        fetched.extend_from_slice(&answered.payload);
    }
    assert!(fetched == log);
    assert!(bench.stop());
}

#[test]
fn a_connection_is_served_by_the_shard_that_its_hello_names() {
    let bench = Bench::start(3);
    for round in 0..12 {
        let shard = round % 3;
        let mut wire = Wire::greet(bench.address(), shard);
        let answered = wire.call(Method::Publish, &publish(shard, 0, pb::Acks::Durable), &set_of(&["x"]));
        answered.ok::<pb::PublishResponse>();
        let elsewhere = (shard + 1) % 3;
        let refused = wire.call(Method::Publish, &publish(elsewhere, 0, pb::Acks::Durable), &set_of(&["x"]));
        assert_eq!(refused.status, Status::NotHere);
        assert_eq!(refused.error().shard, Some(elsewhere));
    }
    assert!(bench.stop());
}

#[test]
fn a_hello_that_cannot_be_served_is_told_why() {
    let bench = Bench::start(1);
    let status = |hello: pb::HelloRequest| Wire::open(bench.address()).call(Method::Hello, &hello, &[]).status;
    assert_eq!(status(hello(Some(1))), Status::NotHere);
    assert_eq!(status(pb::HelloRequest { broker_id: Some(2), ..hello(None) }), Status::NotHere);
    assert_eq!(status(pb::HelloRequest { cluster_id: Some("other".to_owned()), ..hello(None) }), Status::NotHere);
    assert_eq!(status(pb::HelloRequest { protocol_version: 2, ..hello(None) }), Status::UnsupportedVersion);
    assert_eq!(status(pb::HelloRequest { session: vec![1; 15], ..hello(None) }), Status::InvalidRequest);
    assert_eq!(status(hello(None)), Status::Ok);
}

#[test]
fn what_does_not_speak_the_protocol_is_closed() {
    let bench = Bench::start(1);
    let answer_to = |bytes: &[u8]| {
        let mut wire = Wire::open(bench.address());
        wire.stream.write_all(bytes).expect("sent");
        let mut answer = Vec::new();
        // The broker may reset what it did not read.
        let _ = wire.stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    };
    let http = answer_to(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = http.split_once("\r\n\r\n").expect("an HTTP answer");
    assert!(head.starts_with("HTTP/1.1 400"));
    assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
    assert_eq!(answer_to(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and more"), "");
    assert_eq!(answer_to(&[0xff; 64]), "");
    let mut wire = Wire::open(bench.address());
    wire.send(Method::Metadata, &pb::MetadataRequest::default(), &[]);
    assert!(wire.is_closed(), "something else came before Hello");
    let mut wire = Wire::greet(bench.address(), 0);
    wire.stream.write_all(&[0xff; 64]).expect("sent");
    assert!(wire.is_closed(), "a frame that cannot be right");
}

#[test]
fn refused_payloads_are_read_past_and_order_is_kept() {
    let bench = Bench::start(1);
    let mut wire = Wire::greet(bench.address(), 0);
    let set = set_of(&[vec![1; 100_000]]);
    let mut broken = set.clone();
    broken[50_000] ^= 1;
    let sent = [
        wire.send(Method::Publish, &publish(0, 1, pb::Acks::Durable), &set),
        wire.send(Method::Publish, &publish(0, 0, pb::Acks::Durable), &broken),
        wire.send(Method::Publish, &publish(0, 1, pb::Acks::Durable), &set),
        wire.send(Method::Publish, &publish(9, 0, pb::Acks::Durable), &set),
        wire.send(Method::Metadata, &pb::MetadataRequest::default(), b"a payload"),
        wire.send_unknown(),
        wire.send(Method::Metadata, &pb::MetadataRequest::default(), &[]),
    ];
    let mut answers: Vec<_> = sent.iter().map(|_| wire.receive().expect("an answer")).collect();
    answers.sort_by_key(|answered| answered.correlation);
    let statuses: Vec<_> = answers.iter().map(|answered| answered.status).collect();
    use Status::{InvalidMessage, InvalidRequest, Ok, OutOfSequence, UnknownPartition, Unsupported};
    assert_eq!(statuses, [OutOfSequence, InvalidMessage, Ok, UnknownPartition, InvalidRequest, Unsupported, Ok]);
    assert_eq!(answers[0].error().sequence, Some(0));
    assert_eq!(answers[1].error().index, Some(0));
    assert_eq!(answers[2].ok::<pb::PublishResponse>().first_id, 0);
}

#[test]
fn many_small_requests_in_one_packet_are_all_answered() {
    let bench = Bench::start(1);
    let mut wire = Wire::greet(bench.address(), 0);
    let mut reader = wire.share();
    let count = 20_000;
    let counting = std::thread::spawn(move || {
        let mut next = 0;
        for _ in 0..count {
            let published: pb::PublishResponse = reader.receive().expect("an answer").ok();
            assert_eq!(published.first_id, next, "answers of one partition come in order");
            next = published.next_id;
        }
    });
    for sequence in 0..count {
        wire.send(Method::Publish, &publish(0, sequence, pb::Acks::Durable), &set_of(&[format!("{sequence}")]));
    }
    counting.join().expect("all are answered, in order");
    assert!(bench.stop());
}

#[test]
fn requests_may_arrive_in_any_pieces() {
    let bench = Bench::start(1);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let wire = Wire::greet(bench.address(), 0);
    let (mut stream, mut log, mut publishes, mut metadata) = (bytes::BytesMut::new(), Vec::new(), 0, 0);
    for correlation in 0..300 {
        if random.u8(..) < 30 {
            // Request messages far larger than the receive buffer, too.
            let topics = (0..random.usize(..500)).map(|_| "t".repeat(random.usize(..100))).collect();
            let request = pb::MetadataRequest { topics, ..Default::default() };
            encode_request(&mut stream, Method::Metadata, correlation, &request, 0);
            metadata += 1;
        } else {
            let bytes_max = [10, 1_000, 20_000, 300_000][random.usize(..4)];
            let values: Vec<_> =
                (0..random.usize(1..4)).map(|_| vec![random.u8(..); random.usize(..bytes_max)]).collect();
            let set = set_of(&values);
            let request = publish(0, publishes, pb::Acks::Durable);
            encode_request(&mut stream, Method::Publish, correlation, &request, set.len());
            stream.extend_from_slice(&set);
            log.extend_from_slice(&set);
            publishes += 1;
        }
    }
    let mut reader = wire.share();
    let answers = std::thread::spawn(move || {
        let answers = (0..300).map(|_| reader.receive().expect("an answer").status);
        answers.filter(|status| *status == Status::Ok).count()
    });
    let mut left = &stream[..];
    while !left.is_empty() {
        let longest = [1, 20, 2_000, 100_000][random.usize(..4)];
        let (piece, rest) = left.split_at(random.usize(1..=longest).min(left.len()));
        (&wire.stream).write_all(piece).expect("sent");
        left = rest;
    }
    assert_eq!(answers.join().expect("all are answered"), 300, "{publishes} publishes, {metadata} others");
    assert!(read_all(&bench, log.len(), &mut random) == log);
    assert!(bench.stop());
}

/// Reads the log of partition 0 from its start, with several fetches of any size in flight.
fn read_all(bench: &Bench, log_bytes: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut wire = Wire::greet(bench.address(), 0);
    let (mut log, mut asked) = (Vec::new(), 0);
    while log.len() < log_bytes {
        while asked < log_bytes && asked < log.len() + 3_000_000 {
            let max_bytes = random.usize(1..2_000_000).min(log_bytes - asked);
            wire.send(
                Method::Fetch,
                &pb::FetchRequest { max_bytes: max_bytes as u32, ..fetch(0, asked as u64, 0) },
                &[],
            );
            asked += max_bytes;
        }
        let answered = wire.receive().expect("an answer");
        assert_eq!(answered.ok::<pb::FetchResponse>().begin, log.len() as u64);
        log.extend_from_slice(&answered.payload);
    }
    log
}

#[test]
fn what_left_the_memory_is_read_from_the_files() {
    let bench = Bench::start(1);
    let mut random = fastrand::Rng::with_seed(7);
    let mut producer = Wire::greet(bench.address(), 0);
    let mut log = Vec::new();
    // Three times the arena.
    for sequence in 0..100 {
        let set = set_of(&[vec![sequence as u8; random.usize(900_000..1_000_000)]]);
        producer.call(Method::Publish, &publish(0, sequence, pb::Acks::Received), &set).ok::<pb::PublishResponse>();
        log.extend_from_slice(&set);
    }
    producer.call(Method::Publish, &publish(0, 100, pb::Acks::Durable), &set_of(&["last"])).ok::<pb::PublishResponse>();
    let readers: Vec<_> = (0..3).map(|_| read_all(&bench, log.len(), &mut random)).collect();
    assert!(readers.iter().all(|read| *read == log));
    assert!(bench.stop());
}

#[test]
fn connections_beyond_the_limit_are_closed_and_the_others_served() {
    let bench = Bench::start(1);
    let mut served: Vec<_> = (0..support::CONNECTIONS_MAX).map(|_| Wire::greet(bench.address(), 0)).collect();
    let mut refused = Wire::open(bench.address());
    assert!(refused.is_closed());
    served.pop();
    let ask = |wire: &mut Wire| wire.call(Method::Metadata, &pb::MetadataRequest::default(), &[]).status;
    assert!(served.iter_mut().all(|wire| ask(wire) == Status::Ok));
    wait_until("there is room again", std::time::Duration::from_secs(10), || {
        let mut wire = Wire::open(bench.address());
        wire.send(Method::Hello, &hello(Some(0)), &[]);
        wire.receive().is_ok_and(|answered| answered.status == Status::Ok)
    });
}

#[test]
fn a_higher_attempt_displaces_the_sessions_older_connections() {
    let bench = Bench::start(2);
    let greet = |attempt| {
        let mut wire = Wire::open(bench.address());
        let hello = pb::HelloRequest { session: vec![5; 16], attempt, ..hello(Some(1)) };
        let status = wire.call(Method::Hello, &hello, &[]).status;
        (wire, status)
    };
    let (mut first, status) = greet(1);
    assert_eq!(status, Status::Ok);
    // Half a set, so that the older connection is in the middle of a payload.
    let set = set_of(&[vec![1; 10_000]]);
    let mut out = bytes::BytesMut::new();
    let request = publish(1, 0, pb::Acks::Durable);
    encode_request(&mut out, Method::Publish, 9, &request, set.len());
    out.extend_from_slice(&set[..5_000]);
    first.stream.write_all(&out).expect("sent");
    let (mut second, status) = greet(2);
    assert_eq!(status, Status::Ok);
    assert!(first.is_closed());
    let published: pb::PublishResponse =
        second.call(Method::Publish, &publish(1, 0, pb::Acks::Durable), &set_of(&["x"])).ok();
    assert_eq!(published.first_id, 0, "nothing of the older connection was appended");
    assert_eq!(greet(2).1, Status::Fenced);
    assert_eq!(greet(1).1, Status::Fenced);
    assert_eq!(greet(3).1, Status::Ok);
    assert!(second.is_closed());
}

#[test]
fn a_fetch_waits_for_what_becomes_visible_and_no_longer_than_asked() {
    let bench = Bench::start(1);
    let mut consumer = Wire::greet(bench.address(), 0);
    let empty = consumer.call(Method::Fetch, &fetch(0, 0, 20), &[]);
    assert!(empty.payload.is_empty() && empty.status == Status::Ok);
    let correlation = consumer.send(Method::Fetch, &fetch(0, 0, 30_000), &[]);
    let mut producer = Wire::greet(bench.address(), 0);
    let set = set_of(&["news"]);
    producer.send(Method::Publish, &publish(0, 0, pb::Acks::None), &set);
    let answered = consumer.receive().expect("an answer");
    assert_eq!(answered.correlation, correlation);
    assert!(answered.payload == set);
}

#[test]
fn a_reader_that_takes_nothing_does_not_stop_the_others() {
    let bench = Bench::start(1);
    let mut producer = Wire::greet(bench.address(), 0);
    let set = set_of(&vec![vec![3; 1000]; 1000]);
    let mut stuck: Vec<Wire> = (0..4).map(|_| Wire::greet(bench.address(), 0)).collect();
    // Four times the arena passes while four readers have asked for all of it and take none.
    let (rounds, sets) = (32, 4);
    for round in 0..rounds {
        let mut first_id = None;
        for number in 0..sets {
            let acks = if number + 1 == sets { pb::Acks::Durable } else { pb::Acks::Received };
            let answered = producer.call(Method::Publish, &publish(0, round * sets + number, acks), &set);
            first_id.get_or_insert(answered.ok::<pb::PublishResponse>().first_id);
        }
        for wire in &mut stuck {
            let max_bytes = sets as u32 * set.len() as u32;
            let request = pb::FetchRequest { max_bytes, ..fetch(0, first_id.expect("published"), 0) };
            wire.send(Method::Fetch, &request, &[]);
        }
    }
    // They go on where they were, with the right bytes.
    for wire in &mut stuck {
        for _ in 0..rounds {
            let answered = wire.receive().expect("an answer");
            answered.ok::<pb::FetchResponse>();
            assert_eq!(answered.payload.len(), sets as usize * set.len());
            assert!(answered.payload.chunks(set.len()).all(|chunk| chunk == &set[..chunk.len()]));
        }
    }
    assert!(bench.stop());
}

#[test]
fn a_stop_answers_what_was_read_and_ends_the_waits() {
    let bench = Bench::start(2);
    let mut producer = Wire::greet(bench.address(), 0);
    let mut consumer = Wire::greet(bench.address(), 1);
    consumer.send(Method::Fetch, &fetch(1, 0, 60_000), &[]);
    producer.call(Method::Publish, &publish(0, 0, pb::Acks::Durable), &set_of(&["x"])).ok::<pb::PublishResponse>();
    let figures = bench.ask(0, |answer| ToShard::Figures { answer });
    assert_eq!((figures.partitions.len(), figures.published_sets), (1, 1));
    assert!(bench.stop());
    assert!(producer.is_closed());
}
