//! The one thread that changes the embedded registry. It takes what has gathered, runs it in order in one redb
//! transaction, flushes, and only then answers. Ended leases come first, so that a late keep-alive never revives one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redb::{ReadableTable as _, Table, WriteTransaction};
use tokio::sync::{mpsc, oneshot, watch};

use super::EmbeddedOptions;
use super::opened::Opened;
use super::reserved::Reserve;
use super::tables::{CURRENT, HISTORY, LEASES, META, Meta, entry_of, stored_of};
use crate::limits::{REGISTRY_RETRY, STORE_GROUP_MAX};
use crate::registry::keys::prefix_end;
use crate::registry::store::{
    Compare, Entry, LeaseId, Op, OpResult, Outcome, Revision, StoreError, StoreResult, Test, Txn,
};
use crate::registry::txn_rules::check_txn;

/// What the thread is asked to do.
pub(super) enum Command {
    /// Run a transaction.
    Commit { txn: Txn, reply: oneshot::Sender<StoreResult<Outcome>> },
    /// Make a lease.
    Grant { life: Duration, reply: oneshot::Sender<StoreResult<LeaseId>> },
    /// Keep a lease alive.
    KeepAlive { lease: LeaseId, reply: oneshot::Sender<StoreResult<Duration>> },
    /// End a lease.
    Revoke { lease: LeaseId, reply: oneshot::Sender<StoreResult<()>> },
}

struct Lease {
    life: Duration,
    deadline: Instant,
    keys: BTreeSet<String>,
}

/// The thread's state.
pub(super) struct Writer {
    opened: Arc<Opened>,
    options: EmbeddedOptions,
    revisions: watch::Sender<Revision>,
    leases: BTreeMap<LeaseId, Lease>,
    reserve: Reserve,
    /// After a failure, no lease is ended before this: what fails again and again shall not do so without a pause.
    rests_until: Instant,
    /// What was said in the log of failures since it was written last: each is said once.
    told: BTreeSet<String>,
}

/// Failures that are said of one trouble, at most.
const TOLD_MAX: usize = 8;

/// Answers to be given once the flush is done.
type Answer = Box<dyn FnOnce()>;

impl Writer {
    /// Opens the file, makes the tables, if they are not there, and re-arms every lease for its full life.
    pub(super) fn open(
        opened: Arc<Opened>,
        options: EmbeddedOptions,
        revisions: watch::Sender<Revision>,
    ) -> Result<Self, redb::Error> {
        let reserve = opened.open()?;
        let (leases, revision) = opened.write(load)??;
        revisions.send_replace(revision);
        Ok(Self { opened, options, revisions, leases, reserve, rests_until: Instant::now(), told: BTreeSet::new() })
    }

    /// Opens the file anew. Leases that are known keep their deadlines.
    fn reopen(&mut self) -> Result<(), redb::Error> {
        self.reserve = self.opened.open()?;
        let (mut leases, revision) = self.opened.write(load)??;
        for (id, lease) in &mut leases {
            if let Some(known) = self.leases.get(id) {
                lease.deadline = known.deadline;
            }
        }
        self.leases = leases;
        self.revisions.send_replace(revision);
        Ok(())
    }

    /// Runs until every handle of the store is gone.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime with nothing but a timer can be built");
        runtime.block_on(async {
            loop {
                let mut batch = Vec::new();
                let deadline = self.leases.values().map(|lease| lease.deadline).min();
                let deadline = deadline.map(|deadline| deadline.max(self.rests_until));
                let ended = async {
                    match deadline {
                        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    received = queue.recv_many(&mut batch, STORE_GROUP_MAX) => if received == 0 { break },
                    () = ended => {}
                }
                self.run_batch(batch);
            }
        });
    }

    /// After an error nothing of a batch counts for certain: its answers are dropped, which their callers hear as the
    /// failure that was noted before.
    fn run_batch(&mut self, batch: Vec<Command>) {
        if !self.opened.is_open()
            && let Err(error) = self.reopen()
        {
            return self.failed("cannot be opened", &error);
        }
        let mut answers: Vec<Answer> = Vec::with_capacity(batch.len());
        match self.apply_batch(batch, &mut answers) {
            Ok(has_written) => {
                if has_written && !self.told.is_empty() {
                    self.told.clear();
                    tracing::info!("the registry's file is written again");
                }
                for answer in answers {
                    answer();
                }
            }
            Err(error) => {
                self.failed("was not written", &error);
                if let Err(error) = self.reopen() {
                    self.failed("cannot be opened", &error);
                }
                drop(answers);
            }
        }
    }

