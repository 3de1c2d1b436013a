//! Frames of every kind, and what is none, against a live broker: seeded (`FUZZ_SEED=n`), some bytes made up freely, most of
//! them requests that are changed in one place. The broker lives, says only what the protocol has, serves a client that does
//! everything right all the while, and has its memory and its descriptors back afterwards.

pub(crate) mod protobuf;
mod script;
mod sets;
pub(crate) mod steady;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;
use corelane_testkit::{Broker, BrokerOptions, full, wait_until};
use fastrand::Rng;

use self::script::{Change, End, Expected, NAMES, Script, Writer};
use self::steady::Steady;
use crate::wire::{PATIENCE, Wire, receive};

const SHARDS: u32 = 2;
const FUZZERS: u64 = 2;
/// Changes that one connection of the systematic part makes.
const CHANGES_PER_CONNECTION: usize = 24;
/// Connections that a fuzzer leaves open and silent, at most.
const LINGERING_MAX: usize = 60;
/// For how long such a one listens after the last answer.
const LINGERER_READS: Duration = Duration::from_millis(5);
/// For so long the broker answers a connection that sends no more; what takes longer on a busy machine is lost with it.
const FINISH_ANSWERS: Duration = Duration::from_secs(5);
/// The broker's topics are asked for again after so many connections.
const LOOK_EVERY: usize = 30;
/// What the broker may keep of all that it was sent: its arenas were filled before.
const GROWTH_BYTES_MAX: u64 = 32 << 20;

fn duration() -> Duration {
    if full() { Duration::from_mins(10) } else { Duration::from_secs(8) }
}

#[test]
fn frames_of_every_kind_harm_nobody() {
    let seed = std::env::var("FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("FUZZ_SEED={seed}");
    let options = ["--partitions-max", "200", "--segment-bytes", "8MiB", "--arena-bytes", "32MiB"];
    let mut broker = Broker::start(BrokerOptions::new().shards(SHARDS as usize).args(options));
    let steady = Steady::start(broker.addr(), "steady");
    // What a busy broker holds anyway is not what the fuzzer costs it.
    let warm_up = Fuzz::new(broker.addr(), &[], Duration::from_secs(1));
    warm_up.run(seed ^ 1);
    let before = broker.stats();

    let changes = script::systematic();
    let fuzz = Fuzz::new(broker.addr(), &changes, duration());
    let found = std::thread::scope(|scope| {
        let fuzz = &fuzz;
        let run = |at: u64| scope.spawn(move || fuzz.run(seed.wrapping_mul(31).wrapping_add(at)));
        let runs: Vec<_> = (0..FUZZERS).map(run).collect();
        runs.into_iter().map(|run| run.join().expect("a fuzzer")).reduce(Found::join).expect("fuzzers")
    });

    assert!(broker.is_running(), "the broker ended");
    let log = broker.log();
    assert!(!log.contains("panicked"), "a panic in the broker's log");
    let seen = steady.stop(broker.addr());
    delete_all(broker.addr());
    wait_until("descriptors to be closed", PATIENCE, || broker.descriptors() <= before.descriptors + 16);
    wait_until("memory to come back", PATIENCE, || broker.rss_bytes() <= before.rss_bytes + GROWTH_BYTES_MAX);
    println!(
        "{} frames on {} connections, {} of {} changes made, {:?}; the client beside: {} rounds, the longest {:?}; \
         memory {} KiB before, {} after; {} log lines",
        found.frames,
        found.connections,
        fuzz.next_change.load(Ordering::Relaxed).min(changes.len()),
        changes.len(),
        found.statuses,
        seen.rounds,
        seen.longest,
        before.rss_bytes >> 10,
        broker.rss_bytes() >> 10,
        log.lines().count(),
    );
    assert!(seen.longest < PATIENCE, "the client beside waited {:?}", seen.longest);
    assert!(fuzz.next_change.load(Ordering::Relaxed) >= changes.len(), "the systematic part was not finished in time");
    broker.stop();
}

/// Deletes every topic of the fuzzer's.
fn delete_all(addr: SocketAddr) {
    for name in NAMES {
        let request = pb::DeleteTopicRequest { name: name.to_owned(), ..Default::default() };
        let status = Wire::greet(addr, 0).call(Method::DeleteTopic, &request, &[]).status;
        assert!(matches!(status, Status::Ok | Status::UnknownTopic), "{status:?}");
    }
}

/// What fuzzers found.
#[derive(Debug, Default)]
struct Found {
    frames: usize,
    connections: usize,
    statuses: BTreeMap<&'static str, usize>,
}

impl Found {
    fn join(mut self, other: Found) -> Found {
        self.frames += other.frames;
        self.connections += other.connections;
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self
    }
}

/// What fuzzers share.
struct Fuzz<'a> {
    addr: SocketAddr,
    changes: &'a [Change],
    next_change: AtomicUsize,
    until: Instant,
}

