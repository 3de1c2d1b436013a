//! The next target of a group: whether one is due, and what it is. Pure; the caller writes it by compare-and-set, so that
//! of brokers that notice the same at once one wins, and the others see that nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use corelane_proto::ids::{TopicId, TopicName};
use sha2::{Digest as _, Sha256};

use super::subscription::Patterns;
use super::view::{GroupState, TopicState, TopicsView};
use super::{GroupError, GroupStore, hex};
use crate::limits::{GONE_TOPICS_A_TARGET, TARGET_BYTES_MAX, TARGET_CHUNK_BYTES};
use crate::registry::assignment::{Subscriptions, Target, assign};
use crate::registry::group_records::{GroupRecord, InputsRecord, TargetRecord};
use crate::registry::keys::Key;
use crate::registry::records::Record as _;
use crate::registry::store::{Op, Revision, Store, Test};

/// What a target is computed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Each member's topics.
    pub subscriptions: Subscriptions,
    /// The topics that anybody subscribes to, with their partitions.
    pub partitions: BTreeMap<TopicId, u32>,
    /// Of both.
    pub digest: String,
}

/// What is to be done about a group's target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The stored one came from these inputs.
    Nothing,
    /// The stored one came from later inputs than were seen here: look again, then decide.
    Behind,
    /// This one.
    Write(Box<Next>),
}

/// A target to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The group's record with it.
    pub record: GroupRecord,
    /// The target.
    pub target: Target,
    /// Topics that are no more: the group's positions in them go with this write.
    pub gone: Vec<TopicId>,
    /// The mod revision of the record that this follows.
    pub follows: Revision,
    /// In how many chunks that one's target lies.
    pub chunks_before: u32,
}

/// What the members and topics that were seen come to.
pub fn inputs(state: &GroupState, topics: &BTreeMap<TopicName, TopicState>, patterns: &mut Patterns) -> Inputs {
    let mut covered: BTreeMap<(&[TopicName], Option<&str>), BTreeSet<TopicId>> = BTreeMap::new();
    let mut subscriptions = Subscriptions::new();
    let mut text = String::new();
    for (id, member) in &state.members {
        let subscription = (member.record.topics.as_slice(), member.record.pattern.as_deref());
        // Members of a group mostly subscribe to the same.
        let ids = covered.entry(subscription).or_insert_with(|| covered_by(subscription, topics, patterns));
        let _ = writeln!(text, "{id:?} {subscription:?}");
        subscriptions.insert(id.clone(), ids.clone());
    }
    let wanted: BTreeSet<TopicId> = covered.into_values().flatten().collect();
    let mut partitions = BTreeMap::new();
    for (name, topic) in topics.iter().filter(|(_, topic)| wanted.contains(&topic.topic_id)) {
        let _ = writeln!(text, "{name} {} {}", topic.topic_id, topic.partitions);
        partitions.insert(topic.topic_id, topic.partitions);
    }
    let digest = hex(&Sha256::digest(text)[..16]);
    Inputs { subscriptions, partitions, digest }
}

fn covered_by(
    (names, pattern): (&[TopicName], Option<&str>),
    topics: &BTreeMap<TopicName, TopicState>,
    patterns: &mut Patterns,
) -> BTreeSet<TopicId> {
    match pattern {
        None => names.iter().filter_map(|name| topics.get(name)).map(|topic| topic.topic_id).collect(),
        Some(pattern) => {
            let covered = patterns.get(pattern).into_iter().flat_map(|subscription| subscription.topics(topics));
            covered.map(|(_, topic)| topic.topic_id).collect()
        }
    }
}

/// Decides from what was seen of a group and of the topics, in this life of the store. A group without members keeps its
/// last target, for when they come back, but not what it says of topics that are no more.
pub fn decide(state: &GroupState, topics: &TopicsView, patterns: &mut Patterns, incarnation: u64) -> Step {
    let Some(current) = &state.record else { return Step::Nothing };
    let record = &current.record;
    let existing: BTreeSet<TopicId> = topics.topics().values().map(|topic| topic.topic_id).collect();
    let mut gone: Vec<TopicId> = record.topics.keys().filter(|id| !existing.contains(id)).copied().collect();
    let computed = inputs(state, topics.topics(), patterns);
    let is_current = state.members.is_empty() || computed.digest == record.inputs.digest;
    if is_current && gone.is_empty() {
        return Step::Nothing;
    }
    if record.inputs.incarnation == incarnation && topics.revision < record.inputs.revision {
        return Step::Behind;
    }
    // One transaction takes so many; what is left is found again.
    gone.truncate(GONE_TOPICS_A_TARGET);
    let target = if state.members.is_empty() {
        state.target.iter().filter(|((id, _), _)| existing.contains(id)).map(|(p, m)| (*p, m.clone())).collect()
    } else {
        assign(&computed.subscriptions, &computed.partitions, &state.target)
    };
    let mut record = GroupRecord { generation: record.generation + 1, ..record.clone() };
    record.topics.retain(|id, _| !gone.contains(id));
    for id in computed.partitions.keys() {
        // Not there when its name or pattern was subscribed to: all of it is to be read.
        record.topics.entry(*id).or_insert(0);
    }
    let digest = if state.members.is_empty() { record.inputs.digest } else { computed.digest };
    record.inputs = InputsRecord { incarnation, revision: topics.revision, digest };
    let chunks_before = current.record.target_chunks;
    Step::Write(Box::new(Next { record, target, gone, follows: current.revision, chunks_before }))
}

