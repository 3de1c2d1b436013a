//! The members that attached through this broker, so that their calls need not be checked against the registry each time.
//! Forgetting one costs a read.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use corelane_proto::pb;

use super::Groups;
use crate::limits::SESSIONS_KNOWN_MAX;
use crate::registry::groups::view::GroupsView;
use crate::registry::groups::{Attachment, DISPLACED, GroupError, Session, WRONG_SECRET, hash};
use crate::registry::store::{Revision, Store};

/// By group and member.
#[derive(Default)]
pub(super) struct Sessions {
    known: RefCell<HashMap<String, HashMap<String, Rc<Session>>>>,
    /// Those whose leave is under way, by group and member: their keys go in order.
    leaving: RefCell<BTreeSet<(String, String)>>,
}

impl Sessions {
    fn get(&self, group: &str, member: &str) -> Option<Rc<Session>> {
        self.known.borrow().get(group)?.get(member).cloned()
    }

    pub(super) fn insert(&self, session: Session) -> Rc<Session> {
        let mut known = self.known.borrow_mut();
        if known.values().map(HashMap::len).sum::<usize>() >= SESSIONS_KNOWN_MAX {
            known.clear();
        }
        let session = Rc::new(session);
        let of_group = known.entry(session.group.clone()).or_default();
        of_group.insert(session.member.clone(), Rc::clone(&session));
        session
    }

    /// Whether a member whose key was written last at this revision attached here, and does not leave.
    pub(super) fn is_here(&self, group: &str, member: &str, attached: Revision) -> bool {
        let is_leaving = self.leaving.borrow().contains(&(group.to_owned(), member.to_owned()));
        !is_leaving && self.get(group, member).is_some_and(|session| session.attachment.revision == attached)
    }

    /// It is about to leave; [`remove`](Self::remove) follows.
    pub(super) fn note_leaving(&self, session: &Session) {
        self.leaving.borrow_mut().insert((session.group.clone(), session.member.clone()));
    }

    pub(super) fn remove(&self, session: &Session) {
        self.leaving.borrow_mut().remove(&(session.group.clone(), session.member.clone()));
        if let Some(members) = self.known.borrow_mut().get_mut(&session.group) {
            members.remove(&session.member);
        }
    }

    pub(super) fn clear(&self) {
        self.known.borrow_mut().clear();
    }

    /// Forgets those whose key is gone.
    pub(super) fn retain_seen(&self, view: &GroupsView, groups: &BTreeSet<String>) {
        let mut known = self.known.borrow_mut();
        for group in groups {
            let Some(members) = known.get_mut(group) else { continue };
            members.retain(|member, session| {
                // One that attached after what was seen is not missing yet.
                session.attachment.revision > view.revision || view.member(group, member).is_some()
            });
            if members.is_empty() {
                known.remove(group);
            }
        }
    }
}

impl<S: Store> Groups<S> {
    /// Who speaks: checked against what this broker remembers, else against the registry.
    pub(super) async fn session(&self, member: Option<&pb::Member>) -> Result<Rc<Session>, GroupError> {
        let missing = || GroupError::Invalid { field: "member", message: "a member says who it is".to_owned() };
        let member = member.ok_or_else(missing)?;
        self.state.borrow().check_life(member.incarnation)?;
        let attachment = Attachment { incarnation: member.incarnation, revision: member.attachment };
        if let Some(known) = self.sessions.get(&member.group, &member.member_id) {
            if known.secret_hash != hash(&member.secret) {
                return Err(WRONG_SECRET);
            }
            if known.attachment == attachment {
                return Ok(known);
            }
            if known.attachment.revision > attachment.revision {
                return Err(DISPLACED);
            }
        }
        let (group, id) = (&member.group, &member.member_id);
        let session = self.registry.find_session(group, id, &member.secret, attachment).await?;
        Ok(self.sessions.insert(session))
    }
}
