//! Where a mirrored message comes from, as a header that it carries: `corelane-origin:
//! CLUSTER/TOPIC/TOPIC-ID/PARTITION/EPOCH/POSITION`. Each mirror on its way adds one, so that a message is never taken back
//! to a cluster that it has been in. What an exact mirror has brought before has no such header: the one that takes it on
//! says so in `corelane-through: CLUSTER/TOPIC/TOPIC-ID`, one for each exact copy on the way. Pure.

use corelane_client::{ConsumedMessage, TopicId, TopicInfo};

use super::Sides;
use super::lineage::Step;

/// The header's name.
pub(super) const HEADER: &str = "corelane-origin";
/// The most bytes that a header of this name adds to a message: ids of clusters and names of topics are bounded.
pub(super) const HEADER_BYTES_MAX: u32 = 512;

/// The header of what came through exact copies.
pub(super) const THROUGH: &str = "corelane-through";

/// One step of a message's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin<'a> {
    pub(super) cluster: &'a str,
    pub(super) topic: &'a str,
    /// The short form of the topic's id: positions of a topic that is deleted and created again are others.
    pub(super) topic_id: &'a str,
    pub(super) partition: u32,
    pub(super) epoch: u32,
    pub(super) position: u64,
}

impl Origin<'_> {
    /// Writes the header's value over what `text` holds.
    pub(super) fn write(&self, text: &mut String) {
        use std::fmt::Write;
        text.clear();
        let Origin { cluster, topic, topic_id, partition, epoch, position } = self;
        write!(text, "{cluster}/{topic}/{topic_id}/{partition}/{epoch}/{position}").expect("a string takes it");
    }
}

impl<'a> Origin<'a> {
    /// Reads a header's value; `None`: it was not written by a mirror.
    pub(super) fn read(value: &'a [u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(value).ok()?.split('/');
        let origin = Self {
            cluster: parts.next()?,
            topic: parts.next()?,
            topic_id: parts.next()?,
            partition: parts.next()?.parse().ok()?,
            epoch: parts.next()?.parse().ok()?,
            position: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(origin)
    }
}

/// The steps of a message's way so far, the first one first.
pub(super) fn way(message: &ConsumedMessage) -> impl Iterator<Item = Origin<'_>> {
    message.headers().filter(|(name, _)| *name == HEADER).filter_map(|(_, value)| Origin::read(value?))
}

/// The exact copies that a message has come through.
fn through(message: &ConsumedMessage) -> impl Iterator<Item = Step<'_>> {
    let values = message.headers().filter(|(name, _)| *name == THROUGH).filter_map(|(_, value)| value);
    values.filter_map(|value| Step::read(std::str::from_utf8(value).ok()?))
}

/// The topic of the source that is copied, and where to.
pub(super) struct Here<'a> {
    pub(super) source_id: &'a str,
    pub(super) target_id: &'a str,
    pub(super) topic: &'a str,
    pub(super) topic_id: TopicId,
}

impl<'a> Here<'a> {
    pub(super) fn of(sides: &'a Sides, topic: &'a TopicInfo) -> Self {
        let Sides { source_id, target_id, .. } = sides;
        Self { source_id, target_id, topic: &topic.name, topic_id: topic.topic_id }
    }

    /// Whether a step is of this life of the topic: one of the same name that was deleted before is another one.
    pub(super) fn is_of(&self, step: &Origin<'_>) -> bool {
        step.cluster == self.source_id && step.topic == self.topic && step.topic_id == self.topic_id.short()
    }

    /// Whether a mirror leaves a message out: it has been in the target, or in this very topic before, which an exact mirror,
    /// that adds no step, can have brought it back to; or it comes from elsewhere, and is not wanted.
    pub(super) fn is_left_out(&self, message: &ConsumedMessage, local_only: bool) -> bool {
        way(message).any(|step| local_only || step.cluster == self.target_id || self.is_of(&step))
            || through(message).any(|step| local_only || step.cluster == self.target_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_anything_else_is_not_an_origin() {
        let (cluster, topic, topic_id) = ("c-1", "a.b_c-d", "00c0ffee");
        let origin = Origin { cluster, topic, topic_id, partition: 7, epoch: 2, position: u64::MAX };
        let mut text = "of before".to_owned();
        origin.write(&mut text);
        assert_eq!(text, "c-1/a.b_c-d/00c0ffee/7/2/18446744073709551615");
        assert_eq!(Origin::read(text.as_bytes()), Some(origin));
        for other in ["", "c/t/0/1/2", "c/t/0/1/2/3/4", "c/t/0/x/1/2", "c/t/0/0/1/-2"] {
            assert_eq!(Origin::read(other.as_bytes()), None, "{other}");
        }
        assert_eq!(Origin::read(&[0xff, b'/']), None);
    }

    #[test]
    fn the_longest_origin_fits_its_bound() {
        let (cluster, topic) = ("c".repeat(200), "t".repeat(200));
        let (cluster, topic, topic_id) = (&*cluster, &*topic, "ffffffff");
        let origin = Origin { cluster, topic, topic_id, partition: u32::MAX, epoch: u32::MAX, position: u64::MAX };
        let mut text = String::new();
        origin.write(&mut text);
        // A header's own lengths take 6 bytes.
        assert!(6 + HEADER.len() + text.len() <= HEADER_BYTES_MAX as usize, "{}", text.len());
    }
}
