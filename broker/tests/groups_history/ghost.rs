//! The oracle: it sees every change of the registry as it happens, and what members deliver and process; the rules that it
//! checks tell it nothing. What it finds wrong ends the history.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use corelane_broker::registry::group_records::{OffsetRecord, OwnerRecord, TargetRecord};
use corelane_broker::registry::keys::{Key, Keys};
use corelane_broker::registry::records::{ClusterRecord, Record};
use corelane_broker::registry::store::Entry;
use corelane_proto::ids::TopicId;

use super::clock::Instant;
use super::store::{Etcd, Who};
use super::world::{GROUP, LEASE};

pub(crate) type Tp = (TopicId, u32);
/// An epoch and a position.
pub(crate) type Place = (u32, u64);

/// Why a position is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Commit,
    Policy,
    Rewind,
}

/// A commit that was sent at some time.
#[derive(Clone, Debug)]
struct Sent {
    member: String,
    who: Who,
    tenure: u64,
    kind: Kind,
}

/// What was committed and who was attached when the store was saved.
type Saved = (HashMap<Tp, u64>, HashMap<String, (Who, Instant)>);

#[derive(Default)]
pub(crate) struct Ghost {
    /// Every change is printed.
    pub(crate) is_traced: bool,
    pub(crate) wrong: Option<String>,
    pub(crate) processed: BTreeSet<(Tp, Place)>,
    /// Where the group began in each partition.
    pub(crate) start: BTreeMap<Tp, Place>,
    /// The same, of positions that a restore forgot.
    old_start: BTreeMap<Tp, Place>,
    pub(crate) forgotten: BTreeSet<Tp>,
    /// Set by a reset: not to be processed.
    waived: Vec<(Tp, u32, u64, u64)>,
    /// The last attachment of each member that took effect, and when.
    attached: HashMap<String, (Who, Instant)>,
    tenure: HashMap<Tp, u64>,
    tenures: u64,
    /// By partition, fence and life of the store.
    tenure_of: HashMap<(Tp, u64, u64), u64>,
    ended: HashMap<(Tp, u64), Instant>,
    claimed_at: HashMap<Tp, Instant>,
    sent: HashMap<(Tp, Place), Vec<Sent>>,
    pub(crate) cloned: BTreeSet<String>,
    /// Until then leases were lost early: overlaps are counted, not fatal.
    pub(crate) lenient_until: Option<Instant>,
    expired_until: Option<Instant>,
    restored_at: Option<Instant>,
    saved: Option<Saved>,
    pub(crate) delivered: u64,
    pub(crate) overlaps: u64,
    pub(crate) early: u64,
    pub(crate) claims: u64,
    pub(crate) commits: u64,
}

impl Ghost {
    pub(crate) fn bad(&mut self, what: impl Into<String>) {
        self.wrong.get_or_insert(what.into());
    }

    /// A change of the registry.
    pub(crate) fn see(
        &mut self,
        keys: &Keys,
        etcd: &Etcd,
        key: &str,
        old: Option<&Entry>,
        new: Option<&Entry>,
        who: Who,
    ) {
        if self.is_traced {
            let value = new.map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
            println!("{:?} {who:?} {key} {value:?}", Instant::now());
        }
        match keys.parse(key) {
            Some(Key::Member(_, member)) if new.is_some() => {
                self.attached.insert(member, (who, Instant::now()));
            }
            Some(Key::Owner(_, topic, partition)) => self.see_owner(keys, etcd, (topic, partition), old, new),
            Some(Key::Offset(_, topic, partition)) => {
                if let Some(new) = new {
                    let record = |entry: &Entry| OffsetRecord::from_bytes(&entry.value).expect("a position");
                    self.see_offset(keys, etcd, (topic, partition), old.map(record).as_ref(), &record(new));
                }
            }
            _ => {}
        }
    }

