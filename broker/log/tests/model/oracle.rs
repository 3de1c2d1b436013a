//! What was published, what was visible, what retention may have removed: the plain model of one partition's log. It knows
//! nothing of segments, blocks or windows. Breaches are panics that name the broken promise.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use corelane_proto::message::Message;

/// A message as it was published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) at: u64,
    pub(crate) end: u64,
    pub(crate) timestamp_ms: i64,
    /// Messages as consumers see them: a wrapper counts as what is inside.
    pub(crate) count: u64,
}

/// How far the wall clock was moved in a history, and when.
#[derive(Default)]
pub(crate) struct Wall {
    jumps: RefCell<Vec<(Duration, i64)>>,
}

impl Wall {
    /// Notes a jump.
    pub(crate) fn jump(&self, now: Duration, by_ms: i64) {
        let moved_ms = self.moved_ms(now) + by_ms;
        self.jumps.borrow_mut().push((now, moved_ms));
    }

    fn moved_ms(&self, at: Duration) -> i64 {
        self.jumps.borrow().iter().rev().find(|(time, _)| *time <= at).map_or(0, |(_, moved_ms)| *moved_ms)
    }

    /// How much older something of time `from` looks at `to`. A start in between, while the clock was behind, has taken
    /// it for that much older: arrivals in the future count as now.
    fn jumped_ahead_ms(&self, from: Duration, to: Duration) -> u64 {
        let jumps = self.jumps.borrow();
        let between = jumps.iter().filter(|(time, _)| from <= *time && *time <= to).map(|(_, moved_ms)| *moved_ms);
        let before = jumps.iter().rev().find(|(time, _)| *time < from).map_or(0, |(_, moved_ms)| *moved_ms);
        let furthest_behind = between.chain([before]).min().unwrap_or(0);
        (self.moved_ms(to) - furthest_behind).max(0) as u64
    }
}

/// What may remove old segments: the settings that were in force since the last look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    /// The shortest retention by time; `None`: for ever.
    pub(crate) retention: Option<Duration>,
    /// The smallest retention by size; `None`: no limit.
    pub(crate) retention_bytes: Option<u64>,
    /// The highest position that a trim was asked for.
    pub(crate) trimmed_to: u64,
}

/// The plain model of a log.
pub(crate) struct Oracle {
    name: String,
    /// The position of the image's first byte.
    origin: u64,
    /// Every byte as published, from the origin on.
    image: Vec<u8>,
    /// The ends of sets, the origin included.
    ends: BTreeSet<u64>,
    arrivals: BTreeMap<u64, Duration>,
    /// Sets given to `append` whose answer is not known.
    offered: BTreeMap<u64, Vec<u8>>,
    /// Sets that were appended behind one whose answer is not known yet.
    placed: BTreeMap<u64, Vec<u8>>,
    next_offer: u64,
    /// The highest end that anybody saw as visible or was told to be durable.
    visible: u64,
    start: u64,
    /// An operator was told that the log begins here for good.
    trimmed: u64,
    /// Some of its messages are bad, so nothing is known of boundaries.
    pub(crate) is_tainted: bool,
    /// Sets that a crash took: their producer sends them again.
    pub(crate) retry: Vec<Vec<u8>>,
}

