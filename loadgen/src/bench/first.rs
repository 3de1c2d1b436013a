//! The first message of a broker: how soon after its start it serves.

use corelane_client::{Client, NewTopic, Record};

use crate::consume::on_runtime;

/// Creates a topic and publishes a message to it; done when it is durable.
pub(crate) fn publish(address: &str) -> Result<(), String> {
    on_runtime(async {
        let client = Client::builder().bootstrap(address).build().await?;
        client.admin().create_topic(NewTopic::named("bench").partitions(1)).await?;
        let producer = client.producer().build()?;
        producer.send(Record::to("bench").value(b"the first")).await?.await?;
        Ok(())
    })
}