    fn see_owner(&mut self, keys: &Keys, etcd: &Etcd, tp: Tp, old: Option<&Entry>, new: Option<&Entry>) {
        let Some(new) = new else {
            if let Some(tenure) = self.tenure.remove(&tp) {
                self.ended.insert((tp, tenure), Instant::now());
            }
            return;
        };
        if old.is_some() {
            self.bad(format!("the owner key of {tp:?} was overwritten"));
        }
        let owner = OwnerRecord::from_bytes(&new.value).expect("an owner");
        let prefix = keys.target_of(GROUP);
        let chunks = etcd.below(&prefix).map(|entry| TargetRecord::from_bytes(&entry.value).expect("a chunk"));
        if TargetRecord::join(chunks).get(&tp) != Some(&owner.member) {
            self.bad(format!("{} claimed {tp:?} against the stored target", owner.member));
        }
        if !etcd.entries.contains_key(&keys.key(&Key::Member(GROUP.to_owned(), owner.member.clone()))) {
            self.bad(format!("{tp:?} was claimed by {}, who is no member", owner.member));
        }
        self.tenures += 1;
        self.claims += 1;
        self.tenure.insert(tp, self.tenures);
        self.claimed_at.insert(tp, Instant::now());
        let life = ClusterRecord::from_bytes(&etcd.entries[&keys.key(&Key::Cluster)].value).expect("it").incarnation;
        self.tenure_of.insert((tp, new.create_revision, life), self.tenures);
    }

    /// The ownership that a fence stands for. A key that outlived a restore is answered with the life after it.
    pub(crate) fn tenure_of(&self, tp: Tp, fence: u64, life: u64) -> u64 {
        (0..=life).rev().find_map(|life| self.tenure_of.get(&(tp, fence, life))).copied().unwrap_or(0)
    }

    /// A commit is sent.
    pub(crate) fn send(&mut self, tp: Tp, place: Place, member: &str, who: Who, tenure: u64, kind: Kind) {
        let sent = Sent { member: member.to_owned(), who, tenure, kind };
        self.sent.entry((tp, place)).or_default().push(sent);
    }

    fn see_offset(&mut self, keys: &Keys, etcd: &Etcd, tp: Tp, old: Option<&OffsetRecord>, new: &OffsetRecord) {
        let place = (new.epoch.0, new.position.0);
        let before = old.map(|old| (old.epoch.0, old.position.0));
        self.commits += 1;
        if new.fence.is_none() {
            let from = before.filter(|before| before.0 == place.0).map_or(0, |before| before.1);
            self.waived.push((tp, place.0, from, place.1));
            if etcd.below(&keys.members_of(GROUP)).next().is_some() {
                self.bad("a position was reset while the group had members");
            }
            self.start.entry(tp).or_insert(place);
            return;
        }
        // Some of those that were sent must have been entitled to it.
        let tenure = self.tenure.get(&tp).copied().unwrap_or(0);
        let sent = self.sent.get(&(tp, place)).cloned().unwrap_or_default();
        let is_attached = |sent: &&Sent| self.attached.get(&sent.member).is_some_and(|(who, _)| *who == sent.who);
        let entitled: Vec<&Sent> = sent.iter().filter(|sent| sent.tenure == tenure).filter(is_attached).collect();
        if entitled.is_empty() {
            let attached: Vec<_> = sent.iter().map(|sent| self.attached.get(&sent.member)).collect();
            let what = format!(
                "{place:?} of {tp:?} was committed in tenure {tenure} by one of {sent:?}, attached {attached:?}"
            );
            return self.bad(what);
        }
        let has = |kind| entitled.iter().any(|sent| sent.kind == kind);
        let (is_rewind, is_policy) = (has(Kind::Rewind), has(Kind::Policy));
        if !is_rewind && before > Some(place) {
            return self.bad(format!("the position of {tp:?} went back from {before:?} to {place:?}"));
        }
        if is_policy {
            self.start.entry(tp).or_insert(place);
            return;
        }
        if let (None, Some(old)) = (self.start.get(&tp), self.old_start.get(&tp)) {
            // An owner went on across a restore.
            self.start.insert(tp, *old);
        }
        let mut from = before.filter(|before| before.0 == place.0).map_or(0, |before| before.1);
        if let Some(start) = self.start.get(&tp).filter(|start| start.0 == place.0) {
            from = from.max(start.1);
        }
        if let Some(missed) = (from..place.1).find(|position| !self.is_done(tp, (place.0, *position))) {
            self.bad(format!("{place:?} of {tp:?} was committed, but {missed} was processed by no owner"));
        }
    }

