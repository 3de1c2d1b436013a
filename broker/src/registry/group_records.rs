//! What is stored for consumer groups, as JSON like the other records: what a group is and who shall own what, its
//! members, who owns what, and up to where it was read. Pure.

use std::collections::{BTreeMap, BTreeSet};

use corelane_proto::ids::{Epoch, Position, TopicId, TopicName};
use serde::{Deserialize, Serialize};

use super::assignment::Target;
use super::records::{EpochNumber, PositionNumber, Record};
use super::store::Revision;

/// `groups/<group>/group`: lasting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// Who computes the target: `corelane`; later also members of another protocol.
    pub kind: String,
    /// Each topic name that was ever subscribed to. Where there are too many, those of no use are forgotten.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub names: BTreeSet<String>,
    /// Each pattern that was ever subscribed to, likewise.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub patterns: BTreeSet<String>,
    /// Each topic ever subscribed to, with its partition count when its name, or a pattern that matches it, was subscribed
    /// to first; 0 if it came after that. Partitions from that number on begin at their start, whatever a member's policy.
    #[serde(with = "by_topic")]
    pub topics: BTreeMap<TopicId, u32>,
    /// Counts the targets.
    pub generation: u64,
    /// In how many keys of its own the target lies.
    pub target_chunks: u32,
    /// What the target was computed from.
    pub inputs: InputsRecord,
}

/// What a target was computed from: who sees the same need not compute it again, and who has seen less must not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputsRecord {
    /// Which life of the store the revision counts in.
    pub incarnation: u64,
    /// Everything up to this revision was seen.
    pub revision: Revision,
    /// Of the members, their topics and the partition counts.
    pub digest: String,
}

/// `groups/<group>/target/<chunk>`: a part of the target, written with the group's key in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Per topic and member its partitions.
    #[serde(with = "by_topic")]
    pub owners: BTreeMap<TopicId, BTreeMap<String, Vec<u32>>>,
}

/// `groups/<group>/members/<member id>`: there while the member's lease lives; written by join and attach alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// The topics it subscribes to by name.
    #[serde(default, with = "names", skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<TopicName>,
    /// Or a pattern that names must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// What the client calls itself.
    pub client: String,
    /// Where it connected from.
    pub host: String,
    /// Of the secret that each of its calls carries.
    pub secret_hash: String,
    /// How long it counts as alive after its last heartbeat, in milliseconds, as it was asked for.
    pub lease_ms: u32,
    /// How long it may hold one message, in milliseconds.
    pub processing_max_ms: u32,
    /// How long it may take to release what it must and to claim what it should, in milliseconds.
    pub release_max_ms: u32,
}

/// `groups/<group>/owners/<topic id>/<partition>`: there while its owner's lease lives; created only where there is none.
/// Its create revision is the fence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// The owner.
    pub member: String,
    /// The target that gave it the partition.
    pub generation: u64,
}

/// `offsets/<group>/<topic id>/<partition>`: lasting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetRecord {
    /// Of the log that was read.
    #[serde(with = "EpochNumber")]
    pub epoch: Epoch,
    /// Everything below it was processed.
    #[serde(with = "PositionNumber")]
    pub position: Position,
    /// Whose commit it was; none of a reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// When it was committed, in milliseconds since the Unix epoch.
    pub time_ms: i64,
}

/// Tells one ownership of a partition from every other; a later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// Raised when the store was restored, so that the numbers that it gives again are others.
    pub incarnation: u64,
    /// When the owner's key appeared.
    pub created: Revision,
}

impl Record for GroupRecord {}
impl Record for TargetRecord {}
impl Record for MemberRecord {}
impl Record for OwnerRecord {}
impl Record for OffsetRecord {}

impl TargetRecord {
    /// A target in as many records as are needed for each to stay below so many bytes; at least one.
    pub fn split(target: &Target, bytes_max: usize) -> Vec<Self> {
        let mut whole = Self::default();
        for ((topic, partition), member) in target {
            whole.owners.entry(*topic).or_default().entry(member.clone()).or_default().push(*partition);
        }
        let (mut chunks, mut bytes) = (vec![Self::default()], 0);
        for (topic, owners) in whole.owners {
            for (member, partitions) in owners {
                // As JSON at most: the topic's id, the member's name and the numbers, each with what stands around it.
                let member_bytes = serde_json::to_string(&member).map_or(0, |json| json.len());
                let most = 40 + member_bytes + 4 + partitions.len() * 11;
                if bytes > 0 && bytes + most > bytes_max.saturating_sub(16) {
                    chunks.push(Self::default());
                    bytes = 0;
                }
                bytes += most;
                let chunk = chunks.last_mut().expect("there is at least one");
                chunk.owners.entry(topic).or_default().insert(member, partitions);
            }
        }
        chunks
    }

    /// The target that was split into these.
    pub fn join(chunks: impl IntoIterator<Item = Self>) -> Target {
        let mut target = Target::new();
        for (topic, owners) in chunks.into_iter().flat_map(|chunk| chunk.owners) {
            for (member, partitions) in owners {
                target.extend(partitions.into_iter().map(|partition| ((topic, partition), member.clone())));
            }
        }
        target
    }
}

