//! The status codes of responses: name, advice, whether a retry can help, whether a publish's sequence number is used
//! up. One table; docs/protocol.md repeats it and a test compares. A code is never reused.

/// Whether, and where, sending the same request again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// No: the request has to be another one.
    No,
    /// Yes, at the same place, after a pause.
    Here,
    /// Yes, after a look at fresh Metadata: the place or the epoch is another one.
    Elsewhere,
}

/// How a request ended; the `code` of a response's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Another broker or shard serves this; the error names it, if known.
    NotHere = 1,
    /// No topic has this name or id.
    UnknownTopic = 2,
    /// The topic has no such partition.
    UnknownPartition = 3,
    /// The partition's log began again, or this request is older than its move.
    WrongEpoch = 4,
    /// The position is below the start or beyond the end.
    OutOfRange = 5,
    /// A message of the set is malformed or damaged; nothing was appended.
    InvalidMessage = 6,
    /// Another sequence number is next.
    OutOfSequence = 7,
    /// A message, a set or a frame is above the limit.
    TooLarge = 8,
    /// The disk has no room.
    NoSpace = 9,
    /// The partition takes no appends until its broker restarts.
    ClosedForWrites = 10,
    /// Not now: a limit is reached, or the partition is being opened.
    Busy = 11,
    /// The caller is not, or no longer, the owner.
    Fenced = 12,
    /// The end is not the one expected.
    UnexpectedEnd = 13,
    /// The registry does not answer this broker.
    RegistryUnavailable = 14,
    /// A field of the request is missing or out of bounds.
    InvalidRequest = 15,
    /// This broker does not do that.
    Unsupported = 16,
    /// This broker does not speak this protocol version.
    UnsupportedVersion = 17,
    /// A topic of this name exists.
    TopicExists = 18,
    /// The broker is shutting down.
    Stopping = 19,
    /// The partition's data cannot be read or served; an operator has to look.
    PartitionRefused = 20,
    /// No group has this name.
    UnknownGroup = 21,
    /// The group has members.
    GroupNotEmpty = 22,
    /// The broker failed in a way that it did not foresee; its log says more.
    Internal = 23,
}

struct Row {
    status: Status,
    name: &'static str,
    retry: Retry,
    uses_up_sequence: bool,
    advice: &'static str,
}

const fn row(status: Status, name: &'static str, retry: Retry, uses_up_sequence: bool, advice: &'static str) -> Row {
    Row { status, name, retry, uses_up_sequence, advice }
}

/// In the order of the codes.
///
/// A sequence number is used up by success, and by what is wrong with the set itself: then the set will never be
/// appended and those behind it shall not wait for it. Everything else leaves the number open, so that no later set
/// overtakes one that may still be sent again (or was refused before the broker could tell whose number it is).
#[rustfmt::skip]
const ROWS: [Row; 24] = [
    row(Status::Ok, "OK", Retry::No, true, "done"),
    row(Status::NotHere, "NOT_HERE", Retry::Elsewhere, false, "connect to the broker and shard that the error names, else ask for Metadata"),
    row(Status::UnknownTopic, "UNKNOWN_TOPIC", Retry::No, false, "create the topic, or correct its name; a topic that was created again has another id"),
    row(Status::UnknownPartition, "UNKNOWN_PARTITION", Retry::No, false, "ask for Metadata and use one of the topic's partitions"),
    row(Status::WrongEpoch, "WRONG_EPOCH", Retry::Elsewhere, false, "ask for Metadata; positions of an older epoch mean nothing in this one"),
    row(Status::OutOfRange, "OUT_OF_RANGE", Retry::No, false, "go on at a position between the start and the end that the error gives"),
    row(Status::InvalidMessage, "INVALID_MESSAGE", Retry::No, true, "correct the message that the error names; nothing of the set was appended"),
    row(Status::OutOfSequence, "OUT_OF_SEQUENCE", Retry::Here, false, "send the publish with the sequence number that the error names first"),
    row(Status::TooLarge, "TOO_LARGE", Retry::No, true, "send or ask for less at once, or raise the topic's limit"),
    row(Status::NoSpace, "NO_SPACE", Retry::Here, false, "make room on the broker's disk; publishing resumes by itself"),
    row(Status::ClosedForWrites, "CLOSED_FOR_WRITES", Retry::Here, false, "look at the broker's disk and log, then restart the broker"),
    row(Status::Busy, "BUSY", Retry::Here, false, "try again after a pause"),
    row(Status::Fenced, "FENCED", Retry::No, false, "stop working on this partition and join the group again"),
    row(Status::UnexpectedEnd, "UNEXPECTED_END", Retry::No, false, "decide again from the end that the error gives"),
    row(Status::RegistryUnavailable, "REGISTRY_UNAVAILABLE", Retry::Elsewhere, false, "try another broker, or this one again after a pause"),
    row(Status::InvalidRequest, "INVALID_REQUEST", Retry::No, false, "correct the field that the error names"),
    row(Status::Unsupported, "UNSUPPORTED", Retry::No, true, "do without, or use a newer broker"),
    row(Status::UnsupportedVersion, "UNSUPPORTED_VERSION", Retry::No, false, "use a client and a broker of matching versions"),
    row(Status::TopicExists, "TOPIC_EXISTS", Retry::No, false, "use the topic, or choose another name"),
    row(Status::Stopping, "STOPPING", Retry::Elsewhere, false, "ask for Metadata and try again"),
    row(Status::PartitionRefused, "PARTITION_REFUSED", Retry::No, false, "read the broker's log about this partition; its other partitions serve"),
    row(Status::UnknownGroup, "UNKNOWN_GROUP", Retry::No, false, "correct the group's name"),
    row(Status::GroupNotEmpty, "GROUP_NOT_EMPTY", Retry::No, false, "stop the group's members first"),
    row(Status::Internal, "INTERNAL", Retry::No, false, "read the broker's log"),
];

impl Status {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Every status, in the order of the codes.
    pub fn all() -> impl Iterator<Item = Status> {
        ROWS.iter().map(|row| row.status)
    }

    /// Its number on the wire.
    pub fn code(self) -> u16 {
        self as u16
    }

    /// Its name as documents and logs write it, e.g. `NOT_HERE`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What whoever gets it should do, as a sentence without a capital and a full stop.
    pub fn advice(self) -> &'static str {
        self.row().advice
    }

    /// Whether sending the same request again can help.
    pub fn retry(self) -> Retry {
        self.row().retry
    }

    /// Whether a publish answered with this has used up its sequence number: the next publish on this connection to
    /// this partition bears the next number; else it bears the same one, with the same set or with another.
    pub fn uses_up_sequence(self) -> bool {
        self.row().uses_up_sequence
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A code that no status of this version bears. Treat it as final: do not retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no status {0} in this version")]
pub struct UnknownStatus(pub u16);

impl TryFrom<u16> for Status {
    type Error = UnknownStatus;
    fn try_from(code: u16) -> Result<Status, UnknownStatus> {
        ROWS.get(usize::from(code)).map(|row| row.status).ok_or(UnknownStatus(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_codes_are_the_index_of_their_row() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.status as usize, index);
            assert_eq!(Status::try_from(index as u16), Ok(row.status));
        }
        assert_eq!(Status::try_from(24), Err(UnknownStatus(24)));
    }

    #[test]
    fn a_status_that_a_retry_can_help_never_uses_up_the_sequence_number() {
        for status in Status::all().filter(|status| status.retry() != Retry::No) {
            assert!(!status.uses_up_sequence(), "{status}");
        }
    }
}
