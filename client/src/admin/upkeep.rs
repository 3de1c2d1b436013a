//! What an operator of a cluster asks for: more partitions, a loss that is accepted, a broker that is forgotten.

use std::time::Instant;

use corelane_proto::frame::Method;
use corelane_proto::pb;

use super::{Admin, named};
use crate::cluster::Repeat;
use crate::error::CallError;
use crate::topic::{AcceptedLoss, ForgottenBroker, PartitionDetail, TopicInfo};

impl Admin {
    /// Adds partitions to a topic until it has so many. Keys go to other partitions from then on.
    ///
    /// # Errors
    /// A refusal with `INVALID_REQUEST` when the topic has more already.
    pub async fn add_partitions(&self, topic: &str, partitions: u32) -> Result<TopicInfo, CallError> {
        let request = pb::AddPartitionsRequest { name: topic.to_owned(), partitions };
        let response = self.client.cluster.call(Method::AddPartitions, &request, Repeat::Always).await;
        let response: pb::AddPartitionsResponse = named(topic, response)?;
        self.client.cluster.forget(topic);
        self.info(response.topic)
    }

    /// Gives up what a partition held, so that its log begins anew: on the broker that refuses it as lost, or, if that was
    /// forgotten, on another one.
    ///
    /// # Errors
    /// A refusal with `INVALID_REQUEST` when nothing of the partition is lost, with `NOT_HERE` when the broker that holds
    /// it is down and was not forgotten.
    pub async fn accept_loss(&self, topic: &str, partition: u32) -> Result<AcceptedLoss, CallError> {
        let places = self.client.cluster.topic(topic).await?;
        let at = places.partition(partition)?;
        let (epoch, broker_id) = (at.epoch, at.place.broker_id);
        let request = pb::AcceptLossRequest { topic_id: places.topic_id.to_vec(), partition, epoch };
        let is_up =
            self.describe_cluster().await?.brokers.iter().any(|broker| broker.broker_id == broker_id && broker.alive);
        // Asked a second time after a lost answer, it is told that the epoch is another one by now.
        let response = if is_up {
            self.client.cluster.call_broker(broker_id, Method::AcceptLoss, &request).await
        } else {
            self.client.cluster.call(Method::AcceptLoss, &request, Repeat::IfNotDone).await
        };
        let response: pb::AcceptLossResponse = named(topic, response)?;
        self.client.cluster.forget(topic);
        Ok(AcceptedLoss { epoch: response.epoch, broker_id: response.broker_id })
    }

    /// Forgets a broker that will never come back: its number is free, deleted topics no longer wait for it, and the loss of
    /// its partitions can be accepted.
    ///
    /// # Errors
    /// A refusal with `INVALID_REQUEST` when the broker runs.
    pub async fn forget_broker(&self, broker_id: u32) -> Result<ForgottenBroker, CallError> {
        let request = pb::ForgetBrokerRequest { broker_id };
        let response: pb::ForgetBrokerResponse =
            self.client.cluster.call(Method::ForgetBroker, &request, Repeat::Always).await?;
        let pb::ForgetBrokerResponse { was_known, tombstones, partitions } = response;
        Ok(ForgottenBroker { was_known, tombstones, partitions })
    }

    /// What the other brokers know of the partitions that they hold; nothing of those that do not answer.
    pub(super) async fn ask_elsewhere(&self, topic: &mut TopicInfo, known: &[PartitionDetail]) -> Vec<PartitionDetail> {
        let is_known = |partition: u32| known.iter().any(|detail| detail.partition == partition);
        let missing = topic.partitions.iter().filter(|partition| !is_known(partition.partition));
        let mut brokers: Vec<u32> = missing.map(|partition| partition.broker_id).collect();
        brokers.sort_unstable();
        brokers.dedup();
        let mut details = Vec::new();
        if brokers.is_empty() {
            return details;
        }
        // Where the brokers are.
        let _ = self.client.cluster.refresh(std::slice::from_ref(&topic.name), Instant::now()).await;
        for broker_id in brokers {
            let request = pb::DescribeTopicRequest { name: topic.name.clone() };
            let answer: Result<pb::DescribeTopicResponse, _> =
                self.client.cluster.call_broker(broker_id, Method::DescribeTopic, &request).await;
            let Ok(answer) = answer else { continue };
            let found = answer.details.iter().filter(|detail| !is_known(detail.partition));
            details.extend(found.map(PartitionDetail::from_pb));
            let Some(as_seen_there) = answer.topic.and_then(TopicInfo::from_pb) else { continue };
            for (partition, seen) in topic.partitions.iter_mut().zip(as_seen_there.partitions) {
                if partition.broker_id == broker_id && seen.broker_id == broker_id {
                    *partition = seen;
                }
            }
        }
        details
    }
}
