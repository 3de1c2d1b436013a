//! Where everything lies in the registry: key layout only, pure. Names are percent-encoded, numbers padded, so that keys
//! sort as one would list them and any name is safe between slashes.

use std::fmt::Write as _;

use corelane_proto::ids::{TopicId, TopicName};

/// The keys of one cluster.
///
/// ```text
/// /corelane/<cluster>/cluster                              lasting  the cluster's id
/// /corelane/<cluster>/brokers/<broker id>                  lasting  a broker's uuid, starts, listeners
/// /corelane/<cluster>/alive/<broker id>                    leased   the broker that runs now
/// /corelane/<cluster>/topics/<name>                        lasting  a topic; the commit point of its creation
/// /corelane/<cluster>/creating/<topic id>                  lasting  a creation under way
/// /corelane/<cluster>/deleted/<topic id>                   lasting  a tombstone: who has yet to delete the data
/// /corelane/<cluster>/partitions/<topic id>/<partition>    lasting  where a partition lies, and its epoch
/// /corelane/<cluster>/groups/<group>/group                 lasting  what a group is, and the inputs of its target
/// /corelane/<cluster>/groups/<group>/target/<chunk>        lasting  who shall own what
/// /corelane/<cluster>/groups/<group>/members/<member id>   leased   a member
/// /corelane/<cluster>/groups/<group>/owners/<topic id>/<p> leased   who owns a partition
/// /corelane/<cluster>/offsets/<group>/<topic id>/<p>       lasting  up to where it was read; a tree that nobody watches
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

/// What a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The cluster's record.
    Cluster,
    /// A broker's lasting record.
    Broker(u32),
    /// A broker that runs.
    Alive(u32),
    /// A topic.
    Topic(TopicName),
    /// A creation under way.
    Creating(TopicId),
    /// A tombstone.
    Deleted(TopicId),
    /// A partition.
    Partition(TopicId, u32),
    /// A group.
    Group(String),
    /// A chunk of a group's target.
    Target(String, u32),
    /// A member of a group.
    Member(String, String),
    /// The owner of a partition in a group.
    Owner(String, TopicId, u32),
    /// A group's position in a partition.
    Offset(String, TopicId, u32),
}

impl Keys {
    /// The keys of the cluster of this name.
    pub fn new(cluster: &str) -> Self {
        Self { prefix: format!("/corelane/{}/", encode(cluster)) }
    }

    /// The key of one thing.
    pub fn key(&self, key: &Key) -> String {
        let prefix = &self.prefix;
        match key {
            Key::Cluster => format!("{prefix}cluster"),
            Key::Broker(id) => format!("{prefix}brokers/{id:010}"),
            Key::Alive(id) => format!("{prefix}alive/{id:010}"),
            Key::Topic(name) => format!("{prefix}topics/{}", encode(name.as_str())),
            Key::Creating(id) => format!("{prefix}creating/{id}"),
            Key::Deleted(id) => format!("{prefix}deleted/{id}"),
            Key::Partition(id, partition) => format!("{prefix}partitions/{id}/{partition:010}"),
            Key::Group(group) => format!("{prefix}groups/{}/group", encode(group)),
            Key::Target(group, chunk) => format!("{prefix}groups/{}/target/{chunk:010}", encode(group)),
            Key::Member(group, member) => format!("{prefix}groups/{}/members/{}", encode(group), encode(member)),
            Key::Owner(group, id, partition) => format!("{prefix}groups/{}/owners/{id}/{partition:010}", encode(group)),
            Key::Offset(group, id, partition) => format!("{prefix}offsets/{}/{id}/{partition:010}", encode(group)),
        }
    }

    /// Everything of the cluster lies under this.
    pub fn all(&self) -> &str {
        &self.prefix
    }

    /// All brokers' lasting records lie under this.
    pub fn brokers(&self) -> String {
        format!("{}brokers/", self.prefix)
    }

    /// All running brokers lie under this.
    pub fn alive(&self) -> String {
        format!("{}alive/", self.prefix)
    }

