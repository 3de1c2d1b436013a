//! Topic calls of clients: checked here, written to the registry, answered once this broker holds what they ask for.

use std::rc::Rc;
use std::sync::Arc;

use corelane_log::config::TopicConfig;
use corelane_proto::frame::{Method, Status};
use corelane_proto::ids::{Position, TopicId, TopicName};
use corelane_proto::pb;

use super::Control;
use super::topic_config::{for_new_topic, merge};
use crate::limits::{
    COPY_STEP_BYTES_MAX, COPY_STEPS_MAX, PLACES_SEEN_MAX, START_MAX, TOPIC_CALL_MAX, TOPIC_PARTITIONS_MAX,
};
use crate::messages::{Answer, Failure, Metadata, PartitionReport, ToControl, ToShard};
use crate::registry::placement::{Candidate, place};
use crate::registry::records::TopicRecord;
use crate::registry::store::{Store, StoreError};
use crate::registry::topics::{NewTopic, TopicError};
use crate::service::invalid_field;

impl From<TopicError> for Failure {
    fn from(error: TopicError) -> Self {
        let status = match &error {
            TopicError::Exists { .. } => Status::TopicExists,
            TopicError::Unknown { .. } | TopicError::OtherTopic { .. } => Status::UnknownTopic,
            TopicError::Busy { .. } | TopicError::Swept => Status::Busy,
            TopicError::Store(StoreError::NoSpace) => Status::NoSpace,
            TopicError::Store(error) if error.is_retryable() => Status::RegistryUnavailable,
            TopicError::Store(StoreError::Failed(_) | StoreError::WentBack) => Status::RegistryUnavailable,
            TopicError::Record { .. } | TopicError::Store(_) => Status::Internal,
        };
        Self::new(status, error.to_string())
    }
}

impl<S: Store> Control<S> {
    /// Answers one message of a shard.
    pub(super) async fn answer(self: Rc<Self>, message: ToControl) {
        match message {
            ToControl::CreateTopic { request, answer } => reply(answer, self.noted(self.create_topic(request))).await,
            ToControl::AlterTopic { request, answer } => reply(answer, self.noted(self.alter_topic(request))).await,
            ToControl::AddPartitions { request, answer } => {
                reply(answer, self.noted(self.add_partitions(request))).await;
            }
            ToControl::AcceptLoss { request, answer } => reply(answer, self.noted(self.accept_loss(request))).await,
            ToControl::ForgetBroker { request, answer } => reply(answer, self.noted(self.forget_broker(request))).await,
            ToControl::DeleteTopic { request, answer } => reply(answer, self.noted(self.delete_topic(request))).await,
            ToControl::DescribeTopic { request, answer } => reply(answer, self.describe_topic(request)).await,
            ToControl::Group { method, proto, host, answer } => {
                reply(answer, self.group_call(method, &proto, &host)).await;
            }
            // Whoever asked may have gone.
            ToControl::DescribeCluster { answer } => drop(answer.send(Ok(self.describe_cluster()))),
        }
    }

    async fn group_call(&self, method: Method, proto: &[u8], host: &str) -> Result<Vec<u8>, Failure> {
        self.check_registry()?;
        self.groups.call(method, proto, host).await
    }

    /// A change that the registry did not take is a reason to ask it how it is.
    async fn noted<T>(&self, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let result = call.await;
        if matches!(&result, Err(failure) if failure.status == Status::RegistryUnavailable) {
            self.refused.notify_one();
        }
        result
    }

    async fn create_topic(&self, request: pb::CreateTopicRequest) -> Result<pb::CreateTopicResponse, Failure> {
        let (name, topic_id, created) = self.write_topic(request).await?;
        let topic = self.wait_topic(&name, topic_id).await?;
        if let Some(reason) = self.no_space_for(topic_id).filter(|_| created) {
            tracing::warn!(topic = %name, %topic_id, reason, "no room for a new topic: it is taken back");
            // Nobody has published to it: its name was not known to be good yet.
            self.topics.delete(&name, Some(topic_id)).await?;
            return Err(Failure::new(Status::NoSpace, format!("the topic was not created: {reason}")));
        }
        Ok(pb::CreateTopicResponse { topic: Some(topic), created })
    }

