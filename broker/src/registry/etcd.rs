//! The registry of a cluster: the store seam on etcd. Every request goes to one endpoint, the one that answered last;
//! when it fails, the next request looks for another that has a leader. Runs on the control thread's runtime, with one
//! task for each watch.
//!
//! What etcd may do to a client: answer late or never, forget history, lose its data and come back with less of it. Each
//! has its error here; none is hidden by trying again where the first try may have counted.

mod check;
mod convert;
mod link;
mod options;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::GetOptions;

use super::store::{Entry, LeaseId, Outcome, Page, Range, Revision, Seen, Store, StoreError, StoreResult, Txn};
use super::txn_rules::check_txn;
use crate::limits::LEASE_LIVES_KNOWN_MAX;
use check::CompactionSeen;
pub use check::{CompactionRule, EtcdCheck};
use convert::{entry_of, results_of, revision_of, txn_of};
use link::{Link, kv};
pub use options::{EtcdOptions, EtcdTls, EtcdUser};
pub use watch::EtcdWatch;

/// A registry in etcd. Clones share its connection.
#[derive(Clone)]
pub struct EtcdStore {
    link: Link,
    /// How long each lease lives after a keep-alive: etcd never changes it, and its client does not say it.
    lives: Arc<Mutex<HashMap<LeaseId, Duration>>>,
    compaction: Arc<Mutex<CompactionSeen>>,
}

impl EtcdStore {
    /// A store that connects when it is first asked for something, so that a broker starts without etcd. Fails when the
    /// options contradict each other or name a file that cannot be read.
    pub fn new(options: EtcdOptions) -> StoreResult<Self> {
        Ok(Self { link: Link::new(options)?, lives: Arc::default(), compaction: Arc::default() })
    }

    fn remember_life(&self, lease: LeaseId, life: Option<Duration>) {
        let mut lives = self.lives.lock().expect("nobody panics while it is held");
        match life {
            Some(life) => {
                // Forgetting one costs a further request at its next keep-alive.
                if lives.len() >= LEASE_LIVES_KNOWN_MAX {
                    lives.clear();
                }
                lives.insert(lease, life);
            }
            None => drop(lives.remove(&lease)),
        }
    }

    async fn life_of(&self, lease: LeaseId) -> StoreResult<Duration> {
        let known = self.lives.lock().expect("nobody panics while it is held").get(&lease).copied();
        if let Some(life) = known {
            return Ok(life);
        }
        let answer =
            self.link.call(async |client| client.lease_client().time_to_live(lease.cast_signed(), None).await).await?;
        if answer.ttl() <= 0 {
            return Err(StoreError::LeaseGone);
        }
        let life = seconds(answer.granted_ttl());
        self.remember_life(lease, Some(life));
        Ok(life)
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(seconds.max(0).cast_unsigned())
}

impl Store for EtcdStore {
    type Watch = EtcdWatch;

    fn kind(&self) -> &'static str {
        "etcd"
    }

    fn renew(&self) {
        self.link.renew();
    }

    async fn warnings(&self) -> StoreResult<Vec<String>> {
        // What the broker lives on first; its user need not be allowed to ask the server how it is.
        self.seen().await?;
        match self.check(&CompactionRule::default()).await {
            Err(error @ StoreError::Failed(_)) => {
                tracing::debug!(%error, "etcd does not say how it is");
                Ok(Vec::new())
            }
            checked => checked.map(|checked| checked.warnings),
        }
    }

    async fn seen(&self) -> StoreResult<Seen> {
        let prefix = self.link.prefix().to_owned();
        let seen = self.link.seen();
        let answer = self.link.read(async |client| kv(&client).get(prefix.as_str(), None).await).await?;
        self.link.note(seen, answer.header())
    }

    async fn get(&self, key: &str) -> StoreResult<Option<Entry>> {
        let seen = self.link.seen();
        let mut answer = self.link.read(async |client| kv(&client).get(key, None).await).await?;
        self.link.note(seen, answer.header())?;
        Ok(answer.take_kvs().pop().map(entry_of))
    }

    async fn range(&self, range: Range) -> StoreResult<Page> {
        let seen = self.link.seen();
        let limit = i64::try_from(range.limit.max(1)).unwrap_or(i64::MAX);
        let options = GetOptions::new()
            .with_range(range.end)
            .with_limit(limit)
            .with_revision(range.at.unwrap_or_default().cast_signed());
        let start = range.start.as_str();
        let read = self.link.read(async |client| kv(&client).get(start, Some(options.clone())).await).await;
        let mut answer = match (read, range.at) {
            // etcd does not say up to where it forgot; that revision at least.
            (Err(StoreError::Compacted { .. }), Some(at)) => return Err(StoreError::Compacted { compacted: at }),
            // A revision that was seen before cannot be yet to come.
            (Err(StoreError::Invalid(_)), Some(at)) if seen.is_some_and(|seen| seen.revision >= at) => {
                return Err(self.link.went_back());
            }
            (answer, _) => answer?,
        };
        self.link.note(seen, answer.header())?;
        let (more, revision) = (answer.more(), revision_of(answer.header()));
        Ok(Page { entries: answer.take_kvs().into_iter().map(entry_of).collect(), more, revision })
    }

    async fn commit(&self, txn: Txn) -> StoreResult<Outcome> {
        check_txn(&txn).map_err(StoreError::Invalid)?;
        let seen = self.link.seen();
        let answer = self.link.call(async |client| kv(&client).txn(txn_of(txn)).await).await?;
        self.link.note(seen, answer.header())?;
        let (succeeded, results) = results_of(&answer);
        Ok(Outcome { succeeded, revision: revision_of(answer.header()), results })
    }

    /// etcd counts in whole seconds, and not less than its election takes: the life may be longer than was asked.
    async fn grant(&self, life: Duration) -> StoreResult<LeaseId> {
        let whole = i64::try_from(life.as_millis().div_ceil(1000).max(1)).unwrap_or(i64::MAX);
        let answer = self.link.call(async |client| client.lease_client().grant(whole, None).await).await?;
        let lease = answer.id().cast_unsigned();
        self.remember_life(lease, Some(seconds(answer.ttl())));
        Ok(lease)
    }

    /// One request, never repeated by itself: whoever waits for it must hear of a failure at once.
    async fn keep_alive(&self, lease: LeaseId) -> StoreResult<Duration> {
        let kept = self.link.call(async |client| client.lease_client().keep_alive(lease.cast_signed()).await).await;
        match kept {
            // The stream goes with its first answer.
            Ok(_stream) => self.life_of(lease).await,
            Err(error) => {
                if error == StoreError::LeaseGone {
                    self.remember_life(lease, None);
                }
                Err(error)
            }
        }
    }

    async fn revoke(&self, lease: LeaseId) -> StoreResult<()> {
        self.remember_life(lease, None);
        self.link.call(async |client| client.lease_client().revoke(lease.cast_signed()).await).await.map(drop)
    }

    async fn watch(&self, prefix: &str, from: Revision) -> StoreResult<EtcdWatch> {
        Ok(EtcdWatch::start(self.link.clone(), prefix, from))
    }
}
