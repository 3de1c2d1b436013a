//! What an operator says about brokers and data that will not come back: that a broker is forgotten, that a partition's
//! loss is accepted. Never guessed by a broker itself.

use std::time::Instant;

use corelane_proto::frame::Status;
use corelane_proto::ids::{Epoch, TopicId, TopicName};
use corelane_proto::pb;

use super::Control;
use super::hosted::{Hosted, Served};
use crate::messages::Failure;
use crate::registry::membership::{IdentityError, Membership};
use crate::registry::placement::place;
use crate::registry::store::{Revision, Store};
use crate::registry::view::View;
use crate::service::invalid_field;

impl<S: Store> Control<S> {
    /// Forgets a broker that does not run: the registry no longer waits for it, its number is free.
    pub(super) async fn forget_broker(
        &self,
        request: pb::ForgetBrokerRequest,
    ) -> Result<pb::ForgetBrokerResponse, Failure> {
        let _changing = self.changing.lock().await;
        self.check_registry()?;
        let broker_id = request.broker_id;
        let membership = Membership::new(self.store.clone(), self.keys.clone(), self.broker_id);
        let was_known = match membership.forget(broker_id).await {
            Ok(was_known) => was_known,
            Err(error @ IdentityError::Runs { .. }) => return Err(invalid_field("broker_id", error.to_string())),
            Err(error) => return Err(Failure::new(Status::RegistryUnavailable, error.to_string())),
        };
        let tombstones = self.topics.confirm_all_deleted(broker_id).await? as u32;
        let partitions = self.view.borrow().partitions_on(broker_id);
        tracing::warn!(broker_id, was_known, tombstones, partitions, "a broker is forgotten");
        Ok(pb::ForgetBrokerResponse { was_known, tombstones, partitions })
    }

    /// Begins a partition's log anew, here if this broker holds it and refuses it as lost; on a broker that runs, if the
    /// one that held it was forgotten.
    pub(super) async fn accept_loss(&self, request: pb::AcceptLossRequest) -> Result<pb::AcceptLossResponse, Failure> {
        let _changing = self.changing.lock().await;
        self.check_registry()?;
        let topic_id =
            TopicId::try_from(&request.topic_id[..]).map_err(|error| invalid_field("topic_id", error.to_string()))?;
        let (partition, epoch) = (request.partition, Epoch(request.epoch));
        let mut partitions = self.topics.partitions_of(topic_id).await?;
        let Some(known) = partitions.remove(&partition) else {
            let others = partitions.values().map(|other| other.record.epoch.0).max().unwrap_or(0);
            return self.begin_unrecorded(topic_id, partition, Epoch(others + 1)).await;
        };
        let leader = known.record.leader;
        if known.record.epoch != epoch {
            let message = format!("the partition is at epoch {}, not {epoch}: look at it again", known.record.epoch);
            let mut failure = Failure::new(Status::WrongEpoch, message);
            failure.error.epoch = Some(known.record.epoch.0);
            return Err(failure);
        }
        let place = if leader == self.broker_id {
            check_lost(&self.hosted.borrow(), topic_id, partition)?;
            self.broker_id
        } else {
            check_forgotten(&self.view.borrow(), leader)?;
            place(1, &self.candidates(1)?)[0]
        };
        let begun = self.topics.accept_loss(topic_id, partition, &known, place).await?;
        tracing::warn!(%topic_id, partition, epoch = %begun.epoch, broker_id = place, "a loss is accepted: the partition begins anew");
        Ok(pb::AcceptLossResponse { epoch: begun.epoch.0, broker_id: place })
    }

    /// Begins a partition anew whose record went with a registry and that no directory has brought back; in an epoch that
    /// none of its topic's has had, so that a directory that turns up later is set aside.
    async fn begin_unrecorded(
        &self,
        topic_id: TopicId,
        partition: u32,
        epoch: Epoch,
    ) -> Result<pb::AcceptLossResponse, Failure> {
        let membership = Membership::new(self.store.clone(), self.keys.clone(), self.broker_id);
        let cluster = membership.cluster().await;
        let cluster = cluster.map_err(|error| Failure::new(Status::RegistryUnavailable, error.to_string()))?;
        let incarnation = cluster.map_or(0, |(record, _)| record.incarnation);
        self.check_told(Instant::now())?;
        check_held_nowhere(&self.view.borrow(), incarnation)?;
        let (name, topic) = check_unrecorded(&self.view.borrow(), &self.hosted.borrow(), topic_id, partition)?;
        let place = place(1, &self.candidates(1)?)[0];
        let begun = self.topics.begin_lost((&name, topic), topic_id, partition, epoch, place).await?;
        tracing::warn!(%topic_id, partition, %epoch, broker_id = place, "a partition without a record begins anew");
        Ok(pb::AcceptLossResponse { epoch: begun.epoch.0, broker_id: place })
    }
}