    /// Writes a topic to the registry, or finds the one that is welcome there: its id, and whether it is new.
    async fn write_topic(&self, request: pb::CreateTopicRequest) -> Result<(TopicName, TopicId, bool), Failure> {
        let _changing = self.changing.lock().await;
        self.check_registry()?;
        let name = topic_name(&request.name)?;
        if !(1..=TOPIC_PARTITIONS_MAX).contains(&request.partitions) {
            return Err(invalid_field("partitions", format!("a topic has 1 to {TOPIC_PARTITIONS_MAX} partitions")));
        }
        let starts = starts(&request)?;
        check_copy_of(&request.copy_of)?;
        let config = for_new_topic(&self.defaults, &request.config.unwrap_or_default());
        config.validate().map_err(|error| invalid_field(error.field, error.to_string()))?;
        if let Some(existing) = self.topics.get(&name).await? {
            let topic_id = existing_topic(&name, request.partitions, request.if_not_exists, &existing.record)?;
            return Ok((name, topic_id, false));
        }
        let places = place(request.partitions, &self.candidates(request.partitions)?);
        let topic_id = TopicId(fastrand::u128(..).to_be_bytes());
        let new = NewTopic { name, topic_id, config, places, starts, copy_of: request.copy_of };
        match self.topics.create(&new).await {
            Ok(_) => {}
            Err(TopicError::Exists { .. }) if request.if_not_exists => {
                let existing = self.topics.get(&new.name).await?;
                let existing =
                    existing.ok_or_else(|| Failure::new(Status::Busy, "the topic comes and goes; try again"))?;
                let topic_id = existing_topic(&new.name, request.partitions, true, &existing.record)?;
                return Ok((new.name, topic_id, false));
            }
            Err(error) => return Err(error.into()),
        }
        tracing::info!(topic = %new.name, %topic_id, partitions = request.partitions, "topic created");
        self.see_places(&new.name, topic_id, request.partitions).await;
        Ok((new.name, topic_id, true))
    }

    /// The brokers that can take so many more partitions between them; each is taken to allow as many as this one.
    pub(super) fn candidates(&self, partitions: u32) -> Result<Vec<Candidate>, Failure> {
        let (view, partitions_max) = (self.view.borrow(), self.config.partitions_max);
        let candidate = |id: &u32| Candidate { broker_id: *id, partitions: view.partitions_on(*id), partitions_max };
        let candidates: Vec<Candidate> = view.alive.keys().map(candidate).collect();
        let room: u64 = candidates.iter().map(|candidate| u64::from(candidate.room())).sum();
        let message = match &candidates[..] {
            [] => {
                let message = "no broker is known to run; try again after a pause";
                return Err(Failure::new(Status::RegistryUnavailable, message));
            }
            _ if u64::from(partitions) <= room => return Ok(candidates),
            [Candidate { partitions: here, .. }] => {
                format!(
                    "this broker has {here} partitions and takes {partitions_max} at most; raise its partitions_max"
                )
            }
            _ => format!(
                "the brokers that run have room for {room} more partitions, each taking {partitions_max} at most; \
                 raise their partitions_max, or start another broker"
            ),
        };
        Err(invalid_field("partitions", message))
    }

    async fn alter_topic(&self, request: pb::AlterTopicRequest) -> Result<pb::AlterTopicResponse, Failure> {
        let name = topic_name(&request.name)?;
        let change = request.config.unwrap_or_default();
        let altered = {
            let _changing = self.changing.lock().await;
            self.check_registry()?;
            let change = |config: &TopicConfig| {
                let changed = merge(config, &change);
                changed.validate().map_err(|error| invalid_field(error.field, error.to_string()))?;
                Ok::<_, Failure>(changed)
            };
            self.topics.alter(&name, change).await?
        };
        let topic_id = altered.record.topic_id;
        tracing::info!(topic = %name, %topic_id, "topic altered");
        // Or a later change, which another client has made meanwhile. The shards have it once this broker holds it.
        let is_in_force = |metadata: &Metadata| {
            let told = metadata.by_id.get(&topic_id)?;
            let (view, hosted) = (self.view.borrow(), self.hosted.borrow());
            let known = view.topics.get(&name).filter(|known| known.revision >= altered.revision)?;
            let config = &known.record.config;
            let is_held = hosted.get(&topic_id).is_none_or(|held| held.config == *config);
            (is_held && told.config == Some(super::topic_config::to_pb(config))).then_some(())
        };
        self.wait_in_force(&name, topic_id, is_in_force).await?;
        let topic = self.wait_topic(&name, topic_id).await?;
        Ok(pb::AlterTopicResponse { topic: Some(topic) })
    }

    /// The count that is asked for is the one that there shall be, so that a request whose answer was lost may be repeated.
    async fn add_partitions(&self, request: pb::AddPartitionsRequest) -> Result<pb::AddPartitionsResponse, Failure> {
        let name = topic_name(&request.name)?;
        if !(1..=TOPIC_PARTITIONS_MAX).contains(&request.partitions) {
            return Err(invalid_field("partitions", format!("a topic has 1 to {TOPIC_PARTITIONS_MAX} partitions")));
        }
        let topic_id = self.write_partitions(&name, request.partitions).await?;
        let is_there = |metadata: &Metadata| {
            let topic = metadata.by_id.get(&topic_id)?;
            (topic.partitions.len() >= request.partitions as usize).then_some(())
        };
        self.wait_in_force(&name, topic_id, is_there).await?;
        let topic = self.wait_topic(&name, topic_id).await?;
        Ok(pb::AddPartitionsResponse { topic: Some(topic) })
    }