    /// All topics lie under this.
    pub fn topics(&self) -> String {
        format!("{}topics/", self.prefix)
    }

    /// All creations under way lie under this.
    pub fn creating(&self) -> String {
        format!("{}creating/", self.prefix)
    }

    /// All tombstones lie under this.
    pub fn deleted(&self) -> String {
        format!("{}deleted/", self.prefix)
    }

    /// All partitions of all topics lie under this.
    pub fn partitions(&self) -> String {
        format!("{}partitions/", self.prefix)
    }

    /// The partitions of one topic lie under this.
    pub fn partitions_of(&self, id: TopicId) -> String {
        format!("{}partitions/{id}/", self.prefix)
    }

    /// All groups lie under this, without their positions.
    pub fn groups(&self) -> String {
        format!("{}groups/", self.prefix)
    }

    /// The chunks of a group's target lie under this.
    pub fn target_of(&self, group: &str) -> String {
        format!("{}groups/{}/target/", self.prefix, encode(group))
    }

    /// The members of a group lie under this.
    pub fn members_of(&self, group: &str) -> String {
        format!("{}groups/{}/members/", self.prefix, encode(group))
    }

    /// The owners of a group's partitions lie under this.
    pub fn owners_of(&self, group: &str) -> String {
        format!("{}groups/{}/owners/", self.prefix, encode(group))
    }

    /// The positions of all groups lie under this.
    pub fn offsets(&self) -> String {
        format!("{}offsets/", self.prefix)
    }

    /// The positions of a group lie under this.
    pub fn offsets_of(&self, group: &str) -> String {
        format!("{}offsets/{}/", self.prefix, encode(group))
    }

    /// The positions of a group in one topic lie under this.
    pub fn offsets_in(&self, group: &str, id: TopicId) -> String {
        format!("{}offsets/{}/{id}/", self.prefix, encode(group))
    }

    /// What a key stands for; `None` for one that this version does not know, or that is not written as it would write it.
    pub fn parse(&self, key: &str) -> Option<Key> {
        let rest = key.strip_prefix(&self.prefix)?;
        let parsed = match rest.split_once('/') {
            None if rest == "cluster" => Key::Cluster,
            Some(("brokers", id)) => Key::Broker(id.parse().ok()?),
            Some(("alive", id)) => Key::Alive(id.parse().ok()?),
            Some(("topics", name)) => Key::Topic(TopicName::new(&decode(name)?).ok()?),
            Some(("creating", id)) => Key::Creating(id.parse().ok()?),
            Some(("deleted", id)) => Key::Deleted(id.parse().ok()?),
            Some(("partitions", rest)) => {
                let (id, partition) = partition_of(rest)?;
                Key::Partition(id, partition)
            }
            Some(("groups", rest)) => {
                let (group, rest) = rest.split_once('/')?;
                let group = decode(group)?;
                match rest.split_once('/') {
                    None if rest == "group" => Key::Group(group),
                    Some(("target", chunk)) => Key::Target(group, chunk.parse().ok()?),
                    Some(("members", member)) => Key::Member(group, decode(member)?),
                    Some(("owners", rest)) => {
                        let (id, partition) = partition_of(rest)?;
                        Key::Owner(group, id, partition)
                    }
                    _ => return None,
                }
            }
            Some(("offsets", rest)) => {
                let (group, rest) = rest.split_once('/')?;
                let (id, partition) = partition_of(rest)?;
                Key::Offset(decode(group)?, id, partition)
            }
            _ => return None,
        };
        (self.key(&parsed) == key).then_some(parsed)
    }
}

fn partition_of(rest: &str) -> Option<(TopicId, u32)> {
    let (id, partition) = rest.split_once('/')?;
    Some((id.parse().ok()?, partition.parse().ok()?))
}

/// The smallest key above every key that begins with `prefix`: the (exclusive) end of its range.
pub fn prefix_end(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // Keys are printable ASCII: the next character exists and is one byte.
        if last.is_ascii() && (last as u8) < 0x7f {
            end.push(char::from(last as u8 + 1));
            return end;
        }
    }
    end
}

