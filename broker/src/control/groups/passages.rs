//! What the log tells of members that come and go: of one whose lease has ended a line, by the broker that it was attached to
//! last, and so once in a cluster; and with each new target why there is one. Pure but for the log.

use std::collections::BTreeMap;

use super::Groups;
use crate::registry::groups::view::GroupsView;
use crate::registry::keys::{Key, Keys};
use crate::registry::store::{Change, Revision, Store};

pub(super) const JOINED: &str = "a member has joined";
pub(super) const GONE: &str = "a member is gone";
pub(super) const TOPICS: &str = "topics have changed";
pub(super) const LISTED: &str = "the groups were listed anew";

/// A member whose key is gone, as it was seen last.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone {
    pub(super) group: String,
    pub(super) member: String,
    host: String,
    attached: Revision,
}

/// Members that these changes take away.
pub(super) fn gone(keys: &Keys, view: &GroupsView, changes: &[Change]) -> Vec<Gone> {
    let deleted = changes.iter().filter_map(|change| match change {
        Change::Deleted { key, .. } => keys.parse(key),
        Change::Put(_) => None,
    });
    let gone = deleted.filter_map(|key| match key {
        Key::Member(group, member) => of_member(view, group, member),
        _ => None,
    });
    gone.collect()
}

/// Members that one list has and the next one has not.
pub(super) fn gone_between(before: &GroupsView, now: &GroupsView) -> Vec<Gone> {
    let members =
        before.groups.iter().flat_map(|(group, state)| state.members.keys().map(move |member| (group, member)));
    let gone = members.filter(|(group, member)| now.member(group, member).is_none());
    gone.filter_map(|(group, member)| of_member(before, group.clone(), member.clone())).collect()
}

fn of_member(view: &GroupsView, group: String, member: String) -> Option<Gone> {
    let state = view.member(&group, &member)?;
    Some(Gone { host: state.record.host.clone(), attached: state.revision, group, member })
}

/// Why a target may be due after these changes, by group.
pub(super) fn reasons(keys: &Keys, view: &GroupsView, changes: &[Change]) -> BTreeMap<String, Vec<&'static str>> {
    let mut reasons = BTreeMap::<String, Vec<&'static str>>::new();
    for change in changes {
        let (key, reason) = match change {
            Change::Put(entry) => (&entry.key, JOINED),
            Change::Deleted { key, .. } => (key, GONE),
        };
        if let Some(Key::Member(group, member)) = keys.parse(key) {
            // One that is written again has attached again only.
            if reason == GONE || view.member(&group, &member).is_none() {
                reasons.entry(group).or_default().push(reason);
            }
        }
    }
    reasons
}

impl<S: Store> Groups<S> {
    /// Of those whose last attachment was made here and that have not left.
    pub(super) fn say_gone(&self, gone: &[Gone]) {
        for Gone { group, member, host, attached } in gone {
            if self.sessions.is_here(group, member, *attached) {
                tracing::info!(group, member, host, "a member is gone: its lease has ended");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::group_records::MemberRecord;
    use crate::registry::records::Record as _;
    use crate::registry::store::Entry;

    fn put(keys: &Keys, member: &str, revision: Revision) -> Change {
        let record = MemberRecord { host: format!("host of {member}"), ..MemberRecord::default() };
        let (key, value) = (keys.key(&Key::Member("g".to_owned(), member.to_owned())), record.to_bytes());
        Change::Put(Entry { key, value, create_revision: 1, mod_revision: revision, lease: Some(1) })
    }

    fn deleted(keys: &Keys, member: &str, revision: Revision) -> Change {
        Change::Deleted { key: keys.key(&Key::Member("g".to_owned(), member.to_owned())), revision }
    }

    #[test]
    fn a_member_that_goes_is_told_as_it_was_seen_last_and_once() {
        let keys = Keys::new("c");
        let mut before = GroupsView::default();
        before.apply(&keys, vec![put(&keys, "a", 5), put(&keys, "b", 6), put(&keys, "a", 7)], 7);
        let changes = vec![deleted(&keys, "a", 8), deleted(&keys, "unknown", 8)];
        let told = gone(&keys, &before, &changes);
        let (group, member, host) = ("g".to_owned(), "a".to_owned(), "host of a".to_owned());
        assert_eq!(told, [Gone { group, member, host, attached: 7 }]);
        let mut now = before.clone();
        now.apply(&keys, changes.clone(), 8);
        assert_eq!(gone_between(&before, &now), told);
        assert_eq!((gone(&keys, &now, &changes), gone_between(&now, &now)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_target_s_reasons_are_members_that_came_or_went_and_not_those_that_attached_again() {
        let keys = Keys::new("c");
        let mut view = GroupsView::default();
        view.apply(&keys, vec![put(&keys, "a", 5)], 5);
        let of = |changes: &[Change]| reasons(&keys, &view, changes).remove("g").unwrap_or_default();
        assert_eq!(of(&[put(&keys, "a", 6)]), [""; 0]);
        assert_eq!(of(&[put(&keys, "b", 6), deleted(&keys, "a", 7)]), [JOINED, GONE]);
    }
}
