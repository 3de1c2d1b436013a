//! From a response with another status than OK to a [`Refusal`].

use corelane_proto::frame::Status;
use corelane_proto::pb;
use prost::Message;

use crate::error::Refusal;

/// Reads the error that comes with a status. A status of a newer version is final, as the protocol demands.
pub(crate) fn read(code: u16, proto: &[u8]) -> Refusal {
    let error = pb::Error::decode(proto).unwrap_or_default();
    let (status, message) = match Status::try_from(code) {
        Ok(status) if error.message.is_empty() => (status, status.advice().to_owned()),
        Ok(status) => (status, error.message),
        Err(unknown) => (Status::Unsupported, format!("{unknown} ({})", error.message)),
    };
    Refusal {
        status,
        message,
        start: error.start,
        end: error.end,
        limit: error.limit,
        index: error.index,
        broker_id: error.broker_id,
        shard: error.shard,
        field: error.field,
        sequence: error.sequence,
        epoch: error.epoch,
    }
}
