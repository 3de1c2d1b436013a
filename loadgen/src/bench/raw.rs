//! What a socket of this machine gives without a broker: a receiver that walks and checks what comes and keeps nothing,
//! and a sendfile sender to a receiver that discards.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use corelane_proto::message::MessageParts;
use corelane_proto::set::{Reserved, SetBuilder, SetLimits, check_set};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_tcp_congestion};
use rustix::time::{ClockId, clock_gettime};

use crate::cores::Cores;

/// Messages of a set, as in the row that is compared with it.
const SET_MESSAGES: u64 = 50;
/// The receiver's buffer: sets are received one behind the other until it is full, then from its front again.
const BUFFER_BYTES: usize = 4 << 20;
/// What broker and client choose between processes of one machine.
const UNPACED: &str = "reno";
/// What broker and client let lie with the kernel of what comes from the same machine.
const RECEIVED_BYTES: usize = 2 << 20;
/// What the sender sends at a time, and what a receiver that discards takes at a time.
const PIECE_BYTES: usize = 256 << 10;
/// The file that is sent, again and again.
const FILE_BYTES: usize = 64 << 20;
const LIMITS: SetLimits = SetLimits {
    message_bytes_max: 1 << 20,
    set_bytes_max: 8 << 20,
    uncompressed_bytes_max: 1 << 20,
    reserved: Reserved::Refuse,
};

/// What one side of a socket did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    pub(crate) mb_per_s: f64,
    /// CPU-seconds of its thread for a GB.
    pub(crate) cpu_per_gb: f64,
}

/// The clocks at the beginning.
struct Begun {
    at: Instant,
    cpu_s: f64,
}

impl Begun {
    fn now() -> Self {
        Self { at: Instant::now(), cpu_s: thread_cpu_s() }
    }

    fn flow(&self, bytes: u64) -> Flow {
        let (mb, seconds) = (bytes as f64 / 1e6, self.at.elapsed().as_secs_f64());
        Flow { mb_per_s: mb / seconds, cpu_per_gb: (thread_cpu_s() - self.cpu_s) / (mb / 1e3) }
    }
}

fn thread_cpu_s() -> f64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// A connected pair on the loopback.
fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    prepare(&other);
    Ok((one, other))
}

/// Sets a socket as broker and client set theirs, which go on without it: nothing paces what is sent, and much may lie with
/// the kernel where the system lets a process ask for it.
fn prepare(socket: &TcpStream) {
    let _ = set_tcp_congestion(socket, UNPACED);
    // A system that allows less would make it smaller than it can grow to; broker and client ask the kernel's version too.
    let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok().and_then(|most| most.trim().parse().ok());
    if most.is_some_and(|most: usize| most >= RECEIVED_BYTES) {
        let _ = set_socket_recv_buffer_size(socket, RECEIVED_BYTES);
    }
}

/// A connection on the loopback, set as the broker and the client set theirs.
pub(crate) fn connect(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    prepare(&socket);
    Ok(socket)
}

/// A set of the bench's messages.
pub(crate) fn set(messages: u64) -> Vec<u8> {
    let mut builder = SetBuilder::new();
    let value = [b'x'; 200];
    for index in 0..messages {
        let message = MessageParts { value: Some(&value), timestamp_ms: index as i64, ..MessageParts::default() };
        builder.push(&message).expect("a small message is no larger than allowed");
    }
    builder.finish().to_vec()
}

/// Receives sets for `seconds`, on the broker's core, and checks every message.
pub(crate) fn receiver(cores: &Cores, seconds: u32) -> io::Result<Flow> {
    let (mut from, mut to) = pair()?;
    let set = set(SET_MESSAGES);
    let set_bytes = set.len();
    let sets = set.repeat(PIECE_BYTES / set_bytes);
    cores.as_load();
    let sender = thread::spawn(move || while to.write_all(&sets).is_ok() {});
    cores.as_broker();
    let mut buffer = vec![0; BUFFER_BYTES / set_bytes * set_bytes];
    let (mut filled, mut checked, mut bytes) = (0, 0, 0_u64);
    let begun = Begun::now();
    let until = Duration::from_secs(u64::from(seconds));
    while begun.at.elapsed() < until {
        let end = buffer.len().min(filled + PIECE_BYTES);
        filled += from.read(&mut buffer[filled..end])?;
        while filled - checked >= set_bytes {
            check_set(&buffer[checked..checked + set_bytes], &LIMITS).map_err(io::Error::other)?;
            checked += set_bytes;
            bytes += set_bytes as u64;
        }
        if checked == buffer.len() {
            (filled, checked) = (0, 0);
        }
    }
    let flow = begun.flow(bytes);
    cores.as_load();
    drop(from);
    let _ = sender.join();
    Ok(flow)
}

/// Sends a file that lies in the page cache for `seconds`, from the broker's core, to a receiver that discards.
pub(crate) fn sender(cores: &Cores, directory: &Path, seconds: u32) -> io::Result<Flow> {
    let path = directory.join("sendfile");
    std::fs::write(&path, vec![b'x'; FILE_BYTES])?;
    let file = File::open(&path)?;
    let (mut from, to) = pair()?;
    cores.as_load();
    let discarding = thread::spawn(move || {
        let mut buffer = vec![0; PIECE_BYTES];
        while from.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
    });
    cores.as_broker();
    let (mut offset, mut bytes) = (0, 0_u64);
    let begun = Begun::now();
    let until = Duration::from_secs(u64::from(seconds));
    while begun.at.elapsed() < until {
        let sent = rustix::fs::sendfile(&to, &file, Some(&mut offset), PIECE_BYTES)?;
        bytes += sent as u64;
        if offset >= FILE_BYTES as u64 {
            offset = 0;
        }
    }
    let flow = begun.flow(bytes);
    cores.as_load();
    drop(to);
    let _ = discarding.join();
    std::fs::remove_file(&path)?;
    Ok(flow)
}
