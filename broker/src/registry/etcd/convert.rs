//! Between the seam's words and etcd's. Pure.

use etcd_client::{
    Compare as EtcdCompare, CompareOp, DeleteOptions, Error, KeyValue, PutOptions, ResponseHeader, Txn as EtcdTxn,
    TxnOp, TxnOpResponse, TxnResponse,
};

use crate::registry::keys::prefix_end;
use crate::registry::store::{Compare, Entry, Op, OpResult, Revision, StoreError, Test, Txn};

/// gRPC's status codes, as numbers: the client library does not export their names.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const DATA_LOSS: i32 = 15;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// A transaction, those within included.
pub(super) fn txn_of(txn: Txn) -> EtcdTxn {
    let ops = |ops: Vec<Op>| ops.into_iter().map(op_of).collect::<Vec<_>>();
    EtcdTxn::new()
        .when(txn.compares.into_iter().map(compare_of).collect::<Vec<_>>())
        .and_then(ops(txn.then))
        .or_else(ops(txn.otherwise))
}

fn op_of(op: Op) -> TxnOp {
    match op {
        Op::Put { key, value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease.cast_signed()));
            TxnOp::put(key, value, options)
        }
        Op::Delete(key) => TxnOp::delete(key, None),
        Op::DeletePrefix(prefix) => {
            let options = DeleteOptions::new().with_range(prefix_end(&prefix));
            TxnOp::delete(prefix, Some(options))
        }
        Op::Get(key) => TxnOp::get(key, None),
        Op::Txn(txn) => TxnOp::txn(txn_of(txn)),
    }
}

fn compare_of(compare: Compare) -> EtcdCompare {
    let Compare { key, test } = compare;
    // For etcd a key that is not there has revision 0.
    let revision = |revision: Revision, compare: fn(String, CompareOp, i64) -> EtcdCompare, key| match revision {
        0 => compare(key, CompareOp::Less, 0),
        revision => compare(key, CompareOp::Equal, revision.cast_signed()),
    };
    match test {
        Test::Absent => EtcdCompare::create_revision(key, CompareOp::Equal, 0),
        Test::Exists => EtcdCompare::create_revision(key, CompareOp::Greater, 0),
        Test::Value(value) => EtcdCompare::value(key, CompareOp::Equal, value),
        Test::Created(at) => revision(at, EtcdCompare::create_revision, key),
        Test::Modified(at) => revision(at, EtcdCompare::mod_revision, key),
        Test::NoneBelow => {
            let end = prefix_end(&key);
            EtcdCompare::create_revision(key, CompareOp::Equal, 0).with_range(end)
        }
    }
}

/// What a transaction did.
pub(super) fn results_of(answer: &TxnResponse) -> (bool, Vec<OpResult>) {
    let results = answer.op_responses().into_iter().map(|response| match response {
        TxnOpResponse::Put(_) => OpResult::Put,
        TxnOpResponse::Delete(deleted) => OpResult::Deleted(deleted.deleted().cast_unsigned()),
        TxnOpResponse::Get(mut got) => OpResult::Got(got.take_kvs().pop().map(entry_of)),
        TxnOpResponse::Txn(within) => {
            let (succeeded, results) = results_of(&within);
            OpResult::Txn { succeeded, results }
        }
    });
    (answer.succeeded(), results.collect())
}

/// An entry. A key that is no text cannot be ours, and stays none of ours with its odd bytes replaced.
pub(super) fn entry_of(kv: KeyValue) -> Entry {
    let (create_revision, mod_revision) = (kv.create_revision().cast_unsigned(), kv.mod_revision().cast_unsigned());
    let lease = (kv.lease() != 0).then(|| kv.lease().cast_unsigned());
    let (key, value) = kv.into_key_value();
    Entry { key: String::from_utf8_lossy(&key).into_owned(), value, create_revision, mod_revision, lease }
}

/// The revision in an answer's header; every answer of etcd has one.
pub(super) fn revision_of(header: Option<&ResponseHeader>) -> Revision {
    header.map_or(0, |header| header.revision().cast_unsigned())
}

/// What an error of the client means to a caller. Whatever is not known to be lasting may pass.
pub(super) fn error_of(error: &Error) -> StoreError {
    match error {
        Error::GRpcStatus(status) => {
            // In a status's own text its causes stand as a program prints them for debugging.
            let words = if status.message().is_empty() { status.code().description() } else { status.message() };
            error_of_status(status.code().into(), status.message(), &with_causes(words, status))
        }
        // Said so by the library when the answer has a life of 0.
        Error::LeaseKeepAliveError(reason) if reason == "lease not found" => StoreError::LeaseGone,
        Error::InvalidArgs(_) | Error::InvalidUri(_) => StoreError::Invalid(error.to_string()),
        Error::InvalidMetadataValue(_) => StoreError::Failed(error.to_string()),
        error => StoreError::Unavailable(with_causes(&error.to_string(), error)),
    }
}

