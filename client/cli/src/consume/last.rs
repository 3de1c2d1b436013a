//! `--last N`: exactly N messages of each partition, though the broker only promises a place from which at least N follow
//! (a compressed set is read from its first message on).
//!
//! Two passes: the first counts what follows that place, the second drops the surplus. Nothing is kept in memory but a
//! number for each partition, however large N is.

use std::collections::BTreeMap;

use corelane_client::{Client, PartitionPosition, Start};

use super::args::ConsumeArgs;
use super::job::{builder, consume_failure};
use crate::error::CliError;

/// How many messages are still to be dropped, by partition.
#[derive(Debug, Default)]
pub(super) struct Surplus(BTreeMap<u32, u64>);

impl Surplus {
    /// Whether this message of `partition` is one too many.
    pub(super) fn drops(&mut self, partition: u32) -> bool {
        let Some(left) = self.0.get_mut(&partition) else { return false };
        *left -= 1;
        if *left == 0 {
            self.0.remove(&partition);
        }
        true
    }
}

/// The places to begin at, and what to drop from there on.
pub(super) async fn find_last(
    client: &Client,
    args: &ConsumeArgs,
    messages: u64,
) -> Result<(Vec<PartitionPosition>, Surplus), CliError> {
    let mut consumer = builder(client, args).start(Start::LastMessages(messages)).until_end(true).build().await?;
    let places = consumer.positions();
    let mut counts = BTreeMap::new();
    while let Some(message) = consumer.next().await {
        *counts.entry(message.map_err(consume_failure)?.partition()).or_insert(0_u64) += 1;
    }
    Ok((places, surplus(counts, messages)))
}

fn surplus(counts: BTreeMap<u32, u64>, wanted: u64) -> Surplus {
    Surplus(counts.into_iter().filter(|(_, count)| *count > wanted).map(|(at, count)| (at, count - wanted)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_much_is_dropped() {
        let mut surplus = surplus(BTreeMap::from([(0, 12), (1, 10), (2, 3)]), 10);
        let dropped: Vec<bool> = [0, 0, 0, 1, 2, 3].map(|partition| surplus.drops(partition)).to_vec();
        assert_eq!(dropped, [true, true, false, false, false, false]);
    }
}
