//! What must outlive any death of a broker, whatever it was at: a broker at work on several topics at once, notes of all
//! that was acknowledged or seen, and the check of what is there afterwards. How it dies is the callers' business.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use corelane_client::{Acks, Client, NewTopic, Record, Start};
use corelane_testkit::Broker;
use tokio::task::JoinSet;

use crate::support::{
    Seen, connect, create, details, eventually, number, numbered, read_to_end, seen, small_segments, soon,
};

/// The topics that are published to: name, partitions, whether retention is at work on them.
const TOPICS: [(&str, u32, bool); 2] = [("steady", 3, false), ("expiring", 2, true)];
/// Every set has so many messages, so that a half set shows.
const SET_MESSAGES: u64 = 8;
const VALUE_BYTES: usize = 700;
/// So many sets at most in one life and partition: what is read again after each death stays small.
const SETS_A_LIFE: u64 = 60;
/// The topics that come and go have these names and a number.
const PASSING: &str = "passing-";

/// A place in the log: topic, partition, position.
type Place = (&'static str, u32, u64);

/// What is known of a topic that comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Asked for, or asked to go; the answer was lost.
    Unknown,
    Created,
    Deleted,
}

#[derive(Default)]
struct Notes {
    /// The number of the next message of a partition.
    next: HashMap<(&'static str, u32), u64>,
    /// Messages acknowledged as durable.
    acknowledged: HashMap<Place, u64>,
    /// Messages that a consumer got: what, and where the next one begins.
    seen: HashMap<Place, (u64, u64)>,
    passing: BTreeMap<String, Fate>,
}

/// Counts of a whole run.
pub(crate) struct Survived {
    pub(crate) deaths: u64,
    pub(crate) acknowledged: usize,
    pub(crate) seen: usize,
    pub(crate) topics_come_and_gone: usize,
    pub(crate) stored: usize,
}

impl fmt::Display for Survived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deaths, acknowledged, seen, topics_come_and_gone, stored } = self;
        write!(
            f,
            "{deaths} deaths; {acknowledged} messages acknowledged, {seen} seen, {stored} stored; \
             {topics_come_and_gone} topics come and gone"
        )
    }
}

/// The work and the notes of it.
#[derive(Clone, Default)]
pub(crate) struct Survival {
    notes: Arc<Mutex<Notes>>,
}

impl Survival {
    /// Makes the topics that stay.
    pub(crate) async fn prepare(broker: &Broker) -> Survival {
        let client = connect(broker).await;
        for (topic, partitions, is_expiring) in TOPICS {
            let settings = if is_expiring { small_segments().retention_bytes(128 << 10) } else { small_segments() };
            create(&client, topic, partitions, settings).await;
        }
        Survival::default()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().expect("nobody panics with the notes")
    }

    /// Sets everything to work on a broker that is ready; ends with the set's drop.
    pub(crate) async fn work(&self, broker: &Broker, life: u64) -> JoinSet<()> {
        let client = connect(broker).await;
        let mut work = JoinSet::new();
        for (topic, partitions, _) in TOPICS {
            for partition in 0..partitions {
                work.spawn(self.clone().publish(client.clone(), topic, partition));
            }
            work.spawn(self.clone().watch(client.clone(), topic));
        }
        work.spawn(self.clone().come_and_go(client, life));
        work
    }

    /// Publishes sets to one partition, a few under way at a time, and notes what is acknowledged.
    async fn publish(self, client: Client, topic: &'static str, partition: u32) {
        let builder = client.producer().acks(Acks::Durable).batch_messages_max(SET_MESSAGES as u32);
        let producer = builder.linger(Duration::from_hours(1)).build().expect("a producer");
        let mut acknowledging = JoinSet::new();
        // A life may have ended while a message was numbered and not yet taken: sets begin at multiples again.
        let begin = |next: &mut u64| *next = next.next_multiple_of(SET_MESSAGES);
        self.notes().next.entry((topic, partition)).and_modify(begin);
        for _ in 0..SETS_A_LIFE {
            for _ in 0..SET_MESSAGES {
                let at = {
                    let mut notes = self.notes();
                    let next = notes.next.entry((topic, partition)).or_default();
                    *next += 1;
                    *next - 1
                };
                let value = numbered(at, VALUE_BYTES);
                let record = Record::to(topic).partition(partition).value(&value);
                let Ok(delivery) = producer.send(record).await else { return };
                let notes = Arc::clone(&self.notes);
                acknowledging.spawn(async move {
                    if let Ok(delivered) = delivery.await {
                        let place = (topic, partition, delivered.position.expect("a position"));
                        let before = notes.lock().expect("notes").acknowledged.insert(place, at);
                        assert_eq!(before, None, "two messages were acknowledged at {place:?}");
                    }
                });
            }
            while acknowledging.len() as u64 > 4 * SET_MESSAGES {
                acknowledging.join_next().await.expect("some are left").expect("noted");
            }
        }
        while let Some(noted) = acknowledging.join_next().await {
            noted.expect("noted");
        }
    }

    /// Follows a topic and notes what it sees.
    async fn watch(self, client: Client, topic: &'static str) {
        let builder = client.consumer().topic(topic).start(Start::Earliest);
        let Ok(mut consumer) = builder.build().await else { return };
        while let Some(message) = consumer.next().await {
            let Ok(message) = message else { continue };
            let seen = seen(&message);
            let place = (topic, seen.partition, seen.position);
            let is = (number(&seen.value), seen.next_position);
            let before = self.notes().seen.insert(place, is);
            assert!(before.is_none_or(|before| before == is), "{place:?} was {before:?} and is {is:?}");
        }
    }

