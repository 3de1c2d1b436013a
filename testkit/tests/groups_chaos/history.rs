//! What the members of a group wrote down, put together, and what must be true of it whatever happened: the oracle. It
//! knows nothing of the rules by which groups work, only what was published and what members saw.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

/// A moment of the clock that all processes of the machine share, in nanoseconds.
pub(crate) type Moment = u128;
/// Tells one ownership of a partition from the others: the later one is the greater one.
pub(crate) type Fence = (u64, u64);

/// A message that a topic holds in the end.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) position: u64,
    pub(crate) next: u64,
    pub(crate) value: String,
}

/// Everything that a topic holds, by partition.
pub(crate) type Topic = BTreeMap<u32, Vec<Published>>;

#[derive(Clone, Debug)]
pub(crate) enum What {
    Claim(u32, Fence),
    Release(u32, Fence),
    Lost(u32, Fence),
    /// The delivery was decided on after `before`.
    Deliver {
        partition: u32,
        fence: Fence,
        position: u64,
        next: u64,
        before: Moment,
        value: String,
    },
    /// As a commit's answer had it.
    Committed {
        partition: u32,
        fence: Fence,
        position: u64,
    },
    Refused,
    Leave,
    Left,
    /// Started, an error, the end of the stream.
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) at: Moment,
    pub(crate) member: usize,
    pub(crate) what: What,
}

/// An ownership.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tenure {
    pub(crate) member: usize,
    /// When the member was told of it.
    pub(crate) claimed: Moment,
    /// When it was told that it was over.
    pub(crate) over: Option<Moment>,
    /// Position, the next one, the moment before the delivery was decided on, and the one after it.
    pub(crate) delivered: Vec<(u64, u64, Moment, Moment)>,
    committed: u64,
}

/// The history of a group that reads one topic.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) events: Vec<Event>,
    pub(crate) tenures: BTreeMap<(u32, Fence), Tenure>,
    wrong: Vec<String>,
}

/// What a history came to.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) published: usize,
    pub(crate) delivered: usize,
    pub(crate) repeated: usize,
    pub(crate) ownerships: usize,
    /// Of these, ended without a release as far as the member came to know it.
    pub(crate) lost: usize,
    pub(crate) refused_commits: usize,
    /// Deliveries decided on before another one owned the partition, but told after: the gap that the fence is for.
    pub(crate) in_the_gap: usize,
}

fn read_line(line: &str) -> Option<(Moment, What)> {
    let mut words = line.split(' ');
    let at = words.next()?.parse().ok()?;
    let kind = words.next()?;
    let number = |word: Option<&str>| word?.parse::<u64>().ok();
    let what = match kind {
        "claim" | "release" | "lost" | "deliver" | "committed" => {
            let partition = words.next()?.parse().ok()?;
            let fence = (number(words.next())?, number(words.next())?);
            match kind {
                "claim" => What::Claim(partition, fence),
                "release" => What::Release(partition, fence),
                "lost" => What::Lost(partition, fence),
                "committed" => {
                    number(words.next())?;
                    What::Committed { partition, fence, position: number(words.next())? }
                }
                _ => {
                    number(words.next())?;
                    let (position, next) = (number(words.next())?, number(words.next())?);
                    let before = words.next()?.parse().ok()?;
                    let value = words.next()?.to_owned();
                    What::Deliver { partition, fence, position, next, before, value }
                }
            }
        }
        "refused" => What::Refused,
        "leave" => What::Leave,
        "left" => What::Left,
        _ => What::Other,
    };
    Some((at, what))
}

impl History {
    /// Of the members that wrote these files, numbered in this order.
    pub(crate) fn read(files: &[impl AsRef<Path>]) -> Self {
        let mut history = Self::default();
        for (member, file) in files.iter().enumerate() {
            // A member that was killed at once has written nothing.
            let text = std::fs::read_to_string(file).unwrap_or_default();
            for line in text.lines() {
                let (at, what) = read_line(line).unwrap_or_else(|| panic!("member {member} wrote {line:?}"));
                history.events.push(Event { at, member, what });
            }
        }
        history.events.sort_by_key(|event| event.at);
        history.collect();
        history
    }