/// Maps whose keys are topic ids, which JSON writes as text.
mod by_topic {
    use std::collections::BTreeMap;

    use corelane_proto::ids::TopicId;
    use serde::de::{DeserializeOwned, Error as _};
    use serde::{Deserialize as _, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<V: Serialize, S: Serializer>(
        map: &BTreeMap<TopicId, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(map.iter().map(|(topic, value)| (topic.to_string(), value)))
    }

    pub(super) fn deserialize<'de, V, D>(deserializer: D) -> Result<BTreeMap<TopicId, V>, D::Error>
    where
        V: DeserializeOwned,
        D: Deserializer<'de>,
    {
        let map = BTreeMap::<String, V>::deserialize(deserializer)?;
        map.into_iter().map(|(topic, value)| Ok((topic.parse().map_err(D::Error::custom)?, value))).collect()
    }
}

mod names {
    use corelane_proto::ids::TopicName;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(names: &[TopicName], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(names.iter().map(TopicName::as_str))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TopicName>, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        names.iter().map(|name| TopicName::new(name).map_err(D::Error::custom)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::records::tests::round_trip;
    use super::*;

    fn topic(byte: u8) -> TopicId {
        TopicId([byte; 16])
    }

    #[test]
    fn group_records_are_pinned() {
        let inputs = InputsRecord { incarnation: 1, revision: 7, digest: "d".to_owned() };
        let topics = BTreeMap::from([(topic(0xab), 8)]);
        let record = GroupRecord {
            kind: "corelane".to_owned(),
            names: BTreeSet::from(["views".to_owned()]),
            patterns: BTreeSet::new(),
            topics,
            generation: 3,
            target_chunks: 1,
            inputs,
        };
        let json = format!(
            r#"{{"kind":"corelane","names":["views"],"topics":{{"{}":8}},"generation":3,"target_chunks":1,"inputs":{{"incarnation":1,"revision":7,"digest":"d"}}}}"#,
            "ab".repeat(16)
        );
        round_trip(&record, &json);
    }

    #[test]
    fn target_records_are_pinned() {
        let owners = BTreeMap::from([(topic(1), BTreeMap::from([("m".to_owned(), vec![0, 2])]))]);
        round_trip(&TargetRecord { owners }, &format!(r#"{{"owners":{{"{}":{{"m":[0,2]}}}}}}"#, "01".repeat(16)));
    }

    #[test]
    fn member_records_are_pinned() {
        let by_name = MemberRecord {
            topics: vec![TopicName::new("views").expect("a name")],
            pattern: None,
            client: "c".to_owned(),
            host: "127.0.0.1".to_owned(),
            secret_hash: "h".to_owned(),
            lease_ms: 1,
            processing_max_ms: 2,
            release_max_ms: 3,
        };
        let rest = r#""client":"c","host":"127.0.0.1","secret_hash":"h","lease_ms":1,"processing_max_ms":2,"release_max_ms":3}"#;
        round_trip(&by_name, &format!(r#"{{"topics":["views"],{rest}"#));
        let by_pattern = MemberRecord { topics: Vec::new(), pattern: Some("v.*".to_owned()), ..by_name };
        round_trip(&by_pattern, &format!(r#"{{"pattern":"v.*",{rest}"#));
    }

    #[test]
    fn owner_and_offset_records_are_pinned() {
        round_trip(&OwnerRecord { member: "m".to_owned(), generation: 3 }, r#"{"member":"m","generation":3}"#);
        let fence = Some(Fence { incarnation: 1, created: 9 });
        let committed = OffsetRecord { epoch: Epoch(2), position: Position(5), fence, time_ms: 6 };
        round_trip(&committed, r#"{"epoch":2,"position":5,"fence":{"incarnation":1,"created":9},"time_ms":6}"#);
        round_trip(&OffsetRecord { fence: None, ..committed }, r#"{"epoch":2,"position":5,"time_ms":6}"#);
    }

    #[test]
    fn fences_of_a_later_incarnation_are_greater() {
        let (before, after) = (Fence { incarnation: 1, created: 900 }, Fence { incarnation: 2, created: 3 });
        assert!(before < after && before < Fence { created: 901, ..before });
    }

    proptest! {
        #[test]
        fn a_target_joins_from_its_chunks_none_of_which_is_too_large(
            owners in proptest::collection::btree_map((0..4u8, any::<u32>()), "[a-z\"\\\\é]{0,6}", 0..200),
            bytes_max in 1_000..4_000usize,
        ) {
            let target: Target = owners.into_iter().map(|((id, p), member)| ((topic(id), p), member)).collect();
            let chunks = TargetRecord::split(&target, bytes_max);
            // One member's share of one topic is not cut further.
            let largest = chunks.iter().filter(|chunk| chunk.owners.values().map(BTreeMap::len).sum::<usize>() > 1);
            for chunk in largest {
                prop_assert!(chunk.to_bytes().len() <= bytes_max);
            }
            prop_assert_eq!(TargetRecord::join(chunks), target);
        }
    }
}