    /// Makes topics and deletes every second one.
    async fn come_and_go(self, client: Client, life: u64) {
        for at in 0.. {
            let name = format!("{PASSING}{life}-{at}");
            let note = |fate| {
                self.notes().passing.insert(name.clone(), fate);
            };
            note(Fate::Unknown);
            let topic = NewTopic::named(&name).partitions(2).settings(small_segments());
            if client.admin().create_topic(topic).await.is_err() {
                return;
            }
            note(Fate::Created);
            if at % 2 == 0 {
                note(Fate::Unknown);
                if client.admin().delete_topic(&name).await.is_err() {
                    return;
                }
                note(Fate::Deleted);
            }
        }
    }

    /// Looks at all that is there, on a broker that has just started: nothing acknowledged or seen may be missing, nothing
    /// else may be there.
    pub(crate) async fn check(&self, broker: &Broker) -> usize {
        let client = connect(broker).await;
        self.check_topics(&client).await;
        let mut count = 0;
        for (topic, partitions, _) in TOPICS {
            eventually("every partition to serve", async || details(&client, topic).await.len() == partitions as usize)
                .await;
            for partition in 0..partitions {
                let builder = client.consumer().partition(topic, partition).start(Start::Earliest);
                let stored = read_to_end(builder).await;
                let detail = details(&client, topic).await.swap_remove(partition as usize);
                assert_eq!(detail.visible_end, detail.end, "{topic}/{partition} is quiet");
                self.check_partition((topic, partition), &stored, detail.start, detail.end);
                count += stored.len();
            }
        }
        count
    }

    fn check_partition(&self, (topic, partition): (&'static str, u32), stored: &[Seen], start: u64, end: u64) {
        let label = format!("{topic}/{partition}");
        assert!(stored.windows(2).all(|pair| pair[0].next_position == pair[1].position), "{label}: ids are contiguous");
        if let Some(last) = stored.last() {
            assert_eq!(last.next_position, end, "{label} was read to its end");
        }
        let notes = self.notes();
        let issued = notes.next.get(&(topic, partition)).copied().unwrap_or_default();
        let numbers: Vec<u64> = stored.iter().map(|seen| number(&seen.value)).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{label}: in the order published, each once");
        assert!(numbers.iter().all(|number| *number < issued), "{label}: nothing that was not published");
        // A set is there whole: it ends where it was made to end, and no message of it is missing. Retention takes whole
        // segments, and a set never spans two.
        for set in stored.chunks(SET_MESSAGES as usize) {
            let first = number(&set[0].value);
            assert!(first.is_multiple_of(SET_MESSAGES), "{label}: a set begins with message {first}");
            assert_eq!(set.len() as u64, SET_MESSAGES, "{label}: a set is there whole");
            for (at, message) in set.iter().enumerate() {
                assert_eq!(number(&message.value), first + at as u64, "{label}: a set is there whole");
                assert_eq!(message.ends_set, at as u64 + 1 == SET_MESSAGES, "{label}: a set's end is marked");
            }
        }
        let by_place: HashMap<u64, u64> = stored.iter().map(|seen| (seen.position, number(&seen.value))).collect();
        let here = |place: &Place| (place.0, place.1) == (topic, partition);
        let gone = |position: u64| position < start;
        for (place, number) in notes.acknowledged.iter().filter(|(place, _)| here(place)) {
            let found = by_place.get(&place.2);
            assert!(found == Some(number) || gone(place.2), "{label}: {number} was acknowledged at {}", place.2);
        }
        for (place, (number, next)) in notes.seen.iter().filter(|(place, _)| here(place)) {
            let found = by_place.get(&place.2);
            assert!(found == Some(number) || gone(place.2), "{label}: {number} was seen at {}", place.2);
            assert!(*next <= end, "{label}: the end {end} is below {next}, which was served");
        }
    }

    async fn check_topics(&self, client: &Client) {
        let topics = soon("the topics", client.admin().list_topics()).await.expect("topics are listed");
        let there: Vec<String> =
            topics.into_iter().map(|topic| topic.name).filter(|name| name.starts_with(PASSING)).collect();
        let fates = self.notes().passing.clone();
        for (name, fate) in &fates {
            match fate {
                Fate::Created => assert!(there.contains(name), "{name} was created and is gone"),
                Fate::Deleted => assert!(!there.contains(name), "{name} was deleted and is there"),
                Fate::Unknown => {}
            }
        }
        for name in &there {
            assert!(fates.contains_key(name), "{name} was never asked for");
            // It serves, and it can go.
            eventually("its partitions to serve", async || details(client, name).await.len() == 2).await;
            soon("a deletion", client.admin().delete_topic(name)).await.expect("a topic can be deleted");
        }
        let mut notes = self.notes();
        notes.passing.values_mut().for_each(|fate| *fate = Fate::Deleted);
    }

    /// The counts so far.
    pub(crate) fn survived(&self, deaths: u64, stored: usize) -> Survived {
        let notes = self.notes();
        Survived {
            deaths,
            acknowledged: notes.acknowledged.len(),
            seen: notes.seen.len(),
            topics_come_and_gone: notes.passing.len(),
            stored,
        }
    }
}
