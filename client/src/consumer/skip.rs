//! What a stream left out, told to the program when it is noticed: the stream itself goes on.

use std::fmt;
use std::sync::Arc;

use corelane_proto::ids::TopicId;

/// Why a stretch of a log was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipCause {
    /// Retention, or a trim, had taken it before it was read.
    Retention,
    /// A message there is damaged.
    Damage,
    /// The log began again; what the one before still held is not known, so `from` is a position of that one, and `to` one of
    /// the log of now.
    NewLog,
}

/// A stretch of a partition's log that the stream left out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skip {
    /// The topic.
    pub topic: Arc<str>,
    /// The topic's lasting id.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: u32,
    /// The epoch that `to` belongs to.
    pub epoch: u32,
    /// The first position that was left out.
    pub from: u64,
    /// Where the stream went on.
    pub to: u64,
    /// Why.
    pub cause: SkipCause,
}

/// The program's function that is told.
#[derive(Clone)]
pub(crate) struct OnSkip(pub(crate) Arc<dyn Fn(&Skip) + Send + Sync>);

impl fmt::Debug for OnSkip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnSkip")
    }
}

impl OnSkip {
    /// Tells it, if there is one.
    pub(crate) fn tell(told: Option<&Self>, skip: &Skip) {
        if let Some(Self(call)) = told {
            call(skip);
        }
    }
}
