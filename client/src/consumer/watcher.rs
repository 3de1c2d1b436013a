//! The task that finds the partitions that are added to a consumer's topics while it runs. What was published to them
//! before they were found is read too: they begin at their start.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::finder;
use super::message::Source;
use super::shared::{Added, Shared};
use super::{OutOfRange, Start};
use crate::error::CallError;

/// Looks now and then, until the consumer is over or gone.
pub(super) async fn run(consumer: Weak<Shared>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(shared) = consumer.upgrade() else { return };
        if shared.state().over {
            return;
        }
        let wanted = shared.settings.wanted.iter().filter(|wanted| wanted.partition.is_none());
        let topics: BTreeSet<String> = wanted.map(|wanted| wanted.topic.clone()).collect();
        for topic in topics {
            if let Err(error) = look(&shared, &topic).await {
                // What keeps the streams from going on is told by themselves; this is tried again.
                tracing::debug!(topic, %error, "no look for new partitions");
            }
        }
    }
}

async fn look(shared: &Arc<Shared>, topic: &str) -> Result<(), CallError> {
    shared.cluster.refresh(&[topic.to_owned()], Instant::now()).await?;
    let places = shared.cluster.known(topic)?;
    let known = {
        let state = shared.state();
        let of_topic = state.partitions.iter().filter(|at| &*at.source.topic == topic);
        // A topic that was created again under its name is another one: the streams of the old one end.
        if of_topic.clone().any(|at| at.topic_id != places.topic_id) {
            return Ok(());
        }
        of_topic.count() as u32
    };
    for partition in known..places.partitions.len() as u32 {
        let begun = finder::begin(&shared.cluster, topic, partition, Start::Earliest, OutOfRange::Earliest).await;
        let (from, bounds) = begun.map_err(|error| error.into_call(topic, partition))?;
        let source = Arc::new(Source { topic: places.name.clone(), partition });
        let added = Added {
            source,
            topic_id: places.topic_id,
            epoch: places.partition(partition)?.epoch,
            begin: Some(from.position),
            visible_end: bounds.visible_end,
            until: None,
        };
        tracing::info!(topic, partition, "a new partition is read");
        let (index, generation) = shared.state().take_up(added);
        shared.start_stream(index, generation, from, 0)?;
    }
    Ok(())
}
