//! Wrong addresses: whatever is there instead of a broker, the error names the address and comes within the time-out.

mod support;

use std::time::{Duration, Instant};

use corelane_client::{CallError, Client, ConnectCause, NewTopic, Record, Start};
use corelane_proto::frame::{Method, Status};
use support::{Act, FakeBroker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const TIMEOUT: Duration = Duration::from_millis(400);

/// The only cause, after checks that hold for all.
async fn cause(address: &str) -> ConnectCause {
    let began = Instant::now();
    let error = Client::builder().bootstrap(address).connect_timeout(TIMEOUT).build().await.unwrap_err();
    assert!(began.elapsed() < TIMEOUT + Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(error.to_string().contains(address), "{error}");
    let CallError::NoBroker { mut causes } = error else { panic!("{error}") };
    assert_eq!(causes.len(), 1);
    causes.remove(0).cause
}

/// A service that answers every connection's first bytes with these.
async fn service(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 1024];
                let _ = socket.read(&mut bytes).await;
                let _ = socket.write_all(answer).await;
                let _ = socket.read(&mut bytes).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn a_closed_port_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    assert!(matches!(cause(&address).await, ConnectCause::Io(_)));
}

#[tokio::test]
async fn a_port_that_accepts_and_says_nothing_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    assert!(matches!(cause(&address).await, ConnectCause::TimedOut { .. }));
}

/// On Linux a full backlog drops what comes to connect, as a firewall would; elsewhere it may refuse.
#[tokio::test]
async fn an_address_that_drops_every_packet_is_an_error() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut filling = Vec::new();
    while let Ok(Ok(filler)) = tokio::time::timeout(TIMEOUT, tokio::net::TcpStream::connect(address)).await {
        filling.push(filler);
    }
    let cause = cause(&address.to_string()).await;
    assert!(matches!(cause, ConnectCause::TimedOut { .. } | ConnectCause::Io(_)), "{cause}");
}

#[tokio::test]
async fn an_unknown_name_is_an_error() {
    let cause = cause("no-such-host.invalid:9400").await;
    assert!(matches!(cause, ConnectCause::UnknownName(_) | ConnectCause::TimedOut { .. }), "{cause}");
}

#[tokio::test]
async fn another_service_is_an_error_that_shows_what_it_said() {
    let address = service(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let cause = cause(&address).await;
    assert!(matches!(&cause, ConnectCause::NotCorelane { detail } if detail.contains("HTTP/1.1 400")), "{cause}");
}

#[tokio::test]
async fn a_few_bytes_of_something_else_and_then_silence_are_an_error() {
    assert!(matches!(cause(&service(b"\x15\x03\x01\0\x02").await).await, ConnectCause::TimedOut { .. }));
}

#[tokio::test]
async fn a_broker_that_refuses_the_greeting_is_quoted() {
    let broker = FakeBroker::start().await;
    broker.state().refuse_hello = Some(Status::UnsupportedVersion);
    let cause = cause(&broker.address).await;
    assert!(
        matches!(&cause, ConnectCause::Refused(refusal) if refusal.status == Status::UnsupportedVersion),
        "{cause}"
    );
}

#[tokio::test]
async fn one_good_address_among_bad_ones_is_enough() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = service(b"220 mail ready\r\n and some more").await;
    let addresses = format!("{}, {other},{}", silent.local_addr().unwrap(), broker.address);
    for _ in 0..4 {
        let builder = Client::builder().bootstrap(&addresses).connect_timeout(Duration::from_secs(2));
        let client = builder.build().await.unwrap();
        let producer = client.producer().build().unwrap();
        producer.send(Record::to("t").value(b"x")).await.unwrap().await.unwrap();
    }
}

#[tokio::test]
async fn settings_that_make_no_sense_are_named() {
    let invalid = |result: Result<Client, CallError>| match result {
        Err(CallError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(invalid(Client::builder().build().await), "bootstrap");
    assert_eq!(invalid(Client::builder().bootstrap("h:port").build().await), "bootstrap");
    assert_eq!(invalid(Client::builder().bootstrap("h").client_name("x".repeat(129)).build().await), "client_name");
    assert_eq!(invalid(Client::builder().bootstrap("h").connect_timeout(Duration::ZERO).build().await), "timeout");
}

/// A client that cannot connect pauses between its attempts.
#[tokio::test]
async fn a_dead_broker_is_not_asked_in_a_loop() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let client = broker.builder().backoff(Duration::from_millis(20), Duration::from_millis(200)).build().await.unwrap();
    let producer = client.producer().build().unwrap();
    let mut consumer = client.consumer().topic("t").start(Start::Latest).build().await.unwrap();
    producer.send(Record::to("t").value(b"x")).await.unwrap().await.unwrap();
    let topics = broker.stop().await;
    drop(producer.send(Record::to("t").value(b"y")).await.unwrap());
    // Whoever connects meanwhile is counted and hung up on.
    let listener = TcpListener::bind(&broker.address).await.unwrap();
    let mut attempts = 0;
    let counting = async {
        loop {
            drop(listener.accept().await.unwrap());
            attempts += 1;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), counting).await;
    // Producer, consumer, and both their questions for metadata: each at most every 100 ms on average, once warmed up.
    assert!(attempts < 150, "{attempts} connections within two seconds");
    assert!(attempts > 4, "{attempts} connections within two seconds");
    drop(listener);
    let again = FakeBroker::start_at(&broker.address, topics).await;
    assert!(producer.close(Duration::from_secs(10)).await.is_complete());
    // The first message may be there already, the second comes when the broker is back.
    loop {
        let next = tokio::time::timeout(Duration::from_secs(10), consumer.next()).await.unwrap().unwrap();
        if next.is_ok_and(|message| message.value() == Some(b"y")) {
            break;
        }
    }
    assert_eq!(again.values("t", 0), ["x", "y"]);
}

#[tokio::test]
async fn a_broker_without_room_is_told_long_before_the_time_out_of_topic_calls_and_with_what_to_do() {
    let broker = FakeBroker::start().await;
    broker.script(|seen| if seen.method == Method::CreateTopic { Act::refuse(Status::NoSpace) } else { Act::Properly });
    let client = broker.client().await;
    let created =
        tokio::time::timeout(Duration::from_secs(20), client.admin().create_topic(NewTopic::named("t"))).await;
    let error = created.expect("told before the minute that a topic may take").unwrap_err();
    assert_eq!(error.refusal().map(|refusal| refusal.status), Some(Status::NoSpace), "{error}");
    assert!(error.to_string().contains("make room on the broker's disk"), "{error}");
}
