//! What becomes of a message. All messages of a batch share one completion, so that a delivery costs a counter and no
//! allocation; one that nobody waits for may be dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use super::error::DeliveryError;

/// Where an acknowledged message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// The partition.
    pub partition: u32,
    /// The message's number in the partition: what a consumer will see. Not known with `Acks::None`.
    pub position: Option<u64>,
}

/// How a batch ended.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// A plain set, its first message at this id: a message's number is the id plus its offset in the set.
    Plain(u64),
    /// A wrapper at this id: a message's number is the id plus its index.
    Wrapped(u64),
    /// Written to the socket; no answer will come.
    Unconfirmed,
    /// Failed as a whole.
    Failed(DeliveryError),
}

/// The one end that all messages of a batch share.
#[derive(Debug)]
pub(crate) struct Completion {
    partition: u32,
    outcome: OnceLock<Outcome>,
    waiting: Mutex<Vec<Waker>>,
}

impl Completion {
    pub(crate) fn new(partition: u32) -> Arc<Self> {
        Arc::new(Self { partition, outcome: OnceLock::new(), waiting: Mutex::new(Vec::new()) })
    }

    /// Ends the batch; a second call changes nothing.
    pub(crate) fn finish(&self, outcome: Outcome) {
        let _ = self.outcome.set(outcome);
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for waker in waiting {
            waker.wake();
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<&Outcome> {
        if let Some(outcome) = self.outcome.get() {
            return Poll::Ready(outcome);
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // The outcome is set before the wakers are taken: whoever finds none here will be woken.
        if let Some(outcome) = self.outcome.get() {
            return Poll::Ready(outcome);
        }
        // One task that waits for many messages of a batch registers once.
        if !waiting.last().is_some_and(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Resolves when the message is acknowledged, or has failed for good. Dropping it changes nothing about the message.
#[derive(Debug, Clone)]
#[must_use = "a delivery resolves to the message's fate; drop it explicitly if nobody needs to know"]
pub struct DeliveryFuture {
    completion: Arc<Completion>,
    offset: u32,
    index: u32,
}

impl DeliveryFuture {
    pub(crate) fn new(completion: Arc<Completion>, offset: u32, index: u32) -> Self {
        Self { completion, offset, index }
    }

    /// The fate of the message if it is known already.
    pub fn try_result(&self) -> Option<Result<Delivered, DeliveryError>> {
        self.completion.outcome.get().map(|outcome| self.result(outcome))
    }

    fn result(&self, outcome: &Outcome) -> Result<Delivered, DeliveryError> {
        let position = match outcome {
            Outcome::Plain(first) => Some(first + u64::from(self.offset)),
            Outcome::Wrapped(id) => Some(id + u64::from(self.index)),
            Outcome::Unconfirmed => None,
            Outcome::Failed(error) => return Err(error.clone()),
        };
        Ok(Delivered { partition: self.completion.partition, position })
    }
}

impl Future for DeliveryFuture {
    type Output = Result<Delivered, DeliveryError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.completion.poll(cx).map(|outcome| self.result(outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn one_task_that_awaits_a_whole_batch_is_woken_once() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let completion = Completion::new(3);
        let mut deliveries: Vec<_> =
            (0..100).map(|index| DeliveryFuture::new(completion.clone(), index * 50, index)).collect();
        for delivery in &mut deliveries {
            assert!(Pin::new(delivery).poll(&mut cx).is_pending());
        }
        completion.finish(Outcome::Plain(1000));
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        for (index, delivery) in deliveries.iter_mut().enumerate() {
            let Poll::Ready(Ok(delivered)) = Pin::new(delivery).poll(&mut cx) else { panic!("not delivered") };
            assert_eq!(delivered.position, Some(1000 + index as u64 * 50));
            assert_eq!(delivered.partition, 3);
        }
    }

    #[test]
    fn numbers_inside_a_wrapper_are_its_id_plus_the_index() {
        let completion = Completion::new(0);
        let delivery = DeliveryFuture::new(completion.clone(), 4711, 7);
        assert!(delivery.try_result().is_none());
        completion.finish(Outcome::Wrapped(500));
        assert_eq!(delivery.try_result().unwrap().unwrap().position, Some(507));
    }
}