    /// Writes the partitions that are missing to the registry.
    async fn write_partitions(&self, name: &TopicName, partitions: u32) -> Result<TopicId, Failure> {
        let _changing = self.changing.lock().await;
        self.check_registry()?;
        let old = self.topics.get(name).await?.ok_or(TopicError::Unknown { name: name.clone() })?;
        let (topic_id, count) = (old.record.topic_id, old.record.partitions);
        if partitions < count {
            let message = format!("topic {name} has {count} partitions; there is no way to have fewer");
            return Err(invalid_field("partitions", message));
        }
        if partitions > count {
            let more = partitions - count;
            let places = place(more, &self.candidates(more)?);
            self.topics.add_partitions(name, &old, &places).await?;
            tracing::info!(topic = %name, %topic_id, partitions, "partitions added");
            self.see_places(name, topic_id, partitions).await;
        }
        Ok(topic_id)
    }

    async fn delete_topic(&self, request: pb::DeleteTopicRequest) -> Result<pb::DeleteTopicResponse, Failure> {
        let name = topic_name(&request.name)?;
        let expected = match request.topic_id.as_slice() {
            [] => None,
            id => Some(TopicId::try_from(id).map_err(|error| invalid_field("topic_id", error.to_string()))?),
        };
        let topic_id = {
            let _changing = self.changing.lock().await;
            self.check_registry()?;
            self.topics.delete(&name, expected).await?
        };
        // It is deleted, whether or not this broker is quick to let go of it.
        let _ = self
            .wait_for(async |metadata| {
                let is_gone = !metadata.by_id.contains_key(&topic_id) && !self.hosted.borrow().contains_key(&topic_id);
                is_gone.then_some(())
            })
            .await;
        Ok(pb::DeleteTopicResponse { topic_id: topic_id.to_vec() })
    }

    async fn describe_topic(&self, request: pb::DescribeTopicRequest) -> Result<pb::DescribeTopicResponse, Failure> {
        let name = topic_name(&request.name)?;
        let topic = self.metadata.borrow().topics.get(name.as_str()).cloned();
        let mut topic = pb::Topic::clone(&*topic.ok_or(TopicError::Unknown { name })?);
        let topic_id = TopicId::try_from(topic.topic_id.as_slice()).expect("metadata has whole ids");
        let mut reports: Vec<PartitionReport> =
            self.ask_shards(|answer| ToShard::Describe { topic_id, answer }).await.into_iter().flatten().collect();
        reports.sort_by_key(|report| report.partition);
        for report in &reports {
            let Some(partition) = topic.partitions.get_mut(report.partition as usize) else { continue };
            if let Some(reason) = &report.closed {
                partition.set_state(pb::PartitionState::ClosedForWrites);
                partition.reason.clone_from(reason);
            }
        }
        let details = reports.into_iter().map(|report| report.detail).collect();
        Ok(pb::DescribeTopicResponse { topic: Some(topic), details })
    }

    fn describe_cluster(&self) -> pb::DescribeClusterResponse {
        let metadata = self.metadata.borrow();
        pb::DescribeClusterResponse {
            cluster_id: metadata.cluster_id.clone(),
            registry: metadata.registry.to_owned(),
            brokers: metadata.brokers.clone(),
            topics: metadata.topics.len() as u32,
            partitions: metadata.topics.values().map(|topic| topic.partitions.len() as u32).sum(),
        }
    }

    /// The topic as clients are told it, once each of its partitions is served or refused, or its broker is down.
    async fn wait_topic(&self, name: &TopicName, topic_id: TopicId) -> Result<pb::Topic, Failure> {
        let is_served = |metadata: &Metadata| {
            let topic = metadata.topics.get(name.as_str()).filter(|topic| topic.topic_id == topic_id.0)?;
            // Elsewhere too: until its broker has made it, whoever publishes to it would be refused.
            let is_opening = topic.partitions.iter().any(|p| p.state() == pb::PartitionState::Opening);
            (!is_opening).then(|| pb::Topic::clone(topic))
        };
        self.wait_in_force(name, topic_id, is_served).await
    }

