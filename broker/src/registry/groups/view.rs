//! What a broker knows of the groups and of the topics that they read: the state as one watch of each prefix tells it.
//! Within a prefix it shows whole transactions in their order. Pure.

use std::collections::{BTreeMap, BTreeSet};

use corelane_proto::ids::{TopicId, TopicName};

use crate::registry::assignment::{PartitionId, Target};
use crate::registry::group_records::{GroupRecord, MemberRecord, OwnerRecord, TargetRecord};
use crate::registry::keys::{Key, Keys};
use crate::registry::records::{Record, TopicRecord};
use crate::registry::store::{Change, Changes, Entry, LeaseId, Revision};
use crate::registry::view::Versioned;

/// The topics, as far as groups need them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicsView {
    /// Everything up to here was seen.
    pub revision: Revision,
    topics: BTreeMap<TopicName, TopicState>,
    names: BTreeMap<TopicId, TopicName>,
}

/// A topic, as far as groups need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicState {
    /// Its id.
    pub topic_id: TopicId,
    /// Its partitions.
    pub partitions: u32,
}

impl TopicsView {
    /// As listed at a revision.
    pub fn listed(keys: &Keys, entries: Vec<Entry>, revision: Revision) -> Self {
        let mut view = Self { revision, ..Self::default() };
        for entry in entries {
            if let Some(Key::Topic(name)) = keys.parse(&entry.key) {
                view.set(name, readable::<TopicRecord>(&entry).as_ref());
            }
        }
        view
    }

    /// Takes changes in; those up to the revision that was seen are known.
    pub fn apply(&mut self, keys: &Keys, changes: Changes) {
        for change in changes.changes {
            let (key, entry, revision) = match change {
                Change::Put(entry) => (entry.key.clone(), Some(entry.clone()), entry.mod_revision),
                Change::Deleted { key, revision } => (key, None, revision),
            };
            if let Some(Key::Topic(name)) = keys.parse(&key).filter(|_| revision > self.revision) {
                self.set(name, entry.as_ref().and_then(readable::<TopicRecord>).as_ref());
            }
        }
        self.revision = self.revision.max(changes.revision);
    }

    fn set(&mut self, name: TopicName, record: Option<&TopicRecord>) {
        if let Some(before) = self.topics.remove(&name) {
            self.names.remove(&before.topic_id);
        }
        if let Some(TopicRecord { topic_id, partitions, .. }) = record {
            self.names.insert(*topic_id, name.clone());
            self.topics.insert(name, TopicState { topic_id: *topic_id, partitions: *partitions });
        }
    }

    /// By name.
    pub fn topics(&self) -> &BTreeMap<TopicName, TopicState> {
        &self.topics
    }

    /// The name of a topic; none: it does not exist.
    pub fn name_of(&self, id: TopicId) -> Option<&TopicName> {
        self.names.get(&id)
    }
}

/// The groups.
#[derive(Clone, Debug, Default)]
pub struct GroupsView {
    /// Everything up to here was seen.
    pub revision: Revision,
    /// By name; also those of which only remains are left.
    pub groups: BTreeMap<String, GroupState>,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub struct GroupState {
    /// What it is; none: it was never made, or was deleted.
    pub record: Option<Versioned<GroupRecord>>,
    pub(super) chunks: BTreeMap<u32, TargetRecord>,
    /// Who shall own what.
    pub target: Target,
    /// The same, by member.
    pub target_of: BTreeMap<String, Vec<PartitionId>>,
    /// Its members.
    pub members: BTreeMap<String, MemberState>,
    /// Who owns what.
    pub owners: BTreeMap<PartitionId, OwnerState>,
    /// The same, by member.
    pub held_by: BTreeMap<String, BTreeSet<PartitionId>>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// Its record.
    pub record: MemberRecord,
    /// When it attached last.
    pub revision: Revision,
    /// Its lease.
    pub lease: Option<LeaseId>,
}

/// A partition's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerState {
    /// Its record.
    pub record: OwnerRecord,
    /// When the key appeared.
    pub created: Revision,
}

/// What of the groups some changes touched, by name of the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Their record or target.
    pub targets: BTreeSet<String>,
    /// Their members.
    pub members: BTreeSet<String>,
    /// Their owners.
    pub owners: BTreeSet<String>,
}

impl Touched {
    /// Every group that was touched in any way.
    pub fn all(&self) -> BTreeSet<String> {
        self.targets.iter().chain(&self.members).chain(&self.owners).cloned().collect()
    }
}

