//! Descriptors of the simulated disk: direct reads and writes, flushes, sizes, and the assertions on how direct I/O may be
//! used: whole blocks, never two writes in flight on one block, never a write that extends the file.

use std::future::Future;
use std::io;
use std::rc::Rc;

use super::arena::{SimArena, SimChunk, SimSlice};
use super::disk::{BLOCK, SimDisk, eio, no_space};
use super::flight::{Completion, Flight, Write};
use super::volume::{Block, block_of, torn};
use crate::env::{BLOCK_BYTES, File};

/// A descriptor. Operations in flight hold it too.
pub(super) struct Handle {
    disk: SimDisk,
    pub(super) file: u64,
    writes: bool,
    life: u64,
}

impl Handle {
    fn assert_usable(&self, for_writes: bool) {
        assert_eq!(self.life, self.disk.life(), "a descriptor of a dead process is used");
        assert!(self.writes || !for_writes, "a file that was opened for reading is changed");
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.life != self.disk.life() {
            return; // The crash has closed it.
        }
        self.disk.file(self.file, |file| file.handles -= 1);
        if self.writes {
            self.disk.unlock(self.file);
        }
    }
}

/// An open simulated file.
#[derive(Clone)]
pub struct SimFile {
    handle: Rc<Handle>,
}

impl SimFile {
    pub(super) fn new(disk: &SimDisk, file: u64, writes: bool) -> Self {
        Self { handle: Rc::new(Handle { disk: disk.clone(), file, writes, life: disk.life() }) }
    }

    /// Bytes as a read would return them now: at most so many, fewer at the end of the file.
    pub fn peek(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let content = self.handle.disk.file(self.handle.file, |file| file.content());
        let from = (offset as usize).min(content.len());
        content[from..content.len().min(from + bytes)].to_vec()
    }

    fn submit_read(&self, chunk: &SimChunk, at: usize, bytes: usize, offset: u64) -> Completion<usize> {
        self.handle.assert_usable(false);
        let aligned = offset.is_multiple_of(BLOCK)
            && at.is_multiple_of(BLOCK_BYTES)
            && bytes.is_multiple_of(BLOCK_BYTES)
            && bytes > 0;
        assert!(aligned, "a direct read of {bytes} bytes at {offset} to {at}: not whole blocks");
        chunk.lend(at..at + bytes);
        let disk = &self.handle.disk;
        let fails = disk.world().chance(disk.faults().read_eio);
        let completion = Completion::new();
        let (handle, chunk, result) = (self.handle.clone(), chunk.clone(), completion.clone());
        disk.launch(Flight::Read(Box::new(move |disk| {
            let mut read = Err(eio());
            chunk.take_back(|lent| {
                read = disk.read_now(handle.file, offset, lent);
                if fails || read.is_err() {
                    let scribbled = disk.world().below(lent.len());
                    lent[..scribbled].fill(0x5A);
                    read = Err(eio());
                }
                *read.as_ref().unwrap_or(&0)
            });
            result.finish(read);
        })));
        completion
    }

    fn submit_write(&self, parts: Vec<SimSlice>, offset: u64, synchronous: bool) -> Completion<()> {
        self.handle.assert_usable(true);
        let disk = &self.handle.disk;
        let mut blocks = Vec::new();
        for part in &parts {
            let aligned = part.start().is_multiple_of(BLOCK_BYTES) && part.len().is_multiple_of(BLOCK_BYTES);
            assert!(aligned, "a direct write from {part:?}: not whole blocks");
            blocks.extend(part.chunks(BLOCK_BYTES).map(|block| Some(block_of(block))));
        }
        assert!(
            offset.is_multiple_of(BLOCK) && !blocks.is_empty(),
            "a direct write of {} blocks at {offset}",
            blocks.len()
        );
        let end = offset + blocks.len() as u64 * BLOCK;
        let size = disk.file(self.handle.file, |file| file.size());
        assert!(end <= size, "a direct write of {offset}..{end} extends a file of {size} bytes");
        let world = &disk.world();
        let write = Write {
            handle: self.handle.clone(),
            first_block: offset / BLOCK,
            blocks,
            synchronous,
            fails: world.chance(disk.faults().write_eio),
            orphan: false,
            parts,
            completion: Completion::new(),
        };
        disk.assert_no_overlap(&write);
        let wall_ms = world.wall_ms();
        disk.file(self.handle.file, |file| file.modified_ms = wall_ms);
        world.trace(|| {
            let kind = if synchronous { "synchronous write" } else { "write" };
            let fails = if write.fails { " will fail" } else { "" };
            format!("{kind} file {} blocks {:?}{fails}", self.handle.file, write.block_range())
        });
        let completion = write.completion.clone();
        disk.launch(Flight::Write(write));
        completion
    }

    /// A change of this file. The handle stays open until its end.
    fn change<T: 'static>(
        &self,
        for_writes: bool,
        eio_rate: f64,
        effect: impl FnOnce(&SimDisk, u64) -> io::Result<T> + 'static,
    ) -> Completion<T> {
        self.handle.assert_usable(for_writes);
        let handle = self.handle.clone();
        self.handle.disk.change(eio_rate, move |disk| effect(disk, handle.file))
    }
}

