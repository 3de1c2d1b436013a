//! A broker's own place in the registry: which cluster this is, whether this data directory is the one that the broker's
//! number stands for, and the lease that says it runs. Written once, above the store seam; runs on the control thread.

use std::time::Duration;

use corelane_log::data_dir::Identity;

use super::keys::{Key, Keys};
use super::records::{AliveRecord, BrokerRecord, ClusterRecord, Record, RecordError};
use super::store::{LeaseId, Op, Revision, Store, StoreError, StoreResult, Test, Txn};

/// How often a write that others came before is tried again.
const CONFLICTS_MAX: u32 = 16;

/// Why a broker may not use its data directory, each with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// Topics without an identity file.
    #[error(
        "the data directory holds {topics} topics but no identity file; put the file \"identity\" back from a backup, \
         or choose another directory with --data"
    )]
    Lost {
        /// How many.
        topics: usize,
    },
    /// Another broker's directory.
    #[error(
        "the data directory belongs to broker {owner}, this is broker {broker_id}; start with --broker-id {owner}, or choose another directory with --data"
    )]
    OtherBroker {
        /// Whose it is.
        owner: u32,
        /// Who asks.
        broker_id: u32,
    },
    /// Another cluster's directory.
    #[error(
        "the data directory belongs to cluster {on_disk}, the registry is that of cluster {in_registry}; use the \
         registry of that cluster, or choose another directory with --data"
    )]
    OtherCluster {
        /// The directory's.
        on_disk: String,
        /// The registry's.
        in_registry: String,
    },
    /// The registry knows nothing, though the directory was used with one.
    #[error(
        "the registry is empty, though the data directory has been in use in cluster {on_disk} and knows {topics} of its \
         topics; put the registry back from a backup (a single broker's is the file registry.redb), make its records anew \
         from what the directories know (corelane registry restore-from), or choose another directory with --data. Nothing \
         was changed"
    )]
    EmptyRegistry {
        /// How many topics.
        topics: usize,
        /// The directory's cluster.
        on_disk: String,
    },
    /// The broker would go on with a registry that was given up.
    #[error(
        "the data directory is that of a broker of a cluster on etcd: start it with --etcd and --cluster. If it is to go on \
         by itself: corelane registry export of the cluster, move the old registry.redb away, corelane registry import"
    )]
    LeftBehind,
    /// Another directory has this broker's number.
    #[error(
        "broker {broker_id} has another data directory (uuid {registered}, this one is {uuid}); give this broker a \
         number of its own with --broker-id, or use that directory; if that one is lost for good: corelane broker forget {broker_id}"
    )]
    OtherDirectory {
        /// The number.
        broker_id: u32,
        /// The directory that the registry knows.
        registered: String,
        /// This one.
        uuid: String,
    },
    /// An older copy of the directory.
    #[error(
        "the data directory is an older copy: it was started {starts} times, broker {broker_id} was started \
         {registered} times; use the newer one; if that one is lost for good, with what was published since: corelane broker \
         forget {broker_id}, then start this one"
    )]
    Behind {
        /// The number.
        broker_id: u32,
        /// By the directory.
        starts: u64,
        /// By the registry.
        registered: u64,
    },
    /// A broker that runs cannot be forgotten.
    #[error("broker {broker_id} runs; stop it first")]
    Runs {
        /// The number.
        broker_id: u32,
    },
    /// Others kept changing the record.
    #[error("others keep changing the record of broker {broker_id}; is another broker started with this number?")]
    Busy {
        /// The number.
        broker_id: u32,
    },
    /// What is stored is not readable.
    #[error("{key}: {error}; correct it, or remove the key")]
    Record {
        /// Where.
        key: String,
        /// Why.
        error: RecordError,
    },
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl IdentityError {
    /// Whether it means that the registry takes another directory, or a later start, for this broker: this one must write
    /// no more.
    pub fn is_displacement(&self) -> bool {
        matches!(self, Self::OtherDirectory { .. } | Self::Behind { .. })
    }

    /// Whether the registry answers, and does not let this broker use it.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Store(StoreError::Refused(_) | StoreError::Failed(_)))
    }

    /// Whether the same may succeed later, the registry being away or full.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_retryable(),
            Self::Busy { .. } => true,
            _ => false,
        }
    }
}

/// Whether `record` may follow what is registered: the same directory at a later start, or this very start.
fn check_successor(broker_id: u32, known: &BrokerRecord, record: &BrokerRecord) -> Result<(), IdentityError> {
    if known.uuid != record.uuid {
        let (registered, uuid) = (known.uuid.clone(), record.uuid.clone());
        return Err(IdentityError::OtherDirectory { broker_id, registered, uuid });
    }
    let is_this_start = known.starts == record.starts && known.instance == record.instance;
    if known.starts >= record.starts && !is_this_start {
        return Err(IdentityError::Behind { broker_id, starts: record.starts, registered: known.starts });
    }
    Ok(())
}

