//! Answers without payload as they come from a socket: a buffer that is filled and taken apart in place.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use corelane_proto::frame::{FrameHeader, HEADER_BYTES, PROTO_BYTES_MAX};
use tokio::io::{AsyncRead, ReadBuf};

/// An answer without payload is no larger.
const FRAME_BYTES_MAX: u32 = PROTO_BYTES_MAX + 64;
/// Room that there is at least for the next read.
const ROOM_BYTES: usize = 16 << 10;

/// Received bytes that were not taken yet lie at `begin..end`.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Incoming {
    /// Reads once. `Ready(Ok(0))`: the other side has closed.
    pub(crate) fn poll_read(
        &mut self,
        socket: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.len() - self.end < ROOM_BYTES / 2 {
            // At most one incomplete frame is left, so little is moved.
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
            if self.bytes.len() < self.end + ROOM_BYTES {
                self.bytes.resize(self.end + ROOM_BYTES, 0);
            }
        }
        let mut room = ReadBuf::new(&mut self.bytes[self.end..]);
        ready!(Pin::new(socket).poll_read(cx, &mut room))?;
        let read = room.filled().len();
        self.end += read;
        Poll::Ready(Ok(read))
    }

    /// The next whole frame: its header and its protobuf message.
    pub(crate) fn next_frame(&mut self) -> io::Result<Option<(FrameHeader, &[u8])>> {
        let have = &self.bytes[self.begin..self.end];
        let Some(head) = have.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = FrameHeader::decode(head, FRAME_BYTES_MAX)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let frame_bytes = header.frame_bytes() as usize;
        if have.len() < frame_bytes {
            return Ok(None);
        }
        let proto = self.begin + HEADER_BYTES..self.begin + HEADER_BYTES + header.proto_bytes as usize;
        self.begin += frame_bytes;
        if self.begin == self.end {
            self.begin = 0;
            self.end = 0;
        }
        Ok(Some((header, &self.bytes[proto])))
    }
}
