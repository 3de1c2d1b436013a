//! What the status page shows, as JSON: numbers that only grow, from which the page makes rates, and the state of brokers,
//! shards, topics and groups. Of many topics or groups those with the most bytes are told. Pure.

use serde::Serialize;

use super::snapshot::Snapshot;
use crate::limits::STATUS_LINES_MAX;

/// The page. It asks for nothing but the JSON beside it.
pub const PAGE: &str = include_str!("status.html");

#[derive(Serialize)]
struct Status<'s> {
    version: &'s str,
    broker_id: u32,
    cluster: &'s str,
    cluster_id: &'s str,
    uptime_ms: u64,
    reasons: &'s [String],
    warnings: &'s [String],
    registry: Registry<'s>,
    totals: Totals,
    brokers: Vec<Broker<'s>>,
    shards: Vec<ShardLine>,
    topics: Vec<Topic<'s>>,
    topics_left_out: usize,
    groups: Vec<Group<'s>>,
    groups_left_out: usize,
}

#[derive(Serialize)]
struct Registry<'s> {
    kind: &'s str,
    is_up: bool,
}

#[derive(Serialize)]
struct Totals {
    published_bytes: u64,
    published_messages: u64,
    fetched_bytes: u64,
    requests: u64,
    errors: u64,
    connections: u64,
    log_bytes: u64,
    disk_bytes: u64,
    disk_free_bytes: u64,
    resident_bytes: u64,
    cpu_ms: u64,
}

#[derive(Serialize)]
struct Broker<'s> {
    id: u32,
    address: &'s str,
    shards: u32,
    partitions: u32,
    is_running: bool,
    is_here: bool,
}

#[derive(Serialize)]
struct ShardLine {
    shard: u32,
    partitions: usize,
    refused: u64,
    connections: u64,
    published_bytes: u64,
    fetched_bytes: u64,
    arena_bytes: u64,
    arena_used_bytes: u64,
}

#[derive(Serialize)]
struct Topic<'s> {
    name: &'s str,
    partitions: u64,
    partitions_here: u64,
    log_bytes: u64,
    published_bytes: u64,
    published_messages: u64,
    fetched_bytes: u64,
}

#[derive(Serialize)]
struct Group<'s> {
    name: &'s str,
    members: u64,
    partitions: u64,
    unowned: u64,
    lag_bytes: u64,
    lag_partitions: u64,
}

/// Writes it.
pub fn render(snapshot: &Snapshot) -> String {
    let (topics, topics_left_out) = topics(snapshot);
    let (groups, groups_left_out) = groups(snapshot);
    let status = Status {
        version: snapshot.version,
        broker_id: snapshot.broker_id,
        cluster: &snapshot.cluster,
        cluster_id: &snapshot.cluster_id,
        uptime_ms: snapshot.uptime.as_millis() as u64,
        reasons: &snapshot.readiness.reasons[..snapshot.readiness.reasons.len().min(STATUS_LINES_MAX)],
        warnings: &snapshot.readiness.warnings,
        registry: Registry { kind: snapshot.registry.kind, is_up: snapshot.registry.is_up },
        totals: totals(snapshot),
        brokers: brokers(snapshot),
        shards: shards(snapshot),
        topics,
        topics_left_out,
        groups,
        groups_left_out,
    };
    serde_json::to_string(&status).expect("plain data is JSON")
}

fn totals(snapshot: &Snapshot) -> Totals {
    let sum = |read: fn(&crate::figures::ShardFigures) -> u64| snapshot.shards.iter().map(read).sum::<u64>();
    let answers = snapshot.shards.iter().flat_map(|shard| &shard.requests);
    let errors = answers.clone().filter(|answer| answer.status != corelane_proto::frame::Status::Ok);
    let process = &snapshot.process;
    Totals {
        published_bytes: sum(|shard| shard.published_bytes),
        published_messages: sum(|shard| shard.log().messages),
        fetched_bytes: sum(|shard| shard.fetched_bytes),
        requests: answers.map(|answer| answer.count).sum(),
        errors: errors.map(|answer| answer.count).sum(),
        connections: sum(|shard| shard.connections),
        log_bytes: sum(|shard| shard.log().bytes_on_disk),
        disk_bytes: process.disk_bytes,
        disk_free_bytes: process.disk_free_bytes,
        resident_bytes: process.resident_bytes,
        cpu_ms: process.cpu.as_millis() as u64,
    }
}

