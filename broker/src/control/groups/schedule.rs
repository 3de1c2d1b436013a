//! When targets are computed: at once after a quiet time; while members keep pouring in, when they have stopped for a
//! moment, or after a few seconds. Other brokers see the same change: whoever caused it goes first, the others wait a moment
//! and mostly find it done.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::Notify;

use super::Groups;
use crate::limits::{
    GROUPS_LIST_INTERVAL, OVERDUE_GAP_MAX, OVERDUE_INTERVAL, TARGET_COURTESY_MAX, TARGET_INTERVAL_MIN, TARGET_QUIET,
    TARGET_WAIT_MAX,
};
use crate::registry::groups::GroupError;
use crate::registry::groups::targets::{Step, decide};
use crate::registry::store::Store;

/// So many targets from the same inputs, each of which another broker has replaced, and this one looks again.
const DISPUTED_AFTER: u32 = 2;

/// Which groups may need a target, and when to look.
#[derive(Default)]
pub(super) struct Schedule {
    groups: RefCell<BTreeMap<String, Timing>>,
    changed: Notify,
}

/// Times since the manager began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Timing {
    /// When its last target was written.
    written_at: Option<Duration>,
    /// The first change since it was looked at.
    first_change: Option<Duration>,
    /// When to look; none: nothing has changed.
    due: Option<Duration>,
    /// The targets that this broker made last.
    made: Option<Made>,
    /// What has changed since it was last found in order, for the log.
    reasons: BTreeSet<&'static str>,
}

/// Targets that this broker made from the same inputs, and that others replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    inputs: String,
    /// Since it looked anew last.
    times: u32,
    /// How often it looked anew because of them.
    disputes: u32,
    /// Until then the others' target stays.
    rests_until: Duration,
}

/// Whether a target may be written.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Write,
    /// Others keep making another one of the same inputs: it is time to look anew. To be told once for each time.
    LookAnew {
        rests_until: Duration,
    },
    /// It was looked anew, and others see it otherwise still: their target stays for a while.
    Rest {
        until: Duration,
    },
}

impl Timing {
    /// Something has changed; `courtesy`: how long to leave it to others.
    fn change(&mut self, now: Duration, courtesy: Duration) {
        let first = *self.first_change.get_or_insert(now);
        let is_quiet = self.written_at.is_none_or(|written| now.saturating_sub(written) >= TARGET_WAIT_MAX);
        let due = if is_quiet {
            self.due.map_or(now + courtesy, |due| due.min(now + courtesy))
        } else {
            (now + TARGET_QUIET).min(first + TARGET_WAIT_MAX)
        };
        let earliest = self.written_at.map_or(Duration::ZERO, |written| written + TARGET_INTERVAL_MIN);
        self.due = Some(due.max(earliest));
    }
}

