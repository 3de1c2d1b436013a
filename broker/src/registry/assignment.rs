//! Who of a group shall own which partition. Pure, and the same for whoever computes it from the same inputs, so that
//! brokers that compute at once write the same. In this order:
//!
//! 1. Of each topic, any two of its subscribers get the same number of partitions, to within one.
//! 2. Who gets the one more is chosen so that also the totals are even: giving it to another subscriber of that topic
//!    would bring no two members closer. Members with the same subscriptions so differ by at most one in all.
//! 3. A partition stays with its last owner, if both rules above leave it the choice: only what must move stops.

use std::collections::{BTreeMap, BTreeSet};

use corelane_proto::ids::TopicId;

/// Every member with the topics that it subscribes to.
pub type Subscriptions = BTreeMap<String, BTreeSet<TopicId>>;

/// A partition of a topic.
pub type PartitionId = (TopicId, u32);

/// The member that shall own each partition. A partition of a topic without subscribers is not in it.
pub type Target = BTreeMap<PartitionId, String>;

/// Computes the target from the members, the number of partitions of each topic, and the last target.
pub fn assign(members: &Subscriptions, partitions: &BTreeMap<TopicId, u32>, last: &Target) -> Target {
    let names: Vec<&str> = members.keys().map(String::as_str).collect();
    let places: BTreeMap<&str, usize> = names.iter().enumerate().map(|(place, name)| (*name, place)).collect();
    let mut topics: Vec<Topic> = partitions.iter().map(|(id, count)| Topic::new(*id, *count)).collect();
    for topic in &mut topics {
        let subscribers = members.iter().enumerate().filter(|(_, (_, topics))| topics.contains(&topic.id));
        topic.shares = subscribers.map(|(member, _)| Share::of(member)).collect();
        topic.settle(last, &places);
    }
    topics.retain(|topic| !topic.shares.is_empty());
    let mut totals = vec![0; names.len()];
    for topic in &topics {
        for share in &topic.shares {
            totals[share.member] += topic.least();
        }
    }
    for topic in &mut topics {
        topic.give_extras(&mut totals);
    }
    // First what nobody has yet is evened out, then what would have to move.
    even_out(&mut topics, &mut totals, |share, least| share.held.len() <= least);
    even_out(&mut topics, &mut totals, |_, _| true);
    topics.into_iter().flat_map(|topic| topic.hand_out(&names)).collect()
}

/// Moves extras as long as that brings two members closer; each move makes the sum of the totals' squares smaller, so it
/// ends. Only those that `movable` says of the giver.
fn even_out(topics: &mut [Topic], totals: &mut [usize], movable: impl Fn(&Share, usize) -> bool) {
    let mut moved = true;
    while moved {
        moved = false;
        for topic in &mut *topics {
            while topic.move_extra(totals, &movable) {
                moved = true;
            }
        }
    }
}

/// A topic and what each of its subscribers is to get of it.
struct Topic {
    id: TopicId,
    count: u32,
    shares: Vec<Share>,
    /// Partitions whose last owner is none of the subscribers.
    free: Vec<u32>,
}

/// A subscriber's share of a topic.
struct Share {
    /// Its place among the members.
    member: usize,
    /// What it owned by the last target.
    held: Vec<u32>,
    /// Whether it gets one more than the least.
    has_extra: bool,
}

impl Share {
    fn of(member: usize) -> Self {
        Self { member, held: Vec::new(), has_extra: false }
    }
}

impl Topic {
    fn new(id: TopicId, count: u32) -> Self {
        Self { id, count, shares: Vec::new(), free: Vec::new() }
    }

    /// Sorts the partitions by their last owner.
    fn settle(&mut self, last: &Target, places: &BTreeMap<&str, usize>) {
        if self.shares.is_empty() {
            return;
        }
        for partition in 0..self.count {
            let owner = last.get(&(self.id, partition)).and_then(|owner| places.get(owner.as_str()));
            match owner.and_then(|owner| self.shares.binary_search_by_key(owner, |share| share.member).ok()) {
                Some(share) => self.shares[share].held.push(partition),
                None => self.free.push(partition),
            }
        }
    }

