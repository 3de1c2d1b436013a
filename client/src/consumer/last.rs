//! Where exactly the last N messages of a partition begin. The broker names a place from which at least N follow (it
//! knows the boundaries of some messages only, and a compressed set is one message to it), so they are counted.

use super::error::ConsumeError;
use super::message::Source;
use super::{Consumer, Start};
use crate::client::Client;
use crate::error::CallError;
use crate::topic::Found;

/// The position of the last `wanted` messages before the visible end that `found` tells; what is published meanwhile does
/// not matter. Nothing is kept in memory, however many they are.
pub(super) async fn position_of_last(
    client: &Client,
    source: &Source,
    found: Found,
    wanted: u64,
) -> Result<u64, CallError> {
    let mut counting = reader(client, source, found).await?;
    let mut count = 0_u64;
    while is_before(&mut counting, found.visible_end).await? {
        count += 1;
    }
    let mut dropping = reader(client, source, found).await?;
    for _ in 0..count.saturating_sub(wanted) {
        is_before(&mut dropping, found.visible_end).await?;
    }
    Ok(dropping.position(&source.topic, source.partition).unwrap_or(found.position))
}

async fn reader(client: &Client, source: &Source, found: Found) -> Result<Consumer, CallError> {
    let from = Start::Position(found.position);
    let reader = client.consumer().partition_from(&*source.topic, source.partition, from).until_end(true);
    // A consumer that begins with the last messages asks consumers that begin at a position.
    Box::pin(reader.build()).await
}

/// Whether there is another message before the end.
async fn is_before(reader: &mut Consumer, end: u64) -> Result<bool, CallError> {
    loop {
        match reader.next().await {
            None => return Ok(false),
            Some(Ok(message)) => return Ok(message.position() < end),
            Some(Err(ConsumeError::Unavailable { cause, .. })) => return Err(cause),
            Some(Err(_)) => {}
        }
    }
}
