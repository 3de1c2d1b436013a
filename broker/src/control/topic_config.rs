//! Between a topic's configuration in requests, where fields may be absent, and the log's, where all are set. Pure.

use corelane_log::config::TopicConfig;
use corelane_proto::pb;

use crate::config::Config;

/// The configuration of a topic that asks for nothing.
pub fn default_config(config: &Config) -> TopicConfig {
    TopicConfig {
        retention_ms: config.retention.as_ms(),
        retention_bytes: config.retention_bytes.0,
        segment_bytes: config.segment_bytes.0,
        segment_ms: config.segment_time.as_ms(),
        flush_messages: config.flush_messages,
        flush_interval_ms: config.flush_interval.as_ms(),
        message_bytes_max: config.message_bytes_max.0 as u32,
        set_bytes_max: config.set_bytes_max.0 as u32,
    }
}

/// `base` with what `change` names changed.
pub fn merge(base: &TopicConfig, change: &pb::TopicConfig) -> TopicConfig {
    TopicConfig {
        retention_ms: change.retention_ms.unwrap_or(base.retention_ms),
        retention_bytes: change.retention_bytes.unwrap_or(base.retention_bytes),
        segment_bytes: change.segment_bytes.unwrap_or(base.segment_bytes),
        segment_ms: change.segment_ms.unwrap_or(base.segment_ms),
        flush_messages: change.flush_messages.unwrap_or(base.flush_messages),
        flush_interval_ms: change.flush_interval_ms.unwrap_or(base.flush_interval_ms),
        message_bytes_max: change.message_bytes_max.unwrap_or(base.message_bytes_max),
        set_bytes_max: change.set_bytes_max.unwrap_or(base.set_bytes_max),
    }
}

/// A new topic's configuration: the defaults, and of those that the request leaves open the two limits made to fit what
/// it does ask for, so that a small segment needs no further settings.
pub fn for_new_topic(defaults: &TopicConfig, asked: &pb::TopicConfig) -> TopicConfig {
    let mut config = merge(defaults, asked);
    if asked.set_bytes_max.is_none() {
        let segment_bytes = u32::try_from(config.segment_bytes).unwrap_or(u32::MAX);
        let wanted = config.set_bytes_max.max(asked.message_bytes_max.unwrap_or(0));
        config.set_bytes_max = wanted.min(segment_bytes);
    }
    if asked.message_bytes_max.is_none() {
        config.message_bytes_max = config.message_bytes_max.min(config.set_bytes_max);
    }
    config
}

/// As clients are told it: every field set.
pub fn to_pb(config: &TopicConfig) -> pb::TopicConfig {
    pb::TopicConfig {
        retention_ms: Some(config.retention_ms),
        retention_bytes: Some(config.retention_bytes),
        segment_bytes: Some(config.segment_bytes),
        segment_ms: Some(config.segment_ms),
        flush_messages: Some(config.flush_messages),
        flush_interval_ms: Some(config.flush_interval_ms),
        message_bytes_max: Some(config.message_bytes_max),
        set_bytes_max: Some(config.set_bytes_max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_change_names_is_changed_and_nothing_else() {
        let defaults = default_config(&Config::default());
        assert_eq!(merge(&defaults, &pb::TopicConfig::default()), defaults);
        let all = TopicConfig {
            retention_ms: 1,
            retention_bytes: 2,
            segment_bytes: 3,
            segment_ms: 4,
            flush_messages: 5,
            flush_interval_ms: 6,
            message_bytes_max: 7,
            set_bytes_max: 8,
        };
        assert_eq!(merge(&defaults, &to_pb(&all)), all);
        let retention = pb::TopicConfig { retention_ms: Some(9), ..Default::default() };
        assert_eq!(merge(&all, &retention), TopicConfig { retention_ms: 9, ..all });
    }

    #[test]
    fn a_small_segment_needs_no_further_settings() {
        let defaults = default_config(&Config::default());
        let asked = pb::TopicConfig { segment_bytes: Some(64 << 10), ..Default::default() };
        let config = for_new_topic(&defaults, &asked);
        assert_eq!((config.set_bytes_max, config.message_bytes_max), (64 << 10, 64 << 10));
        assert!(config.validate().is_ok());
        let asked = pb::TopicConfig { message_bytes_max: Some(8 << 20), ..Default::default() };
        assert!(for_new_topic(&defaults, &asked).validate().is_ok());
        let asked = pb::TopicConfig { segment_bytes: Some(64 << 10), set_bytes_max: Some(1 << 20), ..asked };
        assert!(for_new_topic(&defaults, &asked).validate().is_err(), "what contradicts itself is refused");
    }
}
