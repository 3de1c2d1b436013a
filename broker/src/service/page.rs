//! Pages of lists that may be long: as many entries as were asked for, and no more than are well told in one answer. Pure.

use prost::Message;

use crate::limits::{PAGE_BYTES, PAGE_ENTRIES_MAX};

/// What an answer has room for.
#[derive(Debug)]
pub struct Room {
    entries: usize,
    bytes: usize,
    is_empty: bool,
}

impl Room {
    /// As the request's `limit` has it; 0: for everything.
    pub fn new(limit: u32) -> Self {
        let (entries, bytes) =
            if limit == 0 { (usize::MAX, usize::MAX) } else { (PAGE_ENTRIES_MAX.min(limit as usize), PAGE_BYTES) };
        Self { entries, bytes, is_empty: true }
    }

    /// So many entries of a list tell what belongs here, and whether there are more.
    pub fn entries_wanted(&self) -> usize {
        self.entries.saturating_add(1)
    }

    /// Takes entries from the front of a list while there is room, one at least; and whether some are left.
    pub fn fill<M: Message>(&mut self, list: impl IntoIterator<Item = M>) -> (Vec<M>, bool) {
        let mut taken = Vec::new();
        for entry in list {
            let bytes = entry.encoded_len();
            if self.entries == 0 || (bytes > self.bytes && !self.is_empty) {
                return (taken, true);
            }
            self.entries -= 1;
            self.bytes = self.bytes.saturating_sub(bytes);
            self.is_empty = false;
            taken.push(entry);
        }
        (taken, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(count: usize, bytes: usize) -> Vec<String> {
        vec!["w".repeat(bytes); count]
    }

    #[test]
    fn a_page_ends_with_the_entries_asked_for_or_with_its_bytes_and_says_whether_more_is_left() {
        let fill = |limit, list: Vec<String>| {
            let (taken, more) = Room::new(limit).fill(list);
            (taken.len(), more)
        };
        assert_eq!(fill(3, words(3, 10)), (3, false));
        assert_eq!(fill(3, words(4, 10)), (3, true));
        assert_eq!(fill(u32::MAX, words(PAGE_ENTRIES_MAX + 1, 1)), (PAGE_ENTRIES_MAX, true));
        let (taken, more) = fill(100, words(100, PAGE_BYTES / 10));
        assert!((8..=10).contains(&taken) && more, "{taken}");
        assert_eq!(fill(100, words(2, 2 * PAGE_BYTES)), (1, true), "one at least, or nobody would come further");
        assert_eq!(fill(0, words(2, 2 * PAGE_BYTES)), (2, false), "who asks for all gets all");
        assert_eq!(fill(5, Vec::new()), (0, false));
    }

    #[test]
    fn two_lists_share_a_page() {
        let mut room = Room::new(3);
        assert_eq!(room.fill(words(2, 1)).0.len(), 2);
        assert_eq!(room.fill(words(2, 1)), (words(1, 1), true));
        assert_eq!(room.fill(words(1, 1)), (Vec::new(), true));
        assert_eq!(room.fill(words(0, 1)), (Vec::new(), false));
    }
}
