//! Every bound of the log in one place, each with what happens when it is reached. What must fit into what is proved by
//! the assertions at the end, at compile time.

use std::time::Duration;

use corelane_proto::message;

use crate::env::BLOCK_BYTES;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

// ---- Sets and the write window -----------------------------------------------------------------------------------

/// The shortest message, in bytes: its header.
pub const MESSAGE_BYTES_MIN: u32 = message::HEADER_BYTES as u32;
/// The largest `set_bytes_max` (and so the largest `message_bytes_max`) that a topic may have, in bytes.
pub const SET_BYTES_LIMIT: u32 = 8 * MIB as u32;
/// What a wrapper may claim to unpack to, in bytes; more is refused.
pub const UNCOMPRESSED_BYTES_MAX: u32 = 32 * MIB as u32;
/// The write window W where nothing else is said, in bytes: no write is issued at or beyond durable end + W.
pub const UNFLUSHED_BYTES_DEFAULT: u64 = 16 * MIB;
/// The smallest W of a partition whose topics may have any allowed `set_bytes_max`: a set beyond the window could never
/// be flushed.
pub const UNFLUSHED_BYTES_MIN: u64 = SET_BYTES_LIMIT as u64 + BLOCK_BYTES as u64;

// ---- Segments ----------------------------------------------------------------------------------------------------

/// The smallest `segment_bytes`, in bytes; tests roll early with it.
pub const SEGMENT_BYTES_MIN: u64 = BLOCK_BYTES as u64;
/// The largest `segment_bytes`, in bytes.
pub const SEGMENT_BYTES_LIMIT: u64 = 64 * 1024 * MIB;
/// The first step of allocation ahead, in bytes: what an idle partition costs on the disk. Each further step doubles the
/// file ...
pub const ALLOCATE_BYTES_FIRST: u64 = 32 * KIB;
/// ... until the steps are this large, in bytes. A start reads so much behind the end of a partition.
pub const ALLOCATE_STEP_BYTES_MAX: u64 = 64 * MIB;
/// While commits are no larger than this, in bytes, blocks ahead of the end are written with zeros: a commit into blocks that
/// were written before has no metadata to flush. For larger ones that would cost as much as it gains ...
pub const ZEROS_COMMIT_BYTES_MAX: u64 = 16 * KIB;
/// ... once so many in a row were, since for a message now and then it would not pay either ...
pub const ZEROS_AFTER_COMMITS: u32 = 32;
/// ... so many bytes at a time ...
pub const ZEROS_STEP_BYTES: u64 = 256 * KIB;
/// ... once fewer than so many bytes of them are left.
pub const ZEROS_AHEAD_BYTES_MIN: u64 = 128 * KIB;
/// How long after `NO_SPACE` the next publish makes the disk be asked again.
pub const NO_SPACE_RETRY: Duration = Duration::from_millis(250);
/// A message boundary is remembered about once in so many bytes; a seek walks at most so far (or over one set).
pub const STRETCH_BYTES: u64 = 64 * KIB;
/// The active segment's summary is written again when it has grown by so many bytes, so that after a crash its inside need
/// not be scanned from its base.
pub const SUMMARY_STEP_BYTES: u64 = 64 * MIB;
/// Summaries of closed segments that a partition keeps in memory; the one wanted least recently makes room.
pub const SUMMARIES_LOADED_MAX: usize = 4;
/// A summary file is never larger, in bytes; a larger one is rebuilt.
pub const SUMMARY_BYTES_MAX: usize = 64 * MIB as usize;
/// Files of closed segments that one shard keeps open for readers; the one opened first is closed first.
pub const READ_FILES_MAX: usize = 256;

// ---- Writing -----------------------------------------------------------------------------------------------------

/// The largest commit that is one synchronous write, in bytes. Up to here it is cheaper than write and flush.
pub const SYNC_WRITE_BYTES_MAX: u64 = 128 * KIB;
/// While other writes are in flight, the next waits until so many bytes of whole blocks are there ...
pub const WRITE_BYTES_MIN: u64 = 512 * KIB;
/// ... and no write is larger than this, in bytes.
pub const WRITE_BYTES_MAX: u64 = MIB;
/// While other writes are in flight, a flush waits until it would cover so many bytes: each costs about as much whatever it
/// covers.
pub const FLUSH_BYTES_MIN: u64 = MIB;
/// A topic that is flushed by count alone is flushed after so long at the latest: a publish that waits for its flush, and a
/// reader, must not wait for messages that may never come.
pub const FLUSH_INTERVAL_BY_COUNT: Duration = Duration::from_secs(1);
/// Writes of one partition in flight; the next waits.
pub const WRITES_IN_FLIGHT_MAX: usize = 4;

