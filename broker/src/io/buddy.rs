//! A buddy allocator over block numbers: which runs of blocks are free. It touches no memory itself, so it is plain safe
//! code; the arena lends it a region. Free runs are powers of two, aligned to their own length, split and merged in
//! O(log n); what a taker does not need of its run stays free.

/// The end of a free list.
const NONE: u32 = u32::MAX;
/// What `free_order` says of a block that does not begin a free run.
const NOT_FREE: u8 = u8::MAX;

/// Free runs of a region of blocks.
pub(super) struct Buddy {
    blocks: u32,
    blocks_used: u32,
    /// The first free run of each order.
    heads: Vec<u32>,
    /// Per block: the order of the free run that begins there.
    free_order: Vec<u8>,
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Buddy {
    /// A region of `blocks` blocks, all free. It need not be a power of two: it is cut into aligned runs that are.
    pub(super) fn new(blocks: u32) -> Self {
        let orders = (u32::BITS - blocks.leading_zeros()).max(1) as usize;
        let mut buddy = Self {
            blocks,
            blocks_used: 0,
            heads: vec![NONE; orders],
            free_order: vec![NOT_FREE; blocks as usize],
            next: vec![NONE; blocks as usize],
            previous: vec![NONE; blocks as usize],
        };
        for (first, order) in runs(0, blocks) {
            buddy.push(first, order);
        }
        buddy
    }

    /// Blocks handed out.
    pub(super) fn blocks_used(&self) -> u32 {
        self.blocks_used
    }

    /// Takes `blocks` blocks in a row, at least one; answers the first.
    pub(super) fn take(&mut self, blocks: u32) -> Option<u32> {
        let order = blocks.checked_next_power_of_two()?.ilog2() as u8;
        let first = self.take_run(order)?;
        for (rest, order) in runs(first + blocks, first + (1 << order)) {
            self.give_back_run(rest, order);
        }
        Some(first)
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, first: u32, blocks: u32) {
        for (first, order) in runs(first, first + blocks) {
            self.give_back_run(first, order);
        }
    }

    fn take_run(&mut self, order: u8) -> Option<u32> {
        let found = (usize::from(order)..self.heads.len()).find(|&order| self.heads[order] != NONE)?;
        let first = self.heads[found];
        self.remove(first);
        // Halve until it fits; the upper halves stay free.
        for half in (order..found as u8).rev() {
            self.push(first + (1 << half), half);
        }
        self.blocks_used += 1 << order;
        Some(first)
    }

    /// Gives a run back and merges it with its free buddies.
    fn give_back_run(&mut self, first: u32, order: u8) {
        self.blocks_used -= 1 << order;
        let (mut first, mut order) = (first, order);
        while usize::from(order) + 1 < self.heads.len() {
            let buddy = first ^ (1 << order);
            if buddy.saturating_add(1 << order) > self.blocks || self.free_order[buddy as usize] != order {
                break;
            }
            self.remove(buddy);
            first = first.min(buddy);
            order += 1;
        }
        self.push(first, order);
    }

    fn push(&mut self, first: u32, order: u8) {
        let head = std::mem::replace(&mut self.heads[usize::from(order)], first);
        self.free_order[first as usize] = order;
        self.next[first as usize] = head;
        self.previous[first as usize] = NONE;
        if head != NONE {
            self.previous[head as usize] = first;
        }
    }

    fn remove(&mut self, first: u32) {
        let index = first as usize;
        let order = usize::from(std::mem::replace(&mut self.free_order[index], NOT_FREE));
        let (previous, next) = (self.previous[index], self.next[index]);
        if previous == NONE {
            self.heads[order] = next;
        } else {
            self.next[previous as usize] = next;
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
    }
}

/// Cuts blocks `from` up to `to` into the fewest aligned runs: the first block of each, and its order.
fn runs(from: u32, to: u32) -> impl Iterator<Item = (u32, u8)> {
    let mut at = from;
    std::iter::from_fn(move || {
        let rest = (to - at).checked_ilog2()?;
        let (first, order) = (at, rest.min(at.trailing_zeros()));
        at += 1 << order;
        Some((first, order as u8))
    })
}

#[cfg(test)]
mod tests {
    use super::Buddy;

    #[test]
    fn whole_region_can_be_taken_and_merges_again() {
        for blocks in [1, 2, 3, 7, 8, 100, 1024] {
            let mut buddy = Buddy::new(blocks);
            let taken: Vec<u32> = std::iter::from_fn(|| buddy.take(1)).collect();
            assert_eq!(taken.len(), blocks as usize);
            assert_eq!(buddy.blocks_used(), blocks);
            for first in taken {
                buddy.give_back(first, 1);
            }
            assert_eq!(buddy.blocks_used(), 0);
            assert!(buddy.take(1 << blocks.ilog2()).is_some(), "{blocks} blocks did not merge again");
        }
    }

    #[test]
    fn what_is_taken_is_disjoint_and_no_longer_than_asked() {
        let mut buddy = Buddy::new(64);
        let mut is_taken = [false; 64];
        let mut used = 0;
        for blocks in [1, 8, 3, 1, 17, 4, 5] {
            let first = buddy.take(blocks).expect("64 blocks hold these");
            used += blocks;
            assert_eq!(buddy.blocks_used(), used);
            for block in first..first + blocks {
                assert!(!std::mem::replace(&mut is_taken[block as usize], true), "block {block} handed out twice");
            }
        }
        assert!(buddy.take(64).is_none());
    }
}
