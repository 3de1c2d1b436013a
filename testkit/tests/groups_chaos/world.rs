//! What these tests share: a cluster with a topic that is published to all the time, members as processes of their own,
//! looking at the group through a broker, and the end, when everything must have been delivered and committed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use corelane_client::{Client, GroupDescription, NewTopic, Record, Start};
use corelane_testkit::{Cluster, Process, TestDir, example};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinHandle;

use super::history::{History, Moment, Published, Topic};

pub(crate) const GROUP: &str = "workers";
pub(crate) const TOPIC: &str = "jobs";
/// How long anything that is not slow by nature may take on a busy machine before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The moment, on the clock of the members' files.
pub(crate) fn now() -> Moment {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as Moment * 1_000_000_000 + now.tv_nsec as Moment
}

/// How members are to be.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) lease: Duration,
    /// How long each message is held.
    pub(crate) hold: Duration,
    /// Commit after so many messages and wait for the answer; 0: only as time goes by.
    pub(crate) commit_every: u32,
}

/// A member's process.
pub(crate) struct Member {
    pub(crate) process: Process,
    pub(crate) number: usize,
}

/// All members that there ever were.
pub(crate) struct Members {
    home: TestDir,
    brokers: String,
    manner: Manner,
    count: usize,
}

impl Members {
    pub(crate) fn new(brokers: String, manner: Manner) -> Self {
        Self { home: TestDir::new("members"), brokers, manner, count: 0 }
    }

    /// Starts one more.
    pub(crate) fn start(&mut self) -> Member {
        let number = self.count;
        self.count += 1;
        let command = self.command(number);
        Member { process: Process::start(&command), number }
    }

    /// The same, by a command behind these words.
    pub(crate) fn start_in(&mut self, wrapper: &[String]) -> Member {
        let number = self.count;
        self.count += 1;
        let (command, mut wrapped) = (self.command(number), Command::new(&wrapper[0]));
        wrapped.args(&wrapper[1..]).arg(command.get_program()).args(command.get_args());
        Member { process: Process::start(&wrapped), number }
    }

    fn command(&self, number: usize) -> Command {
        let Manner { lease, hold, commit_every } = self.manner;
        let mut command = Command::new(example("group_member"));
        command.args([&self.brokers, GROUP, TOPIC, &lease.as_millis().to_string(), &hold.as_millis().to_string()]);
        command.arg(commit_every.to_string()).arg(self.file(number));
        command
    }

    fn file(&self, number: usize) -> PathBuf {
        self.home.join(format!("member-{number}"))
    }

    /// What all of them wrote down so far.
    pub(crate) fn history(&self) -> History {
        let files: Vec<PathBuf> = (0..self.count).map(|number| self.file(number)).collect();
        History::read(&files)
    }
}

/// Publishes to every partition, one message after the other.
pub(crate) struct Publisher {
    stop: Arc<AtomicBool>,
    partitions: Vec<JoinHandle<Vec<String>>>,
}

impl Publisher {
    pub(crate) fn start(client: &Client, partitions: u32, every: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let publish = |partition| tokio::spawn(publish(client.clone(), partition, every, stop.clone()));
        Self { partitions: (0..partitions).map(publish).collect(), stop }
    }

    /// Stops, and returns the values that were acknowledged, by partition; all must be.
    pub(crate) async fn stop(self) -> BTreeMap<u32, Vec<String>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut published = BTreeMap::new();
        for (number, partition) in (0..).zip(self.partitions) {
            let values = soon("the last acknowledgements", partition).await.expect("the publisher does not panic");
            published.insert(number, values);
        }
        published
    }
}

async fn publish(client: Client, partition: u32, every: Duration, stop: Arc<AtomicBool>) -> Vec<String> {
    let producer = client.producer().delivery_timeout(Duration::from_mins(10)).build().expect("a producer");
    let (mut values, mut deliveries) = (Vec::new(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let value = format!("{partition}:{}", values.len());
        let record = Record::to(TOPIC).partition(partition).value(value.as_bytes());
        deliveries.push(Box::pin(producer.send(record)).await.expect("a message is taken"));
        values.push(value);
        tokio::time::sleep(every).await;
    }
    for delivery in deliveries {
        delivery.await.expect("a message is acknowledged in the end");
    }
    values
}

/// Awaits `future`; panics, naming `what`, when that takes longer than [`PATIENCE`].
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}