    /// What every subscriber gets.
    fn least(&self) -> usize {
        self.count as usize / self.shares.len()
    }

    /// Gives one more to as many as there are partitions left: to those who hold more than the least, then to those with
    /// the smallest totals.
    fn give_extras(&mut self, totals: &mut [usize]) {
        let least = self.least();
        let mut order: Vec<usize> = (0..self.shares.len()).collect();
        order.sort_by_key(|place| {
            let share = &self.shares[*place];
            (share.held.len() <= least, totals[share.member], share.member)
        });
        for place in &order[..self.count as usize % self.shares.len()] {
            self.shares[*place].has_extra = true;
            totals[self.shares[*place].member] += 1;
        }
    }

    /// Moves one extra from the largest total to the smallest, if they differ by two or more; returns whether it did.
    fn move_extra(&mut self, totals: &mut [usize], movable: impl Fn(&Share, usize) -> bool) -> bool {
        let least = self.least();
        // Among equals, from one that does not have it yet, and to one that does.
        let giver = (0..self.shares.len())
            .filter(|place| self.shares[*place].has_extra && movable(&self.shares[*place], least))
            .max_by_key(|place| {
                let share = &self.shares[*place];
                (totals[share.member], share.held.len() <= least, share.member)
            });
        let taker = (0..self.shares.len()).filter(|place| !self.shares[*place].has_extra).min_by_key(|place| {
            let share = &self.shares[*place];
            (totals[share.member], share.held.len() <= least, share.member)
        });
        let (Some(giver), Some(taker)) = (giver, taker) else { return false };
        let (from, to) = (self.shares[giver].member, self.shares[taker].member);
        if totals[from] < totals[to] + 2 {
            return false;
        }
        (self.shares[giver].has_extra, self.shares[taker].has_extra) = (false, true);
        totals[from] -= 1;
        totals[to] += 1;
        true
    }