impl<S: Store> Control<S> {
    /// Brokers that run say what they hold once they have seen that the registry is another one.
    fn check_told(&self, now: Instant) -> Result<(), Failure> {
        let Some(restored) = self.standing.borrow().restored else { return Ok(()) };
        let rest = self.config.broker_lease.0.saturating_sub(now.duration_since(restored));
        if rest.is_zero() {
            return Ok(());
        }
        let reason = "the registry was restored just now, and brokers that run have yet to say what they hold";
        Err(Failure::new(Status::Busy, format!("{reason}; try again in {} s", rest.as_secs() + 1)))
    }
}

/// What has no record may lie in the directory of a broker that runs: the registry may not have been brought back from that.
fn check_held_nowhere(view: &View, incarnation: u64) -> Result<(), Failure> {
    for (id, alive) in &view.alive {
        if alive.incarnation != incarnation {
            let reason = format!("broker {id} has yet to say what it holds; try again in some seconds");
            return Err(Failure::new(Status::Busy, reason));
        }
        if alive.unrecorded > 0 {
            let count = alive.unrecorded;
            let reason = format!(
                "{count} partitions in the data directory of broker {id} are unknown to the registry, and this may be one of \
                 them: stop that broker and bring them back with corelane registry restore-from and its directory, or move \
                 them out of it"
            );
            return Err(invalid_field("partition", reason));
        }
    }
    Ok(())
}

/// What serves, or has yet to be tried, is not lost.
fn check_lost(hosted: &Hosted, topic_id: TopicId, partition: u32) -> Result<(), Failure> {
    match hosted.get(&topic_id).and_then(|topic| topic.partitions.get(&partition)) {
        Some(Served::Refused(..)) => Ok(()),
        _ => Err(serves()),
    }
}

/// What a broker that is known may hold is not given to another one, whether it runs or not.
fn check_forgotten(view: &View, leader: u32) -> Result<(), Failure> {
    if !view.brokers.contains_key(&leader) {
        return Ok(());
    }
    let message = format!(
        "broker {leader} holds the partition: ask it if it runs, start it if not; if it will never come back: corelane \
         broker forget {leader}"
    );
    let mut failure = Failure::new(Status::NotHere, message);
    failure.error.broker_id = Some(leader);
    Err(failure)
}

/// A partition without a record may lie on any broker that does not run, and on this one, recorded or not. Returns its
/// topic, and the revision of that.
fn check_unrecorded(
    view: &View,
    hosted: &Hosted,
    topic_id: TopicId,
    partition: u32,
) -> Result<(TopicName, Revision), Failure> {
    let name = view.name_of(topic_id).filter(|name| view.topics[*name].record.partitions > partition);
    let Some(name) = name else {
        return Err(Failure::new(Status::UnknownPartition, "there is no such partition"));
    };
    if let Some(absent) = view.brokers.keys().find(|id| !view.alive.contains_key(id)) {
        let reason = format!(
            "broker {absent} does not run, and may hold the partition: start it, or if it will never come back: corelane \
             broker forget {absent}"
        );
        return Err(invalid_field("partition", reason));
    }
    let served = hosted.get(&topic_id).and_then(|topic| topic.partitions.get(&partition));
    if matches!(served, Some(Served::Serving(_) | Served::Unrecorded(_))) {
        return Err(serves());
    }
    Ok((name.clone(), view.topics[name].revision))
}

fn serves() -> Failure {
    invalid_field("partition", "this broker serves the partition, or is about to: nothing of it is lost")
}

#[cfg(test)]
mod tests {
    use corelane_log::config::TopicConfig;

    use super::super::hosted::HostedTopic;
    use super::*;
    use crate::registry::records::{AliveRecord, BrokerRecord, TopicRecord};
    use crate::registry::view::Versioned;

