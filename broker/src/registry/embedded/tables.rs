//! The tables of the embedded registry's file.

use redb::{ReadTransaction, ReadableTable, TableDefinition};

use crate::registry::store::{Entry, LeaseId, Revision};

/// An entry without its key: create revision, mod revision, lease (0: none), value.
pub(super) type Stored<'a> = (u64, u64, u64, &'a [u8]);

/// What is there now.
pub(super) const CURRENT: TableDefinition<'static, &str, Stored<'static>> = TableDefinition::new("current");
/// What changed, by revision and place in its transaction: the key, what was there before, what is there after.
pub(super) const HISTORY: TableDefinition<'static, (u64, u32), Event<'static>> = TableDefinition::new("history");
/// Leases: their life in milliseconds.
pub(super) const LEASES: TableDefinition<'static, u64, u64> = TableDefinition::new("leases");
/// Numbers about the whole: see [`Meta`].
pub(super) const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");

/// A change.
pub(super) type Event<'a> = (&'a str, Option<Stored<'a>>, Option<Stored<'a>>);

/// Numbers about the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// Random, given to the file when it was made.
    pub(super) store_id: u64,
    /// The last one given.
    pub(super) revision: Revision,
    /// Up to here history is forgotten.
    pub(super) compacted: Revision,
    /// The last lease made.
    pub(super) last_lease: LeaseId,
}

impl Meta {
    /// Of a new file. As in etcd, the first change has revision 2.
    const NEW: Self = Self { store_id: 0, revision: 1, compacted: 1, last_lease: 0 };

    pub(super) fn load(table: &impl ReadableTable<&'static str, u64>) -> Result<Self, redb::StorageError> {
        let number = |name, default| table.get(name).map(|found| found.map_or(default, |number| number.value()));
        Ok(Self {
            store_id: number("store_id", Self::NEW.store_id)?,
            revision: number("revision", Self::NEW.revision)?,
            compacted: number("compacted", Self::NEW.compacted)?,
            last_lease: number("last_lease", Self::NEW.last_lease)?,
        })
    }

    pub(super) fn store(self, table: &mut redb::Table<'_, &'static str, u64>) -> Result<(), redb::StorageError> {
        table.insert("store_id", self.store_id)?;
        table.insert("revision", self.revision)?;
        table.insert("compacted", self.compacted)?;
        table.insert("last_lease", self.last_lease)?;
        Ok(())
    }
}

pub(super) fn meta(read: &ReadTransaction) -> Result<Meta, redb::Error> {
    Ok(Meta::load(&read.open_table(META)?)?)
}

pub(super) fn entry_of(key: &str, stored: Stored<'_>) -> Entry {
    let (create_revision, mod_revision, lease, value) = stored;
    Entry {
        key: key.to_owned(),
        value: value.to_owned(),
        create_revision,
        mod_revision,
        lease: (lease != 0).then_some(lease),
    }
}

pub(super) fn stored_of(entry: &Entry) -> Stored<'_> {
    (entry.create_revision, entry.mod_revision, entry.lease.unwrap_or(0), &entry.value)
}
