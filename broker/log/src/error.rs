//! What can go wrong, per operation. Whoever handles an error logs it; a message says what to do.

use std::io;
use std::path::PathBuf;

use corelane_proto::ids::{Epoch, Position};
use corelane_proto::set::InvalidMessage;

use crate::config::InvalidConfig;

/// Why a partition takes no appends any more, until the broker is started again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClosedReason {
    /// A write or a flush failed: what the disk kept is unknown, and only recovery can tell.
    #[error("{what} failed ({reason}); the log is read-only until the broker is restarted: check the disk first")]
    Disk {
        /// The operation.
        what: String,
        /// What the system said.
        reason: String,
    },
    /// Recovery found a torn tail and no room to keep a copy of it.
    #[error("no room to keep a copy of the torn tail ({bytes} bytes); make room on the disk, then restart the broker")]
    NoRoomForCopy {
        /// Bytes of the tail.
        bytes: u64,
    },
    /// The broker is stopping, or the partition moves.
    #[error("the partition is being closed")]
    Stopping,
    /// The partition's topic is being deleted.
    #[error("the partition is deleted")]
    Deleted,
}

/// Why a set was not appended. Nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The partition takes no appends.
    #[error("{0}")]
    Closed(ClosedReason),
    /// The disk is full; a later publish finds out when there is room again.
    #[error("no space on the disk of this partition; publishing resumes by itself when there is room")]
    NoSpace,
    /// The set is longer than `set_bytes_max`.
    #[error("the set has {bytes} bytes; the topic's set_bytes_max is {limit}")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A message is bad, or of a kind that is not taken yet.
    #[error(transparent)]
    InvalidMessage(#[from] InvalidMessage),
    /// The end is not where the publisher expected it.
    #[error("the end is {end}, not where it was expected")]
    UnexpectedEnd {
        /// Where it is.
        end: Position,
    },
}

/// Why there is nothing to read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The position is below the start or beyond the end.
    #[error("the position is out of range; the log has {start} to {end}")]
    OutOfRange {
        /// The oldest id retained.
        start: Position,
        /// The end.
        end: Position,
    },
    /// The partition is gone: deleted, or closed by an orderly stop.
    #[error("{0}")]
    Gone(ClosedReason),
    /// The disk did not give the bytes.
    #[error("reading {what} failed: {reason}")]
    Disk {
        /// The file.
        what: String,
        /// What the system said.
        reason: String,
    },
}

/// Why an operator's change failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// The position is beyond the end.
    #[error("the position is out of range; the log has {start} to {end}")]
    OutOfRange {
        /// The oldest id retained.
        start: Position,
        /// The end.
        end: Position,
    },
    /// The partition is closed.
    #[error("{0}")]
    Closed(ClosedReason),
    /// The disk refused.
    #[error("{what} failed: {reason}")]
    Disk {
        /// The operation.
        what: String,
        /// What the system said.
        reason: String,
    },
}

/// Why a partition was not made or not opened. The other partitions serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The options contradict each other.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// A log is there already.
    #[error("{path} holds a log already", path = path.display())]
    Exists {
        /// The partition's directory.
        path: PathBuf,
    },
    /// No log is there.
    #[error("{path} holds no segment; if its data is lost, an operator must accept the loss", path = path.display())]
    Missing {
        /// The partition's directory.
        path: PathBuf,
    },
    /// The log on disk is of another epoch than the registry's.
    #[error(
        "{path} is of epoch {on_disk}, the registry says {expected}: it is another life of this log, kept and not served",
        path = path.display()
    )]
    Epoch {
        /// The partition's directory.
        path: PathBuf,
        /// The epoch of its last segment.
        on_disk: Epoch,
        /// What was asked for.
        expected: Epoch,
    },
    /// A segment is missing or too short.
    #[error(
        "{path}: bytes {from} to {to} of the log are missing; put the missing segment file back, or restore the \
         partition's directory from a copy",
        path = path.display()
    )]
    Gap {
        /// The partition's directory.
        path: PathBuf,
        /// Where the gap begins.
        from: Position,
        /// The segment behind it.
        to: Position,
    },
    /// The oldest segments are missing.
    #[error(
        "{path}: the log's oldest bytes, {from} to {to}, are missing; put the missing segment files back, or accept the \
         loss: remove {mark} in that directory and restart, and the log begins at {to}",
        path = path.display()
    )]
    MissingStart {
        /// The partition's directory.
        path: PathBuf,
        /// Where the log began.
        from: Position,
        /// The first segment that is there.
        to: Position,
        /// The file that says where the log began.
        mark: String,
    },
    /// A segment goes on behind the place where the next one begins.
    #[error(
        "{path} has bytes behind {at}, where {next} begins: two segments overlap, and one of them is not this log's; \
         move that one away and restart",
        path = path.display()
    )]
    Overlap {
        /// The segment.
        path: PathBuf,
        /// Where it should end.
        at: Position,
        /// The one behind it.
        next: String,
    },
    /// Below what the checkpoint calls durable lies another log.
    #[error(
        "{path}: another message ends at {at} than the checkpoint knows, so this is not the log that was served before; \
         put the partition's own directory back (two may have been exchanged)",
        path = path.display()
    )]
    Another {
        /// The partition's directory.
        path: PathBuf,
        /// Where the message ends.
        at: Position,
    },
    /// A good message of a version that this program does not know.
    #[error("{path}: the message at {at} has format version {version}; start a newer broker on this directory", path = path.display())]
    NewerVersion {
        /// The segment.
        path: PathBuf,
        /// The message.
        at: Position,
        /// Its version.
        version: u8,
    },
    /// The disk refused.
    #[error(
        "{what} {path} failed: {source}; the partition is not served: check the disk and the permissions, then restart",
        path = path.display()
    )]
    Disk {
        /// The operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl OpenError {
    /// Whether the disk has no room: it may be tried again when there is.
    pub fn is_no_space(&self) -> bool {
        matches!(self, OpenError::Disk { source, .. } if is_no_space(source))
    }

    pub(crate) fn disk(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.into();
        move |source| OpenError::Disk { what, path, source }
    }
}

/// Whether an error says that the disk is full.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