    fn failed(&mut self, what: &str, error: &redb::Error) {
        if self.told.len() < TOLD_MAX && self.told.insert(format!("{what}: {error}")) {
            tracing::error!(%error, "the registry's file {what}; it is opened anew, again and again while that lasts");
        }
        self.opened.note(error);
        self.rests_until = Instant::now() + REGISTRY_RETRY;
    }

    /// Runs a batch and flushes it. False: it changed nothing, and nothing was written.
    fn apply_batch(&mut self, batch: Vec<Command>, answers: &mut Vec<Answer>) -> Result<bool, redb::Error> {
        let opened = Arc::clone(&self.opened);
        opened.write(|write| {
            let mut state = State::open(&write)?;
            let before = state.meta;
            let now = Instant::now();
            let ended: Vec<LeaseId> =
                self.leases.iter().filter(|(_, lease)| lease.deadline <= now).map(|(id, _)| *id).collect();
            for lease in ended {
                self.end_lease(&mut state, lease)?;
            }
            for command in batch {
                let answer = self.apply(&mut state, command, now)?;
                answers.push(answer);
            }
            let after = state.meta;
            if after == before && !state.leases_changed {
                return Ok(false);
            }
            state.forget_history(self.options.history_revisions_max)?;
            state.close()?;
            write.commit()?;
            self.revisions.send_replace(after.revision);
            Ok(true)
        })?
    }

    fn apply(&mut self, state: &mut State<'_>, command: Command, now: Instant) -> Result<Answer, redb::Error> {
        Ok(match command {
            Command::Commit { txn, reply } => answer(reply, self.run_txn(state, txn)?),
            Command::Grant { life, reply } => {
                state.meta.last_lease += 1;
                state.leases_changed = true;
                let id = state.meta.last_lease;
                state.leases.insert(id, u64::try_from(life.as_millis()).unwrap_or(u64::MAX))?;
                self.leases.insert(id, Lease { life, deadline: now + life, keys: BTreeSet::new() });
                answer(reply, Ok(id))
            }
            Command::KeepAlive { lease, reply } => {
                let kept = self.leases.get_mut(&lease).ok_or(StoreError::LeaseGone).map(|lease| {
                    lease.deadline = now + lease.life;
                    lease.life
                });
                answer(reply, kept)
            }
            Command::Revoke { lease, reply } => {
                let ended = if self.leases.contains_key(&lease) {
                    self.end_lease(state, lease)?;
                    Ok(())
                } else {
                    Err(StoreError::LeaseGone)
                };
                answer(reply, ended)
            }
        })
    }

    fn end_lease(&mut self, state: &mut State<'_>, lease: LeaseId) -> Result<(), redb::Error> {
        state.leases.remove(lease)?;
        state.leases_changed = true;
        let keys = self.leases.remove(&lease).map(|lease| lease.keys).unwrap_or_default();
        let mut step = Step::new(state.meta.revision + 1);
        for key in keys {
            state.delete(&mut step, &key)?;
        }
        state.finish(&step);
        Ok(())
    }

    fn run_txn(&mut self, state: &mut State<'_>, txn: Txn) -> Result<StoreResult<Outcome>, redb::Error> {
        if let Err(reason) = check_txn(&txn) {
            return Ok(Err(StoreError::Invalid(reason)));
        }
        // Every compare is judged, and every lease looked up, before anything is written.
        let decided = state.decide(txn)?;
        if decided.leases().any(|lease| !self.leases.contains_key(&lease)) {
            return Ok(Err(StoreError::LeaseGone));
        }
        if self.reserve.is_low() && !decided.deletes() && decided.adds(state)? {
            return Ok(Err(StoreError::NoSpace));
        }
        let mut step = Step::new(state.meta.revision + 1);
        let succeeded = decided.succeeded;
        let results = state.apply(&mut step, decided, &mut self.leases)?;
        state.finish(&step);
        Ok(Ok(Outcome { succeeded, revision: state.meta.revision, results }))
    }
}

fn answer<T: 'static>(reply: oneshot::Sender<StoreResult<T>>, result: StoreResult<T>) -> Answer {
    Box::new(move || {
        // Whoever asked may have gone.
        let _ = reply.send(result);
    })
}