    fn collect(&mut self) {
        let mut wrong = Vec::new();
        for Event { at, member, what } in &self.events {
            match what {
                What::Claim(partition, fence) => {
                    let tenure = Tenure { member: *member, claimed: *at, ..Tenure::default() };
                    if let Some(other) = self.tenures.insert((*partition, *fence), tenure) {
                        let other = other.member;
                        wrong.push(format!("{fence:?} of {partition} was given to member {member} and to {other}"));
                    }
                }
                What::Release(partition, fence) | What::Lost(partition, fence) => {
                    // Of one that was told of nothing but its end there was nothing to be seen.
                    if let Some(tenure) = self.tenures.get_mut(&(*partition, *fence)) {
                        tenure.over.get_or_insert(*at);
                    }
                }
                What::Deliver { partition, fence, position, next, before, .. } => {
                    match self.tenures.get_mut(&(*partition, *fence)) {
                        Some(tenure) if tenure.member == *member => {
                            if tenure.over.is_some_and(|over| over < *before) {
                                wrong.push(format!("member {member}: {partition}/{position} came after its end"));
                            }
                            tenure.delivered.push((*position, *next, *before, *at));
                        }
                        _ => wrong.push(format!("member {member} got {partition}/{position} without a claim")),
                    }
                }
                What::Committed { partition, fence, position } => {
                    if let Some(tenure) = self.tenures.get_mut(&(*partition, *fence)) {
                        tenure.committed = tenure.committed.max(*position);
                    }
                }
                What::Refused | What::Leave | What::Left | What::Other => {}
            }
        }
        self.wrong = wrong;
    }