impl GroupState {
    /// The number of the target; 0: there is none.
    pub fn generation(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.record.generation)
    }

    fn rebuild_target(&mut self) {
        let chunks = self.record.as_ref().map_or(0, |record| record.record.target_chunks);
        self.target = TargetRecord::join(self.chunks.range(..chunks).map(|(_, chunk)| chunk.clone()));
        self.target_of = BTreeMap::new();
        for (partition, member) in &self.target {
            self.target_of.entry(member.clone()).or_default().push(*partition);
        }
    }

    fn set_owner(&mut self, partition: PartitionId, owner: Option<OwnerState>) {
        let before = match owner {
            Some(owner) => {
                self.held_by.entry(owner.record.member.clone()).or_default().insert(partition);
                self.owners.insert(partition, owner)
            }
            None => self.owners.remove(&partition),
        };
        let Some(before) = before.map(|before| before.record.member) else { return };
        let is_same = self.owners.get(&partition).is_some_and(|now| now.record.member == before);
        if !is_same && let Some(held) = self.held_by.get_mut(&before) {
            held.remove(&partition);
            if held.is_empty() {
                self.held_by.remove(&before);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.record.is_none() && self.chunks.is_empty() && self.members.is_empty() && self.owners.is_empty()
    }
}

impl GroupsView {
    /// As listed at a revision.
    pub fn listed(keys: &Keys, entries: Vec<Entry>, revision: Revision) -> Self {
        let mut view = Self::default();
        view.apply(keys, entries.into_iter().map(Change::Put).collect(), revision);
        view
    }

    /// Takes changes in, everything up to a revision.
    pub fn apply(&mut self, keys: &Keys, changes: Vec<Change>, revision: Revision) -> Touched {
        let mut touched = Touched::default();
        for change in changes {
            let (key, entry) = match change {
                Change::Put(entry) => (keys.parse(&entry.key), Some(entry)),
                Change::Deleted { key, .. } => (keys.parse(&key), None),
            };
            if let Some(key) = key {
                self.apply_one(key, entry.as_ref(), &mut touched);
            }
        }
        for group in &touched.targets {
            self.groups.entry(group.clone()).or_default().rebuild_target();
        }
        self.groups.retain(|_, group| !group.is_empty());
        self.revision = self.revision.max(revision);
        touched
    }

    fn apply_one(&mut self, key: Key, entry: Option<&Entry>, touched: &mut Touched) {
        match key {
            Key::Group(group) => {
                let record = entry
                    .and_then(|entry| readable(entry).map(|record| Versioned { record, revision: entry.mod_revision }));
                self.groups.entry(group.clone()).or_default().record = record;
                touched.targets.insert(group);
            }
            Key::Target(group, chunk) => {
                let state = self.groups.entry(group.clone()).or_default();
                set(&mut state.chunks, chunk, entry.and_then(readable));
                touched.targets.insert(group);
            }
            Key::Member(group, member) => {
                let state = entry.and_then(|entry| {
                    let (revision, lease) = (entry.mod_revision, entry.lease);
                    readable(entry).map(|record| MemberState { record, revision, lease })
                });
                set(&mut self.groups.entry(group.clone()).or_default().members, member, state);
                touched.members.insert(group);
            }
            Key::Owner(group, topic, partition) => {
                let owner = entry.and_then(|entry| {
                    readable(entry).map(|record| OwnerState { record, created: entry.create_revision })
                });
                self.groups.entry(group.clone()).or_default().set_owner((topic, partition), owner);
                touched.owners.insert(group);
            }
            // Not under this prefix.
            _ => {}
        }
    }

    /// Whether these changes, the next ones, take a target's number back: only a registry does that was put back to an
    /// earlier state, and whose revision has passed since what was seen before.
    pub fn goes_back(&self, keys: &Keys, changes: &[Change]) -> bool {
        let mut known: BTreeMap<String, u64> = BTreeMap::new();
        changes.iter().any(|change| match change {
            Change::Put(entry) => match (keys.parse(&entry.key), GroupRecord::from_bytes(&entry.value)) {
                (Some(Key::Group(group)), Ok(record)) => {
                    let seen = self.group(&group).map_or(0, GroupState::generation);
                    let before = known.insert(group, record.generation).unwrap_or(seen);
                    record.generation < before
                }
                _ => false,
            },
            Change::Deleted { key, .. } => {
                if let Some(Key::Group(group)) = keys.parse(key) {
                    // What comes after it is another group.
                    known.insert(group, 0);
                }
                false
            }
        })
    }

    /// A group that exists.
    pub fn group(&self, group: &str) -> Option<&GroupState> {
        self.groups.get(group).filter(|state| state.record.is_some())
    }

    /// A member, if it was seen.
    pub fn member(&self, group: &str, member: &str) -> Option<&MemberState> {
        self.groups.get(group)?.members.get(member)
    }
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// What is not readable is named in the log, once for each change, and counts as absent.
fn readable<R: Record>(entry: &Entry) -> Option<R> {
    R::from_bytes(&entry.value)
        .inspect_err(|error| {
            tracing::error!(key = entry.key, %error, "a registry record is left out: correct it, or remove its key");
        })
        .ok()
}

#[cfg(test)]
impl TopicsView {
    /// Name, id and partitions of each.
    pub(super) fn of(list: &[(&str, u8, u32)], revision: Revision) -> Self {
        let mut view = Self { revision, ..Self::default() };
        for (name, id, partitions) in list {
            let (name, topic_id) = (TopicName::new(name).expect("a name"), TopicId([*id; 16]));
            view.names.insert(topic_id, name.clone());
            view.topics.insert(name, TopicState { topic_id, partitions: *partitions });
        }
        view
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(keys: &Keys, key: &Key, value: Vec<u8>, revision: Revision) -> Change {
        let key = keys.key(key);
        Change::Put(Entry { key, value, create_revision: revision, mod_revision: revision, lease: None })
    }

    fn deleted(keys: &Keys, key: &Key, revision: Revision) -> Change {
        Change::Deleted { key: keys.key(key), revision }
    }

    #[test]
    fn owners_are_known_by_partition_and_by_member() {
        let (keys, topic) = (Keys::new("c"), TopicId([1; 16]));
        let owner = |member: &str| OwnerRecord { member: member.to_owned(), generation: 1 }.to_bytes();
        let key = |partition| Key::Owner("g".to_owned(), topic, partition);
        let mut view = GroupsView::default();
        let changes = vec![put(&keys, &key(0), owner("a"), 5), put(&keys, &key(1), owner("a"), 5)];
        assert_eq!(view.apply(&keys, changes, 5).owners, BTreeSet::from(["g".to_owned()]));
        let held = |view: &GroupsView, member: &str| {
            view.groups.get("g").and_then(|group| group.held_by.get(member)).map_or(0, BTreeSet::len)
        };
        assert_eq!(held(&view, "a"), 2);
        view.apply(&keys, vec![deleted(&keys, &key(0), 6), put(&keys, &key(0), owner("b"), 7)], 7);
        assert_eq!((held(&view, "a"), held(&view, "b")), (1, 1));
        assert_eq!(view.groups["g"].owners[&(topic, 0)].created, 7);
        view.apply(&keys, vec![deleted(&keys, &key(0), 8), deleted(&keys, &key(1), 8)], 8);
        assert!(view.groups.is_empty(), "nothing is kept of what is gone");
        assert_eq!(view.revision, 8);
    }

    #[test]
    fn a_target_whose_number_goes_back_is_of_a_registry_that_was_put_back() {
        let (keys, key) = (Keys::new("c"), Key::Group("g".to_owned()));
        let record = |generation, revision| {
            put(&keys, &key, GroupRecord { generation, ..GroupRecord::new() }.to_bytes(), revision)
        };
        let mut view = GroupsView::default();
        view.apply(&keys, vec![record(5, 9)], 9);
        assert!(!view.goes_back(&keys, &[record(5, 10), record(6, 11)]));
        assert!(view.goes_back(&keys, &[record(4, 10)]));
        assert!(view.goes_back(&keys, &[record(6, 10), record(5, 11)]));
        assert!(!view.goes_back(&keys, &[deleted(&keys, &key, 10), record(1, 11)]), "it was deleted and made anew");
    }

    #[test]
    fn a_target_is_what_the_record_s_chunks_hold_together() {
        let (keys, topic) = (Keys::new("c"), TopicId([1; 16]));
        let target = Target::from([((topic, 0), "a".to_owned()), ((topic, 1), "b".to_owned())]);
        let record = GroupRecord { generation: 2, target_chunks: 2, ..GroupRecord::new() };
        let chunks = TargetRecord::split(&target, 1);
        assert_eq!(chunks.len(), 2);
        let mut changes = vec![put(&keys, &Key::Group("g".to_owned()), record.to_bytes(), 5)];
        for (number, chunk) in (0..).zip(&chunks) {
            changes.push(put(&keys, &Key::Target("g".to_owned(), number), chunk.to_bytes(), 5));
        }
        let mut view = GroupsView::default();
        view.apply(&keys, changes, 5);
        let group = view.group("g").expect("it exists");
        assert_eq!((&group.target, group.generation()), (&target, 2));
        assert_eq!(group.target_of["b"], [(topic, 1)]);
        // One left over by a longer target counts for nothing.
        let shorter = GroupRecord { target_chunks: 1, ..record };
        view.apply(&keys, vec![put(&keys, &Key::Group("g".to_owned()), shorter.to_bytes(), 6)], 6);
        assert_eq!(view.group("g").expect("it exists").target.len(), 1);
    }
}