/// Makes the tables, if they are not there. Answers every lease, armed for its full life, with its keys, and the revision.
fn load(write: WriteTransaction) -> Result<(BTreeMap<LeaseId, Lease>, Revision), redb::Error> {
    let mut leases = BTreeMap::new();
    let now = Instant::now();
    let mut state = State::open(&write)?;
    for lease in state.leases.iter()? {
        let (id, life_ms) = lease?;
        let life = Duration::from_millis(life_ms.value());
        leases.insert(id.value(), Lease { life, deadline: now + life, keys: BTreeSet::new() });
    }
    for entry in state.current.iter()? {
        let (key, stored) = entry?;
        if let Some(lease) = leases.get_mut(&stored.value().2) {
            lease.keys.insert(key.value().to_owned());
        }
    }
    let revision = state.meta.revision;
    if state.meta.store_id == 0 {
        state.meta.store_id = fastrand::u64(1..);
        state.close()?;
        write.commit()?;
    } else {
        // Nothing is written where nothing is new: the disk may be full.
        drop(state);
        write.abort()?;
    }
    Ok((leases, revision))
}

/// A transaction with its branches chosen.
struct Decided {
    succeeded: bool,
    ops: Vec<DecidedOp>,
}

enum DecidedOp {
    Plain(Op),
    Txn(Decided),
}

impl Decided {
    /// Whether something is deleted by it: that makes room, now or by what follows from it.
    fn deletes(&self) -> bool {
        self.ops.iter().any(|op| match op {
            DecidedOp::Plain(op) => matches!(op, Op::Delete(_) | Op::DeletePrefix(_)),
            DecidedOp::Txn(decided) => decided.deletes(),
        })
    }

    /// Whether there are keys afterwards that are to stay and were not there before.
    fn adds(&self, state: &State<'_>) -> Result<bool, redb::Error> {
        for op in &self.ops {
            let adds = match op {
                DecidedOp::Plain(Op::Put { key, lease: None, .. }) => state.entry(key)?.is_none(),
                DecidedOp::Plain(_) => false,
                DecidedOp::Txn(decided) => decided.adds(state)?,
            };
            if adds {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn leases(&self) -> Box<dyn Iterator<Item = LeaseId> + '_> {
        Box::new(self.ops.iter().flat_map(|op| match op {
            DecidedOp::Plain(Op::Put { lease: Some(lease), .. }) => Box::new(std::iter::once(*lease)),
            DecidedOp::Plain(_) => Box::new(std::iter::empty()) as Box<dyn Iterator<Item = LeaseId>>,
            DecidedOp::Txn(decided) => decided.leases(),
        }))
    }
}

/// The changes of one revision.
struct Step {
    revision: Revision,
    events: u32,
}

impl Step {
    fn new(revision: Revision) -> Self {
        Self { revision, events: 0 }
    }
}

/// The open tables of the batch's transaction.
struct State<'t> {
    current: Table<'t, &'static str, super::tables::Stored<'static>>,
    history: Table<'t, (u64, u32), super::tables::Event<'static>>,
    leases: Table<'t, u64, u64>,
    table: Table<'t, &'static str, u64>,
    meta: Meta,
    leases_changed: bool,
}

impl<'t> State<'t> {
    fn open(write: &'t WriteTransaction) -> Result<Self, redb::Error> {
        let table = write.open_table(META)?;
        let meta = Meta::load(&table)?;
        Ok(Self {
            current: write.open_table(CURRENT)?,
            history: write.open_table(HISTORY)?,
            leases: write.open_table(LEASES)?,
            table,
            meta,
            leases_changed: false,
        })
    }

    fn close(mut self) -> Result<(), redb::Error> {
        Ok(self.meta.store(&mut self.table)?)
    }

    fn entry(&self, key: &str) -> Result<Option<Entry>, redb::Error> {
        Ok(self.current.get(key)?.map(|stored| entry_of(key, stored.value())))
    }

    fn decide(&self, txn: Txn) -> Result<Decided, redb::Error> {
        let mut succeeded = true;
        for compare in &txn.compares {
            succeeded = succeeded && self.holds(compare)?;
        }
        let mut ops = Vec::new();
        for op in if succeeded { txn.then } else { txn.otherwise } {
            ops.push(match op {
                Op::Txn(txn) => DecidedOp::Txn(self.decide(txn)?),
                op => DecidedOp::Plain(op),
            });
        }
        Ok(Decided { succeeded, ops })
    }

    fn holds(&self, compare: &Compare) -> Result<bool, redb::Error> {
        if compare.test == Test::NoneBelow {
            return Ok(self.current.range(compare.key.as_str()..prefix_end(&compare.key).as_str())?.next().is_none());
        }
        let entry = self.entry(&compare.key)?;
        Ok(match (&compare.test, entry) {
            (Test::Absent, entry) => entry.is_none(),
            (_, None) | (Test::NoneBelow, _) => false,
            (Test::Exists, Some(_)) => true,
            (Test::Value(value), Some(entry)) => entry.value == *value,
            (Test::Created(revision), Some(entry)) => entry.create_revision == *revision,
            (Test::Modified(revision), Some(entry)) => entry.mod_revision == *revision,
        })
    }

