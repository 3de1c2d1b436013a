//! The hot tail: the chunks that hold the newest bytes of a partition, back to back. Bytes that arrive are received here,
//! written from here, and read from here until the memory is needed.
//!
//! A chunk's first byte lies at a block boundary of its segment; if its bytes begin within that block, the block's older
//! bytes are there too, copied, so that every block can be written from one chunk. A set never straddles chunks.

use std::collections::VecDeque;

use crate::env::{BLOCK_BYTES, Chunk, Env};
use crate::shard::{EnvChunk, EnvSlice, KeptBytes};

const BLOCK: u64 = BLOCK_BYTES as u64;

pub(crate) struct Tail<E: Env> {
    chunks: VecDeque<TailChunk<E>>,
    next_number: u64,
    /// What the next chunk holds, if there is memory for it.
    preferred_bytes: usize,
    chunk_bytes_max: usize,
    /// What is left when all chunks are given back.
    last_block: Option<LastBlock>,
}

/// The bytes of the end's block below the end, kept when the chunk that held them was given back: a partition that is
/// published to now and then would have to read them back each time. They are not counted as memory of the tail.
struct LastBlock {
    end: u64,
    bytes: Box<[u8]>,
    _kept: KeptBytes,
}

struct TailChunk<E: Env> {
    number: u64,
    chunk: EnvChunk<E>,
    /// The position of the chunk's first byte.
    origin: u64,
    /// The first position that no older chunk holds.
    from: u64,
    /// Whether the shard knows that it may be evicted.
    offered: bool,
}

impl<E: Env> TailChunk<E> {
    fn end(&self) -> u64 {
        self.origin + self.chunk.filled() as u64
    }
}

/// The last bytes of a block that a new chunk begins with.
pub(crate) fn partial_bytes(end: u64, base: u64) -> usize {
    ((end - base) % BLOCK) as usize
}

impl<E: Env> Tail<E> {
    pub(crate) fn new(chunk_bytes_max: usize) -> Self {
        Self { chunks: VecDeque::new(), next_number: 0, preferred_bytes: 0, chunk_bytes_max, last_block: None }
    }

    /// The lowest position in memory; `end` when nothing is.
    pub(crate) fn start(&self, end: u64) -> u64 {
        self.chunks.front().map_or(end, |chunk| chunk.from)
    }

    /// The chunk in which `bytes` bytes at `end` fit, and where in it; `None` when there is none.
    pub(crate) fn room(&self, end: u64, base: u64, bytes: usize) -> Option<(EnvChunk<E>, usize)> {
        let last = self.chunks.back().filter(|last| last.end() == end && last.origin >= base)?;
        let at = last.chunk.filled();
        (last.chunk.capacity() - at >= bytes).then(|| (last.chunk.clone(), at))
    }

    /// How large a chunk for a set of `bytes` at `end` should be.
    pub(crate) fn chunk_bytes(&self, end: u64, base: u64, bytes: usize, scarce: bool) -> usize {
        let needed = (partial_bytes(end, base) + bytes).next_multiple_of(BLOCK_BYTES);
        if scarce || needed >= self.chunk_bytes_max {
            return needed;
        }
        needed.max(self.preferred_bytes).next_power_of_two().min(self.chunk_bytes_max)
    }

    /// The bytes of `end`'s block below `end`, if they are in memory.
    pub(crate) fn copy_partial(&self, end: u64, base: u64) -> Option<Vec<u8>> {
        let partial = partial_bytes(end, base) as u64;
        if partial == 0 {
            return Some(Vec::new());
        }
        if let Some(kept) = self.last_block.as_ref().filter(|kept| kept.end == end) {
            return Some(kept.bytes.to_vec());
        }
        let last = self.chunks.back().filter(|last| last.end() == end && last.origin >= base)?;
        let filled = last.chunk.filled();
        Some(last.chunk.slice(filled - partial as usize..filled).to_vec())
    }

