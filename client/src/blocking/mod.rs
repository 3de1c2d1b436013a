//! The same client for programs without an async runtime: one thread of its own runs the connections, calls block the
//! caller. Sending and iterating touch that thread only once per batch.
//!
//! ```no_run
//! use corelane_client::{Record, blocking::Client};
//! use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder().bootstrap("127.0.0.1:9400").build_blocking()?;
//! let producer = client.producer(|settings| settings)?;
//! producer.send(&Record::to("lines").value(b"hello"))?;
//! assert!(producer.close(Duration::from_secs(10)).is_complete());
//! for message in client.consumer(|settings| settings.topic("lines").until_end(true))? {
//!     println!("{:?}", message?.value());
//! }
//! # Ok(()) }
//! ```

mod runtime;

use std::sync::Arc;
use std::time::Duration;

use crate::client::ClientBuilder;
use crate::consumer::{ConsumeError, ConsumedMessage, ConsumerBuilder, ConsumerStats, PartitionPosition, Start};
use crate::error::CallError;
use crate::group::{
    GroupConsumerBuilder, GroupDescription, GroupError, GroupMessage, GroupPartition, GroupSummary, NewPosition,
};
use crate::producer::{
    Delivered, DeliveryError, DeliveryFuture, FlushReport, PreparedSet, ProducerBuilder, ProducerStats, Record,
    SendError, TrySendError,
};
use crate::topic::{
    ClusterDescription, CreatedTopic, Find, Found, NewTopic, TopicDescription, TopicId, TopicInfo, TopicSettings,
};
use runtime::Runtime;

/// A [`crate::Client`] on a thread of its own. The thread ends when the last handle made from the client is gone.
/// Calls must not be made from inside an async runtime; they would block it.
#[derive(Debug, Clone)]
pub struct Client {
    client: crate::Client,
    runtime: Arc<Runtime>,
}

impl ClientBuilder {
    /// Connects like [`ClientBuilder::build`], for a program without an async runtime.
    pub fn build_blocking(self) -> Result<Client, CallError> {
        let runtime = Arc::new(Runtime::start().map_err(|error| CallError::Invalid {
            field: "blocking",
            reason: format!("its thread cannot be started: {error}"),
        })?);
        let client = runtime.block_on(self.build())?;
        Ok(Client { client, runtime })
    }
}

impl Client {
    /// Starts to configure a client; finish with [`ClientBuilder::build_blocking`].
    pub fn builder() -> ClientBuilder {
        crate::Client::builder()
    }

    /// Makes a producer; `configure` changes the default settings.
    pub fn producer(&self, configure: impl FnOnce(ProducerBuilder) -> ProducerBuilder) -> Result<Producer, CallError> {
        let producer = configure(self.client.producer()).build_on(self.runtime.handle())?;
        Ok(Producer { producer, runtime: self.runtime.clone() })
    }

    /// Makes a consumer; `configure` names the topics.
    pub fn consumer(&self, configure: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder) -> Result<Consumer, CallError> {
        let consumer = self.runtime.block_on(configure(self.client.consumer()).build())?.on_a_thread_of_its_own();
        Ok(Consumer { consumer, runtime: self.runtime.clone() })
    }

    /// Makes a member of a group of consumers; `configure` names the topics.
    pub fn group(
        &self,
        group: &str,
        configure: impl FnOnce(GroupConsumerBuilder) -> GroupConsumerBuilder,
    ) -> Result<GroupConsumer, CallError> {
        let consumer = configure(self.client.group(group)).build_on(self.runtime.handle())?.on_a_thread_of_its_own();
        Ok(GroupConsumer { consumer, runtime: self.runtime.clone() })
    }

    /// The calls that manage topics and groups, and look at the cluster.
    pub fn admin(&self) -> Admin {
        Admin { admin: self.client.admin(), runtime: self.runtime.clone() }
    }
}

/// A [`crate::Producer`] for programs without an async runtime.
#[derive(Debug, Clone)]
pub struct Producer {
    producer: crate::Producer,
    runtime: Arc<Runtime>,
}

impl Producer {
    /// Takes a message; waits while the buffer is full. See [`crate::Producer::send`].
    pub fn send(&self, record: &Record<'_>) -> Result<DeliveryFuture, SendError> {
        match self.producer.try_send(record) {
            Ok(delivery) => Ok(delivery),
            Err(TrySendError::Rejected(error)) => Err(error),
            Err(TrySendError::Full | TrySendError::NotReady) => {
                self.runtime.block_on(self.producer.send(record.clone()))
            }
        }
    }

    /// Takes a whole set; waits while the buffer is full. See [`crate::Producer::send_set`].
    pub fn send_set(&self, set: PreparedSet) -> Result<DeliveryFuture, SendError> {
        self.runtime.block_on(self.producer.send_set(set))
    }

    /// Takes a message if that is possible at once.
    pub fn try_send(&self, record: &Record<'_>) -> Result<DeliveryFuture, TrySendError> {
        self.producer.try_send(record)
    }

    /// Looks a topic up. Returns how many partitions it has.
    pub fn prepare(&self, topic: &str) -> Result<u32, SendError> {
        self.runtime.block_on(self.producer.prepare(topic))
    }

    /// Waits for a message's fate.
    pub fn wait(&self, delivery: DeliveryFuture) -> Result<Delivered, DeliveryError> {
        match delivery.try_result() {
            Some(result) => result,
            None => self.runtime.block_on(delivery),
        }
    }

    /// See [`crate::Producer::flush`].
    pub fn flush(&self, timeout: Duration) -> FlushReport {
        self.runtime.block_on(self.producer.flush(timeout))
    }

