//! Where a message that is copied from one topic to another belongs, whether it comes from a cluster or from a file.

/// The partition of a copied message in a topic of `partitions`; none: where its key belongs. It stays in the one of its
/// number where `is_parallel`; what has no key stays in order, too.
pub(crate) fn partition(source: u32, has_key: bool, partitions: u32, is_parallel: bool) -> Option<u32> {
    match (is_parallel, has_key) {
        (true, _) => Some(source),
        (false, false) => Some(source % partitions),
        (false, true) => None,
    }
}
