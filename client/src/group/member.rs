//! The life of a member: it joins, keeps its lease with heartbeats on a connection of its own, owns what the target gives
//! it, and joins again as a new member when the membership has ended; in the end it leaves. One task; what else goes on
//! during a membership (claims, beginnings, commits, releases) are tasks that end with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corelane_proto::frame::Method;
use corelane_proto::ids::TopicId;
use corelane_proto::pb;
use tokio::task::JoinSet;

use super::clock::Moment;
use super::error::GroupError;
use super::line::{self, Attached, Attachment, Ended, Line};
use super::shared::Shared;
use super::state::{Key, Life};
use super::{claims, commits, releases};
use crate::error::CallError;
use crate::topic::millis;

/// What a heartbeat's answer may take beyond its wait.
const ANSWER_MAX: Duration = Duration::from_millis(1500);
/// An answer that says nothing new and comes sooner than this is not asked for again at once.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// A membership: what its tasks share.
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) line: Line,
    pub(super) lease: Duration,
}

impl Session {
    /// How long a call may take before another broker is tried.
    pub(super) fn call_timeout(&self) -> Duration {
        self.shared.cluster.settings.request_timeout.min(self.lease / 3)
    }

    /// How long a broker may hold a long poll.
    pub(super) fn wait(&self) -> Duration {
        self.lease / 3
    }

    /// How long a long poll's answer is waited for.
    pub(super) fn wait_timeout(&self) -> Duration {
        self.wait() + ANSWER_MAX.min(self.lease / 4)
    }
}

/// Runs until the consumer is closed, or the group refuses for good.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut backoff = shared.cluster.backoff();
    let mut failing_since: Option<Instant> = None;
    while shared.state().life == Life::Open {
        let joined = tokio::select! {
            joined = join(&shared) => joined,
            () = shared.closing() => break,
        };
        match joined {
            Ok((session, sent)) => {
                failing_since = None;
                if live(session, sent).await.is_some_and(|lived| lived >= Duration::from_secs(1)) {
                    backoff.reset();
                }
            }
            Err(cause) if cause.is_retryable() => {
                tracing::debug!(group = shared.settings.group, error = %cause, "not joined yet");
                let since = *failing_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= shared.cluster.settings.request_timeout {
                    failing_since = None;
                    shared.report(shared.call_error(cause));
                }
            }
            Err(cause) => {
                shared.report(shared.call_error(cause));
                break;
            }
        }
        shared.unless_closing(tokio::time::sleep(backoff.pause())).await;
    }
    shared.over();
}

/// Makes a new member. Also says when the request was sent, from which the lease counts.
async fn join(shared: &Arc<Shared>) -> Result<(Arc<Session>, Moment), CallError> {
    let settings = &shared.settings;
    let timeout = shared.cluster.settings.connect_timeout;
    let (connection, broker_id) = line::connect(&shared.cluster, None, timeout).await?;
    let request = pb::JoinGroupRequest {
        group: settings.group.clone(),
        topics: settings.topics.clone(),
        pattern: settings.pattern.clone().unwrap_or_default(),
        client_name: shared.cluster.settings.client_name.clone(),
        lease_ms: limit_ms(settings.lease),
        processing_max_ms: limit_ms(settings.processing_max),
        release_max_ms: settings.release_max.map_or(0, limit_ms),
        attach: None,
    };
    let sent = Moment::now();
    let timeout = shared.cluster.settings.request_timeout;
    let answer: pb::JoinGroupResponse = connection.call(Method::JoinGroup, &request, timeout).await?;
    let lease = Duration::from_millis(u64::from(answer.lease_ms));
    let (Some(member), false) = (answer.member, lease.is_zero()) else {
        let (address, detail) = (connection.address.to_string(), "a join without a member or a lease".to_owned());
        return Err(CallError::Protocol { address, detail });
    };
    tracing::info!(group = settings.group, member = member.member_id, "joined");
    let line = Line::new(Attached { connection, broker_id, member });
    Ok((Arc::new(Session { shared: shared.clone(), line, lease }), sent))
}

fn limit_ms(limit: Duration) -> u32 {
    u32::try_from(millis(limit)).unwrap_or(u32::MAX)
}

/// A membership from its beginning to its end. Says how long it lasted if it ended against the program's will.
async fn live(session: Arc<Session>, sent: Moment) -> Option<Duration> {
    let shared = session.shared.clone();
    let began = Instant::now();
    shared.state().deadline = sent + session.lease;
    shared.enter(Some(session.clone()));
    let mut tasks = JoinSet::new();
    tasks.spawn(learn_brokers(session.clone()));
    tasks.spawn(heartbeats(session.clone()));
    tasks.spawn(claims::run(session.clone()));
    tasks.spawn(commits::run(session.clone()));
    tasks.spawn(releases::run(session.clone()));
    let left = async {
        shared.closing().await;
        leave(&session).await;
    };
    let ended = tokio::select! {
        ended = session.line.over() => Some(ended),
        () = lapse(&shared) => Some(Ended { reason: "no heartbeat was answered in time".to_owned() }),
        () = left => None,
    };
    // Whoever still speaks for this membership hears that it is over.
    session.line.end("the membership is over");
    shared.enter(None);
    shared.state().end_all();
    drop(tasks);
    shared.tell_lost();
    shared.notify();
    let Ended { reason } = ended?;
    tracing::warn!(group = shared.settings.group, reason, "the membership ended");
    if shared.state().life == Life::Open {
        shared.report(GroupError::MembershipEnded { group: shared.settings.group.clone(), reason });
    }
    Some(began.elapsed())
}

