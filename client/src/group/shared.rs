//! What a group consumer's handles and its member's tasks share, and how they wake each other.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::builder::GroupSettings;
use super::error::GroupError;
use super::member::Session;
use super::state::{Life, State};
use crate::cluster::Cluster;
use crate::consumer::Streams;
use crate::error::CallError;

pub(super) struct Shared {
    pub(super) cluster: Arc<Cluster>,
    pub(super) settings: GroupSettings,
    pub(super) streams: Streams,
    state: Mutex<State>,
    /// The membership of the moment.
    session: Mutex<Option<Arc<Session>>>,
    /// Something changed that a task may wait for.
    changed: Notify,
    /// A commit is wanted before its interval is over.
    pub(super) commit_now: Notify,
    /// The program found the deadline passed.
    late: Notify,
}

impl Shared {
    pub(super) fn new(cluster: Arc<Cluster>, settings: GroupSettings, streams: Streams) -> Arc<Self> {
        let state = Mutex::new(State::new(streams.clone(), settings.marks, settings.release_wait));
        Arc::new(Self {
            cluster,
            settings,
            streams,
            state,
            session: Mutex::default(),
            changed: Notify::new(),
            commit_now: Notify::new(),
            late: Notify::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn enter(&self, session: Option<Arc<Session>>) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }

    // ---- Waking ------------------------------------------------------------------------------------------------

    pub(super) fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Resolves at the next change. Whoever takes it before looking misses none.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    pub(super) fn found_late(&self) {
        self.late.notify_one();
    }

    pub(super) async fn late(&self) {
        self.late.notified().await;
    }

    /// Resolves when the consumer is being closed.
    pub(super) async fn closing(&self) {
        loop {
            let changed = self.changed();
            if self.state().life != Life::Open {
                return;
            }
            changed.await;
        }
    }

    /// Awaits something, or the close.
    pub(super) async fn unless_closing(&self, doing: impl Future<Output = ()>) {
        tokio::select! {
            () = doing => {}
            () = self.closing() => {}
        }
    }

    /// Nothing comes any more.
    pub(super) fn over(&self) {
        self.state().life = Life::Over;
        self.notify();
        self.streams.wake();
    }

    // ---- Telling the program -----------------------------------------------------------------------------------

    pub(super) fn report(&self, error: GroupError) {
        self.state().report(error);
    }

    pub(super) fn call_error(&self, cause: CallError) -> GroupError {
        GroupError::Call { group: self.settings.group.clone(), cause }
    }

    /// Calls the program's function for each partition that was lost.
    pub(super) fn tell_lost(&self) {
        let lost = self.state().take_lost();
        for partition in lost {
            tracing::warn!(topic = %partition.topic, partition = partition.partition, "a partition was lost");
            if let Some(on_lost) = &self.settings.on_lost {
                on_lost(&partition);
            }
        }
    }
}
