//! Reads of the log's files that are to be sent: into memory, within a bound for all connections of a shard together, so
//! that readers that lag leave room for what arrives; or, from segments that are closed, by reference to the page cache.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use bytes::BytesMut;
use corelane_log::Shard as LogShard;
use corelane_log::env::{BLOCK_BYTES, Chunk, File};

use crate::io::arena::ShardSlice;
use crate::io::disk::ShardFile;
use crate::io::env::ShardEnv;
use crate::io::pipe::{Pipe, Pipes};
use crate::io::signal::Signal;
use crate::limits;

/// Reads files within a bound of memory.
pub(super) struct FileReader {
    log: LogShard<ShardEnv>,
    memory: Rc<Memory>,
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

struct Memory {
    free_bytes: Cell<usize>,
    given_back: Signal,
}

/// A part of the bound, until dropped.
pub(super) struct Held {
    memory: Rc<Memory>,
    bytes: usize,
}

impl Memory {
    async fn take(self: Rc<Self>, bytes: usize) -> Held {
        while self.free_bytes.get() < bytes {
            self.given_back.wait().await;
        }
        self.free_bytes.set(self.free_bytes.get() - bytes);
        Held { memory: self, bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.free_bytes.set(self.memory.free_bytes.get() + self.bytes);
        self.memory.given_back.notify();
    }
}

impl FileReader {
    pub(super) fn new(log: LogShard<ShardEnv>, bytes_max: usize) -> Self {
        let least = limits::READ_PIECE_BYTES + 2 * BLOCK_BYTES;
        let memory = Memory { free_bytes: Cell::new(bytes_max.max(least)), given_back: Signal::default() };
        Self { log, memory: Rc::new(memory), pipes: Pipes::new(limits::PIPES_MAX) }
    }

    /// Reads up to `bytes` bytes at `offset`, at least one.
    pub(super) fn start(&self, file: ShardFile, offset: u64, bytes: usize) -> Reading {
        if bytes >= limits::SPLICE_BYTES_MIN
            && file.can_fill()
            && let Some(pipe) = self.pipes.lend()
        {
            return Box::pin(async move {
                let pipe = file.fill(pipe, offset, bytes).await?;
                if pipe.bytes() == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(Staged::Pipe { pipe, taken: BytesMut::new() })
            });
        }
        self.read(file, offset, bytes.min(limits::READ_PIECE_BYTES))
    }

    fn read(&self, file: ShardFile, offset: u64, bytes: usize) -> Reading {
        let (log, memory) = (self.log.clone(), Rc::clone(&self.memory));
        Box::pin(async move {
            let skip = (offset % BLOCK_BYTES as u64) as usize;
            let whole = (skip + bytes).next_multiple_of(BLOCK_BYTES);
            let held = memory.take(whole).await;
            let chunk = log.allocate_for_reading(whole).await;
            let read = file.read(&chunk, 0, whole, offset - skip as u64).await?;
            if read < skip + bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(Staged::Memory { slice: chunk.slice(skip..skip + bytes), _held: held })
        })
    }
}
