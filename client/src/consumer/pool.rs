//! Buffers for received pieces, used again when the messages in them are gone: a fresh page costs more than what is done
//! with it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;

/// Buffers have a multiple of this, so that a piece with the rest of the one before it does not take twice the room.
const BUFFER_STEP_BYTES: usize = 64 << 10;

/// The free buffers of a consumer, bounded in bytes.
#[derive(Debug)]
pub(super) struct Pool {
    free: Mutex<Free>,
    free_bytes_max: usize,
}

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Pool {
    pub(super) fn new(free_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), free_bytes_max })
    }

    /// A buffer of at least `bytes` initialised bytes; what is in it means nothing.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        let size = bytes.max(1).next_multiple_of(BUFFER_STEP_BYTES);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = free.buffers.iter().rposition(|buffer| (size..=2 * size).contains(&buffer.len())) {
            let buffer = free.buffers.swap_remove(index);
            free.bytes -= buffer.len();
            return buffer;
        }
        drop(free);
        vec![0; size]
    }

    pub(super) fn give_back(&self, buffer: Vec<u8>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + buffer.len() <= self.free_bytes_max {
            free.bytes += buffer.len();
            free.buffers.push(buffer);
        }
    }

    /// The first `bytes` of a buffer as a view; the buffer comes back when the last view of it is gone.
    pub(super) fn lend(self: &Arc<Self>, buffer: Vec<u8>, bytes: usize) -> Bytes {
        Bytes::from_owner(Lent { buffer, bytes, pool: Arc::downgrade(self) })
    }
}

struct Lent {
    buffer: Vec<u8>,
    bytes: usize,
    pool: Weak<Pool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.give_back(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_its_last_view_is_gone_and_not_before() {
        let pool = Pool::new(1 << 20);
        let mut buffer = pool.take(100_000);
        assert_eq!(buffer.len(), 131_072);
        buffer[..3].copy_from_slice(b"abc");
        let view = pool.lend(buffer, 3);
        let part = view.slice(1..2);
        drop(view);
        assert_eq!(pool.free.lock().unwrap().bytes, 0);
        assert_eq!(&part[..], b"b");
        drop(part);
        assert_eq!(pool.free.lock().unwrap().bytes, 131_072);
        assert_eq!(pool.take(131_072).len(), 131_072);
        assert_eq!(pool.free.lock().unwrap().bytes, 0);
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let pool = Pool::new(100_000);
        pool.give_back(vec![0; 65_536]);
        pool.give_back(vec![0; 65_536]);
        assert_eq!(pool.free.lock().unwrap().bytes, 65_536);
    }
}