impl SimDisk {
    /// Reads what is there at this moment. A block that is being written may come torn.
    fn read_now(&self, id: u64, offset: u64, lent: &mut [u8]) -> io::Result<usize> {
        let size = self.file(id, |file| file.size());
        let bytes = (size.saturating_sub(offset)).min(lent.len() as u64) as usize;
        for (index, out) in (offset / BLOCK..).zip(lent[..bytes].chunks_mut(BLOCK_BYTES)) {
            if self.file(id, |file| file.unreadable.contains(&index)) {
                return Err(eio());
            }
            let mut block = self.file(id, |file| file.block(index));
            if let Some(new) = self.block_in_flight(id, index) {
                block = Some(torn(self.world(), &[block, new]));
            }
            match block {
                Some(content) => out.copy_from_slice(&content[..out.len()]),
                None => out.fill(0),
            }
        }
        Ok(bytes)
    }

    fn block_in_flight(&self, id: u64, index: u64) -> Option<Block> {
        self.in_flight().values().find_map(|flight| match flight {
            Flight::Write(write) if write.handle.file == id && write.block_range().contains(&index) => {
                Some(write.blocks[(index - write.first_block) as usize].clone())
            }
            _ => None,
        })
    }

    fn assert_no_overlap(&self, new: &Write) {
        let new_range = new.block_range();
        for flight in self.in_flight().values() {
            let Flight::Write(old) = flight else { continue };
            let old_range = old.block_range();
            let apart = old_range.end <= new_range.start || new_range.end <= old_range.start;
            let overlaps = old.handle.file == new.handle.file && !apart;
            assert!(!overlaps, "two writes in flight on one block: {old_range:?} and {new_range:?}");
        }
    }

    /// Grows a file by what there is room for; a real `fallocate` that runs out of space may have got part of the way.
    fn allocate_now(&self, id: u64, bytes: u64) -> io::Result<()> {
        let size = self.file(id, |file| file.size());
        if bytes <= size {
            return Ok(());
        }
        let allocated = size.next_multiple_of(BLOCK);
        let sequence = self.world().next();
        match self.check_room(bytes.next_multiple_of(BLOCK) - allocated) {
            Ok(()) => {
                self.file(id, |file| file.set_size(sequence, bytes));
                Ok(())
            }
            Err(blocks_free) => {
                let part = self.world().below(blocks_free as usize + 1) as u64;
                if part > 0 {
                    self.file(id, |file| file.set_size(sequence, allocated + part * BLOCK));
                }
                Err(no_space())
            }
        }
    }

    fn truncate_now(&self, id: u64, bytes: u64) {
        for flight in self.in_flight().values() {
            let Flight::Write(write) = flight else { continue };
            let under = write.handle.file == id && write.block_range().end * BLOCK > bytes.next_multiple_of(BLOCK);
            assert!(!under, "a file is truncated to {bytes} under a write of blocks {:?}", write.block_range());
        }
        let sequence = self.world().next();
        self.file(id, |file| file.set_size(sequence, bytes));
    }
}

impl File for SimFile {
    type Arena = SimArena;

    fn read(
        &self,
        chunk: &SimChunk,
        at: usize,
        bytes: usize,
        offset: u64,
    ) -> impl Future<Output = io::Result<usize>> + 'static {
        let (file, chunk) = (self.clone(), chunk.clone());
        self.handle.disk.begin(move |_| file.submit_read(&chunk, at, bytes, offset))
    }

    fn write(
        &self,
        parts: Vec<SimSlice>,
        offset: u64,
        synchronous: bool,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let file = self.clone();
        self.handle.disk.begin(move |_| file.submit_write(parts, offset, synchronous))
    }

    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + 'static {
        let file = self.clone();
        self.handle.disk.begin(move |disk| {
            let world = disk.world().clone();
            let faults = disk.faults();
            let begun = world.next();
            let fails = world.chance(faults.flush_eio);
            world.trace(|| format!("flush file {}{}", file.handle.file, if fails { " will fail" } else { "" }));
            file.change(false, 0.0, move |disk, id| {
                if fails {
                    disk.file(id, |file| file.flush_failed(&world, faults.gate));
                    return Err(eio());
                }
                world.trace(|| format!("flushed file {id}"));
                disk.file(id, |file| file.flush(begun));
                Ok(())
            })
        })
    }

    fn allocate(&self, bytes: u64) -> impl Future<Output = io::Result<()>> + 'static {
        let file = self.clone();
        self.handle.disk.begin(move |disk| {
            disk.world().trace(|| format!("allocate {bytes} bytes of file {}", file.handle.file));
            file.change(true, disk.faults().names_eio, move |disk, id| disk.allocate_now(id, bytes))
        })
    }

    fn truncate(&self, bytes: u64) -> impl Future<Output = io::Result<()>> + 'static {
        let file = self.clone();
        self.handle.disk.begin(move |disk| {
            disk.world().trace(|| format!("truncate file {} to {bytes} bytes", file.handle.file));
            file.change(true, disk.faults().names_eio, move |disk, id| {
                disk.truncate_now(id, bytes);
                Ok(())
            })
        })
    }

    fn links(&self) -> impl Future<Output = io::Result<u64>> + 'static {
        let file = self.clone();
        self.handle.disk.begin(move |_| file.change(false, 0.0, |disk, id| Ok(u64::from(disk.has_name(id)))))
    }

    fn bytes(&self) -> impl Future<Output = io::Result<u64>> + 'static {
        let file = self.clone();
        self.handle.disk.begin(move |_| file.change(false, 0.0, |disk, id| Ok(disk.file(id, |file| file.size()))))
    }
}
