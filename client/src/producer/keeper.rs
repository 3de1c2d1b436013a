//! The task that keeps a producer's knowledge of its topics fresh: when a lane met an obstacle, and now and then, so that
//! new partitions are found.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::accumulator::Life;
use super::shared::Shared;
use crate::error::CallError;

/// How old what is known may become.
const REFRESH: Duration = Duration::from_mins(1);
/// The same while partitions are down, so that they are used again soon after they are back.
const REFRESH_DOWN: Duration = Duration::from_secs(5);
/// A topic that the cluster does not know is gone only when it still is after so long: a broker may be behind.
const DOUBT: Duration = Duration::from_secs(2);

/// Runs until the producer is over or forgotten.
pub(super) async fn run(producer: Weak<Shared>) {
    let Some(shared) = producer.upgrade() else { return };
    let mut backoff = shared.cluster.backoff();
    loop {
        let is_down =
            shared.accumulator().partitions.iter().any(|partition| partition.is_down && partition.gone.is_none());
        let age_max = if is_down { REFRESH_DOWN } else { REFRESH };
        let asked = tokio::time::timeout(age_max, shared.keeper.notified()).await.is_ok();
        if shared.accumulator().life == Life::Over {
            return;
        }
        let mut topics = shared.take_stale();
        if !asked {
            let now = Instant::now();
            topics.extend(
                shared
                    .accumulator()
                    .topics
                    .iter()
                    .filter(|topic| !topic.name.is_empty())
                    .map(|topic| (topic.name.clone(), now)),
            );
        }
        let mut all_well = true;
        for (topic, since) in topics {
            all_well &= refresh(&shared, &topic, since).await;
        }
        // Lanes ask at each failure: the pause keeps the answers from being asked for in a loop.
        if all_well {
            backoff.reset();
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

async fn refresh(shared: &Arc<Shared>, topic: &Arc<str>, since: Instant) -> bool {
    if topic.is_empty() {
        return true;
    }
    // A hint may have told already.
    if let Ok(places) = shared.cluster.known(topic) {
        shared.learn(&places);
    }
    let refreshed = shared.cluster.refresh(&[topic.to_string()], since).await;
    match refreshed.and_then(|()| shared.cluster.known(topic)) {
        Ok(places) => {
            shared.learn(&places);
            true
        }
        Err(CallError::UnknownTopic { .. }) if since.elapsed() > DOUBT => {
            tracing::warn!(%topic, "the topic is gone");
            let woken = shared.accumulator().forget(topic);
            woken.into_iter().for_each(std::task::Waker::wake);
            true
        }
        Err(error) => {
            tracing::debug!(%topic, %error, "no fresh metadata");
            if matches!(error, CallError::UnknownTopic { .. }) {
                shared.ask_again(topic, since);
            }
            false
        }
    }
}