    /// See [`crate::Producer::close`].
    pub fn close(&self, timeout: Duration) -> FlushReport {
        self.runtime.block_on(self.producer.close(timeout))
    }

    /// Counters.
    pub fn stats(&self) -> ProducerStats {
        self.producer.stats()
    }
}

/// A [`crate::Consumer`] for programs without an async runtime: an iterator that blocks while there is nothing.
#[derive(Debug)]
pub struct Consumer {
    consumer: crate::Consumer,
    runtime: Arc<Runtime>,
}

impl Consumer {
    /// The next message if one comes within `timeout`; `Ok(None)`: none did, or the stream has ended.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<ConsumedMessage>, ConsumeError> {
        if let Some(next) = self.consumer.next_ready() {
            return next.map(Some);
        }
        let consumer = &mut self.consumer;
        match self.runtime.block_on(async { tokio::time::timeout(timeout, consumer.next()).await }) {
            Ok(next) => next.transpose(),
            Err(_) => Ok(None),
        }
    }

    /// See [`crate::Consumer::seek`].
    pub fn seek(&mut self, topic: &str, partition: u32, start: Start) -> Result<(), CallError> {
        self.runtime.block_on(self.consumer.seek(topic, partition, start))
    }

    /// Where each partition's stream stands.
    pub fn positions(&self) -> Vec<PartitionPosition> {
        self.consumer.positions()
    }

    /// Counters.
    pub fn stats(&self) -> ConsumerStats {
        self.consumer.stats()
    }
}

impl Iterator for Consumer {
    type Item = Result<ConsumedMessage, ConsumeError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.consumer.next_ready() {
            Some(next) => Some(next),
            None => self.runtime.block_on(self.consumer.next()),
        }
    }
}

/// A [`crate::GroupConsumer`] for programs without an async runtime: an iterator that blocks while there is nothing.
#[derive(Debug)]
pub struct GroupConsumer {
    consumer: crate::GroupConsumer,
    runtime: Arc<Runtime>,
}

impl GroupConsumer {
    /// The next message if one comes within `timeout`; `Ok(None)`: none did, or the stream has ended.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<GroupMessage>, GroupError> {
        if let Some(next) = self.consumer.next_ready() {
            return next.map(Some);
        }
        let consumer = &mut self.consumer;
        match self.runtime.block_on(async { tokio::time::timeout(timeout, consumer.next()).await }) {
            Ok(next) => next.transpose(),
            Err(_) => Ok(None),
        }
    }

    /// See [`crate::GroupConsumer::commit`].
    pub fn commit(&mut self) -> Result<(), GroupError> {
        self.runtime.block_on(self.consumer.commit())
    }

    /// See [`crate::GroupConsumer::commit_through`].
    pub fn commit_through(&self, message: &GroupMessage) -> Result<(), GroupError> {
        self.runtime.block_on(self.consumer.commit_through(message))
    }

    /// See [`crate::GroupConsumer::rewind`].
    pub fn rewind(&mut self, topic: &str, partition: u32, start: Start) -> Result<(), GroupError> {
        self.runtime.block_on(self.consumer.rewind(topic, partition, start))
    }

    /// The partitions that this member owns at the moment.
    pub fn assignment(&self) -> Vec<GroupPartition> {
        self.consumer.assignment()
    }

    /// See [`crate::GroupConsumer::close`].
    pub fn close(self) -> Result<(), GroupError> {
        self.runtime.block_on(self.consumer.close())
    }
}

impl Iterator for GroupConsumer {
    type Item = Result<GroupMessage, GroupError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.consumer.next_ready() {
            Some(next) => Some(next),
            None => self.runtime.block_on(self.consumer.next()),
        }
    }
}

/// An [`crate::Admin`] for programs without an async runtime.
#[derive(Debug, Clone)]
pub struct Admin {
    admin: crate::Admin,
    runtime: Arc<Runtime>,
}

macro_rules! blocking_calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Admin {
            $($(#[$doc])*
            pub fn $name(&self, $($arg: $type),*) -> Result<$answer, CallError> {
                self.runtime.block_on(self.admin.$name($($arg),*))
            })*
        }
    };
}

blocking_calls! {
    /// See [`crate::Admin::create_topic`].
    create_topic(topic: NewTopic) -> CreatedTopic;
    /// See [`crate::Admin::list_topics`].
    list_topics() -> Vec<TopicInfo>;
    /// See [`crate::Admin::describe_topic`].
    describe_topic(topic: &str) -> TopicDescription;
    /// See [`crate::Admin::alter_topic`].
    alter_topic(topic: &str, settings: TopicSettings) -> TopicInfo;
    /// See [`crate::Admin::delete_topic`].
    delete_topic(topic: &str) -> TopicId;
    /// See [`crate::Admin::trim`].
    trim(topic: &str, partition: u32, position: u64) -> u64;
    /// See [`crate::Admin::describe_cluster`].
    describe_cluster() -> ClusterDescription;
    /// See [`crate::Admin::find`].
    find(topic: &str, partition: u32, find: Find) -> Found;
    /// See [`crate::Admin::list_groups`].
    list_groups() -> Vec<GroupSummary>;
    /// See [`crate::Admin::describe_group`].
    describe_group(group: &str) -> GroupDescription;
    /// See [`crate::Admin::reset_group`].
    reset_group(group: &str, positions: &[NewPosition]) -> ();
    /// See [`crate::Admin::delete_group`].
    delete_group(group: &str) -> ();
}