/// Which cluster a broker is to belong to. Pure: what is on disk wins over what is missing in the registry, and nothing
/// is guessed where data is at stake. `new_id` is used when neither knows one.
///
/// A directory with an identity was used with a registry that knew its cluster. An empty one is a loss, even to a broker
/// that holds nothing: were it to make the cluster's record anew, the others would take what is missing for deleted.
pub fn choose_cluster(
    identity: Option<&Identity>,
    topics_on_disk: usize,
    in_registry: Option<&str>,
    broker_id: u32,
    new_id: &str,
) -> Result<String, IdentityError> {
    let Some(identity) = identity else {
        return match topics_on_disk {
            0 => Ok(in_registry.unwrap_or(new_id).to_owned()),
            topics => Err(IdentityError::Lost { topics }),
        };
    };
    if identity.broker_id != broker_id {
        return Err(IdentityError::OtherBroker { owner: identity.broker_id, broker_id });
    }
    let on_disk = identity.cluster_id.clone();
    match in_registry {
        Some(same) if same == on_disk => Ok(on_disk),
        Some(other) => Err(IdentityError::OtherCluster { on_disk, in_registry: other.to_owned() }),
        None => Err(IdentityError::EmptyRegistry { topics: topics_on_disk, on_disk }),
    }
}

/// Whether a directory that was used with a registry of one kind may go on with one of another. From an embedded one to
/// etcd is how a single broker becomes one of several; what an embedded one says after that is long outdated.
pub fn check_kind(identity: Option<&Identity>, kind: &str) -> Result<(), IdentityError> {
    let was_on_etcd = identity.is_some_and(|identity| identity.registry_kind == "etcd");
    if was_on_etcd && kind == "embedded" { Err(IdentityError::LeftBehind) } else { Ok(()) }
}

/// What a broker tells of its partitions while it runs; see [`AliveRecord`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// That lie on it.
    pub partitions: u32,
    /// That lie in its data directory and have no record.
    pub unrecorded: u32,
    /// In which life of the registry they were counted.
    pub incarnation: u64,
}

impl AliveRecord {
    /// What it tells.
    pub fn holds(&self) -> Holds {
        Holds { partitions: self.partitions, unrecorded: self.unrecorded, incarnation: self.incarnation }
    }
}

/// A broker's place in the registry.
#[derive(Clone)]
pub struct Membership<S> {
    store: S,
    keys: Keys,
    broker_id: u32,
}

impl<S: Store> Membership<S> {
    /// Of this broker.
    pub fn new(store: S, keys: Keys, broker_id: u32) -> Self {
        Self { store, keys, broker_id }
    }

