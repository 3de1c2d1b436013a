//! What must hold at a history's end, when everything was well for long enough.

use std::collections::BTreeMap;
use std::rc::Rc;

use corelane_broker::registry::group_records::{OffsetRecord, OwnerRecord};
use corelane_broker::registry::keys::Key;
use corelane_broker::registry::records::Record as _;
use corelane_proto::ids::TopicId;

use super::super::ghost::{Ghost, Tp};
use super::super::member::Member;
use super::super::store::Etcd;
use super::{GROUP, World};

impl World {
    pub(super) fn check_end(&self) -> Result<(), String> {
        let (etcd, ghost) = (self.etcd.borrow(), self.ghost.borrow());
        let members: Vec<String> = {
            let prefix = self.keys.members_of(GROUP);
            etcd.below(&prefix).map(|entry| entry.key[prefix.len()..].to_owned()).collect()
        };
        let live: BTreeMap<String, Rc<Member>> =
            self.live().into_iter().filter_map(|member| Some((member.member_id()?, member))).collect();
        if let Some(gone) = members.iter().find(|member| !live.contains_key(*member)) {
            return Err(format!("member {gone} is gone and still has a lease"));
        }
        let topics = self.topics();
        for (name, topic) in topics.iter().filter(|(name, _)| self.covers(name.as_str())) {
            let mut shares: BTreeMap<&str, u32> = members.iter().map(|member| (member.as_str(), 0)).collect();
            for partition in 0..topic.partitions {
                let tp = (topic.topic_id, partition);
                let owner = etcd.entries.get(&self.keys.key(&Key::Owner(GROUP.to_owned(), tp.0, tp.1)));
                let owner = owner.ok_or(format!("{tp:?} has no owner"))?;
                let owner = OwnerRecord::from_bytes(&owner.value).expect("it");
                let member = live.get(&owner.member).ok_or(format!("{tp:?} is owned by one that is gone"))?;
                let own = member.own.borrow();
                let tenure = own.get(&tp).ok_or(format!("the owner of {tp:?} does not serve it"))?;
                *shares
                    .entry(members.iter().find(|id| **id == owner.member).expect("a member").as_str())
                    .or_default() += 1;
                self.check_partition(&etcd, &ghost, tp, tenure.place.get().filter(|_| tenure.is_ready.get()))?;
            }
            let (most, least) = (shares.values().max().copied(), shares.values().min().copied());
            if most.unwrap_or(0) > least.unwrap_or(0) + 1 {
                return Err(format!("{name} is not balanced: {shares:?}"));
            }
        }
        let exists = |id: TopicId, partition| {
            topics.iter().any(|(_, topic)| topic.topic_id == id && partition < topic.partitions)
        };
        for key in etcd.entries.keys() {
            match self.keys.parse(key) {
                Some(Key::Owner(_, id, partition) | Key::Offset(_, id, partition)) if !exists(id, partition) => {
                    return Err(format!("{key} is left of a topic that is gone"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_partition(&self, etcd: &Etcd, ghost: &Ghost, tp: Tp, served: Option<(u32, u64)>) -> Result<(), String> {
        let offset = etcd.entries.get(&self.keys.key(&Key::Offset(GROUP.to_owned(), tp.0, tp.1)));
        let committed = offset.map(|entry| OffsetRecord::from_bytes(&entry.value).expect("a position"));
        let committed = committed.map(|offset| (offset.epoch.0, offset.position.0));
        if served.is_some_and(|served| served.1 > 0) && committed != served {
            return Err(format!("the commits of {tp:?} do not follow: {committed:?}, processed to {served:?}"));
        }
        let log = self.log(tp).expect("it exists");
        let start = ghost.start.get(&tp).copied();
        let is_covered = self.covered.borrow().get(&tp) == Some(&true) && !ghost.forgotten.contains(&tp);
        let is_later = log.epoch > 1 && start.is_none_or(|start| start.0 < log.epoch);
        let from = match start {
            _ if is_covered || is_later => 0,
            Some((epoch, position)) if epoch == log.epoch => position,
            _ => 0,
        };
        match (from..log.end).find(|position| !ghost.is_done(tp, (log.epoch, *position))) {
            Some(missed) => Err(format!(
                "{missed} of {tp:?} was never processed (start {start:?}, committed {committed:?}, {log:?})"
            )),
            None => Ok(()),
        }
    }
}
