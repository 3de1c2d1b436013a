//! A message on its way into the target: what it becomes there, and handing it to the producer for as long as that takes.

use std::time::Duration;

use corelane_client::{DeliveryFuture, GroupMessage, Record, SendError};

use super::origin::{HEADER, THROUGH};
use super::targets::Target;
use crate::error::CliError;

/// Between two attempts at something that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// The message as the target gets it.
pub(super) fn record<'m>(message: &'m GroupMessage, target: &'m Target, origin: &'m str) -> Record<'m> {
    let mut record = Record::to(&target.name).timestamp_ms(message.timestamp_ms());
    record = match message.value() {
        Some(value) => record.value(value),
        None => record.tombstone(),
    };
    if let Some(key) = message.key() {
        record = record.key(key);
    }
    if let Some(partition) = target.partition(message.partition(), message.key().is_some()) {
        record = record.partition(partition);
    }
    for (name, value) in message.headers() {
        record = record.header(name, value);
    }
    // An exact copy carries nothing of its own way: without this, what it holds could come back by a third cluster.
    for step in &target.through {
        record = record.header(THROUGH, Some(step.as_bytes()));
    }
    record.header(HEADER, Some(origin.as_bytes()))
}

/// Hands something to the producer, for as long as it takes.
pub(super) async fn publish<F>(send: impl Fn() -> F, message: &GroupMessage) -> Result<DeliveryFuture, CliError>
where
    F: Future<Output = Result<DeliveryFuture, SendError>>,
{
    loop {
        match send().await {
            Ok(delivery) => return Ok(delivery),
            Err(error @ SendError::Topic { .. }) if error.is_retryable() => {
                eprintln!("corelane: {error}; still trying");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(stopped(message, &error.to_string())),
        }
    }
}

/// What ends the mirror.
pub(super) fn stopped(message: &GroupMessage, reason: &str) -> CliError {
    let (topic, partition, position) = (message.topic(), message.partition(), message.position());
    CliError::Mirror(format!("the message at {position} of {topic}/{partition} cannot be copied: {reason}"))
}
