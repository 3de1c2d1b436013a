//! Reading: pieces of the log as they lie in memory and in files, and bytes for whoever looks inside. Never beyond the
//! visible end. What was promised stays readable: a slice keeps its memory, a file its descriptor.

use std::io::ErrorKind;
use std::rc::Rc;

use corelane_proto::ids::Position;

use super::{Inner, Partition, count};
use crate::env::{BLOCK_BYTES, Chunk, Disk, Env, File, OpenMode};
use crate::error::ReadError;
use crate::plan::{ceil_block, floor_block};
use crate::shard::{EnvFile, EnvSlice, read_chunk};

/// A piece of the log.
pub enum Piece<E: Env> {
    /// It is in memory.
    Memory(EnvSlice<E>),
    /// It lies in a file.
    File {
        /// The segment's file.
        file: EnvFile<E>,
        /// Where in the file.
        offset: u64,
        /// How many bytes.
        bytes: usize,
    },
}

impl<E: Env> Piece<E> {
    /// Bytes of the piece.
    pub fn bytes(&self) -> usize {
        match self {
            Piece::Memory(slice) => slice.len(),
            Piece::File { bytes, .. } => *bytes,
        }
    }
}

/// Bytes that were promised to a reader, from a position on: they stay readable through this, whatever retention does
/// meanwhile. The space on the disk of segments that retention takes is given back when the last such promise is dropped.
pub struct Promise<E: Env> {
    inner: Rc<Inner<E>>,
    from: u64,
}

impl<E: Env> Promise<E> {
    /// As [`Partition::read`], of what was promised.
    pub async fn read(&self, at: Position, bytes_max: usize) -> Result<Vec<Piece<E>>, ReadError> {
        assert!(at.0 >= self.from, "bytes from {} on were promised, those at {at} were asked for", self.from);
        self.inner.read(at.0, bytes_max, true).await
    }
}

impl<E: Env> Drop for Promise<E> {
    fn drop(&mut self) {
        self.inner.state.borrow_mut().promises.end(self.from);
    }
}

/// A segment's file, to be opened.
struct Unopened {
    base: u64,
    path: std::path::PathBuf,
}

impl<E: Env> Partition<E> {
    /// The bytes of the log from `at` on, as pieces that lie back to back: at most `bytes_max` in all, possibly fewer, none
    /// at the visible end. Waits only to open a file.
    pub async fn read(&self, at: Position, bytes_max: usize) -> Result<Vec<Piece<E>>, ReadError> {
        self.inner.read(at.0, bytes_max, false).await
    }

    /// Promises the bytes from `from` on to a reader, as far as the log has them now.
    pub fn promise(&self, from: Position) -> Promise<E> {
        self.inner.state.borrow_mut().promises.begin(from.0);
        Promise { inner: Rc::clone(&self.inner), from: from.0 }
    }
}

impl<E: Env> Inner<E> {
    async fn read(&self, at: u64, bytes_max: usize, is_promised: bool) -> Result<Vec<Piece<E>>, ReadError> {
        loop {
            match self.pieces(at, bytes_max, is_promised)? {
                Ok(pieces) => return Ok(pieces),
                Err(unopened) => self.open_for_reading(&unopened).await?,
            }
        }
    }

    /// Opens the file of the closed segment at `base`, which is to be deleted, if bytes of it are promised. What cannot be
    /// opened now could not be read later either.
    pub(super) async fn open_promised(&self, base: u64) {
        let unopened = {
            let state = self.state.borrow();
            let index = state.segment_index(base);
            let segment = &state.segments[index];
            let is_wanted = segment.file.is_none() && state.promises.reach_below(state.segment_end(index));
            is_wanted.then(|| Unopened { base, path: self.dir.join(segment.name()) })
        };
        if let Some(unopened) = unopened
            && let Err(error) = self.open_for_reading(&unopened).await
        {
            tracing::warn!(partition = %self.label, "a reader cannot be sent what it was promised: {error}");
        }
    }

