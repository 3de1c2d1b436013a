//! Rot: durable, visible bytes are hurt between two lives. What recovery can tell from a crash's tail it keeps, all of it;
//! of what it cannot, a copy stays. Readers are led around bad messages and get every good one behind them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use corelane_log::checkpoint::Checkpoint;
use corelane_log::env::Env;
use corelane_log::sim::{Sim, SimEnv};
use corelane_log::{Partition, Target};
use corelane_proto::ids::Position;
use corelane_proto::message::Message;

use crate::dice::Dice;
use crate::life::{Life, has_no_room_for_copy};
use crate::log::{CHECKPOINT, Log, TOPIC_ID};
use crate::oracle::Known;
use crate::plan::BLOCK;

/// What was done to a log, and what recovery owes it.
pub(crate) struct Injury {
    /// The positions of the bytes that were changed, all of them visible before.
    hurt: BTreeSet<u64>,
    /// Where the first set begins that is not good any more.
    bad_from: u64,
    /// Recovery can tell it from a crash's tail, so nothing may be cut.
    must_keep: bool,
    /// What lies on the disk from `bad_from` on, without the zeros at its end.
    rest: Vec<u8>,
    /// The messages that were visible.
    messages: Vec<Known>,
    /// The starts of segments.
    bases: Vec<u64>,
    /// Behind what was visible lies what a crash left.
    has_tail: bool,
}

/// The segments on the disk, by base.
pub(crate) fn segments(sim: &Sim, log: &Log) -> Vec<(u64, PathBuf)> {
    let in_dir = sim.disk().paths().into_iter().filter(|path| path.starts_with(log.dir()));
    let base = |path: &PathBuf| path.file_name()?.to_str()?.strip_suffix(".log")?.get(..20)?.parse::<u64>().ok();
    in_dir.filter_map(|path| Some((base(&path)?, path))).collect()
}

/// Hurts visible bytes of `log`; `None` when there is nothing to hurt.
pub(crate) fn inject(sim: &Sim, log: &Log, dice: &Dice, window: u64) -> Option<Injury> {
    let segments = segments(sim, log);
    let (first_base, last_base) = (segments.first()?.0, segments.last()?.0);
    let oracle = log.oracle.borrow();
    let (start, visible) = (oracle.start().max(first_base), oracle.visible());
    if start >= visible {
        return None;
    }
    let near_the_end = visible - (visible - start).min(3000);
    let from = if dice.chance(0.5) { start } else { near_the_end };
    let at = from + dice.below((visible - from) as usize) as u64;
    let (base, path) = segments.iter().rev().find(|(base, _)| *base <= at)?;
    let offset = at - base;
    let bytes = sim.disk().content(path)?.len() as u64;
    let (range, kind) = match dice.below(5) {
        0 => (offset..offset + 1, 0),
        1 => (offset / 512 * 512..offset / 512 * 512 + 512, 1),
        2 => (offset / BLOCK * BLOCK..offset / BLOCK * BLOCK + BLOCK, 2),
        3 => (offset..offset + 24, 2),
        _ if *base == last_base => (offset / BLOCK * BLOCK..bytes, 1),
        _ => return None,
    };
    let bit = 1 << dice.below(8);
    let noise = dice.below(255) as u8 + 1;
    let change = |byte: u8| match kind {
        0 => byte ^ bit,
        1 => 0,
        _ => byte.rotate_left(3) ^ noise,
    };
    let hurt: BTreeSet<u64> = sim
        .disk()
        .hurt(path, range, change)
        .into_iter()
        .map(|offset| base + offset)
        .filter(|at| *at < visible)
        .collect();
    let bad_from = oracle.last_set_end_at_or_below(*hurt.first()?);
    let last = sim.disk().content(&segments.last()?.1)?;
    let from_last = |position: u64| &last[(position.saturating_sub(last_base) as usize).min(last.len())..];
    let floor =
        sim.disk().content(CHECKPOINT.as_ref()).and_then(|content| Checkpoint::decode(&content)).map_or(0, |all| {
            let mut ours =
                all.entries.iter().filter(|entry| entry.topic_id == TOPIC_ID && entry.partition == log.number);
            ours.next().map_or(0, |entry| entry.durable_end.0)
        });
    let is_far = from_last(bad_from + window).iter().any(|byte| *byte != 0);
    let rest = from_last(bad_from);
    let rest = rest[..rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)].to_vec();
    Some(Injury {
        bad_from,
        must_keep: bad_from < floor || bad_from < last_base || is_far,
        rest,
        messages: oracle.messages(first_base, visible),
        has_tail: from_last(visible).iter().any(|byte| *byte != 0),
        bases: segments.iter().map(|(base, _)| *base).collect(),
        hurt,
    })
}

