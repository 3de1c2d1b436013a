//! Commits and releases of all members of this broker, gathered into few transactions: a round takes everything that
//! waits, and the next one begins a window later, or as much later as the round took. So the registry sees a bounded number
//! of writes a second, however many members commit. A release does not wait for the window: another member waits for it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use corelane_proto::ids::{Epoch, Position};
use corelane_proto::pb;
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::sync::{Notify, oneshot};

use super::Groups;
use super::calls::{check_count, check_distinct, now_ms, topic_id};
use crate::limits::{
    COMMIT_TRIES_MAX, COMMIT_TXNS_AT_A_TIME, COMMIT_WINDOW_MAX, COMMIT_WINDOW_MIN, COMMITS_A_TXN, COMMITS_WAITING_MAX,
    POSITIONS_KNOWN_MAX,
};
use crate::registry::assignment::PartitionId;
use crate::registry::group_records::Fence;
use crate::registry::groups::commits::{Commit, Committed, Known, Tried};
use crate::registry::groups::{GroupError, OTHER_LIFE, Session};
use crate::registry::store::Store;

/// What waits to be committed, and what is known of positions.
#[derive(Default)]
pub(super) struct Commits {
    waiting: RefCell<VecDeque<Waiting>>,
    /// Releases among them: they do not wait for the window.
    releases: Cell<usize>,
    wake: Notify,
    /// By group; only what was read or written here, and never relied on without a compare.
    known: RefCell<HashMap<String, HashMap<PartitionId, Known>>>,
}

struct Waiting {
    commit: Commit,
    tries: u32,
    /// The partition of a release turned out to be no more.
    is_gone: bool,
    answer: oneshot::Sender<Result<Committed, GroupError>>,
}

impl Commits {
    /// How many wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Forgets what is known of positions.
    pub(super) fn forget(&self) {
        self.known.borrow_mut().clear();
    }

    fn known(&self, commit: &Commit) -> Known {
        self.known.borrow().get(&commit.session.group)?.get(&commit.partition)?.clone()
    }

    fn set_known(&self, commit: &Commit, position: Known, is_done: bool) {
        let mut known = self.known.borrow_mut();
        if known.values().map(HashMap::len).sum::<usize>() >= POSITIONS_KNOWN_MAX {
            known.clear();
        }
        let of_group = known.entry(commit.session.group.clone()).or_default();
        // Who has given a partition up does not commit to it next. Before that, the next try needs what this one learned.
        if commit.release && is_done {
            of_group.remove(&commit.partition);
        } else {
            of_group.insert(commit.partition, position);
        }
        if of_group.is_empty() {
            known.remove(&commit.session.group);
        }
    }

    /// The next transactions: in the order of their coming, no partition of a group twice in a round.
    fn take_round(&self) -> Vec<Vec<Waiting>> {
        let mut waiting = self.waiting.borrow_mut();
        let (mut taken, mut left, mut seen) = (Vec::new(), VecDeque::new(), BTreeSet::new());
        for one in waiting.drain(..) {
            let is_first = seen.insert((one.commit.session.group.clone(), one.commit.partition));
            if is_first { taken.push(one) } else { left.push_back(one) }
        }
        self.releases.set(left.iter().filter(|one| one.commit.release).count());
        *waiting = left;
        let mut round = Vec::new();
        let mut taken = taken.into_iter().peekable();
        while taken.peek().is_some() {
            round.push(taken.by_ref().take(COMMITS_A_TXN).collect());
        }
        round
    }

    fn push(&self, one: Waiting) {
        self.releases.set(self.releases.get() + usize::from(one.commit.release));
        self.waiting.borrow_mut().push_back(one);
    }
}

impl<S: Store> Groups<S> {
    pub(super) async fn commit(&self, request: pb::CommitRequest) -> Result<pb::CommitResponse, GroupError> {
        let session = self.session(request.member.as_ref()).await?;
        let partitions = self.settle(&session, &request.partitions, false).await?;
        Ok(pb::CommitResponse { partitions })
    }

