//! What every store refuses, whatever it could do: the rules of etcd, so that what passes here passes there. Pure.

use std::collections::BTreeSet;

use super::store::{Compare, Op, Test, Txn};
use crate::limits::{REGISTRY_VALUE_BYTES_MAX, TXN_BYTES_MAX, TXN_OPERATIONS_MAX};

/// Checks a transaction; the error is a sentence.
pub(super) fn check_txn(txn: &Txn) -> Result<(), String> {
    let operations = count(txn);
    if operations > TXN_OPERATIONS_MAX {
        return Err(format!("{operations} operations in one transaction, above {TXN_OPERATIONS_MAX}"));
    }
    let bytes = bytes(txn);
    if bytes > TXN_BYTES_MAX {
        return Err(format!("{bytes} bytes in one transaction, above {TXN_BYTES_MAX}"));
    }
    writes(txn).map(|_| ())
}

/// What it takes to send, nearly: keys and values of both branches and all levels.
fn bytes(txn: &Txn) -> usize {
    let compared =
        |compare: &Compare| compare.key.len() + if let Test::Value(value) = &compare.test { value.len() } else { 0 };
    let done = |op: &Op| match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete(key) | Op::DeletePrefix(key) | Op::Get(key) => key.len(),
        Op::Txn(txn) => bytes(txn),
    };
    txn.compares.iter().map(compared).sum::<usize>() + txn.then.iter().chain(&txn.otherwise).map(done).sum::<usize>()
}

/// As etcd counts: the longest of compares, steps and steps otherwise, and to that what the largest transaction within has.
fn count(txn: &Txn) -> usize {
    let steps = || txn.then.iter().chain(&txn.otherwise);
    let within = steps().map(|op| if let Op::Txn(txn) = op { count(txn) } else { 0 }).max().unwrap_or(0);
    txn.compares.len().max(txn.then.len()).max(txn.otherwise.len()) + within
}

#[derive(Default)]
struct Writes<'t> {
    puts: BTreeSet<&'t str>,
    deletes: BTreeSet<&'t str>,
    deleted_prefixes: BTreeSet<&'t str>,
}

/// What either branch may write. The branches exclude each other, so that both may write the same key.
fn writes(txn: &Txn) -> Result<Writes<'_>, String> {
    let (mut all, other) = (branch_writes(&txn.then)?, branch_writes(&txn.otherwise)?);
    all.puts.extend(other.puts);
    all.deletes.extend(other.deletes);
    all.deleted_prefixes.extend(other.deleted_prefixes);
    Ok(all)
}

fn branch_writes(ops: &[Op]) -> Result<Writes<'_>, String> {
    let mut all = Writes::default();
    for op in ops {
        let inner = match op {
            Op::Put { key, value, .. } => {
                if value.len() > REGISTRY_VALUE_BYTES_MAX {
                    return Err(format!("the value of {key} has {} bytes", value.len()));
                }
                Writes { puts: BTreeSet::from([key.as_str()]), ..Writes::default() }
            }
            Op::Delete(key) => Writes { deletes: BTreeSet::from([key.as_str()]), ..Writes::default() },
            Op::DeletePrefix(key) => Writes { deleted_prefixes: BTreeSet::from([key.as_str()]), ..Writes::default() },
            Op::Get(_) => Writes::default(),
            Op::Txn(txn) => writes(txn)?,
        };
        if let Some(twice) = inner.puts.iter().find(|key| all.puts.contains(*key)) {
            return Err(format!("{twice} is written twice"));
        }
        all.puts.extend(inner.puts);
        all.deletes.extend(inner.deletes);
        all.deleted_prefixes.extend(inner.deleted_prefixes);
    }
    let deleted = |key: &str| all.deletes.contains(key) || all.deleted_prefixes.iter().any(|p| key.starts_with(p));
    match all.puts.iter().find(|key| deleted(key)) {
        Some(both) => Err(format!("{both} is both written and deleted")),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_written_twice_on_one_path_and_branches_exclude_each_other() {
        let put = |key: &str| Op::Put { key: key.to_owned(), value: Vec::new(), lease: None };
        let txn = |then: Vec<Op>, otherwise: Vec<Op>| Txn { compares: Vec::new(), then, otherwise };
        assert!(check_txn(&txn(vec![put("a"), put("b")], vec![put("a")])).is_ok());
        assert!(check_txn(&txn(vec![put("a"), put("a")], vec![])).is_err());
        assert!(check_txn(&txn(vec![put("a"), Op::Delete("a".to_owned())], vec![])).is_err());
        assert!(check_txn(&txn(vec![put("a/1"), Op::DeletePrefix("a/".to_owned())], vec![])).is_err());
        let within = Op::Txn(txn(vec![put("a")], vec![put("a")]));
        assert!(check_txn(&txn(vec![within.clone(), put("b")], vec![])).is_ok());
        assert!(check_txn(&txn(vec![within.clone(), put("a")], vec![])).is_err());
        assert!(check_txn(&txn(vec![within.clone(), within], vec![])).is_err());
    }

    #[test]
    fn the_longest_list_of_each_level_counts() {
        let gets = |n: usize| Txn { then: vec![Op::Get("a".to_owned()); n], ..Txn::default() };
        assert!(check_txn(&gets(TXN_OPERATIONS_MAX)).is_ok());
        assert!(check_txn(&gets(TXN_OPERATIONS_MAX + 1)).is_err());
        let within = |n: usize, times: usize| Txn { then: vec![Op::Txn(gets(n)); times], ..Txn::default() };
        assert!(check_txn(&within(TXN_OPERATIONS_MAX - 50, 50)).is_ok());
        assert!(check_txn(&within(TXN_OPERATIONS_MAX - 50, 51)).is_err());
    }
}