    fn pieces(
        &self,
        at: u64,
        bytes_max: usize,
        is_promised: bool,
    ) -> Result<Result<Vec<Piece<E>>, Unopened>, ReadError> {
        let state = self.state.borrow();
        let departed = if is_promised && state.ended.is_none() { state.promises.departed(at) } else { None };
        if let Some(departed) = departed {
            let bytes = (departed.end - at).min(bytes_max as u64) as usize;
            return Ok(Ok(vec![Piece::File { file: departed.file.clone(), offset: at - departed.base, bytes }]));
        }
        state.check_range(at)?;
        let to = state.durable.min(at.saturating_add(bytes_max as u64));
        let hot_from = state.tail.start(state.end);
        let mut pieces = Vec::with_capacity(2);
        let mut at = at;
        while at < to {
            if at >= hot_from {
                state.tail.slices(at, to, &mut |slice| pieces.push(Piece::Memory(slice)));
                break;
            }
            let index = state.segment_index(at);
            let segment = &state.segments[index];
            let Some(file) = segment.file.clone() else {
                if pieces.is_empty() {
                    return Ok(Err(Unopened { base: segment.base, path: self.dir.join(segment.name()) }));
                }
                break;
            };
            let piece_end = state.segment_end(index).min(to).min(hot_from).min(state.cut_at.unwrap_or(u64::MAX));
            if piece_end <= at {
                if pieces.is_empty() {
                    return Err(self.read_error(at, "the file was cut short; put it back and restart the broker"));
                }
                break;
            }
            pieces.push(Piece::File { file, offset: at - segment.base, bytes: (piece_end - at) as usize });
            at = piece_end;
        }
        Ok(Ok(pieces))
    }

    async fn open_for_reading(&self, unopened: &Unopened) -> Result<(), ReadError> {
        let opened = self.open_whole(unopened).await;
        let mut state = self.state.borrow_mut();
        let Some(segment) = state.closed_mut(unopened.base) else {
            // It was deleted meanwhile: the next look at the bounds says so.
            return Ok(());
        };
        match opened {
            Ok(file) => {
                segment.file = Some(file);
                drop(state);
                self.shard.opened_read_file(self.this.clone(), unopened.base);
                Ok(())
            }
            Err(error) => {
                drop(state);
                let missing = if error.kind() == ErrorKind::NotFound { " (it is missing; was it moved?)" } else { "" };
                let (what, reason) = (unopened.path.display().to_string(), format!("{error}{missing}"));
                count(&self.counters.unreadable_segments, 1);
                if self.unreadable.replace(Some(unopened.base)) != Some(unopened.base) {
                    tracing::error!(partition = %self.label, "{what} cannot be read: {reason}; the other segments are");
                }
                Err(ReadError::Disk { what, reason })
            }
        }
    }

    /// Opens a closed segment's file, which must hold all of it: what is promised to readers is read from it.
    async fn open_whole(&self, unopened: &Unopened) -> std::io::Result<EnvFile<E>> {
        let file = self.shard.env().disk().open(&unopened.path, OpenMode::Read).await?;
        let bytes = file.bytes().await?;
        let state = self.state.borrow();
        let at = state.segments.binary_search_by_key(&unopened.base, |segment| segment.base);
        let expected = at.map_or(0, |at| state.segment_end(at) - unopened.base);
        if bytes < expected {
            let reason = format!("it has {bytes} bytes, the segment {expected}: was it cut?");
            return Err(std::io::Error::new(ErrorKind::UnexpectedEof, reason));
        }
        Ok(file)
    }

    /// The bytes from `at` on, at least one and none at or beyond `to`, which must not lie beyond the visible end: from
    /// memory, or read from the file.
    pub(super) async fn bytes_at(&self, at: u64, to: u64) -> Result<EnvSlice<E>, ReadError> {
        assert!(at < to, "bytes below {to} were expected from {at} on");
        loop {
            let piece = match self.pieces(at, (to - at) as usize, false)? {
                Ok(pieces) => pieces.into_iter().next().expect("there are bytes below the visible end"),
                Err(unopened) => {
                    self.open_for_reading(&unopened).await?;
                    continue;
                }
            };
            let (file, offset, bytes) = match piece {
                Piece::Memory(slice) => return Ok(slice),
                Piece::File { file, offset, bytes } => (file, offset, bytes),
            };
            let from = floor_block(offset);
            let skip = (offset - from) as usize;
            let wanted = ceil_block((skip + bytes) as u64).min(self.shard.tuning().walk_bytes as u64) as usize;
            let read = read_chunk(&self.shard, &file, from, wanted.max(BLOCK_BYTES)).await;
            let (chunk, read) = read.map_err(|error| self.read_error(at, &error.to_string()))?;
            let until = read.min(skip + bytes);
            if until <= skip {
                return Err(self.read_error(at, "the file ends before the log does"));
            }
            return Ok(chunk.slice(skip..until));
        }
    }

    pub(super) fn read_error(&self, at: u64, reason: &str) -> ReadError {
        let state = self.state.borrow();
        let segment = &state.segments[state.segment_index(at.max(state.start()))];
        ReadError::Disk { what: self.dir.join(segment.name()).display().to_string(), reason: reason.to_owned() }
    }
}