    pub(super) async fn release(&self, request: pb::ReleaseRequest) -> Result<pb::ReleaseResponse, GroupError> {
        let session = self.session(request.member.as_ref()).await?;
        let partitions = self.settle(&session, &request.partitions, true).await?;
        Ok(pb::ReleaseResponse { partitions })
    }

    /// Queues a call's partitions and waits for all of them.
    async fn settle(
        &self,
        session: &Rc<Session>,
        partitions: &[pb::CommitPartition],
        release: bool,
    ) -> Result<Vec<pb::CommitOutcome>, GroupError> {
        check_count(partitions.len())?;
        let commits: Vec<Option<Commit>> =
            partitions.iter().map(|one| commit_of(session, one, release)).collect::<Result<_, _>>()?;
        check_distinct(commits.iter().flatten().map(|commit| commit.partition))?;
        for commit in commits.iter().flatten() {
            self.check_epoch(commit).await?;
        }
        if self.commits.waiting.borrow().len() + commits.len() > COMMITS_WAITING_MAX {
            return Err(GroupError::Busy("committed positions: too many wait".to_owned()));
        }
        let mut answers = Vec::with_capacity(commits.len());
        for commit in commits {
            let (answer, answered) = oneshot::channel();
            match commit {
                Some(commit) => {
                    let waiting = Waiting { commit, tries: 0, is_gone: false, answer };
                    self.commits.push(waiting);
                }
                // A fence of another life of the store: what it stood for was lost with that.
                None => drop(answer.send(Ok(Committed::Lost))),
            }
            answers.push(answered);
        }
        self.commits.wake.notify_one();
        let mut outcomes = Vec::with_capacity(answers.len());
        for (answered, one) in answers.into_iter().zip(partitions) {
            let committed = answered.await.map_err(|_| GroupError::Behind)??;
            outcomes.push(outcome_of(one, &committed)?);
        }
        Ok(outcomes)
    }

    /// Of a higher epoch nothing was fetched, and its position would outlast every true one. Asked only where the epoch is
    /// neither the first nor that of the position known.
    async fn check_epoch(&self, commit: &Commit) -> Result<(), GroupError> {
        let Some((epoch, _)) = commit.place else { return Ok(()) };
        let known = self.commits.known(commit).map_or(Epoch::FIRST, |(offset, _)| offset.epoch);
        if epoch <= known { Ok(()) } else { self.check_reached(commit.partition, epoch).await }
    }

    pub(super) async fn check_reached(&self, partition: PartitionId, epoch: Epoch) -> Result<(), GroupError> {
        if self.registry.has_come_to(partition, epoch).await? {
            return Ok(());
        }
        let message = format!("partition {} has not come to epoch {epoch}", partition.1);
        Err(GroupError::Invalid { field: "place", message })
    }

    pub(super) async fn commit_rounds(&self) {
        let mut window = COMMIT_WINDOW_MIN;
        let mut next_round = self.now();
        loop {
            if self.commits.waiting.borrow().is_empty() {
                self.commits.wake.notified().await;
                continue;
            }
            while self.now() < next_round && self.commits.releases.get() == 0 {
                tokio::select! {
                    biased;
                    () = self.options.clock.sleep_until(next_round) => {}
                    () = self.commits.wake.notified() => {}
                }
            }
            let began = self.now();
            let round = self.commits.take_round();
            stream::iter(round).for_each_concurrent(COMMIT_TXNS_AT_A_TIME, |page| self.commit_page(page)).await;
            window = self.now().saturating_sub(began).clamp(COMMIT_WINDOW_MIN, COMMIT_WINDOW_MAX).max(window / 2);
            next_round = began + window;
        }
    }