    /// Keeps what may be kept, in the order of the partitions, and fills up with the rest.
    fn hand_out(mut self, names: &[&str]) -> Vec<(PartitionId, String)> {
        let least = self.least();
        let size = |share: &Share| least + usize::from(share.has_extra);
        for share in &mut self.shares {
            let kept = size(share).min(share.held.len());
            self.free.extend(share.held.drain(kept..));
        }
        self.free.sort_unstable();
        let mut free = self.free.into_iter();
        let mut owned = Vec::with_capacity(self.count as usize);
        for share in self.shares {
            let missing = size(&share) - share.held.len();
            for partition in share.held.into_iter().chain(free.by_ref().take(missing)) {
                owned.push(((self.id, partition), names[share.member].to_owned()));
            }
        }
        owned
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic(number: usize) -> TopicId {
        TopicId((number as u128).to_be_bytes())
    }

    fn name(number: usize) -> String {
        format!("m{number:04}")
    }

    fn all_of(members: usize, topics: usize) -> Subscriptions {
        (0..members).map(|member| (name(member), (0..topics).map(topic).collect())).collect()
    }

    fn counts(counts: &[u32]) -> BTreeMap<TopicId, u32> {
        counts.iter().enumerate().map(|(number, count)| (topic(number), *count)).collect()
    }

    fn totals(members: &Subscriptions, target: &Target) -> BTreeMap<String, usize> {
        let mut totals: BTreeMap<String, usize> = members.keys().map(|member| (member.clone(), 0)).collect();
        for owner in target.values() {
            *totals.get_mut(owner).expect("an owner is a member") += 1;
        }
        totals
    }

    fn spread(values: impl Iterator<Item = usize> + Clone) -> usize {
        values.clone().max().unwrap_or(0) - values.min().unwrap_or(0)
    }

    /// Partitions that left an owner who could have kept them: it is a member still, and subscribes still.
    fn moved(members: &Subscriptions, last: &Target, now: &Target) -> usize {
        let stays = |partition: &PartitionId, owner: &str| {
            now.contains_key(partition) && members.get(owner).is_some_and(|topics| topics.contains(&partition.0))
        };
        last.iter().filter(|(partition, owner)| stays(partition, owner) && now[partition] != **owner).count()
    }

    /// Rules 1 and 2, and that every partition has an owner that subscribes to it.
    fn check(members: &Subscriptions, partitions: &BTreeMap<TopicId, u32>, target: &Target) {
        let totals = totals(members, target);
        for (id, count) in partitions {
            let subscribers: Vec<&String> =
                members.iter().filter(|(_, topics)| topics.contains(id)).map(|(name, _)| name).collect();
            let mut shares: BTreeMap<&str, usize> = subscribers.iter().map(|name| (name.as_str(), 0)).collect();
            for partition in 0..*count {
                match target.get(&(*id, partition)) {
                    Some(owner) => *shares.get_mut(owner.as_str()).expect("an owner subscribes") += 1,
                    None => assert!(subscribers.is_empty(), "a partition without an owner"),
                }
            }
            assert!(spread(shares.values().copied()) <= 1, "{shares:?}");
            let most = shares.values().copied().max().unwrap_or(0);
            for giver in subscribers.iter().filter(|name| shares[name.as_str()] == most) {
                for taker in subscribers.iter().filter(|name| shares[name.as_str()] < most) {
                    assert!(totals[*giver] <= totals[*taker] + 1, "{giver} could give one to {taker}: {totals:?}");
                }
            }
        }
        let known: u32 = partitions.values().sum();
        assert!(target.len() <= known as usize);
    }

    fn subscriptions() -> impl Strategy<Value = Subscriptions> {
        let topics = proptest::collection::btree_set((0..6usize).prop_map(topic), 0..6);
        proptest::collection::btree_map((0..12usize).prop_map(name), topics, 0..9)
    }

    fn partitions() -> impl Strategy<Value = BTreeMap<TopicId, u32>> {
        proptest::collection::btree_map((0..6usize).prop_map(topic), 0..20u32, 0..6)
    }

    proptest! {
        #[test]
        fn a_group_stays_balanced_and_settled_through_any_change(
            changes in proptest::collection::vec((subscriptions(), partitions()), 1..6),
        ) {
            let mut last = Target::new();
            for (members, partitions) in changes {
                let target = assign(&members, &partitions, &last);
                check(&members, &partitions, &target);
                prop_assert_eq!(&assign(&members, &partitions, &target), &target, "nothing changed, nothing moves");
                last = target;
            }
        }

        #[test]
        fn members_with_the_same_subscriptions_differ_by_one_at_most(
            counts_of in proptest::collection::vec(0..12u32, 1..12),
            members in 1..10usize,
            before in 1..10usize,
        ) {
            let partitions = counts(&counts_of);
            let last = assign(&all_of(before, counts_of.len()), &partitions, &Target::new());
            let members = all_of(members, counts_of.len());
            let target = assign(&members, &partitions, &last);
            check(&members, &partitions, &target);
            prop_assert!(spread(totals(&members, &target).values().copied()) <= 1);
        }

        #[test]
        fn of_one_topic_a_join_moves_the_newcomer_s_share_and_a_leave_nothing_else(
            count in 0..60u32,
            members in 1..12usize,
            steps in proptest::collection::vec((any::<bool>(), any::<proptest::sample::Index>()), 1..12),
        ) {
            let partitions = counts(&[count]);
            let mut members = all_of(members, 1);
            let mut last = assign(&members, &partitions, &Target::new());
            for (number, (joins, index)) in steps.into_iter().enumerate() {
                let newcomer = if joins { Some(format!("n{number}")) } else { None };
                if let Some(newcomer) = &newcomer {
                    members.insert(newcomer.clone(), BTreeSet::from([topic(0)]));
                } else if members.len() > 1 {
                    let gone = index.get(&members.keys().cloned().collect::<Vec<_>>()).clone();
                    members.remove(&gone);
                }
                let target = assign(&members, &partitions, &last);
                check(&members, &partitions, &target);
                let share = newcomer.map_or(0, |newcomer| totals(&members, &target)[&newcomer]);
                prop_assert_eq!(moved(&members, &last, &target), share);
                last = target;
            }
        }

        #[test]
        fn of_many_topics_a_change_of_one_member_moves_little_beyond_its_share(
            counts_of in proptest::collection::vec(1..12u32, 1..12),
            members in 2..10usize,
            joins in any::<bool>(),
        ) {
            let partitions = counts(&counts_of);
            let (fewer, more) = (all_of(members, counts_of.len()), all_of(members + 1, counts_of.len()));
            let (before, after) = if joins { (fewer, more) } else { (more, fewer) };
            let last = assign(&before, &partitions, &Target::new());
            let target = assign(&after, &partitions, &last);
            let share = if joins { totals(&after, &target)[&name(members)] } else { 0 };
            // Evening out the totals may take one more of each topic.
            prop_assert!(moved(&after, &last, &target) <= share + counts_of.len());
        }

        #[test]
        fn more_partitions_move_none_of_those_that_were_there(
            count in 0..40u32,
            more in 0..40u32,
            members in 1..10usize,
        ) {
            let members = all_of(members, 1);
            let last = assign(&members, &counts(&[count]), &Target::new());
            let target = assign(&members, &counts(&[count + more]), &last);
            prop_assert_eq!(moved(&members, &last, &target), 0);
        }

        #[test]
        fn the_order_in_which_members_and_partitions_are_named_does_not_matter(
            (members, shuffled) in subscriptions().prop_flat_map(|members| {
                let pairs: Vec<_> = members.clone().into_iter().collect();
                (Just(members), Just(pairs).prop_shuffle())
            }),
            partitions in partitions(),
        ) {
            let again: Subscriptions = shuffled.into_iter().collect();
            let reversed = partitions.clone().into_iter().rev().collect();
            prop_assert_eq!(assign(&members, &partitions, &Target::new()), assign(&again, &reversed, &Target::new()));
        }
    }

    #[test]
    fn what_a_member_no_longer_subscribes_to_goes_to_the_others() {
        let mut members = all_of(2, 2);
        let partitions = counts(&[4, 4]);
        let last = assign(&members, &partitions, &Target::new());
        members.insert(name(0), BTreeSet::from([topic(1)]));
        let target = assign(&members, &partitions, &last);
        check(&members, &partitions, &target);
        assert!((0..4).all(|partition| target[&(topic(0), partition)] == name(1)));
        members.insert(name(1), BTreeSet::new());
        let target = assign(&members, &partitions, &target);
        assert!(!target.contains_key(&(topic(0), 0)) && target.len() == 4);
    }

    #[test]
    fn topics_of_one_partition_are_spread_over_the_members() {
        let members = all_of(10, 100);
        let target = assign(&members, &counts(&[1; 100]), &Target::new());
        assert!(totals(&members, &target).values().all(|total| *total == 10));
    }

    /// A large group, as it joins and loses members; this also runs where a broker computes it, so it must be quick: the
    /// work is bounded by topics x members, not by their product with the partitions.
    #[test]
    fn five_hundred_members_share_two_thousand_partitions() {
        for counts_of in [vec![2_000], vec![20; 100], vec![1; 2_000]] {
            let partitions = counts(&counts_of);
            let last = assign(&all_of(500, counts_of.len()), &partitions, &Target::new());
            let members = all_of(490, counts_of.len());
            let target = assign(&members, &partitions, &last);
            check(&members, &partitions, &target);
            assert!(spread(totals(&members, &target).values().copied()) <= 1);
            assert_eq!(assign(&members, &partitions, &target), target);
        }
    }
}
