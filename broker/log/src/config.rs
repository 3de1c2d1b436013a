//! A topic's configuration as the log uses it, and what a partition is told when it is made or opened. Pure.

use corelane_proto::ids::{Epoch, Position, TopicId, TopicName};
use serde::{Deserialize, Serialize};

use crate::env::BLOCK_BYTES;
use crate::limits;

/// How a topic's partitions are kept and flushed. Every field is set; the default is the broker's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicConfig {
    /// Segments whose newest message arrived longer ago are deleted. Milliseconds; 0: never.
    pub retention_ms: u64,
    /// The oldest segments are deleted while the others hold at least so many bytes, per partition; 0: no limit.
    pub retention_bytes: u64,
    /// A segment is closed when the next set would make it longer than this, in bytes.
    pub segment_bytes: u64,
    /// A segment is closed when its first message is older than this. Milliseconds; 0: never.
    pub segment_ms: u64,
    /// Flush after so many messages; 0: not by count.
    pub flush_messages: u64,
    /// Flush after the oldest message that is not flushed has waited so long. Milliseconds; 0: continuously, unless
    /// `flush_messages` is set (then after a second).
    pub flush_interval_ms: u64,
    /// A longer message is refused, in bytes.
    pub message_bytes_max: u32,
    /// A longer set is refused, in bytes.
    pub set_bytes_max: u32,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            retention_ms: 7 * 24 * 3600 * 1000,
            retention_bytes: 0,
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 3600 * 1000,
            flush_messages: 0,
            flush_interval_ms: 0,
            message_bytes_max: 1 << 20,
            set_bytes_max: 2 << 20,
        }
    }
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {reason}")]
pub struct InvalidConfig {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it: the rest of the sentence that begins with the field.
    pub reason: String,
}

impl TopicConfig {
    /// Checks every field against its limits and against the others.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let range = |field, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(InvalidConfig { field, reason: format!("is {value}; it can be {least} to {most} bytes") })
        };
        let set_bytes_max = u64::from(self.set_bytes_max);
        range("segment_bytes", self.segment_bytes, limits::SEGMENT_BYTES_MIN, limits::SEGMENT_BYTES_LIMIT)?;
        let (least, most) = (u64::from(limits::MESSAGE_BYTES_MIN), u64::from(limits::SET_BYTES_LIMIT));
        range("set_bytes_max", set_bytes_max, least, most)?;
        range("message_bytes_max", u64::from(self.message_bytes_max), least, most)?;
        if set_bytes_max > self.segment_bytes {
            let reason =
                format!("is {set_bytes_max}; a set lies in one segment, and segment_bytes is {}", self.segment_bytes);
            return Err(InvalidConfig { field: "set_bytes_max", reason });
        }
        if self.message_bytes_max > self.set_bytes_max {
            let reason = format!(
                "is {}; a message lies in one set, and set_bytes_max is {set_bytes_max}",
                self.message_bytes_max
            );
            return Err(InvalidConfig { field: "message_bytes_max", reason });
        }
        Ok(())
    }

    /// Whether each flush begins as soon as the last one has ended and something waits.
    pub fn flushes_continuously(&self) -> bool {
        self.flush_messages == 0 && self.flush_interval_ms == 0
    }
}

/// What a partition is told when it is made or opened.
#[derive(Clone, Debug)]
pub struct PartitionOptions {
    /// The topic's name, for log lines.
    pub topic: TopicName,
    /// The topic's id.
    pub topic_id: TopicId,
    /// The partition's number.
    pub partition: u32,
    /// The epoch that the registry knows. A new log is made with it; an existing one must be of it.
    pub epoch: Epoch,
    /// Where a new log begins. `Position::ZERO` but for a log that began again.
    pub start: Position,
    /// The topic's configuration.
    pub config: TopicConfig,
    /// The write window W, in bytes: at least `set_bytes_max` and one block.
    pub unflushed_bytes_max: u64,
    /// The largest W that the data directory's identity has recorded, this one included: what recovery reckons with.
    pub window_max_ever: u64,
}

impl PartitionOptions {
    /// Options for `partition` of a topic, with the defaults for everything else: epoch 1, a log that begins at 0.
    pub fn new(topic: TopicName, topic_id: TopicId, partition: u32) -> Self {
        Self {
            topic,
            topic_id,
            partition,
            epoch: Epoch(1),
            start: Position::ZERO,
            config: TopicConfig::default(),
            unflushed_bytes_max: limits::UNFLUSHED_BYTES_DEFAULT,
            window_max_ever: limits::UNFLUSHED_BYTES_DEFAULT,
        }
    }

    /// Checks the options against each other.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        self.config.validate()?;
        let least = u64::from(self.config.set_bytes_max) + BLOCK_BYTES as u64;
        if self.unflushed_bytes_max < least {
            let reason = format!("is {}; a set and a block must fit: at least {least}", self.unflushed_bytes_max);
            return Err(InvalidConfig { field: "unflushed_bytes_max", reason });
        }
        if self.window_max_ever < self.unflushed_bytes_max {
            let reason = "is below unflushed_bytes_max; record that one first".to_owned();
            return Err(InvalidConfig { field: "window_max_ever", reason });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_configuration_is_valid() {
        assert_eq!(TopicConfig::default().validate(), Ok(()));
        assert!(TopicConfig::default().flushes_continuously());
    }

    #[test]
    fn what_cannot_fit_is_refused_with_the_field_to_change() {
        let field = |config: TopicConfig| config.validate().unwrap_err().field;
        let base =
            TopicConfig { segment_bytes: 8192, set_bytes_max: 8192, message_bytes_max: 8192, ..Default::default() };
        assert_eq!(base.validate(), Ok(()));
        assert_eq!(field(TopicConfig { segment_bytes: 4095, ..base.clone() }), "segment_bytes");
        assert_eq!(field(TopicConfig { segment_bytes: 8191, ..base.clone() }), "set_bytes_max");
        assert_eq!(field(TopicConfig { set_bytes_max: 8191, ..base.clone() }), "message_bytes_max");
        assert_eq!(field(TopicConfig { set_bytes_max: u32::MAX, ..base }), "set_bytes_max");
    }

    #[test]
    fn a_window_that_no_set_fits_is_refused() {
        let mut options = PartitionOptions::new("t".parse().unwrap(), TopicId([0; 16]), 0);
        assert_eq!(options.validate(), Ok(()));
        options.unflushed_bytes_max = u64::from(options.config.set_bytes_max);
        assert_eq!(options.validate().unwrap_err().field, "unflushed_bytes_max");
    }
}
