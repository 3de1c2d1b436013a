//! Managing topics and looking at the cluster. Every call ends within the client's time-outs.

mod upkeep;

use corelane_proto::frame::{Method, Status};
use corelane_proto::pb;

use crate::client::Client;
use crate::cluster::Repeat;
use crate::error::CallError;
use crate::topic::{
    BrokerInfo, ClusterDescription, CreatedTopic, Find, Found, NewTopic, PartitionDetail, TopicDescription, TopicId,
    TopicInfo, TopicSettings,
};

/// The calls that manage topics and look at the cluster.
///
/// ```no_run
/// # async fn example(client: corelane_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use corelane_client::{NewTopic, TopicSettings};
/// let topic = NewTopic::named("events")
///     .partitions(8)
///     .settings(TopicSettings::new().retention_bytes(10 << 30))
///     .if_not_exists(true);
/// client.admin().create_topic(topic).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Admin {
    pub(crate) client: Client,
}

impl Admin {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// A refusal with `TOPIC_EXISTS` unless [`NewTopic::if_not_exists`] was asked for and the partition count is the
    /// same.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<CreatedTopic, CallError> {
        // Made a second time after a lost answer, a topic would seem to have existed before.
        let repeat = if topic.if_not_exists { Repeat::Always } else { Repeat::IfNotDone };
        let request = pb::CreateTopicRequest {
            name: topic.name.clone(),
            partitions: topic.partitions,
            config: Some(topic.settings.to_pb()),
            if_not_exists: topic.if_not_exists,
            starts: topic.starts,
            copy_of: topic.copy_of,
        };
        let response: pb::CreateTopicResponse = self.client.cluster.call(Method::CreateTopic, &request, repeat).await?;
        self.client.cluster.forget(&topic.name);
        Ok(CreatedTopic { topic: self.info(response.topic)?, created: response.created })
    }

    /// All topics, by name.
    pub async fn list_topics(&self) -> Result<Vec<TopicInfo>, CallError> {
        let response = self.client.cluster.metadata(&[]).await?;
        let topics = response.topics.into_iter().map(|topic| self.info(Some(topic)));
        let mut topics = topics.collect::<Result<Vec<_>, _>>()?;
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(topics)
    }

    /// All topics as a broker sees them: of its own partitions it knows whether it serves them.
    pub async fn list_topics_of(&self, broker_id: u32) -> Result<Vec<TopicInfo>, CallError> {
        let response = self.client.cluster.metadata_of(broker_id).await?;
        response.topics.into_iter().map(|topic| self.info(Some(topic))).collect()
    }

    /// A topic, and the state of its partitions' logs.
    pub async fn describe_topic(&self, topic: &str) -> Result<TopicDescription, CallError> {
        let request = pb::DescribeTopicRequest { name: topic.to_owned() };
        let response = self.client.cluster.call(Method::DescribeTopic, &request, Repeat::Always).await;
        let response: pb::DescribeTopicResponse = named(topic, response)?;
        let mut details: Vec<_> = response.details.iter().map(PartitionDetail::from_pb).collect();
        let mut topic = self.info(response.topic)?;
        // Each broker knows its own, and whether it serves them.
        details.extend(Box::pin(self.ask_elsewhere(&mut topic, &details)).await);
        details.sort_by_key(|detail| detail.partition);
        Ok(TopicDescription { topic, details })
    }

    /// Changes a topic's settings; those that are `None` stay as they are.
    pub async fn alter_topic(&self, topic: &str, settings: TopicSettings) -> Result<TopicInfo, CallError> {
        let request = pb::AlterTopicRequest { name: topic.to_owned(), config: Some(settings.to_pb()) };
        let response = self.client.cluster.call(Method::AlterTopic, &request, Repeat::Always).await;
        let response: pb::AlterTopicResponse = named(topic, response)?;
        self.client.cluster.forget(topic);
        self.info(response.topic)
    }

    /// Deletes a topic and its data. Returns the id that the topic had.
    pub async fn delete_topic(&self, topic: &str) -> Result<TopicId, CallError> {
        let request = pb::DeleteTopicRequest { name: topic.to_owned(), topic_id: Vec::new() };
        // Sent twice, it could delete a topic that somebody else has created under the name meanwhile.
        let response = self.client.cluster.call(Method::DeleteTopic, &request, Repeat::IfNotDone).await;
        let response: pb::DeleteTopicResponse = named(topic, response)?;
        self.client.cluster.forget(topic);
        TopicId::try_from(&response.topic_id[..]).map_err(|error| self.not_understood(error.to_string()))
    }

    /// Deletes the segments of a partition that lie wholly below a position. Returns the new start, which is the last
    /// segment start at or below the position.
    pub async fn trim(&self, topic: &str, partition: u32, position: u64) -> Result<u64, CallError> {
        let trimmed = self.client.cluster.call_partition(topic, partition, Method::TrimTopic, |places, at| {
            let topic_id = places.topic_id.to_vec();
            pb::TrimTopicRequest { topic_id, partition, epoch: at.epoch, position }
        });
        let response: pb::TrimTopicResponse = named(topic, trimmed.await)?;
        Ok(response.start)
    }

    /// The brokers and what they agree through.
    pub async fn describe_cluster(&self) -> Result<ClusterDescription, CallError> {
        let request = pb::DescribeClusterRequest {};
        let response: pb::DescribeClusterResponse =
            self.client.cluster.call(Method::DescribeCluster, &request, Repeat::Always).await?;
        Ok(ClusterDescription {
            cluster_id: response.cluster_id,
            registry: response.registry,
            brokers: response.brokers.into_iter().map(BrokerInfo::from_pb).collect(),
            topics: response.topics,
            partitions: response.partitions,
        })
    }

    /// Finds a place in a partition.
    ///
    /// ```no_run
    /// # async fn example(client: corelane_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let an_hour_ago = 1_700_000_000_000;
    /// let found = client.admin().find("events", 0, corelane_client::Find::TimeMs(an_hour_ago)).await?;
    /// println!("begins at {}, the visible end is {}", found.position, found.visible_end);
    /// # Ok(()) }
    /// ```
    pub async fn find(&self, topic: &str, partition: u32, find: Find) -> Result<Found, CallError> {
        let found = self.client.cluster.call_partition(topic, partition, Method::FindMessage, |places, at| {
            let (topic_id, target) = (places.topic_id.to_vec(), Some(find.to_pb()));
            pb::FindMessageRequest { topic_id, partition, epoch: at.epoch, target }
        });
        named(topic, found.await).map(Found::from_pb)
    }

    fn info(&self, topic: Option<pb::Topic>) -> Result<TopicInfo, CallError> {
        let info = topic.and_then(TopicInfo::from_pb);
        info.ok_or_else(|| self.not_understood("it has no topic, or a topic without an id".to_owned()))
    }

    fn not_understood(&self, detail: String) -> CallError {
        CallError::Protocol { address: self.client.cluster.settings.bootstrap.join(","), detail }
    }
}

/// `UNKNOWN_TOPIC` with the topic's name.
fn named<T>(topic: &str, result: Result<T, CallError>) -> Result<T, CallError> {
    result.map_err(|error| match error.refusal() {
        Some(refusal) if refusal.status == Status::UnknownTopic => CallError::UnknownTopic { topic: topic.to_owned() },
        _ => error,
    })
}