    /// `embedded` or `etcd`.
    pub fn store_kind(&self) -> &'static str {
        self.store.kind()
    }

    /// The cluster's id, if the registry has one.
    pub async fn cluster_id(&self) -> Result<Option<String>, IdentityError> {
        Ok(self.cluster().await?.map(|(record, _)| record.cluster_id))
    }

    /// The cluster's record, if the registry has one, and its mod revision.
    pub async fn cluster(&self) -> Result<Option<(ClusterRecord, Revision)>, IdentityError> {
        let key = self.keys.key(&Key::Cluster);
        let Some(entry) = self.store.get(&key).await? else { return Ok(None) };
        let record = ClusterRecord::from_bytes(&entry.value).map_err(|error| IdentityError::Record { key, error })?;
        Ok(Some((record, entry.mod_revision)))
    }

    /// Makes the cluster's record, unless there is one; returns the id that holds.
    pub async fn make_cluster(&self, cluster_id: &str) -> Result<String, IdentityError> {
        let key = self.keys.key(&Key::Cluster);
        let record = ClusterRecord { cluster_id: cluster_id.to_owned(), incarnation: 1 };
        self.store.commit(Txn::new().when(&key, Test::Absent).put(&key, record.to_bytes())).await?;
        Ok(self.cluster_id().await?.unwrap_or(record.cluster_id))
    }

    /// The store was restored since a broker knew it in incarnation `known`: raises it, unless another broker was faster.
    /// Returns the one that holds.
    pub async fn raise_incarnation(&self, known: u64) -> Result<u64, IdentityError> {
        let key = self.keys.key(&Key::Cluster);
        for _ in 0..CONFLICTS_MAX {
            let Some((mut record, revision)) = self.cluster().await? else { return Ok(known) };
            if record.incarnation > known {
                return Ok(record.incarnation);
            }
            record.incarnation = known + 1;
            let txn = Txn::new().when(&key, Test::Modified(revision)).put(&key, record.to_bytes());
            if self.store.commit(txn).await?.succeeded {
                return Ok(record.incarnation);
            }
        }
        Err(IdentityError::Busy { broker_id: self.broker_id })
    }

    /// Whether a data directory that told the registry of so many starts is the one that this broker's number stands for.
    /// Asked before the directory's counter is raised, so that an older copy never catches up by being tried again and
    /// again.
    pub async fn check_directory(&self, uuid: &str, starts: u64) -> Result<(), IdentityError> {
        let Some((known, _)) = self.registered().await? else { return Ok(()) };
        let broker_id = self.broker_id;
        if known.uuid != uuid {
            return Err(IdentityError::OtherDirectory { broker_id, registered: known.uuid, uuid: uuid.to_owned() });
        }
        if known.starts > starts {
            return Err(IdentityError::Behind { broker_id, starts, registered: known.starts });
        }
        Ok(())
    }

    async fn registered(&self) -> Result<Option<(BrokerRecord, Revision)>, IdentityError> {
        let key = self.keys.key(&Key::Broker(self.broker_id));
        let Some(entry) = self.store.get(&key).await? else { return Ok(None) };
        let known = BrokerRecord::from_bytes(&entry.value).map_err(|error| IdentityError::Record { key, error })?;
        Ok(Some((known, entry.mod_revision)))
    }

    /// Writes this broker's lasting record, if its data directory is the right one: its counter of starts, which the
    /// directory has raised before, must not be behind. What this very run wrote before is written again.
    pub async fn register(&self, record: &BrokerRecord) -> Result<(), IdentityError> {
        let key = self.keys.key(&Key::Broker(self.broker_id));
        for _ in 0..CONFLICTS_MAX {
            let test = match self.registered().await? {
                None => Test::Absent,
                Some((known, revision)) => {
                    check_successor(self.broker_id, &known, record)?;
                    Test::Modified(revision)
                }
            };
            if self.store.commit(Txn::new().when(&key, test).put(&key, record.to_bytes())).await?.succeeded {
                return Ok(());
            }
        }
        Err(IdentityError::Busy { broker_id: self.broker_id })
    }

    /// Says under a new lease that this broker runs, unless another run has registered since `broker` was. What an earlier
    /// run of the same directory left is taken over; `None`: another directory's broker with this number runs still, wait
    /// for the end of its lease.
    pub async fn announce(
        &self,
        broker: &BrokerRecord,
        record: &AliveRecord,
        life: Duration,
    ) -> Result<Option<LeaseId>, IdentityError> {
        let key = self.keys.key(&Key::Alive(self.broker_id));
        let lease = self.store.grant(life).await?;
        let announced = self.announce_under(lease, broker, record, &key).await;
        if !matches!(announced, Ok(true)) {
            // It would end by itself, too.
            let _ = self.revoke(lease).await;
        }
        announced.map(|announced| announced.then_some(lease))
    }

    async fn announce_under(
        &self,
        lease: LeaseId,
        broker: &BrokerRecord,
        record: &AliveRecord,
        key: &str,
    ) -> Result<bool, IdentityError> {
        let broker_key = self.keys.key(&Key::Broker(self.broker_id));
        for _ in 0..CONFLICTS_MAX {
            let registered = match self.registered().await? {
                None => Test::Absent,
                Some((known, revision)) => {
                    check_successor(self.broker_id, &known, broker)?;
                    Test::Modified(revision)
                }
            };
            let found = self.store.get(key).await?;
            let (test, old_lease) = match &found {
                None => (Test::Absent, None),
                Some(entry) => {
                    let known = AliveRecord::from_bytes(&entry.value)
                        .map_err(|error| IdentityError::Record { key: key.to_owned(), error })?;
                    if known.uuid != record.uuid {
                        return Ok(false);
                    }
                    (Test::Modified(entry.mod_revision), entry.lease)
                }
            };
            let put = Op::Put { key: key.to_owned(), value: record.to_bytes(), lease: Some(lease) };
            let txn = Txn::new().when(&broker_key, registered).when(key, test).then(put);
            if self.store.commit(txn).await?.succeeded {
                if let Some(old) = old_lease {
                    self.revoke(old).await?;
                }
                return Ok(true);
            }
        }
        Err(IdentityError::Busy { broker_id: self.broker_id })
    }

    /// Whether the registry has this run's record and its entry among those that run. An entry that tells other numbers of
    /// partitions is written again, under the lease that it has.
    pub async fn keep_place(&self, record: &BrokerRecord, holds: Holds) -> Result<bool, IdentityError> {
        let Some((known, _)) = self.registered().await? else { return Ok(false) };
        check_successor(self.broker_id, &known, record)?;
        let key = self.keys.key(&Key::Alive(self.broker_id));
        let Some(entry) = self.store.get(&key).await? else { return Ok(false) };
        let alive = AliveRecord::from_bytes(&entry.value);
        let mut alive = alive.map_err(|error| IdentityError::Record { key: key.clone(), error })?;
        if known != *record || alive.instance != record.instance {
            return Ok(false);
        }
        if alive.holds() != holds {
            let Holds { partitions, unrecorded, incarnation } = holds;
            (alive.partitions, alive.unrecorded, alive.incarnation) = (partitions, unrecorded, incarnation);
            let put = Op::Put { key: key.clone(), value: alive.to_bytes(), lease: entry.lease };
            self.store.commit(Txn::new().when(&key, Test::Modified(entry.mod_revision)).then(put)).await?;
        }
        Ok(true)
    }

    /// Forgets a broker that will never come back: its number is free, its data counts as gone. `false`: it was not known.
    /// Refused while it runs.
    pub async fn forget(&self, broker_id: u32) -> Result<bool, IdentityError> {
        let (alive, broker) = (self.keys.key(&Key::Alive(broker_id)), self.keys.key(&Key::Broker(broker_id)));
        let known = self.store.get(&broker).await?.is_some();
        let txn = Txn::new().when(&alive, Test::Absent).delete(&broker);
        if self.store.commit(txn).await?.succeeded { Ok(known) } else { Err(IdentityError::Runs { broker_id }) }
    }

    /// Says that this broker stops, then that it runs no more: whoever sees its entry go knows why.
    pub async fn depart(&self, instance: &str, lease: LeaseId) -> StoreResult<()> {
        // The word is for the others' logs: they must not wait for the end of the lease because of it.
        let _ = self.say_leaving(instance, lease).await;
        self.revoke(lease).await
    }

    async fn say_leaving(&self, instance: &str, lease: LeaseId) -> StoreResult<()> {
        let key = self.keys.key(&Key::Alive(self.broker_id));
        let Some(entry) = self.store.get(&key).await? else { return Ok(()) };
        if let Ok(alive) = AliveRecord::from_bytes(&entry.value)
            && alive.instance == instance
        {
            let value = AliveRecord { leaving: true, ..alive }.to_bytes();
            let put = Op::Put { key: key.clone(), value, lease: Some(lease) };
            self.store.commit(Txn::new().when(&key, Test::Modified(entry.mod_revision)).then(put)).await?;
        }
        Ok(())
    }

    /// Ends this broker's lease.
    pub async fn revoke(&self, lease: LeaseId) -> StoreResult<()> {
        match self.store.revoke(lease).await {
            Err(StoreError::LeaseGone) => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            format_version: 1,
            cluster_id: "c1".to_owned(),
            broker_id: 1,
            uuid: "u1".to_owned(),
            starts: 1,
            registered: Some(1),
            registry_kind: "etcd".to_owned(),
            registry_store: 1,
            registry_incarnation: 1,
            registry_revision: 1,
            window_max_ever: 1,
        }
    }

    #[test]
    fn what_is_on_disk_wins_over_what_is_missing_in_the_registry() {
        let known = identity();
        let choose =
            |identity: Option<&Identity>, topics, registry| choose_cluster(identity, topics, registry, 1, "new");
        assert_eq!(choose(None, 0, None).expect("a first start"), "new");
        assert_eq!(choose(None, 0, Some("c1")).expect("a cluster is joined"), "c1");
        assert_eq!(choose(Some(&known), 3, Some("c1")).expect("as ever"), "c1");
    }

    #[test]
    fn a_broker_of_a_cluster_does_not_go_on_with_its_old_registry() {
        let embedded = Identity { registry_kind: "embedded".to_owned(), ..identity() };
        let before_kinds = Identity { registry_kind: String::new(), ..identity() };
        assert!(check_kind(Some(&identity()), "embedded").is_err());
        assert!(check_kind(Some(&identity()), "etcd").is_ok());
        for kind in ["embedded", "etcd"] {
            assert!([None, Some(&embedded), Some(&before_kinds)].iter().all(|it| check_kind(*it, kind).is_ok()));
        }
    }

    #[test]
    fn nothing_is_guessed_where_data_is_at_stake() {
        let known = identity();
        let refusal = |identity: Option<&Identity>, topics, registry, broker_id| {
            choose_cluster(identity, topics, registry, broker_id, "new").expect_err("refused").to_string()
        };
        assert!(refusal(None, 2, Some("c1"), 1).contains("holds 2 topics but no identity file"));
        assert!(
            refusal(Some(&known), 2, None, 1).contains("the registry is empty, though the data directory has been")
        );
        assert!(refusal(Some(&known), 0, None, 1).contains("the registry is empty"), "others may hold topics");
        assert!(refusal(Some(&known), 0, Some("c2"), 1).contains("belongs to cluster c1"));
        assert!(refusal(Some(&known), 2, Some("c2"), 1).contains("belongs to cluster c1"));
        assert!(refusal(Some(&known), 0, Some("c1"), 7).contains("start with --broker-id 1"));
    }
}
