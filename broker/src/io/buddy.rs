//! A buddy allocator over block numbers: which runs of blocks are free. It touches no memory itself, so it is plain safe
//! code; the arena lends it a region. Runs are powers of two, aligned to their own length, split and merged in O(log n).

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
        let mut at = 0;
        while at < blocks {
            let by_rest = (blocks - at).ilog2();
            let order = if at == 0 { by_rest } else { by_rest.min(at.trailing_zeros()) };
            buddy.push(at, order as u8);
            at += 1 << order;
        }
        buddy
    }

    /// Blocks handed out.
    pub(super) fn blocks_used(&self) -> u32 {
        self.blocks_used
    }

    /// Takes a run of `1 << order` blocks; answers its first block.
    pub(super) fn take(&mut self, order: u8) -> Option<u32> {
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
    pub(super) fn give_back(&mut self, first: u32, order: u8) {
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

#[cfg(test)]
mod tests {
    use super::Buddy;

    #[test]
    fn whole_region_can_be_taken_and_merges_again() {
        for blocks in [1, 2, 3, 7, 8, 100, 1024] {
            let mut buddy = Buddy::new(blocks);
            let taken: Vec<u32> = std::iter::from_fn(|| buddy.take(0)).collect();
            assert_eq!(taken.len(), blocks as usize);
            assert_eq!(buddy.blocks_used(), blocks);
            for first in taken {
                buddy.give_back(first, 0);
            }
            assert_eq!(buddy.blocks_used(), 0);
            let largest = blocks.ilog2() as u8;
            assert!(buddy.take(largest).is_some(), "{blocks} blocks did not merge again");
        }
    }

    #[test]
    fn runs_are_aligned_and_disjoint() {
        let mut buddy = Buddy::new(64);
        let mut owner = [false; 64];
        for order in [0, 3, 1, 0, 4, 2, 0] {
            let first = buddy.take(order).expect("64 blocks hold these");
            assert_eq!(first % (1 << order), 0);
            for block in first..first + (1 << order) {
                assert!(!std::mem::replace(&mut owner[block as usize], true), "block {block} handed out twice");
            }
        }
        assert!(buddy.take(6).is_none());
    }
}
