//! The sizes and times by which a log works, where a test wants others than the broker: small histories must reach every
//! path. The defaults are the constants of `limits`, and nothing but tests changes them.

use std::time::Duration;

use crate::limits;

/// See the constant of the same name in [`limits`](crate::limits). All bytes are whole blocks but `sync_write_bytes_max`,
/// `flush_bytes_min`, `zeros_commit_bytes_max`, `zeros_ahead_bytes_min`, `kept_bytes_max` and `stretch_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the constants are documented")]
pub struct Tuning {
    pub sync_write_bytes_max: u64,
    pub write_bytes_min: u64,
    pub write_bytes_max: u64,
    pub writes_in_flight_max: usize,
    pub flush_bytes_min: u64,
    pub allocate_bytes_first: u64,
    pub allocate_step_bytes_max: u64,
    pub zeros_commit_bytes_max: u64,
    pub zeros_after_commits: u32,
    pub zeros_step_bytes: u64,
    pub zeros_ahead_bytes_min: u64,
    pub tail_chunk_bytes_max: usize,
    pub kept_bytes_max: usize,
    pub walk_bytes: usize,
    pub stretch_bytes: u64,
    pub summary_step_bytes: u64,
    pub summaries_loaded_max: usize,
    pub read_files_max: usize,
    pub no_space_retry: Duration,
    pub housekeeping_retry: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            sync_write_bytes_max: limits::SYNC_WRITE_BYTES_MAX,
            write_bytes_min: limits::WRITE_BYTES_MIN,
            write_bytes_max: limits::WRITE_BYTES_MAX,
            writes_in_flight_max: limits::WRITES_IN_FLIGHT_MAX,
            flush_bytes_min: limits::FLUSH_BYTES_MIN,
            allocate_bytes_first: limits::ALLOCATE_BYTES_FIRST,
            allocate_step_bytes_max: limits::ALLOCATE_STEP_BYTES_MAX,
            zeros_commit_bytes_max: limits::ZEROS_COMMIT_BYTES_MAX,
            zeros_after_commits: limits::ZEROS_AFTER_COMMITS,
            zeros_step_bytes: limits::ZEROS_STEP_BYTES,
            zeros_ahead_bytes_min: limits::ZEROS_AHEAD_BYTES_MIN,
            tail_chunk_bytes_max: limits::TAIL_CHUNK_BYTES_MAX,
            kept_bytes_max: limits::KEPT_BYTES_MAX,
            walk_bytes: limits::WALK_BYTES,
            stretch_bytes: limits::STRETCH_BYTES,
            summary_step_bytes: limits::SUMMARY_STEP_BYTES,
            summaries_loaded_max: limits::SUMMARIES_LOADED_MAX,
            read_files_max: limits::READ_FILES_MAX,
            no_space_retry: limits::NO_SPACE_RETRY,
            housekeeping_retry: limits::HOUSEKEEPING_RETRY,
        }
    }
}