    async fn commit_page(&self, page: Vec<Waiting>) {
        let incarnation = self.state.borrow().incarnation;
        // The store may have been found restored while they waited: their fences are of a life that has ended, and their
        // numbers may be those of keys of this one.
        let (page, ended): (Vec<Waiting>, Vec<Waiting>) =
            page.into_iter().partition(|one| one.commit.fence.incarnation == incarnation);
        fail(ended, &OTHER_LIFE);
        if page.is_empty() {
            return;
        }
        let commits = page.iter().map(|one| (one.commit.clone(), self.commits.known(&one.commit))).collect();
        let tried = match self.registry.commit_once(incarnation, commits).await {
            Ok(tried) => tried,
            Err(error) => return fail(page, &error),
        };
        // What was read in an earlier life of the store says nothing of this one.
        let is_same_life = self.state.borrow().incarnation == incarnation;
        for (mut one, (tried, known)) in page.into_iter().zip(tried) {
            if is_same_life {
                self.commits.set_known(&one.commit, known, matches!(tried, Tried::Done(_)));
            }
            one.tries += 1;
            let committed = match tried {
                Tried::Done(Committed::Ok | Committed::Stale(_)) if one.is_gone => Committed::Gone,
                Tried::Done(committed) => committed,
                _ if one.tries >= COMMIT_TRIES_MAX => Committed::Retry,
                Tried::Again => {
                    self.commits.push(one);
                    continue;
                }
                Tried::PartitionGone => {
                    // What is left of the release.
                    one.commit.place = None;
                    one.is_gone = true;
                    self.commits.push(one);
                    continue;
                }
            };
            // Whoever asked may have gone.
            let _ = one.answer.send(Ok(committed));
        }
    }
}

/// Answers all of them so. Unless they are fenced, whether any of it was done is not known.
fn fail(page: Vec<Waiting>, error: &GroupError) {
    for one in page {
        let error = match error {
            GroupError::Store(error) => GroupError::Store(error.clone()),
            GroupError::Fenced(reason) => GroupError::Fenced(reason),
            _ => GroupError::Behind,
        };
        let _ = one.answer.send(Err(error));
    }
}

/// What a client asks for; none: its fence is of another life of the store.
fn commit_of(session: &Rc<Session>, one: &pb::CommitPartition, release: bool) -> Result<Option<Commit>, GroupError> {
    let missing = |field: &'static str| GroupError::Invalid { field, message: format!("{field} is missing") };
    let fence = one.fence.ok_or_else(|| missing("fence"))?;
    let place = one.place.map(|place| (Epoch(place.epoch), Position(place.position)));
    if place.is_none() && !release {
        return Err(missing("place"));
    }
    let partition = (topic_id(&one.topic_id)?, one.partition);
    if fence.incarnation != session.attachment.incarnation {
        return Ok(None);
    }
    Ok(Some(Commit {
        session: Rc::clone(session),
        partition,
        fence: Fence { incarnation: fence.incarnation, created: fence.number },
        generation: fence.generation,
        place,
        rewind: one.rewind,
        release,
        time_ms: now_ms(),
    }))
}

fn outcome_of(one: &pb::CommitPartition, committed: &Committed) -> Result<pb::CommitOutcome, GroupError> {
    let mut outcome =
        pb::CommitOutcome { topic_id: one.topic_id.clone(), partition: one.partition, ..Default::default() };
    let result = match committed {
        Committed::Ok => pb::CommitResult::Ok,
        Committed::Stale((epoch, position)) => {
            outcome.committed = Some(pb::Place { epoch: epoch.0, position: position.0 });
            pb::CommitResult::Stale
        }
        Committed::Lost => pb::CommitResult::Lost,
        Committed::Gone => pb::CommitResult::Gone,
        Committed::Retry => pb::CommitResult::Retry,
        Committed::Fenced(reason) => return Err(GroupError::Fenced(reason)),
    };
    outcome.set_result(result);
    Ok(outcome)
}

const _: () = assert!(COMMIT_WINDOW_MIN.as_millis() < COMMIT_WINDOW_MAX.as_millis(), "a window stretches");
const _: () = assert!(COMMIT_WINDOW_MAX.as_millis() <= Duration::from_secs(1).as_millis(), "an answer comes in time");
