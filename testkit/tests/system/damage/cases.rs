//! What each damaged directory must lead to: which messages are lost, what the broker says and counts, what
//! `corelane log verify` finds.

use std::ops::Range;

/// One damaged directory.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) served: Served,
    /// A part of a line that the broker must log.
    pub(super) log: &'static str,
    /// A metric and its least value; the last word of a broker that does not start has none.
    pub(super) metric: Option<(&'static str, u64)>,
    /// What `log verify` must find, and whether it is damage.
    pub(super) verify: &'static [&'static str],
    pub(super) is_damage: bool,
}

/// What becomes of partition 0.
pub(super) enum Served {
    /// It serves all but these messages, a wrapper counted as one.
    But(Range<usize>),
    /// All but this message too, at which readers stop with an error that names its version until they go on behind it.
    Newer(usize),
    /// It serves what lies there, which is whole.
    AsItLies,
    /// It is refused; the partition beside it serves.
    Refused,
    /// The whole topic is.
    TopicRefused,
    /// The broker does not start, and says why.
    NoStart,
}

use Served::{AsItLies, But, Newer, NoStart, Refused, TopicRefused};

const NONE: Range<usize> = 0..0;
const READER: &str = "a reader met a bad message at";
const KEPT: &str = "everything is kept, readers skip what is bad";
const MISSING: &str = "of the log are missing; put the missing segment file back";
const BAD: Option<(&str, u64)> = Some(("corelane_bad_messages_total", 1));
const RECOVERED: Option<(&str, u64)> = Some(("corelane_recoveries_total", 1));
const IS_REFUSED: Option<(&str, u64)> = Some(("corelane_partitions_refused", 1));
const BOTH_REFUSED: Option<(&str, u64)> = Some(("corelane_partitions_refused", 2));
const REBUILT: Option<(&str, u64)> = Some(("corelane_rebuilt_summaries_total", 1));

const fn case(
    name: &'static str,
    served: Served,
    log: &'static str,
    metric: Option<(&'static str, u64)>,
    verify: &'static [&'static str],
) -> Case {
    Case { name, served, log, metric, verify, is_damage: true }
}

pub(super) const CASES: [Case; 30] = [
    case("closed-value-bit", But(1..2), READER, BAD, &["bad_message"]),
    case("closed-length-bit", But(1..5), READER, BAD, &["damaged_bytes"]),
    case("closed-zeroed", But(6..8), READER, BAD, &["damaged_bytes"]),
    case("closed-truncated", Refused, MISSING, IS_REFUSED, &["gap"]),
    case("closed-missing", Refused, MISSING, IS_REFUSED, &["gap"]),
    case("closed-swapped", Refused, MISSING, IS_REFUSED, &["gap"]),
    // Nothing in a message says where it belongs: only the summaries tell.
    case("closed-swapped-same-length", AsItLies, "", None, &["summary_disagrees"]),
    case("closed-wrapper-bit", But(5..6), READER, BAD, &["bad_message"]),
    case("closed-newer-message", Newer(1), "is of format version 9", BAD, &["newer_version"]),
    // What lies in the value of the message that is hit must never come out.
    case("values-with-messages-hit", But(8..11), READER, BAD, &["damaged_bytes"]),
    case("active-value-bit", But(11..12), READER, BAD, &["bad_message"]),
    case("active-last-bit", But(14..15), KEPT, RECOVERED, &["bad_message"]),
    case("active-zeroed", But(13..15), KEPT, RECOVERED, &["damaged_bytes"]),
    case("active-truncated", But(12..15), KEPT, RECOVERED, &["short_of_checkpoint"]),
    case("active-missing", But(11..15), KEPT, RECOVERED, &["short_of_checkpoint"]),
    case("active-newer-message", Refused, "has format version 9; start a newer broker", IS_REFUSED, &["newer_version"]),
    Case {
        is_damage: false,
        ..case(
            "active-torn-tail",
            But(NONE),
            "was cut off; its copy is",
            Some(("corelane_cut_bytes_total", 20)),
            &["torn_tail"],
        )
    },
    case(
        "stray-files",
        But(NONE),
        "left alone, not part of the log",
        Some(("corelane_foreign_files", 2)),
        &["foreign", "leftover", "bad_summary", "bad_checkpoint"],
    ),
    case("summary-bit", But(NONE), "is damaged; it is rebuilt", REBUILT, &["bad_summary"]),
    case("summary-of-another", But(NONE), "is damaged; it is rebuilt", REBUILT, &["bad_summary"]),
    case(
        "checkpoint-bit",
        But(NONE),
        "a checkpoint is not readable",
        Some(("corelane_checkpoints_unreadable", 1)),
        &["bad_checkpoint"],
    ),
    case("topic-identity-bit", TopicRefused, "cannot be believed", BOTH_REFUSED, &["bad_identity"]),
    case("topic-identity-empty", TopicRefused, "cannot be believed", BOTH_REFUSED, &["bad_identity"]),
    case("topic-of-newer-version", TopicRefused, "start a newer version", BOTH_REFUSED, &["newer_version"]),
    case("topic-of-another-id", TopicRefused, "belongs into another directory", BOTH_REFUSED, &["misplaced"]),
    Case {
        is_damage: false,
        ..case(
            "topic-unknown-to-the-registry",
            But(NONE),
            "the registry does not know this topic",
            Some(("corelane_directories_set_aside", 1)),
            &[],
        )
    },
    case("identity-missing", NoStart, "no identity file", None, &["bad_identity"]),
    case("identity-bit", NoStart, "cannot be believed", None, &["bad_identity"]),
    case("identity-of-newer-version", NoStart, "start a newer version", None, &["newer_version"]),
    // Of the cluster only the registry knows.
    Case { is_damage: false, ..case("identity-of-another-cluster", NoStart, "belongs to cluster", None, &[]) },
];
