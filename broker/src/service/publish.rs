//! Publish: who may append next on this connection, where the set's bytes go before they are read, and what its fate is.
//! The connection calls, in this order and for one request at a time: `admit`, `landing`, (it receives the bytes),
//! `append`; a refusal by the first two makes it read past the payload.

use corelane_log::{AppendError, Landing};
use corelane_proto::frame::Status;
use corelane_proto::ids::Position;
use corelane_proto::pb;

use super::context::{Counters, Partition, Reply, Sequences, ShardContext};
use super::invalid_field;
use super::locate::{closed, locate};
use crate::io::env::ShardEnv;
use crate::messages::{Failure, PartitionKey};

/// A publish whose turn it is.
pub struct Admitted {
    key: PartitionKey,
    partition: Partition,
    sequence: u64,
    acks: pb::Acks,
    expected: Option<Position>,
    set_bytes: usize,
}

impl Admitted {
    /// Where it goes.
    pub fn partition_key(&self) -> PartitionKey {
        self.key
    }
}

/// What became of a set.
pub enum Published {
    /// Appended, and nobody waits for an answer.
    Silent,
    /// The answer, success or not.
    Reply(Reply),
    /// Appended; to be answered once everything below `next` is durable.
    WhenDurable {
        /// The partition.
        partition: Partition,
        /// The set's first id.
        first: Position,
        /// The id after it.
        next: Position,
    },
}

impl Sequences {
    /// Whether it is this number's turn.
    fn check(&self, key: PartitionKey, sequence: u64) -> Result<(), Failure> {
        let expected = self.expected.borrow().get(&key).copied().unwrap_or(0);
        if sequence == expected {
            return Ok(());
        }
        let message = format!("this connection's next publish to this partition is number {expected}, not {sequence}");
        let mut failure = Failure::new(Status::OutOfSequence, message);
        failure.error.sequence = Some(expected);
        Err(failure)
    }

    /// The publish whose turn it was has this fate: the next number's turn, or the same one's again.
    fn settle(&self, key: PartitionKey, sequence: u64, status: Status) {
        if status.uses_up_sequence() {
            self.expected.borrow_mut().insert(key, sequence + 1);
        }
    }
}

/// Checks everything that can be checked before the set is read. A refusal that no retry can help uses the number up.
pub fn admit(
    context: &ShardContext,
    sequences: &Sequences,
    request: &pb::PublishRequest,
    set_bytes: usize,
) -> Result<Admitted, Failure> {
    let (key, partition) = locate(context, &request.topic_id, request.partition, request.epoch)?;
    if let Some(reason) = &context.metadata.borrow().displaced {
        return Err(Failure::new(Status::ClosedForWrites, &**reason));
    }
    let acks = pb::Acks::try_from(request.acks)
        .map_err(|_| invalid_field("acks", format!("there are no acks {}", request.acks)))?;
    sequences.check(key, request.sequence)?;
    if request.sequence == u64::MAX {
        return Err(invalid_field("sequence", "no number follows this one; connect again"));
    }
    if let Some(failure) = check_length(set_bytes, set_bytes_max(context, key)) {
        sequences.settle(key, request.sequence, failure.status);
        return Err(failure);
    }
    let expected = request.expected_id.map(Position);
    Ok(Admitted { key, partition, sequence: request.sequence, acks, expected, set_bytes })
}

fn set_bytes_max(context: &ShardContext, (topic_id, _): PartitionKey) -> Option<u32> {
    let metadata = context.metadata.borrow();
    metadata.by_id.get(&topic_id)?.config?.set_bytes_max
}

fn check_length(set_bytes: usize, set_bytes_max: Option<u32>) -> Option<Failure> {
    if set_bytes == 0 {
        return Some(invalid_message(0, "the set is empty"));
    }
    let limit = u64::from(set_bytes_max?);
    (set_bytes as u64 > limit).then(|| too_large(set_bytes as u64, limit))
}

/// Room for the set; waits while the log pushes back.
pub async fn landing(admitted: &Admitted) -> Result<Landing<ShardEnv>, Failure> {
    admitted.partition.landing(admitted.set_bytes).await.map_err(|error| append_failure(&error))
}

/// Appends the set that has arrived.
pub async fn append(
    context: &ShardContext,
    sequences: &Sequences,
    admitted: Admitted,
    landing: Landing<ShardEnv>,
) -> Published {
    let Admitted { key, partition, sequence, acks, expected, set_bytes } = admitted;
    let appended = match partition.append(landing, expected).await {
        Ok(appended) => appended,
        Err(error) => {
            let failure = append_failure(&error);
            sequences.settle(key, sequence, failure.status);
            return Published::Reply(failure.into());
        }
    };
    sequences.settle(key, sequence, Status::Ok);
    Counters::add(&context.counters.published_bytes, set_bytes as u64);
    Counters::add(&context.counters.published_sets, 1);
    match acks {
        pb::Acks::None => Published::Silent,
        pb::Acks::Received => Published::Reply(Reply::ok(&pb::PublishResponse {
            first_id: appended.first.0,
            next_id: appended.next.0,
            durable_end: appended.durable_end.0,
        })),
        pb::Acks::Durable => Published::WhenDurable { partition, first: appended.first, next: appended.next },
    }
}

