//! What the mirror will never copy, for the source has it no more or has it damaged: told by the group's member from its own
//! tasks, counted and said by the mirror's loop.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use corelane_client::{Skip, SkipCause, TopicId};
use tokio::sync::Notify;

/// What the member has left out and the loop has not told yet.
#[derive(Default)]
pub(super) struct Skips {
    met: Mutex<Vec<Skip>>,
    /// Looked at often, so without the lock.
    is_some: AtomicBool,
    pub(super) changed: Notify,
}

impl Skips {
    pub(super) fn add(&self, skip: &Skip) {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).push(skip.clone());
        self.is_some.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn take(&self) -> Vec<Skip> {
        if !self.is_some.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.met.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What was told so far. A partition that moves here and away is begun anew where it stood: a loss is told once all the same.
#[derive(Default)]
pub(super) struct Losses {
    told_until: HashMap<(TopicId, u32, u32, bool), u64>,
    /// Bytes that retention had taken before they were copied.
    pub(super) bytes: u64,
}

impl Losses {
    /// Counts what was left out; returns what is to be said of it.
    pub(super) fn tell(&mut self, skip: &Skip) -> Option<String> {
        let Skip { topic, topic_id, partition, epoch, from, to, cause, .. } = skip;
        let is_damage = *cause == SkipCause::Damage;
        let told_until = self.told_until.entry((*topic_id, *partition, *epoch, is_damage)).or_default();
        if *cause == SkipCause::NewLog {
            let is_news = *told_until == 0;
            *told_until = (*told_until).max(1);
            let words = format!("{topic}/{partition} began again at {to}, in epoch {epoch}");
            return is_news.then(|| format!("{words}: what the log before held beyond {from} is not copied"));
        }
        let from = (*from).max(*told_until);
        *told_until = (*told_until).max(*to);
        let bytes = to.checked_sub(from).filter(|bytes| *bytes > 0)?;
        if is_damage {
            return Some(format!("{topic}/{partition}: what lies from {from} to {to} is damaged, and is not copied"));
        }
        self.bytes += bytes;
        let lost = format!("retention has taken {bytes} bytes of {topic}/{partition} before they were copied");
        Some(format!("{lost}, from {from} to {to}: the target will never have them"))
    }
}
