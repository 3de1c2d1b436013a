//! What the driver does to the active segment: write, flush, allocate ahead, go on in the next segment. Each function is
//! one operation; when it is to happen was decided before (plan.rs, driver.rs).

use std::ops::Range;
use std::rc::Rc;

use super::state::{NextFile, Rolling, State};
use super::{Inner, count};
use crate::coverage::PartId;
use crate::env::{BLOCK_BYTES, Chunk, Disk, Env, File, OpenMode};
use crate::error::is_no_space;
use crate::names;
use crate::plan::{ceil_block, floor_block};
use crate::shard::{EnvFile, EnvSlice, Purpose};

/// A write that has its place among the parts, and is about to be issued.
pub(super) struct Write<E: Env> {
    pub(super) id: PartId,
    pub(super) file: EnvFile<E>,
    pub(super) base: u64,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) synchronous: bool,
}

impl<E: Env> Inner<E> {
    /// Writes the blocks from `from` up to `to`. A last block that is not full is written from a copy padded with zeros.
    pub(super) async fn write(self: Rc<Self>, write: Write<E>) {
        let parts = self.parts(&write).await;
        let offset = floor_block(write.from - write.base);
        count(&self.counters.writes, 1);
        count(&self.counters.synchronous_writes, u64::from(write.synchronous));
        match write.file.write(parts, offset, write.synchronous).await {
            Ok(()) => {
                self.state.borrow_mut().coverage.complete(write.id);
                self.advance();
            }
            Err(error) => {
                self.state.borrow_mut().coverage.fail();
                self.close_for_disk("a write", &error);
            }
        }
    }

    async fn parts(&self, write: &Write<E>) -> Vec<EnvSlice<E>> {
        let from = write.base + floor_block(write.from - write.base);
        let whole_to = write.base + floor_block(write.to - write.base);
        let padded = if whole_to < write.to {
            let chunk = self.shard.allocate(BLOCK_BYTES, Purpose::Service).await;
            let bytes = (write.to - whole_to) as usize;
            chunk.with_spare(0..BLOCK_BYTES, |block| {
                self.state.borrow().tail.copy_block_part(whole_to, write.to, block);
                block[bytes..].fill(0);
            });
            chunk.fill_to(BLOCK_BYTES);
            Some(chunk.slice(0..BLOCK_BYTES))
        } else {
            None
        };
        let mut parts = if from < whole_to { self.state.borrow().tail.blocks(from, whole_to) } else { Vec::new() };
        parts.extend(padded);
        parts
    }

    /// Flushes what is complete; its coverage has noted the beginning. Space that was allocated before counts afterwards.
    pub(super) async fn flush(self: Rc<Self>, file: EnvFile<E>, allocated: Option<u64>) {
        count(&self.counters.flushes, 1);
        match file.sync_data().await {
            Ok(()) => {
                let mut state = self.state.borrow_mut();
                state.coverage.flush_ends();
                if let Some(bytes) = allocated {
                    self.has_space(&mut state);
                    state.space.allocated = bytes;
                    state.space.unsynced = None;
                    state.segments.back_mut().expect("a log has an active segment").file_bytes = bytes;
                }
                drop(state);
                self.advance();
                if allocated.is_some() {
                    self.room.notify();
                }
            }
            Err(error) => {
                self.state.borrow_mut().coverage.flush_fails();
                self.close_for_disk("a flush", &error);
            }
        }
    }

    /// Allocates the active segment's file up to `bytes`, or, when there is no room for that, what is waited for. It counts
    /// once a flush has followed.
    pub(super) async fn allocate(self: Rc<Self>, file: EnvFile<E>, bytes: u64) {
        let mut allocated = file.allocate(bytes).await.map(|()| bytes);
        let wanted = ceil_block(self.state.borrow().space.wanted);
        let enough = wanted > 0 && wanted < bytes;
        if enough && allocated.as_ref().is_err_and(is_no_space) {
            allocated = file.allocate(wanted).await.map(|()| wanted);
        }
        match allocated {
            Ok(bytes) => self.state.borrow_mut().space.unsynced = Some(bytes),
            // Some of it may have been given, and after an orderly stop the file's size is taken for certain.
            Err(error) if is_no_space(&error) => match file.sync_data().await {
                Ok(()) => self.is_full(),
                Err(error) => self.close_for_disk("a flush", &error),
            },
            Err(error) => self.close_for_disk("allocating space", &error),
        }
        self.state.borrow_mut().space.is_asking = false;
        self.driver.notify();
    }

