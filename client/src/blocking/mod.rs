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

use std::time::Duration;

use crate::client::ClientBuilder;
use crate::consumer::{ConsumeError, ConsumedMessage, ConsumerBuilder, ConsumerStats, PartitionPosition, Start};
use crate::error::CallError;
use crate::producer::{
    Delivered, DeliveryError, DeliveryFuture, FlushReport, ProducerBuilder, ProducerStats, Record, SendError,
    TrySendError,
};
use crate::topic::{
    ClusterDescription, CreatedTopic, Find, Found, NewTopic, TopicDescription, TopicId, TopicInfo, TopicSettings,
};

/// A [`crate::Client`] on a thread of its own. The thread ends when the last handle made from the client is gone.
#[derive(Debug, Clone)]
pub struct Client {
    client: crate::Client,
}

impl ClientBuilder {
    /// Connects like [`ClientBuilder::build`], for a program without an async runtime.
    pub fn build_blocking(self) -> Result<Client, CallError> {
        Err(CallError::Closed)
    }
}

impl Client {
    /// Starts to configure a client; finish with [`ClientBuilder::build_blocking`].
    pub fn builder() -> ClientBuilder {
        crate::Client::builder()
    }

    /// Makes a producer; `configure` changes the default settings.
    pub fn producer(&self, configure: impl FnOnce(ProducerBuilder) -> ProducerBuilder) -> Result<Producer, CallError> {
        Ok(Producer { producer: configure(self.client.producer()).build()? })
    }

    /// Makes a consumer; `configure` names the topics.
    pub fn consumer(&self, configure: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder) -> Result<Consumer, CallError> {
        let _ = configure(self.client.consumer());
        Err(CallError::Closed)
    }

    /// The calls that manage topics and look at the cluster.
    pub fn admin(&self) -> Admin {
        Admin { admin: self.client.admin() }
    }
}

/// A [`crate::Producer`] for programs without an async runtime.
#[derive(Debug, Clone)]
pub struct Producer {
    producer: crate::Producer,
}

impl Producer {
    /// Takes a message; waits while the buffer is full. See [`crate::Producer::send`].
    pub fn send(&self, record: &Record<'_>) -> Result<DeliveryFuture, SendError> {
        match self.producer.try_send(record) {
            Ok(delivery) => Ok(delivery),
            Err(TrySendError::Rejected(error)) => Err(error),
            Err(TrySendError::Full | TrySendError::NotReady) => Err(SendError::Closed),
        }
    }

    /// Takes a message if that is possible at once.
    pub fn try_send(&self, record: &Record<'_>) -> Result<DeliveryFuture, TrySendError> {
        self.producer.try_send(record)
    }

    /// Looks a topic up. Returns how many partitions it has.
    pub fn prepare(&self, topic: &str) -> Result<u32, SendError> {
        let _ = topic;
        Err(SendError::Closed)
    }

    /// Waits for a message's fate.
    pub fn wait(&self, delivery: &DeliveryFuture) -> Result<Delivered, DeliveryError> {
        delivery.try_result().unwrap_or(Err(DeliveryError::Closed))
    }

    /// See [`crate::Producer::flush`].
    pub fn flush(&self, timeout: Duration) -> FlushReport {
        let _ = timeout;
        FlushReport::default()
    }

    /// See [`crate::Producer::close`].
    pub fn close(&self, timeout: Duration) -> FlushReport {
        self.flush(timeout)
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
}

impl Consumer {
    /// The next message if one comes within `timeout`; `Ok(None)` when none did. At the end of the stream
    /// `Err(None)`.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<ConsumedMessage>, Option<ConsumeError>> {
        let _ = timeout;
        Err(None)
    }

    /// See [`crate::Consumer::seek`].
    pub fn seek(&mut self, topic: &str, partition: u32, start: Start) -> Result<(), CallError> {
        let _ = (partition, start);
        Err(CallError::UnknownTopic { topic: topic.to_owned() })
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
        None
    }
}

/// An [`crate::Admin`] for programs without an async runtime.
#[derive(Debug, Clone)]
pub struct Admin {
    admin: crate::Admin,
}

macro_rules! blocking_calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Admin {
            $($(#[$doc])*
            pub fn $name(&self, $($arg: $type),*) -> Result<$answer, CallError> {
                let _ = (&self.admin, $($arg),*);
                Err(CallError::Closed)
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
}
