//! What an operator says about brokers and data that will not come back: that a broker is forgotten, that a partition's
//! loss is accepted. Never guessed by a broker itself.

use corelane_proto::frame::Status;
use corelane_proto::ids::{Epoch, TopicId};
use corelane_proto::pb;

use super::Control;
use super::hosted::Served;
use crate::messages::Failure;
use crate::registry::membership::{IdentityError, Membership};
use crate::registry::placement::place;
use crate::registry::store::Store;
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
        let place =
            if leader == self.broker_id { self.check_lost(topic_id, partition)? } else { self.elsewhere(leader)? };
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
        let (name, topic) = {
            let view = self.view.borrow();
            let name = view.name_of(topic_id).filter(|name| view.topics[*name].record.partitions > partition);
            let Some(name) = name else {
                return Err(Failure::new(Status::UnknownPartition, "there is no such partition"));
            };
            if let Some(absent) = view.brokers.keys().find(|id| !view.alive.contains_key(id)) {
                let reason = format!(
                    "broker {absent} does not run, and may hold the partition: start it, or if it will never come back: \
                     corelane broker forget {absent}"
                );
                return Err(invalid_field("partition", reason));
            }
            (name.clone(), view.topics[name].revision)
        };
        if self.serving(topic_id, partition) {
            return Err(serves());
        }
        let place = place(1, &self.candidates(1)?)[0];
        let begun = self.topics.begin_lost((&name, topic), topic_id, partition, epoch, place).await?;
        tracing::warn!(%topic_id, partition, %epoch, broker_id = place, "a partition without a record begins anew");
        Ok(pb::AcceptLossResponse { epoch: begun.epoch.0, broker_id: place })
    }

    /// What serves, or has yet to be tried, is not lost.
    fn check_lost(&self, topic_id: TopicId, partition: u32) -> Result<u32, Failure> {
        let hosted = self.hosted.borrow();
        match hosted.get(&topic_id).and_then(|topic| topic.partitions.get(&partition)) {
            Some(Served::Refused(..)) => Ok(self.broker_id),
            _ => Err(serves()),
        }
    }

    /// Whether this broker has the partition open, recorded or not.
    fn serving(&self, topic_id: TopicId, partition: u32) -> bool {
        let hosted = self.hosted.borrow();
        let served = hosted.get(&topic_id).and_then(|topic| topic.partitions.get(&partition));
        matches!(served, Some(Served::Serving(_) | Served::Unrecorded(_)))
    }

    /// A place for a partition whose broker is known to be gone for good.
    fn elsewhere(&self, leader: u32) -> Result<u32, Failure> {
        let is_known = self.view.borrow().brokers.contains_key(&leader);
        if is_known {
            let message = format!(
                "broker {leader} holds the partition: ask it if it runs, start it if not; if it will never come back: \
                 corelane broker forget {leader}"
            );
            let mut failure = Failure::new(Status::NotHere, message);
            failure.error.broker_id = Some(leader);
            return Err(failure);
        }
        let places = place(1, &self.candidates(1)?);
        Ok(places[0])
    }
}

fn serves() -> Failure {
    invalid_field("partition", "this broker serves the partition, or is about to: nothing of it is lost")
}
