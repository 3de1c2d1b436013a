//! The settings of a producer.

use std::sync::Arc;
use std::time::Duration;

use super::partitioner::Partitioner;
use super::shared::Shared;
use super::{Acks, Compression, Handle, Producer, SetReport, keeper};
use crate::client::Client;
use crate::error::CallError;

/// What is called when a set ended.
pub(crate) type OnSet = Arc<dyn Fn(&SetReport) + Send + Sync>;

/// Configures a [`Producer`].
#[derive(Clone)]
pub struct ProducerBuilder {
    client: Client,
    settings: ProducerSettings,
}

#[derive(Clone)]
pub(crate) struct ProducerSettings {
    pub(crate) acks: Acks,
    pub(crate) batch_bytes: usize,
    pub(crate) batch_messages_max: u32,
    pub(crate) linger: Duration,
    pub(crate) in_flight_max: usize,
    pub(crate) buffer_bytes: usize,
    pub(crate) delivery_timeout: Duration,
    pub(crate) compression: Compression,
    pub(crate) partitioner: Partitioner,
    pub(crate) on_set: Option<OnSet>,
}

impl std::fmt::Debug for ProducerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProducerBuilder").finish_non_exhaustive()
    }
}

impl ProducerBuilder {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            settings: ProducerSettings {
                acks: Acks::Durable,
                batch_bytes: 128 << 10,
                batch_messages_max: u32::MAX,
                linger: Duration::from_millis(1),
                in_flight_max: 32,
                buffer_bytes: 32 << 20,
                delivery_timeout: Duration::from_secs(30),
                compression: Compression::None,
                partitioner: Partitioner::default(),
                on_set: None,
            },
        }
    }

    /// When the broker acknowledges (default [`Acks::Durable`]).
    pub fn acks(mut self, acks: Acks) -> Self {
        self.settings.acks = acks;
        self
    }

    /// A set is sent when the next message would make it larger (default 128 KiB; a topic's limits may be lower). A
    /// message that is larger by itself gets a set of its own.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.settings.batch_bytes = bytes;
        self
    }

    /// A set is sent when it has so many messages (default: no such limit).
    pub fn batch_messages_max(mut self, messages: u32) -> Self {
        self.settings.batch_messages_max = messages;
        self
    }

    /// How long a set waits for more messages (default 1 ms). With zero it is sent as soon as there is room in the
    /// window of requests.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// How many sets may be under way to one partition (default 32). Order is kept all the same.
    pub fn in_flight_max(mut self, sets: usize) -> Self {
        self.settings.in_flight_max = sets;
        self
    }

    /// How many bytes may wait to be sent or acknowledged (default 32 MiB). When they do, [`Producer::send`] waits and
    /// [`Producer::try_send`] says so.
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.settings.buffer_bytes = bytes;
        self
    }

    /// How long the producer goes on trying to deliver a message (default 30 s), counted from when it was handed over.
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.settings.delivery_timeout = timeout;
        self
    }

    /// How sets are compressed (default: not at all).
    pub fn compression(mut self, compression: Compression) -> Self {
        self.settings.compression = compression;
        self
    }

    /// How partitions are chosen (default [`Partitioner::ByKey`]).
    pub fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.settings.partitioner = partitioner;
        self
    }

    /// Calls a function whenever a set was acknowledged or has failed. It runs on the producer's task: it must be quick.
    /// Cheaper than awaiting the delivery of each message.
    pub fn on_set(mut self, call: impl Fn(&SetReport) + Send + Sync + 'static) -> Self {
        self.settings.on_set = Some(Arc::new(call));
        self
    }

    /// Makes the producer. Connections are made when they are needed.
    ///
    /// # Errors
    /// [`CallError::Invalid`] when a setting makes no sense.
    pub fn build(self) -> Result<Producer, CallError> {
        self.build_on(&tokio::runtime::Handle::current())
    }

    pub(crate) fn build_on(self, runtime: &tokio::runtime::Handle) -> Result<Producer, CallError> {
        self.check()?;
        let shared = Arc::new(Shared::new(self.client.cluster.clone(), self.settings, runtime.clone()));
        runtime.spawn(keeper::run(Arc::downgrade(&shared)));
        Ok(Producer { handle: Arc::new(Handle { shared }) })
    }

    fn check(&self) -> Result<(), CallError> {
        let settings = &self.settings;
        let invalid = |field, reason: &str| Err(CallError::Invalid { field, reason: reason.to_owned() });
        if settings.batch_bytes == 0 || settings.batch_messages_max == 0 {
            return invalid("batch", "a set has at least one message");
        }
        if settings.in_flight_max == 0 {
            return invalid("in_flight_max", "at least one set must be under way");
        }
        if settings.buffer_bytes == 0 {
            return invalid("buffer_bytes", "must be above 0");
        }
        if settings.delivery_timeout.is_zero() {
            return invalid("delivery_timeout", "must be longer than zero");
        }
        if let Some(codec) = settings.compression.codec()
            && !codec.is_enabled()
        {
            return invalid("compression", &format!("{codec} is not built in: enable the feature {codec:?}"));
        }
        Ok(())
    }
}
