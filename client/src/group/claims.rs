//! Taking partitions over: claims until each one of the target is owned, then for each the place where the group goes on.
//! A place that a policy has chosen is committed before the first message is fetched.

use std::collections::BTreeMap;
use std::sync::Arc;

use corelane_proto::frame::Method;
use corelane_proto::ids::TopicId;
use corelane_proto::pb;
use tokio::sync::Semaphore;

use super::builder::GroupStart;
use super::commits::{self, PARTITIONS_MAX};
use super::error::GroupError;
use super::member::Session;
use super::state::{Key, Phase, Place};
use super::{Fence, GroupPartition};
use crate::consumer::{Beginning, ConsumeError, NoBeginning, OnSkip, Skip, SkipCause, Start, find_beginning};
use crate::error::CallError;

/// Beginnings that are looked for at a time.
const BEGINNINGS_MAX: usize = 32;

/// Claims until the membership is over.
pub(super) async fn run(session: Arc<Session>) {
    let shared = session.shared.clone();
    let turns = Arc::new(Semaphore::new(BEGINNINGS_MAX));
    let mut backoff = shared.cluster.backoff();
    let mut beginnings = tokio::task::JoinSet::new();
    loop {
        while beginnings.try_join_next().is_some() {}
        let changed = shared.changed();
        let mut wanted = shared.state().unclaimed();
        wanted.truncate(PARTITIONS_MAX);
        if wanted.is_empty() {
            changed.await;
            continue;
        }
        shared.state().claiming = wanted.iter().copied().collect();
        let claimed = claim(&session, &wanted).await;
        shared.state().claiming.clear();
        shared.notify();
        let claimed = match claimed {
            Claims::Over => return,
            Claims::Stale => continue,
            Claims::Answered(claimed) => claimed,
        };
        if claimed.is_empty() {
            tokio::time::sleep(backoff.pause()).await;
            continue;
        }
        backoff.reset();
        for partition in claimed {
            let turns = turns.clone();
            let session = session.clone();
            beginnings.spawn(async move {
                let Ok(_turn) = turns.acquire().await else { return };
                begin(&session, &partition).await;
            });
        }
    }
}

/// What came of a claim.
enum Claims {
    /// What was given; nothing: others own it all still.
    Answered(Vec<Claimed>),
    /// The target or the attachment is another one by now: what was given all the same is found by the next claim.
    Stale,
    /// The membership is over.
    Over,
}

/// A partition that was claimed just now.
struct Claimed {
    key: Key,
    topic: Arc<str>,
    fence: pb::Fence,
    committed: Option<Place>,
    begins_at_start: bool,
}

/// One claim, given up for another one as soon as the target changes.
async fn claim(session: &Arc<Session>, wanted: &[Key]) -> Claims {
    let shared = &session.shared;
    let names: BTreeMap<Key, Arc<str>> = {
        let state = shared.state();
        wanted.iter().filter_map(|key| Some((*key, state.target.get(key)?.clone()))).collect()
    };
    let max_wait_ms = session.wait().as_millis() as u32;
    let call = session.line.call(&shared.cluster, Method::Claim, session.wait_timeout(), |member| pb::ClaimRequest {
        member: Some(member.clone()),
        partitions: by_topic(&names),
        max_wait_ms,
    });
    let changes = async {
        loop {
            let changed = shared.changed();
            let mut now = shared.state().unclaimed();
            now.truncate(PARTITIONS_MAX);
            if now != wanted {
                return;
            }
            changed.await;
        }
    };
    let (answer, attached) = tokio::select! {
        biased;
        answer = call => match answer {
            Ok(answer) => answer,
            Err(error) => {
                session.line.end(error.to_string());
                return Claims::Over;
            }
        },
        () = changes => return Claims::Stale,
    };
    let answer: pb::ClaimResponse = answer;
    let is_current = session.line.current().is_some_and(|now| now.member.attachment == attached.member.attachment);
    if !is_current {
        return Claims::Stale;
    }
    let mut claimed = Vec::new();
    let mut state = shared.state();
    for partition in answer.partitions {
        let Ok(topic_id) = TopicId::try_from(&partition.topic_id[..]) else { continue };
        let key = (topic_id, partition.partition);
        match (partition.result(), partition.fence, names.get(&key)) {
            (pb::ClaimResult::Claimed, Some(fence), Some(topic)) if !state.tenures.contains_key(&key) => {
                state.claimed(key, topic.clone(), fence);
                let (topic, committed) = (topic.clone(), partition.committed.map(Place::from_pb));
                claimed.push(Claimed { key, topic, fence, committed, begins_at_start: partition.begins_at_start });
            }
            (pb::ClaimResult::Gone, ..) => {
                state.target.remove(&key);
            }
            _ => {}
        }
    }
    // The target may have changed since it was asked for.
    state.release_what_moves();
    Claims::Answered(claimed)
}

