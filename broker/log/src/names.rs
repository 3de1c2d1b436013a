//! The names of a partition's files: made and read here only. Pure.

use std::path::{Path, PathBuf};

use corelane_proto::ids::{Epoch, Position};

/// What a file in a partition's directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// `<base, 20 digits>-<epoch, 8 digits>.log`
    Segment(Position, Epoch),
    /// The sidecar of a closed segment.
    Summary(Position, Epoch),
    /// `<position, 20 digits>.start`: the log's segments begin there or below, so that one that is missing is noticed.
    Start(Position),
    /// A segment file made ahead, not yet part of the log.
    Prepared,
    /// What recovery cut off a segment, kept for the operator.
    Cut,
    /// A small file that was being replaced when the process ended.
    Temporary,
    /// Not ours.
    Foreign,
}

/// The file made ahead for the next segment.
pub(crate) const PREPARED: &str = "next.prepared";

/// `<base, 20 digits>-<epoch, 8 digits>`
fn stem(base: Position, epoch: Epoch) -> String {
    format!("{:020}-{:08}", base.0, epoch.0)
}

/// The name of a segment.
pub(crate) fn segment(base: Position, epoch: Epoch) -> String {
    stem(base, epoch) + ".log"
}

/// The name of a segment's summary.
pub(crate) fn summary(base: Position, epoch: Epoch) -> String {
    stem(base, epoch) + ".summary"
}

/// The name of the empty file that says where the log begins.
pub(crate) fn start(at: Position) -> String {
    format!("{:020}.start", at.0)
}

/// The name of the copy of a tail that recovery cut off at `wall_ms`.
pub(crate) fn cut(base: Position, epoch: Epoch, wall_ms: i64) -> String {
    format!("{}.cut-{wall_ms}", segment(base, epoch))
}

/// The directory of a partition.
pub(crate) fn partition_dir(topic_dir: &Path, partition: u32) -> PathBuf {
    topic_dir.join(partition.to_string())
}

/// Reads a name.
pub(crate) fn classify(name: &str) -> FileKind {
    if name == PREPARED {
        return FileKind::Prepared;
    }
    // Disks replace a small file by way of one with another ending; a crash leaves that behind.
    if let Some(replaced) = name.strip_suffix(".tmp").or_else(|| name.strip_suffix(".new")) {
        return if classify(replaced) == FileKind::Foreign { FileKind::Foreign } else { FileKind::Temporary };
    }
    if let Some((base, epoch)) = name.strip_suffix(".log").and_then(parse_stem) {
        return FileKind::Segment(base, epoch);
    }
    if let Some((base, epoch)) = name.strip_suffix(".summary").and_then(parse_stem) {
        return FileKind::Summary(base, epoch);
    }
    if let Some(at) = name.strip_suffix(".start").and_then(parse_position) {
        return FileKind::Start(at);
    }
    match name.split_once(".log.cut-") {
        Some((stem, _)) if parse_stem(stem).is_some() => FileKind::Cut,
        _ => FileKind::Foreign,
    }
}

/// Digits only, and exactly as many as are written: another spelling of the same number is not ours.
fn parse_stem(stem: &str) -> Option<(Position, Epoch)> {
    let (base, epoch) = stem.split_once('-')?;
    Some((parse_position(base)?, Epoch(digits(epoch, 8)?.parse().ok()?)))
}

fn parse_position(text: &str) -> Option<Position> {
    Some(Position(digits(text, 20)?.parse().ok()?))
}

fn digits(text: &str, count: usize) -> Option<&str> {
    (text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_they_were_written() {
        let (base, epoch) = (Position(123_456_789), Epoch(7));
        assert_eq!(segment(base, epoch), "00000000000123456789-00000007.log");
        assert_eq!(classify(&segment(base, epoch)), FileKind::Segment(base, epoch));
        assert_eq!(classify(&summary(base, epoch)), FileKind::Summary(base, epoch));
        assert_eq!(classify(&cut(base, epoch, 1_700_000_000_000)), FileKind::Cut);
        assert_eq!(start(base), "00000000000123456789.start");
        assert_eq!(classify(&start(base)), FileKind::Start(base));
        assert_eq!(classify(PREPARED), FileKind::Prepared);
        assert_eq!(classify("00000000000123456789-00000007.summary.tmp"), FileKind::Temporary);
        assert_eq!(classify("00000000000123456789-00000007.log.cut-17.new"), FileKind::Temporary);
    }

    #[test]
    fn other_names_are_foreign() {
        for name in [
            "",
            "x.log",
            "1-1.log",
            "1.start",
            "+0000000000000000001-00000001.log",
            "99999999999999999999-00000001.log",
            "00000000000123456789-00000007.log.bak",
            "lost+found",
            "notes.new",
        ] {
            assert_eq!(classify(name), FileKind::Foreign, "{name}");
        }
    }
}
