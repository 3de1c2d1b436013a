//! The control thread's main loop: follows the registry, answers shards and the HTTP page, keeps the broker's lease alive,
//! sweeps, notices a shard that has ended; until a signal says stop.

use std::rc::Rc;
use std::time::Duration;

use async_channel::Receiver;
use corelane_log::blocking::{self, BlockingDisk};
use corelane_log::checkpoint;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::Control;
use super::follow::{follow, watch_over};
use super::member::{LEAVE_MAX, Member};
use super::remembered::remember;
use super::start::StartError;
use crate::limits::{CONTROL_CALLS_MAX, HTTP_CONNECTIONS_MAX, HTTP_QUESTIONS_MAX, STOP_MAX, SWEEP_INTERVAL};
use crate::messages::{ToControl, ToShard};
use crate::registry::store::Store;
use crate::registry::topics::Sweeper;
use crate::registry::view::Follower;
use crate::shard::boot::Shards;
use crate::telemetry::http::{self, Question};
use crate::telemetry::logs::LogLevel;
use crate::telemetry::{metrics, status};

/// A broker that is ready.
pub(super) struct Running<S: Store> {
    pub(super) control: Rc<Control<S>>,
    /// None: the registry has yet to be found.
    pub(super) follower: Option<Follower<S>>,
    pub(super) calls: Receiver<ToControl>,
    pub(super) http: Option<TcpListener>,
    pub(super) shards: Shards,
    pub(super) member: Rc<Member<S>>,
    pub(super) signals: Signals,
    pub(super) level: LogLevel,
}

impl<S: Store> Running<S> {
    /// Serves until a signal comes, then stops in order.
    pub(super) async fn run(self) -> Result<(), StartError> {
        let Self { control, follower, calls, http, shards, member, signals, level } = self;
        let (questions, asked) = mpsc::channel(HTTP_CONNECTIONS_MAX);
        let page = http.map(|http| tokio::task::spawn_local(http::serve(http, questions, level)));
        let following = tokio::task::spawn_local(follow(Rc::clone(&control), member.membership.clone(), follower));
        let answering = tokio::task::spawn_local(answer_calls(Rc::clone(&control), calls));
        let paging = tokio::task::spawn_local(answer_page(Rc::clone(&control), asked));
        let sweeping = tokio::task::spawn_local(sweep(Rc::clone(&control)));
        let remembering = tokio::task::spawn_local(remember(Rc::clone(&control)));
        let watching_over = tokio::task::spawn_local(watch_over(Rc::clone(&control)));
        let grouping = tokio::task::spawn_local(Rc::clone(&control.groups).run());
        let outcome = tokio::select! {
            () = signals.wait() => Ok(()),
            () = member.stay(&control) => Ok(()),
            () = until_shard_ends(&control) => Err(StartError::ShardEnded),
        };
        for task in [following, answering, paging, sweeping, remembering, watching_over, grouping] {
            task.abort();
            // Gone, and what it holds of the registry with it.
            let _ = task.await;
        }
        if let Some(page) = page {
            page.abort();
        }
        let stopped = stop(&control, shards, &member).await;
        outcome.and(stopped)
    }
}

/// The signals that ask for an orderly stop. From the moment this exists they no longer end the process by themselves:
/// it must exist before anybody is told that the broker is ready.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, StartError> {
        let listen =
            |kind| signal(kind).map_err(|error| StartError::Check(format!("signals cannot be received: {error}")));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn wait(mut self) {
        let name = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "stopping");
        super::means::notify_manager(&[sd_notify::NotifyState::Stopping]);
    }
}

/// A shard's thread that is gone takes its end of the channel along.
async fn until_shard_ends<S: Store>(control: &Control<S>) {
    let mut tick = interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        if control.shards.iter().any(async_channel::Sender::is_closed) {
            return;
        }
    }
}

