//! Peers whose machines vanish: no packet of theirs comes any more, and none says so. In a network namespace of the broker's
//! own, where a route that leads nowhere makes an address vanish.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use corelane_client::{Client, Consumer, NewTopic, Record, Start};
use corelane_proto::frame::Method;
use corelane_proto::pb;
use corelane_testkit::{Broker, BrokerOptions, Port, full, skip, wait_until};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::wire::{PATIENCE, Wire, closed, create_topic, fetch, metric, publish, set_of};

/// The broker's `peer_timeout` here.
const PEER_TIMEOUT: &str = "2s";
/// The address that vanishes.
const VANISHING: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);

fn connections() -> usize {
    if full() { 1_000 } else { 200 }
}

/// Whether this process may make network namespaces and routes in them.
fn has_namespaces() -> bool {
    let tried = Command::new("unshare").args(["--net", "ip", "link", "set", "lo", "up"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// Connects from an address of our choice.
fn connect_from(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from((from, 0))).expect("an address of the loopback");
    connect(&socket, &to).expect("the broker listens");
    TcpStream::from(socket)
}

fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().expect("iproute2 is there");
    assert!(output.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn connections_of_machines_that_vanished_are_gone_in_time_and_so_is_what_they_held() {
    if !has_namespaces() {
        let name = "connections_of_machines_that_vanished_are_gone_in_time_and_so_is_what_they_held";
        return skip(name, "network namespaces cannot be made here");
    }
    let wrapper = ["unshare", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];
    let options = BrokerOptions::new().shards(1).wrapper(wrapper).args(["--peer-timeout", PEER_TIMEOUT]);
    let mut broker = Broker::start(options);
    let namespace = File::open(format!("/proc/{}/ns/net", broker.pid())).expect("the broker's namespace");
    // Only this thread moves; it ends with the test.
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))
        .expect("whoever makes namespaces may enter them");

    let topic = create_topic(broker.addr(), "served", 1);
    let mut other = Wire::greet(broker.addr(), 0);
    other.call(Method::Publish, &publish(&topic, 0, 0), &set_of(&["x"])).ok::<pb::PublishResponse>();
    let (before, descriptors_before) = (broker.rss_bytes(), broker.descriptors());
    let vanishing: Vec<Wire> = (0..connections()).map(|at| vanishing(&broker, &topic, at)).collect();
    assert!(broker.descriptors() >= descriptors_before + connections());

    ip(&["route", "add", "blackhole", &format!("{VANISHING}/32"), "table", "local"]);
    let began = Instant::now();
    // News for those that wait: it cannot be delivered.
    other.call(Method::Publish, &publish(&topic, 0, 1), &set_of(&["news"])).ok::<pb::PublishResponse>();
    wait_until("connections to be gone", PATIENCE, || broker.descriptors() <= descriptors_before);
    let took = began.elapsed();
    let gone = closed(&broker, "peer_gone");
    println!(
        "{} half-open connections with peer_timeout {PEER_TIMEOUT}: gone after {took:?}, {gone} by the time-out; \
         memory {} KiB before, {} after",
        connections(),
        before >> 10,
        broker.rss_bytes() >> 10
    );
    assert!(took >= Duration::from_secs(1), "they were closed for another reason");
    assert!(gone > 0);
    wait_until("memory to come back", PATIENCE, || broker.rss_bytes() < before + (8 << 20));
    assert_eq!(
        other.call(Method::Metadata, &pb::MetadataRequest::default(), &[]).status,
        corelane_proto::frame::Status::Ok
    );
    drop(vanishing);
    broker.stop();
}

/// The address of a broker that vanishes.
const VANISHING_BROKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

#[test]
fn a_client_whose_broker_vanished_without_a_word_connects_again_when_it_is_back() {
    if !has_namespaces() {
        let name = "a_client_whose_broker_vanished_without_a_word_connects_again_when_it_is_back";
        return skip(name, "network namespaces cannot be made here");
    }
    // Both ends have that address, so that nothing of either arrives while it leads nowhere.
    let there = ["local", "127.0.0.9/32", "dev", "lo", "src", "127.0.0.9", "table", "local"];
    let script = format!("ip link set lo up && ip route add {} && exec \"$@\"", there.join(" "));
    let port = Port::reserve();
    let options = BrokerOptions::new()
        .shards(1)
        .listen(SocketAddr::from((VANISHING_BROKER, port.number())))
        .wrapper(["unshare", "--net", "sh", "-c", &script, "sh"])
        .args(["--peer-timeout", PEER_TIMEOUT]);
    let mut broker = Broker::start(options);
    let namespace = File::open(format!("/proc/{}/ns/net", broker.pid())).expect("the broker's namespace");
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))
        .expect("whoever makes namespaces may enter them");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let builder = Client::builder().bootstrap(broker.addr().to_string());
        let builder = builder.connect_timeout(Duration::from_secs(1)).request_timeout(Duration::from_secs(2));
        let client = builder.build().await.expect("the broker is there");
        client.admin().create_topic(NewTopic::named("followed")).await.expect("a topic can be created");
        let producer = client.producer().build().expect("a producer");
        let builder = client.consumer().topic("followed").start(Start::Earliest).max_wait(Duration::from_secs(2));
        let mut consumer = builder.build().await.expect("a consumer");
        for round in 0..if full() { 10 } else { 1 } {
            let delivery = producer.send(Record::to("followed").value(b"before")).await.expect("taken");
            delivery.await.expect("acknowledged");
            assert_eq!(next_value(&mut consumer).await, b"before");
            let connections = consumer.stats().connections;
            ip(&["route", "replace", "blackhole", "127.0.0.9/32", "table", "local"]);
            let began = Instant::now();
            while metric(&broker, "corelane_connections", "") > 0 {
                assert!(began.elapsed() < PATIENCE, "the broker keeps connections to nobody");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            println!("round {round}: all given up by the broker after {:?}", began.elapsed());
            ip(&[&["route", "replace"][..], &there].concat());
            let delivery = producer.send(Record::to("followed").value(b"after")).await.expect("taken");
            delivery.await.expect("acknowledged");
            assert_eq!(next_value(&mut consumer).await, b"after");
            assert!(consumer.stats().connections > connections, "it did not have to connect again");
        }
    });
    broker.stop();
}

/// The next message's value; what is told of the trouble on the way may come before it.
async fn next_value(consumer: &mut Consumer) -> Vec<u8> {
    loop {
        let next = tokio::time::timeout(PATIENCE, consumer.next()).await.expect("the client is there again in time");
        match next.expect("the stream goes on") {
            Ok(message) => return message.value().expect("a value").to_vec(),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// One that says Hello from the address that vanishes and then rests, waits for news, or is in the middle of a set.
fn vanishing(broker: &Broker, topic: &pb::Topic, at: usize) -> Wire {
    let mut wire = Wire::over(connect_from(VANISHING, broker.addr()));
    wire.call(Method::Hello, &crate::wire::hello(0), &[]).ok::<pb::HelloResponse>();
    match at % 3 {
        0 => {}
        1 => {
            let waits = fetch(topic, 0, 25, 60_000);
            wire.send(Method::Fetch, &waits, &[]).expect("the broker reads");
        }
        _ => {
            let set = set_of(&[vec![1; 10_000]]);
            let bytes = crate::wire::frame(Method::Publish, 1, &publish(topic, 0, 0), &set);
            std::io::Write::write_all(&mut wire.stream, &bytes[..5_000]).expect("the broker reads");
        }
    }
    wire
}
