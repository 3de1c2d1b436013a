//! What the target has of a topic of the source, read once. What the source still has is kept with what identifies its
//! content, 16 bytes a message; of what the source has no more, where it was and how large.

use std::collections::{BTreeMap, HashMap};

use corelane_client::{CallError, ConsumedMessage, OutOfRange, TopicInfo};

use super::super::Sides;
use super::super::origin::{HEADER, Here, THROUGH, way};
use super::next;
use crate::error::CliError;

/// Lengths of a header's name and value.
const HEADER_LENGTHS_BYTES: u64 = 6;
/// A hole among the copies that is no larger may be a difference in how the source had packed its messages.
const HOLE_BYTES_MIN: u64 = 64;

/// What the target has of one partition of the source: positions, ascending, and what identifies the content.
#[derive(Default)]
struct OfPartition {
    seen: Vec<(u64, u64)>,
    /// Positions and sizes of copies of what the source has no more.
    before: Vec<(u64, u64)>,
    duplicates: u64,
    out_of_order: Vec<u64>,
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct Copies {
    /// Whether the target has the topic.
    pub(super) is_there: bool,
    is_parallel: bool,
    /// Partitions of the target whose beginning is gone.
    trimmed: Vec<u32>,
    /// By partition of the target and of the source, the lowest position there.
    first: HashMap<(u32, u32), u64>,
    partitions: HashMap<u32, OfPartition>,
}

impl Copies {
    /// Reads the target once, and keeps what it has of this topic of the source: of this life of it, whose positions are others
    /// than those of one of the same name that was deleted, or of a log that began again. `starts`: where the source begins.
    pub(super) async fn read(
        sides: &Sides,
        topic: &TopicInfo,
        target: &str,
        starts: &BTreeMap<u32, u64>,
    ) -> Result<Self, CliError> {
        let mut copies = Self::default();
        let reader = sides.target.consumer().topic(target).out_of_range(OutOfRange::Fail).until_end(true);
        let mut reader = match reader.build().await {
            Ok(reader) => reader,
            Err(CallError::UnknownTopic { .. }) => return Ok(copies),
            Err(error) => return Err(error.into()),
        };
        let places = reader.positions();
        copies.is_there = true;
        copies.is_parallel = places.len() == topic.partitions.len();
        copies.trimmed = places.iter().filter(|at| at.position > 0).map(|at| at.partition).collect();
        let here = Here::of(sides, topic);
        // By partition of the target and of the source, the last position so far: there is an order within each.
        let mut last: HashMap<(u32, u32), u64> = HashMap::new();
        let mut late: Vec<(u32, u64, u64)> = Vec::new();
        while let Some(message) = next(&mut reader).await? {
            let Some(origin) = way(&message).last() else { continue };
            let is_of_this_life =
                topic.partitions.get(origin.partition as usize).is_some_and(|at| at.epoch == origin.epoch);
            if !here.is_of(&origin) || !is_of_this_life {
                continue;
            }
            let (partition, position) = (origin.partition, origin.position);
            let place = (message.partition(), partition);
            let first = copies.first.entry(place).or_insert(position);
            *first = (*first).min(position);
            let of_partition = copies.partitions.entry(partition).or_default();
            if starts.get(&partition).is_some_and(|start| position < *start) {
                of_partition.before.push((position, size_in_source(&message)));
                continue;
            }
            let last = last.entry(place).or_insert(0);
            if position >= *last && of_partition.seen.last().is_none_or(|(seen, _)| *seen != position) {
                *last = position;
                of_partition.seen.push((position, content(&message)));
            } else {
                late.push((partition, position, content(&message)));
            }
        }
        copies.put_in_order(late);
        Ok(copies)
    }

    fn put_in_order(&mut self, mut late: Vec<(u32, u64, u64)>) {
        for of_partition in self.partitions.values_mut() {
            of_partition.seen.sort_unstable();
            of_partition.before.sort_unstable();
            of_partition.before.dedup_by_key(|(position, _)| *position);
        }
        // A message that comes again is a duplicate; one that comes for the first time behind later ones is out of order.
        late.sort_unstable();
        for (partition, position, content) in late {
            let of_partition = self.partitions.entry(partition).or_default();
            match of_partition.seen.binary_search_by_key(&position, |(position, _)| *position) {
                Ok(_) => of_partition.duplicates += 1,
                Err(at) => {
                    of_partition.out_of_order.push(position);
                    of_partition.seen.insert(at, (position, content));
                }
            }
        }
    }

