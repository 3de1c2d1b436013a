//! Many messages at once: the producer's lock is taken once for all of them, and whoever has to know is woken behind it.

use std::fmt;
use std::task::Waker;

use super::accumulator::{Accumulator, Pushed};
use super::error::TrySendError;
use super::record::Record;
use super::{Producer, now_if_needed};

/// Messages that are handed over one behind the other; see [`Producer::post_many`].
pub struct Posting<'a> {
    accumulator: &'a mut Accumulator,
    /// Tasks to wake once the lock is released.
    woken: Vec<Waker>,
    /// A topic that was not known: it is looked up afterwards.
    unknown_topic: Option<String>,
}

impl Posting<'_> {
    /// Takes a message like [`Producer::try_post`].
    pub fn try_post(&mut self, record: &Record<'_>) -> Result<(), TrySendError> {
        match self.accumulator.push(record, now_if_needed(record))? {
            Pushed::Taken { receipt, woken, .. } => {
                self.woken.extend(woken);
                Ok(receipt)
            }
            Pushed::Full => Err(TrySendError::Full),
            Pushed::UnknownTopic => {
                self.unknown_topic = Some(record.topic.to_owned());
                Err(TrySendError::NotReady)
            }
        }
    }
}

impl fmt::Debug for Posting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posting").finish_non_exhaustive()
    }
}

impl Producer {
    /// Lets `work` hand over many messages at once, which is cheaper than one by one: nobody else publishes with this
    /// producer and no set is sent meanwhile, so it should do nothing else.
    ///
    /// ```no_run
    /// # fn example(producer: &corelane_client::Producer, lines: &[&[u8]]) -> Result<(), corelane_client::TrySendError> {
    /// use corelane_client::Record;
    /// // As many as there is room for at the moment.
    /// producer.post_many(|posting| {
    ///     lines.iter().try_for_each(|line| posting.try_post(&Record::to("lines").value(line)))
    /// })
    /// # }
    /// ```
    pub fn post_many<T>(&self, work: impl FnOnce(&mut Posting<'_>) -> T) -> T {
        let (outcome, woken, unknown_topic) = {
            let mut accumulator = self.handle.shared.accumulator();
            let mut posting = Posting { accumulator: &mut accumulator, woken: Vec::new(), unknown_topic: None };
            let outcome = work(&mut posting);
            (outcome, posting.woken, posting.unknown_topic)
        };
        woken.into_iter().for_each(Waker::wake);
        if let Some(topic) = unknown_topic {
            self.prepare_beside(topic);
        }
        outcome
    }
}
