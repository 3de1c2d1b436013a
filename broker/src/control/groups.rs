//! The running group manager: follows the groups in the registry, answers the group calls of every shard, computes
//! targets, renews leases when their members ask, gathers commits. What a change means and which transaction makes it is
//! `registry/groups`; here is who waits for what. Runs on the control thread; group connections never hold up data.
//!
//! A manager whose view is not there, or that was cut off, answers with a status that sends the member to another broker;
//! it revokes nothing. All of its state can be lost at any time: a call of a member that it does not know is checked
//! against the registry.

mod calls;
mod commits;
mod figures;
mod follow;
mod heartbeat;
mod passages;
mod schedule;
mod sessions;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::rc::Rc;
use std::time::Duration;

use corelane_proto::frame::{Method, Status};
use futures_util::future::{Either, LocalBoxFuture, select};
use prost::Message;
use tokio::sync::Notify;

use crate::limits::{self, GROUP_CALLS_MAX};
use crate::messages::Failure;
use crate::registry::groups::admin::GroupPosition;
use crate::registry::groups::overdue::Overdue;
use crate::registry::groups::subscription::Patterns;
use crate::registry::groups::view::{GroupsView, TopicsView};
use crate::registry::groups::{GroupError, GroupStore, OTHER_LIFE};
use crate::registry::keys::Keys;
use crate::registry::membership::Membership;
use crate::registry::store::{Store, StoreError};
use commits::Commits;
use schedule::Schedule;
use sessions::Sessions;

/// Time, as a manager sees it; histories in tests bring their own.
pub trait Clock {
    /// Since the clock began.
    fn now(&self) -> Duration;
    /// Completes at that time.
    fn sleep_until(&self, at: Duration) -> LocalBoxFuture<'static, ()>;
}

/// The machine's.
struct SystemClock {
    began: tokio::time::Instant,
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn sleep_until(&self, at: Duration) -> LocalBoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(self.began + at))
    }
}

/// What may differ between managers.
#[derive(Clone)]
pub struct GroupOptions {
    /// The shortest and the longest life of a member's lease.
    pub lease_life: (Duration, Duration),
    /// How long nothing is claimed after a registry was restored: the longest life of a lease that it may not know of.
    pub claims_pause: Duration,
    /// How often everything is listed anew, though nothing seems to be missing; about.
    pub list_interval: Duration,
    /// How long it takes to try again what the registry did not answer.
    pub retry: Duration,
    /// Time.
    pub clock: Rc<dyn Clock>,
    /// Random bytes, for ids and secrets.
    pub random: Rc<dyn Fn() -> [u8; 16]>,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            lease_life: (limits::MEMBER_LEASE_LIFE_MIN, limits::MEMBER_LEASE_LIFE_MAX),
            claims_pause: limits::MEMBER_LEASE_LIFE_MAX,
            list_interval: limits::GROUPS_LIST_INTERVAL,
            retry: limits::REGISTRY_RETRY,
            clock: Rc::new(SystemClock { began: tokio::time::Instant::now() }),
            random: Rc::new(random_bytes),
        }
    }
}

/// From the system's source.
fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    // Without it no secret would be one.
    read.expect("the system gives random bytes at /dev/urandom");
    bytes
}

/// The group manager of a broker.
pub struct Groups<S: Store> {
    registry: GroupStore<S>,
    membership: Membership<S>,
    options: GroupOptions,
    state: RefCell<State>,
    sessions: Sessions,
    commits: Commits,
    schedule: Schedule,
    /// What is known may be wrong: all is to be listed anew.
    relist: Notify,
    calls: Cell<usize>,
    positions: RefCell<Positions>,
}

/// The committed positions as they were read last for a page.
#[derive(Default)]
struct Positions {
    /// Never relied on for anything else.
    list: Rc<Vec<GroupPosition>>,
    /// When that was; none: never.
    read_at: Option<Duration>,
    /// Not again before.
    again_at: Duration,
    is_partial: bool,
}

/// What the manager knows. Borrowed for moments only, never across an await.
#[derive(Default)]
struct State {
    view: GroupsView,
    topics: TopicsView,
    patterns: Patterns,
    /// Whether the view is there and followed.
    is_listed: bool,
    /// Which life of the store this is; 0: not known yet.
    incarnation: u64,
    /// The store was found put back to an earlier state, and its incarnation is yet to be raised.
    is_lost: bool,
    /// What came of the watches may not be all, though nothing has failed.
    has_missed: bool,
    /// Nothing is claimed before.
    claims_from: Option<Duration>,
    overdue: Overdue,
    /// Groups that were not looked at for what is overdue since they changed.
    unlooked: BTreeSet<String>,
    signals: BTreeMap<String, Rc<Signals>>,
}

/// Wakes those who wait for a group.
#[derive(Default)]
struct Signals {
    /// The target or the members have changed.
    target: Notify,
    /// Owners, or the above, have changed.
    owners: Notify,
}

impl State {
    fn signals(&mut self, group: &str) -> Rc<Signals> {
        if let Some(signals) = self.signals.get(group) {
            return Rc::clone(signals);
        }
        // Those that nobody waits for are made again when they are needed.
        if self.signals.len() > 2 * (self.view.groups.len() + 16) {
            self.signals.retain(|_, signals| Rc::strong_count(signals) > 1);
        }
        Rc::clone(self.signals.entry(group.to_owned()).or_default())
    }

    fn wake(&self, group: &str, target: bool) {
        if let Some(signals) = self.signals.get(group) {
            if target {
                signals.target.notify_waiters();
            }
            signals.owners.notify_waiters();
        }
    }

