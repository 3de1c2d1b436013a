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
use rustix::net::sockopt::set_tcp_congestion;
use rustix::time::{ClockId, clock_gettime};

use crate::cores::Cores;

/// Messages of a set, as in the row that is compared with it.
const SET_MESSAGES: u64 = 50;
/// The receiver's buffer: sets are received one behind the other until it is full, then from its front again.
const BUFFER_BYTES: usize = 4 << 20;
/// What broker and client choose between processes of one machine.
const UNPACED: &str = "reno";
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
    let _ = set_tcp_congestion(&other, UNPACED);
    Ok((one, other))
}

/// A connection on the loopback, set as the broker and the client set theirs: nothing paces what is sent.
pub(crate) fn connect(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    // As broker and client do, which go on without it.
    let _ = set_tcp_congestion(&socket, UNPACED);
    Ok(socket)
}

/// A set of the bench's messages.
fn set() -> Vec<u8> {
    let mut builder = SetBuilder::new();
    let value = [b'x'; 200];
    for index in 0..SET_MESSAGES {
        let message = MessageParts { value: Some(&value), timestamp_ms: index as i64, ..MessageParts::default() };
        builder.push(&message).expect("a small message is no larger than allowed");
    }
    builder.finish().to_vec()
}

/// Receives sets for `seconds`, on the broker's core, and checks every message.
pub(crate) fn receiver(cores: &Cores, seconds: u32) -> io::Result<Flow> {
    let (mut from, mut to) = pair()?;
    let set = set();
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