/// Percent-encodes everything but letters, digits, `.`, `_` and `-`.
pub fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// The inverse of [`encode`]; `None` when it is none of its results' spellings.
pub fn decode(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> TopicId {
        TopicId([byte; 16])
    }

    #[test]
    fn every_key_reads_back_as_what_it_stands_for() {
        let keys = Keys::new("main");
        let name = |name| TopicName::new(name).expect("a name");
        let group = || "a/b".to_owned();
        for (key, text) in [
            (Key::Cluster, "/corelane/main/cluster".to_owned()),
            (Key::Broker(1), "/corelane/main/brokers/0000000001".to_owned()),
            (Key::Alive(u32::MAX), "/corelane/main/alive/4294967295".to_owned()),
            (Key::Topic(name("page-views.v2")), "/corelane/main/topics/page-views.v2".to_owned()),
            (Key::Creating(id(0xab)), format!("/corelane/main/creating/{}", "ab".repeat(16))),
            (Key::Deleted(id(0)), format!("/corelane/main/deleted/{}", "00".repeat(16))),
            (Key::Partition(id(1), 12), format!("/corelane/main/partitions/{}/0000000012", "01".repeat(16))),
            (Key::Group(group()), "/corelane/main/groups/a%2Fb/group".to_owned()),
            (Key::Target(group(), 3), "/corelane/main/groups/a%2Fb/target/0000000003".to_owned()),
            (Key::Member(group(), "m 1".to_owned()), "/corelane/main/groups/a%2Fb/members/m%201".to_owned()),
            (
                Key::Owner(group(), id(1), 12),
                format!("/corelane/main/groups/a%2Fb/owners/{}/0000000012", "01".repeat(16)),
            ),
            (Key::Offset(group(), id(1), 12), format!("/corelane/main/offsets/a%2Fb/{}/0000000012", "01".repeat(16))),
        ] {
            assert_eq!(keys.key(&key), text);
            assert_eq!(keys.parse(&text), Some(key));
        }
    }

    #[test]
    fn keys_of_others_and_other_spellings_are_not_ours() {
        let keys = Keys::new("main");
        for other in [
            "/corelane/other/cluster",
            "/corelane/main/",
            "/corelane/main/cluster/x",
            "/corelane/main/brokers/1",
            "/corelane/main/topics/a%2Fb",
            "/corelane/main/topics/%61",
            "/corelane/main/partitions/00/0000000001",
            "/corelane/main/groups/g",
            "/corelane/main/groups/g/group/x",
            "/corelane/main/groups/g/target/1",
            "/corelane/main/groups/g/members/a/b",
            "/corelane/main/offsets/g",
        ] {
            assert_eq!(keys.parse(other), None, "{other}");
        }
    }

    #[test]
    fn any_name_is_safe_between_slashes_and_reads_back() {
        for name in ["", "a", "a/b", "100%", "naïve group", "\u{0}\n", "..", "%2F"] {
            let encoded = encode(name);
            assert!(encoded.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'), "{encoded}");
            assert_eq!(decode(&encoded).as_deref(), Some(name));
        }
        assert_eq!(decode("%2"), None);
        assert_eq!(decode("%zz"), None);
        assert_eq!(Keys::new("a/b").all(), "/corelane/a%2Fb/");
    }

    #[test]
    fn a_prefix_ends_just_above_its_last_key() {
        assert_eq!(prefix_end("/a/"), "/a0");
        assert_eq!(prefix_end("a\u{7f}"), "b");
        assert!("/a/zzz" < prefix_end("/a/").as_str() && "/a/" < prefix_end("/a/").as_str());
    }

    #[test]
    fn the_partitions_of_a_topic_sort_by_number() {
        let keys = Keys::new("main");
        let sorted: Vec<_> = [2, 10, 100].map(|p| keys.key(&Key::Partition(id(1), p))).into();
        assert!(sorted.is_sorted() && sorted.iter().all(|key| key.starts_with(&keys.partitions_of(id(1)))));
    }
}
