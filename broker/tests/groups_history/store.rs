//! A registry in memory, in virtual time: the rules of etcd, leases that end on time or a little late, a state that can be
//! put back; and a way to it, one for each broker, that delays, drops and holds back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use corelane_broker::registry::store::{
    Change, Changes, Compare, Entry, LeaseId, Op, OpResult, Outcome, Page, Range, Revision, Seen, Store, StoreError,
    StoreResult, Test, Txn, Watch,
};
use tokio::sync::oneshot;

use super::clock::{Instant, sleep, spawn, timeout};
use super::process::caller;
use super::world::Chance;

/// Who causes a change, as far as the call is known that sent it.
pub(crate) type Who = Option<(u32, u32)>;
/// A value and its key's lease.
type Written = (Vec<u8>, Option<LeaseId>);
type Hook = Box<dyn FnMut(&Etcd, &str, Option<&Entry>, Option<&Entry>, Who)>;

#[derive(Clone)]
struct Lease {
    life: Duration,
    deadline: Instant,
    /// How late its end is noticed.
    late: Duration,
}

#[derive(Clone)]
struct Kept {
    entries: BTreeMap<String, Entry>,
    revision: Revision,
    log: Vec<(Revision, Change)>,
    leases: BTreeMap<LeaseId, Lease>,
}

/// The registry.
pub(crate) struct Etcd {
    pub(crate) entries: BTreeMap<String, Entry>,
    pub(crate) revision: Revision,
    log: Vec<(Revision, Change)>,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: LeaseId,
    saved: Option<Kept>,
    pub(crate) history: u64,
    store_id: u64,
    hook: Option<Hook>,
    chance: Rc<Chance>,
}

impl Etcd {
    pub(crate) fn new(chance: Rc<Chance>) -> Self {
        Self {
            entries: BTreeMap::new(),
            revision: 1,
            log: Vec::new(),
            leases: BTreeMap::new(),
            next_lease: 1,
            saved: None,
            history: 1,
            store_id: 1,
            hook: None,
            chance,
        }
    }

    /// Told of each change, after it.
    pub(crate) fn watch_over(&mut self, hook: Hook) {
        self.hook = Some(hook);
    }

    pub(crate) fn below<'e>(&'e self, prefix: &'e str) -> impl Iterator<Item = &'e Entry> {
        self.entries.range(prefix.to_owned()..).map(|(_, entry)| entry).take_while(move |e| e.key.starts_with(prefix))
    }

    fn told(&mut self, key: &str, old: Option<&Entry>, new: Option<&Entry>, who: Who) {
        if let Some(mut hook) = self.hook.take() {
            hook(self, key, old, new, who);
            self.hook = Some(hook);
        }
    }

    fn set(&mut self, key: &str, value: Option<(Vec<u8>, Option<LeaseId>)>, who: Who) {
        let old = self.entries.remove(key);
        let revision = self.revision;
        let new = value.map(|(value, lease)| {
            let create_revision = old.as_ref().map_or(revision, |old| old.create_revision);
            Entry { key: key.to_owned(), value, create_revision, mod_revision: revision, lease }
        });
        let change = match &new {
            Some(entry) => Change::Put(entry.clone()),
            None if old.is_none() => return,
            None => Change::Deleted { key: key.to_owned(), revision },
        };
        self.log.push((revision, change));
        if let Some(entry) = &new {
            self.entries.insert(key.to_owned(), entry.clone());
        }
        self.told(key, old.as_ref(), new.as_ref(), who);
    }

    fn holds(&self, compare: &Compare) -> bool {
        let entry = self.entries.get(&compare.key);
        match &compare.test {
            Test::Absent => entry.is_none(),
            Test::Exists => entry.is_some(),
            Test::Value(value) => entry.is_some_and(|entry| entry.value == *value),
            Test::Created(revision) => entry.is_some_and(|entry| entry.create_revision == *revision),
            Test::Modified(revision) => entry.is_some_and(|entry| entry.mod_revision == *revision),
            Test::NoneBelow => self.below(&compare.key).next().is_none(),
        }
    }

    /// What is to be written, and what each step gives; judged by what is there now.
    fn plan(&self, txn: &Txn, writes: &mut Vec<Op>) -> (bool, Vec<OpResult>) {
        let succeeded = txn.compares.iter().all(|compare| self.holds(compare));
        let steps = if succeeded { &txn.then } else { &txn.otherwise };
        let results = steps
            .iter()
            .map(|op| match op {
                Op::Put { .. } => {
                    writes.push(op.clone());
                    OpResult::Put
                }
                Op::Delete(key) => {
                    writes.push(op.clone());
                    OpResult::Deleted(u64::from(self.entries.contains_key(key)))
                }
                Op::DeletePrefix(prefix) => {
                    writes.push(op.clone());
                    OpResult::Deleted(self.below(prefix).count() as u64)
                }
                Op::Get(key) => OpResult::Got(self.entries.get(key).cloned()),
                Op::Txn(inner) => {
                    let (succeeded, results) = self.plan(inner, writes);
                    OpResult::Txn { succeeded, results }
                }
            })
            .collect();
        (succeeded, results)
    }

