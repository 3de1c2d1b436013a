//! From what the program named to partitions with a place to begin, many asked for at a time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use corelane_proto::ids::TopicId;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Start;
use super::finder::{self, BeginError};
use super::message::Source;
use super::piece::From;
use super::shared::Shared;
use crate::error::CallError;
use crate::topic::Found;

/// Questions under way at a time.
const ASKED_MAX: usize = 32;
/// How long a partition whose broker cannot be asked holds up those of the others.
const BEGIN_PATIENCE: Duration = Duration::from_secs(1);

/// A partition that was named.
struct Named {
    source: Arc<Source>,
    topic_id: TopicId,
    epoch: u32,
    start: Start,
}

/// A partition with its beginning.
pub(super) struct Resolved {
    pub(super) source: Arc<Source>,
    pub(super) topic_id: TopicId,
    pub(super) epoch: u32,
    pub(super) start: Start,
    pub(super) begun: Begun,
}

pub(super) enum Begun {
    At(From, Found),
    /// The position asked for is not retained, and the policy is to fail.
    Nowhere {
        position: u64,
        bounds: Found,
    },
    /// Its broker cannot be asked at the moment.
    Later,
}

type Answer = Result<(From, Found), BeginError>;

impl Shared {
    /// Every partition once, in the order in which the program named them. An error if none of them can begin.
    pub(super) async fn resolve(&self) -> Result<Vec<Resolved>, CallError> {
        let named = self.named().await?;
        let patience = self.settings.begin_patience.unwrap_or(self.cluster.settings.request_timeout);
        let first = if named.len() > 1 { BEGIN_PATIENCE.min(patience) } else { patience };
        let mut answers = self.ask_all(&named, first).await;
        if !answers.iter().any(is_told) && first < patience {
            answers = self.ask_all(&named, patience.saturating_sub(first)).await;
        }
        let mut unasked = None;
        let mut resolved = Vec::with_capacity(named.len());
        for (Named { source, topic_id, epoch, start }, answer) in named.into_iter().zip(answers) {
            let begun = match answer {
                Ok((from, bounds)) => Begun::At(from, bounds),
                Err(BeginError::OutOfRange { position, bounds }) => Begun::Nowhere { position, bounds },
                Err(BeginError::Call(error)) if error.is_retryable() => {
                    unasked.get_or_insert(error);
                    Begun::Later
                }
                Err(BeginError::Call(error)) => return Err(error),
            };
            resolved.push(Resolved { source, topic_id, epoch, start, begun });
        }
        match unasked {
            Some(error) if resolved.iter().all(|at| matches!(at.begun, Begun::Later)) => Err(error),
            _ => Ok(resolved),
        }
    }

    async fn named(&self) -> Result<Vec<Named>, CallError> {
        let mut named = Vec::new();
        let mut known: HashSet<(Arc<str>, u32)> = HashSet::new();
        for wanted in &self.settings.wanted {
            let places = self.cluster.topic(&wanted.topic).await?;
            let partitions = match wanted.partition {
                Some(partition) => partition..partition + 1,
                None => 0..places.partitions.len() as u32,
            };
            for partition in partitions {
                let epoch = places.partition(partition)?.epoch;
                if known.insert((places.name.clone(), partition)) {
                    let source = Arc::new(Source { topic: places.name.clone(), partition });
                    let start = wanted.start.unwrap_or(self.settings.start);
                    named.push(Named { source, topic_id: places.topic_id, epoch, start });
                }
            }
        }
        Ok(named)
    }

    /// Where each of them begins; what may pass is tried again for as long as `patience`.
    async fn ask_all(&self, named: &[Named], patience: Duration) -> Vec<Answer> {
        let mut questions = JoinSet::new();
        let turns = Arc::new(Semaphore::new(ASKED_MAX));
        for (index, Named { source, start, .. }) in named.iter().enumerate() {
            let (cluster, policy, turns) = (self.cluster.clone(), self.settings.out_of_range, turns.clone());
            let (source, start) = (source.clone(), *start);
            questions.spawn(async move {
                let _turn = turns.acquire().await;
                let (topic, partition) = (&*source.topic, source.partition);
                (index, finder::begin_for(patience, &cluster, topic, partition, start, policy).await)
            });
        }
        let mut answers: Vec<Option<Answer>> = named.iter().map(|_| None).collect();
        while let Some(answer) = questions.join_next().await {
            let (index, answer) = answer.expect("a question neither panics nor is cancelled");
            answers[index] = Some(answer);
        }
        answers.into_iter().flatten().collect()
    }
}

/// Whether an answer is one that asking again would not change.
fn is_told(answer: &Answer) -> bool {
    !matches!(answer, Err(BeginError::Call(error)) if error.is_retryable())
}
