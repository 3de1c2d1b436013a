//! What is stored under each kind of key: compact JSON, so that an operator can read it with etcdctl. Fields that an older
//! version does not know are ignored by it; fields that are absent take the default written here. Pure.

use corelane_log::config::TopicConfig;
use corelane_proto::ids::{Epoch, Position, TopicId, TopicName};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A value of the registry.
pub trait Record: Serialize + DeserializeOwned {
    /// As it is stored.
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record is plain data")
    }

    /// As it was stored.
    fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        serde_json::from_slice(bytes).map_err(RecordError)
    }
}

/// A value in the registry that is not what its key promises.
#[derive(Debug, thiserror::Error)]
#[error("not readable as what its key promises: {0}")]
pub struct RecordError(pub(super) serde_json::Error);

/// `cluster`: made once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Random; clients and data directories name it.
    pub cluster_id: String,
    /// Which life of the store this is: raised by the first broker that notices that it was restored to an earlier state,
    /// so that revisions which the store gives a second time can be told from the first ones.
    #[serde(default = "first_incarnation")]
    pub incarnation: u64,
}

fn first_incarnation() -> u64 {
    1
}

/// `brokers/<broker id>`: lasting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerRecord {
    /// The data directory's own random id: another directory under the same broker id is refused.
    pub uuid: String,
    /// How often the broker was started on this directory: an older copy of it is refused.
    pub starts: u64,
    /// Random, of that start.
    #[serde(default)]
    pub instance: String,
    /// Where it listens.
    pub listeners: Vec<ListenerRecord>,
    /// How many shards it runs.
    pub shards: u32,
    /// The broker's version.
    pub version: String,
}

/// One listener of a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerRecord {
    /// What clients ask for it by.
    pub name: String,
    /// `plain`; later also `tls`.
    pub security: String,
    /// As clients reach it.
    pub host: String,
    /// As clients reach it.
    pub port: u16,
}

/// `alive/<broker id>`: there while the broker's lease lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliveRecord {
    /// Random, of this run of the broker.
    pub instance: String,
    /// The data directory's id, so that a restart takes over its own old lease.
    pub uuid: String,
    /// When it started, in milliseconds since the Unix epoch.
    pub started_ms: i64,
    /// How many partitions lie on it.
    pub partitions: u32,
    /// How many lie in its data directory of which the registry has no record, of no broker.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrecorded: u32,
    /// The registry's incarnation in which these were counted; 0: not yet.
    #[serde(default)]
    pub incarnation: u64,
    /// It stops in order: whoever sees this entry go knows that no lease has ended.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leaving: bool,
}

/// `topics/<name>`: its presence is what makes a topic exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicRecord {
    /// Random; a re-created topic has another.
    #[serde(with = "as_text")]
    pub topic_id: TopicId,
    /// Partition keys beyond it mean nothing.
    pub partitions: u32,
    /// Every field set: a later change of a broker's defaults leaves it alone.
    pub config: TopicConfig,
    /// What it is an exact copy of, as whoever made it said; the first original first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copy_of: Vec<String>,
}

/// `creating/<topic id>`: every step of the creation compares its mod revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatingRecord {
    /// The topic's name.
    #[serde(with = "as_text")]
    pub name: TopicName,
    /// The first partition that is made: 0 for a new topic, the old count where partitions are added.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub from: u32,
    /// How many partitions the topic is to have.
    pub partitions: u32,
    /// The instance that creates; a creation whose instance is gone is dead.
    pub instance: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// `deleted/<topic id>`: the one thing that allows data to be deleted. It goes when every holder has confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TombstoneRecord {
    /// The name that the topic had.
    #[serde(with = "as_text")]
    pub name: TopicName,
    /// The brokers that have yet to delete its data.
    pub holders: Vec<u32>,
}

/// `partitions/<topic id>/<partition>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRecord {
    /// Where its data lies; one broker today.
    pub replicas: Vec<u32>,
    /// Who serves it.
    pub leader: u32,
    /// The life of the log that is to be served.
    #[serde(with = "EpochNumber")]
    pub epoch: Epoch,
    /// The life whose directory was made and flushed on the leader's disk, if any: written before the first acknowledgement,
    /// so that a log that was there is never taken for an empty one.
    #[serde(default, with = "epoch_option", skip_serializing_if = "Option::is_none")]
    pub made: Option<Epoch>,
    /// Where the log of this epoch begins.
    #[serde(with = "PositionNumber")]
    pub start: Position,
}

impl Record for ClusterRecord {}
impl Record for BrokerRecord {}
impl Record for AliveRecord {}
impl Record for TopicRecord {}
impl Record for CreatingRecord {}
impl Record for TombstoneRecord {}
impl Record for PartitionRecord {}

