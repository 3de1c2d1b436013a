//! What a member's tasks and the program share, and every change of it: which partitions are owned, how far each of them
//! was processed and committed, which message the program has in hand, until when anything may be delivered. One lock,
//! held for moments; nothing here talks to a broker.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use corelane_proto::ids::TopicId;
use corelane_proto::pb;

use super::clock::Moment;
use super::error::GroupError;
use super::{Fence, GroupPartition};
use crate::consumer::{StreamId, Streams};

/// A partition by its topic's lasting id.
pub(super) type Key = (TopicId, u32);

/// A place in a partition's log: epochs first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) epoch: u32,
    pub(super) position: u64,
}

impl Place {
    pub(super) fn from_pb(place: pb::Place) -> Self {
        Self { epoch: place.epoch, position: place.position }
    }

    pub(super) fn to_pb(self) -> pb::Place {
        pb::Place { epoch: self.epoch, position: self.position }
    }
}

/// How far an ownership has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Where to begin is being found.
    Resolving,
    /// Messages are delivered.
    Reading,
    /// Nothing is delivered before the program says where to go on.
    Resting,
    /// It moves to another member, or this one leaves: nothing more is delivered.
    Releasing,
}

/// An ownership of a partition, from its claim to its release or loss.
#[derive(Debug)]
pub(super) struct Tenure {
    pub(super) topic: Arc<str>,
    pub(super) fence: pb::Fence,
    pub(super) phase: Phase,
    pub(super) stream: Option<StreamId>,
    /// Everything below it was handed to the program.
    pub(super) handed: Option<Place>,
    /// Everything below it was processed.
    pub(super) done: Option<Place>,
    pub(super) committed: Option<Place>,
    /// A commit or a release is under way: one at a time.
    pub(super) is_committing: bool,
    /// The program was told that it is being released.
    pub(super) is_told: bool,
    /// Since when it is to be released.
    releases_since: Option<Moment>,
}

impl Tenure {
    pub(super) fn is_dirty(&self) -> bool {
        self.done.is_some_and(|done| self.committed.is_none_or(|committed| committed < done))
    }
}

/// The message that the program works on.
#[derive(Debug, Clone, Copy)]
struct InHand {
    key: Key,
    fence: u64,
    /// Where to go on behind it.
    next: Place,
    since: Moment,
}

/// A position of an ownership whose commit is waited for.
pub(super) struct Awaited {
    pub(super) key: Key,
    pub(super) fence: u64,
    pub(super) place: Place,
    pub(super) topic: Arc<str>,
}

/// How the consumer's life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    Open,
    /// Everything is committed and released, then the member leaves.
    Closing,
    /// Nothing comes any more.
    Over,
}

pub(super) struct State {
    streams: Streams,
    /// Whether taking the next message means that the one before is done.
    marks: bool,
    /// How long a release waits for marks.
    release_wait: Duration,
    pub(super) life: Life,
    /// Past it nothing is delivered.
    pub(super) deadline: Moment,
    pub(super) tenures: BTreeMap<Key, Tenure>,
    by_stream: HashMap<usize, Key>,
    in_hand: Option<InHand>,
    /// What the member shall own, with the names of the topics.
    pub(super) target: BTreeMap<Key, Arc<str>>,
    /// What a claim that is under way asks for.
    pub(super) claiming: HashSet<Key>,
    pub(super) errors: VecDeque<GroupError>,
    /// Ownerships that ended without a release, for the program's callback.
    lost: Vec<GroupPartition>,
    /// Partitions that have gone since the program committed last, with messages that it got and that were not committed.
    pub(super) forfeited: BTreeSet<(String, u32)>,
    /// The latest ownerships that ended with a release, by partition and fence, and what was committed by then.
    released: VecDeque<(Key, u64, Option<Place>)>,
    /// Partitions whose last position was lost while the consumer was being closed.
    pub(super) uncommitted: Vec<(String, u32)>,
    /// Times that retention had taken what came next.
    pub(super) skipped: u64,
}

