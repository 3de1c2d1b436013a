//! A client that does everything right beside those that do not: what it publishes it gets back, byte for byte, in time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corelane_proto::frame::Method;
use corelane_proto::pb;

use crate::wire::{Wire, create_topic, fetch, publish, set_of};

/// It rests so long after each round: it is there to notice, not to load.
const REST: Duration = Duration::from_millis(2);

/// What it saw.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) rounds: u64,
    pub(crate) longest: Duration,
    /// All that it published.
    pub(crate) log: Vec<u8>,
    pub(crate) topic: pb::Topic,
}

/// The client, on a thread of its own until it is told to stop.
pub(crate) struct Steady {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl Steady {
    pub(crate) fn start(addr: SocketAddr, topic: &str) -> Steady {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, topic) = (Arc::clone(&stop), create_topic(addr, topic, 1));
        let thread = std::thread::spawn(move || serve(addr, topic, &stopping));
        Steady { stop, thread }
    }

    /// Stops it and reads once more, from the start, all that it published.
    pub(crate) fn stop(self, addr: SocketAddr) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.thread.join().expect("the client that does everything right finds nothing wrong");
        let mut wire = Wire::greet(addr, seen.topic.partitions[0].shard);
        let mut read = Vec::new();
        while read.len() < seen.log.len() {
            let answered = wire.call(Method::Fetch, &fetch(&seen.topic, 0, read.len() as u64, 0), &[]);
            answered.ok::<pb::FetchResponse>();
            assert!(!answered.payload.is_empty(), "what was acknowledged is there");
            read.extend(answered.payload);
        }
        assert!(read == seen.log, "the log of the client that does everything right is not as it was published");
        seen
    }
}

fn serve(addr: SocketAddr, topic: pb::Topic, stop: &AtomicBool) -> Seen {
    let mut producer = Wire::greet(addr, topic.partitions[0].shard);
    let mut consumer = Wire::greet(addr, topic.partitions[0].shard);
    let mut seen = Seen { rounds: 0, longest: Duration::ZERO, log: Vec::new(), topic };
    while !stop.load(Ordering::Relaxed) {
        let set = set_of(&[format!("round {}", seen.rounds).repeat(1 + seen.rounds as usize % 50)]);
        let began = Instant::now();
        let answered = producer.call(Method::Publish, &publish(&seen.topic, 0, seen.rounds), &set);
        assert_eq!(answered.ok::<pb::PublishResponse>().first_id, seen.log.len() as u64);
        let answered = consumer.call(Method::Fetch, &fetch(&seen.topic, 0, seen.log.len() as u64, 30_000), &[]);
        answered.ok::<pb::FetchResponse>();
        assert!(answered.payload == set, "round {}", seen.rounds);
        seen.longest = seen.longest.max(began.elapsed());
        seen.log.extend(set);
        seen.rounds += 1;
        std::thread::sleep(REST);
    }
    seen
}