    pub(crate) fn commit(&mut self, txn: &Txn, who: Who) -> StoreResult<Outcome> {
        let mut writes = Vec::new();
        let (succeeded, results) = self.plan(txn, &mut writes);
        let is_gone = |op: &Op| matches!(op, Op::Put { lease: Some(lease), .. } if !self.leases.contains_key(lease));
        if writes.iter().any(is_gone) {
            return Err(StoreError::LeaseGone);
        }
        let mut steps: Vec<(String, Option<Written>)> = Vec::new();
        for op in writes {
            match op {
                Op::Put { key, value, lease } => steps.push((key, Some((value, lease)))),
                Op::Delete(key) if self.entries.contains_key(&key) => steps.push((key, None)),
                Op::DeletePrefix(prefix) => steps.extend(self.below(&prefix).map(|entry| (entry.key.clone(), None))),
                _ => {}
            }
        }
        if !steps.is_empty() {
            self.revision += 1;
        }
        for (key, value) in steps {
            self.set(&key, value, who);
        }
        Ok(Outcome { succeeded, revision: self.revision, results })
    }

    fn grant(&mut self, life: Duration) -> LeaseId {
        let lease = self.next_lease;
        self.next_lease += 1;
        let late = if self.chance.is(0.5) { 0 } else { self.chance.ms(1, 200) };
        let late = Duration::from_millis(late);
        self.leases.insert(lease, Lease { life, deadline: Instant::now() + life, late });
        lease
    }

    fn keep_alive(&mut self, lease: LeaseId) -> StoreResult<Duration> {
        let now = Instant::now();
        match self.leases.get_mut(&lease).filter(|lease| lease.deadline > now) {
            Some(lease) => {
                lease.deadline = now + lease.life;
                Ok(lease.life)
            }
            None => Err(StoreError::LeaseGone),
        }
    }

    pub(crate) fn revoke(&mut self, lease: LeaseId) {
        if self.leases.remove(&lease).is_none() {
            return;
        }
        let keys: Vec<String> =
            self.entries.values().filter(|entry| entry.lease == Some(lease)).map(|entry| entry.key.clone()).collect();
        if !keys.is_empty() {
            self.revision += 1;
        }
        for key in keys {
            self.set(&key, None, None);
        }
    }

    /// Ends what has run out.
    pub(crate) fn expire(&mut self) {
        let now = Instant::now();
        let ended: Vec<LeaseId> =
            self.leases.iter().filter(|(_, lease)| lease.deadline + lease.late <= now).map(|(id, _)| *id).collect();
        for lease in ended {
            self.revoke(lease);
        }
    }

    pub(crate) fn expire_all(&mut self) {
        let all: Vec<LeaseId> = self.leases.keys().copied().collect();
        for lease in all {
            self.revoke(lease);
        }
    }

    pub(crate) fn save(&mut self) {
        self.saved = Some(Kept {
            entries: self.entries.clone(),
            revision: self.revision,
            log: self.log.clone(),
            leases: self.leases.clone(),
        });
    }

    pub(crate) fn is_saved(&self) -> bool {
        self.saved.is_some()
    }

    /// Puts the saved state back; leases live for their whole lives again.
    pub(crate) fn restore(&mut self, as_another_store: bool) {
        let saved = self.saved.clone().expect("something was saved");
        (self.entries, self.revision, self.log, self.leases) = (saved.entries, saved.revision, saved.log, saved.leases);
        for lease in self.leases.values_mut() {
            lease.deadline = Instant::now() + lease.life;
        }
        self.history += 1;
        self.store_id += u64::from(as_another_store);
    }

    fn seen(&self) -> Seen {
        Seen { store_id: self.store_id, revision: self.revision }
    }
}

/// A broker's way to the registry.
pub(crate) struct Link {
    pub(crate) is_cut: Cell<bool>,
    /// How much longer its watches take.
    pub(crate) slow: Cell<u32>,
    seen: Cell<Option<Seen>>,
    went_back: Cell<bool>,
    held: RefCell<Vec<Box<dyn FnOnce()>>>,
}

impl Link {
    /// Lets through what was held back.
    pub(crate) fn mend(&self) {
        self.is_cut.set(false);
        for request in self.held.take() {
            request();
        }
    }
}

/// The registry as one broker reaches it.
#[derive(Clone)]
pub(crate) struct SimStore {
    pub(crate) etcd: Rc<RefCell<Etcd>>,
    pub(crate) link: Rc<Link>,
    chance: Rc<Chance>,
}

impl SimStore {
    pub(crate) fn new(etcd: Rc<RefCell<Etcd>>, chance: Rc<Chance>) -> Self {
        let link = Link {
            is_cut: Cell::new(false),
            slow: Cell::new(1),
            seen: Cell::new(None),
            went_back: Cell::new(false),
            held: RefCell::default(),
        };
        Self { etcd, link: Rc::new(link), chance }
    }

    /// A broker that starts again on the same way.
    pub(crate) fn again(&self) -> Self {
        Self::new(Rc::clone(&self.etcd), Rc::clone(&self.chance))
    }