/// What becomes of a message that was fetched.
pub(super) enum Delivery {
    /// The program gets it.
    Granted(TopicId, Fence),
    /// Its partition is not this member's any more.
    Refused,
    /// The deadline has passed.
    Late,
}

/// Releases that are remembered, for those who wait for their commit.
const RELEASED_MAX: usize = 4096;
/// Errors that wait for the program; more of them would say nothing new.
const ERRORS_MAX: usize = 64;

impl State {
    pub(super) fn new(streams: Streams, marks: bool, release_wait: Duration) -> Self {
        Self {
            streams,
            marks,
            release_wait,
            life: Life::Open,
            deadline: Moment::default(),
            tenures: BTreeMap::new(),
            by_stream: HashMap::new(),
            in_hand: None,
            target: BTreeMap::new(),
            claiming: HashSet::new(),
            errors: VecDeque::new(),
            lost: Vec::new(),
            forfeited: BTreeSet::new(),
            released: VecDeque::new(),
            uncommitted: Vec::new(),
            skipped: 0,
        }
    }

    // ---- The program's side ------------------------------------------------------------------------------------

    /// The program is done with the message that it had in hand. True: something may have to be released or committed.
    pub(super) fn put_down(&mut self) -> bool {
        let Some(in_hand) = self.in_hand.take() else { return false };
        if self.marks {
            self.mark(in_hand.key, in_hand.fence, in_hand.next);
        }
        self.is_releasing(in_hand.key)
    }

    pub(super) fn is_releasing(&self, key: Key) -> bool {
        self.tenures.get(&key).is_some_and(|tenure| tenure.phase == Phase::Releasing)
    }

    /// The program will not finish the message that it had in hand.
    pub(super) fn abandon(&mut self) {
        self.in_hand = None;
    }

    /// The program will mark nothing more: no release waits for it.
    pub(super) fn give_up(&mut self) {
        self.abandon();
        self.release_wait = Duration::ZERO;
    }

    /// Everything below `next` was processed under this fence.
    pub(super) fn mark(&mut self, key: Key, fence: u64, next: Place) {
        if let Some(tenure) = self.tenures.get_mut(&key)
            && tenure.fence.number == fence
        {
            tenure.done = tenure.done.max(Some(next));
        }
    }

    /// Everything that the program got was processed.
    pub(super) fn mark_handed_out(&mut self) {
        for tenure in self.tenures.values_mut() {
            tenure.done = tenure.done.max(tenure.handed);
        }
    }

    /// What a commit of now has to bring about.
    pub(super) fn awaited(&self) -> Vec<Awaited> {
        let dirty = self.tenures.iter().filter(|(_, tenure)| tenure.is_dirty());
        let awaited = dirty.filter_map(|(key, tenure)| {
            let (fence, topic) = (tenure.fence.number, tenure.topic.clone());
            Some(Awaited { key: *key, fence, place: tenure.done?, topic })
        });
        awaited.collect()
    }

    pub(super) fn is_committed(&self, awaited: &Awaited) -> bool {
        let tenure = self.tenures.get(&awaited.key).filter(|tenure| tenure.fence.number == awaited.fence);
        match tenure {
            Some(tenure) => tenure.committed >= Some(awaited.place),
            None => self.released.iter().any(|(key, fence, committed)| {
                (*key, *fence) == (awaited.key, awaited.fence) && *committed >= Some(awaited.place)
            }),
        }
    }

    /// Decides about a message, as the last thing before the program gets it.
    pub(super) fn deliver(&mut self, stream: StreamId, next: Place) -> Delivery {
        let now = Moment::now();
        if now >= self.deadline {
            return Delivery::Late;
        }
        let Some(key) = self.by_stream.get(&stream.index) else { return Delivery::Refused };
        let Some(tenure) = self.tenures.get_mut(key) else { return Delivery::Refused };
        if tenure.phase != Phase::Reading || tenure.stream != Some(stream) {
            return Delivery::Refused;
        }
        tenure.handed = Some(next);
        self.in_hand = Some(InHand { key: *key, fence: tenure.fence.number, next, since: now });
        Delivery::Granted(key.0, Fence::from_pb(&tenure.fence))
    }

