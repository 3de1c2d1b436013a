//! What the simulated drive holds of one file. Per block: what is on the media, and the completed but unflushed versions in
//! the drive's volatile cache. At a power cut each block keeps any version, or a mix of sectors of any of them. Sizes are
//! volatile too. Pure state: who may do what, and when, is decided above.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::SECTOR_BYTES;
use super::executor::World;
use crate::env::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The version of a block that a failed flush left behind, clean-looking: no later flush writes it.
const NEVER_FLUSHED: u64 = u64::MAX;

/// The bytes of a block; `None` is zeros.
pub(super) type Block = Option<Rc<[u8; BLOCK_BYTES]>>;

/// Copies a whole block.
pub(super) fn block_of(bytes: &[u8]) -> Rc<[u8; BLOCK_BYTES]> {
    Rc::new(bytes.try_into().expect("the caller gives one whole block"))
}

/// A block whose every sector comes from one of `sources`.
pub(super) fn torn(world: &World, sources: &[Block]) -> Rc<[u8; BLOCK_BYTES]> {
    let mut mixed = [0; BLOCK_BYTES];
    for sector in mixed.chunks_mut(SECTOR_BYTES).enumerate() {
        let (index, bytes) = sector;
        if let Some(source) = &sources[world.below(sources.len())] {
            bytes.copy_from_slice(&source[index * SECTOR_BYTES..][..SECTOR_BYTES]);
        }
    }
    Rc::new(mixed)
}

struct Version {
    sequence: u64,
    content: Block,
}

/// One file: its media, its cache, its sizes.
#[derive(Default)]
pub(super) struct FileNode {
    media: Vec<Block>,
    pending: BTreeMap<u64, Vec<Version>>,
    size: u64,
    size_durable: u64,
    sizes_pending: Vec<(u64, u64)>,
    /// Blocks that answer a read with EIO.
    pub(super) unreadable: BTreeSet<u64>,
    pub(super) modified_ms: i64,
    /// Whether some descriptor, or a write that a dead process left behind, holds the lock.
    pub(super) locked: bool,
    /// Open descriptors of the living process.
    pub(super) handles: usize,
}

impl FileNode {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// What a read of block `index` returns.
    pub(super) fn block(&self, index: u64) -> Block {
        match self.pending.get(&index).and_then(|versions| versions.last()) {
            Some(version) => version.content.clone(),
            None => self.media(index),
        }
    }

    fn media(&self, index: u64) -> Block {
        self.media.get(index as usize).cloned().flatten()
    }

    fn set_media(&mut self, index: u64, content: Block) {
        let index = index as usize;
        if index >= self.media.len() {
            self.media.resize(index + 1, None);
        }
        self.media[index] = content;
    }

