//! Joining, attaching again, leaving. A member is a key under its own lease; every new connection of it writes that key
//! once more, and the revision of the last writing is what its calls must name.

use std::collections::BTreeSet;
use std::time::Duration;

use corelane_proto::ids::TopicName;

use super::subscription::Subscription;
use super::view::TopicsView;
use super::{Attachment, CONFLICTS_MAX, DISPLACED, GroupError, GroupStore, LEASE_ENDED, Session, WRONG_SECRET};
use super::{hash, parse};
use crate::limits::{GROUP_SUBSCRIPTIONS_MAX, GROUPS_NAME_BYTES_MAX};
use crate::registry::group_records::{GroupRecord, MemberRecord};
use crate::registry::keys::Key;
use crate::registry::records::Record as _;
use crate::registry::store::{Entry, LeaseId, Op, Store, StoreError, Test, list};

/// A member that is to be made.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// Of which group.
    pub group: String,
    /// Random.
    pub member: String,
    /// Random; only its hash is stored.
    pub secret: [u8; 16],
    /// Checked.
    pub subscription: Subscription,
    /// What the client calls itself.
    pub client: String,
    /// Where it connected from.
    pub host: String,
    /// How long it counts as alive after its last heartbeat.
    pub lease_life: Duration,
    /// How long it may hold one message.
    pub processing_max: Duration,
    /// How long it may take to release and to claim.
    pub release_max: Duration,
}

impl NewMember {
    fn record(&self) -> MemberRecord {
        let (topics, pattern) = match &self.subscription {
            Subscription::Names(names) => (names.clone(), None),
            Subscription::Pattern(_, pattern) => (Vec::new(), Some(pattern.clone())),
        };
        MemberRecord {
            topics,
            pattern,
            client: self.client.clone(),
            host: self.host.clone(),
            secret_hash: hash(&self.secret),
            lease_ms: millis(self.lease_life),
            processing_max_ms: millis(self.processing_max),
            release_max_ms: millis(self.release_max),
        }
    }