    /// The partition that is owned under this name.
    pub(super) fn key_of(&self, topic: &str, partition: u32) -> Option<Key> {
        let is_it = |(key, tenure): &(&Key, &Tenure)| key.1 == partition && &*tenure.topic == topic;
        self.tenures.iter().find(is_it).map(|(key, _)| *key)
    }

    /// How long the program has had its message in hand.
    pub(super) fn oldest_age_ms(&self) -> u32 {
        let age = self.in_hand.map_or(0, |in_hand| in_hand.since.elapsed().as_millis().max(1));
        u32::try_from(age).unwrap_or(u32::MAX)
    }

    fn is_in_hand(&self, key: Key) -> bool {
        self.in_hand.is_some_and(|in_hand| in_hand.key == key)
    }

    pub(super) fn report(&mut self, error: GroupError) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push_back(error);
        }
        self.streams.wake();
    }

    // ---- Ownership ---------------------------------------------------------------------------------------------

    /// A claim was answered: the partition is this member's.
    pub(super) fn claimed(&mut self, key: Key, topic: Arc<str>, fence: pb::Fence) {
        let tenure = Tenure {
            topic,
            fence,
            phase: Phase::Resolving,
            stream: None,
            handed: None,
            done: None,
            committed: None,
            is_committing: false,
            is_told: false,
            releases_since: None,
        };
        self.tenures.insert(key, tenure);
    }

    /// The ownership under this fence, unless it has ended.
    pub(super) fn tenure(&mut self, key: Key, fence: u64) -> Option<&mut Tenure> {
        self.tenures.get_mut(&key).filter(|tenure| tenure.fence.number == fence)
    }

    /// Whether where to begin is still asked for.
    pub(super) fn is_resolving(&self, key: Key, fence: u64) -> bool {
        let tenure = self.tenures.get(&key).filter(|tenure| tenure.fence.number == fence);
        tenure.is_some_and(|tenure| tenure.phase == Phase::Resolving)
    }

    /// Messages of the partition are delivered from now on, from `place` on.
    pub(super) fn reads(&mut self, key: Key, fence: u64, stream: StreamId, place: Place, committed: Option<Place>) {
        self.by_stream.insert(stream.index, key);
        let Some(tenure) = self.tenure(key, fence) else { return };
        tenure.phase = Phase::Reading;
        tenure.stream = Some(stream);
        tenure.done = Some(place);
        tenure.committed = committed;
    }

    /// Nothing more of the partition is delivered for now.
    pub(super) fn stop(&mut self, key: Key, phase: Phase) {
        let streams = self.streams.clone();
        let Some(tenure) = self.tenures.get_mut(&key) else { return };
        tenure.phase = phase;
        if phase == Phase::Releasing {
            tenure.releases_since.get_or_insert_with(Moment::now);
        }
        if let Some(stream) = tenure.stream.take() {
            streams.stop(stream);
            self.by_stream.remove(&stream.index);
        }
    }

    /// Stops what is not in the target any more.
    pub(super) fn release_what_moves(&mut self) -> bool {
        let moving = |(key, tenure): &(&Key, &Tenure)| {
            tenure.phase != Phase::Releasing && (self.life != Life::Open || !self.target.contains_key(key))
        };
        let moving: Vec<Key> = self.tenures.iter().filter(moving).map(|(key, _)| *key).collect();
        for key in &moving {
            self.stop(*key, Phase::Releasing);
        }
        !moving.is_empty()
    }

    /// Ends an ownership; `is_lost`: without a release.
    pub(super) fn end(&mut self, key: Key, is_lost: bool) {
        self.stop(key, Phase::Releasing);
        if self.is_in_hand(key) {
            self.in_hand = None;
        }
        let Some(tenure) = self.tenures.remove(&key) else { return };
        if tenure.handed > tenure.committed {
            self.forfeited.insert((tenure.topic.to_string(), key.1));
        }
        if !is_lost {
            self.released.push_back((key, tenure.fence.number, tenure.committed));
            if self.released.len() > RELEASED_MAX {
                self.released.pop_front();
            }
            return;
        }
        if self.life != Life::Open && tenure.is_dirty() {
            self.uncommitted.push((tenure.topic.to_string(), key.1));
        }
        self.lost.push(GroupPartition::of(key, &tenure, None));
    }

    /// The membership is over: nothing is owned any more.
    pub(super) fn end_all(&mut self) {
        self.deadline = Moment::default();
        self.target.clear();
        self.claiming.clear();
        let keys: Vec<Key> = self.tenures.keys().copied().collect();
        for key in keys {
            self.end(key, true);
        }
    }

    pub(super) fn take_lost(&mut self) -> Vec<GroupPartition> {
        std::mem::take(&mut self.lost)
    }

    /// What shall be owned and is not.
    pub(super) fn unclaimed(&self) -> Vec<Key> {
        if self.life != Life::Open {
            return Vec::new();
        }
        self.target.keys().filter(|key| !self.tenures.contains_key(*key)).copied().collect()
    }

    // ---- Commits and releases ----------------------------------------------------------------------------------

    /// The commits that are due; each counts as under way from now on.
    pub(super) fn take_dirty(&mut self, partitions_max: usize) -> Vec<(Key, pb::CommitPartition)> {
        // What is released now is committed with it.
        let is_due = |(key, tenure): &(&Key, &Tenure)| {
            tenure.is_dirty() && (tenure.phase != Phase::Releasing || self.release_waits(**key, tenure).is_some())
        };
        let due: Vec<Key> = self.tenures.iter().filter(is_due).map(|(key, _)| *key).collect();
        due.into_iter().filter_map(|key| Some((key, self.take_commit(key)?))).take(partitions_max).collect()
    }

    /// How long at most the program keeps a partition from being released: a message of it is in hand, or a mark is waited
    /// for. `None`: it does not.
    fn release_waits(&self, key: Key, tenure: &Tenure) -> Option<Duration> {
        if self.is_in_hand(key) {
            return Some(Duration::MAX);
        }
        let since = tenure.releases_since.unwrap_or_default();
        let marks_wait = (since + self.release_wait).remaining();
        (tenure.handed > tenure.done && !marks_wait.is_zero()).then_some(marks_wait)
    }

    /// The releases that nothing stands in the way of, no commit under way either. Also how long to wait for the others.
    pub(super) fn releasable(&self, partitions_max: usize) -> (Vec<Key>, Duration) {
        let (mut ready, mut wait) = (Vec::new(), Duration::from_hours(1));
        for (key, tenure) in &self.tenures {
            if tenure.phase != Phase::Releasing || tenure.is_committing {
                continue;
            }
            match self.release_waits(*key, tenure) {
                Some(waits) => wait = wait.min(waits),
                None if ready.len() < partitions_max => ready.push(*key),
                None => {}
            }
        }
        (ready, wait)
    }

    /// Those of the partitions of whose release the program was not told yet.
    pub(super) fn take_untold(&mut self, keys: &[Key]) -> Vec<GroupPartition> {
        let mut untold = Vec::new();
        for key in keys {
            if let Some(tenure) = self.tenures.get_mut(key)
                && !std::mem::replace(&mut tenure.is_told, true)
            {
                untold.push(GroupPartition::of(*key, tenure, None));
            }
        }
        untold
    }

    /// The commit or the release of a partition, unless one is under way; it counts as under way from now on.
    pub(super) fn take_commit(&mut self, key: Key) -> Option<pb::CommitPartition> {
        let tenure = self.tenures.get_mut(&key).filter(|tenure| !tenure.is_committing)?;
        tenure.is_committing = true;
        Some(commit_of(key, tenure))
    }

    /// Takes in what became of a commit. `fence` and `place` are those that were sent.
    pub(super) fn commit_answered(&mut self, key: Key, sent: &pb::CommitPartition, outcome: &pb::CommitOutcome) {
        let fence = sent.fence.unwrap_or_default().number;
        let Some(tenure) = self.tenure(key, fence) else { return };
        tenure.is_committing = false;
        match outcome.result() {
            pb::CommitResult::Ok => tenure.committed = sent.place.map(Place::from_pb),
            // Somebody has committed more, or the partition is gone: this position needs no commit any more.
            pb::CommitResult::Stale | pb::CommitResult::Gone => {
                let place = outcome.committed.or(sent.place).map(Place::from_pb);
                tenure.committed = place.max(sent.place.map(Place::from_pb));
            }
            pb::CommitResult::Lost => self.end(key, true),
            pb::CommitResult::Retry => {}
        }
    }

    /// Takes in what became of a release.
    pub(super) fn release_answered(&mut self, key: Key, sent: &pb::CommitPartition, outcome: &pb::CommitOutcome) {
        let fence = sent.fence.unwrap_or_default().number;
        let Some(tenure) = self.tenure(key, fence) else { return };
        tenure.is_committing = false;
        let place = sent.place.map(Place::from_pb);
        match outcome.result() {
            pb::CommitResult::Ok => tenure.committed = place.or(tenure.committed),
            pb::CommitResult::Stale => tenure.committed = outcome.committed.map(Place::from_pb).max(place),
            // Nobody gets its messages again.
            pb::CommitResult::Gone => tenure.committed = tenure.handed.max(place),
            pb::CommitResult::Lost => {}
            pb::CommitResult::Retry => return,
        }
        self.end(key, outcome.result() == pb::CommitResult::Lost);
    }

    // ---- What the registry says --------------------------------------------------------------------------------

    /// Takes in which partitions the registry says are held, up to `revision`: drops those that are lost, and returns
    /// the releases of those that nobody here knows (a claim whose answer was lost, and that is not wanted any more).
    pub(super) fn reconcile(&mut self, answer: &pb::HeartbeatResponse, incarnation: u64) -> Vec<pb::CommitPartition> {
        let mut held: HashMap<Key, (u64, u64)> = HashMap::new();
        for of_topic in &answer.held {
            let Ok(topic_id) = TopicId::try_from(&of_topic.topic_id[..]) else { continue };
            let fences = of_topic.fences.iter().zip(&of_topic.generations);
            for (partition, (fence, generation)) in of_topic.partitions.iter().zip(fences) {
                held.insert((topic_id, *partition), (*fence, *generation));
            }
        }
        let is_lost = |key: &Key, fence: &pb::Fence| {
            let is_held = held.get(key).is_some_and(|(number, _)| *number == fence.number);
            fence.incarnation != incarnation || (fence.number <= answer.revision && !is_held)
        };
        let lost: Vec<Key> =
            self.tenures.iter().filter(|(key, tenure)| is_lost(key, &tenure.fence)).map(|(key, _)| *key).collect();
        for key in lost {
            self.end(key, true);
        }
        let unknown = held.into_iter().filter(|(key, _)| {
            !self.tenures.contains_key(key) && !self.target.contains_key(key) && !self.claiming.contains(key)
        });
        let release = |((topic_id, partition), (number, generation)): (Key, (u64, u64))| pb::CommitPartition {
            topic_id: topic_id.to_vec(),
            partition,
            fence: Some(pb::Fence { incarnation, number, generation }),
            place: None,
            rewind: false,
        };
        unknown.map(release).collect()
    }

    pub(super) fn assignment(&self) -> Vec<GroupPartition> {
        let visible_end = |tenure: &Tenure| tenure.stream.map(|stream| self.streams.visible_end(stream));
        self.tenures.iter().map(|(key, tenure)| GroupPartition::of(*key, tenure, visible_end(tenure))).collect()
    }
}

fn commit_of(key: Key, tenure: &Tenure) -> pb::CommitPartition {
    pb::CommitPartition {
        topic_id: key.0.to_vec(),
        partition: key.1,
        fence: Some(tenure.fence),
        place: tenure.done.map(Place::to_pb),
        rewind: false,
    }
}