// ---- Memory ------------------------------------------------------------------------------------------------------

/// A partition's tail grows in chunks that double from what is needed up to this, in bytes.
pub const TAIL_CHUNK_BYTES_MAX: usize = MIB as usize;
/// One part in so many of the arena is for what frees memory (padded blocks, reads); sets that arrive never take it.
pub const ARENA_RESERVE_PART: usize = 16;
/// When a tail's memory is given back, the partition keeps the part of a block that it ends with: up to so many bytes for all
/// of a shard, outside the arena. Where there are more it is read back when the partition is published to again.
pub const KEPT_BYTES_MAX: usize = 4 * MIB as usize;
/// What one read of a walk fetches, in bytes.
pub const WALK_BYTES: usize = 256 * KIB as usize;

// ---- Housekeeping ------------------------------------------------------------------------------------------------

/// How long a failed piece of housekeeping (an unlink, a summary) rests before it is tried again.
pub const HOUSEKEEPING_RETRY: Duration = Duration::from_secs(30);
/// No timer of a partition runs longer; then it looks again.
pub const TIMER_MAX: Duration = Duration::from_hours(1);
/// Small files that the log reads whole: identities and checkpoints, in bytes.
pub const SMALL_FILE_BYTES_MAX: usize = 64 * MIB as usize;

// ---- What must fit into what -------------------------------------------------------------------------------------

const _: () =
    assert!(UNFLUSHED_BYTES_DEFAULT >= SET_BYTES_LIMIT as u64 + BLOCK_BYTES as u64, "the window holds the largest set");
const _: () = assert!(UNFLUSHED_BYTES_DEFAULT >= UNFLUSHED_BYTES_MIN, "the default window is an allowed one");
const _: () = assert!(SET_BYTES_LIMIT <= message::MESSAGE_BYTES_LIMIT, "a set of one message can be parsed");
const _: () = assert!(UNCOMPRESSED_BYTES_MAX >= SET_BYTES_LIMIT, "what is not compressed can be wrapped");
const _: () = assert!(SET_BYTES_LIMIT as u64 <= SEGMENT_BYTES_LIMIT, "a segment can hold the largest set");
const _: () = assert!(SEGMENT_BYTES_MIN >= BLOCK_BYTES as u64, "a segment has a block");
const _: () = assert!(SEGMENT_BYTES_MIN <= SEGMENT_BYTES_LIMIT, "segments have a range");
const _: () = assert!(
    WRITES_IN_FLIGHT_MAX as u64 * WRITE_BYTES_MAX <= UNFLUSHED_BYTES_MIN,
    "all writes in flight lie within the smallest window"
);
const _: () = assert!(SYNC_WRITE_BYTES_MAX <= WRITE_BYTES_MIN, "a small commit is smaller than a streaming write");
const _: () = assert!(WRITE_BYTES_MIN <= WRITE_BYTES_MAX, "writes have a range");
const _: () = assert!(WRITE_BYTES_MIN.is_multiple_of(BLOCK_BYTES as u64), "writes are whole blocks");
const _: () = assert!(WRITE_BYTES_MAX.is_multiple_of(BLOCK_BYTES as u64), "writes are whole blocks");
const _: () = assert!(ZEROS_STEP_BYTES.is_multiple_of(BLOCK_BYTES as u64), "zeros are whole blocks");
const _: () = assert!(ALLOCATE_BYTES_FIRST.is_multiple_of(BLOCK_BYTES as u64), "allocation is whole blocks");
const _: () = assert!(ALLOCATE_BYTES_FIRST <= ALLOCATE_STEP_BYTES_MAX, "allocation grows");
const _: () = assert!(ALLOCATE_STEP_BYTES_MAX.is_multiple_of(BLOCK_BYTES as u64), "allocation is whole blocks");
const _: () = assert!(WALK_BYTES.is_multiple_of(BLOCK_BYTES), "reads are whole blocks");
const _: () = assert!(TAIL_CHUNK_BYTES_MAX.is_multiple_of(BLOCK_BYTES), "chunks are whole blocks");
const _: () = assert!(TAIL_CHUNK_BYTES_MAX as u64 >= WRITE_BYTES_MIN, "a streaming write fits a chunk");
const _: () = assert!(STRETCH_BYTES >= BLOCK_BYTES as u64, "an index is small beside what it tells of");
const _: () = assert!(ARENA_RESERVE_PART > 1, "most of the arena is for what arrives");
const _: () = assert!(FLUSH_INTERVAL_BY_COUNT.as_secs() < TIMER_MAX.as_secs(), "a flush is due before a timer ends");