/// Which brokers there are beside the first, for when it fails.
async fn learn_brokers(session: Arc<Session>) {
    let topics = &session.shared.settings.topics;
    // No topic has the empty name, so that of topics nothing is told.
    let asked = if topics.is_empty() { vec![String::new()] } else { topics.clone() };
    if let Err(error) = session.shared.cluster.refresh(&asked, Instant::now()).await {
        tracing::debug!(%error, "the other brokers are not known");
    }
}

/// Resolves when the deadline has passed, also while the machine slept: then the program notices it first.
async fn lapse(shared: &Shared) {
    loop {
        let remaining = shared.state().deadline.remaining();
        if remaining.is_zero() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(remaining) => {}
            () = shared.late() => {}
        }
    }
}

// ---- Heartbeats ----------------------------------------------------------------------------------------------------

async fn heartbeats(session: Arc<Session>) {
    let shared = &session.shared;
    let mut generation = 0;
    let mut incarnation = 0;
    let mut backoff = shared.cluster.backoff();
    let Some(mut last) = session.line.current() else { return };
    loop {
        let deadline = shared.state().deadline;
        let attached = match session.line.current() {
            Some(attached) => attached,
            None => match line::attach(&shared.cluster, &last, deadline).await {
                Attachment::Attached(attached) => {
                    backoff.reset();
                    session.line.attach(attached)
                }
                Attachment::Fenced(reason) => return session.line.end(reason),
                Attachment::Failed(error) => {
                    tracing::debug!(%error, "not attached yet");
                    tokio::time::sleep(backoff.pause()).await;
                    continue;
                }
            },
        };
        last = attached.clone();
        let sent = Moment::now();
        let request = pb::HeartbeatRequest {
            member: Some(attached.member.clone()),
            generation,
            max_wait_ms: limit_ms(session.wait()),
            oldest_message_age_ms: shared.state().oldest_age_ms(),
        };
        let calling = attached.connection.call(Method::Heartbeat, &request, session.wait_timeout());
        let answer: Result<pb::HeartbeatResponse, CallError> = tokio::select! {
            answer = calling => answer,
            () = session.line.replaced(&attached) => continue,
        };
        match answer {
            Ok(answer) => {
                let is_new = incarnation != attached.member.incarnation;
                if answer.generation >= generation || is_new {
                    let is_known = answer.generation == generation && !is_new;
                    (generation, incarnation) = (answer.generation, attached.member.incarnation);
                    beat(&session, &attached, &answer, sent);
                    if is_known && sent.elapsed() < PAUSE_MIN {
                        tokio::time::sleep(PAUSE_MIN).await;
                    }
                } else {
                    // A broker that is behind still keeps the lease.
                    prolong(&session, &answer, sent);
                    tokio::time::sleep(PAUSE_MIN).await;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a heartbeat failed");
                match error.refusal() {
                    Some(refusal) if refusal.status == corelane_proto::frame::Status::Fenced => {
                        return session.line.end(refusal.message.clone());
                    }
                    Some(refusal) if !refusal.is_retryable() => return session.line.end(refusal.to_string()),
                    _ => session.line.broke(&attached),
                }
            }
        }
    }
}

/// An answer that comes after the deadline does not revive it.
fn prolong(session: &Session, answer: &pb::HeartbeatResponse, sent: Moment) -> bool {
    let mut state = session.shared.state();
    if state.deadline.remaining().is_zero() {
        return false;
    }
    state.deadline = state.deadline.max(sent + Duration::from_millis(u64::from(answer.lease_ms)));
    true
}

/// Takes a heartbeat's answer in.
fn beat(session: &Arc<Session>, attached: &Attached, answer: &pb::HeartbeatResponse, sent: Moment) {
    if !prolong(session, answer, sent) {
        return;
    }
    let mut target: BTreeMap<Key, Arc<str>> = BTreeMap::new();
    for of_topic in &answer.target {
        let Ok(topic_id) = TopicId::try_from(&of_topic.topic_id[..]) else { continue };
        // Without a name it was deleted meanwhile.
        if of_topic.topic.is_empty() {
            continue;
        }
        let name: Arc<str> = of_topic.topic.as_str().into();
        target.extend(of_topic.partitions.iter().map(|partition| ((topic_id, *partition), name.clone())));
    }
    let mut state = session.shared.state();
    state.target = target;
    let unknown = state.reconcile(answer, attached.member.incarnation);
    state.release_what_moves();
    drop(state);
    session.shared.tell_lost();
    session.shared.notify();
    if !unknown.is_empty() {
        tokio::spawn(releases::unknown(session.clone(), unknown));
    }
}

// ---- Leaving -------------------------------------------------------------------------------------------------------

/// Commits, releases and leaves.
async fn leave(session: &Session) {
    let shared = &session.shared;
    loop {
        let changed = shared.changed();
        {
            let mut state = shared.state();
            // A claim that was under way may still have been answered.
            if state.release_what_moves() {
                drop(state);
                shared.notify();
                continue;
            }
            if state.tenures.is_empty() && state.claiming.is_empty() {
                break;
            }
        }
        changed.await;
    }
    let call = session.line.call(&shared.cluster, Method::LeaveGroup, session.call_timeout(), |member| {
        pb::LeaveGroupRequest { member: Some(member.clone()) }
    });
    if let Err(error) = call.await.map(|(answer, _): (pb::LeaveGroupResponse, _)| answer) {
        // The lease runs out by itself.
        tracing::debug!(%error, "not left in an orderly way");
    }
}
