//! The registry of a single broker, in one file of its data directory: the store seam on redb. One thread writes, and
//! commits what has gathered in one flush; reads and watches look at committed states only, on the caller's thread.
//! Leases are on disk, their deadlines are not: a restart re-arms each one for its full life.
//!
//! After a write that failed, what the disk kept of it is unknown: the file is opened anew, which checks every page that
//! counts, and the calls of that batch are told that they may or may not have happened. On a full disk deletions go on.

mod opened;
mod reserved;
mod tables;
mod writer;

use std::ops::Bound;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use redb::ReadTransaction;
use tokio::sync::{mpsc, oneshot, watch};

use super::store::{
    Change, Changes, Entry, LeaseId, Outcome, Page, Range, Revision, Seen, Store, StoreError, StoreResult, Txn, Watch,
};
use crate::limits::{HISTORY_REVISIONS_MAX, STORE_QUEUE_MAX, WATCH_BATCH_MAX};
use opened::{Opened, read_failed};
use tables::{CURRENT, HISTORY, entry_of, meta};
use writer::{Command, Writer};

/// How the store is opened.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedOptions {
    /// How many revisions are remembered.
    pub history_revisions_max: u64,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { history_revisions_max: HISTORY_REVISIONS_MAX }
    }
}

/// The embedded registry. Clones share it; it closes when the last one, and the last watch, is dropped.
#[derive(Clone)]
pub struct EmbeddedStore {
    opened: Arc<Opened>,
    commands: mpsc::Sender<Command>,
    revisions: watch::Receiver<Revision>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl EmbeddedStore {
    /// Opens the file, or makes it. Blocks: called once at start.
    pub fn open(path: &Path, options: EmbeddedOptions) -> StoreResult<Self> {
        let failed = |error: &dyn std::fmt::Display| StoreError::Failed(format!("{}: {error}", path.display()));
        let (commands, queue) = mpsc::channel(STORE_QUEUE_MAX);
        let (revision_sender, revisions) = watch::channel(0);
        let opened = Arc::new(Opened::new(path));
        let writer = no_panic(|| Writer::open(Arc::clone(&opened), options, revision_sender))
            .ok_or_else(|| failed(&"it is damaged so that it cannot be read"))?
            .map_err(|error| failed(&error))?;
        let thread = std::thread::Builder::new()
            .name("registry".to_owned())
            .spawn(move || writer.run(queue))
            .map_err(|error| failed(&error))?;
        Ok(Self { opened, commands, revisions, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Closes it once everything queued is done; the last other clone and watch must be gone for the file to be free.
    pub fn close(self) {
        let Self { opened, commands, revisions, thread } = self;
        drop((opened, commands, revisions));
        let thread = thread.lock().expect("nobody panics while it is held").take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<StoreResult<T>>) -> Command) -> StoreResult<T> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(command(reply)).await;
        sent.map_err(|_| StoreError::Failed("its thread has ended".to_owned()))?;
        // A batch that failed is dropped, answers and all.
        answer.await.unwrap_or_else(|_| Err(self.opened.last_failure()))
    }
}

/// Runs what a damaged file makes redb panic over; `None` then, in silence. Only while nothing else is under way: the hook
/// that tells of panics is everybody's.
fn no_panic<T>(open: impl FnOnce() -> T) -> Option<T> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let opened = panic::catch_unwind(AssertUnwindSafe(open));
    panic::set_hook(hook);
    opened.ok()
}

impl Store for EmbeddedStore {
    type Watch = EmbeddedWatch;

    fn kind(&self) -> &'static str {
        "embedded"
    }

    async fn seen(&self) -> StoreResult<Seen> {
        let known = self.opened.read(|read| meta(read).map_err(read_failed))?;
        Ok(Seen { store_id: known.store_id, revision: known.revision })
    }

    async fn get(&self, key: &str) -> StoreResult<Option<Entry>> {
        self.opened.read(|read| {
            let current = read.open_table(CURRENT).map_err(read_failed)?;
            let found = current.get(key).map_err(read_failed)?;
            Ok(found.map(|stored| entry_of(key, stored.value())))
        })
    }

    async fn range(&self, range: Range) -> StoreResult<Page> {
        self.opened.read(|read| read_range(read, &range))
    }

    async fn commit(&self, txn: Txn) -> StoreResult<Outcome> {
        self.ask(|reply| Command::Commit { txn, reply }).await
    }

