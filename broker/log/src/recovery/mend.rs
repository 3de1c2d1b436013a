//! What recovery writes: the copy of a torn tail, the last bytes once more, zeros behind the end. Interrupted anywhere, the
//! next recovery comes to the same end.

use std::io;

use crate::env::{Arena, BLOCK_BYTES, Chunk, Env, File};
use crate::plan::{ceil_block, floor_block};
use crate::shard::{EnvFile, Purpose, Shard, read_chunk};

/// Bytes of zeros that are written from one piece of memory.
const ZERO_BYTES: usize = 64 << 10;
/// What one write carries.
const WRITE_BYTES: u64 = 1 << 20;
const _: () = assert!(ZERO_BYTES.is_multiple_of(BLOCK_BYTES) && WRITE_BYTES.is_multiple_of(BLOCK_BYTES as u64));

/// Writes the bytes from `from` up to `end` once more and zeros from there up to `zero_to`; all in bytes from the segment's
/// base. What was read may have come from the cache of a disk whose flush had failed: only what is written anew and
/// flushed is certain.
pub(super) async fn rewrite<E: Env>(
    shard: &Shard<E>,
    file: &EnvFile<E>,
    from: u64,
    end: u64,
    zero_to: u64,
) -> io::Result<()> {
    let whole_end = floor_block(end);
    let mut at = floor_block(from);
    while at < whole_end {
        let (chunk, read) = read_chunk(shard, file, at, (whole_end - at).min(ZERO_BYTES as u64 * 4) as usize).await?;
        let bytes = read - read % BLOCK_BYTES;
        if bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the segment ends before its last set does"));
        }
        file.write(vec![chunk.slice(0..bytes)], at, false).await?;
        at += bytes as u64;
    }
    let zero_to = ceil_block(zero_to);
    if whole_end < end {
        let (old, read) = read_chunk(shard, file, whole_end, BLOCK_BYTES).await?;
        let kept = (end - whole_end) as usize;
        if read < kept {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the segment ends before its last set does"));
        }
        let block = shard.allocate(BLOCK_BYTES, Purpose::Service).await;
        // Without zeros behind it (no room for the copy of the tail) the block stays as it is.
        let keep = if zero_to > whole_end { kept } else { read };
        block.with_spare(0..BLOCK_BYTES, |spare| {
            spare[..keep].copy_from_slice(&old.slice(0..keep));
            spare[keep..].fill(0);
        });
        block.fill_to(BLOCK_BYTES);
        file.write(vec![block.slice(0..BLOCK_BYTES)], whole_end, false).await?;
    }
    write_zeros(shard, file, ceil_block(end), zero_to).await
}

async fn write_zeros<E: Env>(shard: &Shard<E>, file: &EnvFile<E>, from: u64, to: u64) -> io::Result<()> {
    if from >= to {
        return Ok(());
    }
    let piece = ((to - from) as usize).min(ZERO_BYTES);
    let zeros = shard.allocate(piece, Purpose::Service).await;
    zeros.with_spare(0..piece, |spare| spare.fill(0));
    zeros.fill_to(piece);
    let mut at = from;
    while at < to {
        let bytes = (to - at).min(WRITE_BYTES);
        let mut parts = Vec::new();
        let mut rest = bytes as usize;
        while rest > 0 {
            let part = rest.min(piece);
            parts.push(zeros.slice(0..part));
            rest -= part;
        }
        file.write(parts, at, false).await?;
        at += bytes;
    }
    Ok(())
}

/// Whether the arena is large enough for sets of `set_bytes_max` bytes to be received and written at the same time.
pub(super) fn arena_holds<E: Env>(shard: &Shard<E>, set_bytes_max: u32) -> bool {
    let largest = (set_bytes_max as usize + BLOCK_BYTES).next_multiple_of(BLOCK_BYTES);
    2 * largest <= shard.arrival_bytes_max() && shard.env().arena().bytes_total() > 0
}
