//! The seam between what the registry means and where it lies: ordered keys with revisions, transactions, leases and
//! watches, as etcd has them. Everything above is written once against these traits; what is below them passes the same
//! tests (`tests/store_suite`). Futures of one store are polled on the control thread only.

use std::future::Future;
use std::time::Duration;

use super::keys::prefix_end;
use crate::limits::RANGE_PAGE;

/// Counts the store's changes; every committed transaction that wrote something has the next one.
pub type Revision = u64;
/// Names a lease.
pub type LeaseId = u64;

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Printable ASCII.
    pub key: String,
    /// Anything; JSON in practice.
    pub value: Vec<u8>,
    /// When the key appeared; another one after it was deleted and made again.
    pub create_revision: Revision,
    /// When its value was last written.
    pub mod_revision: Revision,
    /// The lease with which it goes.
    pub lease: Option<LeaseId>,
}

/// A read of many keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first key.
    pub start: String,
    /// The key after the last.
    pub end: String,
    /// How many entries at most.
    pub limit: usize,
    /// As of which revision; `None`: now.
    pub at: Option<Revision>,
}

impl Range {
    /// Every key with this prefix, a page of them.
    pub fn prefix(prefix: &str) -> Self {
        Self { start: prefix.to_owned(), end: prefix_end(prefix), limit: RANGE_PAGE, at: None }
    }
}

/// A page of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// In the order of their keys.
    pub entries: Vec<Entry>,
    /// Whether there are more behind the last.
    pub more: bool,
    /// The revision as of which this was true.
    pub revision: Revision,
}

/// What a compare holds a key against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// The key is not there.
    Absent,
    /// The key is there.
    Exists,
    /// The key is there with exactly this value.
    Value(Vec<u8>),
    /// The key is there since this revision.
    Created(Revision),
    /// The key was last written at this revision.
    Modified(Revision),
    /// No key begins with this one.
    NoneBelow,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The key, or prefix.
    pub key: String,
    /// What must hold of it.
    pub test: Test,
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes a key; with no lease it loses the one it had.
    Put {
        /// The key.
        key: String,
        /// Its new value.
        value: Vec<u8>,
        /// The lease with which it shall go.
        lease: Option<LeaseId>,
    },
    /// Removes a key, if it is there.
    Delete(String),
    /// Removes every key with this prefix.
    DeletePrefix(String),
    /// Reads a key.
    Get(String),
    /// A transaction within: its compares are judged by what was there before the outermost one began.
    Txn(Txn),
}

/// All of `then`, if every compare holds; else all of `otherwise`. No key is written twice in one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The conditions.
    pub compares: Vec<Compare>,
    /// If they hold.
    pub then: Vec<Op>,
    /// If they do not.
    pub otherwise: Vec<Op>,
}

impl Txn {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    pub fn when(mut self, key: impl Into<String>, test: Test) -> Self {
        self.compares.push(Compare { key: key.into(), test });
        self
    }

    /// Adds a write to what happens if the conditions hold.
    pub fn put(self, key: impl Into<String>, value: Vec<u8>) -> Self {
        self.then(Op::Put { key: key.into(), value, lease: None })
    }

    /// Adds a removal to what happens if the conditions hold.
    pub fn delete(self, key: impl Into<String>) -> Self {
        self.then(Op::Delete(key.into()))
    }

    /// Adds a step to what happens if the conditions hold.
    pub fn then(mut self, op: Op) -> Self {
        self.then.push(op);
        self
    }

    /// Adds a step to what happens if they do not.
    pub fn otherwise(mut self, op: Op) -> Self {
        self.otherwise.push(op);
        self
    }
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether every compare held.
    pub succeeded: bool,
    /// The store's revision afterwards: the transaction's own, if it wrote something.
    pub revision: Revision,
    /// One for each step of the branch taken.
    pub results: Vec<OpResult>,
}

/// What a step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpResult {
    /// Wrote.
    Put,
    /// Removed so many keys.
    Deleted(u64),
    /// Read this.
    Got(Option<Entry>),
    /// A transaction within.
    Txn {
        /// Whether its compares held.
        succeeded: bool,
        /// One for each step of the branch taken.
        results: Vec<OpResult>,
    },
}

/// A change that a watch reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has this value now.
    Put(Entry),
    /// The key is gone since this revision, by a delete or by its lease's end.
    Deleted {
        /// The key.
        key: String,
        /// When.
        revision: Revision,
    },
}

/// Changes in their order; never a part of a transaction without the rest. None: the store was away, and the watch goes on
/// where it was. If the store was put back to an earlier state meanwhile and has come past there since, what happened on the
/// way is missing: whoever keeps a view compares what tells one life of the store from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// All of the prefix up to `revision`, since the batch before.
    pub changes: Vec<Change>,
    /// Everything up to here was seen.
    pub revision: Revision,
}