    async fn grant(&self, life: Duration) -> StoreResult<LeaseId> {
        self.ask(|reply| Command::Grant { life, reply }).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> StoreResult<Duration> {
        self.ask(|reply| Command::KeepAlive { lease, reply }).await
    }

    async fn revoke(&self, lease: LeaseId) -> StoreResult<()> {
        self.ask(|reply| Command::Revoke { lease, reply }).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> StoreResult<EmbeddedWatch> {
        let (opened, revisions) = (Arc::clone(&self.opened), self.revisions.clone());
        Ok(EmbeddedWatch { opened, revisions, prefix: prefix.to_owned(), next: from })
    }
}

/// The current state in the range with everything above the wanted revision undone: the first change above it knows
/// what was there before.
fn read_range(read: &ReadTransaction, range: &Range) -> StoreResult<Page> {
    let known = meta(read).map_err(read_failed)?;
    let revision = range.at.unwrap_or(known.revision);
    if revision < known.compacted {
        return Err(StoreError::Compacted { compacted: known.compacted });
    }
    if revision > known.revision {
        return Err(StoreError::Invalid(format!("revision {revision} is yet to come")));
    }
    let inside = |key: &str| key >= range.start.as_str() && key < range.end.as_str();
    let mut merged = std::collections::BTreeMap::<String, Option<Entry>>::new();
    let history = read.open_table(HISTORY).map_err(read_failed)?;
    for change in history.range((revision + 1, 0)..).map_err(read_failed)? {
        let (_, change) = change.map_err(read_failed)?;
        let (key, before, _) = change.value();
        if inside(key) && !merged.contains_key(key) {
            merged.insert(key.to_owned(), before.map(|stored| entry_of(key, stored)));
        }
    }
    // So many that enough are left when those that were undone are taken away.
    let wanted = range.limit.saturating_add(1).saturating_add(merged.len());
    let current = read.open_table(CURRENT).map_err(read_failed)?;
    let bounds = (Bound::Included(range.start.as_str()), Bound::Excluded(range.end.as_str()));
    if range.start < range.end {
        for found in current.range::<&str>(bounds).map_err(read_failed)?.take(wanted) {
            let (key, stored) = found.map_err(read_failed)?;
            let key = key.value();
            merged.entry(key.to_owned()).or_insert_with(|| Some(entry_of(key, stored.value())));
        }
    }
    let mut entries: Vec<Entry> = merged.into_values().flatten().collect();
    let more = entries.len() > range.limit;
    entries.truncate(range.limit);
    Ok(Page { entries, more, revision: known.revision })
}

/// A watch that keeps nothing but its place: it reads the changes from the remembered history when it is asked.
pub struct EmbeddedWatch {
    opened: Arc<Opened>,
    revisions: watch::Receiver<Revision>,
    prefix: String,
    next: Revision,
}

impl EmbeddedWatch {
    /// The changes from `next` on, whole transactions, some hundreds at a time.
    fn read(&self, read: &ReadTransaction) -> StoreResult<Changes> {
        let known = meta(read).map_err(read_failed)?;
        if self.next <= known.compacted {
            return Err(StoreError::Compacted { compacted: known.compacted });
        }
        let history = read.open_table(HISTORY).map_err(read_failed)?;
        let mut found = Changes { changes: Vec::new(), revision: known.revision };
        let mut last = self.next;
        for change in history.range((self.next, 0)..).map_err(read_failed)? {
            let (at, change) = change.map_err(read_failed)?;
            let (revision, _) = at.value();
            if revision != last && found.changes.len() >= WATCH_BATCH_MAX {
                found.revision = last;
                break;
            }
            last = revision;
            let (key, _, after) = change.value();
            if key.starts_with(&self.prefix) {
                let deleted = || Change::Deleted { key: key.to_owned(), revision };
                found.changes.push(after.map_or_else(deleted, |stored| Change::Put(entry_of(key, stored))));
            }
        }
        Ok(found)
    }
}

impl Watch for EmbeddedWatch {
    async fn next(&mut self) -> StoreResult<Changes> {
        loop {
            let next = self.next;
            let ended = || StoreError::Failed("its thread has ended".to_owned());
            self.revisions.wait_for(|revision| *revision >= next).await.map_err(|_| ended())?;
            let found = self.opened.read(|read| self.read(read))?;
            self.next = found.revision + 1;
            if !found.changes.is_empty() {
                return Ok(found);
            }
        }
    }
}
