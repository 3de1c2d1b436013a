//! The Corelane client: producer, consumer, admin.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use corelane_client::{Client, NewTopic, Record, Start};
//! let client = Client::builder().bootstrap("127.0.0.1:9400").build().await?;
//! client.admin().create_topic(NewTopic::named("events").partitions(4).if_not_exists(true)).await?;
//!
//! let producer = client.producer().build()?;
//! let delivered = producer.send(Record::to("events").key(b"user-1").value(b"hello")).await?.await?;
//!
//! let mut consumer = client.consumer().topic("events").start(Start::Earliest).build().await?;
//! let message = consumer.next().await.expect("a consumer waits for messages")?;
//! assert_eq!(message.position(), delivered.position.unwrap());
//! # Ok(()) }
//! ```
//!
//! Everything is bounded and every call ends: buffers have sizes, calls have time-outs, pauses between attempts grow and
//! are jittered. Errors say whether a retry can help. Positions are numbers that order messages within a partition and
//! an epoch; they are not consecutive.

mod admin;
pub mod blocking;
mod client;
mod cluster;
mod consumer;
mod error;
mod group;
mod net;
mod producer;
mod topic;

pub use admin::Admin;
pub use client::{Client, ClientBuilder};
pub use consumer::{
    ConsumeError, ConsumedMessage, Consumer, ConsumerBuilder, ConsumerStats, Headers, OutOfRange, PartitionPosition,
    Skip, SkipCause, Start,
};
pub use error::{CallError, ConnectCause, ConnectError, Refusal, Status};
pub use group::{
    Fence, GroupConsumer, GroupConsumerBuilder, GroupDescription, GroupError, GroupHandle, GroupMember, GroupMessage,
    GroupPartition, GroupStart, GroupSummary, NewPosition, PartitionOfGroup,
};
pub use producer::{
    Acks, Compression, Delivered, DeliveryError, DeliveryFuture, FlushReport, PartitionChoice, Partitioner, Posting,
    PreparedSet, Producer, ProducerBuilder, ProducerStats, Record, SendError, SetReport, TrySendError, murmur2,
    partition_for_key,
};
pub use topic::{
    AcceptedLoss, BrokerInfo, ClusterDescription, CreatedTopic, Find, ForgottenBroker, Found, NewTopic,
    PartitionDetail, PartitionInfo, PartitionState, TopicDescription, TopicId, TopicInfo, TopicSettings,
};
