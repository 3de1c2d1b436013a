//! Publishes numbered messages and says where the last one lies.
//!
//! `cargo run -p corelane-client --example publish -- 127.0.0.1:9400 numbers 1000`

use std::time::Duration;

use corelane_client::{Client, NewTopic, Record};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let broker = arguments.next().unwrap_or_else(|| "127.0.0.1:9400".to_owned());
    let topic = arguments.next().unwrap_or_else(|| "numbers".to_owned());
    let count: u64 = arguments.next().map_or(Ok(1000), |count| count.parse())?;

    let client = Client::builder().bootstrap(broker).client_name("publish example").build().await?;
    client.admin().create_topic(NewTopic::named(&topic).partitions(1).if_not_exists(true)).await?;

    let producer = client.producer().build()?;
    let mut last = None;
    for number in 0..count {
        let value = format!("message {number}");
        let key = number.to_string();
        // `send` returns as soon as the message is in a set that will be sent; its delivery can be awaited, or dropped.
        last = Some(producer.send(Record::to(&topic).key(key.as_bytes()).value(value.as_bytes())).await?);
    }
    if let Some(delivery) = last {
        println!("the last one is durable at {:?}", delivery.await?);
    }

    // Every message is accounted for: acknowledged + failed + unsent == published.
    let report = producer.close(Duration::from_secs(10)).await;
    println!("{report:?}");
    if report.is_complete() { Ok(()) } else { Err("not every message was acknowledged".into()) }
}
