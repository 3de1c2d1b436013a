//! A member of a group as a process of its own, for tests that kill it, pause it and cut it off. What it meets it writes
//! into a file, a line each with a time of the clock that all processes of a machine share, so that the lines of all
//! members together are the history of their group. A line is one write: none is lost with the process.
//!
//! `group_member BROKERS GROUP TOPIC LEASE_MS HOLD_MS COMMIT_EVERY FILE`: it holds each message for `HOLD_MS` and, unless
//! `COMMIT_EVERY` is 0, commits after so many and waits for the answer. SIGTERM lets it leave.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use corelane_client::{Client, Fence, GroupConsumer, GroupError, GroupMessage, GroupPartition};
use rustix::time::{ClockId, clock_gettime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How often positions are committed without being asked for.
const COMMIT_INTERVAL: Duration = Duration::from_millis(200);
/// How long the answer to a commit is waited for.
const COMMIT_WAIT: Duration = Duration::from_secs(3);

fn now_ns() -> u128 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u128 * 1_000_000_000 + now.tv_nsec as u128
}

/// The history's file.
#[derive(Clone)]
struct Log(Arc<File>);

impl Log {
    fn write(&self, line: &str) {
        self.write_at(now_ns(), line);
    }

    fn write_at(&self, at_ns: u128, line: &str) {
        (&*self.0).write_all(format!("{at_ns} {line}\n").as_bytes()).expect("the history can be written");
    }

    /// A callback that notes an event of a partition.
    fn of(&self, event: &'static str) -> impl Fn(&GroupPartition) + Send + Sync + 'static {
        let log = self.clone();
        move |partition| log.write(&format!("{event} {} {}", partition.partition, numbers(partition.fence)))
    }
}

fn numbers(fence: Fence) -> String {
    format!("{} {}", fence.incarnation, fence.number)
}

/// The next item, and when its delivery was decided on at the earliest.
async fn next(consumer: &mut GroupConsumer) -> (u128, Option<Result<GroupMessage, GroupError>>) {
    let mut next = pin!(consumer.next());
    std::future::poll_fn(|context| {
        let before = now_ns();
        next.as_mut().poll(context).map(|item| (before, item))
    })
    .await
}

/// Commits, and notes what was answered.
async fn commit(consumer: &mut GroupConsumer, log: &Log) {
    match tokio::time::timeout(COMMIT_WAIT, consumer.commit()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return log.write(&format!("refused {error}")),
        Err(_) => return log.write("unanswered"),
    }
    for partition in consumer.assignment() {
        if let Some((epoch, position)) = partition.committed {
            let fence = numbers(partition.fence);
            log.write(&format!("committed {} {fence} {epoch} {position}", partition.partition));
        }
    }
}

async fn work(mut consumer: GroupConsumer, terminated: &mut Signal, hold: Duration, commit_every: u64, log: &Log) {
    let mut count = 0;
    loop {
        let (before, item) = tokio::select! {
            biased;
            _ = terminated.recv() => break,
            next = next(&mut consumer) => next,
        };
        match item {
            Some(Ok(message)) => {
                let (partition, fence) = (message.partition(), numbers(message.fence()));
                let place = format!("{} {} {}", message.epoch(), message.position(), message.next_position());
                let value = String::from_utf8_lossy(message.value().unwrap_or_default());
                log.write(&format!("deliver {partition} {fence} {place} {before} {value}"));
                tokio::time::sleep(hold).await;
                count += 1;
                if commit_every > 0 && count % commit_every == 0 {
                    commit(&mut consumer, log).await;
                }
            }
            Some(Err(error)) => log.write(&format!("error {error}")),
            None => return log.write("over"),
        }
    }
    log.write("leave");
    match consumer.close().await {
        Ok(()) => log.write("left"),
        Err(error) => log.write(&format!("left {error}")),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, group, topic, lease_ms, hold_ms, commit_every, file] = &arguments[..] else {
        return Err("group_member BROKERS GROUP TOPIC LEASE_MS HOLD_MS COMMIT_EVERY FILE".into());
    };
    let mut terminated = signal(SignalKind::terminate())?;
    let log = Log(Arc::new(OpenOptions::new().create(true).append(true).open(file)?));
    log.write("start");
    let client = loop {
        match Client::builder().bootstrap(brokers.clone()).build().await {
            Ok(client) => break client,
            Err(error) => log.write(&format!("error {error}")),
        }
    };
    let builder = client.group(group.clone()).topic(topic.clone()).lease(Duration::from_millis(lease_ms.parse()?));
    let builder = builder.commit_interval(COMMIT_INTERVAL).on_claim(log.of("claim"));
    let consumer = builder.on_release(log.of("release")).on_lost(log.of("lost")).build()?;
    let hold = Duration::from_millis(hold_ms.parse()?);
    work(consumer, &mut terminated, hold, commit_every.parse()?, &log).await;
    Ok(())
}
