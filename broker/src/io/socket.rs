//! TCP sockets of a shard: listeners that share a port, streams that receive into two places at once and send many slices
//! with one call. What the socket takes or gives at once costs one system call; only waiting goes through the executor.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures_util::io::{AsyncRead, AsyncWrite};
use glommio::net::{TcpListener, TcpStream};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::{Domain, Protocol, SockRef, TcpKeepalive, Type};

use super::pipe::Pipe;
use crate::limits;

/// Connections that wait to be accepted; more are refused by the kernel.
const BACKLOG: i32 = 1024;
/// A peer that is silent for one part in so many of the time-out is probed ...
const KEEPALIVE_AFTER_PART: u32 = 2;
/// ... again and again, one part in so many apart.
const KEEPALIVE_INTERVAL_PART: u32 = 6;
/// What one wait for a socket that is full sends when it ends, in bytes.
const SEND_AFTER_WAIT_BYTES: usize = 64 << 10;
/// How what is sent to a peer on this machine keeps to what the network bears: by its window alone. Where the system's choice
/// is one that paces (BBR), a timer for every burst costs a fifth of the core.
const UNPACED: &[u8] = b"reno";
/// The first kernel on which a buffer that is asked for was seen to help (major and minor number). Before 6.16 buffers grow by
/// themselves while the receiver is the slower one too, and some versions do not open the window to one that is asked for.
const HOLDS_SINCE: (u32, u32) = (6, 18);
/// The largest receive buffer that a process may ask for, in bytes; 0: it should not.
static RECEIVED_BYTES_MAX: LazyLock<usize> = LazyLock::new(|| {
    let most = fs::read_to_string("/proc/sys/net/core/rmem_max").ok().and_then(|most| most.trim().parse().ok());
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if version(&release).is_some_and(|version| version >= HOLDS_SINCE) { most.unwrap_or(0) } else { 0 }
});
/// What is taken out of a pipe to wait with, in bytes: copied, so little.
const TAKEN_BYTES_MAX: usize = 16 << 10;

/// Makes `count` listeners on one address: the kernel spreads connections over them. Port 0 is chosen once for all.
///
/// # Errors
/// When the address cannot be had, also when another process listens there already.
pub fn listen(address: SocketAddr, count: usize) -> io::Result<Vec<OwnedFd>> {
    // Sharing a port would let a second broker take half of the first one's connections: ask for it alone first.
    let mut address = address;
    let alone = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    alone.set_reuse_address(true)?;
    alone.bind(&address.into())?;
    if let Some(bound) = alone.local_addr()?.as_socket() {
        address = bound;
    }
    drop(alone);
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        listeners.push(OwnedFd::from(socket));
    }
    Ok(listeners)
}

/// The address that a listener or a stream has on this side.
///
/// # Errors
/// When the system does not tell.
pub fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    SockRef::from(socket).local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// A shard's listener.
pub struct Listener {
    listener: TcpListener,
    peer_timeout: Duration,
}

impl Listener {
    /// Takes a listening socket over. Must be called on a glommio executor. `peer_timeout` is for its connections.
    pub fn new(socket: OwnedFd, peer_timeout: Duration) -> Self {
        // SAFETY: the descriptor is a listening socket that is given up here; the listener owns and closes it.
        Self { listener: unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) }, peer_timeout }
    }

    /// The next connection.
    ///
    /// # Errors
    /// What `accept` answers; with too many open files, trying again at once does not help.
    pub async fn accept(&self) -> io::Result<Socket> {
        let stream = self.listener.accept().await.map_err(io::Error::from)?;
        Socket::from_stream(stream, self.peer_timeout)
    }
}

/// A connected socket. Clones share it: one task receives, one sends.
#[derive(Clone)]
pub struct Socket(Rc<Stream>);

struct Stream {
    stream: RefCell<TcpStream>,
    /// Set when the last receive found less than it had room for: then the next one waits first.
    is_drained: Cell<bool>,
}

