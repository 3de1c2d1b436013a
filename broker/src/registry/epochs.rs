//! What a broker does about a partition when it compares what the registry says with what lies on its disk. Pure: what
//! is on disk wins over what is missing in the registry, and a log that was there is never taken for an empty one.

use corelane_proto::ids::Epoch;

use super::records::PartitionRecord;

/// What to do about one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It was never made: make it, flush its directory, then record that, then serve.
    Create,
    /// Open it; first record that it was made, if `record_made`: the broker died in between.
    Open {
        /// Whether the key does not say so yet.
        record_made: bool,
    },
    /// The disk is ahead of the registry: raise the key to this epoch, then open.
    Raise(Epoch),
    /// An older life of the log lies where the new one belongs: move it out of the way, then decide as if it were absent.
    SetAside(Epoch),
    /// It was made and is not there: serve nothing until an operator has accepted the loss.
    Lost,
}

/// Decides for a partition that this broker leads. `on_disk`: the epoch of its last segment, if there is any.
pub fn decide(record: &PartitionRecord, on_disk: Option<Epoch>) -> Decision {
    match on_disk {
        Some(epoch) if epoch > record.epoch => Decision::Raise(epoch),
        Some(epoch) if epoch == record.epoch => Decision::Open { record_made: record.made != Some(record.epoch) },
        Some(epoch) => Decision::SetAside(epoch),
        None if record.made == Some(record.epoch) => Decision::Lost,
        None => Decision::Create,
    }
}

#[cfg(test)]
mod tests {
    use corelane_proto::ids::Position;

    use super::*;

    #[test]
    fn what_is_on_disk_wins_and_what_was_made_is_never_made_again() {
        let decided = |epoch, made: Option<u32>, on_disk: Option<u32>| {
            let record = PartitionRecord {
                replicas: vec![1],
                leader: 1,
                epoch: Epoch(epoch),
                made: made.map(Epoch),
                start: Position::ZERO,
            };
            decide(&record, on_disk.map(Epoch))
        };
        assert_eq!(decided(1, None, None), Decision::Create);
        assert_eq!(decided(1, Some(1), None), Decision::Lost);
        assert_eq!(decided(2, Some(1), None), Decision::Create, "an operator accepted the loss of epoch 1");
        assert_eq!(decided(1, Some(1), Some(1)), Decision::Open { record_made: false });
        assert_eq!(decided(1, None, Some(1)), Decision::Open { record_made: true });
        assert_eq!(decided(2, Some(2), Some(1)), Decision::SetAside(Epoch(1)));
        assert_eq!(decided(1, Some(1), Some(2)), Decision::Raise(Epoch(2)));
        assert_eq!(decided(1, None, Some(2)), Decision::Raise(Epoch(2)));
    }
}
