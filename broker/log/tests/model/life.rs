//! One life of the broker: the partitions are opened and checked, then everybody is at work until the life ends, in order
//! or by a crash from outside, which may come at any step of this.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use corelane_log::checkpoint::{self, Checkpoint, Floors};
use corelane_log::env::Env;
use corelane_log::sim::{Faults, SimEnv};
use corelane_log::{CheckpointEntry, ClosedReason, Driver, OpenError, Partition, Recovered, Shard};
use corelane_proto::ids::Position;

use crate::actors::Stage;
use crate::history::Counts;
use crate::log::{DATA_DIR, Log};
use crate::topics::Topics;

/// How often opening is tried while the disk answers with EIO, before the disk is mended.
const OPEN_TRIES: usize = 4;

/// A life and what it needs to know of the ones before.
pub(crate) struct Life {
    pub(crate) stage: Rc<Stage>,
    pub(crate) topics: Rc<Topics>,
    pub(crate) shard: Shard<SimEnv>,
    /// The write window of this life, and the largest of all.
    pub(crate) window: u64,
    pub(crate) window_max_ever: u64,
    /// Nothing goes wrong, everything ends.
    pub(crate) calm: bool,
    pub(crate) counts: Rc<Counts>,
}

impl Life {
    /// Lives. Done only when the life ended in order.
    pub(crate) async fn run(self: &Rc<Self>) -> bool {
        let floors = self.read_checkpoints().await;
        let opened = self.topics.lasting.iter().map(|log| self.open(log, &floors));
        futures_util::future::join(self.settle_topics(&floors), futures_util::future::join_all(opened)).await;
        self.counts.opened.set(self.counts.opened.get() + 1);
        self.spawn_actors();
        self.stage.at_work.all_done().await;
        self.mend_disk();
        if self.calm {
            for log in self.topics.logs() {
                self.check_publishing_works(&log).await;
            }
        }
        self.close().await
    }

    pub(crate) fn mend_disk(&self) {
        self.stage.env.disk().set_faults(Faults::default());
    }

    async fn read_checkpoints(&self) -> Floors {
        loop {
            match checkpoint::read_all(self.stage.env.disk(), Path::new(DATA_DIR)).await {
                Ok(floors) => return floors,
                Err(error) => {
                    assert!(self.stage.may_fail, "reading the checkpoint failed though the disk is well: {error}");
                    self.stage.pause().await;
                }
            }
        }
    }

    // Opening --------------------------------------------------------------------------------------------------------

    pub(crate) async fn open(&self, log: &Rc<Log>, floors: &Floors) {
        let floor = floors.of(log.home.topic_id, log.number);
        let clean = floors.was_clean(self.stage.starts - 1);
        let mut tries = 0;
        let (partition, driver, recovered) = loop {
            match self.try_open(log, floor, clean).await {
                Ok(opened) => break opened,
                Err(OpenError::Disk { what, path, source }) => {
                    let full = source.kind() == std::io::ErrorKind::StorageFull;
                    let excused = self.stage.may_fail || full && self.stage.plan.full > 0.0;
                    assert!(excused, "{what} {}: {source}, though the disk is well", path.display());
                    tries += 1;
                    if tries == OPEN_TRIES {
                        self.mend_disk();
                    }
                    self.stage.pause().await;
                }
                Err(error) => panic!("partition {} refused: {error}", log.number),
            }
        };
        // The driver must wait, or it would expire what is being checked.
        self.check_recovered(log, &partition, recovered.as_ref()).await;
        self.stage.env.spawn("driver", driver.run());
        *log.handle.borrow_mut() = Some(partition);
    }