fn error_of_status(code: i32, message: &str, in_full: &str) -> StoreError {
    let says = |part: &str| message.contains(part);
    match code {
        code::NOT_FOUND if says("lease not found") => StoreError::LeaseGone,
        code::RESOURCE_EXHAUSTED if says("database space exceeded") => StoreError::NoSpace,
        code::OUT_OF_RANGE if says("compacted") => StoreError::Compacted { compacted: 0 },
        // Its users or roles were changed while the request was under way.
        code::INVALID_ARGUMENT if says("revision of auth store is old") => StoreError::Unavailable(message.to_owned()),
        code::UNAUTHENTICATED => StoreError::Refused(message.to_owned()),
        code::INVALID_ARGUMENT if says("authentication failed") || says("user name is empty") => {
            StoreError::Refused(message.to_owned())
        }
        code::FAILED_PRECONDITION if says("authentication is not enabled") => StoreError::Refused(message.to_owned()),
        code::INVALID_ARGUMENT | code::OUT_OF_RANGE => StoreError::Invalid(message.to_owned()),
        code::NOT_FOUND
        | code::PERMISSION_DENIED
        | code::FAILED_PRECONDITION
        | code::UNIMPLEMENTED
        | code::DATA_LOSS => StoreError::Failed(message.to_owned()),
        _ => StoreError::Unavailable(in_full.to_owned()),
    }
}

/// Why a watch was cancelled by the server, which says it in words alone.
pub(super) fn error_of_cancel(compact_revision: i64, reason: &str) -> StoreError {
    if compact_revision > 0 {
        return StoreError::Compacted { compacted: compact_revision.cast_unsigned() };
    }
    if reason.contains("permission denied") {
        return StoreError::Failed(reason.to_owned());
    }
    StoreError::Unavailable(format!("the watch was cancelled: {reason}"))
}

/// An error's words with its causes, each said once.
fn with_causes(words: &str, error: &dyn std::error::Error) -> String {
    let mut text = words.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_whether_a_retry_helps() {
        let of = |code, message| error_of_status(code, message, message);
        let unavailable = |text: &str| StoreError::Unavailable(text.to_owned());
        for (code, message, expected) in [
            (5, "etcdserver: requested lease not found", StoreError::LeaseGone),
            (8, "etcdserver: mvcc: database space exceeded", StoreError::NoSpace),
            (8, "etcdserver: too many requests", unavailable("etcdserver: too many requests")),
            (11, "etcdserver: mvcc: required revision has been compacted", StoreError::Compacted { compacted: 0 }),
            (14, "etcdserver: no leader", unavailable("etcdserver: no leader")),
            (4, "Timeout expired", unavailable("Timeout expired")),
            (2, "transport error", unavailable("transport error")),
            (3, "etcdserver: revision of auth store is old", unavailable("etcdserver: revision of auth store is old")),
        ] {
            assert_eq!(of(code, message), expected);
        }
        for (code, message) in [(7, "etcdserver: permission denied"), (15, "etcdserver: corrupt cluster")] {
            assert_eq!(of(code, message), StoreError::Failed(message.to_owned()));
        }
        for (code, message) in [
            (16, "etcdserver: invalid auth token"),
            (9, "etcdserver: authentication is not enabled"),
            (3, "etcdserver: authentication failed, invalid user ID or password"),
            (3, "etcdserver: user name is empty"),
        ] {
            assert_eq!(of(code, message), StoreError::Refused(message.to_owned()));
        }
        for (code, message) in [
            (3, "etcdserver: duplicate key given in txn request"),
            (3, "etcdserver: request is too large"),
            (11, "etcdserver: mvcc: required revision is a future revision"),
        ] {
            assert_eq!(of(code, message), StoreError::Invalid(message.to_owned()));
        }
    }

    #[test]
    fn a_cancelled_watch_says_why() {
        assert_eq!(error_of_cancel(7, ""), StoreError::Compacted { compacted: 7 });
        assert!(error_of_cancel(0, "etcdserver: no leader").is_retryable());
        assert!(!error_of_cancel(0, "etcdserver: permission denied").is_retryable());
    }
}
