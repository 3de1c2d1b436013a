//! Commits: at each interval, and when the program asks for one. Each partition has one under way at a time.

use std::sync::Arc;
use std::time::Duration;

use corelane_proto::frame::Method;
use corelane_proto::pb;

use super::member::Session;
use super::state::Key;

/// Partitions in one request.
pub(super) const PARTITIONS_MAX: usize = 500;

/// Commits until the membership is over.
pub(super) async fn run(session: Arc<Session>) {
    let shared = &session.shared;
    loop {
        let pause = async {
            match shared.settings.commit_interval {
                Some(interval) => tokio::time::sleep(interval).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pause => {}
            () = shared.commit_now.notified() => {}
        }
        let mut backoff = shared.cluster.backoff();
        loop {
            let due = shared.state().take_dirty(PARTITIONS_MAX);
            if due.is_empty() {
                break;
            }
            match commit_all(&session, &due).await {
                None => return,
                Some(true) => {}
                // Others keep changing it.
                Some(false) => tokio::time::sleep(backoff.pause().max(Duration::from_millis(20))).await,
            }
        }
    }
}

/// Commits these. `None`: the membership is over; `false`: some are to be sent again.
async fn commit_all(session: &Session, due: &[(Key, pb::CommitPartition)]) -> Option<bool> {
    let shared = &session.shared;
    let partitions: Vec<pb::CommitPartition> = due.iter().map(|(_, commit)| commit.clone()).collect();
    let outcomes = commit(session, &partitions).await?;
    let mut is_done = true;
    {
        let mut state = shared.state();
        for ((key, commit), outcome) in due.iter().zip(&outcomes) {
            state.commit_answered(*key, commit, outcome);
            is_done &= outcome.result() != pb::CommitResult::Retry;
        }
    }
    shared.tell_lost();
    shared.notify();
    Some(is_done)
}

/// One request; its outcomes, one for each partition. `None`: the membership is over.
pub(super) async fn commit(session: &Session, partitions: &[pb::CommitPartition]) -> Option<Vec<pb::CommitOutcome>> {
    let call = session.line.call(&session.shared.cluster, Method::Commit, session.call_timeout(), |member| {
        pb::CommitRequest { member: Some(member.clone()), partitions: partitions.to_vec() }
    });
    match call.await {
        Ok((answer, _)) => {
            let answer: pb::CommitResponse = answer;
            Some(answer.partitions)
        }
        Err(error) => {
            session.line.end(error.to_string());
            None
        }
    }
}
