//! What waits to be written to a lane's socket: small pieces are gathered, large sets are written from where they were
//! encoded. With `acks = none` it also knows which sets were written whole.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWrite;

/// Sets up to this size are copied behind their heads; larger ones are written in place.
const GATHERED_BYTES_MAX: usize = 2 << 10;
/// Slices in one write.
const SLICES_MAX: usize = 64;

/// A set that nobody will answer: done when its last byte is written.
#[derive(Debug)]
pub(super) struct Unconfirmed<T> {
    begin: u64,
    end: u64,
    pub(super) what: T,
}

#[derive(Debug)]
pub(super) struct Outgoing<T> {
    chunks: VecDeque<Bytes>,
    /// The newest bytes, not yet a chunk.
    gathered: BytesMut,
    queued: u64,
    written: u64,
    unconfirmed: VecDeque<Unconfirmed<T>>,
}

impl<T> Default for Outgoing<T> {
    fn default() -> Self {
        Self { chunks: VecDeque::new(), gathered: BytesMut::new(), queued: 0, written: 0, unconfirmed: VecDeque::new() }
    }
}

impl<T> Outgoing<T> {
    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        (self.queued - self.written) as usize
    }

    /// Queues a frame: `head` writes its head, `set` follows.
    pub(super) fn push(&mut self, head: impl FnOnce(&mut BytesMut), set: &Bytes) {
        let before = self.gathered.len();
        head(&mut self.gathered);
        if set.len() <= GATHERED_BYTES_MAX {
            self.gathered.extend_from_slice(set);
            self.queued += (self.gathered.len() - before) as u64;
        } else {
            self.queued += (self.gathered.len() - before + set.len()) as u64;
            self.chunks.push_back(self.gathered.split().freeze());
            self.chunks.push_back(set.clone());
        }
    }

    /// Says that the frame pushed last, `frame_bytes` long, will not be answered.
    pub(super) fn push_unconfirmed(&mut self, frame_bytes: u64, what: T) {
        self.unconfirmed.push_back(Unconfirmed { begin: self.queued - frame_bytes, end: self.queued, what });
    }

    /// All bytes ever queued.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    /// The next set that was written whole.
    pub(super) fn pop_written(&mut self) -> Option<T> {
        let written = self.unconfirmed.front().is_some_and(|front| front.end <= self.written);
        if written { self.unconfirmed.pop_front().map(|unconfirmed| unconfirmed.what) } else { None }
    }

    pub(super) fn unconfirmed_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.unconfirmed.iter_mut().map(|unconfirmed| &mut unconfirmed.what)
    }

    /// After the connection broke: the sets that were not written whole, and whether they were begun.
    pub(super) fn into_unwritten(self) -> impl Iterator<Item = (T, bool)> {
        let written = self.written;
        self.unconfirmed.into_iter().map(move |unconfirmed| (unconfirmed.what, unconfirmed.begin < written))
    }

    /// Writes once. `Ready(Ok(0))`: there is nothing to write.
    pub(super) fn poll_write(
        &mut self,
        socket: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if !self.gathered.is_empty() {
            self.chunks.push_back(self.gathered.split().freeze());
        }
        if self.chunks.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(chunk);
            count += 1;
        }
        let written = ready!(Pin::new(socket).poll_write_vectored(cx, &slices[..count]))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.written += written as u64;
        let mut rest = written;
        while let Some(front) = self.chunks.front_mut() {
            if front.len() > rest {
                front.advance(rest);
                break;
            }
            rest -= front.len();
            self.chunks.pop_front();
        }
        Poll::Ready(Ok(written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// Takes so many bytes a write.
    struct Narrow(Vec<u8>, usize);
    impl AsyncWrite for Narrow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let taken = bytes.len().min(self.1);
            self.0.extend_from_slice(&bytes[..taken]);
            Poll::Ready(Ok(taken))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn bytes_leave_in_order_and_sets_are_confirmed_when_their_last_byte_left() {
        let mut outgoing = Outgoing::default();
        let mut expected = Vec::new();
        for (index, bytes) in [10_usize, 5000, 3, 2048, 2049].into_iter().enumerate() {
            let set = Bytes::from(vec![index as u8; bytes]);
            let before = outgoing.queued();
            outgoing.push(|head| head.extend_from_slice(b"head"), &set);
            outgoing.push_unconfirmed(outgoing.queued() - before, (index, expected.len() + 4 + bytes));
            expected.extend_from_slice(b"head");
            expected.extend_from_slice(&set);
        }
        assert_eq!(outgoing.bytes(), expected.len());
        let mut socket = Narrow(Vec::new(), 700);
        let mut cx = Context::from_waker(Waker::noop());
        let mut confirmed = 0;
        while outgoing.bytes() > 0 {
            let Poll::Ready(Ok(_)) = outgoing.poll_write(&mut socket, &mut cx) else { panic!("a write failed") };
            while let Some((index, end)) = outgoing.pop_written() {
                assert_eq!(index, confirmed);
                assert!(socket.0.len() >= end);
                confirmed += 1;
            }
        }
        assert_eq!((socket.0, confirmed), (expected, 5));
    }

    #[test]
    fn sets_not_written_whole_are_told_apart_from_those_not_begun() {
        let mut outgoing = Outgoing::default();
        for index in 0..3 {
            let set = Bytes::from(vec![0; 96]);
            outgoing.push(|head| head.extend_from_slice(b"head"), &set);
            outgoing.push_unconfirmed(100, index);
        }
        let mut socket = Narrow(Vec::new(), 150);
        let written = outgoing.poll_write(&mut socket, &mut Context::from_waker(Waker::noop()));
        assert!(matches!(written, Poll::Ready(Ok(150))));
        assert_eq!(outgoing.pop_written(), Some(0));
        assert_eq!(outgoing.pop_written(), None);
        assert_eq!(outgoing.into_unwritten().collect::<Vec<_>>(), [(1, true), (2, false)]);
    }
}
