//! A loop that opens connections: those that are served go on, new ones are refused cleanly, afterwards all is as before.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;
use corelane_testkit::{Broker, BrokerOptions, full, http_get, wait_until};

use crate::fuzz::steady::Steady;
use crate::wire::{PATIENCE, Wire, create_topic, metric, publish, set_of};

/// Descriptors that the broker may open: so few that the flood would have them all, if it could.
const DESCRIPTORS: u64 = 600;
const FLOODERS: usize = 2;

/// Opens connections for as long as it is told to, keeps those that are not closed, and counts the others.
fn flood(addr: SocketAddr, stop: &AtomicBool, opened: &AtomicUsize) -> Vec<TcpStream> {
    let mut open = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_secs(1)) {
            opened.fetch_add(1, Ordering::Relaxed);
            open.push(stream);
        }
        if open.len() >= 2_000 {
            // What the broker closed holds a descriptor here.
            open.drain(..1_000);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    open
}

#[test]
fn a_flood_of_connections_takes_no_descriptor_from_the_log_and_leaves_no_trace() {
    let wrapper = ["prlimit".to_owned(), format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}")];
    let mut broker = Broker::start(BrokerOptions::new().shards(2).wrapper(wrapper));
    assert_eq!(
        metric(&broker, "corelane_connections_max", ""),
        DESCRIPTORS / 2,
        "half of the descriptors are for files"
    );
    assert!(broker.log().contains("each shard takes 150 connections only"), "the log says so");
    let steady = Steady::start(broker.addr(), "steady");
    let rest = if full() { Duration::from_secs(20) } else { Duration::from_secs(2) };
    std::thread::sleep(rest);
    let before = metric(&broker, "corelane_published_sets_total", "");
    let descriptors_before = broker.descriptors();

    let (stop, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    let during = std::thread::scope(|scope| {
        let (addr, stop, opened) = (broker.addr(), &stop, &opened);
        let floods: Vec<_> = (0..FLOODERS).map(|_| scope.spawn(move || flood(addr, stop, opened))).collect();
        std::thread::sleep(rest);
        let during = metric(&broker, "corelane_published_sets_total", "") - before;
        let health = http_get(broker.http_addr(), "/health/ready", PATIENCE).expect("the page comes in a flood");
        assert_eq!(health.status, 200);
        // The log still gets the descriptors that it needs.
        assert!(broker.descriptors() < DESCRIPTORS as usize - 50, "{} descriptors", broker.descriptors());
        stop.store(true, Ordering::Relaxed);
        drop(floods.into_iter().map(|flood| flood.join().expect("a flood")).collect::<Vec<_>>());
        during
    });
    let ended = Instant::now();
    wait_until("a new client to be served", PATIENCE, || Wire::try_greet(broker.addr(), 0).is_ok());
    println!("served again after {:?}", ended.elapsed());
    wait_until("descriptors to be closed", PATIENCE, || broker.descriptors() <= descriptors_before + 4);
    assert!(!full() || ended.elapsed() < Duration::from_secs(10), "all was well only {:?} later", ended.elapsed());
    let topic = create_topic(broker.addr(), "after", 1);
    let mut wire = Wire::greet(broker.addr(), topic.partitions[0].shard);
    let answered = wire.call(Method::Publish, &publish(&topic, 0, 0), &set_of(&["x"]));
    assert_eq!(answered.status, Status::Ok);
    answered.ok::<pb::PublishResponse>();
    let seen = steady.stop(broker.addr());
    let refused = metric(&broker, "corelane_connections_refused_total", "reason=\"connections_max\"");
    println!(
        "{} connections opened, {refused} refused; the client beside: {before} rounds before, {during} in as long, the longest {:?}",
        opened.load(Ordering::Relaxed),
        seen.longest
    );
    assert!(refused > 0, "the flood reached no limit");
    assert!(!full() || during * 10 >= before * 8, "the client beside kept {during} of {before} rounds");
    broker.stop();
}
