//! The registry of a broker whose own cannot be opened: it never answers, so that what is on disk is served and nothing is
//! changed.

use std::convert::Infallible;
use std::time::Duration;

use super::store::{
    Changes, Entry, LeaseId, Outcome, Page, Range, Revision, Seen, Store, StoreError, StoreResult, Txn, Watch,
};

/// A store that is not there.
#[derive(Clone, Debug)]
pub struct Nowhere {
    reason: String,
}

impl Nowhere {
    /// With what it answers instead.
    pub fn new(reason: String) -> Self {
        Self { reason }
    }

    fn refuse<T>(&self) -> StoreResult<T> {
        Err(StoreError::Unavailable(self.reason.clone()))
    }
}

impl Store for Nowhere {
    type Watch = Infallible;

    fn kind(&self) -> &'static str {
        "embedded"
    }

    async fn seen(&self) -> StoreResult<Seen> {
        self.refuse()
    }

    async fn get(&self, _key: &str) -> StoreResult<Option<Entry>> {
        self.refuse()
    }

    async fn range(&self, _range: Range) -> StoreResult<Page> {
        self.refuse()
    }

    async fn commit(&self, _txn: Txn) -> StoreResult<Outcome> {
        self.refuse()
    }

    async fn grant(&self, _life: Duration) -> StoreResult<LeaseId> {
        self.refuse()
    }

    async fn keep_alive(&self, _lease: LeaseId) -> StoreResult<Duration> {
        self.refuse()
    }

    async fn revoke(&self, _lease: LeaseId) -> StoreResult<()> {
        self.refuse()
    }

    async fn watch(&self, _prefix: &str, _from: Revision) -> StoreResult<Infallible> {
        self.refuse()
    }
}

impl Watch for Infallible {
    async fn next(&mut self) -> StoreResult<Changes> {
        match *self {}
    }
}