/// Why the store did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It does not answer. A commit may or may not have happened.
    #[error("the registry does not answer: {0}")]
    Unavailable(String),
    /// The lease has ended, or never was.
    #[error("the lease has ended")]
    LeaseGone,
    /// The revision asked for is no longer remembered: list again.
    #[error("the registry remembers only revisions above {compacted}")]
    Compacted {
        /// The last one forgotten.
        compacted: Revision,
    },
    /// It has no room: etcd takes no writes and no leases until an operator has made some; the embedded one takes what
    /// makes room and nothing new.
    #[error(
        "the registry is full: make room on the disk, delete a topic; or compact etcd, defragment it, then disarm its \
         NOSPACE alarm"
    )]
    NoSpace,
    /// It is another store, or an earlier state of it: nothing that was read from it holds any more. A commit may or may
    /// not have happened. Every further request is refused like this until [`Store::renew`]; then read everything again.
    #[error("the registry was restored to an earlier state, or emptied")]
    WentBack,
    /// It refuses the name and the password that this broker shows it, or the lack of them; another password may be in the
    /// broker's file by the next time.
    #[error(
        "the registry refuses this broker's user: {0}; look at etcd_user, at the password in etcd_password_file, and at the user in etcd"
    )]
    Refused(String),
    /// The request breaks a rule of the store: a mistake of ours.
    #[error("not a request that the registry takes: {0}")]
    Invalid(String),
    /// It failed and stays so until an operator acts.
    #[error("the registry failed: {0}")]
    Failed(String),
}

impl StoreError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::NoSpace | Self::Refused(_))
    }
}

/// A result of the store.
pub type StoreResult<T> = Result<T, StoreError>;

/// Which store it was and how far it had come; to be kept outside of it, so that a loss of its state is noticed. It is not
/// where the new life of a store has come as far as the old one had: also keep the cluster's id, and read everything again
/// now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// etcd's cluster, or the embedded store's file.
    pub store_id: u64,
    /// Its revision.
    pub revision: Revision,
}

impl Seen {
    /// Whether what is there `now` is another store, or an earlier state of this one.
    pub fn was_lost(&self, now: &Seen) -> bool {
        now.store_id != self.store_id || now.revision < self.revision
    }
}

/// An ordered key-value store with revisions. Cheap to clone.
pub trait Store: Clone + 'static {
    /// Its watches.
    type Watch: Watch;

    /// `embedded` or `etcd`.
    fn kind(&self) -> &'static str;
    /// Believes the store again after [`StoreError::WentBack`], as it is now: for whoever is about to read everything again.
    /// Watches made before stay at their end. Nothing where a store cannot go back.
    fn renew(&self) {}
    /// What an operator should know of it, each with what to do; empty: all is well. Asked now and then.
    fn warnings(&self) -> impl Future<Output = StoreResult<Vec<String>>> {
        async { Ok(Vec::new()) }
    }
    /// Which store it is and how far it has come.
    fn seen(&self) -> impl Future<Output = StoreResult<Seen>>;
    /// Reads one key.
    fn get(&self, key: &str) -> impl Future<Output = StoreResult<Option<Entry>>>;
    /// Reads a page of keys.
    fn range(&self, range: Range) -> impl Future<Output = StoreResult<Page>>;
    /// Runs a transaction; when this returns it is on stable storage.
    fn commit(&self, txn: Txn) -> impl Future<Output = StoreResult<Outcome>>;
    /// Makes a lease that ends `life` after its last keep-alive, with every key that was put under it.
    fn grant(&self, life: Duration) -> impl Future<Output = StoreResult<LeaseId>>;
    /// Keeps a lease alive for its whole life from now; returns that life.
    fn keep_alive(&self, lease: LeaseId) -> impl Future<Output = StoreResult<Duration>>;
    /// Ends a lease, with its keys.
    fn revoke(&self, lease: LeaseId) -> impl Future<Output = StoreResult<()>>;
    /// Watches a prefix: every change from revision `from` on. List at a revision, then watch from the next.
    fn watch(&self, prefix: &str, from: Revision) -> impl Future<Output = StoreResult<Self::Watch>>;
}

/// A watch of a prefix.
pub trait Watch: 'static {
    /// Waits for the next changes. After an error the watch is of no use: list again.
    fn next(&mut self) -> impl Future<Output = StoreResult<Changes>>;
}

/// Every entry of a prefix as of one revision, read page by page; begins again when that revision was forgotten meanwhile.
pub async fn list<S: Store>(store: &S, prefix: &str) -> StoreResult<(Vec<Entry>, Revision)> {
    list_first(store, &Range::prefix(prefix), usize::MAX).await
}

/// The same of the first entries of a range: so many at least, if it has them.
pub async fn list_first<S: Store>(
    store: &S,
    wanted: &Range,
    entries_wanted: usize,
) -> StoreResult<(Vec<Entry>, Revision)> {
    'again: loop {
        let mut range = wanted.clone();
        let mut entries = Vec::new();
        loop {
            let page = match store.range(range.clone()).await {
                Err(StoreError::Compacted { .. }) if range.at.is_some() => continue 'again,
                page => page?,
            };
            entries.extend(page.entries);
            let revision = range.at.unwrap_or(page.revision);
            match entries.last() {
                Some(last) if page.more && entries.len() < entries_wanted => {
                    // The smallest key above `last`.
                    range.start = format!("{}\0", last.key);
                    range.at = Some(revision);
                }
                _ => return Ok((entries, revision)),
            }
        }
    }
}