impl Socket {
    /// Takes a connected socket over, which another executor may have accepted. Must be called on a glommio executor.
    /// When the peer's machine answers nothing for `peer_timeout`, neither what was sent nor a probe in the silence, the
    /// connection ends with `TimedOut`: a sixth of that time later at most, or a second.
    ///
    /// # Errors
    /// When its options cannot be set.
    pub fn new(socket: OwnedFd, peer_timeout: Duration) -> io::Result<Self> {
        // SAFETY: the descriptor is a connected socket that is given up here; the stream owns and closes it.
        Self::from_stream(unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) }, peer_timeout)
    }

    fn from_stream(stream: TcpStream, peer_timeout: Duration) -> io::Result<Self> {
        let socket = Self(Rc::new(Stream { stream: RefCell::new(stream), is_drained: Cell::new(true) }));
        let options = socket.descriptor();
        let options = SockRef::from(&options);
        // Nobody but `poll_send_pipe` relies on it: the executor's own calls do not block either way.
        options.set_nonblocking(true)?;
        options.set_tcp_nodelay(true)?;
        // The kernel counts these two in whole seconds.
        let part = |parts| (peer_timeout / parts).max(Duration::from_secs(1));
        options.set_tcp_keepalive(
            &TcpKeepalive::new().with_time(part(KEEPALIVE_AFTER_PART)).with_interval(part(KEEPALIVE_INTERVAL_PART)),
        )?;
        // With this time-out set, it and not the number of probes decides when a silent peer is given up.
        options.set_tcp_user_timeout(Some(peer_timeout))?;
        options.set_tcp_notsent_lowat(limits::SEND_BUFFERED_BYTES_MAX as u32)?;
        if socket.is_peer_local() {
            // Where somebody forbids it nothing is lost but the gain.
            let _ = options.set_tcp_congestion(UNPACED);
        }
        Ok(socket)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        let raw = self.0.stream.borrow().as_raw_fd();
        // SAFETY: the stream owns the descriptor and lives as long as this borrow of it; nobody takes it out.
        unsafe { BorrowedFd::borrow_raw(raw) }
    }

    /// The other side's address, if it is still there.
    pub fn peer(&self) -> Option<SocketAddr> {
        SockRef::from(&self.descriptor()).peer_addr().ok()?.as_socket()
    }

    /// Whether the other side is on this machine, as far as its address tells: what is sent to it never leaves memory.
    pub fn is_peer_local(&self) -> bool {
        let local = SockRef::from(&self.descriptor()).local_addr().ok().and_then(|address| address.as_socket());
        self.peer().is_some_and(|peer| {
            let peer = peer.ip().to_canonical();
            peer.is_loopback() || local.is_some_and(|local| local.ip().to_canonical() == peer)
        })
    }

    /// Lets the kernel hold `bytes` bytes of what a peer on this machine has sent. Its own choice stays small while the receiver is
    /// the slower one: then every little that is received makes it send the next little and wake the sender, on the receiver's
    /// core. `false`: it is as it was, since the peer is elsewhere or the system does not let a process ask for that.
    pub fn hold_received(&self, bytes: usize) -> bool {
        // The kernel doubles what is asked for.
        let asked = bytes / 2;
        asked <= *RECEIVED_BYTES_MAX
            && self.is_peer_local()
            && SockRef::from(&self.descriptor()).set_recv_buffer_size(asked).is_ok()
    }

    /// The descriptor, for an operation that holds a clone of this socket for as long as the kernel may look it up.
    pub(super) fn raw(&self) -> RawFd {
        self.descriptor().as_raw_fd()
    }

    /// What the kernel has taken and the peer has not is dropped when the connection is closed, and the peer told so: else the
    /// kernel goes on offering it for as long as the peer answers, and keeps memory that it sends by reference.
    pub fn drop_unsent_when_closed(&self) {
        // An error would mean that it is gone already.
        let _ = SockRef::from(&self.descriptor()).set_linger(Some(Duration::ZERO));
    }

    /// A descriptor of the same connection, for another executor. What was not received yet is received there.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.descriptor().try_clone_to_owned()
    }

    /// Ends the connection in both directions: whoever receives or sends on it finds out at once.
    pub fn shutdown(&self) {
        // It may be closed by the peer already.
        let _ = SockRef::from(&self.descriptor()).shutdown(Shutdown::Both);
    }

    /// Ends receiving: whoever receives finds out at once.
    pub fn finish_receiving(&self) {
        let _ = SockRef::from(&self.descriptor()).shutdown(Shutdown::Read);
    }

    /// Says that nothing more will be sent.
    pub fn finish(&self) {
        let _ = SockRef::from(&self.descriptor()).shutdown(Shutdown::Write);
    }

    /// Receives into `first` and, what does not fit there, into `second`. `first` must have room. 0: the peer has
    /// finished.
    pub fn poll_receive(
        &self,
        context: &mut Context<'_>,
        first: &mut [u8],
        second: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let room = first.len() + second.len();
        if !self.0.is_drained.get() {
            let mut vectors = [IoSliceMut::new(first), IoSliceMut::new(second)];
            let mut control = RecvAncillaryBuffer::default();
            match rustix::net::recvmsg(self.descriptor(), &mut vectors, &mut control, RecvFlags::DONTWAIT) {
                Ok(received) => {
                    self.0.is_drained.set(received.bytes < room);
                    return Poll::Ready(Ok(received.bytes));
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        let polled = Pin::new(&mut *self.0.stream.borrow_mut()).poll_read(context, first);
        if let Poll::Ready(Ok(received)) = polled {
            self.0.is_drained.set(received < first.len());
        }
        polled
    }

    /// Sends from the front of `slices`, which must hold something; answers how many bytes went. When `more` follows at
    /// once, the last packet waits for it.
    pub fn poll_send(&self, context: &mut Context<'_>, slices: &[IoSlice<'_>], more: bool) -> Poll<io::Result<usize>> {
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        match rustix::net::sendmsg(self.descriptor(), slices, &mut SendAncillaryBuffer::default(), flags) {
            Ok(sent) => return Poll::Ready(Ok(sent)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Poll::Ready(Err(error.into())),
        }
        // The executor has no wait for room by itself: its write waits and sends.
        let first = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
        let first = &first[..first.len().min(SEND_AFTER_WAIT_BYTES)];
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_write(context, first)
    }

    /// Sends up to `bytes_max` bytes from the front of a pipe, which must hold some, without copying them. `taken` are
    /// bytes that were taken out of the pipe to wait for room with; they go first.
    pub fn poll_send_pipe(
        &self,
        context: &mut Context<'_>,
        pipe: &mut Pipe,
        taken: &mut BytesMut,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        if taken.is_empty() {
            match pipe.splice_to(self.descriptor(), bytes_max) {
                Ok(sent) => return Poll::Ready(Ok(sent)),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            // The executor has no wait for room by itself: its write of a few bytes waits and sends.
            taken.resize(TAKEN_BYTES_MAX, 0);
            let count = pipe.read(taken)?;
            taken.truncate(count);
        }
        let polled = Pin::new(&mut *self.0.stream.borrow_mut()).poll_write(context, taken);
        if let Poll::Ready(Ok(sent)) = polled {
            taken.advance(sent);
        }
        polled
    }
}

/// The first two numbers of a kernel's release, `6.18.44-1-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests;