impl Schedule {
    /// These may need a target.
    pub(super) fn consider<'g>(&self, groups: impl Iterator<Item = &'g String>, now: Duration) {
        self.change(groups, now, TARGET_COURTESY_MAX.mul_f64(0.3 + 0.7 * fastrand::f64()));
    }

    /// This broker has changed it.
    pub(super) fn hurry(&self, group: &str, now: Duration) {
        self.change([group.to_owned()].iter(), now, Duration::ZERO);
    }

    fn change<'g>(&self, groups: impl Iterator<Item = &'g String>, now: Duration, courtesy: Duration) {
        let mut timings = self.groups.borrow_mut();
        for group in groups {
            timings.entry(group.clone()).or_default().change(now, courtesy);
        }
        self.changed.notify_one();
    }

    /// Why these may need a target.
    pub(super) fn note_reason<'g>(&self, groups: impl Iterator<Item = &'g String>, reason: &'static str) {
        let mut timings = self.groups.borrow_mut();
        for group in groups {
            timings.entry(group.clone()).or_default().reasons.insert(reason);
        }
    }

    /// Why this one needed the target that it has now.
    fn take_reasons(&self, group: &str) -> String {
        let mut timings = self.groups.borrow_mut();
        let reasons = timings.get_mut(group).map(|timing| std::mem::take(&mut timing.reasons));
        reasons.unwrap_or_default().into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Somebody wrote their targets.
    pub(super) fn note_written(&self, groups: &BTreeSet<String>, now: Duration) {
        let mut timings = self.groups.borrow_mut();
        for group in groups {
            timings.entry(group.clone()).or_default().written_at = Some(now);
        }
    }

    /// This broker has made a target from these inputs.
    fn note_made(&self, group: &str, inputs: &str) {
        let mut timings = self.groups.borrow_mut();
        let made = &mut timings.entry(group.to_owned()).or_default().made;
        match made {
            Some(made) if made.inputs == inputs => made.times += 1,
            _ => {
                let (inputs, rests_until) = (inputs.to_owned(), Duration::ZERO);
                *made = Some(Made { inputs, times: 1, disputes: 0, rests_until });
            }
        }
    }

    /// Whether a target may be made from these inputs now. Brokers that have seen the same and decide differently, as two
    /// versions may, would replace each other's for ever: this one rests after each dispute, twice as long each time.
    fn turn(&self, group: &str, inputs: &str, now: Duration) -> Turn {
        let mut timings = self.groups.borrow_mut();
        let made = timings.get_mut(group).and_then(|timing| timing.made.as_mut());
        let Some(made) = made.filter(|made| made.inputs == inputs) else { return Turn::Write };
        if now < made.rests_until {
            return Turn::Rest { until: made.rests_until };
        }
        if made.times < DISPUTED_AFTER {
            return Turn::Write;
        }
        let rest = TARGET_WAIT_MAX.saturating_mul(1 << made.disputes.min(16)).min(GROUPS_LIST_INTERVAL);
        (made.times, made.disputes, made.rests_until) = (0, made.disputes + 1, now + rest);
        Turn::LookAnew { rests_until: made.rests_until }
    }

    fn retry(&self, group: &str, due: Duration) {
        let mut timings = self.groups.borrow_mut();
        let timing = timings.entry(group.to_owned()).or_default();
        timing.due = Some(timing.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// Those to look at now, and how long until the next.
    fn take_due(&self, now: Duration) -> (Vec<String>, Duration) {
        let mut timings = self.groups.borrow_mut();
        timings.retain(|_, timing| {
            let is_disputed = |made: &Made| made.disputes > 0 && made.rests_until + 2 * GROUPS_LIST_INTERVAL > now;
            timing.due.is_some()
                || timing.written_at.is_some_and(|written| written + TARGET_WAIT_MAX > now)
                || timing.made.as_ref().is_some_and(is_disputed)
        });
        let mut taken = Vec::new();
        for (group, timing) in timings.iter_mut().filter(|(_, timing)| timing.due.is_some_and(|due| due <= now)) {
            (timing.due, timing.first_change) = (None, None);
            taken.push(group.clone());
        }
        let next = timings.values().filter_map(|timing| timing.due).min();
        (taken, next.map_or(Duration::from_mins(1), |due| due.saturating_sub(now)))
    }
}

impl<S: Store> Groups<S> {
    pub(super) async fn write_targets(&self) {
        loop {
            let (due, pause) = self.schedule.take_due(self.now());
            for group in &due {
                if let Err(error) = self.retarget(group).await {
                    tracing::warn!(group, %error, "the group's next target was not written");
                    self.schedule.retry(group, self.now() + self.options.retry);
                }
            }
            if due.is_empty() {
                tokio::select! {
                    biased;
                    () = self.schedule.changed.notified() => {}
                    () = self.sleep(pause) => {}
                }
            }
        }
    }

    /// Writes the group's next target, if one is due by what was seen and by the topics as they are now.
    async fn retarget(&self, group: &str) -> Result<(), GroupError> {
        if self.decide(group) == Step::Nothing {
            self.schedule.take_reasons(group);
            return Ok(());
        }
        // Seen after the group was, so that no topic that it knows of can be missing by mistake.
        let topics = self.registry.list_topics().await?;
        {
            let mut state = self.state.borrow_mut();
            if topics.revision > state.topics.revision {
                state.topics = topics;
            }
        }
        match self.decide(group) {
            Step::Nothing => Ok(()),
            Step::Behind => {
                self.schedule.retry(group, self.now() + TARGET_INTERVAL_MIN);
                Ok(())
            }
            Step::Write(next) => {
                let (generation, partitions) = (next.record.generation, next.target.len());
                let inputs = next.record.inputs.digest.clone();
                match self.schedule.turn(group, &inputs, self.now()) {
                    Turn::Write => {}
                    Turn::LookAnew { rests_until } => {
                        tracing::warn!(
                            group,
                            "another broker sees other members or topics: the groups are listed anew"
                        );
                        self.relist.notify_one();
                        self.schedule.retry(group, rests_until);
                        return Ok(());
                    }
                    Turn::Rest { until } => {
                        self.schedule.retry(group, until);
                        return Ok(());
                    }
                }
                if self.registry.write_target(group, *next).await? {
                    self.schedule.note_made(group, &inputs);
                    let reason = self.schedule.take_reasons(group);
                    tracing::info!(group, generation, partitions, reason, "the group has a new target");
                } else {
                    // Another one was written, which the view is about to show.
                    self.schedule.retry(group, self.now() + TARGET_INTERVAL_MIN);
                }
                Ok(())
            }
        }
    }

    /// What is to be done about the group's target, by what was seen.
    pub(super) fn decide(&self, group: &str) -> Step {
        let state = &mut *self.state.borrow_mut();
        match state.view.groups.get(group) {
            Some(of_group) if state.is_listed => {
                decide(of_group, &state.topics, &mut state.patterns, state.incarnation)
            }
            _ => Step::Nothing,
        }
    }

    pub(super) async fn look_for_overdue(&self) {
        loop {
            self.sleep(OVERDUE_INTERVAL).await;
            let (now, mut state) = (self.now(), self.state.borrow_mut());
            let state = &mut *state;
            let changed = std::mem::take(&mut state.unlooked);
            state.overdue.look(&state.view, &changed, now, OVERDUE_GAP_MAX);
            if !state.is_listed || state.are_claims_paused(now) {
                state.overdue.restart(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_others_replace_again_and_again_is_a_reason_to_look_anew() {
        let schedule = Schedule::default();
        let now = Duration::from_secs(10);
        schedule.note_made("g", "a");
        assert_eq!(schedule.turn("g", "a", now), Turn::Write);
        schedule.note_made("g", "a");
        assert_eq!(schedule.turn("g", "b", now), Turn::Write, "something has changed");
        assert_eq!(schedule.turn("h", "a", now), Turn::Write, "another group");
        let rests_until = now + TARGET_WAIT_MAX;
        assert_eq!(schedule.turn("g", "a", now), Turn::LookAnew { rests_until });
        assert_eq!(schedule.turn("g", "a", now), Turn::Rest { until: rests_until }, "it was looked anew");
        assert_eq!(schedule.turn("g", "b", now), Turn::Write, "and something was seen");
        assert_eq!(schedule.turn("g", "a", rests_until), Turn::Write);
    }

    #[test]
    fn brokers_that_decide_differently_for_ever_look_anew_less_and_less_often() {
        let schedule = Schedule::default();
        let (mut written, mut looked) = (0, Vec::new());
        let mut now = Duration::ZERO;
        let end = Duration::from_hours(2);
        while now < end {
            // The other broker's target, which this one would replace, is seen a moment later.
            schedule.consider(["g".to_owned()].iter(), now);
            now += TARGET_INTERVAL_MIN;
            if schedule.take_due(now).0.is_empty() {
                continue;
            }
            match schedule.turn("g", "a", now) {
                Turn::Write => {
                    written += 1;
                    schedule.note_made("g", "a");
                }
                Turn::LookAnew { rests_until } => {
                    looked.push(now);
                    schedule.retry("g", rests_until);
                }
                Turn::Rest { until } => schedule.retry("g", until),
            }
        }
        let pauses: Vec<Duration> = looked.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        assert!(pauses.is_sorted_by(|one, next| one.as_secs() <= next.as_secs()), "{pauses:?}");
        // Seven that grow to five minutes, then one each five minutes.
        assert!(looked.len() <= 7 + 2 * 60 / 5, "looked anew {} times", looked.len());
        assert!(written <= looked.len() as u32 * DISPUTED_AFTER + DISPUTED_AFTER, "written {written} times");
        assert!(looked.len() >= 7, "it never gives up: {}", looked.len());
    }

    #[test]
    fn targets_are_written_at_once_when_quiet_and_gathered_while_members_pour_in() {
        let ms = Duration::from_millis;
        let mut timing = Timing::default();
        timing.change(ms(1_000), ms(40));
        assert_eq!(timing.due, Some(ms(1_040)), "another broker may have caused it");
        timing.change(ms(1_010), Duration::ZERO);
        assert_eq!(timing.due, Some(ms(1_010)), "this one did");
        let mut timing = Timing { written_at: Some(ms(1_020)), ..Timing::default() };
        timing.change(ms(1_030), Duration::ZERO);
        assert_eq!(timing.due, Some(ms(1_330)));
        for now in (1_130..4_000).step_by(100) {
            timing.change(ms(now), Duration::ZERO);
        }
        assert_eq!(timing.due, Some(ms(4_030)), "they keep coming");
        let mut timing = Timing { written_at: Some(ms(5_000)), ..Timing::default() };
        timing.change(ms(8_000), Duration::ZERO);
        assert_eq!(timing.due, Some(ms(8_000)), "quiet again");
    }
}
