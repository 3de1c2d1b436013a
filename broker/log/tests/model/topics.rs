//! A topic that comes and goes: made, published to, deleted, made again under its name, with crashes in between anywhere.
//! The registry's part is a plain list that no crash touches. What it knows to be made is there after a crash; what was
//! deleted never comes back once that was answered, and until then is there whole.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use corelane_log::checkpoint::Floors;
use corelane_log::data_dir::{DataDir, DataDirError, FORMAT_VERSION, FoundTopic, TopicIdentity};
use corelane_log::env::Env;
use corelane_log::sim::SimDisk;
use corelane_proto::ids::{TopicId, TopicName};

use crate::dice::Dice;
use crate::history::count;
use crate::life::Life;
use crate::log::{DATA_DIR, Home, Log};
use crate::plan::Plan;

/// How often something is tried while the disk answers with EIO, before the disk is mended.
const TRIES: usize = 4;

/// One life of the passing topic, from its creation to its deletion.
pub(crate) struct Topic {
    identity: TopicIdentity,
    pub(crate) logs: Vec<Rc<Log>>,
    /// Its directory was made, and that was confirmed.
    is_made: Cell<bool>,
    /// Its deletion was confirmed.
    is_gone: Cell<bool>,
}

/// All topics of a history, as the registry knows them.
pub(crate) struct Topics {
    /// The partitions of the topic that stays.
    pub(crate) lasting: Vec<Rc<Log>>,
    passing: RefCell<Option<Rc<Topic>>>,
    deleted: RefCell<Vec<Rc<Topic>>>,
}

fn name() -> TopicName {
    "passing".parse().expect("a topic's name")
}

impl Topics {
    pub(crate) fn new(lasting: Vec<Rc<Log>>) -> Self {
        Self { lasting, passing: RefCell::default(), deleted: RefCell::default() }
    }

    /// The partitions that are open, or are to be.
    pub(crate) fn logs(&self) -> Vec<Rc<Log>> {
        let passing = self.passing.borrow();
        let passing = passing.iter().flat_map(|topic| &topic.logs);
        self.lasting.iter().chain(passing).filter(|log| log.handle.borrow().is_some()).cloned().collect()
    }

    /// Ends a life: no handle is left, of deleted partitions neither.
    pub(crate) fn drop_handles(&self) {
        let (passing, deleted) = (self.passing.borrow(), self.deleted.borrow());
        let logs = passing.iter().chain(deleted.iter()).flat_map(|topic| &topic.logs);
        logs.chain(&self.lasting).for_each(|log| *log.handle.borrow_mut() = None);
    }

    /// The registry knows a new topic.
    fn create(&self, plan: &Plan, dice: &Dice) -> Rc<Topic> {
        let mut topic_id = TopicId([2; 16]);
        topic_id.0[0] = self.deleted.borrow().len() as u8;
        let home = Home::new(name(), topic_id);
        let logs: Vec<Rc<Log>> =
            (0..=dice.below(2) as u32).map(|number| Log::new(number, home.clone(), plan, dice)).collect();
        let identity = TopicIdentity {
            format_version: FORMAT_VERSION,
            topic_id,
            name: name(),
            partitions: logs.len() as u32,
            config: plan.config(dice),
        };
        let topic = Rc::new(Topic { identity, logs, is_made: Cell::new(false), is_gone: Cell::new(false) });
        *self.passing.borrow_mut() = Some(topic.clone());
        topic
    }
}

impl Life {
    fn data_dir(&self) -> DataDir<SimDisk> {
        DataDir::new(self.stage.env.disk().clone(), DATA_DIR)
    }

    /// Whether the disk may be the cause; after some tries it is mended.
    async fn excuse(&self, what: &str, error: &DataDirError, tries: &mut usize) {
        let full = matches!(error, DataDirError::Disk { cause, .. } if cause.kind() == std::io::ErrorKind::StorageFull);
        assert!(self.stage.may_fail || full, "{what} failed though the disk is well: {error}");
        *tries += 1;
        if *tries == TRIES {
            self.mend_disk();
        }
        self.stage.pause().await;
    }