/// What is shown and read as text.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Epochs and positions are plain numbers.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Epoch")]
pub(super) struct EpochNumber(u32);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Position")]
pub(super) struct PositionNumber(u64);

mod epoch_option {
    use corelane_proto::ids::Epoch;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    #[expect(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(epoch: &Option<Epoch>, serializer: S) -> Result<S::Ok, S::Error> {
        epoch.map(|epoch| epoch.0).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Epoch>, D::Error> {
        Ok(Option::<u32>::deserialize(deserializer)?.map(Epoch))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn round_trip<R: Record + PartialEq + std::fmt::Debug>(record: &R, json: &str) {
        assert_eq!(String::from_utf8(record.to_bytes()).expect("JSON"), json);
        assert_eq!(&R::from_bytes(json.as_bytes()).expect("reads back"), record);
        let newer = json.replacen('{', "{\"field_of_a_newer_version\":1,", 1);
        assert_eq!(&R::from_bytes(newer.as_bytes()).expect("reads a newer one"), record);
        for damaged in ["", "{}", "null", "[]", &json[1..]] {
            assert!(R::from_bytes(damaged.as_bytes()).is_err(), "{damaged}");
        }
    }

    fn name() -> TopicName {
        TopicName::new("views").expect("a name")
    }

    #[test]
    fn cluster_records_are_pinned() {
        let record = ClusterRecord { cluster_id: "c0ffee".to_owned(), incarnation: 2 };
        round_trip(&record, r#"{"cluster_id":"c0ffee","incarnation":2}"#);
        let first = ClusterRecord::from_bytes(br#"{"cluster_id":"c0ffee"}"#).expect("an older one");
        assert_eq!(first, ClusterRecord { incarnation: 1, ..record });
    }

    #[test]
    fn broker_records_are_pinned() {
        let listener = ListenerRecord {
            name: "default".to_owned(),
            security: "plain".to_owned(),
            host: "10.0.0.1".to_owned(),
            port: 9400,
        };
        round_trip(
            &BrokerRecord {
                uuid: "u".to_owned(),
                starts: 3,
                instance: "i".to_owned(),
                listeners: vec![listener],
                shards: 2,
                version: "0.1.0".to_owned(),
            },
            r#"{"uuid":"u","starts":3,"instance":"i","listeners":[{"name":"default","security":"plain","host":"10.0.0.1","port":9400}],"shards":2,"version":"0.1.0"}"#,
        );
    }

    #[test]
    fn alive_records_are_pinned() {
        round_trip(
            &AliveRecord {
                instance: "i".to_owned(),
                uuid: "u".to_owned(),
                started_ms: 5,
                partitions: 7,
                unrecorded: 0,
                incarnation: 2,
                leaving: false,
            },
            r#"{"instance":"i","uuid":"u","started_ms":5,"partitions":7,"incarnation":2}"#,
        );
    }

    #[test]
    fn topic_records_are_pinned() {
        let config = TopicConfig {
            retention_ms: 1,
            retention_bytes: 2,
            segment_bytes: 3,
            segment_ms: 4,
            flush_messages: 5,
            flush_interval_ms: 6,
            message_bytes_max: 7,
            set_bytes_max: 8,
        };
        round_trip(
            &TopicRecord { topic_id: TopicId([0xab; 16]), partitions: 8, config, copy_of: Vec::new() },
            &format!(
                r#"{{"topic_id":"{}","partitions":8,"config":{{"retention_ms":1,"retention_bytes":2,"segment_bytes":3,"segment_ms":4,"flush_messages":5,"flush_interval_ms":6,"message_bytes_max":7,"set_bytes_max":8}}}}"#,
                "ab".repeat(16)
            ),
        );
    }

    #[test]
    fn creating_records_are_pinned() {
        let record = CreatingRecord { name: name(), from: 0, partitions: 8, instance: "i".to_owned() };
        round_trip(&record, r#"{"name":"views","partitions":8,"instance":"i"}"#);
        let more = CreatingRecord { from: 4, ..record };
        round_trip(&more, r#"{"name":"views","from":4,"partitions":8,"instance":"i"}"#);
    }

    #[test]
    fn tombstones_are_pinned() {
        round_trip(&TombstoneRecord { name: name(), holders: vec![1, 2] }, r#"{"name":"views","holders":[1,2]}"#);
    }

    #[test]
    fn partition_records_are_pinned() {
        let record = PartitionRecord { replicas: vec![1], leader: 1, epoch: Epoch(2), made: None, start: Position(9) };
        round_trip(&record, r#"{"replicas":[1],"leader":1,"epoch":2,"start":9}"#);
        let made = PartitionRecord { made: Some(Epoch(2)), ..record };
        round_trip(&made, r#"{"replicas":[1],"leader":1,"epoch":2,"made":2,"start":9}"#);
    }
}