    /// The disk gave room.
    fn has_space(&self, state: &mut State<E>) {
        if std::mem::take(&mut state.space.was_refused) {
            tracing::info!(partition = %self.label, "there is space on the disk again");
        }
    }

    /// The disk is full. Who waits for space hears it; the next publish after a while makes the disk be asked again.
    fn is_full(&self) {
        let now = self.shard.env().monotonic();
        let mut state = self.state.borrow_mut();
        if !state.space.was_refused {
            tracing::warn!(partition = %self.label, "no space on the disk: publishing goes on when there is room");
        }
        state.space.was_refused = true;
        state.space.full_at = Some(now);
        state.space.wanted = 0;
        drop(state);
        self.room.notify();
    }

    /// Writes zeros ahead of the end of the segment that begins at `base`, into space that it has. They are no data: where they
    /// cannot be written nothing is lost, and for want of memory they are left out.
    pub(super) async fn write_zeros(self: Rc<Self>, file: EnvFile<E>, base: u64, range: Range<u64>) {
        if let Some(block) = self.shard.allocate_free(BLOCK_BYTES) {
            block.with_spare(0..BLOCK_BYTES, |bytes| bytes.fill(0));
            block.fill_to(BLOCK_BYTES);
            let blocks = (range.end - range.start) as usize / BLOCK_BYTES;
            let parts = std::iter::repeat_n(block.slice(0..BLOCK_BYTES), blocks).collect();
            if let Err(error) = file.write(parts, range.start, false).await {
                tracing::warn!(partition = %self.label, %error, "zeros ahead of the end were not written");
            }
        }
        let mut state = self.state.borrow_mut();
        state.zeroing = None;
        if state.active().base == base {
            // As if they had been: the next ones are tried further on.
            state.space.zeroed = range.end;
        }
    }

    /// Makes the next segment's file ahead, with `bytes` allocated, under a name that is not part of the log.
    pub(super) async fn prepare(self: Rc<Self>, bytes: u64) {
        let path = self.dir.join(names::PREPARED);
        let made = async {
            let disk = self.shard.env().disk();
            let file = match disk.open(&path, OpenMode::Create).await {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    disk.remove_file(&path).await?;
                    disk.open(&path, OpenMode::Create).await?
                }
                other => other?,
            };
            file.allocate(bytes).await?;
            file.sync_data().await?;
            Ok::<_, std::io::Error>(file)
        };
        let next_file = match made.await {
            Ok(file) => NextFile::Ready { file, bytes },
            Err(error) if is_no_space(&error) => {
                self.is_full();
                NextFile::None
            }
            Err(error) => {
                self.close_for_disk("making the next segment", &error);
                NextFile::None
            }
        };
        self.state.borrow_mut().next_file = next_file;
        self.room.notify();
    }

    /// Ends a roll: everything in the old segment is covered. Flushes it whole once more, names the new one and flushes
    /// the directory. Only then may writes go into the new segment: a crash before leaves no new segment, or an empty one.
    pub(super) async fn finish_roll(self: Rc<Self>, old: EnvFile<E>, name: String) {
        if let Err(error) = old.sync_data().await {
            return self.close_for_disk("the flush of a full segment", &error);
        }
        let disk = self.shard.env().disk();
        match disk.rename(&self.dir.join(names::PREPARED), &self.dir.join(&name)).await {
            Ok(()) => {}
            Err(error) if is_no_space(&error) => {
                // The directory cannot grow. Nothing has changed by that: it is tried again after a while.
                self.state.borrow_mut().rolling = Rolling::Old;
                return self.is_full();
            }
            Err(error) => return self.close_for_disk("naming the next segment", &error),
        }
        if let Err(error) = disk.sync_dir(&self.dir).await {
            return self.close_for_disk("flushing the directory", &error);
        }
        let mut state = self.state.borrow_mut();
        state.rolling = Rolling::No;
        state.space.full_at = None;
        self.has_space(&mut state);
        let index = state.segments.len() - 2;
        let old = &mut state.segments[index];
        old.needs_trim = true;
        old.needs_summary = true;
        state.chores.untidy = state.count_untidy();
        drop(state);
        self.room.notify();
    }
}
