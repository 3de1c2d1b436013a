//! Who does not do in time what the target asks of it: releases what another shall own, claims what nobody owns. Pure: the
//! caller brings its view and its clock. What was not looked at for a while counts from the next look.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::view::{GroupState, GroupsView};
use crate::registry::assignment::PartitionId;

/// What a member owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Duty {
    /// To release a partition.
    Release,
    /// To claim one.
    Claim,
}

type Owed = BTreeMap<(String, PartitionId, Duty), Duration>;

/// Since when which members owe what.
#[derive(Debug, Default)]
pub struct Overdue {
    /// By group and then by member.
    since: BTreeMap<String, Owed>,
    looked_at: Option<Duration>,
}

impl Overdue {
    /// Looks at the groups named, which changed; `now` is monotonic. `gap_max`: after a longer pause between two looks
    /// everything counts anew, for nobody knows what was missed.
    pub fn look(&mut self, view: &GroupsView, changed: &BTreeSet<String>, now: Duration, gap_max: Duration) {
        let paused = self.looked_at.is_some_and(|before| now.saturating_sub(before) > gap_max);
        self.looked_at = Some(now);
        if paused {
            self.restart(now);
        }
        for group in changed {
            let before = self.since.remove(group).unwrap_or_default();
            let mut owed = due(view, group);
            for (duty, since) in &mut owed {
                *since = before.get(duty).copied().unwrap_or(now);
            }
            if !owed.is_empty() {
                self.since.insert(group.clone(), owed);
            }
        }
    }

    /// Everything that is owed counts from now on.
    pub fn restart(&mut self, now: Duration) {
        for since in self.since.values_mut().flat_map(BTreeMap::values_mut) {
            *since = now;
        }
    }

    /// What a member has owed for longer than it may, if anything.
    pub fn of(&self, group: &str, member: &str, now: Duration, limit: Duration) -> Option<(PartitionId, Duty)> {
        let owed = self.since.get(group)?;
        let first = (member.to_owned(), (corelane_proto::ids::TopicId([0; 16]), 0), Duty::Release);
        owed.range(first..)
            .take_while(|((owner, ..), _)| owner == member)
            .find(|(_, since)| now.saturating_sub(**since) > limit)
            .map(|((_, partition, duty), _)| (*partition, *duty))
    }
}

impl GroupState {
    /// What a member owes with this partition.
    pub fn owes(&self, member: &str, partition: &PartitionId) -> Option<Duty> {
        let is_target = self.target.get(partition).is_some_and(|target| target == member);
        match self.owners.get(partition) {
            Some(owner) if owner.record.member == member && !is_target => Some(Duty::Release),
            None if is_target => Some(Duty::Claim),
            _ => None,
        }
    }
}

fn due(view: &GroupsView, group: &str) -> Owed {
    let Some(state) = view.group(group) else { return Owed::new() };
    let to_release = state
        .owners
        .iter()
        .filter(|(partition, owner)| state.target.get(partition).is_none_or(|member| *member != owner.record.member));
    let to_claim = state.target.iter().filter(|(partition, _)| !state.owners.contains_key(partition));
    let releases = to_release.map(|(partition, owner)| (owner.record.member.clone(), *partition, Duty::Release));
    let claims = to_claim.map(|(partition, member)| (member.clone(), *partition, Duty::Claim));
    releases.chain(claims).map(|duty| (duty, Duration::ZERO)).collect()
}

#[cfg(test)]
mod tests {
    use corelane_proto::ids::TopicId;

    use super::super::view::OwnerState;
    use super::*;
    use crate::registry::group_records::{GroupRecord, OwnerRecord};
    use crate::registry::view::Versioned;

    #[test]
    fn what_is_owed_counts_from_when_it_was_seen_and_never_through_a_gap() {
        let (a, b) = ((TopicId([1; 16]), 0), (TopicId([1; 16]), 1));
        let mut state =
            GroupState { record: Some(Versioned { record: GroupRecord::new(), revision: 1 }), ..Default::default() };
        state.target = [(a, "x".to_owned()), (b, "y".to_owned())].into();
        let owner = OwnerState { record: OwnerRecord { member: "y".to_owned(), generation: 1 }, created: 1 };
        state.owners.insert(a, owner);
        let mut view = GroupsView::default();
        view.groups.insert("g".to_owned(), state);
        let (changed, none) = (BTreeSet::from(["g".to_owned()]), BTreeSet::new());
        let (s, gap, limit) = (Duration::from_secs, Duration::from_secs(5), Duration::from_secs(10));
        let mut overdue = Overdue::default();
        for now in 0..=10 {
            overdue.look(&view, if now == 0 { &changed } else { &none }, s(now), gap);
        }
        assert_eq!(overdue.of("g", "y", s(10), limit), None);
        assert_eq!(overdue.of("g", "y", s(11), limit), Some((a, Duty::Release)));
        assert_eq!(overdue.of("g", "x", s(11), limit), None, "it cannot claim what is not released");
        overdue.look(&view, &changed, s(20), gap);
        assert_eq!(overdue.of("g", "y", s(30), limit), None, "who paused saw nothing");
        view.groups.get_mut("g").expect("there").owners.clear();
        overdue.look(&view, &changed, s(22), gap);
        assert_eq!(overdue.of("g", "x", s(33), limit), Some((a, Duty::Claim)));
        assert_eq!(overdue.of("g", "y", s(33), limit), Some((b, Duty::Claim)));
    }
}