fn brokers(snapshot: &Snapshot) -> Vec<Broker<'_>> {
    let brokers = snapshot.brokers.iter().map(|broker| Broker {
        id: broker.id,
        address: &broker.address,
        shards: broker.shards,
        partitions: broker.partitions,
        is_running: broker.is_running,
        is_here: broker.id == snapshot.broker_id,
    });
    brokers.collect()
}

fn shards(snapshot: &Snapshot) -> Vec<ShardLine> {
    let shards = snapshot.shards.iter().map(|shard| ShardLine {
        shard: shard.shard,
        partitions: shard.partitions.len(),
        refused: shard.refused,
        connections: shard.connections,
        published_bytes: shard.published_bytes,
        fetched_bytes: shard.fetched_bytes,
        arena_bytes: shard.arena_bytes,
        arena_used_bytes: shard.arena_used_bytes,
    });
    shards.collect()
}

fn topics(snapshot: &Snapshot) -> (Vec<Topic<'_>>, usize) {
    let here = snapshot.by_topic();
    let topics = snapshot.topics.iter().map(|(id, topic)| {
        let (stats, partitions_here, fetched_bytes) = here.get(id).copied().unwrap_or_default();
        Topic {
            name: &topic.name,
            partitions: topic.partitions,
            partitions_here,
            log_bytes: stats.bytes_on_disk,
            published_bytes: stats.bytes,
            published_messages: stats.messages,
            fetched_bytes,
        }
    });
    let (mut topics, left_out) = largest(topics.collect(), |topic| topic.log_bytes);
    topics.sort_by_key(|topic| topic.name);
    (topics, left_out)
}

fn groups(snapshot: &Snapshot) -> (Vec<Group<'_>>, usize) {
    let groups = snapshot.groups.groups.iter().map(|group| {
        let lags = snapshot.groups.lags.range((group.name.clone(), String::new())..);
        let lags = lags.take_while(|((name, _), _)| *name == group.name);
        let (bytes, partitions) =
            lags.fold((0, 0), |(bytes, partitions), (_, lag)| (bytes + lag.bytes, partitions + lag.partitions));
        Group {
            name: &group.name,
            members: group.members,
            partitions: group.partitions,
            unowned: group.unowned,
            lag_bytes: bytes,
            lag_partitions: partitions,
        }
    });
    let (mut groups, left_out) = largest(groups.collect(), |group| group.lag_bytes);
    groups.sort_by_key(|group| group.name);
    (groups, left_out)
}

/// Those with the most, and how many are left out.
fn largest<T>(mut lines: Vec<T>, bytes: impl Fn(&T) -> u64) -> (Vec<T>, usize) {
    let left_out = lines.len().saturating_sub(STATUS_LINES_MAX);
    if left_out > 0 {
        lines.sort_by_key(|line| std::cmp::Reverse(bytes(line)));
        lines.truncate(STATUS_LINES_MAX);
    }
    (lines, left_out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use corelane_proto::ids::TopicId;

    use super::super::snapshot::{GroupFigures, GroupsFigures, LagFigures, TopicFigures};
    use super::*;

    #[test]
    fn the_page_asks_nobody_else() {
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
    }

    #[test]
    fn of_many_topics_those_with_most_are_shown_and_the_others_are_counted() {
        let topic = |number: u128| {
            let id = TopicId(number.to_be_bytes());
            (id, TopicFigures { name: format!("topic {number}"), partitions: 1 })
        };
        let count = STATUS_LINES_MAX as u128 + 7;
        let snapshot = Snapshot { topics: (0..count).map(topic).collect(), ..Snapshot::default() };
        let (shown, left_out) = topics(&snapshot);
        assert_eq!((shown.len(), left_out), (STATUS_LINES_MAX, 7));
        assert!(shown.is_sorted_by_key(|topic| topic.name));
    }

    #[test]
    fn a_group_s_lag_is_that_of_all_its_topics_and_of_no_other_group() {
        let lag = |bytes| LagFigures { bytes, partitions: 2 };
        let key = |group: &str, topic: &str| (group.to_owned(), topic.to_owned());
        let group = |name: &str| GroupFigures { name: name.to_owned(), ..GroupFigures::default() };
        let groups = GroupsFigures {
            groups: vec![group("a"), group("ab"), group("c")],
            lags: BTreeMap::from([(key("a", "x"), lag(1)), (key("a", "y"), lag(10)), (key("ab", "x"), lag(100))]),
            ..GroupsFigures::default()
        };
        let snapshot = Snapshot { groups, ..Snapshot::default() };
        let shown: Vec<_> =
            super::groups(&snapshot).0.iter().map(|group| (group.lag_bytes, group.lag_partitions)).collect();
        assert_eq!(shown, [(11, 4), (100, 2), (0, 0)]);
    }
}