    fn wake_all(&self) {
        self.signals.keys().for_each(|group| self.wake(group, true));
    }

    /// Whether a call from this life of the store means the one that is known here.
    fn check_life(&self, incarnation: u64) -> Result<(), GroupError> {
        match self.incarnation {
            0 => Err(GroupError::Behind),
            known if incarnation < known => Err(OTHER_LIFE),
            known if incarnation > known => Err(GroupError::Behind),
            _ => Ok(()),
        }
    }

    fn check_listed(&self) -> Result<(), GroupError> {
        if self.is_listed { Ok(()) } else { Err(GroupError::Behind) }
    }

    fn are_claims_paused(&self, now: Duration) -> bool {
        self.claims_from.is_some_and(|from| now < from)
    }
}

impl From<GroupError> for Failure {
    fn from(error: GroupError) -> Self {
        let status = match &error {
            GroupError::Fenced(_) => Status::Fenced,
            GroupError::Unknown { .. } => Status::UnknownGroup,
            GroupError::NotEmpty { .. } => Status::GroupNotEmpty,
            GroupError::Invalid { .. } => Status::InvalidRequest,
            GroupError::TooMany { .. } | GroupError::TooManySubscriptions { .. } => Status::TooLarge,
            GroupError::Busy(_) => Status::Busy,
            GroupError::Store(StoreError::Invalid(_)) | GroupError::Record { .. } => Status::Internal,
            GroupError::Behind | GroupError::Store(_) => Status::RegistryUnavailable,
        };
        let mut failure = Self::new(status, error.to_string());
        match error {
            GroupError::Invalid { field, .. } => failure.error.field = Some(field.to_owned()),
            GroupError::TooMany { limit, .. } | GroupError::TooManySubscriptions { limit } => {
                failure.error.limit = Some(limit as u64);
            }
            _ => {}
        }
        failure
    }
}

impl<S: Store> Groups<S> {
    /// A manager that knows nothing yet; [`run`](Self::run) makes it work.
    pub fn new(store: S, keys: Keys, cluster_id: String, options: GroupOptions) -> Rc<Self> {
        Rc::new(Self {
            membership: Membership::new(store.clone(), keys.clone(), 0),
            registry: GroupStore::new(store, keys, cluster_id),
            options,
            state: RefCell::default(),
            sessions: Sessions::default(),
            commits: Commits::default(),
            schedule: Schedule::default(),
            relist: Notify::new(),
            calls: Cell::new(0),
            positions: RefCell::default(),
        })
    }

    /// Everything that the manager does by itself, for ever.
    pub async fn run(self: Rc<Self>) {
        tokio::join!(self.follow(), self.write_targets(), self.look_for_overdue(), self.commit_rounds());
    }

    /// A registry that was restored may have given partitions away to members that it has forgotten: nothing is claimed
    /// until their leases have ended.
    pub fn pause_claims(&self) {
        let mut state = self.state.borrow_mut();
        state.claims_from = Some(self.now() + self.options.claims_pause);
    }

    /// Answers a call of a client at this address: the encoded response.
    pub async fn call(&self, method: Method, proto: &[u8], host: &str) -> Result<Vec<u8>, Failure> {
        if self.calls.get() >= GROUP_CALLS_MAX {
            return Err(Failure::new(Status::Busy, "too many group calls are under way; try again after a pause"));
        }
        let _counted = Counted::new(&self.calls);
        match method {
            Method::JoinGroup => answer(proto, async |request| self.join(request, host).await).await,
            Method::Heartbeat => answer(proto, async |request| self.heartbeat(request).await).await,
            Method::LeaveGroup => answer(proto, async |request| self.leave(request).await).await,
            Method::Claim => answer(proto, async |request| self.claim(request).await).await,
            Method::Release => answer(proto, async |request| self.release(request).await).await,
            Method::Commit => answer(proto, async |request| self.commit(request).await).await,
            Method::Committed => answer(proto, async |request| self.committed(request).await).await,
            Method::DescribeGroup => answer(proto, async |request| self.describe(request).await).await,
            Method::ListGroups => answer(proto, async |request| self.list(&request)).await,
            Method::ResetGroup => answer(proto, async |request| self.reset(request).await).await,
            Method::DeleteGroup => answer(proto, async |request| self.delete(request).await).await,
            other => Err(Failure::new(Status::Unsupported, format!("{other:?} is no group call"))),
        }
    }

    fn now(&self) -> Duration {
        self.options.clock.now()
    }

    async fn sleep(&self, duration: Duration) {
        self.options.clock.sleep_until(self.now() + duration).await;
    }

    /// Waits for what comes first: something may have changed, or the time is up (`false`).
    async fn changed(&self, notified: impl Future<Output = ()>, until: Duration) -> bool {
        let time_is_up = self.options.clock.sleep_until(until);
        matches!(select(std::pin::pin!(notified), time_is_up).await, Either::Left(_))
    }
}

async fn answer<Q, R>(proto: &[u8], call: impl AsyncFnOnce(Q) -> Result<R, GroupError>) -> Result<Vec<u8>, Failure>
where
    Q: Message + Default,
    R: Message,
{
    let request =
        Q::decode(proto).map_err(|_| Failure::new(Status::InvalidRequest, "the request message cannot be parsed"))?;
    Ok(call(request).await?.encode_to_vec())
}

/// Counts as long as it lives.
struct Counted<'c>(&'c Cell<usize>);

impl<'c> Counted<'c> {
    fn new(count: &'c Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