fn by_topic(names: &BTreeMap<Key, Arc<str>>) -> Vec<pb::TopicPartitions> {
    let mut topics: Vec<pb::TopicPartitions> = Vec::new();
    for (topic_id, partition) in names.keys() {
        match topics.last_mut() {
            Some(last) if last.topic_id == topic_id.to_vec() => last.partitions.push(*partition),
            _ => topics.push(pb::TopicPartitions {
                topic_id: topic_id.to_vec(),
                topic: String::new(),
                partitions: vec![*partition],
            }),
        }
    }
    topics
}

// ---- Where to begin ------------------------------------------------------------------------------------------------

/// How far the beginning of a partition has come.
struct Progress {
    committed: Option<Place>,
    /// A policy chooses once: were `latest` chosen anew after a commit without an answer, what came between the two would
    /// be skipped.
    chosen: Option<(Place, Beginning)>,
}

/// Why a partition does not begin.
enum Obstacle {
    /// It is tried again.
    Call(CallError),
    /// The program is told, and the partition rests.
    Rests(GroupError),
    /// It is not owned any more, or is to be released.
    Over,
}

impl From<CallError> for Obstacle {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// Finds the place, commits it if a policy has chosen it, and begins to read; again and again until it succeeds or the
/// partition is not owned any more.
async fn begin(session: &Arc<Session>, claimed: &Claimed) {
    let shared = &session.shared;
    let (key, fence) = (claimed.key, claimed.fence.number);
    if let Some(on_claim) = &shared.settings.on_claim {
        let partition = shared.state().tenure(key, fence).map(|tenure| GroupPartition::of(key, tenure, None));
        if let Some(partition) = partition {
            let committed = claimed.committed.map(|place| (place.epoch, place.position));
            on_claim(&GroupPartition { committed, ..partition });
        }
    }
    let mut backoff = shared.cluster.backoff();
    let mut progress = Progress { committed: claimed.committed, chosen: None };
    // What keeps it from beginning is told once a time-out, while the attempts go on.
    let mut told = std::time::Instant::now();
    while shared.state().is_resolving(key, fence) {
        match try_begin(session, claimed, &mut progress).await {
            Ok(()) | Err(Obstacle::Over) => break,
            Err(Obstacle::Rests(error)) => {
                let mut state = shared.state();
                if state.is_resolving(key, fence) {
                    state.stop(key, Phase::Resting);
                    state.report(error);
                }
                break;
            }
            Err(Obstacle::Call(error)) => {
                tracing::debug!(topic = %claimed.topic, partition = key.1, %error, "where to begin is not known yet");
                if told.elapsed() >= shared.cluster.settings.request_timeout {
                    told = std::time::Instant::now();
                    let (topic, partition) = (claimed.topic.to_string(), key.1);
                    let error = ConsumeError::Unavailable { topic, partition, cause: error };
                    shared.state().report(error.into());
                }
                shared.unless_closing(tokio::time::sleep(backoff.pause())).await;
                // Its place or its epoch may be another one.
                let _ = shared.cluster.refresh(&[claimed.topic.to_string()], std::time::Instant::now()).await;
            }
        }
    }
    shared.notify();
}

async fn try_begin(session: &Session, claimed: &Claimed, progress: &mut Progress) -> Result<(), Obstacle> {
    let shared = &session.shared;
    let (key, fence) = (claimed.key, claimed.fence.number);
    let (topic_id, partition) = key;
    let places = shared.cluster.topic(&claimed.topic).await?;
    if places.topic_id != topic_id {
        return Err(CallError::UnknownTopic { topic: claimed.topic.to_string() }.into());
    }
    let epoch = places.partition(partition)?.epoch;
    let beginning = match progress.committed {
        // What this client knows of the topic is older than what is committed.
        Some(place) if place.epoch > epoch => {
            let reason = format!(
                "the group's position is of epoch {}, and the log is in epoch {epoch}; if that lasts, the position was never \
                 there: set another one with corelane group reset",
                place.epoch
            );
            return Err(CallError::Unavailable { topic: claimed.topic.to_string(), partition, reason }.into());
        }
        Some(place) if place.epoch == epoch => resume(session, claimed, place).await?,
        Some(place) => {
            tracing::warn!(topic = %claimed.topic, partition, epoch, was = place.epoch, "the log began again");
            let beginning = find(session, claimed, Start::Earliest).await?;
            tell_skip(session, claimed, (place, beginning.position()), epoch, SkipCause::NewLog);
            beginning
        }
        None => {
            let chosen = progress.chosen.filter(|(place, _)| place.epoch == epoch);
            let (place, beginning) = if let Some(chosen) = chosen {
                chosen
            } else {
                let beginning = choose(session, claimed).await?;
                *progress.chosen.insert((Place { epoch, position: beginning.position() }, beginning))
            };
            let committed = commit_first(session, claimed, place).await?;
            progress.committed = Some(committed);
            if committed != place {
                // Somebody had committed more: from there, then.
                return Box::pin(try_begin(session, claimed, progress)).await;
            }
            beginning
        }
    };
    let place = Place { epoch, position: beginning.position() };
    let mut state = shared.state();
    if !state.is_resolving(key, fence) {
        return Err(Obstacle::Over);
    }
    let stream = shared.streams.start(&claimed.topic, topic_id, partition, beginning)?;
    state.reads(key, fence, stream, place, progress.committed);
    Ok(())
}

async fn find(session: &Session, claimed: &Claimed, start: Start) -> Result<Beginning, Obstacle> {
    let found = find_beginning(&session.shared.cluster, &claimed.topic, claimed.key.1, start).await;
    found.map_err(|error| match error {
        NoBeginning::Call(error) => Obstacle::Call(error),
        NoBeginning::OutOfRange(_) => unreachable!("only a position can be out of range"),
    })
}

/// At the committed position; at the start when retention has taken what was there.
async fn resume(session: &Session, claimed: &Claimed, place: Place) -> Result<Beginning, Obstacle> {
    let (shared, partition) = (&session.shared, claimed.key.1);
    let start = Start::Position(place.position);
    match find_beginning(&shared.cluster, &claimed.topic, partition, start).await {
        Ok(beginning) => Ok(beginning),
        Err(NoBeginning::Call(error)) => Err(error.into()),
        Err(NoBeginning::OutOfRange(bounds)) if place.position < bounds.start => {
            let (from, to) = (place.position, bounds.start);
            tracing::warn!(topic = %claimed.topic, partition, from, to, "retention has taken what comes next");
            shared.state().skipped += 1;
            let beginning = find(session, claimed, Start::Earliest).await?;
            tell_skip(session, claimed, (place, beginning.position()), place.epoch, SkipCause::Retention);
            Ok(beginning)
        }
        Err(NoBeginning::OutOfRange(bounds)) => Err(Obstacle::Rests(GroupError::AheadOfEnd {
            group: shared.settings.group.clone(),
            topic: claimed.topic.to_string(),
            partition,
            position: place.position,
            end: bounds.end,
        })),
    }
}

fn tell_skip(session: &Session, claimed: &Claimed, (place, to): (Place, u64), epoch: u32, cause: SkipCause) {
    let (topic, (topic_id, partition), from) = (claimed.topic.clone(), claimed.key, place.position);
    let told = session.shared.settings.consumer.on_skip.as_ref();
    OnSkip::tell(told, &Skip { topic, topic_id, partition, epoch, from, to, cause });
}

/// Where a group without a position begins.
async fn choose(session: &Session, claimed: &Claimed) -> Result<Beginning, Obstacle> {
    let start = match session.shared.settings.start {
        // What came after the group begins at its start: what was published before it was noticed would be skipped.
        _ if claimed.begins_at_start => Start::Earliest,
        GroupStart::Earliest => Start::Earliest,
        GroupStart::Latest => Start::Latest,
        GroupStart::TimeMs(time_ms) => Start::TimeMs(time_ms),
        GroupStart::Fail => {
            return Err(Obstacle::Rests(GroupError::NoCommittedPosition {
                group: session.shared.settings.group.clone(),
                topic: claimed.topic.to_string(),
                partition: claimed.key.1,
            }));
        }
    };
    find(session, claimed, start).await
}

/// Commits the place that a policy has chosen. Returns what is committed then.
async fn commit_first(session: &Session, claimed: &Claimed, place: Place) -> Result<Place, Obstacle> {
    let shared = &session.shared;
    let (key, fence) = (claimed.key, claimed.fence.number);
    match shared.state().tenure(key, fence) {
        Some(tenure) if tenure.phase == Phase::Resolving => tenure.is_committing = true,
        _ => return Err(Obstacle::Over),
    }
    let sent = pb::CommitPartition {
        topic_id: key.0.to_vec(),
        partition: key.1,
        fence: Some(claimed.fence),
        place: Some(place.to_pb()),
        rewind: false,
    };
    let outcomes = commits::commit(session, std::slice::from_ref(&sent)).await.ok_or(Obstacle::Over)?;
    let Some(outcome) = outcomes.first() else {
        return Err(CallError::Unavailable {
            topic: claimed.topic.to_string(),
            partition: key.1,
            reason: "the commit of its first position was not answered".to_owned(),
        }
        .into());
    };
    shared.state().commit_answered(key, &sent, outcome);
    shared.tell_lost();
    shared.notify();
    match outcome.result() {
        pb::CommitResult::Ok => Ok(place),
        pb::CommitResult::Stale => Ok(outcome.committed.map_or(place, Place::from_pb)),
        pb::CommitResult::Lost => Err(Obstacle::Over),
        pb::CommitResult::Gone | pb::CommitResult::Retry => Err(CallError::Unavailable {
            topic: claimed.topic.to_string(),
            partition: key.1,
            reason: format!("fence {}: its first position is not committed yet", Fence::from_pb(&claimed.fence)),
        }
        .into()),
    }
}
