//! One partition under test, across the lives of a history: its model, its options, its handle while it is open.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use corelane_log::sim::SimEnv;
use corelane_log::{Partition, PartitionOptions, TopicConfig};
use corelane_proto::ids::{Position, TopicId, TopicName};

use crate::damage::Injury;
use crate::dice::Dice;
use crate::oracle::{Keeping, Oracle};
use crate::plan::Plan;
use crate::sets::SetMaker;

pub(crate) const DATA_DIR: &str = "/data";
/// Where the one shard's checkpoint lies.
pub(crate) const CHECKPOINT: &str = "/data/checkpoint-000";
pub(crate) const TOPIC_ID: TopicId = TopicId([1; 16]);

/// The topic that a partition belongs to.
#[derive(Clone)]
pub(crate) struct Home {
    topic: TopicName,
    pub(crate) topic_id: TopicId,
    pub(crate) dir: PathBuf,
}

impl Home {
    pub(crate) fn new(topic: TopicName, topic_id: TopicId) -> Self {
        let dir = Path::new(DATA_DIR).join(format!("{topic}~{}", topic_id.short()));
        Self { topic, topic_id, dir }
    }
}

/// A partition of the history.
pub(crate) struct Log {
    pub(crate) number: u32,
    pub(crate) home: Home,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) sets: RefCell<SetMaker>,
    pub(crate) origin: u64,
    /// It was created, and that was confirmed.
    pub(crate) made: Cell<bool>,
    pub(crate) config: RefCell<TopicConfig>,
    pub(crate) handle: RefCell<Option<Partition<SimEnv>>>,
    /// Its topic is deleted, or about to be.
    pub(crate) is_deleted: Cell<bool>,
    /// What was done to it since it was last open.
    pub(crate) injury: RefCell<Option<Rc<Injury>>>,
    /// The last segment as the last power cut left it: its base and its bytes.
    pub(crate) left: RefCell<Option<(u64, Vec<u8>)>>,
    keeping: Cell<Keeping>,
}

impl Log {
    pub(crate) fn new(number: u32, home: Home, plan: &Plan, dice: &Dice) -> Rc<Self> {
        let origin = dice.pick(&[0, 0, 0, 1, 7_777, 1 << 40]);
        let config = plan.config(dice);
        Rc::new(Self {
            number,
            oracle: RefCell::new(Oracle::new(format!("partition {}/{number}", home.topic), origin)),
            home,
            sets: RefCell::new(SetMaker::new(dice, plan.set_bytes_max as usize)),
            origin,
            made: Cell::new(false),
            keeping: Cell::new(keeping_of(&config)),
            config: RefCell::new(config),
            handle: RefCell::new(None),
            is_deleted: Cell::new(false),
            injury: RefCell::new(None),
            left: RefCell::new(None),
        })
    }

    pub(crate) fn options(&self, window: u64, window_max_ever: u64) -> PartitionOptions {
        let mut options = PartitionOptions::new(self.home.topic.clone(), self.home.topic_id, self.number);
        options.start = Position(self.origin);
        options.config = self.config.borrow().clone();
        options.unflushed_bytes_max = window;
        options.window_max_ever = window_max_ever;
        options
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.home.dir.join(self.number.to_string())
    }

    /// The open partition.
    pub(crate) fn partition(&self) -> Partition<SimEnv> {
        self.handle.borrow().clone().expect("the actors run while the partition is open")
    }

    /// One injury is enough: behind it nothing is known any more of where messages begin.
    pub(crate) fn may_be_hurt(&self) -> bool {
        self.made.get() && self.injury.borrow().is_none() && !self.oracle.borrow().is_tainted
    }

    pub(crate) fn keeping(&self) -> Keeping {
        self.keeping.get()
    }

    /// What was in force before counts no more.
    pub(crate) fn forget_keeping(&self) {
        self.keeping.set(Keeping { trimmed_to: self.keeping().trimmed_to, ..keeping_of(&self.config.borrow()) });
    }

    pub(crate) fn will_configure(&self, config: &TopicConfig) {
        let (old, new) = (self.keeping(), keeping_of(config));
        let least = |a: Option<_>, b: Option<_>| a.into_iter().chain(b).min();
        self.keeping.set(Keeping {
            retention: old.retention.into_iter().chain(new.retention).min(),
            retention_bytes: least(old.retention_bytes, new.retention_bytes),
            trimmed_to: old.trimmed_to,
        });
        *self.config.borrow_mut() = config.clone();
    }

    pub(crate) fn will_trim(&self, to: u64) {
        let keeping = self.keeping();
        self.keeping.set(Keeping { trimmed_to: keeping.trimmed_to.max(to), ..keeping });
    }
}

fn keeping_of(config: &TopicConfig) -> Keeping {
    Keeping {
        retention: (config.retention_ms > 0).then(|| Duration::from_millis(config.retention_ms)),
        retention_bytes: (config.retention_bytes > 0).then_some(config.retention_bytes),
        trimmed_to: 0,
    }
}
