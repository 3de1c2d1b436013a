//! What a look at a data directory found, for people and for programs.

use std::path::Path;

use corelane_proto::ids::Position;
use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    /// Worth knowing.
    Note,
    /// It could not be looked at.
    NotSeen,
    /// Something is not as it was written.
    Damage,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// A word for programs.
    pub(super) kind: &'static str,
    /// Where it begins, if that is a place in a log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) position: Option<u64>,
    /// Bytes that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    /// The file, or the directory.
    pub(super) path: String,
    /// A sentence without its beginning, which is the path.
    pub(super) text: String,
}

impl Finding {
    pub(super) fn new(severity: Severity, kind: &'static str, path: &Path, text: impl Into<String>) -> Self {
        let path = path.display().to_string();
        Self { severity, kind, position: None, bytes: None, path, text: text.into() }
    }

    pub(super) fn note(kind: &'static str, path: &Path, text: impl Into<String>) -> Self {
        Self::new(Severity::Note, kind, path, text)
    }

    pub(super) fn damage(kind: &'static str, path: &Path, text: impl Into<String>) -> Self {
        Self::new(Severity::Damage, kind, path, text)
    }

    /// What a failed operation means: without permission nothing is known, else the disk or the directory is at fault.
    pub(super) fn failed(path: &Path, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            let text = format!("cannot be read: {error}; run this as the user that the broker runs as");
            return Self::new(Severity::NotSeen, "not_permitted", path, text);
        }
        Self::damage("unreadable", path, format!("cannot be read: {error}"))
    }

    pub(super) fn at(mut self, from: Position, bytes: u64) -> Self {
        self.position = Some(from.0);
        self.bytes = Some(bytes);
        self
    }

    /// One line.
    pub(super) fn line(&self) -> String {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::NotSeen => "not seen",
            Severity::Damage => "DAMAGE",
        };
        let place = match (self.position, self.bytes) {
            (Some(position), Some(bytes)) => format!(" at {position}, {bytes} bytes"),
            _ => String::new(),
        };
        format!("{severity:<8} {}{place}: {}", self.path, self.text)
    }
}

/// What was found in one partition.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PartitionReport {
    pub(super) topic: String,
    pub(super) partition: u32,
    /// The oldest position there.
    pub(super) start: u64,
    /// What was looked at ends here.
    pub(super) end: u64,
    pub(super) segments: u64,
    /// Good messages, as consumers see them.
    pub(super) messages: u64,
    /// Whole sets.
    pub(super) sets: u64,
    pub(super) bad_messages: u64,
    /// Bytes that readers cannot have, those of bad messages included.
    pub(super) damaged_bytes: u64,
    /// Findings that were left out of the list.
    pub(super) findings_left_out: u64,
    pub(super) findings: Vec<Finding>,
}

/// How many findings of one partition are told one by one.
const FINDINGS_MAX: usize = 100;

impl PartitionReport {
    pub(super) fn add(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.findings_left_out += 1;
        }
    }

    pub(super) fn worst(&self) -> Severity {
        worst(&self.findings)
    }
}

/// The most severe of findings.
pub(super) fn worst<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Severity {
    findings.into_iter().map(|finding| finding.severity).max().unwrap_or(Severity::Note)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_with_its_place() {
        let finding = Finding::damage("bad_message", Path::new("a/0.log"), "its CRC is wrong").at(Position(7), 30);
        assert_eq!(finding.line(), "DAMAGE   a/0.log at 7, 30 bytes: its CRC is wrong");
        let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert_eq!(Finding::failed(Path::new("x"), &denied).severity, Severity::NotSeen);
        assert_eq!(worst(&[finding]), Severity::Damage);
        assert_eq!(worst(&[]), Severity::Note);
    }

    #[test]
    fn a_log_full_of_damage_is_told_in_a_bounded_list() {
        let mut report = PartitionReport::default();
        for _ in 0..250 {
            report.add(Finding::note("x", Path::new("p"), "t"));
        }
        assert_eq!((report.findings.len(), report.findings_left_out), (100, 150));
    }
}