    fn apply(
        &mut self,
        step: &mut Step,
        decided: Decided,
        leases: &mut BTreeMap<LeaseId, Lease>,
    ) -> Result<Vec<OpResult>, redb::Error> {
        let mut results = Vec::with_capacity(decided.ops.len());
        for op in decided.ops {
            results.push(match op {
                DecidedOp::Txn(decided) => {
                    let succeeded = decided.succeeded;
                    OpResult::Txn { succeeded, results: self.apply(step, decided, leases)? }
                }
                DecidedOp::Plain(Op::Put { key, value, lease }) => {
                    self.put(step, key, value, lease, leases)?;
                    OpResult::Put
                }
                DecidedOp::Plain(Op::Delete(key)) => OpResult::Deleted(self.detach_and_delete(step, &key, leases)?),
                DecidedOp::Plain(Op::DeletePrefix(prefix)) => {
                    let mut deleted = 0;
                    for key in self.keys_below(&prefix)? {
                        deleted += self.detach_and_delete(step, &key, leases)?;
                    }
                    OpResult::Deleted(deleted)
                }
                DecidedOp::Plain(Op::Get(key)) => OpResult::Got(self.entry(&key)?),
                DecidedOp::Plain(Op::Txn(_)) => unreachable!("deciding turns every transaction into a decided one"),
            });
        }
        Ok(results)
    }

    fn put(
        &mut self,
        step: &mut Step,
        key: String,
        value: Vec<u8>,
        lease: Option<LeaseId>,
        leases: &mut BTreeMap<LeaseId, Lease>,
    ) -> Result<(), redb::Error> {
        let before = self.entry(&key)?;
        if let Some(old) = before.as_ref().and_then(|entry| entry.lease).and_then(|old| leases.get_mut(&old)) {
            old.keys.remove(&key);
        }
        if let Some(new) = lease {
            leases.get_mut(&new).expect("leases were looked up before").keys.insert(key.clone());
        }
        let create_revision = before.as_ref().map_or(step.revision, |entry| entry.create_revision);
        let after = Entry { key, value, create_revision, mod_revision: step.revision, lease };
        self.current.insert(after.key.as_str(), stored_of(&after))?;
        self.record(step, &after.key, before.as_ref(), Some(&after))
    }

    fn detach_and_delete(
        &mut self,
        step: &mut Step,
        key: &str,
        leases: &mut BTreeMap<LeaseId, Lease>,
    ) -> Result<u64, redb::Error> {
        let lease = self.entry(key)?.and_then(|entry| entry.lease);
        if let Some(lease) = lease.and_then(|lease| leases.get_mut(&lease)) {
            lease.keys.remove(key);
        }
        self.delete(step, key)
    }

    fn delete(&mut self, step: &mut Step, key: &str) -> Result<u64, redb::Error> {
        let before = self.current.remove(key)?.map(|stored| entry_of(key, stored.value()));
        if before.is_some() {
            self.record(step, key, before.as_ref(), None)?;
        }
        Ok(u64::from(before.is_some()))
    }

    fn record(
        &mut self,
        step: &mut Step,
        key: &str,
        before: Option<&Entry>,
        after: Option<&Entry>,
    ) -> Result<(), redb::Error> {
        self.history.insert((step.revision, step.events), (key, before.map(stored_of), after.map(stored_of)))?;
        step.events += 1;
        Ok(())
    }

    /// Uses the revision up, if something changed.
    fn finish(&mut self, step: &Step) {
        if step.events > 0 {
            self.meta.revision = step.revision;
        }
    }

    fn keys_below(&self, prefix: &str) -> Result<Vec<String>, redb::Error> {
        let mut keys = Vec::new();
        for found in self.current.range(prefix..prefix_end(prefix).as_str())? {
            keys.push(found?.0.value().to_owned());
        }
        Ok(keys)
    }

    /// Forgets what is older than the newest `keep` revisions, a tenth of them at a time.
    fn forget_history(&mut self, keep: u64) -> Result<(), redb::Error> {
        let compacted = self.meta.revision.saturating_sub(keep);
        if compacted < self.meta.compacted + (keep / 10).max(1) {
            return Ok(());
        }
        self.history.retain_in(..=(compacted, u32::MAX), |_, _| false)?;
        self.meta.compacted = compacted;
        Ok(())
    }
}
