//! A member's connection: one at a time, to any broker. Each new one attaches to the membership before anything else is
//! said on it; what was unanswered on the one before is sent again. Whoever finds it broken says so, and the task that
//! sends the heartbeats makes the next one, to another broker if there is one, before the deadline.

use std::sync::Arc;
use std::time::Duration;

use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;
use prost::Message;
use tokio::sync::watch;

use super::clock::Moment;
use crate::cluster::Cluster;
use crate::error::CallError;
use crate::net::calls::CallConnection;

/// A connection on which the member may speak.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) connection: CallConnection,
    pub(super) broker_id: u32,
    /// Who speaks; each attachment has another one.
    pub(super) member: pb::Member,
}

/// Why the membership is over.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) reason: String,
}

#[derive(Debug)]
pub(super) struct Line {
    current: watch::Sender<Option<Arc<Attached>>>,
    ended: watch::Sender<Option<Ended>>,
}

/// What an answer other than OK means for the connection.
enum Trouble {
    /// Another connection, to another broker if possible.
    Elsewhere,
    /// The same request again after a pause.
    Again,
    /// The membership is over.
    Fenced(String),
    /// The request is wrong.
    Final,
}

fn trouble(error: &CallError) -> Trouble {
    match error.refusal() {
        Some(refusal) if refusal.status == Status::Fenced => Trouble::Fenced(refusal.message.clone()),
        Some(refusal) if refusal.status == Status::Busy => Trouble::Again,
        Some(refusal) if refusal.is_retryable() => Trouble::Elsewhere,
        // Nonsense, or nothing at all: perhaps another broker does better.
        None if error.is_retryable() || matches!(error, CallError::Protocol { .. }) => Trouble::Elsewhere,
        _ => Trouble::Final,
    }
}

impl Line {
    pub(super) fn new(attached: Attached) -> Self {
        Self { current: watch::Sender::new(Some(Arc::new(attached))), ended: watch::Sender::new(None) }
    }

    /// The connection of the moment; none: the next one is being made.
    pub(super) fn current(&self) -> Option<Arc<Attached>> {
        self.current.borrow().clone()
    }

    fn is_current(&self, attached: &Attached) -> bool {
        self.current().is_some_and(|current| current.member.attachment == attached.member.attachment)
    }

    pub(super) fn attach(&self, attached: Attached) -> Arc<Attached> {
        let attached = Arc::new(attached);
        self.current.send_replace(Some(attached.clone()));
        attached
    }

    /// The connection is of no use any more.
    pub(super) fn broke(&self, attached: &Attached) {
        self.current.send_if_modified(|current| {
            let is_it = current.as_ref().is_some_and(|it| it.member.attachment == attached.member.attachment);
            if is_it {
                *current = None;
            }
            is_it
        });
    }

    /// Resolves when this connection is not the one of the moment any more.
    pub(super) async fn replaced(&self, attached: &Attached) {
        let mut changes = self.current.subscribe();
        while self.is_current(attached) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn attached(&self) -> Arc<Attached> {
        let mut changes = self.current.subscribe();
        loop {
            let current = changes.borrow_and_update().clone();
            if let Some(attached) = current {
                return attached;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    // ---- The end -----------------------------------------------------------------------------------------------

    /// The membership is over; the first reason counts.
    pub(super) fn end(&self, reason: impl Into<String>) {
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            if is_first {
                *ended = Some(Ended { reason: reason.into() });
            }
            is_first
        });
    }

    /// Resolves when the membership is over.
    pub(super) async fn over(&self) -> Ended {
        let mut changes = self.ended.subscribe();
        loop {
            let ended = changes.borrow_and_update().clone();
            if let Some(ended) = ended {
                return ended;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    // ---- Calls -------------------------------------------------------------------------------------------------

    /// A call as the member, sent again on whatever connection there is until it is answered or the membership is over.
    /// Says on which connection it was answered.
    ///
    /// # Errors
    /// A refusal that no other attempt can help, or [`CallError::Closed`] when the membership is over.
    pub(super) async fn call<Q: Message, R: Message + Default>(
        &self,
        cluster: &Cluster,
        method: Method,
        timeout: Duration,
        request: impl Fn(&pb::Member) -> Q,
    ) -> Result<(R, Arc<Attached>), CallError> {
        let mut backoff = cluster.backoff();
        let calling = async {
            loop {
                let attached = self.attached().await;
                let error = match attached.connection.call(method, &request(&attached.member), timeout).await {
                    Ok(answer) => return Ok((answer, attached)),
                    Err(error) => error,
                };
                match trouble(&error) {
                    // What was said under an older attachment says nothing about this one.
                    Trouble::Fenced(reason) if self.is_current(&attached) => self.end(reason),
                    Trouble::Fenced(_) => {}
                    Trouble::Elsewhere => self.broke(&attached),
                    Trouble::Again => tokio::time::sleep(backoff.pause()).await,
                    Trouble::Final => return Err(error),
                }
                if self.ended.borrow().is_some() {
                    return Err(CallError::Closed);
                }
            }
        };
        tokio::select! {
            biased;
            _ = self.over() => Err(CallError::Closed),
            answer = calling => answer,
        }
    }
}

/// Connects to any broker, to `avoid` last.
pub(super) async fn connect(
    cluster: &Cluster,
    avoid: Option<u32>,
    timeout: Duration,
) -> Result<(CallConnection, u32), CallError> {
    let link = cluster.connect_other(avoid, timeout).await?;
    let broker_id = link.hello.broker_id;
    Ok((CallConnection::start(link), broker_id))
}

/// What came of an attempt to attach.
pub(super) enum Attachment {
    Attached(Attached),
    /// The membership is gone.
    Fenced(String),
    /// Not here, or not now.
    Failed(CallError),
}

/// Attaches a new connection to a membership. Nothing else is said on it before the answer.
pub(super) async fn attach(cluster: &Cluster, before: &Attached, deadline: Moment) -> Attachment {
    // Half of what is left for this broker, so that another one can still be tried.
    let timeout = (deadline.remaining() / 2).min(cluster.settings.connect_timeout).max(Duration::from_millis(1));
    let (connection, broker_id) = match connect(cluster, Some(before.broker_id), timeout).await {
        Ok(connected) => connected,
        Err(error) => return Attachment::Failed(error),
    };
    let request = pb::JoinGroupRequest {
        group: before.member.group.clone(),
        attach: Some(before.member.clone()),
        ..pb::JoinGroupRequest::default()
    };
    let timeout = (deadline.remaining() / 2).max(Duration::from_millis(1));
    match connection.call::<_, pb::JoinGroupResponse>(Method::JoinGroup, &request, timeout).await {
        Ok(pb::JoinGroupResponse { member: Some(member), .. }) => {
            Attachment::Attached(Attached { connection, broker_id, member })
        }
        Ok(_) => Attachment::Failed(CallError::Protocol {
            address: connection.address.to_string(),
            detail: "an attachment without a member".to_owned(),
        }),
        Err(error) => match trouble(&error) {
            Trouble::Fenced(reason) => Attachment::Fenced(reason),
            _ => Attachment::Failed(error),
        },
    }
}