/// Answers calls side by side. They are this task's own, so that they end with it: a call that waits for a large creation
/// would hold the registry open, and with it the process.
async fn answer_calls<S: Store>(control: Rc<Control<S>>, calls: Receiver<ToControl>) {
    let mut answering = FuturesUnordered::new();
    loop {
        tokio::select! {
            call = calls.recv(), if answering.len() < CONTROL_CALLS_MAX => match call {
                Ok(call) => answering.push(Rc::clone(&control).answer(call)),
                Err(_) => return,
            },
            Some(()) = answering.next() => {}
        }
    }
}

async fn answer_page<S: Store>(control: Rc<Control<S>>, mut asked: mpsc::Receiver<Question>) {
    // Side by side: whether the broker is ready must not wait for a registry that is slow to tell positions.
    let mut answering = FuturesUnordered::new();
    loop {
        tokio::select! {
            question = asked.recv(), if answering.len() < HTTP_QUESTIONS_MAX => match question {
                // Nothing is gathered for whoever has gone meanwhile.
                Some(question) if question.is_abandoned() => {}
                Some(question) => answering.push(answer_question(&control, question)),
                None => return,
            },
            Some(()) = answering.next() => {}
        }
    }
}

/// Whoever asked may have gone.
async fn answer_question<S: Store>(control: &Control<S>, question: Question) {
    match question {
        Question::Metrics(detail, answer) => {
            let _ = answer.send(metrics::render(control.snapshot().await, detail));
        }
        Question::Status(answer) => drop(answer.send(status::render(&control.snapshot().await))),
        Question::Ready(answer) => drop(answer.send(control.readiness().await)),
    }
}

async fn sweep<S: Store>(control: Rc<Control<S>>) {
    let mut sweeper = Sweeper::default();
    let mut tick = interval(SWEEP_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if control.check_registry().is_err() {
            continue;
        }
        match sweeper.sweep(&control.topics, control.since.elapsed()).await {
            Ok(swept) => {
                for name in swept {
                    tracing::warn!(topic = %name, "a creation that had died was taken back");
                }
            }
            Err(error) => tracing::warn!(%error, "creations that died could not be looked for"),
        }
    }
}

/// Stops in order: the shards accept no more, flush, checkpoint; then the registry hears it.
async fn stop<S: Store>(control: &Control<S>, shards: Shards, member: &Member<S>) -> Result<(), StartError> {
    let deadline = Instant::now() + STOP_MAX;
    let mut stopping = Vec::new();
    for shard in &control.shards {
        let (answer, stopped) = oneshot::channel();
        let told = tokio::select! {
            told = shard.send(ToShard::Stop { answer }) => told.is_ok(),
            () = sleep_until(deadline) => false,
        };
        stopping.push((told, stopped));
    }
    let mut is_clean = true;
    for (told, stopped) in stopping {
        let clean = async { told && stopped.await.unwrap_or(false) };
        is_clean &= tokio::time::timeout_at(deadline, clean).await.unwrap_or(false);
    }
    let shard_count = shards.senders.len() as u32;
    if is_clean {
        let joined = tokio::task::spawn_blocking(move || shards.join());
        is_clean = matches!(tokio::time::timeout_at(deadline, joined).await, Ok(Ok(Ok(()))));
    }
    // Its lease ends by itself, too.
    let _ = tokio::time::timeout(LEAVE_MAX, member.leave()).await;
    if let Err(error) = control.remember_now().await {
        tracing::warn!(error, "what was seen of the registry could not be noted on disk");
    }
    remove_checkpoints(control, shard_count, is_clean);
    tracing::info!(is_clean, "stopped");
    if is_clean { Ok(()) } else { Err(StartError::UncleanStop) }
}

/// Those of shards that are no more say nothing that the others' do not, once every partition stopped clean.
fn remove_checkpoints<S: Store>(control: &Control<S>, shards: u32, is_clean: bool) {
    let data = &control.config.data;
    if is_clean && let Err(error) = blocking::run(checkpoint::remove_beyond(&BlockingDisk, data, shards)) {
        tracing::warn!(%error, "old checkpoints could not be removed");
    }
}
