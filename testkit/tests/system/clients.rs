//! Clients whose broker is wrong, silent or gone: an answer in time, the truth about every message.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use corelane_client::{Record, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, Port, bin, run};

use crate::support::{PATIENCE, connect, create, number, numbered, read_all};

/// The CLI's own time-out in these tests, and what the whole command may take on a busy machine.
const TIMEOUT: &str = "2s";
const COMMAND_MAX: Duration = Duration::from_secs(20);

fn list_topics(address: &str) -> Command {
    let mut command = Command::new(bin("corelane"));
    command.args(["--broker", address, "--timeout", TIMEOUT, "topic", "list"]);
    command
}

#[test]
fn a_wrong_address_is_named_in_time_with_a_status_that_is_not_0() {
    let broker = Broker::start(BrokerOptions::new());
    let closed = Port::reserve().addr();
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let silent_addr = silent.local_addr().expect("a bound socket has an address");
    // A listener whose queue is full: the kernel drops what asks for a connection.
    let (dropping, _queue) = dropping_listener();
    let cases = [
        ("a closed port", closed.to_string()),
        ("a port that accepts and says nothing", silent_addr.to_string()),
        ("an address that drops every packet", dropping.to_string()),
        ("another service", broker.http_addr().to_string()),
        ("an unknown name", "no-such-host.invalid:9400".to_owned()),
    ];
    for (what, address) in cases {
        let finished = run(&mut list_topics(&address), COMMAND_MAX);
        assert!(!finished.status.success(), "{what}");
        assert!(finished.stderr.contains(&address), "{what} is named: {}", finished.stderr);
        println!("{what}: {} after {:?}", finished.stderr.trim(), finished.took);
    }
    run(&mut list_topics(&format!("{closed},{silent_addr},{}", broker.addr())), COMMAND_MAX).success();
}

fn dropping_listener() -> (SocketAddr, Vec<TcpStream>) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port is free");
    listen(&listener, 0).expect("a bound socket listens");
    let addr = SocketAddr::try_from(getsockname(&listener).expect("a bound socket has an address")).expect("IPv4");
    // It stays open, and full, for as long as the test process lives.
    std::mem::forget(listener);
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_millis(300)) {
        queue.push(stream);
    }
    (addr, queue)
}

#[tokio::test(flavor = "multi_thread")]
async fn flush_accounts_for_every_message_when_the_broker_stands_still() {
    const MESSAGES: u64 = 100_000;
    let mut broker = Broker::start(BrokerOptions::new());
    let client = connect(&broker).await;
    create(&client, "accounted", 2, TopicSettings::new()).await;
    let producer = client.producer().buffer_bytes(64 << 20).build().expect("a producer");
    let mut deliveries = Vec::new();
    for at in 0..MESSAGES {
        if at == MESSAGES / 2 {
            broker.pause();
        }
        let value = numbered(at, 100);
        deliveries.push(producer.send(Record::to("accounted").value(&value)).await.expect("a message is taken"));
    }
    let report = producer.close(Duration::from_secs(2)).await;
    println!("{report:?}");
    assert_eq!(report.published, MESSAGES);
    assert_eq!(report.acknowledged + report.failed + report.unsent, MESSAGES);
    assert!(report.unsent + report.failed > 0, "a paused broker acknowledged everything");
    let mut acknowledged = Vec::new();
    for (at, delivery) in deliveries.into_iter().enumerate() {
        if matches!(delivery.try_result(), Some(Ok(_))) {
            acknowledged.push(at as u64);
        }
    }
    assert_eq!(acknowledged.len() as u64, report.acknowledged);

    broker.kill9();
    broker.restart();
    let client = connect(&broker).await;
    let mut stored: Vec<u64> = read_all(&client, "accounted").await.iter().map(|seen| number(&seen.value)).collect();
    stored.sort_unstable();
    assert!(acknowledged.iter().all(|at| stored.binary_search(at).is_ok()), "an acknowledged message is missing");
}

#[test]
fn the_command_line_tells_by_its_status_that_messages_were_not_delivered() {
    let mut broker = Broker::start(BrokerOptions::new());
    run(broker.cli().args(["topic", "create", "undelivered"]), PATIENCE).success();
    let mut lines = tempfile::NamedTempFile::new().expect("a temporary file");
    for at in 0..100_000 {
        writeln!(lines, "line {at}").expect("a temporary file can be written");
    }
    broker.kill9();
    let mut produce = broker.cli();
    produce.args(["--timeout", TIMEOUT, "produce", "undelivered", "--delivery-timeout", "3s", "--file"]);
    let finished = run(produce.arg(lines.path()), COMMAND_MAX);
    assert!(!finished.status.success(), "{}", finished.stderr);
    assert!(!finished.stderr.is_empty());
}