impl<'a> Fuzz<'a> {
    fn new(addr: SocketAddr, changes: &'a [Change], lasts: Duration) -> Self {
        Self { addr, changes, next_change: AtomicUsize::new(0), until: Instant::now() + lasts }
    }

    /// The next changes of the systematic part, until there are none.
    fn take_changes(&self) -> &'a [Change] {
        let from = self.next_change.fetch_add(CHANGES_PER_CONNECTION, Ordering::Relaxed).min(self.changes.len());
        &self.changes[from..(from + CHANGES_PER_CONNECTION).min(self.changes.len())]
    }

    /// One fuzzer: connection after connection, until the time is up and every change was made.
    fn run(&self, seed: u64) -> Found {
        let mut random = Rng::with_seed(seed);
        let (mut found, mut lingering, mut topics) = (Found::default(), Vec::new(), Vec::new());
        let deadline = self.until + PATIENCE;
        loop {
            let changes = if random.bool() { self.take_changes() } else { &[] };
            let is_done = self.next_change.load(Ordering::Relaxed) >= self.changes.len();
            if Instant::now() > self.until && (is_done || Instant::now() > deadline) {
                return found;
            }
            if found.connections.is_multiple_of(LOOK_EVERY) {
                topics = self.topics();
            }
            let script = Writer::new(&mut random, &topics, SHARDS).script(changes);
            found.connections += 1;
            found.frames += script.frames;
            lingering.extend(self.play(&script, &mut found));
            if lingering.len() > LINGERING_MAX {
                lingering.swap_remove(random.usize(..lingering.len()));
            }
        }
    }

    /// The broker's topics but the one that is not the fuzzer's; makes one when there is none.
    fn topics(&self) -> Vec<pb::Topic> {
        let mut wire = Wire::greet(self.addr, 0);
        let request = pb::CreateTopicRequest { name: NAMES[0].to_owned(), partitions: 2, ..Default::default() };
        wire.call(Method::CreateTopic, &request, &[]);
        let metadata: pb::MetadataResponse = wire.call(Method::Metadata, &pb::MetadataRequest::default(), &[]).ok();
        metadata.topics.into_iter().filter(|topic| NAMES.contains(&topic.name.as_str())).collect()
    }

    /// Plays a script on a connection of its own, and answers the connection if it is to stay open.
    fn play(&self, script: &Script, found: &mut Found) -> Option<TcpStream> {
        let stream = Wire::open(self.addr).stream;
        let mut sending = stream.try_clone().expect("a second handle");
        if script.end == End::Linger {
            stream.set_read_timeout(Some(LINGERER_READS)).expect("a socket has time-outs");
        }
        let statuses = std::thread::scope(|scope| {
            let reading = scope.spawn(|| read_answers(&stream, script));
            let mut from = 0;
            for to in &script.cuts {
                // The broker may have closed it.
                if sending.write_all(&script.bytes[from..*to]).is_err() {
                    break;
                }
                from = *to;
            }
            match script.end {
                End::HalfClose => drop(sending.shutdown(Shutdown::Write)),
                End::Close => drop(sending.shutdown(Shutdown::Both)),
                End::Linger => {}
            }
            reading.join().expect("the answers are as they should be")
        });
        for status in statuses {
            *found.statuses.entry(status.name()).or_default() += 1;
        }
        (script.end == End::Linger).then_some(stream)
    }
}

/// Counts what is read.
struct Counted<'a> {
    stream: &'a TcpStream,
    bytes: usize,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(into)?;
        self.bytes += count;
        Ok(count)
    }
}

/// Reads what comes back to the end, and checks it.
fn read_answers(stream: &TcpStream, script: &Script) -> Vec<Status> {
    let began = Instant::now();
    let mut waiting = script.sent.clone();
    let mut statuses = Vec::new();
    let mut stream = Counted { stream, bytes: 0 };
    let (ended, is_cut) = loop {
        let before = stream.bytes;
        let answered = match receive(&mut stream) {
            Ok(answered) => answered,
            Err(error) => break (error, stream.bytes > before),
        };
        statuses.push(answered.status);
        let method = match waiting.remove(&answered.correlation) {
            Some((method, _)) if !script.is_noise => Some(method),
            None if !script.is_noise => panic!("nobody asked for {answered:?}"),
            _ => None,
        };
        if let Some(fault) = script::fault_of_answer(method, answered.status, &answered.proto, &answered.payload) {
            panic!("{fault}");
        }
    };
    assert_ne!(ended.kind(), ErrorKind::InvalidData, "{ended}");
    let timed_out = matches!(ended.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    assert!(!timed_out || script.end == End::Linger, "the connection was left open: {ended}");
    // An answer that has begun ends with its connection when the topic of its bytes is deleted, as these are all the time.
    if script.end == End::HalfClose && !script.is_noise && !is_cut && began.elapsed() < FINISH_ANSWERS {
        waiting.retain(|_, (_, expected)| *expected == Expected::Answer);
        assert!(waiting.is_empty(), "not answered, ended by {ended}: {waiting:?}");
    }
    statuses
}