    /// Goes on in a fresh chunk, whose first block begins with `partial`.
    pub(crate) fn push(&mut self, chunk: EnvChunk<E>, end: u64, partial: &[u8]) {
        chunk.with_spare(0..partial.len(), |spare| spare.copy_from_slice(partial));
        chunk.fill_to(partial.len());
        self.last_block = None;
        self.preferred_bytes = (chunk.capacity() * 2).min(self.chunk_bytes_max);
        let origin = end - partial.len() as u64;
        self.chunks.push_back(TailChunk { number: self.next_number, chunk, origin, from: end, offered: false });
        self.next_number += 1;
    }

    /// Shared views of the bytes from `from` up to `to`, all of which must be in memory.
    pub(crate) fn slices(&self, from: u64, to: u64, out: &mut impl FnMut(EnvSlice<E>)) {
        let mut at = from;
        let first = self.chunks.partition_point(|chunk| chunk.end() <= from);
        for chunk in self.chunks.range(first..).take_while(|chunk| chunk.from < to) {
            let end = chunk.end().min(to);
            out(chunk.chunk.slice((at - chunk.origin) as usize..(end - chunk.origin) as usize));
            at = end;
        }
        assert!(at == to, "bytes {from} to {to} were expected in memory, they end at {at}");
    }

    /// The whole blocks from position `from` up to `to`, each from the newest chunk that holds it.
    pub(crate) fn blocks(&self, from: u64, to: u64) -> Vec<EnvSlice<E>> {
        let mut parts = Vec::with_capacity(2);
        let mut at = from;
        for (index, chunk) in self.chunks.iter().enumerate() {
            // Where the next chunk begins it has the newer copy of the block.
            let until = self.chunks.get(index + 1).map_or_else(|| chunk.end(), |next| next.origin).min(to);
            if chunk.origin <= at && at < until {
                parts.push(chunk.chunk.slice((at - chunk.origin) as usize..(until - chunk.origin) as usize));
                at = until;
            }
        }
        assert!(at == to, "blocks {from} to {to} were expected in memory, they end at {at}");
        parts
    }

    /// Copies the bytes from `from` up to `to`, less than a block, out of the newest chunk that holds them all.
    pub(crate) fn copy_block_part(&self, from: u64, to: u64, out: &mut [u8]) {
        let holder = self.chunks.iter().rev().find(|chunk| chunk.origin <= from && to <= chunk.end());
        let chunk = holder.expect("the bytes of a block that is to be written were expected in memory");
        out[..(to - from) as usize]
            .copy_from_slice(&chunk.chunk.slice((from - chunk.origin) as usize..(to - chunk.origin) as usize));
    }

    /// The chunks that became durable whole and were not offered to the shard yet: their numbers and bytes.
    pub(crate) fn offer(&mut self, durable: u64) -> Vec<(u64, usize)> {
        let mut offers = Vec::new();
        for chunk in self.chunks.iter_mut().take_while(|chunk| chunk.end() <= durable) {
            if !chunk.offered {
                chunk.offered = true;
                offers.push((chunk.number, chunk.chunk.capacity()));
            }
        }
        offers
    }

    /// Gives the chunks up to `number` back, as far as they are durable; `keep_last` keeps the one that fills. `keep` says
    /// whether so many bytes may be kept instead of the last one.
    pub(crate) fn evict(
        &mut self,
        number: u64,
        durable: u64,
        keep_last: bool,
        keep: impl FnOnce(usize) -> Option<KeptBytes>,
    ) {
        let is_given_back = |first: &TailChunk<E>| first.number <= number && first.end() <= durable;
        while self.chunks.front().is_some_and(is_given_back) && !(keep_last && self.chunks.len() == 1) {
            let given = self.chunks.pop_front().expect("there is a first chunk");
            if self.chunks.is_empty() {
                let filled = given.chunk.filled();
                let partial = filled % BLOCK_BYTES;
                let bytes = || given.chunk.slice(filled - partial..filled).to_vec().into();
                self.last_block = keep(partial).map(|kept| LastBlock { end: given.end(), bytes: bytes(), _kept: kept });
                break;
            }
        }
        if let Some(kept) = self.chunks.front_mut().filter(|first| first.number <= number) {
            kept.offered = false;
        }
        if self.chunks.is_empty() {
            self.preferred_bytes = 0;
        }
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.last_block = None;
    }
}