impl Oracle {
    pub(crate) fn new(name: String, origin: u64) -> Self {
        Self {
            name,
            origin,
            image: Vec::new(),
            ends: BTreeSet::from([origin]),
            arrivals: BTreeMap::new(),
            offered: BTreeMap::new(),
            placed: BTreeMap::new(),
            next_offer: 0,
            visible: origin,
            start: origin,
            trimmed: origin,
            is_tainted: false,
            retry: Vec::new(),
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.origin + self.image.len() as u64
    }

    pub(crate) fn visible(&self) -> u64 {
        self.visible
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn is_set_end(&self, at: u64) -> bool {
        self.ends.contains(&at)
    }

    /// The bytes of `from..to` as published.
    pub(crate) fn bytes(&self, from: u64, to: u64) -> &[u8] {
        &self.image[(from - self.origin) as usize..(to - self.origin) as usize]
    }

    /// The last set end at or below `at`.
    pub(crate) fn last_set_end_at_or_below(&self, at: u64) -> u64 {
        *self.ends.range(..=at).next_back().expect("the origin is a set end")
    }

    // Publishing -----------------------------------------------------------------------------------------------------

    /// A set is about to be appended: from now on it may be there.
    pub(crate) fn offer(&mut self, set: &[u8]) -> u64 {
        self.next_offer += 1;
        self.offered.insert(self.next_offer, set.to_vec());
        self.next_offer
    }

    /// It was refused: nothing of it may be there.
    pub(crate) fn refused(&mut self, offer: u64) {
        self.offered.remove(&offer);
    }

    /// It was appended at `first`.
    pub(crate) fn published(&mut self, offer: u64, first: u64, next: u64, now: Duration) {
        let set = self.offered.remove(&offer).expect("a set is offered before it is published");
        assert_eq!(first + set.len() as u64, next, "{}: next id", self.name);
        self.arrivals.insert(next, now);
        if next <= self.end() {
            assert_eq!(self.bytes(first, next), set, "{}: another set was appended at {first}", self.name);
            return;
        }
        self.placed.insert(first, set);
        while let Some(set) = self.placed.remove(&self.end()) {
            self.extend(&set);
        }
    }

    fn extend(&mut self, set: &[u8]) {
        self.image.extend_from_slice(set);
        self.ends.insert(self.end());
    }

    /// Bytes behind the image were seen: they must be sets whose publish is not answered yet.
    pub(crate) fn absorb(&mut self, mut seen: &[u8]) {
        while !seen.is_empty() {
            if let Some(set) = self.placed.remove(&self.end()) {
                assert!(seen.starts_with(&set), "{}: set at {} changed", self.name, self.end());
                seen = &seen[set.len()..];
                self.extend(&set);
                continue;
            }
            let found = self.offered.iter().find(|(_, set)| seen.starts_with(set)).map(|(offer, _)| *offer);
            let offer = found.unwrap_or_else(|| {
                panic!("{}: phantom: {} bytes at {} that nobody published", self.name, seen.len(), self.end())
            });
            let set = self.offered[&offer].clone();
            seen = &seen[set.len()..];
            self.extend(&set);
        }
    }

    // Reading --------------------------------------------------------------------------------------------------------

    /// Somebody saw these bounds.
    pub(crate) fn saw_bounds(&mut self, start: u64, visible: u64, durable: u64) {
        assert!(visible <= durable, "{}: visible end {visible} above the durable end {durable}", self.name);
        assert!(visible >= self.visible, "{}: visible end {visible} went back below {}", self.name, self.visible);
        assert!(start <= visible, "{}: start {start} above the visible end {visible}", self.name);
        self.must_survive(durable);
        self.must_survive(visible);
    }

    /// Somebody was told that everything below `end` is durable, or read up to it.
    pub(crate) fn must_survive(&mut self, end: u64) {
        if end > self.visible {
            assert!(end > self.end() || self.ends.contains(&end), "{}: half a set visible at {end}", self.name);
            self.visible = end;
        }
    }

    /// Somebody read `bytes` at `at`.
    pub(crate) fn check_read(&self, at: u64, bytes: &[u8]) {
        let to = at + bytes.len() as u64;
        assert!(to <= self.visible, "{}: read {at}..{to} beyond the visible end {}", self.name, self.visible);
        if bytes != self.bytes(at, to) {
            let differs = bytes.iter().zip(self.bytes(at, to)).position(|(a, b)| a != b).unwrap_or(0) as u64;
            panic!("{}: byte {} of {at}..{to} is not what was published", self.name, at + differs);
        }
    }

    /// The messages between `from` and `to`, both boundaries.
    pub(crate) fn messages(&self, from: u64, to: u64) -> Vec<Known> {
        let mut messages = Vec::new();
        let mut at = from;
        while at < to {
            let message = Message::parse(self.bytes(at, to), u32::MAX).expect("the image is whole good messages");
            let end = at + u64::from(message.length());
            let count = message.wrapper_claims().map_or(1, |claims| u64::from(claims.messages));
            messages.push(Known { at, end, timestamp_ms: message.timestamp_ms(), count });
            at = end;
        }
        messages
    }

    // Retention ------------------------------------------------------------------------------------------------------

    /// The start is now `start`. What arrived in earlier lives is as old as the wall clocks of those lives say.
    pub(crate) fn start_moved(
        &mut self,
        start: u64,
        durable: u64,
        keeping: Keeping,
        now: Duration,
        boot: Duration,
        wall: &Wall,
    ) {
        if start <= self.start {
            return;
        }
        assert!(self.ends.contains(&start), "{}: start {start} is no set end", self.name);
        let newest = self.arrivals.range(..=start).next_back().map(|(_, arrival)| *arrival);
        let too_old = keeping.retention.is_some_and(|retention| {
            newest.is_none_or(|arrival| {
                let jumped_ms = if arrival <= boot { wall.jumped_ahead_ms(arrival, boot) } else { 0 };
                // Clocks are read in whole milliseconds.
                now.saturating_sub(arrival) + Duration::from_millis(jumped_ms + 1) >= retention
            })
        });
        let too_much = keeping.retention_bytes.is_some_and(|bytes| durable - start >= bytes);
        let trimmed = start <= keeping.trimmed_to;
        let removed = format!("{}: the start moved from {} to {start}", self.name, self.start);
        assert!(
            too_old || too_much || trimmed,
            "{removed}, which nothing allowed: {keeping:?}, newest {newest:?} at {now:?}"
        );
        self.start = start;
    }

    /// An operator was told that everything below `start` is gone.
    pub(crate) fn trimmed(&mut self, start: u64) {
        self.trimmed = self.trimmed.max(start);
    }

    // Crashes --------------------------------------------------------------------------------------------------------

    /// Recovery is done and says that the log is `start..end`, all of it visible.
    pub(crate) fn recovered(&mut self, start: u64, end: u64) {
        let name = &self.name;
        assert!(end >= self.visible, "{name}: lost: end {end} below what was visible {}", self.visible);
        assert!(end <= self.end(), "{name}: phantom: end {end} beyond what was published {}", self.end());
        assert!(self.ends.contains(&end), "{name}: half a set before the end {end}");
        assert!(start <= self.start, "{name}: lost: start {start} above what retention allowed {}", self.start);
        assert!(start >= self.origin, "{name}: start {start} below the log's beginning {}", self.origin);
        assert!(start >= self.trimmed, "{name}: start {start} below what was trimmed {}", self.trimmed);
        // An unlink that was not flushed may have been taken back.
        self.start = start;
        self.visible = end;
        let cut: Vec<u64> = self.ends.range(end..).copied().collect();
        self.retry = cut.windows(2).take(3).map(|ends| self.bytes(ends[0], ends[1]).to_vec()).collect();
        self.retry.extend(std::mem::take(&mut self.placed).into_values());
        self.retry.extend(std::mem::take(&mut self.offered).into_values());
        self.image.truncate((end - self.origin) as usize);
        self.ends.split_off(&(end + 1));
        self.arrivals.split_off(&(end + 1));
    }

    /// After an injury the log is what recovery made of it, bad messages included.
    pub(crate) fn taint(&mut self, start: u64, end: u64, bytes: &[u8]) {
        self.is_tainted = true;
        self.image.truncate((start - self.origin) as usize);
        self.image.extend_from_slice(bytes);
        self.ends.split_off(&end);
        self.ends.insert(end);
        // Of what was not flushed nobody knows whether it arrived.
        self.arrivals.split_off(&(end.min(self.visible) + 1));
        self.start = start;
        self.visible = end;
        self.placed.clear();
        self.offered.clear();
    }
}
