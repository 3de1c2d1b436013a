//! A lane: the task that owns a consumer's connection to one shard of one broker, for all partitions that are read there.
//! It connects when there are streams to fetch and begins again where it was after a break. The talking itself is in
//! `fetching`; what needs a question to the broker is left to the finder.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::error::ConsumeError;
use super::fetching::Fetching;
use super::finder::Why;
use super::joiner::Joiner;
use super::piece::From;
use super::shared::{Item, Order, Shared};
use crate::cluster::Place;
use crate::error::CallError;
use crate::net::connect::Greeting;

/// A partition's stream on this lane.
pub(super) struct Stream {
    /// Tells the answers for this stream from those for an earlier one.
    pub(super) id: u64,
    pub(super) order: Order,
    /// There is none before the first answer has told where the bytes begin.
    pub(super) joiner: Option<Joiner>,
    /// A fetch is under way of which the header is not back.
    pub(super) is_asked: bool,
    pub(super) is_hungry: bool,
    pub(super) visible_end: u64,
}

impl Stream {
    /// Where the first message that was not handed on begins, as far as the program wants it.
    pub(super) fn resume(&self) -> From {
        let From { position, time_ms } = self.order.from;
        let begun = self.joiner.as_ref().map_or(0, Joiner::base);
        // Behind the first messages, a start by time has done its work.
        From { position: position.max(begun), time_ms: time_ms.filter(|_| begun <= position) }
    }
}

pub(super) struct Lane {
    pub(super) shared: Arc<Shared>,
    pub(super) index: usize,
    pub(super) place: Place,
    pub(super) streams: HashMap<usize, Stream>,
    /// Streams that may have something to ask for.
    pub(super) to_ask: Vec<usize>,
    next_id: u64,
    attempt: u64,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>, index: usize, place: Place) -> Self {
        Self { shared, index, place, streams: HashMap::new(), to_ask: Vec::new(), next_id: 0, attempt: 0 }
    }

    pub(super) async fn run(mut self) {
        let mut backoff = self.shared.cluster.backoff();
        let mut failing_since: Option<Instant> = None;
        while self.wait_for_orders().await {
            self.attempt += 1;
            let greeting = Greeting {
                session: self.shared.session.to_vec(),
                attempt: self.attempt,
                ..self.shared.cluster.greeting(Some(self.place))
            };
            let timeout = self.shared.cluster.settings.connect_timeout;
            match self.shared.cluster.connect_place(self.place, &greeting, timeout).await {
                Ok(link) => {
                    self.shared.state().counters.connections += 1;
                    let (error, was_answered) = Fetching::run(&mut self, link).await;
                    if was_answered {
                        backoff.reset();
                        failing_since = None;
                    }
                    let Some(error) = error else { return };
                    tracing::debug!(broker = self.place.broker_id, shard = self.place.shard, %error, "a lane broke");
                }
                Err(error) => {
                    tracing::debug!(broker = self.place.broker_id, shard = self.place.shard, %error, "cannot connect");
                    let since = *failing_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.shared.cluster.settings.request_timeout {
                        failing_since = None;
                        self.tell(&error);
                    }
                    self.let_go();
                }
            }
            let pause = backoff.pause();
            tokio::time::sleep(pause).await;
        }
    }

    /// False: the consumer is over.
    async fn wait_for_orders(&mut self) -> bool {
        std::future::poll_fn(|cx| {
            let is_over = self.take_orders(Some(cx));
            if is_over {
                Poll::Ready(false)
            } else if self.streams.is_empty() {
                Poll::Pending
            } else {
                Poll::Ready(true)
            }
        })
        .await
    }

    /// Takes streams from the queue, and learns which have room again. With `cx` the task will be woken when there are
    /// more. True: the consumer is over.
    pub(super) fn take_orders(&mut self, cx: Option<&mut Context<'_>>) -> bool {
        let shared = self.shared.clone();
        let mut state = shared.state();
        let orders = std::mem::take(&mut state.lanes[self.index].orders);
        for partition in std::mem::take(&mut state.lanes[self.index].fed) {
            if let Some(stream) = self.streams.get_mut(&partition) {
                stream.is_hungry = false;
                self.to_ask.push(partition);
            }
        }
        for order in orders {
            let at = &state.partitions[order.partition];
            if at.generation != order.generation {
                continue;
            }
            self.next_id += 1;
            let (id, visible_end) = (self.next_id, at.visible_end);
            let stream = Stream { id, joiner: None, is_asked: false, is_hungry: false, visible_end, order };
            self.to_ask.push(stream.order.partition);
            self.streams.insert(stream.order.partition, stream);
        }
        if let Some(cx) = cx {
            state.lanes[self.index].sleeping = Some(cx.waker().clone());
        }
        state.over
    }

    /// Tells the program why nothing comes.
    fn tell(&self, cause: &CallError) {
        let mut state = self.shared.state();
        for Order { partition, generation, .. } in self.streams.values().map(|stream| &stream.order) {
            let at = &state.partitions[*partition];
            if at.generation == *generation {
                let error = ConsumeError::unavailable(&at.source, cause.clone());
                state.push(*partition, Item::Error { error, is_last: false });
            }
        }
    }

    /// Lets the finder look where the streams are served.
    fn let_go(&mut self) {
        for (_, stream) in self.streams.drain() {
            let from = stream.resume();
            self.shared.go_on(stream.order, from, Why::Unreachable);
        }
    }
}
