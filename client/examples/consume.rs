//! Prints a topic from its beginning to the end that it has now, and where to go on next time.
//!
//! `cargo run -p corelane-client --example consume -- 127.0.0.1:9400 numbers`

use corelane_client::{Client, Start};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let broker = arguments.next().unwrap_or_else(|| "127.0.0.1:9400".to_owned());
    let topic = arguments.next().unwrap_or_else(|| "numbers".to_owned());

    let client = Client::builder().bootstrap(broker).client_name("consume example").build().await?;
    // Without `until_end` the stream follows the topic for ever.
    let mut consumer = client.consumer().topic(&topic).start(Start::Earliest).until_end(true).build().await?;
    while let Some(message) = consumer.next().await {
        let message = message?;
        let value = String::from_utf8_lossy(message.value().unwrap_or_default());
        println!("{}/{}: {value}", message.partition(), message.position());
    }
    for at in consumer.positions() {
        println!("partition {} goes on at {}", at.partition, at.position);
    }
    Ok(())
}