/// How a client is told why its set was not appended.
pub fn append_failure(error: &AppendError) -> Failure {
    match error {
        AppendError::Closed(reason) => closed(reason),
        AppendError::NoSpace => Failure::new(Status::NoSpace, error.to_string()),
        AppendError::TooLarge { bytes, limit } => too_large(*bytes, *limit),
        AppendError::InvalidMessage(invalid) => {
            let mut failure = invalid_message(invalid.index, &invalid.reason.to_string());
            failure.status = invalid.status();
            failure.error.limit = invalid.limit().map(u64::from);
            failure
        }
        AppendError::UnexpectedEnd { end } => {
            let mut failure = Failure::new(Status::UnexpectedEnd, error.to_string());
            failure.error.end = Some(end.0);
            failure
        }
        other => Failure::new(Status::Internal, other.to_string()),
    }
}

fn too_large(bytes: u64, limit: u64) -> Failure {
    let message =
        format!("the set has {bytes} bytes, the topic takes {limit}; send smaller sets, or raise set_bytes_max");
    let mut failure = Failure::new(Status::TooLarge, message);
    failure.error.limit = Some(limit);
    failure
}

fn invalid_message(index: u32, reason: &str) -> Failure {
    let mut failure = Failure::new(Status::InvalidMessage, format!("message {index} of the set: {reason}"));
    failure.error.index = Some(index);
    failure
}

#[cfg(test)]
mod tests {
    use corelane_log::ClosedReason;
    use corelane_proto::ids::TopicId;

    use super::*;

    const KEY: PartitionKey = (TopicId([1; 16]), 0);

    fn expected(sequences: &Sequences, sequence: u64) -> Option<u64> {
        sequences.check(KEY, sequence).err().map(|failure| {
            assert_eq!(failure.status, Status::OutOfSequence);
            failure.error.sequence.expect("the number expected")
        })
    }

    #[test]
    fn only_the_next_number_is_taken_and_each_partition_counts_for_itself() {
        let sequences = Sequences::default();
        assert_eq!(expected(&sequences, 0), None);
        assert_eq!(expected(&sequences, 1), Some(0));
        sequences.settle(KEY, 0, Status::Ok);
        assert_eq!(expected(&sequences, 0), Some(1), "a number that was used up is not taken again");
        assert_eq!(expected(&sequences, 1), None);
        assert!(sequences.check((KEY.0, 1), 0).is_ok());
    }

    /// A window of requests in flight: 0 is refused, 1 and 2 are already on their way.
    #[test]
    fn a_refusal_that_a_retry_can_help_stops_what_follows_until_the_number_comes_again() {
        let sequences = Sequences::default();
        sequences.settle(KEY, 0, Status::NoSpace);
        assert_eq!(expected(&sequences, 1), Some(0));
        assert_eq!(expected(&sequences, 2), Some(0));
        assert_eq!(expected(&sequences, 0), None);
        sequences.settle(KEY, 0, Status::Ok);
        assert_eq!(expected(&sequences, 1), None);
    }

    #[test]
    fn a_refusal_that_no_retry_can_help_uses_the_number_up() {
        let sequences = Sequences::default();
        for (number, status) in [Status::InvalidMessage, Status::TooLarge, Status::Unsupported].into_iter().enumerate()
        {
            assert_eq!(expected(&sequences, number as u64), None);
            sequences.settle(KEY, number as u64, status);
        }
        assert_eq!(expected(&sequences, 3), None);
    }

    #[test]
    fn refusals_carry_what_the_client_needs() {
        let failure = invalid_message(7, "bad crc");
        assert_eq!((failure.status, failure.error.index), (Status::InvalidMessage, Some(7)));
        let failure = append_failure(&AppendError::UnexpectedEnd { end: Position(9) });
        assert_eq!((failure.status, failure.error.end), (Status::UnexpectedEnd, Some(9)));
        let failure = append_failure(&AppendError::TooLarge { bytes: 10, limit: 5 });
        assert_eq!((failure.status, failure.error.limit), (Status::TooLarge, Some(5)));
        assert_eq!(append_failure(&AppendError::NoSpace).status, Status::NoSpace);
        assert_eq!(append_failure(&AppendError::Closed(ClosedReason::Stopping)).status, Status::Stopping);
        assert_eq!(append_failure(&AppendError::Closed(ClosedReason::Deleted)).status, Status::UnknownTopic);
        let disk = ClosedReason::Disk { what: "write".to_owned(), reason: "EIO".to_owned() };
        assert_eq!(append_failure(&AppendError::Closed(disk)).status, Status::ClosedForWrites);
    }

    #[test]
    fn the_length_is_judged_before_the_set_is_read() {
        assert_eq!(check_length(10, Some(10)), None);
        assert_eq!(check_length(10, None), None);
        assert_eq!(check_length(11, Some(10)).expect("refused").error.limit, Some(10));
        assert_eq!(check_length(0, Some(10)).expect("refused").status, Status::InvalidMessage);
    }
}
