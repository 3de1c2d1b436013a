//! A broker's own place in the registry: which cluster this is, whether this data directory is the one that the broker's
//! number stands for, and the lease that says it runs. Written once, above the store seam; runs on the control thread.

use std::time::Duration;

use corelane_log::data_dir::Identity;

use super::keys::{Key, Keys};
use super::records::{AliveRecord, BrokerRecord, ClusterRecord, Record, RecordError};
use super::store::{LeaseId, Op, Store, StoreError, StoreResult, Test, Txn};

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
    /// The registry knows nothing, the directory holds data.
    #[error(
        "the registry is empty, though the data directory holds {topics} topics of cluster {on_disk}; put the registry \
         back from a backup (a single broker's is the file registry.redb), or choose another directory with --data. \
         Nothing was changed"
    )]
    EmptyRegistry {
        /// How many topics.
        topics: usize,
        /// The directory's cluster.
        on_disk: String,
    },
    /// Another directory has this broker's number.
    #[error(
        "broker {broker_id} has another data directory (uuid {registered}, this one is {uuid}); give this broker a \
         number of its own with --broker-id, or use that directory"
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
         {registered} times; use the newer one"
    )]
    Behind {
        /// The number.
        broker_id: u32,
        /// By the directory.
        starts: u64,
        /// By the registry.
        registered: u64,
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

/// Which cluster a broker is to belong to. Pure: what is on disk wins over what is missing in the registry, and nothing
/// is guessed where data is at stake. `new_id` is used when neither knows one.
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
        None if topics_on_disk == 0 => Ok(on_disk),
        None => Err(IdentityError::EmptyRegistry { topics: topics_on_disk, on_disk }),
    }
}

/// A broker's place in the registry.
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

    /// The cluster's id, if the registry has one.
    pub async fn cluster_id(&self) -> Result<Option<String>, IdentityError> {
        let key = self.keys.key(&Key::Cluster);
        let Some(entry) = self.store.get(&key).await? else { return Ok(None) };
        let record = ClusterRecord::from_bytes(&entry.value).map_err(|error| IdentityError::Record { key, error })?;
        Ok(Some(record.cluster_id))
    }

    /// Makes the cluster's record, unless there is one; returns the id that holds.
    pub async fn make_cluster(&self, cluster_id: &str) -> Result<String, IdentityError> {
        let key = self.keys.key(&Key::Cluster);
        let record = ClusterRecord { cluster_id: cluster_id.to_owned() };
        self.store.commit(Txn::new().when(&key, Test::Absent).put(&key, record.to_bytes())).await?;
        Ok(self.cluster_id().await?.unwrap_or(record.cluster_id))
    }

    /// Whether a data directory that was started so often is the one that this broker's number stands for. Asked before the
    /// directory's counter is raised, so that an older copy never catches up by being tried again and again.
    pub async fn check_directory(&self, uuid: &str, starts: u64) -> Result<(), IdentityError> {
        let (broker_id, key) = (self.broker_id, self.keys.key(&Key::Broker(self.broker_id)));
        let Some(entry) = self.store.get(&key).await? else { return Ok(()) };
        let known = BrokerRecord::from_bytes(&entry.value).map_err(|error| IdentityError::Record { key, error })?;
        if known.uuid != uuid {
            return Err(IdentityError::OtherDirectory { broker_id, registered: known.uuid, uuid: uuid.to_owned() });
        }
        if known.starts > starts {
            return Err(IdentityError::Behind { broker_id, starts, registered: known.starts });
        }
        Ok(())
    }

    /// Writes this broker's lasting record, if its data directory is the right one: its counter of starts, which the
    /// directory has raised before, must not be behind.
    pub async fn register(&self, record: &BrokerRecord) -> Result<(), IdentityError> {
        let (broker_id, key) = (self.broker_id, self.keys.key(&Key::Broker(self.broker_id)));
        for _ in 0..CONFLICTS_MAX {
            let found = self.store.get(&key).await?;
            let test = match &found {
                None => Test::Absent,
                Some(entry) => {
                    let known = BrokerRecord::from_bytes(&entry.value)
                        .map_err(|error| IdentityError::Record { key: key.clone(), error })?;
                    if known.uuid != record.uuid {
                        let (registered, uuid) = (known.uuid, record.uuid.clone());
                        return Err(IdentityError::OtherDirectory { broker_id, registered, uuid });
                    }
                    if known.starts >= record.starts {
                        let (starts, registered) = (record.starts, known.starts);
                        return Err(IdentityError::Behind { broker_id, starts, registered });
                    }
                    Test::Modified(entry.mod_revision)
                }
            };
            if self.store.commit(Txn::new().when(&key, test).put(&key, record.to_bytes())).await?.succeeded {
                return Ok(());
            }
        }
        Err(IdentityError::Busy { broker_id })
    }

    /// Says under a new lease that this broker runs. What an earlier run of the same directory left is taken over; `None`:
    /// another directory's broker with this number runs still, wait for the end of its lease.
    pub async fn announce(&self, record: &AliveRecord, life: Duration) -> Result<Option<LeaseId>, IdentityError> {
        let key = self.keys.key(&Key::Alive(self.broker_id));
        let lease = self.store.grant(life).await?;
        for _ in 0..CONFLICTS_MAX {
            let found = self.store.get(&key).await?;
            let (test, old_lease) = match &found {
                None => (Test::Absent, None),
                Some(entry) => {
                    let known = AliveRecord::from_bytes(&entry.value)
                        .map_err(|error| IdentityError::Record { key: key.clone(), error })?;
                    if known.uuid != record.uuid {
                        self.revoke(lease).await?;
                        return Ok(None);
                    }
                    (Test::Modified(entry.mod_revision), entry.lease)
                }
            };
            let put = Op::Put { key: key.clone(), value: record.to_bytes(), lease: Some(lease) };
            if self.store.commit(Txn::new().when(&key, test).then(put)).await?.succeeded {
                if let Some(old) = old_lease {
                    self.revoke(old).await?;
                }
                return Ok(Some(lease));
            }
        }
        Err(IdentityError::Busy { broker_id: self.broker_id })
    }

    /// Says that this broker runs no more.
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
        assert_eq!(choose(Some(&known), 0, None).expect("nothing is at stake"), "c1");
    }

    #[test]
    fn nothing_is_guessed_where_data_is_at_stake() {
        let known = identity();
        let refusal = |identity: Option<&Identity>, topics, registry, broker_id| {
            choose_cluster(identity, topics, registry, broker_id, "new").expect_err("refused").to_string()
        };
        assert!(refusal(None, 2, Some("c1"), 1).contains("holds 2 topics but no identity file"));
        assert!(refusal(Some(&known), 2, None, 1).contains("the registry is empty, though the data directory holds 2"));
        assert!(refusal(Some(&known), 0, Some("c2"), 1).contains("belongs to cluster c1"));
        assert!(refusal(Some(&known), 2, Some("c2"), 1).contains("belongs to cluster c1"));
        assert!(refusal(Some(&known), 0, Some("c1"), 7).contains("start with --broker-id 1"));
    }
}
