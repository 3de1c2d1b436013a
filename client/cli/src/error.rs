//! Why a command failed, in one sentence that says what to do, and the exit status that goes with it.

use std::io;
use std::path::PathBuf;

use corelane_client::{CallError, GroupError};
use serde_json::{Value, json};

use crate::signals::Interruption;

/// The command did not do what it was asked to do.
pub(crate) const STATUS_FAILED: u8 = 1;
/// The arguments are wrong: as clap ends a command.
const STATUS_USAGE: u8 = 2;
/// `log`: the files could not be looked at, so nothing is known of them.
const STATUS_NOT_SEEN: u8 = 2;

/// Any failure of a command. Whoever makes one has said nothing yet: `main` prints it, once.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// A call to the cluster failed.
    #[error("{0}")]
    Call(CallError),
    /// The topic is not there.
    #[error("there is no topic {topic:?}; {}", if *is_wanted { creation(topic) } else { TOPICS.to_owned() })]
    UnknownTopic {
        /// Its name.
        topic: String,
        /// Whether the command would have used it, had it been there.
        is_wanted: bool,
    },
    /// A file could not be opened.
    #[error("{}: {cause}", path.display())]
    File {
        /// Its path, as it was given.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// The input could not be read to its end.
    #[error("the input cannot be read: {0}")]
    Input(io::Error),
    /// The output could not be written to its end.
    #[error("the output cannot be written: {0}")]
    Output(io::Error),
    /// Arguments that no command takes.
    #[error("{0}")]
    Usage(String),
    /// Arguments that only the topic shows to be wrong.
    #[error("{0}")]
    Argument(String),
    /// A dangerous command without a terminal to ask on.
    #[error("{0} This is not a terminal, so nothing was asked and nothing was done; give --yes to go on.")]
    NeedsYes(String),
    /// The question was not answered with yes.
    #[error("nothing was done")]
    NotConfirmed,
    /// Some messages were not published; the summary has told how many and why.
    #[error("{failed} of {messages} messages were not published; the first failure: {cause}")]
    NotPublished {
        /// Messages that failed or were not sent.
        failed: u64,
        /// Messages that were read.
        messages: u64,
        /// Why the first of them failed.
        cause: String,
        /// The broker's status for it, if it was refused.
        status: Option<&'static str>,
        /// Whether publishing it again may help.
        is_retryable: bool,
    },
    /// A consumer stopped for good.
    #[error("{0}")]
    Consume(String),
    /// A mirror cannot go on, or the two sides differ.
    #[error("{0}")]
    Mirror(String),
    /// Files of a data directory are damaged; the report has told which.
    #[error("{0}")]
    Damage(String),
    /// Files of a data directory could not be looked at, or not all of them.
    #[error("{0}")]
    NotSeen(String),
    /// A group's member stopped for good.
    #[error("{0}")]
    Group(GroupError),
    /// A group is not as it should be; what was found has been told.
    #[error("group {group}: {problems}")]
    NotVerified {
        /// The group.
        group: String,
        /// How many problems, in words.
        problems: String,
    },
    /// A signal ended the command before it had done what it was asked to do.
    #[error("interrupted")]
    Interrupted(Interruption),
    /// The operating system refused something that every command needs.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        cause: io::Error,
    },
}

const TOPICS: &str = "those that there are: corelane topic list";

/// The command that creates a topic, as a shell takes it.
fn creation(topic: &str) -> String {
    let separator = if topic.starts_with('-') { "-- " } else { "" };
    format!("create it with: corelane topic create --partitions 1 {separator}{topic}")
}

impl CliError {
    /// The failed call to the cluster, if it is one.
    fn call(&self) -> Option<&CallError> {
        match self {
            CliError::Call(error) | CliError::Group(GroupError::Call { cause: error, .. }) => Some(error),
            _ => None,
        }
    }

    /// Whether the same command may succeed later.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            CliError::NotPublished { is_retryable, .. } => *is_retryable,
            other => other.call().is_some_and(CallError::is_retryable),
        }
    }

    /// What a program is told.
    pub(crate) fn to_json(&self) -> Value {
        let call = self.call();
        let status = match self {
            CliError::UnknownTopic { .. } => Some("UNKNOWN_TOPIC"),
            CliError::Call(CallError::UnknownGroup { .. }) => Some("UNKNOWN_GROUP"),
            CliError::NotPublished { status, .. } => *status,
            _ => call.and_then(CallError::refusal).map(|refusal| refusal.status.name()),
        };
        json!({
            "error": self.to_string(),
            "status": status,
            "retryable": self.is_retryable(),
            "exit_status": self.exit_status(),
        })
    }

    /// For commands that publish or read: a topic that is not there is to be created.
    pub(crate) fn for_use(self) -> Self {
        match self {
            CliError::UnknownTopic { topic, .. } => CliError::UnknownTopic { topic, is_wanted: true },
            other => other,
        }
    }

    /// The exit status: 1, or what a shell expects of a command that a signal has ended.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            CliError::Interrupted(interruption) => interruption.exit_status(),
            CliError::Usage(_) => STATUS_USAGE,
            CliError::NotSeen(_) => STATUS_NOT_SEEN,
            _ => STATUS_FAILED,
        }
    }
}

impl From<CallError> for CliError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::UnknownTopic { topic } => CliError::UnknownTopic { topic, is_wanted: false },
            other => CliError::Call(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_what_failed_and_whether_a_retry_can_help() {
        let closed = CliError::from(CallError::Closed).to_json();
        assert_eq!((&closed["retryable"], &closed["exit_status"]), (&false.into(), &1.into()));
        assert_eq!((closed["error"].as_str(), closed["status"].is_null()), (Some("the client is closed"), true));
        let unknown = CliError::from(CallError::UnknownTopic { topic: "t".to_owned() }).to_json();
        assert_eq!(unknown["status"], "UNKNOWN_TOPIC");
        let (cause, status) = ("NO_SPACE: the disk is full".to_owned(), Some("NO_SPACE"));
        let full = CliError::NotPublished { failed: 1, messages: 2, cause, status, is_retryable: true }.to_json();
        assert_eq!((&full["status"], &full["retryable"]), (&"NO_SPACE".into(), &true.into()));
    }

    #[test]
    fn the_command_that_creates_a_topic_can_be_pasted() {
        assert_eq!(creation("orders"), "create it with: corelane topic create --partitions 1 orders");
        assert_eq!(creation("-x"), "create it with: corelane topic create --partitions 1 -- -x");
    }
}
