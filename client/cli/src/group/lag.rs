//! How far a group is behind in a partition: in bytes exactly, in messages by what the next ones are like, in time by when
//! the next one was published.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corelane_client::{Client, OutOfRange, PartitionOfGroup, Start};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::error::CliError;

/// How long a broker that cannot be asked is asked again: whoever looks at a group wants to see it.
const BEGIN_PATIENCE: Duration = Duration::from_secs(1);
/// Partitions that are looked at, at a time.
const LOOKS_MAX: usize = 16;
/// How many messages tell how long the others are, and how many are read at most until a compressed set ends.
const SAMPLE_MESSAGES: u64 = 200;
const SAMPLE_MESSAGES_MAX: u64 = 20_000;
/// About how many bytes are fetched for them.
const SAMPLE_BYTES: u32 = 64 << 10;

/// How far a group is behind in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lag {
    /// Where the group goes on.
    pub(super) position: u64,
    pub(super) visible_end: u64,
    pub(super) messages: u64,
    /// Whether all messages were counted.
    pub(super) is_exact: bool,
    /// How long ago the next message was published; none: there is none.
    pub(super) behind_ms: Option<u64>,
}

impl Lag {
    pub(super) fn bytes(&self) -> u64 {
        self.visible_end.saturating_sub(self.position)
    }
}

/// The lag of each partition; none where nothing is committed. What cannot be found out is an error in words.
pub(super) async fn of_all(
    client: &Client,
    partitions: &[PartitionOfGroup],
    patience: Duration,
) -> Vec<Option<Result<Lag, String>>> {
    let turns = Arc::new(Semaphore::new(LOOKS_MAX));
    let mut looks = JoinSet::new();
    for (index, partition) in partitions.iter().enumerate() {
        // A topic without a name was deleted.
        let Some(committed) = partition.committed.filter(|_| !partition.topic.is_empty()) else { continue };
        let (client, turns) = (client.clone(), turns.clone());
        let (topic, number) = (partition.topic.clone(), partition.partition);
        looks.spawn(async move {
            let _turn = turns.acquire().await;
            let look = tokio::time::timeout(patience, of(&client, &topic, number, committed)).await;
            let lag = look.unwrap_or_else(|_| Err(CliError::Argument("nothing was answered in time".to_owned())));
            (index, lag.map_err(|error| error.to_string()))
        });
    }
    let mut lags = vec![None; partitions.len()];
    while let Some(Ok((index, lag))) = looks.join_next().await {
        lags[index] = Some(lag);
    }
    lags
}

async fn of(client: &Client, topic: &str, partition: u32, committed: (u32, u64)) -> Result<Lag, CliError> {
    let from = |start| {
        let builder = client.consumer().partition_from(topic, partition, start).out_of_range(OutOfRange::Earliest);
        builder
            .fetch_bytes(SAMPLE_BYTES)
            .prefetch_bytes(SAMPLE_BYTES as usize)
            .until_end(true)
            .begin_patience(BEGIN_PATIENCE)
            .build()
    };
    let (epoch, position) = committed;
    let mut consumer = from(Start::Position(position)).await?;
    // A log that began again is read from its start.
    if consumer.positions().first().is_some_and(|at| at.epoch != epoch) {
        consumer = from(Start::Earliest).await?;
    }
    let Some((position, visible_end)) = consumer.positions().first().map(|at| (at.position, at.visible_end)) else {
        return Err(CliError::Argument("there is no such partition".to_owned()));
    };
    let (mut sampled, mut behind_ms) = (0, None);
    // Up to the end of the last message that stands in the log by itself, or ends a compressed set: inside of one,
    // positions are no bytes.
    let (mut whole, mut reached) = (0, position);
    while whole < SAMPLE_MESSAGES && sampled < SAMPLE_MESSAGES_MAX {
        match consumer.next().await {
            Some(Ok(message)) => {
                sampled += 1;
                if message.next_position() > message.position() + 1 {
                    (whole, reached) = (sampled, message.next_position());
                }
                let published = u64::try_from(message.timestamp_ms()).unwrap_or(0);
                behind_ms = behind_ms.or_else(|| Some(now_ms().saturating_sub(published)));
            }
            Some(Err(error)) if error.is_retryable() => {}
            Some(Err(error)) => return Err(CliError::Consume(error.to_string())),
            None => return Ok(Lag { position, visible_end, messages: sampled, is_exact: true, behind_ms }),
        }
    }
    let messages = estimate(whole, reached - position, visible_end.saturating_sub(position)).max(sampled);
    Ok(Lag { position, visible_end, messages, is_exact: false, behind_ms })
}

/// As many as there would be if all were as long as those that were read.
fn estimate(sampled: u64, sampled_bytes: u64, bytes: u64) -> u64 {
    let estimate = u128::from(bytes) * u128::from(sampled) / u128::from(sampled_bytes.max(1));
    u64::try_from(estimate).unwrap_or(u64::MAX)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_estimated_from_those_that_were_read() {
        assert_eq!(estimate(200, 20_000, 1_000_000), 10_000);
        assert_eq!(estimate(200, 20_000, 20_000), 200);
        assert_eq!(estimate(0, 0, 10), 0);
        assert_eq!(estimate(200, 1, u64::MAX), u64::MAX);
    }
}
