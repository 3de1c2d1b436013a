//! The client in a program without an async runtime: publishes a few messages, reads them back, looks at the topic.
//!
//! `cargo run -p corelane-client --example blocking -- 127.0.0.1:9400`

use std::time::Duration;

use corelane_client::blocking::Client;
use corelane_client::{Compression, NewTopic, Record, Start};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9400".to_owned());
    let client = Client::builder().bootstrap(broker).client_name("blocking example").build_blocking()?;
    let admin = client.admin();
    admin.create_topic(NewTopic::named("blocking").partitions(2).if_not_exists(true))?;

    let producer = client.producer(|settings| settings.compression(Compression::Lz4))?;
    for word in ["apples", "pears", "plums"] {
        drop(producer.send(&Record::to("blocking").value(word.as_bytes()))?);
    }
    println!("{:?}", producer.close(Duration::from_secs(10)));

    let from_here =
        |settings: corelane_client::ConsumerBuilder| settings.topic("blocking").start(Start::Earliest).until_end(true);
    for message in client.consumer(from_here)? {
        println!("{:?}", message?);
    }
    for partition in admin.describe_topic("blocking")?.details {
        println!("{partition:?}");
    }
    Ok(())
}
