//! Two partitions side by side, message by message, as they lie in their logs: positions and bytes must be the same.

use corelane_client::{Client, ConsumeError, ConsumedMessage, Consumer, OutOfRange, Start};

use crate::error::CliError;

/// A partition of one of the sides.
pub(super) struct Place<'a> {
    pub(super) client: &'a Client,
    pub(super) topic: &'a str,
    pub(super) partition: u32,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Messages that are the same; a compressed set counts as one.
    pub(super) messages: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// The first difference, in words.
    pub(super) difference: Option<String>,
}

/// Compares all that lies between two positions.
pub(super) async fn places(places: [Place<'_>; 2], from: u64, until: u64) -> Result<Compared, CliError> {
    let mut compared = Compared::default();
    if from >= until {
        return Ok(compared);
    }
    let [source, target] = places;
    let (mut source, mut target) = (reader(&source, from).await?, reader(&target, from).await?);
    loop {
        let (left, right) = (next(&mut source, until).await?, next(&mut target, until).await?);
        let (Some(left), Some(right)) = (&left, &right) else {
            compared.difference = match (left, right) {
                (Some(only), None) => Some(format!("what lies at {} is missing in the target", only.position())),
                (None, Some(only)) => Some(format!("what the target has at {} is not in the source", only.position())),
                _ => None,
            };
            return Ok(compared);
        };
        if left.position() != right.position() {
            let (left, right) = (left.position(), right.position());
            compared.difference = Some(format!("a message lies at {left} in the source and at {right} in the target"));
            return Ok(compared);
        }
        if left.frame() != right.frame() {
            compared.difference = Some(format!("the messages at {} are not the same", left.position()));
            return Ok(compared);
        }
        compared.messages += 1;
        compared.bytes += left.frame().len() as u64;
    }
}

async fn reader(place: &Place<'_>, from: u64) -> Result<Consumer, CliError> {
    let consumer = place.client.consumer().partition_from(place.topic, place.partition, Start::Position(from));
    Ok(consumer.whole_sets().out_of_range(OutOfRange::Fail).until_end(true).build().await?)
}

async fn next(reader: &mut Consumer, until: u64) -> Result<Option<ConsumedMessage>, CliError> {
    loop {
        match reader.next().await {
            Some(Ok(message)) => return Ok(Some(message).filter(|message| message.position() < until)),
            None => return Ok(None),
            Some(Err(error)) if error.is_retryable() => eprintln!("corelane: {error}; still trying"),
            Some(Err(ConsumeError::Unavailable { cause, .. })) => return Err(cause.into()),
            Some(Err(error)) => return Err(CliError::Consume(error.to_string())),
        }
    }
}