    /// What is wrong with it, given all that the topic holds; nothing, if all promises were kept.
    pub(crate) fn check(&self, topic: &Topic) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        for (partition, messages) in topic {
            self.check_partition(*partition, messages, &mut wrong);
        }
        for event in &self.events {
            if let What::Deliver { partition, position, value, .. } = &event.what {
                let messages = topic.get(partition).map_or(&[][..], Vec::as_slice);
                let found = messages.binary_search_by_key(position, |message| message.position);
                if !found.is_ok_and(|index| messages[index].value == *value) {
                    wrong.push(format!("{partition}/{position} was delivered as {value:?}, which it is not"));
                }
            }
        }
        wrong
    }

    fn of(&self, partition: u32) -> impl DoubleEndedIterator<Item = (Fence, &Tenure)> {
        let range = (partition, (0, 0))..=(partition, (u64::MAX, u64::MAX));
        self.tenures.range(range).map(|((_, fence), tenure)| (*fence, tenure))
    }

    fn check_partition(&self, partition: u32, messages: &[Published], wrong: &mut Vec<String>) {
        // No two ownerships overlap: nothing is delivered once a later one has begun.
        let mut next_claim = Moment::MAX;
        for (fence, tenure) in self.of(partition).rev() {
            for (position, _, before, _) in tenure.delivered.iter().filter(|(_, _, before, _)| *before > next_claim) {
                let late = Duration::from_nanos((*before - next_claim) as u64);
                wrong.push(format!(
                    "{partition}/{position} was delivered to member {} under {fence:?} {late:?} after another one owned it",
                    tenure.member
                ));
            }
            next_claim = next_claim.min(tenure.claimed);
        }
        // Positions go on within an ownership, and none begins below what an earlier one is known to have committed.
        let mut committed = 0;
        for (fence, tenure) in self.of(partition) {
            for pair in tenure.delivered.windows(2).filter(|pair| pair[0].1 != pair[1].0) {
                wrong.push(format!("{partition}: {} came after {} under {fence:?}", pair[1].0, pair[0].0));
            }
            if let Some((first, ..)) = tenure.delivered.first().filter(|(first, ..)| *first < committed) {
                wrong.push(format!("{partition}: {committed} was committed, and {fence:?} began at {first}"));
            }
            committed = committed.max(tenure.committed);
        }
        self.check_order(partition, messages, wrong);
    }

    /// Each message was delivered, and none before the one in front of it was: else something was committed, or passed
    /// over, that nobody had got.
    fn check_order(&self, partition: u32, messages: &[Published], wrong: &mut Vec<String>) {
        let mut first_at: HashMap<u64, Moment> = HashMap::new();
        for (position, _, _, at) in self.of(partition).flat_map(|(_, tenure)| &tenure.delivered) {
            first_at.entry(*position).and_modify(|first| *first = (*first).min(*at)).or_insert(*at);
        }
        let mut last = 0;
        for Published { position, next, value } in messages {
            match first_at.get(position) {
                None => wrong.push(format!("{value:?} at {partition}/{position}, up to {next}, reached nobody")),
                Some(at) if *at < last => {
                    wrong.push(format!("{partition}/{position} was delivered before what precedes it"));
                }
                Some(at) => last = *at,
            }
        }
        for (fence, tenure) in self.of(partition).filter(|(_, tenure)| tenure.committed > 0) {
            let below = messages.iter().take_while(|message| message.position < tenure.committed);
            if let Some(missing) = below.last().filter(|message| !first_at.contains_key(&message.position)) {
                let missing = missing.position;
                wrong
                    .push(format!("{partition}: {} was committed under {fence:?} without {missing}", tenure.committed));
            }
        }
    }

    pub(crate) fn figures(&self, topic: &Topic) -> Figures {
        let mut figures = Figures { published: topic.values().map(Vec::len).sum(), ..Figures::default() };
        let mut seen = BTreeSet::new();
        for event in &self.events {
            match &event.what {
                What::Deliver { partition, position, .. } => {
                    figures.delivered += 1;
                    figures.repeated += usize::from(!seen.insert((*partition, *position)));
                }
                What::Lost(..) => figures.lost += 1,
                What::Refused => figures.refused_commits += 1,
                _ => {}
            }
        }
        figures.ownerships = self.tenures.len();
        for partition in topic.keys() {
            let mut next_claim = Moment::MAX;
            for (_, tenure) in self.of(*partition).rev() {
                let late =
                    tenure.delivered.iter().filter(|(_, _, before, at)| *before <= next_claim && next_claim < *at);
                figures.in_the_gap += late.count();
                next_claim = next_claim.min(tenure.claimed);
            }
        }
        figures
    }

    /// The partitions that a member owned at a moment, as far as it knew.
    pub(crate) fn owned_by(&self, member: usize, at: Moment) -> Vec<u32> {
        let owned = |tenure: &Tenure| {
            tenure.member == member && tenure.claimed <= at && tenure.over.is_none_or(|over| over >= at)
        };
        self.tenures.iter().filter(|(_, tenure)| owned(tenure)).map(|((partition, _), _)| *partition).collect()
    }

    /// How long after a moment a partition's first message reached another one than the member that had it.
    pub(crate) fn taken_over(&self, partition: u32, from: usize, at: Moment) -> Option<Duration> {
        let others = self.of(partition).filter(|(_, tenure)| tenure.member != from && tenure.claimed >= at);
        let first = others.flat_map(|(_, tenure)| &tenure.delivered).map(|(.., at)| *at).min()?;
        Some(Duration::from_nanos((first - at) as u64))
    }

    /// The pauses between two messages of a partition that stayed with its owner, sorted.
    pub(crate) fn pauses(&self) -> Vec<Duration> {
        let pairs = self.tenures.values().flat_map(|tenure| tenure.delivered.windows(2));
        let mut pauses: Vec<Duration> =
            pairs.map(|pair| Duration::from_nanos((pair[1].3 - pair[0].3) as u64)).collect();
        pauses.sort();
        pauses
    }

    /// The longest of these pauses: how long, of which partition, and how many messages of others its owner got meanwhile.
    pub(crate) fn longest_pause(&self) -> Option<(Duration, u32, usize)> {
        let pairs = self.tenures.iter().flat_map(|((partition, _), tenure)| {
            tenure.delivered.windows(2).map(|pair| (pair[1].3 - pair[0].3, pair[0].3, *partition, tenure.member))
        });
        let (length, from, partition, owner) = pairs.max()?;
        let is_meanwhile = |event: &&Event| event.member == owner && event.at > from && event.at < from + length;
        let others = self.events.iter().filter(is_meanwhile);
        let others = others.filter(|event| matches!(event.what, What::Deliver { .. })).count();
        Some((Duration::from_nanos(length as u64), partition, others))
    }
}

