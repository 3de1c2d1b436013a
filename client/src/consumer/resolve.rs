//! From what the program named to partitions with a place to begin, many asked for at a time.

use std::collections::HashSet;
use std::sync::Arc;

use corelane_proto::ids::TopicId;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Start;
use super::error::ConsumeError;
use super::finder::{self, BeginError};
use super::message::Source;
use super::piece::From;
use super::shared::Shared;
use crate::error::CallError;
use crate::topic::Found;

/// Questions under way at a time.
const ASKED_MAX: usize = 32;

/// A partition with its beginning.
pub(super) struct Resolved {
    pub(super) source: Arc<Source>,
    pub(super) topic_id: TopicId,
    pub(super) epoch: u32,
    pub(super) start: Start,
    pub(super) from: From,
    pub(super) bounds: Found,
    /// Why it does not begin at all.
    pub(super) error: Option<ConsumeError>,
}

impl Shared {
    /// Every partition once, in the order in which the program named them.
    pub(super) async fn resolve(&self) -> Result<Vec<Resolved>, CallError> {
        let mut named: Vec<(Arc<Source>, (TopicId, u32), Start)> = Vec::new();
        let mut known: HashSet<(Arc<str>, u32)> = HashSet::new();
        for wanted in &self.settings.wanted {
            let places = self.cluster.topic(&wanted.topic).await?;
            let partitions = match wanted.partition {
                Some(partition) => partition..partition + 1,
                None => 0..places.partitions.len() as u32,
            };
            for partition in partitions {
                let epoch = places.partition(partition)?.epoch;
                let source = Source { topic: places.name.clone(), partition };
                if known.insert((places.name.clone(), partition)) {
                    named.push((
                        Arc::new(source),
                        (places.topic_id, epoch),
                        wanted.start.unwrap_or(self.settings.start),
                    ));
                }
            }
        }
        let mut questions = JoinSet::new();
        let turns = Arc::new(Semaphore::new(ASKED_MAX));
        let count = named.len();
        for (index, (source, life, start)) in named.into_iter().enumerate() {
            let (cluster, policy, turns) = (self.cluster.clone(), self.settings.out_of_range, turns.clone());
            questions.spawn(async move {
                let _turn = turns.acquire().await;
                let begun = finder::begin(&cluster, &source.topic, source.partition, start, policy).await;
                (index, source, life, start, begun)
            });
        }
        let mut resolved: Vec<Option<Resolved>> = (0..count).map(|_| None).collect();
        while let Some(answer) = questions.join_next().await {
            let (index, source, (topic_id, epoch), start, begun) =
                answer.expect("a question neither panics nor is cancelled");
            let (from, bounds, error) = match begun {
                Ok((from, bounds)) => (from, bounds, None),
                Err(BeginError::Call(error)) => return Err(error),
                Err(BeginError::OutOfRange { position, bounds }) => {
                    let error = finder::out_of_range(&source.topic, source.partition, position, &bounds);
                    (From { position, time_ms: None }, bounds, Some(error))
                }
            };
            resolved[index] = Some(Resolved { source, topic_id, epoch, start, from, bounds, error });
        }
        Ok(resolved.into_iter().flatten().collect())
    }
}