/// A client that begins with these brokers.
pub(crate) async fn client_of(bootstrap: String) -> Client {
    soon("the client to connect", Client::builder().bootstrap(bootstrap).build()).await.expect("a broker is there")
}

/// A client of a cluster in which the topic was just created.
pub(crate) async fn client_with_topic(cluster: &Cluster, partitions: u32) -> Client {
    let client = client_of(cluster.bootstrap()).await;
    make_topic(&client, partitions).await;
    client
}

pub(crate) async fn make_topic(client: &Client, partitions: u32) {
    let topic = NewTopic::named(TOPIC).partitions(partitions);
    soon("the topic", client.admin().create_topic(topic)).await.expect("a topic can be created");
}

/// Everything that the topic holds.
pub(crate) async fn read_topic(client: &Client) -> Topic {
    let builder = client.consumer().topic(TOPIC).start(Start::Earliest).until_end(true);
    let mut consumer = soon("a consumer", builder.build()).await.expect("the topic exists");
    let mut topic = Topic::new();
    while let Some(message) = soon("a message or the end", consumer.next()).await {
        let message = message.expect("a message without an error");
        let value = String::from_utf8(message.value().unwrap_or_default().to_vec()).expect("values are text");
        let published = Published { position: message.position(), next: message.next_position(), value };
        topic.entry(message.partition()).or_default().push(published);
    }
    topic
}

/// Asserts that the topic holds every value that was acknowledged.
#[track_caller]
pub(crate) fn assert_holds(topic: &Topic, published: &BTreeMap<u32, Vec<String>>) {
    for (partition, values) in published {
        let held: std::collections::HashSet<&str> =
            topic.get(partition).into_iter().flatten().map(|message| message.value.as_str()).collect();
        let missing: Vec<&String> = values.iter().filter(|value| !held.contains(value.as_str())).collect();
        assert!(missing.is_empty(), "acknowledged and not there any more: {missing:?}");
    }
}

/// The group as a broker describes it; none: no broker can at the moment.
pub(crate) async fn describe(client: &Client) -> Option<GroupDescription> {
    let asked = tokio::time::timeout(Duration::from_secs(5), client.admin().describe_group(GROUP)).await;
    asked.ok()?.ok()
}

/// Whether every partition of the topic has exactly one owner, who is the one that shall own it and is a member, of whom
/// there are so many.
pub(crate) fn is_settled(group: &GroupDescription, partitions: u32, members: usize) -> bool {
    let is_member = |id: &Option<String>| group.members.iter().any(|member| Some(&member.member_id) == id.as_ref());
    let is_fine = |partition: &&corelane_client::PartitionOfGroup| {
        partition.owner == partition.target && is_member(&partition.owner)
    };
    group.members.len() == members && group.partitions.iter().filter(is_fine).count() == partitions as usize
}

/// Waits until the group is settled; says how long that took.
pub(crate) async fn settle(client: &Client, partitions: u32, members: usize) -> Duration {
    let began = std::time::Instant::now();
    let mut last = None;
    while began.elapsed() < PATIENCE {
        last = describe(client).await;
        if last.as_ref().is_some_and(|group| is_settled(group, partitions, members)) {
            return began.elapsed();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the group is not settled after {PATIENCE:?}: {last:#?}");
}

/// How far each partition is committed, and its end.
async fn progress(client: &Client) -> Option<BTreeMap<u32, (Option<u64>, u64)>> {
    let topic = client.admin().describe_topic(TOPIC).await.ok()?;
    let group = describe(client).await?;
    let committed = |partition: u32| {
        let found = group.partitions.iter().find(|found| found.partition == partition)?;
        Some(found.committed?.1)
    };
    Some(topic.details.iter().map(|at| (at.partition, (committed(at.partition), at.end))).collect())
}

/// Waits until everything that was published is committed, for as long as it gets on.
pub(crate) async fn catch_up(client: &Client) {
    let (mut last, mut advanced) = (BTreeMap::new(), std::time::Instant::now());
    while advanced.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let Some(now) = progress(client).await else { continue };
        if now.values().all(|(committed, end)| *end == 0 || *committed == Some(*end)) {
            return;
        }
        if now != last {
            (last, advanced) = (now, std::time::Instant::now());
        }
    }
    panic!("nothing more was committed for {PATIENCE:?}; committed and end of each partition: {last:?}");
}