    /// All bytes as a read would return them.
    pub(super) fn content(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size as usize);
        for index in 0..self.size.div_ceil(BLOCK) {
            match self.block(index) {
                Some(block) => bytes.extend_from_slice(&*block),
                None => bytes.resize(bytes.len() + BLOCK_BYTES, 0),
            }
        }
        bytes.truncate(self.size as usize);
        bytes
    }

    /// A plain write of one block has completed: it is in the cache.
    pub(super) fn land(&mut self, sequence: u64, index: u64, content: Block) {
        self.pending.entry(index).or_default().push(Version { sequence, content });
    }

    /// A synchronous write of one block has completed: it is on the media. Its size is not thereby.
    pub(super) fn land_synchronous(&mut self, index: u64, content: Block) {
        self.pending.remove(&index);
        self.set_media(index, content);
    }

    /// Sets the size; bytes that are cut off read as zeros should the file grow again.
    pub(super) fn set_size(&mut self, sequence: u64, size: u64) {
        if size < self.size {
            for index in size / BLOCK..self.size.div_ceil(BLOCK) {
                let kept = size.saturating_sub(index * BLOCK).min(BLOCK) as usize;
                if let Some(old) = self.block(index) {
                    let mut bytes = [0; BLOCK_BYTES];
                    bytes[..kept].copy_from_slice(&old[..kept]);
                    self.land(sequence, index, if kept == 0 { None } else { Some(Rc::new(bytes)) });
                }
            }
        }
        self.size = size;
        self.sizes_pending.push((sequence, size));
    }

    /// Replaces everything, as writing a small file does.
    pub(super) fn write_small(&mut self, sequence: u64, content: &[u8]) {
        for (index, bytes) in content.chunks(BLOCK_BYTES).enumerate() {
            let mut block = [0; BLOCK_BYTES];
            block[..bytes.len()].copy_from_slice(bytes);
            self.land(sequence, index as u64, Some(Rc::new(block)));
        }
        self.set_size(sequence, content.len() as u64);
    }

    /// A flush that began at `begun` has succeeded: it covers what had completed by then.
    pub(super) fn flush(&mut self, begun: u64) {
        let mut to_media = Vec::new();
        self.pending.retain(|&index, versions| {
            let covered = versions.iter().rposition(|version| version.sequence <= begun);
            if let Some(newest) = covered {
                to_media.push((index, versions[newest].content.clone()));
                versions.drain(..=newest);
            }
            !versions.is_empty()
        });
        for (index, content) in to_media {
            self.set_media(index, content);
        }
        let sizes = self.sizes_pending.partition_point(|(sequence, _)| *sequence <= begun);
        if let Some((_, size)) = self.sizes_pending.drain(..sizes).next_back() {
            self.size_durable = size;
        }
    }

    /// A flush has failed: some of what it should have written is on the media; with `gate`, the cache forgets that the
    /// rest is dirty, so reads see it and no later flush writes it.
    pub(super) fn flush_failed(&mut self, world: &World, gate: bool) {
        let indexes: Vec<u64> = self.pending.keys().copied().collect();
        for index in indexes {
            if world.chance(0.3) {
                let content = self.block(index);
                self.land_synchronous(index, content);
            } else if gate {
                for version in self.pending.get_mut(&index).into_iter().flatten() {
                    version.sequence = NEVER_FLUSHED;
                }
            }
        }
    }

    /// Blocks with versions that are not on the media.
    pub(super) fn blocks_pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether no cut could change anything here.
    pub(super) fn is_clean(&self) -> bool {
        self.pending.is_empty() && self.sizes_pending.is_empty()
    }

    /// The power goes. Each block with unflushed versions keeps one of them with probability `keep`, or a mix of sectors.
    pub(super) fn power_cut(&mut self, world: &World, keep: f64) {
        for (index, versions) in std::mem::take(&mut self.pending) {
            if !world.chance(keep) {
                continue;
            }
            let mut sources: Vec<Block> = versions.into_iter().map(|version| version.content).collect();
            let content = if world.chance(0.6) {
                sources.swap_remove(world.below(sources.len()))
            } else {
                sources.push(self.media(index));
                Some(torn(world, &sources))
            };
            self.set_media(index, content);
        }
        if !self.sizes_pending.is_empty() {
            let choice = world.below(self.sizes_pending.len() + 1);
            if choice > 0 {
                self.size_durable = self.sizes_pending[choice - 1].1;
            }
            self.sizes_pending.clear();
        }
        self.size = self.size_durable;
        self.zero_beyond_size();
    }

    /// Space that a lost allocation gives back is fresh when it is allocated again.
    fn zero_beyond_size(&mut self) {
        let whole = self.size / BLOCK;
        let rest = (self.size % BLOCK) as usize;
        if rest > 0
            && let Some(old) = self.media(whole)
        {
            let mut bytes = [0; BLOCK_BYTES];
            bytes[..rest].copy_from_slice(&old[..rest]);
            self.set_media(whole, Some(Rc::new(bytes)));
        }
        self.media.truncate(self.size.div_ceil(BLOCK) as usize);
    }

    /// Changes stored bytes behind everybody's back, in every version that exists. Says whether any byte changed.
    pub(super) fn hurt(&mut self, offset: u64, byte: impl Fn(u8) -> u8) -> bool {
        let (index, at) = (offset / BLOCK, (offset % BLOCK) as usize);
        let mut changed = false;
        let mut change = |content: &mut Block| {
            let mut bytes = content.as_deref().copied().unwrap_or([0; BLOCK_BYTES]);
            let new = byte(bytes[at]);
            changed |= new != bytes[at];
            bytes[at] = new;
            *content = Some(Rc::new(bytes));
        };
        let mut media = self.media(index);
        change(&mut media);
        self.pending.get_mut(&index).into_iter().flatten().for_each(|version| change(&mut version.content));
        self.set_media(index, media);
        changed
    }
}