impl Injury {
    pub(crate) fn bytes_hurt(&self) -> u64 {
        self.hurt.len() as u64
    }

    fn is_unhurt(&self, message: &Known) -> bool {
        self.hurt.range(message.at..message.end).next().is_none()
    }

    /// Whether some message's length was hurt: then the way to the next message is lost up to a known boundary.
    fn lost_the_way(&self) -> bool {
        self.messages.iter().any(|message| self.hurt.range(message.at..message.at + 4).next().is_some())
    }
}

impl Life {
    /// The first recovery after an injury.
    pub(crate) async fn check_injured(&self, log: &Log, partition: &Partition<SimEnv>, injury: &Injury) {
        let bounds = partition.bounds();
        let (start, end) = (bounds.start.0, bounds.end.0);
        let bytes = self.read_all(partition, start, end).await;
        let visible = log.oracle.borrow().visible();
        let name = format!("partition {}, hurt at {:?}", log.number, injury.hurt.first());
        let kept_to = if injury.must_keep { visible } else { injury.bad_from };
        assert!(end >= kept_to, "{name}: lost: end {end}, all below {kept_to} must be kept");
        for at in start..visible.min(end) {
            let good = log.oracle.borrow().bytes(at, at + 1)[0] == bytes[(at - start) as usize];
            assert!(good || injury.hurt.contains(&at), "{name}: byte {at} was not hurt, but is changed");
        }
        if end < visible {
            let disk = self.stage.env.disk();
            let copied = disk.paths().iter().filter(|path| path.to_string_lossy().contains(".cut-")).any(|path| {
                let copy = disk.content(path).unwrap_or_default();
                copy.starts_with(&injury.rest) || injury.rest.starts_with(&copy) && end > injury.bad_from
            });
            let nothing_cut = injury.rest.is_empty() || has_no_room_for_copy(partition);
            assert!(copied || nothing_cut, "{name}: cut without a copy");
            self.counts.cut_after_injury.set(self.counts.cut_after_injury.get() + 1);
        } else {
            self.counts.kept_after_injury.set(self.counts.kept_after_injury.get() + 1);
        }
        log.oracle.borrow_mut().taint(start, end, &bytes);
        *log.injury.borrow_mut() = None;
        *log.left.borrow_mut() = None;
        self.check_led_around(partition, injury, start, &bytes[..(visible.min(end) - start) as usize]).await;
    }

    /// Reads as a consumer does, asking the partition where to go on after each bad message.
    async fn check_led_around(&self, partition: &Partition<SimEnv>, injury: &Injury, start: u64, bytes: &[u8]) {
        let to = start + bytes.len() as u64;
        let mut at = start;
        let mut delivered = BTreeSet::new();
        let mut skipped = Vec::new();
        while at < to {
            if let Ok(message) = Message::parse(&bytes[(at - start) as usize..], u32::MAX) {
                delivered.insert(at);
                at += u64::from(message.length());
                continue;
            }
            let next = partition.find(Target::GoodAfter(Position(at))).await.expect("a disk that is well answers").0;
            assert!(next > at, "the good message after {at} is {next}");
            skipped.push((at, next));
            at = next;
        }
        let known: BTreeSet<u64> = injury.messages.iter().map(|message| message.at).collect();
        assert!(delivered.is_subset(&known), "delivered what is no message: {:?}", delivered.difference(&known));
        for message in injury.messages.iter().filter(|message| message.at >= start && message.end <= to) {
            if delivered.contains(&message.at) || !injury.is_unhurt(message) {
                continue;
            }
            let skip = skipped.iter().find(|(from, next)| *from <= message.at && message.at < *next);
            let (from, next) = skip.expect("a good message that was neither delivered nor skipped");
            let lost = injury.lost_the_way() || injury.has_tail && injury.bases.last().is_some_and(|base| from >= base);
            let excused = lost && !injury.bases.iter().any(|base| from < base && base < next);
            let (hurt, bases) = (&injury.hurt, &injury.bases);
            assert!(
                excused,
                "the good message at {} was skipped with {from}..{next}: hurt {hurt:?}, {bases:?}",
                message.at
            );
        }
    }
}