    fn session(&self, attachment: Attachment, lease: LeaseId) -> Session {
        session_of(&self.group, &self.member, &self.record(), attachment, lease)
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn session_of(group: &str, member: &str, record: &MemberRecord, attachment: Attachment, lease: LeaseId) -> Session {
    let from_ms = |ms: u32| Duration::from_millis(ms.into());
    Session {
        group: group.to_owned(),
        member: member.to_owned(),
        attachment,
        lease,
        lease_life: from_ms(record.lease_ms),
        processing_max: from_ms(record.processing_max_ms),
        release_max: from_ms(record.release_max_ms),
        secret_hash: record.secret_hash.clone(),
    }
}

/// A group's name: what fits into a key and a line of a listing.
pub fn check_group_name(group: &str) -> Result<(), GroupError> {
    let is_fine = (1..=GROUPS_NAME_BYTES_MAX).contains(&group.len()) && !group.chars().any(char::is_control);
    let message = || format!("a group's name has 1 to {GROUPS_NAME_BYTES_MAX} bytes and no control characters");
    if is_fine { Ok(()) } else { Err(GroupError::Invalid { field: "group", message: message() }) }
}

impl GroupRecord {
    /// Of a group that never had a target.
    pub fn new() -> Self {
        Self { kind: "corelane".to_owned(), ..Self::default() }
    }

    /// With a subscription, and the partition counts of the topics that it newly covers. Pure; returns whether it is
    /// another one then.
    fn subscribe(&mut self, subscription: &Subscription, topics: &TopicsView) -> bool {
        let mut is_new = false;
        let mut first_time = |record: &mut Self, topics: Vec<(corelane_proto::ids::TopicId, u32)>| {
            is_new = true;
            for (id, partitions) in topics {
                record.topics.entry(id).or_insert(partitions);
            }
        };
        match subscription {
            Subscription::Names(names) => {
                for name in names {
                    if self.names.insert(name.as_str().to_owned()) {
                        let topic = topics.topics().get(name).map(|topic| (topic.topic_id, topic.partitions));
                        first_time(self, topic.into_iter().collect());
                    }
                }
            }
            Subscription::Pattern(_, pattern) => {
                if self.patterns.insert(pattern.clone()) {
                    let topics = subscription.topics(topics.topics());
                    first_time(self, topics.map(|(_, topic)| (topic.topic_id, topic.partitions)).collect());
                }
            }
        }
        is_new
    }

    /// Forgets the names and patterns that none of these members has and that cover no topic that the group has read: to
    /// remember them tells only that a topic which came after them, while nobody was there, is to be read from its start.
    async fn forget_unused(&mut self, members: &[MemberRecord], topics: &TopicsView) {
        let read: Vec<&TopicName> = self.topics.keys().filter_map(|id| topics.name_of(*id)).collect();
        let names = members.iter().flat_map(|member| &member.topics).chain(read.iter().copied());
        let names: BTreeSet<&str> = names.map(TopicName::as_str).collect();
        self.names.retain(|name| names.contains(name.as_str()));
        for pattern in std::mem::take(&mut self.patterns) {
            let is_used = || {
                let covers = |subscription: Subscription| read.iter().any(|name| subscription.matches(name));
                !read.is_empty() && Subscription::new(&[], &pattern).is_ok_and(covers)
            };
            if members.iter().any(|member| member.pattern.as_ref() == Some(&pattern)) || is_used() {
                self.patterns.insert(pattern);
            }
            // To compile many is work, and others wait for this thread.
            tokio::task::yield_now().await;
        }
    }

    fn subscribed(&self) -> usize {
        self.names.len() + self.patterns.len()
    }

    fn has_all(&self, subscription: &Subscription) -> bool {
        match subscription {
            Subscription::Names(names) => names.iter().all(|name| self.names.contains(name.as_str())),
            Subscription::Pattern(_, pattern) => self.patterns.contains(pattern),
        }
    }
}

impl<S: Store> GroupStore<S> {
    /// Makes a member, and its group with it if there is none. What it subscribes to first is stored in the same
    /// transaction, with the partition counts of that moment.
    pub async fn join(&self, new: &NewMember, incarnation: u64) -> Result<Session, GroupError> {
        let lease = self.store.grant(new.lease_life).await?;
        let joined = self.join_under(new, lease, incarnation).await;
        // Whatever may have been written goes with the lease.
        if joined.is_err() {
            let _ = self.store.revoke(lease).await;
        }
        joined
    }

    async fn join_under(&self, new: &NewMember, lease: LeaseId, incarnation: u64) -> Result<Session, GroupError> {
        let group_key = self.keys.key(&Key::Group(new.group.clone()));
        let member_key = self.keys.key(&Key::Member(new.group.clone(), new.member.clone()));
        let value = new.record().to_bytes();
        for _ in 0..CONFLICTS_MAX {
            let entry = self.store.get(&group_key).await?;
            let known = entry.as_ref().map(parse::<GroupRecord>).transpose()?;
            let test = entry.map_or(Test::Absent, |entry| Test::Modified(entry.mod_revision));
            let mut txn = self.txn(incarnation).when(&member_key, Test::Absent);
            txn = txn.then(Op::Put { key: member_key.clone(), value: value.clone(), lease: Some(lease) });
            match known {
                // Then only that it exists still: others may go on writing targets meanwhile.
                Some(known) if known.has_all(&new.subscription) => txn = txn.when(&group_key, Test::Exists),
                known => {
                    let mut record = known.unwrap_or_else(GroupRecord::new);
                    let topics = self.list_topics().await?;
                    record.subscribe(&new.subscription, &topics);
                    if record.subscribed() > GROUP_SUBSCRIPTIONS_MAX {
                        let mut members = self.list_members(&new.group).await?;
                        members.push(new.record());
                        record.forget_unused(&members, &topics).await;
                    }
                    if record.subscribed() > GROUP_SUBSCRIPTIONS_MAX {
                        return Err(GroupError::TooManySubscriptions { limit: GROUP_SUBSCRIPTIONS_MAX });
                    }
                    txn = txn.when(&group_key, test).put(&group_key, record.to_bytes());
                }
            }
            let outcome = self.store.commit(txn).await?;
            if outcome.succeeded {
                return Ok(new.session(Attachment { incarnation, revision: outcome.revision }, lease));
            }
            if !self.is_same_life(&outcome.results, incarnation) {
                return Err(GroupError::Behind);
            }
        }
        Err(GroupError::Busy(group_key))
    }

    async fn list_members(&self, group: &str) -> Result<Vec<MemberRecord>, GroupError> {
        let (entries, _) = list(&self.store, &self.keys.members_of(group)).await?;
        entries.iter().map(parse).collect()
    }

    /// The topics as they are now.
    pub async fn list_topics(&self) -> Result<TopicsView, GroupError> {
        let (entries, revision) = list(&self.store, &self.keys.topics()).await?;
        Ok(TopicsView::listed(&self.keys, entries, revision))
    }

    /// Attaches a new connection: the member's key is written once more, naming its lease, or it would outlive it.
    pub async fn attach(
        &self,
        group: &str,
        member: &str,
        secret: &[u8],
        incarnation: u64,
    ) -> Result<Session, GroupError> {
        let key = self.keys.key(&Key::Member(group.to_owned(), member.to_owned()));
        let (entry, record) = self.member_of(&key, secret).await?;
        let Some(lease) = entry.lease else { return Err(LEASE_ENDED) };
        let put = Op::Put { key: key.clone(), value: entry.value, lease: Some(lease) };
        // The same key still, if under another attachment: two that attach at once both do, and the later one counts.
        let txn = self.txn(incarnation).when(&key, Test::Created(entry.create_revision)).then(put);
        match self.store.commit(txn).await {
            Ok(outcome) if outcome.succeeded => {
                let attachment = Attachment { incarnation, revision: outcome.revision };
                Ok(session_of(group, member, &record, attachment, lease))
            }
            Ok(outcome) if self.is_same_life(&outcome.results, incarnation) => Err(LEASE_ENDED),
            Ok(_) => Err(GroupError::Behind),
            Err(StoreError::LeaseGone) => Err(LEASE_ENDED),
            Err(error) => Err(error.into()),
        }
    }

    /// The member that attached through another broker, or before this one started.
    pub async fn find_session(
        &self,
        group: &str,
        member: &str,
        secret: &[u8],
        attachment: Attachment,
    ) -> Result<Session, GroupError> {
        let key = self.keys.key(&Key::Member(group.to_owned(), member.to_owned()));
        let (entry, record) = self.member_of(&key, secret).await?;
        match entry.lease {
            None => Err(LEASE_ENDED),
            Some(_) if entry.mod_revision != attachment.revision => Err(DISPLACED),
            Some(lease) => Ok(session_of(group, member, &record, attachment, lease)),
        }
    }

    async fn member_of(&self, key: &str, secret: &[u8]) -> Result<(Entry, MemberRecord), GroupError> {
        let Some(entry) = self.store.get(key).await? else { return Err(LEASE_ENDED) };
        let record = parse::<MemberRecord>(&entry)?;
        if record.secret_hash == hash(secret) { Ok((entry, record)) } else { Err(WRONG_SECRET) }
    }

    /// Ends a membership at once. The key first, under the member's attachment: a process that another one displaced must
    /// not take its lease away.
    pub async fn leave(&self, session: &Session) -> Result<(), GroupError> {
        let Attachment { incarnation, revision } = session.attachment;
        let key = self.keys.key(&Key::Member(session.group.clone(), session.member.clone()));
        let txn = self.txn(incarnation).when(&key, Test::Modified(revision)).delete(&key);
        let outcome = self.store.commit(txn.otherwise(Op::Get(key))).await?;
        if !outcome.succeeded {
            return Err(self.why_fenced(&outcome.results, incarnation, 1));
        }
        match self.store.revoke(session.lease).await {
            Ok(()) | Err(StoreError::LeaseGone) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use corelane_proto::ids::TopicId;

    use super::*;

    fn by_name(name: &str) -> Subscription {
        Subscription::new(&[name.to_owned()], "").expect("a subscription")
    }

    #[test]
    fn what_is_subscribed_to_first_is_stored_with_the_counts_of_that_moment() {
        let mut record = GroupRecord::new();
        let by_pattern = Subscription::new(&[], "t.*").expect("a subscription");
        assert!(record.subscribe(&by_name("t1"), &TopicsView::of(&[("t1", 1, 3), ("t2", 2, 3)], 1)));
        assert_eq!(record.topics, BTreeMap::from([(TopicId([1; 16]), 3)]));
        assert!(record.has_all(&by_name("t1")) && !record.has_all(&by_pattern));
        // More partitions since: they came after the subscription, whoever subscribes to them now.
        assert!(record.subscribe(&by_pattern, &TopicsView::of(&[("t1", 1, 5), ("t2", 2, 4)], 1)));
        assert_eq!(record.topics, BTreeMap::from([(TopicId([1; 16]), 3), (TopicId([2; 16]), 4)]));
        // A topic that is created again under a name that is subscribed to came after it.
        assert!(!record.subscribe(&by_name("t1"), &TopicsView::of(&[("t1", 9, 5)], 1)));
        assert_eq!(record.topics.len(), 2);
    }

    #[tokio::test]
    async fn what_nobody_subscribes_to_and_was_never_read_can_be_forgotten() {
        let mut record = GroupRecord::new();
        let topics = TopicsView::of(&[("read", 1, 3), ("unread", 2, 3)], 1);
        record.topics.insert(TopicId([1; 16]), 0);
        record.topics.insert(TopicId([9; 16]), 0);
        let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<String>>();
        record.names = set(&["read", "unread", "nothing", "of-a-member"]);
        record.patterns = set(&["re.*", "unre.*", "no.*", "of-another.*", "("]);
        let by_name =
            MemberRecord { topics: vec![TopicName::new("of-a-member").expect("a name")], ..Default::default() };
        let by_pattern = MemberRecord { pattern: Some("of-another.*".to_owned()), ..Default::default() };
        record.forget_unused(&[by_name, by_pattern], &topics).await;
        assert_eq!(record.names, set(&["read", "of-a-member"]));
        assert_eq!(record.patterns, set(&["re.*", "of-another.*"]));
        assert_eq!(record.topics.len(), 2, "from where to read what was read is remembered");
    }

    #[test]
    fn group_names_fit_into_a_key_and_a_line() {
        for (name, is_fine) in [("g", true), ("a/b %", true), ("", false), ("a\nb", false), (&"x".repeat(250), false)] {
            assert_eq!(check_group_name(name).is_ok(), is_fine, "{name}");
        }
    }
}