    /// Whether a message was processed, or need not be.
    pub(crate) fn is_done(&self, tp: Tp, place: Place) -> bool {
        let (epoch, position) = place;
        self.processed.contains(&(tp, place))
            || self.waived.iter().any(|(of, e, from, to)| *of == tp && *e == epoch && (*from..*to).contains(&position))
    }

    fn owns(&self, etcd: &Etcd, keys: &Keys, member: &str, tp: Tp, tenure: u64) -> bool {
        let key = keys.key(&Key::Owner(GROUP.to_owned(), tp.0, tp.1));
        let owner = etcd.entries.get(&key).and_then(|entry| OwnerRecord::from_bytes(&entry.value).ok());
        owner.is_some_and(|owner| owner.member == member) && self.tenure.get(&tp) == Some(&tenure)
    }

    /// A member has passed its deadline's check and is about to deliver.
    pub(crate) fn check(
        &mut self,
        etcd: &Etcd,
        keys: &Keys,
        process: u32,
        member: &str,
        born: Instant,
        (tp, tenure): (Tp, u64),
    ) {
        let now = Instant::now();
        if self.cloned.contains(member) {
            // Twins share a fence until one attaches; the displaced one must end soon.
            let (who, at) = self.attached.get(member).copied().unwrap_or((None, now));
            if who.map(|who| who.0) != Some(process) {
                if now.since(at.max(born)) > 3 * LEASE {
                    self.bad(format!("process {process} still delivers as {member} long after its twin attached"));
                }
                return;
            }
            if self.ended.get(&(tp, tenure)).is_some_and(|ended| *ended <= at) {
                return;
            }
        }
        if self.owns(etcd, keys, member, tp, tenure) {
            return;
        }
        let after_restore = self.restored_at.is_some_and(|restored| {
            self.tenure.contains_key(&tp) && self.claimed_at.get(&tp).is_some_and(|claimed| *claimed >= restored)
        });
        let is_early = self.expired_until.is_some_and(|until| now < until)
            || (self.lenient_until.is_some_and(|until| now < until) && !after_restore);
        if is_early {
            self.early += 1;
        } else {
            self.bad(format!("{member} passed its deadline's check for {tp:?}, which it does not own"));
        }
    }

    pub(crate) fn deliver(&mut self, etcd: &Etcd, keys: &Keys, member: &str, tp: Tp, tenure: u64) {
        self.delivered += 1;
        let is_lenient = self.lenient_until.is_some_and(|until| Instant::now() < until);
        if !is_lenient && !self.cloned.contains(member) && !self.owns(etcd, keys, member, tp, tenure) {
            self.overlaps += 1;
        }
    }

    /// All leases end early.
    pub(crate) fn expire_all(&mut self) {
        let until = Instant::now() + LEASE;
        self.expired_until = Some(until);
        self.lenient_until = self.lenient_until.max(Some(until));
    }

    pub(crate) fn save(&mut self) {
        self.saved = Some((self.tenure.clone(), self.attached.clone()));
    }

    pub(crate) fn restore(&mut self, etcd: &Etcd, keys: &Keys) {
        let now = Instant::now();
        self.restored_at = Some(now);
        self.lenient_until = Some(now + 3 * LEASE);
        self.claimed_at.clear();
        let (tenure, attached) = self.saved.clone().expect("it was saved");
        (self.tenure, self.attached) = (tenure, attached);
        for (_, at) in self.attached.values_mut() {
            *at = now;
        }
        let is_forgotten = |(topic, partition): &Tp| {
            !etcd.entries.contains_key(&keys.key(&Key::Offset(GROUP.to_owned(), *topic, *partition)))
        };
        let forgotten: Vec<Tp> = self.start.keys().filter(|tp| is_forgotten(tp)).copied().collect();
        for tp in forgotten {
            if let Some(start) = self.start.remove(&tp) {
                self.old_start.insert(tp, start);
            }
            self.forgotten.insert(tp);
        }
    }
}

const _: () = assert!(LEASE.as_millis() > Duration::from_millis(600).as_millis(), "a request ends within a lease");
