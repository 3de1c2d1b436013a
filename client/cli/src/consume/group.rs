//! `consume --group`: the loop of a group's member. A message counts as processed once it is written, so what is committed
//! was printed; in the end, by a signal or by `--max`, everything printed is committed and the member leaves.

use std::collections::{BTreeMap, VecDeque};
use std::task::Poll;
use std::time::{Duration, Instant};

use corelane_client::{CallError, Client, GroupConsumer, GroupError, GroupHandle, GroupMessage, GroupStart};

use super::args::ConsumeArgs;
use super::format::{Format, Shown};
use super::job::{End, now_ms, poll_once};
use super::sink::{Sink, SinkClosed};
use super::waiting::Waiting;
use super::{LAST_WRITE_MAX, open_sink};
use crate::error::CliError;
use crate::parse::place::Place;
use crate::signals::Signals;

/// How long a partition that moves elsewhere waits for its last messages to be written.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

pub(super) async fn run(
    client: &Client,
    group: &str,
    args: &ConsumeArgs,
    json: bool,
    signals: &mut Signals,
) -> Result<End, CliError> {
    let start = match args.begin.from {
        Place::Earliest => GroupStart::Earliest,
        Place::Latest => GroupStart::Latest,
        Place::Time(moment) => GroupStart::TimeMs(moment.unix_ms(now_ms())),
        Place::Position(_) => {
            let reason = "with --group, --from is earliest, latest or a time; once the group is there, positions are set \
                          with: corelane group reset";
            return Err(CliError::Argument(reason.to_owned()));
        }
    };
    let consumer = if let Some(pattern) = &args.pattern {
        client.group(group).pattern(pattern)
    } else {
        if let Err(CallError::UnknownTopic { topic }) = client.admin().describe_topic(args.topic()).await {
            eprintln!("corelane: {}; waiting for it", CliError::UnknownTopic { topic, is_wanted: true });
        }
        client.group(group).topic(args.topic())
    };
    let consumer = consumer
        .start(start)
        .commit_interval(args.commit_interval)
        .manual_marks()
        .release_wait(RELEASE_WAIT)
        .build()?;
    let unwritten = Unwritten { handle: consumer.handle(), current: BTreeMap::new(), flushed: VecDeque::new() };
    let mut job = GroupJob {
        format: args.format(json),
        consumer,
        sink: open_sink(args)?,
        unwritten,
        messages_left: args.max.unwrap_or(u64::MAX),
        waiting: Waiting::default(),
    };
    let end = job.work(signals).await;
    job.finish(end).await
}

struct GroupJob {
    format: Format,
    consumer: GroupConsumer,
    sink: Sink,
    unwritten: Unwritten,
    messages_left: u64,
    waiting: Waiting,
}

/// The last message of each partition in the buffers that are not written yet.
struct Unwritten {
    handle: GroupHandle,
    current: BTreeMap<(String, u32), GroupMessage>,
    /// With the number of the buffer that they end in.
    flushed: VecDeque<(u64, Vec<GroupMessage>)>,
}

impl Unwritten {
    fn add(&mut self, message: GroupMessage) {
        self.current.insert((message.topic().to_owned(), message.partition()), message);
    }

    fn flushed(&mut self, buffer: u64) {
        let messages: Vec<GroupMessage> = std::mem::take(&mut self.current).into_values().collect();
        if !messages.is_empty() {
            self.flushed.push_back((buffer, messages));
        }
    }

    /// Everything up to this buffer is written, so its messages are processed.
    fn written(&mut self, buffer: u64) {
        while self.flushed.front().is_some_and(|(number, _)| *number <= buffer) {
            let (_, messages) = self.flushed.pop_front().unwrap_or_default();
            for message in &messages {
                self.handle.mark(message);
            }
        }
    }
}

impl GroupJob {
    async fn work(&mut self, signals: &mut Signals) -> Result<End, CliError> {
        while self.messages_left > 0 {
            let item = match poll_once(self.consumer.next()).await {
                Poll::Ready(item) if !self.sink.is_full() => item,
                other => {
                    if let Some(end) = self.hand_over(signals).await {
                        return Ok(end);
                    }
                    match other {
                        Poll::Ready(item) => {
                            // What fetches ahead runs on this thread too.
                            tokio::task::yield_now().await;
                            item
                        }
                        Poll::Pending => {
                            // Now, for a buffer may be written already that was only just handed over.
                            let written = self.sink.written();
                            self.unwritten.written(written);
                            tokio::select! {
                                item = self.consumer.next() => item,
                                interruption = signals.next() => return Ok(End::Interrupted(interruption)),
                                () = self.sink.closed() => return Ok(End::Closed),
                                () = self.sink.more_written(written) => {
                                    self.unwritten.written(self.sink.written());
                                    continue;
                                }
                            }
                        }
                    }
                }
            };
            self.unwritten.written(self.sink.written());
            match item {
                Some(Ok(message)) => self.write(message),
                Some(Err(error)) => self.meet(error)?,
                None => return Err(CliError::Group(GroupError::Closed)),
            }
        }
        Ok(End::Complete)
    }

    fn write(&mut self, message: GroupMessage) {
        if let Some(words) = self.waiting.end(message.topic(), message.partition()) {
            eprintln!("corelane: {words}");
        }
        self.format.write(&Shown::of(&message), self.sink.buffer());
        self.unwritten.add(message);
        self.messages_left -= 1;
    }

    /// Decides whether an error ends the command or is told and lived with.
    fn meet(&mut self, error: GroupError) -> Result<(), CliError> {
        match error {
            GroupError::Consume(error) if error.is_retryable() => {
                if let Some(words) = self.waiting.begin(&error, Instant::now()) {
                    eprintln!("corelane: {words}");
                }
            }
            error if error.is_retryable() => eprintln!("corelane: {error}; still trying"),
            error => return Err(CliError::Group(error)),
        }
        Ok(())
    }

    /// Hands what was gathered to the writer. Some: there is no point in going on.
    async fn hand_over(&mut self, signals: &mut Signals) -> Option<End> {
        tokio::select! {
            biased;
            interruption = signals.next() => return Some(End::Interrupted(interruption)),
            result = self.sink.flush() => {
                if let Err(SinkClosed) = result {
                    return Some(End::Closed);
                }
            }
        }
        self.unwritten.flushed(self.sink.handed());
        None
    }

    /// Writes the rest, commits what is written, and leaves.
    async fn finish(mut self, end: Result<End, CliError>) -> Result<End, CliError> {
        // A reader that does not read holds up neither the end of a signal nor the group.
        let is_patient = matches!(end, Ok(End::Complete));
        let flush = async {
            if self.sink.flush().await.is_ok() {
                self.unwritten.flushed(self.sink.handed());
                self.sink.all_written().await;
            }
        };
        if is_patient {
            flush.await;
        } else {
            // What is not written in time is not committed: the next member prints it.
            let _ = tokio::time::timeout(LAST_WRITE_MAX, flush).await;
        }
        self.unwritten.written(self.sink.written());
        let closed = self.consumer.close().await;
        let written = self.sink.finish();
        if is_patient {
            written.await.map_err(CliError::Output)?;
        } else {
            let _ = tokio::time::timeout(LAST_WRITE_MAX, written).await;
        }
        let end = end?;
        closed.map_err(CliError::Group)?;
        Ok(end)
    }
}
