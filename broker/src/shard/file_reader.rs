//! Reads of the log's files that are to be sent: into memory, within a bound for all connections of a shard together, so
//! that readers that lag leave room for what arrives; or, from segments that are closed, by reference to the page cache.

use std::future::Future;
use std::io;
use std::pin::Pin;

use bytes::BytesMut;
use corelane_log::Shard as LogShard;
use corelane_log::env::{BLOCK_BYTES, Chunk, File};
use futures_util::FutureExt;

use super::budget::{Budget, Held};
use crate::io::arena::{ShardChunk, ShardSlice};
use crate::io::disk::ShardFile;
use crate::io::env::ShardEnv;
use crate::io::pipe::{Pipe, Pipes};
use crate::limits;

/// Reads files within a bound of memory.
pub(super) struct FileReader {
    log: LogShard<ShardEnv>,
    memory: Budget,
    pipes: Pipes,
}

/// A read under way.
pub(super) type Reading = Pin<Box<dyn Future<Output = io::Result<Staged>>>>;

/// Bytes that were read and wait to be sent.
pub(super) enum Staged {
    /// In memory.
    Memory { slice: ShardSlice, _held: Held },
    /// In a pipe, behind those that were taken out of it.
    Pipe { pipe: Pipe, taken: BytesMut },
}

impl Staged {
    /// How many bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Memory { slice, .. } => slice.len(),
            Self::Pipe { pipe, taken } => taken.len() + pipe.bytes(),
        }
    }
}

/// The blocks of a file around some bytes of it.
struct Blocks {
    offset: u64,
    bytes: usize,
    /// Where those that are wanted begin, and how many there are.
    skip: usize,
    wanted: usize,
}

impl Blocks {
    fn around(offset: u64, wanted: usize) -> Self {
        let skip = (offset % BLOCK_BYTES as u64) as usize;
        let wanted = wanted.min(limits::READ_PIECE_BYTES);
        Self { offset: offset - skip as u64, bytes: (skip + wanted).next_multiple_of(BLOCK_BYTES), skip, wanted }
    }
}

impl FileReader {
    pub(super) fn new(log: LogShard<ShardEnv>, bytes_max: usize) -> Self {
        let least = limits::READ_PIECE_BYTES + 2 * BLOCK_BYTES;
        Self { log, memory: Budget::new(bytes_max.max(least)), pipes: Pipes::new(limits::PIPES_MAX) }
    }

    /// Completes while somebody waits for memory.
    pub(super) async fn until_memory_is_awaited(&self) {
        self.memory.until_awaited().await;
    }

    /// Whether somebody waits for memory.
    pub(super) fn is_memory_awaited(&self) -> bool {
        self.memory.is_awaited()
    }

    /// Reads up to `bytes` bytes at `offset`, at least one, unless the memory for them must be waited for: the reading may
    /// be left alone until its bytes are wanted, and whoever does not look cannot be given any.
    pub(super) fn try_start(&self, file: ShardFile, offset: u64, bytes: usize) -> Option<Reading> {
        if let Some(pipe) = self.pipe_for(&file, bytes) {
            return Some(Box::pin(fill(file, pipe, offset, bytes)));
        }
        let blocks = Blocks::around(offset, bytes);
        let held = self.memory.try_take(blocks.bytes)?;
        let chunk = self.log.allocate_for_reading(blocks.bytes).now_or_never()?;
        Some(Box::pin(read(file, chunk, blocks, held)))
    }

    /// Reads up to `bytes` bytes at `offset`, at least one, once there is memory for them.
    pub(super) async fn read(&self, file: ShardFile, offset: u64, bytes: usize) -> io::Result<Staged> {
        if let Some(pipe) = self.pipe_for(&file, bytes) {
            return fill(file, pipe, offset, bytes).await;
        }
        let blocks = Blocks::around(offset, bytes);
        let held = self.memory.take(blocks.bytes).await;
        let chunk = self.log.allocate_for_reading(blocks.bytes).await;
        read(file, chunk, blocks, held).await
    }

    fn pipe_for(&self, file: &ShardFile, bytes: usize) -> Option<Pipe> {
        if bytes >= limits::SPLICE_BYTES_MIN && file.can_fill() { self.pipes.lend() } else { None }
    }
}

async fn fill(file: ShardFile, pipe: Pipe, offset: u64, bytes: usize) -> io::Result<Staged> {
    let pipe = file.fill(pipe, offset, bytes).await?;
    if pipe.bytes() == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Staged::Pipe { pipe, taken: BytesMut::new() })
}

async fn read(file: ShardFile, chunk: ShardChunk, blocks: Blocks, held: Held) -> io::Result<Staged> {
    let read = file.read(&chunk, 0, blocks.bytes, blocks.offset).await?;
    let end = blocks.skip + blocks.wanted;
    if read < end {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Staged::Memory { slice: chunk.slice(blocks.skip..end), _held: held })
}