    /// Sends what is to be done; it may arrive late or never, and so may its answer.
    async fn request<T: 'static>(&self, run: impl FnOnce(&mut Etcd) -> StoreResult<T> + 'static) -> StoreResult<T> {
        if self.link.went_back.get() {
            return Err(StoreError::WentBack);
        }
        let before = self.link.seen.get();
        let (answer, answered) = oneshot::channel();
        let (etcd, link, chance) = (Rc::clone(&self.etcd), Rc::clone(&self.link), Rc::clone(&self.chance));
        let there = chance.delay();
        spawn(async move {
            sleep(there).await;
            let (held_by, back) = (Rc::clone(&link), chance.delay());
            let arrive = move || {
                let result = run(&mut etcd.borrow_mut());
                let now = etcd.borrow().seen();
                spawn(async move {
                    sleep(back).await;
                    if !link.is_cut.get() {
                        // Whoever asked may wait no more.
                        let _ = answer.send((result, now));
                    }
                });
            };
            if !held_by.is_cut.get() {
                arrive();
            } else if chance.is(0.5) {
                held_by.held.borrow_mut().push(Box::new(arrive));
            }
        });
        let unavailable = || StoreError::Unavailable("no answer".to_owned());
        let (result, now) =
            timeout(Duration::from_millis(600), answered).await.ok_or_else(unavailable)?.map_err(|_| unavailable())?;
        self.note(before, now)?;
        result
    }

    fn note(&self, before: Option<Seen>, now: Seen) -> StoreResult<()> {
        if before.is_some_and(|before| before.was_lost(&now)) {
            self.link.went_back.set(true);
            return Err(StoreError::WentBack);
        }
        let revision = self.link.seen.get().map_or(now.revision, |seen| seen.revision.max(now.revision));
        self.link.seen.set(Some(Seen { revision, ..now }));
        Ok(())
    }
}

impl Store for SimStore {
    type Watch = SimWatch;

    fn kind(&self) -> &'static str {
        "simulated"
    }

    fn renew(&self) {
        self.link.went_back.set(false);
        self.link.seen.set(None);
    }

    async fn seen(&self) -> StoreResult<Seen> {
        self.request(|etcd| Ok(etcd.seen())).await
    }

    async fn get(&self, key: &str) -> StoreResult<Option<Entry>> {
        let key = key.to_owned();
        self.request(move |etcd| Ok(etcd.entries.get(&key).cloned())).await
    }

    async fn range(&self, range: Range) -> StoreResult<Page> {
        self.request(move |etcd| {
            let entries = etcd.entries.range(range.start..range.end).map(|(_, entry)| entry.clone()).collect();
            Ok(Page { entries, more: false, revision: etcd.revision })
        })
        .await
    }

    async fn commit(&self, txn: Txn) -> StoreResult<Outcome> {
        let who = caller();
        self.request(move |etcd| etcd.commit(&txn, who)).await
    }

    async fn grant(&self, life: Duration) -> StoreResult<LeaseId> {
        self.request(move |etcd| Ok(etcd.grant(life))).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> StoreResult<Duration> {
        self.request(move |etcd| etcd.keep_alive(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> StoreResult<()> {
        self.request(move |etcd| {
            etcd.revoke(lease);
            Ok(())
        })
        .await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> StoreResult<SimWatch> {
        let store_id = self.etcd.borrow().store_id;
        Ok(SimWatch { store: self.clone(), prefix: prefix.to_owned(), next: from, store_id })
    }
}

/// Each watch lags on its own.
pub(crate) struct SimWatch {
    store: SimStore,
    prefix: String,
    next: Revision,
    store_id: u64,
}

impl Watch for SimWatch {
    async fn next(&mut self) -> StoreResult<Changes> {
        loop {
            let (link, chance) = (&self.store.link, &self.store.chance);
            let pause = [5, 20, 60, 150][chance.below(4) as usize] * u64::from(link.slow.get());
            sleep(Duration::from_millis(pause)).await;
            if link.is_cut.get() {
                continue;
            }
            if link.went_back.get() {
                return Err(StoreError::WentBack);
            }
            let etcd = self.store.etcd.borrow();
            if etcd.store_id != self.store_id || etcd.revision + 1 < self.next {
                link.went_back.set(true);
                return Err(StoreError::WentBack);
            }
            let last = etcd.revision;
            let upto = if chance.is(0.7) { last } else { chance.ms(self.next.saturating_sub(1).min(last), last) };
            let first = etcd.log.partition_point(|(revision, _)| *revision < self.next);
            let seen = etcd.log[first..].iter().take_while(|(revision, _)| *revision <= upto);
            let key_of = |change: &Change| match change {
                Change::Put(entry) => entry.key.clone(),
                Change::Deleted { key, .. } => key.clone(),
            };
            let changes: Vec<Change> = seen
                .filter(|(_, change)| key_of(change).starts_with(&self.prefix))
                .map(|(_, change)| change.clone())
                .collect();
            self.next = self.next.max(upto + 1);
            if !changes.is_empty() {
                return Ok(Changes { changes, revision: upto });
            }
        }
    }
}