    async fn try_open(
        &self,
        log: &Rc<Log>,
        floor: Option<CheckpointEntry>,
        clean: bool,
    ) -> Result<(Partition<SimEnv>, Driver<SimEnv>, Option<Recovered>), OpenError> {
        let options = log.options(self.window, self.window_max_ever);
        let dir = &log.home.dir;
        if !log.made.get() {
            match Partition::create(&self.shard, dir, &options).await {
                Ok((partition, driver)) => {
                    log.made.set(true);
                    return Ok((partition, driver, None));
                }
                Err(OpenError::Exists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let (partition, driver, recovered) = Partition::open(&self.shard, dir, &options, floor, clean).await?;
        log.made.set(true);
        Ok((partition, driver, Some(recovered)))
    }

    /// After each recovery the log is what was published, up to a set end that is not below anything that was visible.
    async fn check_recovered(&self, log: &Rc<Log>, partition: &Partition<SimEnv>, recovered: Option<&Recovered>) {
        let bounds = partition.bounds();
        let (start, end) = (bounds.start.0, bounds.end.0);
        self.stage.env.trace(|| format!("partition {} opened: {bounds:?} {recovered:?}", log.number));
        assert_eq!(bounds.visible_end.0, end, "all that recovery found is visible");
        assert_eq!(bounds.durable_end.0, end, "all that recovery found is durable");
        let stage = &self.stage;
        let now = stage.env.monotonic();
        log.oracle.borrow_mut().start_moved(start, end, log.keeping(), now, stage.boot, &stage.wall);
        let injury = log.injury.borrow().clone();
        if let Some(injury) = injury {
            self.check_injured(log, partition, &injury).await;
            log.forget_keeping();
            return;
        }
        let known = log.oracle.borrow().end();
        if end > known {
            let unknown = self.read_all(partition, known.max(start), end).await;
            log.oracle.borrow_mut().absorb(&unknown);
        }
        log.oracle.borrow_mut().recovered(start, end);
        self.check_copy(log, partition, end);
        log.forget_keeping();
        let bytes = self.read_all(partition, start, end).await;
        log.oracle.borrow().check_read(start, &bytes);
        if let Some(recovered) = recovered {
            self.counts.recovered(recovered);
            let tainted = log.oracle.borrow().is_tainted;
            assert!(tainted || recovered.damage.is_none(), "partition {}: a crash was taken for damage", log.number);
        }
        if let Some(reason) = partition.closed() {
            assert!(
                has_no_room_for_copy(partition) && stage.plan.full > 0.0,
                "partition {} opened but closed: {reason}",
                log.number
            );
        }
    }

    /// Of what the last power cut left behind the end a copy is kept, however often recovery was interrupted.
    fn check_copy(&self, log: &Log, partition: &Partition<SimEnv>, end: u64) {
        let Some((base, content)) = log.left.borrow_mut().take_if(|_| !has_no_room_for_copy(partition)) else { return };
        let Some(tail) = end.checked_sub(base).and_then(|from| content.get(from as usize..)) else { return };
        let Some(last) = tail.iter().rposition(|byte| *byte != 0) else { return };
        let disk = self.stage.env.disk();
        let paths = disk.paths();
        let mut copies =
            paths.iter().filter(|path| path.starts_with(log.dir()) && path.to_string_lossy().contains(".cut-"));
        let kept = copies.any(|path| disk.content(path).is_some_and(|copy| copy == tail[..=last]));
        assert!(kept, "partition {}: {} bytes behind {end} were cut without a copy", log.number, last + 1);
    }

    pub(crate) async fn read_all(&self, partition: &Partition<SimEnv>, start: u64, end: u64) -> Vec<u8> {
        let mut bytes: Vec<u8> = Vec::new();
        loop {
            let at = start + bytes.len() as u64;
            if at == end {
                return bytes;
            }
            let more = match partition.read(Position(at), 64 << 10).await {
                Ok(pieces) => self.stage.fetch(pieces).await,
                Err(error) => {
                    self.stage.check_read_error(&error, false);
                    None
                }
            };
            match more {
                Some(more) => {
                    assert!(!more.is_empty(), "nothing to read at {at} below the end {end}");
                    bytes.extend(more);
                }
                None => self.mend_disk(),
            }
        }
    }

    // Work -----------------------------------------------------------------------------------------------------------

    pub(crate) fn spawn_actors_of(&self, log: &Rc<Log>) {
        let stage = &self.stage;
        for _ in 0..stage.plan.publishers {
            stage.spawn("publisher", stage.clone().publish(log.clone()));
        }
        for _ in 0..stage.plan.consumers {
            stage.spawn("consumer", stage.clone().consume(log.clone()));
        }
        stage.spawn("operator", stage.clone().operate(log.clone()));
    }

    fn spawn_actors(self: &Rc<Self>) {
        let stage = &self.stage;
        self.topics.logs().iter().for_each(|log| self.spawn_actors_of(log));
        if stage.plan.passing {
            stage.spawn("creator", self.clone().come_and_go());
        }
        stage.spawn("hoarder", stage.clone().hoard());
        if !self.calm && stage.dice.chance(stage.plan.full) {
            stage.spawn("filler", stage.clone().fill_disk());
        }
        let (stage, topics) = (stage.clone(), self.topics.clone());
        self.stage.spawn("checkpointer", async move {
            for _ in 0..stage.dice.below(6) {
                stage.pause().await;
                write_checkpoint(&stage, &topics.logs(), false).await;
            }
        });
    }

    /// Without faults everything that is published becomes durable.
    async fn check_publishing_works(&self, log: &Log) {
        let partition = log.partition();
        if has_no_room_for_copy(&partition) {
            return;
        }
        let set = log.sets.borrow_mut().make(&self.stage.dice);
        while self.stage.publish_set(log, set.clone()).await.is_none() {
            self.stage.env.sleep(Duration::from_secs(1)).await;
        }
    }

    // The end --------------------------------------------------------------------------------------------------------

    async fn close(&self) -> bool {
        let mut well = true;
        let logs = self.topics.logs();
        for log in &logs {
            let partition = log.partition();
            let closed = partition.close().await;
            let bounds = self.stage.look(log);
            match closed {
                Ok(()) => assert_eq!(bounds.durable_end, bounds.end, "closed well with bytes that are not flushed"),
                Err(ClosedReason::NoRoomForCopy { .. }) => {}
                Err(_) if self.stage.may_fail => well = false,
                Err(reason) => panic!("closing failed though the disk is well: {reason}"),
            }
        }
        write_checkpoint(&self.stage, &logs, well).await;
        self.topics.drop_handles();
        well
    }
}

/// Recovery has found a tail, and no room to keep a copy of it: nothing was cut, nothing can be appended.
pub(crate) fn has_no_room_for_copy(partition: &Partition<SimEnv>) -> bool {
    matches!(partition.closed(), Some(ClosedReason::NoRoomForCopy { .. }))
}

async fn write_checkpoint(stage: &Stage, logs: &[Rc<Log>], clean: bool) {
    for partition in logs.iter().map(|log| log.partition()) {
        partition.check_file().await;
    }
    let entries = logs.iter().map(|log| log.partition().checkpoint_entry()).collect();
    let checkpoint = Checkpoint { starts: stage.starts, shards: 1, clean, entries };
    if let Err(error) = checkpoint::write(stage.env.disk(), Path::new(DATA_DIR), 0, &checkpoint).await {
        let full = error.kind() == std::io::ErrorKind::StorageFull;
        assert!(stage.may_fail || full, "writing the checkpoint failed though the disk is well: {error}");
    }
}