    /// At a start: what the registry knows is made true.
    pub(crate) async fn settle_topics(&self, floors: &Floors) {
        let found = self.found_topics().await;
        let path = |topic: &Topic| self.data_dir().topic_path(&name(), topic.identity.topic_id);
        let find = |topic: &Topic| found.iter().find(|found| found.path == path(topic));
        let deleted = self.topics.deleted.borrow().clone();
        for topic in deleted {
            if let Some(left) = find(&topic) {
                assert!(!topic.is_gone.get(), "a deleted topic came back: {left:?}");
                self.check_whole(&topic, left).await;
            }
            if !topic.is_gone.get() {
                self.remove(&topic).await;
            }
        }
        let passing = self.topics.passing.borrow().clone();
        if let Some(topic) = passing {
            if topic.is_made.get() {
                let found = find(&topic).unwrap_or_else(|| panic!("a topic that was made is gone: {found:?}"));
                self.check_identity(&topic, found);
            }
            self.make(&topic, floors).await;
        }
    }

    async fn found_topics(&self) -> Vec<FoundTopic> {
        let mut tries = 0;
        loop {
            match self.data_dir().topics().await {
                Ok(found) => return found,
                Err(error) => self.excuse("listing the topics", &error, &mut tries).await,
            }
        }
    }

    fn check_identity(&self, topic: &Topic, found: &FoundTopic) {
        match &found.identity {
            Ok(identity) => assert_eq!(*identity, topic.identity),
            Err(error) => assert!(self.stage.may_fail, "a topic's identity is gone: {error}"),
        }
    }

    /// A topic whose deletion was not answered has all its partitions, or has no directory of its name any more.
    async fn check_whole(&self, topic: &Topic, found: &FoundTopic) {
        self.check_identity(topic, found);
        let numbers: Vec<u32> = topic.logs.iter().map(|log| log.number).collect();
        assert_eq!(found.partitions, numbers, "half a topic is left of a deletion");
        for number in numbers {
            match self.data_dir().partition_epoch(&found.path, number).await {
                Ok(epoch) => assert!(epoch.is_some(), "half a topic is left of a deletion"),
                Err(error) => assert!(self.stage.may_fail, "listing failed though the disk is well: {error}"),
            }
        }
    }

    /// Makes the topic's directory and opens its partitions; what is made already stays.
    async fn make(&self, topic: &Topic, floors: &Floors) {
        let mut tries = 0;
        while let Err(error) = self.data_dir().put_topic(&topic.identity).await {
            self.excuse("making a topic", &error, &mut tries).await;
        }
        topic.is_made.set(true);
        for log in &topic.logs {
            self.open(log, floors).await;
        }
    }

    /// Takes a deleted topic's directory away. What the disk does not let happen now, the next life tries again.
    async fn remove(&self, topic: &Topic) {
        let mut tries = 0;
        while tries < TRIES {
            match self.data_dir().delete_topic(&name(), topic.identity.topic_id).await {
                Ok(()) => {
                    topic.is_gone.set(true);
                    break;
                }
                Err(error) => self.excuse("deleting a topic", &error, &mut tries).await,
            }
        }
        if let Err(error) = self.data_dir().remove_deleted().await {
            self.excuse("removing a deleted topic", &error, &mut tries).await;
        }
    }

    /// The actor: whoever makes and deletes topics.
    pub(crate) async fn come_and_go(self: Rc<Self>) {
        for _ in 0..=self.stage.dice.below(4) {
            self.stage.pause().await;
            let passing = self.topics.passing.borrow().clone();
            match passing {
                None => {
                    let topic = self.topics.create(&self.stage.plan, &self.stage.dice);
                    self.stage.env.trace(|| format!("make topic {}", topic.identity.topic_id));
                    self.make(&topic, &Floors::default()).await;
                    topic.logs.iter().for_each(|log| self.spawn_actors_of(log));
                }
                Some(topic) => self.delete(&topic).await,
            }
        }
    }

    async fn delete(&self, topic: &Rc<Topic>) {
        let mut other = topic.identity.topic_id;
        other.0[15] ^= 1;
        let refused = self.data_dir().delete_topic(&name(), other).await;
        assert!(refused.is_err(), "a topic was deleted by another one's id that begins alike");

        self.stage.env.trace(|| format!("delete topic {}", topic.identity.topic_id));
        for log in &topic.logs {
            log.is_deleted.set(true);
        }
        self.topics.deleted.borrow_mut().push(topic.clone());
        *self.topics.passing.borrow_mut() = None;
        for log in &topic.logs {
            log.partition().abandon().await;
        }
        self.remove(topic).await;
        count(&self.counts.deleted);
    }
}

/// Where the lasting topic lies: its directory is made before anything goes wrong.
pub(crate) fn lasting_home() -> Home {
    Home::new("t".parse().expect("a topic's name"), crate::log::TOPIC_ID)
}