    /// The copies of what the source still has.
    pub(super) fn seen(&self, partition: u32) -> &[(u64, u64)] {
        self.partitions.get(&partition).map_or(&[], |of_partition| &of_partition.seen)
    }

    pub(super) fn duplicates(&self, partition: u32) -> u64 {
        self.partitions.get(&partition).map_or(0, |of_partition| of_partition.duplicates)
    }

    pub(super) fn take_out_of_order(&mut self, partition: u32) -> Vec<u64> {
        let of_partition = self.partitions.get_mut(&partition);
        of_partition.map(|of_partition| std::mem::take(&mut of_partition.out_of_order)).unwrap_or_default()
    }

    /// Whether a message that is not there may have been where the target begins later now: copies lie in order, so it lay
    /// before the first one of its partition.
    pub(super) fn may_be_gone(&self, partition: u32, position: u64) -> bool {
        let mut trimmed = self.trimmed.iter().filter(|at| !self.is_parallel || **at == partition);
        trimmed.any(|at| self.first.get(&(*at, partition)).is_none_or(|first| position < *first))
    }

    /// How many bytes below `until`, where the source begins, have no copy though what lies before them has one, and where the
    /// first of them were.
    pub(super) fn gone_before_copied(&self, partition: u32, until: u64) -> Option<(u64, u64)> {
        let before = &self.partitions.get(&partition)?.before;
        holes(before.iter().copied().filter(|(position, _)| *position < until), until)
    }
}

/// The holes between messages: their bytes, and where the first begins. A compressed set has its messages at positions that
/// follow each other by one, and takes no more bytes than they do.
fn holes(messages: impl Iterator<Item = (u64, u64)>, until: u64) -> Option<(u64, u64)> {
    let (mut bytes, mut first_hole) = (0, None);
    let mut close = |set_end: u64, next: u64| {
        let hole = next.saturating_sub(set_end);
        if hole > HOLE_BYTES_MIN {
            bytes += hole;
            first_hole = first_hole.or(Some(set_end));
        }
    };
    // The last message, and where its set ends at most.
    let mut open: Option<(u64, u64)> = None;
    for (position, size) in messages {
        let end = match open {
            Some((last, end)) if position == last + 1 => end + size,
            Some((_, end)) => {
                close(end, position);
                position + size
            }
            None => position + size,
        };
        open = Some((position, end));
    }
    if let Some((_, end)) = open {
        close(end, until);
    }
    Some((bytes, first_hole?))
}

/// The bytes that a copied message had in the source: without what the mirror has added.
fn size_in_source(message: &ConsumedMessage) -> u64 {
    let of_header =
        |name: &str, value: Option<&[u8]>| HEADER_LENGTHS_BYTES + (name.len() + value.map_or(0, <[u8]>::len)) as u64;
    let origins = message.headers().filter(|(name, _)| *name == HEADER);
    let added = origins.last().map_or(0, |(name, value)| of_header(name, value));
    message.frame().len() as u64 - added
}

/// What a mirror leaves as it is: time, key, value, and the headers but those that say where it comes from.
pub(super) fn content(message: &ConsumedMessage) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    message.timestamp_ms().hash(&mut hasher);
    message.key().hash(&mut hasher);
    message.value().hash(&mut hasher);
    let headers = message.headers().filter(|(name, _)| *name != HEADER && *name != THROUGH);
    headers.for_each(|header| header.hash(&mut hasher));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_what_no_message_and_no_set_can_have_filled() {
        let plain = [(0, 100), (100, 100), (200, 100)];
        assert_eq!(holes(plain.into_iter(), 300), None);
        assert_eq!(holes(plain.into_iter(), 1_300), Some((1_000, 300)));
        assert_eq!(holes([].into_iter(), 1_300), None, "nothing is known of what lies before the first");
        // A compressed set of three at 1000, in at most 300 bytes; the next one lies behind it.
        let packed = [(1_000, 100), (1_001, 100), (1_002, 100), (1_200, 100)];
        assert_eq!(holes(packed.into_iter(), 1_300), None);
        let lost = [(0, 100), (5_000, 100), (9_000, 100)];
        assert_eq!(holes(lost.into_iter(), 9_100), Some((4_900 + 3_900, 100)));
    }
}
