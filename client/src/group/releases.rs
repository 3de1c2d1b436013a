//! Giving partitions up: as soon as the program has put down its message of one, the final position is committed and the
//! ownership ends, both in one.

use std::sync::Arc;

use corelane_proto::frame::Method;
use corelane_proto::pb;

use super::commits::PARTITIONS_MAX;
use super::member::Session;
use super::state::Key;

/// Releases what is to be released, until the membership is over.
pub(super) async fn run(session: Arc<Session>) {
    let shared = &session.shared;
    let mut backoff = shared.cluster.backoff();
    loop {
        let changed = shared.changed();
        let (keys, wait) = shared.state().releasable(PARTITIONS_MAX);
        if keys.is_empty() {
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(wait) => {}
            }
            continue;
        }
        tell(&session, &keys);
        let sent: Vec<(Key, pb::CommitPartition)> = {
            let mut state = shared.state();
            keys.into_iter().filter_map(|key| Some((key, state.take_commit(key)?))).collect()
        };
        let partitions: Vec<pb::CommitPartition> = sent.iter().map(|(_, release)| release.clone()).collect();
        let Some(outcomes) = release(&session, &partitions).await else { return };
        let mut again = false;
        {
            let mut state = shared.state();
            for ((key, release), outcome) in sent.iter().zip(&outcomes) {
                state.release_answered(*key, release, outcome);
                again |= outcome.result() == pb::CommitResult::Retry;
            }
        }
        shared.tell_lost();
        shared.notify();
        if again {
            tokio::time::sleep(backoff.pause()).await;
        } else {
            backoff.reset();
        }
    }
}

/// Releases what the registry says is held and nobody here knows.
pub(super) async fn unknown(session: Arc<Session>, partitions: Vec<pb::CommitPartition>) {
    for some in partitions.chunks(PARTITIONS_MAX) {
        if release(&session, some).await.is_none() {
            return;
        }
    }
}

/// Before the final commit, so that the program can still mark what it has done.
fn tell(session: &Session, keys: &[Key]) {
    let Some(on_release) = &session.shared.settings.on_release else { return };
    let untold = session.shared.state().take_untold(keys);
    for partition in untold {
        on_release(&partition);
    }
}

async fn release(session: &Session, partitions: &[pb::CommitPartition]) -> Option<Vec<pb::CommitOutcome>> {
    let call = session.line.call(&session.shared.cluster, Method::Release, session.call_timeout(), |member| {
        pb::ReleaseRequest { member: Some(member.clone()), partitions: partitions.to_vec() }
    });
    match call.await {
        Ok((answer, _)) => {
            let answer: pb::ReleaseResponse = answer;
            Some(answer.partitions)
        }
        Err(error) => {
            // A refusal for good: only a new membership can be in order again.
            session.line.end(error.to_string());
            None
        }
    }
}
