//! Going back, or on, in a partition on purpose: the place is committed, whatever was committed before, and then read from.

use std::sync::Arc;

use corelane_proto::pb;

use super::commits;
use super::error::GroupError;
use super::shared::Shared;
use super::state::{Key, Phase, Place};
use crate::consumer::{Beginning, NoBeginning, Start, find_beginning};
use crate::error::CallError;

pub(super) async fn rewind(shared: &Arc<Shared>, topic: &str, partition: u32, start: Start) -> Result<(), GroupError> {
    let not_owned = || GroupError::NotOwned { topic: topic.to_owned(), partition };
    let timeout = shared.cluster.settings.request_timeout;
    let doing = async {
        let (key, fence) = owned(shared, topic, partition).await.ok_or_else(not_owned)?;
        let (place, beginning) =
            find(shared, topic, partition, start).await.map_err(|cause| shared.call_error(cause))?;
        if !stop(shared, key, fence.number).await {
            return Err(not_owned());
        }
        if !commit(shared, key, fence, place).await {
            return Err(not_owned());
        }
        let mut state = shared.state();
        if state.tenure(key, fence.number).is_none_or(|tenure| tenure.phase != Phase::Resting) {
            // It was released or lost meanwhile; the next owner goes on at the new place.
            return Ok(());
        }
        let topic: Arc<str> = topic.into();
        let stream = shared.streams.start(&topic, key.0, partition, beginning);
        let stream = stream.map_err(|cause| shared.call_error(cause))?;
        state.reads(key, fence.number, stream, place, Some(place));
        Ok(())
    };
    match tokio::time::timeout(timeout, doing).await {
        Ok(done) => done,
        Err(_) => Err(GroupError::NotCommitted { partitions: vec![(topic.to_owned(), partition)] }),
    }
}

/// The ownership, once its beginning is known.
async fn owned(shared: &Shared, topic: &str, partition: u32) -> Option<(Key, pb::Fence)> {
    loop {
        let changed = shared.changed();
        {
            let state = shared.state();
            let key = state.key_of(topic, partition)?;
            let tenure = state.tenures.get(&key)?;
            match tenure.phase {
                Phase::Reading | Phase::Resting => return Some((key, tenure.fence)),
                Phase::Releasing => return None,
                Phase::Resolving => {}
            }
        }
        changed.await;
    }
}

async fn find(shared: &Shared, topic: &str, partition: u32, start: Start) -> Result<(Place, Beginning), CallError> {
    let beginning = find_beginning(&shared.cluster, topic, partition, start).await.map_err(|error| match error {
        NoBeginning::Call(error) => error,
        NoBeginning::OutOfRange(bounds) => CallError::Invalid {
            field: "position",
            reason: format!("outside of what {topic}/{partition} retains, {} to {}", bounds.start, bounds.end),
        },
    })?;
    let epoch = shared.cluster.known(topic)?.partition(partition)?.epoch;
    Ok((Place { epoch, position: beginning.position() }, beginning))
}

/// Stops the stream and takes the one commit that may be under way. False: not owned any more.
async fn stop(shared: &Shared, key: Key, fence: u64) -> bool {
    loop {
        let changed = shared.changed();
        {
            let mut state = shared.state();
            let Some(tenure) = state.tenure(key, fence).filter(|tenure| tenure.phase != Phase::Releasing) else {
                return false;
            };
            let was_committing = std::mem::replace(&mut tenure.is_committing, true);
            state.stop(key, Phase::Resting);
            if !was_committing {
                return true;
            }
        }
        changed.await;
    }
}

/// Commits the place. False: not owned any more.
async fn commit(shared: &Shared, key: Key, fence: pb::Fence, place: Place) -> bool {
    let sent = pb::CommitPartition {
        topic_id: key.0.to_vec(),
        partition: key.1,
        fence: Some(fence),
        place: Some(place.to_pb()),
        rewind: true,
    };
    let mut backoff = shared.cluster.backoff();
    loop {
        let Some(session) = shared.session() else { return false };
        let Some(outcomes) = commits::commit(&session, std::slice::from_ref(&sent)).await else { return false };
        let Some(outcome) = outcomes.first() else { return false };
        if outcome.result() == pb::CommitResult::Retry {
            tokio::time::sleep(backoff.pause()).await;
            continue;
        }
        let mut state = shared.state();
        if outcome.result() == pb::CommitResult::Ok
            && let Some(tenure) = state.tenure(key, fence.number)
        {
            // What was done before counts no more.
            (tenure.done, tenure.handed) = (Some(place), None);
        }
        state.commit_answered(key, &sent, outcome);
        drop(state);
        shared.tell_lost();
        shared.notify();
        return outcome.result() != pb::CommitResult::Lost;
    }
}