/// The value below which so large a part of sorted ones lies.
pub(crate) fn quantile(sorted: &[Duration], part: f64) -> Duration {
    let index = (sorted.len() as f64 * part) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

mod tests {
    use corelane_testkit::TestDir;

    use super::*;

    /// What is wrong with what two members wrote about a partition with two messages; times in front of each line.
    fn wrong(members: [&[&str]; 2]) -> (Vec<String>, Figures) {
        let dir = TestDir::new("history");
        let files = [dir.join("0"), dir.join("1")];
        for (file, lines) in files.iter().zip(members) {
            std::fs::write(file, lines.join("\n")).expect("written");
        }
        let message = |position: u64, value: &str| Published { position, next: position + 10, value: value.to_owned() };
        let topic = Topic::from([(0, vec![message(0, "a"), message(10, "b")])]);
        let history = History::read(&files);
        (history.check(&topic), history.figures(&topic))
    }

    const CLAIMED: &str = "100 claim 0 1 5";
    const FIRST: &str = "120 deliver 0 1 5 1 0 10 110 a";
    const SECOND: &str = "140 deliver 0 1 5 1 10 20 130 b";

    #[track_caller]
    fn assert_noticed(members: [&[&str]; 2], what: &str) {
        let (wrong, _) = wrong(members);
        assert!(wrong.iter().any(|wrong| wrong.contains(what)), "{wrong:?}");
    }

    #[test]
    fn every_broken_promise_is_noticed_in_what_members_wrote() {
        let good = [CLAIMED, FIRST, SECOND, "150 committed 0 1 5 1 20", "160 release 0 1 5"];
        assert_eq!(wrong([&good, &["200 claim 0 1 6"]]).0, Vec::<String>::new());
        let again = ["200 claim 0 1 6", "220 deliver 0 1 6 1 10 20 210 b"];
        assert_eq!(wrong([&[CLAIMED, FIRST, SECOND], &again]).0, Vec::<String>::new(), "repeated after a loss");

        assert_noticed([&[CLAIMED, FIRST], &[]], "reached nobody");
        assert_noticed([&good, &again], "20 was committed, and (1, 6) began at 10");
        assert_noticed([&[CLAIMED, FIRST, "250 deliver 0 1 5 1 10 20 240 b"], &again], "after another one owned it");
        assert_noticed([&[CLAIMED, FIRST, "125 release 0 1 5", SECOND], &[]], "came after its end");
        assert_noticed([&[FIRST, SECOND], &[]], "without a claim");
        assert_noticed([&[CLAIMED, FIRST], &[CLAIMED, "140 deliver 0 1 5 1 10 20 130 b"]], "was given to member");
        assert_noticed([&[CLAIMED, SECOND, "190 deliver 0 1 5 1 0 10 180 a"], &[]], "before what precedes it");
        assert_noticed([&[CLAIMED, FIRST, "140 deliver 0 1 5 1 10 20 130 x"], &[]], "which it is not");
    }

    #[test]
    fn what_was_decided_in_time_and_told_late_is_the_gap_that_the_fence_is_for() {
        let paused = [CLAIMED, FIRST, "900 deliver 0 1 5 1 10 20 130 b"];
        let (wrong, figures) = wrong([&paused, &["200 claim 0 1 6", "220 deliver 0 1 6 1 10 20 210 b"]]);
        assert_eq!((wrong, figures.in_the_gap, figures.repeated), (Vec::new(), 1, 1));
    }
}