impl<S: Store> GroupStore<S> {
    /// Writes a target, unless another one came first; returns whether it did.
    pub async fn write_target(&self, group: &str, next: Next) -> Result<bool, GroupError> {
        let Next { mut record, target, gone, follows, chunks_before } = next;
        let chunks: Vec<Vec<u8>> =
            TargetRecord::split(&target, TARGET_CHUNK_BYTES).iter().map(TargetRecord::to_bytes).collect();
        if chunks.iter().map(Vec::len).sum::<usize>() > TARGET_BYTES_MAX {
            return Err(GroupError::TooMany { what: "bytes of a group's target", limit: TARGET_BYTES_MAX });
        }
        record.target_chunks = chunks.len() as u32;
        let key = self.keys.key(&Key::Group(group.to_owned()));
        let mut txn = self.txn(record.inputs.incarnation).when(&key, Test::Modified(follows));
        txn = txn.put(&key, record.to_bytes());
        let chunk_key = |chunk| self.keys.key(&Key::Target(group.to_owned(), chunk));
        for chunk in record.target_chunks..chunks_before {
            txn = txn.delete(chunk_key(chunk));
        }
        for (chunk, bytes) in (0..).zip(chunks) {
            txn = txn.put(chunk_key(chunk), bytes);
        }
        for id in gone {
            txn = txn.then(Op::DeletePrefix(self.keys.offsets_in(group, id)));
        }
        Ok(self.store.commit(txn).await?.succeeded)
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::MemberState;
    use super::*;
    use crate::registry::group_records::MemberRecord;
    use crate::registry::view::Versioned;

    fn topic(byte: u8) -> TopicId {
        TopicId([byte; 16])
    }

    fn member(pattern: &str) -> MemberState {
        let record = MemberRecord { pattern: Some(pattern.to_owned()), ..MemberRecord::default() };
        MemberState { record, revision: 1, lease: None }
    }

    fn group(members: &[(&str, &str)]) -> GroupState {
        let members = members.iter().map(|(id, pattern)| ((*id).to_owned(), member(pattern))).collect();
        GroupState {
            record: Some(Versioned { record: GroupRecord::new(), revision: 3 }),
            members,
            ..Default::default()
        }
    }

    fn decide(state: &GroupState, topics: &TopicsView, incarnation: u64) -> Step {
        super::decide(state, topics, &mut Patterns::default(), incarnation)
    }

    /// Decides, as if what is to be written had been written and seen.
    fn advance(state: &mut GroupState, topics: &TopicsView) -> Next {
        let Step::Write(next) = decide(state, topics, 7) else { panic!("nothing to write") };
        state.record = Some(Versioned { record: next.record.clone(), revision: next.follows + 1 });
        state.target = next.target.clone();
        *next
    }

    #[test]
    fn a_target_is_written_once_for_the_same_inputs_by_whoever_sees_them() {
        let (mut state, topics) =
            (group(&[("a", ".*"), ("b", "t1")]), TopicsView::of(&[("t1", 1, 4), ("t2", 2, 2)], 9));
        let next = advance(&mut state, &topics);
        assert_eq!((next.record.generation, next.target.len()), (1, 6));
        assert_eq!(next.record.inputs.revision, 9);
        assert_eq!(decide(&state, &topics, 7), Step::Nothing);
        state.members.remove("b");
        assert_eq!(advance(&mut state, &topics).record.generation, 2);
    }

    #[test]
    fn however_often_it_is_decided_each_pattern_is_compiled_once() {
        let pattern = |member: usize| format!("t.*|x{member}");
        let members: Vec<(String, String)> = (0..50).map(|member| (member.to_string(), pattern(member))).collect();
        let members: Vec<(&str, &str)> = members.iter().map(|(id, pattern)| (id.as_str(), pattern.as_str())).collect();
        let (state, mut patterns) = (group(&members), Patterns::default());
        for round in 1..=20 {
            let topics = TopicsView::of(&[("t1", 1, round), ("t2", 2, 2)], round.into());
            let Step::Write(next) = super::decide(&state, &topics, &mut patterns, 7) else { panic!("a first target") };
            assert_eq!(next.target.len() as u32, round + 2);
        }
        assert_eq!(patterns.compiled, members.len());
        // A faulty one is no reason to try it again.
        for _ in 0..3 {
            assert!(patterns.get("(").is_none());
        }
        assert_eq!(patterns.compiled, members.len() + 1);
    }

    #[test]
    fn whoever_has_seen_less_of_the_topics_does_not_compute() {
        let (mut state, newer) = (group(&[("a", ".*")]), TopicsView::of(&[("t1", 1, 4)], 9));
        advance(&mut state, &newer);
        let older = TopicsView::of(&[("t1", 1, 3)], 8);
        assert_eq!(decide(&state, &older, 7), Step::Behind);
        assert!(matches!(decide(&state, &older, 8), Step::Write(_)), "revisions of another life tell nothing");
    }

    #[test]
    fn topics_that_came_after_the_subscription_are_stored_as_read_from_their_start() {
        let mut state = group(&[("a", ".*")]);
        state.record.as_mut().expect("a record").record.topics.insert(topic(1), 3);
        let next = advance(&mut state, &TopicsView::of(&[("t1", 1, 4), ("t2", 2, 5)], 9));
        assert_eq!(next.record.topics, BTreeMap::from([(topic(1), 3), (topic(2), 0)]));
    }

    #[test]
    fn positions_of_deleted_topics_go_also_when_nobody_is_there() {
        let mut state = group(&[("a", ".*")]);
        let before = TopicsView::of(&[("t1", 1, 2), ("t2", 2, 2)], 9);
        advance(&mut state, &before);
        state.members.clear();
        assert_eq!(decide(&state, &before, 7), Step::Nothing, "the target is kept for when they come back");
        let next = advance(&mut state, &TopicsView::of(&[("t1", 1, 2)], 12));
        assert_eq!((next.gone, next.target.len()), (vec![topic(2)], 2));
        assert_eq!(next.record.topics.len(), 1);
    }
}
