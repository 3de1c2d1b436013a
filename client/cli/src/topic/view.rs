//! Topics as tables and as JSON. Field names are the vocabulary's: `start`, `visible_end`, `durable_end`, `partition`.

use comfy_table::CellAlignment::{Left, Right};
use corelane_client::{PartitionDetail, TopicDescription, TopicInfo, TopicSettings};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::output::{print, print_json, print_table, table};
use crate::parse::duration::format_duration_ms;
use crate::parse::size::format_size;

/// Prints all topics, one a row.
pub(super) fn list(topics: &[TopicInfo], json: bool) -> Result<(), CliError> {
    if json {
        return print_json(&topics.iter().map(topic_json).collect::<Vec<_>>());
    }
    let mut rows = table(&[("TOPIC", Left), ("PARTITIONS", Right), ("RETENTION", Left), ("FLUSH", Left), ("ID", Left)]);
    for topic in topics {
        rows.add_row(vec![
            topic.name.clone(),
            topic.partitions.len().to_string(),
            retention(&topic.settings),
            flush(&topic.settings),
            topic.topic_id.to_string(),
        ]);
    }
    print_table(&rows)
}

/// Prints one topic: its settings, then a row for each partition.
pub(super) fn description(description: &TopicDescription, json: bool) -> Result<(), CliError> {
    if json {
        return print_json(&description_json(description));
    }
    print(&heading(&description.topic))?;
    let mut rows = table(&[
        ("PARTITION", Right),
        ("START", Right),
        ("VISIBLE END", Right),
        ("DURABLE END", Right),
        ("END", Right),
        ("SEGMENTS", Right),
        ("ON DISK", Right),
        ("BAD", Right),
        ("BROKER", Right),
        ("SHARD", Right),
        ("EPOCH", Right),
        ("STATE", Left),
    ]);
    for partition in &description.topic.partitions {
        let detail = detail_of(description, partition.partition);
        let cell = |of: fn(&PartitionDetail) -> String| detail.map_or_else(|| "-".to_owned(), of);
        let state = if partition.reason.is_empty() {
            partition.state.name().to_owned()
        } else {
            format!("{}: {}", partition.state.name(), partition.reason)
        };
        rows.add_row(vec![
            partition.partition.to_string(),
            cell(|detail| detail.start.to_string()),
            cell(|detail| detail.visible_end.to_string()),
            cell(|detail| detail.durable_end.to_string()),
            cell(|detail| detail.end.to_string()),
            cell(|detail| detail.segments.to_string()),
            cell(|detail| format_size(detail.bytes_on_disk)),
            cell(|detail| detail.bad_messages.to_string()),
            partition.broker_id.to_string(),
            partition.shard.to_string(),
            partition.epoch.to_string(),
            state,
        ]);
    }
    print_table(&rows)
}

fn heading(topic: &TopicInfo) -> String {
    let settings = &topic.settings;
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), format_size);
    format!(
        "topic {} ({})\n  retention: {}\n  flush: {}\n  segment: {}, {}\n  largest message: {}, largest set: {}\n\n",
        topic.name,
        topic.topic_id,
        retention(settings),
        flush(settings),
        size(settings.segment_bytes),
        settings.segment_ms.map_or_else(|| "-".to_owned(), format_duration_ms),
        size(settings.message_bytes_max.map(u64::from)),
        size(settings.set_bytes_max.map(u64::from)),
    )
}

/// How long and how much is kept, in words.
fn retention(settings: &TopicSettings) -> String {
    let age = match settings.retention_ms {
        None | Some(0) => "forever".to_owned(),
        Some(ms) => format_duration_ms(ms),
    };
    match settings.retention_bytes {
        None | Some(0) => age,
        Some(bytes) => format!("{age}, {} a partition", format_size(bytes)),
    }
}

/// The flush policy in words.
fn flush(settings: &TopicSettings) -> String {
    match (settings.flush_messages.unwrap_or(0), settings.flush_interval_ms.unwrap_or(0)) {
        (0, 0) => "continuously".to_owned(),
        (0, ms) => format!("every {}", format_duration_ms(ms)),
        (messages, 0) => format!("every {messages} messages"),
        (messages, ms) => format!("every {messages} messages or {}", format_duration_ms(ms)),
    }
}

fn detail_of(description: &TopicDescription, partition: u32) -> Option<&PartitionDetail> {
    description.details.iter().find(|detail| detail.partition == partition)
}

/// A topic without the state of its partitions' logs.
pub(super) fn topic_json(topic: &TopicInfo) -> Value {
    let settings = &topic.settings;
    json!({
        "topic": topic.name,
        "topic_id": topic.topic_id.to_string(),
        "partitions": topic.partitions.len(),
        "copy_of": topic.copy_of,
        "settings": {
            "retention_ms": settings.retention_ms,
            "retention_bytes": settings.retention_bytes,
            "segment_bytes": settings.segment_bytes,
            "segment_ms": settings.segment_ms,
            "flush_messages": settings.flush_messages,
            "flush_interval_ms": settings.flush_interval_ms,
            "message_bytes_max": settings.message_bytes_max,
            "set_bytes_max": settings.set_bytes_max,
        },
    })
}

/// A topic with its partitions; what a partition that did not answer would have said is null.
fn description_json(description: &TopicDescription) -> Value {
    let partitions: Vec<Value> = description
        .topic
        .partitions
        .iter()
        .map(|partition| {
            let detail = detail_of(description, partition.partition);
            json!({
                "partition": partition.partition,
                "start": detail.map(|detail| detail.start),
                "visible_end": detail.map(|detail| detail.visible_end),
                "durable_end": detail.map(|detail| detail.durable_end),
                "end": detail.map(|detail| detail.end),
                "segments": detail.map(|detail| detail.segments),
                "bytes_on_disk": detail.map(|detail| detail.bytes_on_disk),
                "bad_messages": detail.map(|detail| detail.bad_messages),
                "broker_id": partition.broker_id,
                "shard": partition.shard,
                "epoch": partition.epoch,
                "state": partition.state.name(),
                "reason": partition.reason,
            })
        })
        .collect();
    let mut document = topic_json(&description.topic);
    document["partitions"] = partitions.into();
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_told_in_words() {
        let settings = TopicSettings::new();
        assert_eq!((retention(&settings), flush(&settings)), ("forever".to_owned(), "continuously".to_owned()));
        let mut settings = settings.flush_messages(500).retention_bytes(1 << 30);
        settings.retention_ms = Some(604_800_000);
        settings.flush_interval_ms = Some(50);
        assert_eq!(retention(&settings), "7d, 1 GiB a partition");
        assert_eq!(flush(&settings), "every 500 messages or 50ms");
    }
}