    const ID: TopicId = TopicId([1; 16]);

    fn name() -> TopicName {
        TopicName::new("views").expect("a name")
    }

    /// A topic with two partitions, and brokers 1 and 2, of which these run.
    fn view(running: &[u32]) -> View {
        let mut view = View::default();
        let record = TopicRecord { topic_id: ID, partitions: 2, config: TopicConfig::default(), copy_of: Vec::new() };
        view.topics.insert(name(), Versioned { record, revision: 7 });
        for id in [1, 2] {
            let (uuid, instance, version) = (format!("u{id}"), format!("i{id}"), "v".to_owned());
            let record = BrokerRecord { uuid, starts: 1, instance, listeners: Vec::new(), shards: 1, version };
            view.brokers.insert(id, record);
        }
        for id in running {
            let (uuid, instance) = (format!("u{id}"), format!("i{id}"));
            let alive = AliveRecord { instance, uuid, incarnation: 3, ..AliveRecord::default() };
            view.alive.insert(*id, alive);
        }
        view
    }

    fn hosted(partition: u32, served: Served) -> Hosted {
        let (name, config, partitions) = (name(), TopicConfig::default(), [(partition, served)].into());
        [(ID, HostedTopic { name, partition_count: 2, config, partitions })].into()
    }

    #[test]
    fn only_what_is_refused_as_lost_is_taken_for_lost() {
        let epoch = Epoch(1);
        assert!(check_lost(&hosted(0, Served::Refused(epoch, "lost".to_owned())), ID, 0).is_ok());
        let others = [
            Served::Serving(epoch),
            Served::Unrecorded(epoch),
            Served::Failed("tried again".to_owned()),
            Served::NoSpace("tried again".to_owned()),
        ];
        for served in others {
            let refused = check_lost(&hosted(0, served.clone()), ID, 0);
            assert_eq!(refused.expect_err("not lost").status, Status::InvalidRequest, "{served:?}");
        }
        assert!(check_lost(&hosted(1, Served::Refused(epoch, "lost".to_owned())), ID, 0).is_err(), "another one");
        assert!(check_lost(&Hosted::new(), ID, 0).is_err(), "it has yet to be tried");
    }

    #[test]
    fn what_a_running_broker_may_hold_is_not_lost() {
        let mut view = view(&[1, 2]);
        assert!(check_held_nowhere(&view, 3).is_ok());
        let untold = check_held_nowhere(&view, 4).expect_err("they have yet to see that it is another registry");
        assert_eq!(untold.status, Status::Busy);
        view.alive.get_mut(&2).expect("it runs").unrecorded = 1;
        let held = check_held_nowhere(&view, 3).expect_err("it may be what broker 2 holds");
        assert!(held.error.message.contains("broker 2") && held.error.message.contains("restore-from"));
    }

    #[test]
    fn what_lies_on_a_broker_that_is_not_forgotten_begins_nowhere_else() {
        for running in [&[1, 2][..], &[1]] {
            let refused = check_forgotten(&view(running), 2).expect_err("it may come back");
            assert_eq!((refused.status, refused.error.broker_id), (Status::NotHere, Some(2)));
        }
        assert!(check_forgotten(&view(&[1]), 3).is_ok());
    }

    #[test]
    fn what_has_no_record_begins_anew_only_when_no_broker_can_hold_it() {
        let check = |running: &[u32], hosted: &Hosted| check_unrecorded(&view(running), hosted, ID, 0);
        assert_eq!(check(&[1, 2], &Hosted::new()).expect("it is lost"), (name(), 7));
        let down = check(&[1], &Hosted::new()).expect_err("broker 2 may hold it");
        assert!(down.error.message.contains("corelane broker forget 2"), "{}", down.error.message);
        for served in [Served::Serving(Epoch(1)), Served::Unrecorded(Epoch(1))] {
            assert!(check(&[1, 2], &hosted(0, served)).is_err(), "it is open here");
        }
        let beyond = check_unrecorded(&view(&[1, 2]), &Hosted::new(), ID, 2).expect_err("there are two");
        assert_eq!(beyond.status, Status::UnknownPartition);
        assert!(check_unrecorded(&view(&[1, 2]), &Hosted::new(), TopicId([9; 16]), 0).is_err());
    }
}