    /// Waits, with `changing` held, until this broker has seen where the topic's partitions are to lie: those that are placed
    /// next count them. Not for long, and not until they serve, which is other brokers' business.
    async fn see_places(&self, name: &TopicName, topic_id: TopicId, partitions: u32) {
        let are_seen = |_: &Metadata| {
            let view = self.view.borrow();
            let topic = view.topics.get(name).filter(|topic| topic.record.topic_id == topic_id)?;
            (view.partitions_of(&topic.record).count() >= partitions as usize).then_some(())
        };
        let _ = tokio::time::timeout(PLACES_SEEN_MAX, self.wait_in_force(name, topic_id, are_seen)).await;
    }

    /// Waits until a topic that is in the registry is as wanted here; not for one that was deleted meanwhile, which it would
    /// never be.
    async fn wait_in_force<T>(
        &self,
        name: &TopicName,
        topic_id: TopicId,
        wanted: impl Fn(&Metadata) -> Option<T>,
    ) -> Result<T, Failure> {
        let wanted = async |metadata: &Metadata| match wanted(metadata) {
            Some(found) => Some(Ok(found)),
            None if self.is_deleted(name, topic_id).await => {
                let message = format!("topic {name} was deleted while this call waited for it to be served");
                Some(Err(Failure::new(Status::UnknownTopic, message)))
            }
            None => None,
        };
        self.wait_for(wanted).await?
    }

    /// Whether the registry has the topic no more. It is asked only about one that this broker does not see: seen too early,
    /// or deleted.
    async fn is_deleted(&self, name: &TopicName, topic_id: TopicId) -> bool {
        if self.view.borrow().topics.get(name).is_some_and(|topic| topic.record.topic_id == topic_id) {
            return false;
        }
        let found = self.topics.get(name).await;
        found.is_ok_and(|found| found.is_none_or(|topic| topic.record.topic_id != topic_id))
    }

    /// Waits until what clients are told is as wanted.
    async fn wait_for<T>(&self, wanted: impl AsyncFn(&Metadata) -> Option<T>) -> Result<T, Failure> {
        let mut metadata = self.metadata.subscribe();
        let found = async {
            loop {
                let now = Arc::clone(&metadata.borrow_and_update());
                if let Some(found) = wanted(&now).await {
                    return Some(found);
                }
                metadata.changed().await.ok()?;
            }
        };
        tokio::time::timeout(TOPIC_CALL_MAX, found).await.ok().flatten().ok_or_else(|| {
            let message = "written to the registry, but not in force in time; look at the topic again after a pause";
            Failure::new(Status::RegistryUnavailable, message)
        })
    }
}

/// The id of a topic that is there, if whoever wanted to create it is content with it.
fn existing_topic(
    name: &TopicName,
    partitions: u32,
    is_welcome: bool,
    existing: &TopicRecord,
) -> Result<TopicId, Failure> {
    if !is_welcome || existing.partitions != partitions {
        let message = format!("a topic named {name} exists, with {} partitions", existing.partitions);
        return Err(Failure::new(Status::TopicExists, message));
    }
    Ok(existing.topic_id)
}

async fn reply<T>(answer: Answer<Result<T, Failure>>, call: impl Future<Output = Result<T, Failure>>) {
    // Whoever asked may have gone; a change goes on all the same.
    let _ = answer.send(call.await);
}

/// Where the logs of a new topic begin: said for every partition or for none.
fn starts(request: &pb::CreateTopicRequest) -> Result<Vec<Position>, Failure> {
    let starts = &request.starts;
    if !starts.is_empty() && starts.len() != request.partitions as usize {
        let reason =
            format!("{} starts for {} partitions; name one for each, or none", starts.len(), request.partitions);
        return Err(invalid_field("starts", reason));
    }
    match starts.iter().find(|start| **start > START_MAX) {
        Some(start) => Err(invalid_field("starts", format!("a log cannot begin at {start}, at {START_MAX} at most"))),
        None => Ok(starts.iter().copied().map(Position).collect()),
    }
}

/// What a topic is a copy of is kept as it was said, so it is short: every broker holds it in memory.
fn check_copy_of(copy_of: &[String]) -> Result<(), Failure> {
    if copy_of.len() > COPY_STEPS_MAX {
        let reason = format!("{} steps of copies; there can be {COPY_STEPS_MAX}", copy_of.len());
        return Err(invalid_field("copy_of", reason));
    }
    let is_readable = |step: &String| {
        (1..=COPY_STEP_BYTES_MAX).contains(&step.len()) && step.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if copy_of.iter().all(is_readable) {
        return Ok(());
    }
    let reason = format!("a step has 1 to {COPY_STEP_BYTES_MAX} characters that can be printed, no spaces");
    Err(invalid_field("copy_of", reason))
}

fn topic_name(name: &str) -> Result<TopicName, Failure> {
    TopicName::new(name).map_err(|error| invalid_field("name", error.to_string()))
}
