//! The client without a runtime of the program's own.

mod support;

use std::time::Duration;

use corelane_client::blocking::Client;
use corelane_client::{DeliveryError, Record};
use support::FakeBroker;

const LONG: Duration = Duration::from_secs(20);

/// A broker on a runtime of its own.
fn broker() -> (tokio::runtime::Runtime, FakeBroker) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let broker = runtime.block_on(FakeBroker::start());
    (runtime, broker)
}

fn with_broker(test: impl FnOnce(&FakeBroker)) {
    let (runtime, broker) = broker();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        test(&broker);
        drop(stop);
    });
}

#[test]
fn a_program_without_a_runtime_publishes_and_iterates() {
    with_broker(|broker| {
        broker.topic("t", 2);
        let client = Client::builder().bootstrap(&broker.address).build_blocking().unwrap();
        let producer = client.producer(|it| it.buffer_bytes(20_000).batch_bytes(2000)).unwrap();
        for index in 0..2000 {
            let value = format!("{index:06}");
            drop(producer.send(&Record::to("t").partition(index % 2).value(value.as_bytes())).unwrap());
        }
        let delivery = producer.send(&Record::to("t").partition(0).value(b"last")).unwrap();
        assert_eq!(producer.wait(delivery).unwrap().partition, 0);
        assert!(producer.flush(LONG).is_complete());
        let mut counts = [0; 2];
        for message in client.consumer(|it| it.topic("t").until_end(true)).unwrap() {
            counts[message.unwrap().partition() as usize] += 1;
        }
        assert_eq!(counts, [1001, 1000]);
        let mut consumer = client.consumer(|it| it.topic("t")).unwrap();
        for _ in 0..2001 {
            assert!(consumer.next_timeout(LONG).unwrap().is_some());
        }
        assert!(consumer.next_timeout(Duration::from_millis(20)).unwrap().is_none());
        assert!(producer.close(LONG).is_complete());
    });
}

#[test]
fn handles_may_be_dropped_in_any_order_and_waiting_deliveries_end() {
    with_broker(|broker| {
        broker.topic("t", 1);
        broker.script(|seen| {
            if seen.method == corelane_proto::frame::Method::Publish {
                support::Act::Silence
            } else {
                support::Act::Properly
            }
        });
        let client = Client::builder().bootstrap(&broker.address).build_blocking().unwrap();
        let producer = client.producer(|it| it).unwrap();
        drop(client);
        let delivery = producer.send(&Record::to("t").value(b"x")).unwrap();
        let report = producer.close(Duration::from_millis(100));
        assert_eq!((report.published, report.unsent), (1, 1));
        assert!(matches!(producer.wait(delivery), Err(DeliveryError::Closed)));
    });
}
