//! A consumer whose partitions come and go while it runs: what a group's member reads through. It knows nothing of
//! groups; which partitions are read, and from where, is told from outside.

use std::sync::Arc;
use std::task::{Context, Poll};

use corelane_proto::ids::TopicId;

use super::builder::ConsumerSettings;
use super::finder::{self, BeginError};
use super::message::{ConsumedMessage, Source};
use super::piece;
use super::shared::{Added, Shared};
use super::{ConsumeError, Consumer, OutOfRange, Start};
use crate::client::Client;
use crate::cluster::Cluster;
use crate::error::CallError;
use crate::topic::Found;

/// One stream of a partition; the next time the partition is read it is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamId {
    pub(crate) index: usize,
    generation: u64,
}

/// A message, and which stream it came from.
pub(crate) struct Delivered {
    pub(crate) stream: StreamId,
    pub(crate) epoch: u32,
    pub(crate) message: ConsumedMessage,
}

/// Where a stream shall begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beginning {
    from: piece::From,
    pub(crate) bounds: Found,
}

impl Beginning {
    pub(crate) fn position(&self) -> u64 {
        self.from.position
    }
}

/// Finds where a stream begins; a position that is not retained is an error.
pub(crate) async fn find_beginning(
    cluster: &Cluster,
    topic: &str,
    partition: u32,
    start: Start,
) -> Result<Beginning, NoBeginning> {
    match finder::begin(cluster, topic, partition, start, OutOfRange::Fail).await {
        Ok((from, bounds)) => Ok(Beginning { from, bounds }),
        Err(BeginError::Call(error)) => Err(NoBeginning::Call(error)),
        Err(BeginError::OutOfRange { bounds, .. }) => Err(NoBeginning::OutOfRange(bounds)),
    }
}

/// Why a stream cannot begin where it should.
#[derive(Debug)]
pub(crate) enum NoBeginning {
    Call(CallError),
    OutOfRange(Found),
}

/// The program's end.
pub(crate) struct Reader {
    consumer: Consumer,
}

/// The other end: says what is read.
#[derive(Clone)]
pub(crate) struct Streams {
    shared: Arc<Shared>,
}

impl Reader {
    pub(crate) fn new(client: Client, settings: ConsumerSettings, runtime: tokio::runtime::Handle) -> Self {
        let shared = Shared::new(client.cluster.clone(), settings, runtime);
        let mut consumer = Consumer::of(client, shared);
        consumer.ends = false;
        Self { consumer }
    }

    pub(crate) fn streams(&self) -> Streams {
        Streams { shared: self.consumer.shared.clone() }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Delivered, ConsumeError>> {
        self.consumer.poll_message(cx).map(|next| {
            let next = next.expect("a consumer of partitions that come and go does not end");
            self.delivered(next)
        })
    }

    /// What is here already; never waits.
    pub(crate) fn ready(&mut self) -> Option<Result<Delivered, ConsumeError>> {
        let next = self.consumer.next_ready()?;
        Some(self.delivered(next))
    }

    fn delivered(&self, next: Result<ConsumedMessage, ConsumeError>) -> Result<Delivered, ConsumeError> {
        let message = next?;
        let current = self.consumer.current.as_ref().expect("a message comes from the current piece");
        let stream = StreamId { index: current.partition, generation: current.generation };
        Ok(Delivered { stream, epoch: current.epoch, message })
    }

    /// For a program whose thread does not run the lanes.
    pub(crate) fn on_a_thread_of_its_own(&mut self) {
        self.consumer.yields = false;
    }

    pub(crate) fn stats(&self) -> super::ConsumerStats {
        self.consumer.stats()
    }
}

impl Streams {
    /// Begins to read a partition. The cluster must know the topic under this id.
    pub(crate) fn start(
        &self,
        topic: &Arc<str>,
        topic_id: TopicId,
        partition: u32,
        beginning: Beginning,
    ) -> Result<StreamId, CallError> {
        let shared = &self.shared;
        let places = shared.cluster.known(topic)?;
        if places.topic_id != topic_id {
            return Err(CallError::UnknownTopic { topic: topic.to_string() });
        }
        let epoch = places.partition(partition)?.epoch;
        let source = Arc::new(Source { topic: topic.clone(), partition });
        let (begin, visible_end) = (Some(beginning.position()), beginning.bounds.visible_end);
        let (index, generation) =
            shared.state().take_up(Added { source, topic_id, epoch, begin, visible_end, until: None });
        if let Err(error) = shared.start_stream(index, generation, beginning.from, 0) {
            shared.state().give_up(index);
            return Err(error);
        }
        Ok(StreamId { index, generation })
    }

    /// Stops a stream; what was fetched of it is dropped.
    pub(crate) fn stop(&self, stream: StreamId) {
        let mut state = self.shared.state();
        if state.partitions[stream.index].generation == stream.generation {
            state.give_up(stream.index);
        }
    }

    /// The visible end of a partition as a broker told it last.
    pub(crate) fn visible_end(&self, stream: StreamId) -> u64 {
        self.shared.state().partitions[stream.index].visible_end
    }

    /// Wakes the program where it waits for a message.
    pub(crate) fn wake(&self) {
        self.shared.state().wake_consumer();
    }
}
