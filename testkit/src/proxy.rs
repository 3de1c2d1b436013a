//! A TCP proxy between clients and a broker that delays, holds, swallows, truncates and cuts, as told.
//! Four threads a connection: in each direction one reads and one writes, with a bounded queue between them, so that a
//! delay adds latency without taking away throughput.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

const PIECE_BYTES: usize = 64 * 1024;
const QUEUE_PIECES: usize = 64;

/// Which way bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the broker.
    ToBroker,
    /// From the broker to clients.
    ToClient,
}

/// What happens to bytes of one direction, on all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// They pass.
    Pass,
    /// They pass this much later, in order.
    Delay(Duration),
    /// They wait here until the rule changes, and the sender with them once the buffers between are full.
    Hold,
    /// They vanish, and the sender does not notice.
    Swallow,
    /// So many more bytes pass, then every connection over which one more comes is cut: in the middle of a frame.
    CutAfter(u64),
    /// So many more bytes pass, the rest vanishes.
    SwallowAfter(u64),
}

/// A proxy on a port of 127.0.0.1 of its own. Dropping it cuts all connections.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    accepted: AtomicU64,
    closed: AtomicBool,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    refuse: bool,
    rules: [Rule; 2],
    /// Connections that may still be open; their threads own them.
    connections: Vec<Weak<Connection>>,
}

/// The two sockets of a proxied connection.
#[derive(Debug)]
struct Connection {
    client: TcpStream,
    broker: TcpStream,
}

impl Connection {
    fn cut(&self) {
        for stream in [&self.client, &self.broker] {
            // Fails when it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// From where to where bytes of `direction` go.
    fn ends(&self, direction: Direction) -> (&TcpStream, &TcpStream) {
        match direction {
            Direction::ToBroker => (&self.client, &self.broker),
            Direction::ToClient => (&self.broker, &self.client),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread of the proxy panics with the lock")
    }
}

impl Proxy {
    /// Starts one in front of `target`; everything passes.
    pub fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let state = State { target, refuse: false, rules: [Rule::Pass; 2], connections: Vec::new() };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            accepted: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &accepting));
        Proxy { addr, shared }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets what happens to bytes that pass in `direction` from now on.
    pub fn set(&self, direction: Direction, rule: Rule) {
        self.shared.state().rules[direction as usize] = rule;
        self.shared.changed.notify_all();
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        let mut state = self.shared.state();
        state.rules = [Rule::Pass; 2];
        state.refuse = false;
        self.shared.changed.notify_all();
    }

    /// Cuts every connection now, whatever is under way on it.
    pub fn cut(&self) {
        for connection in self.shared.state().connections.drain(..).filter_map(|weak| weak.upgrade()) {
            connection.cut();
        }
        self.shared.changed.notify_all();
    }

    /// Whether new connections are closed as soon as they come.
    pub fn refuse(&self, refuse: bool) {
        self.shared.state().refuse = refuse;
    }

    /// Sends connections that come from now on elsewhere.
    pub fn retarget(&self, target: SocketAddr) {
        self.shared.state().target = target;
    }

    /// How many connections have come so far, the refused ones included.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        self.cut();
        // Wakes the accepting thread; when that has gone already there is nothing to wake.
        let _ = TcpStream::connect(self.addr);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming().map_while(Result::ok) {
        if shared.closed.load(Ordering::Relaxed) {
            return;
        }
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let target = {
            let state = shared.state();
            if state.refuse {
                continue;
            }
            state.target
        };
        // A broker that is down: the client sees its connection closed at once.
        let Ok(broker) = TcpStream::connect(target) else { continue };
        for stream in [&client, &broker] {
            // Small frames must not wait for each other here.
            stream.set_nodelay(true).expect("a fresh socket takes options");
        }
        let connection = Arc::new(Connection { client, broker });
        let mut state = shared.state();
        state.connections.retain(|weak| weak.strong_count() > 0);
        state.connections.push(Arc::downgrade(&connection));
        drop(state);
        for direction in [Direction::ToBroker, Direction::ToClient] {
            let (pieces, queue) = sync_channel(QUEUE_PIECES);
            let (reading, writing) = (Arc::clone(&connection), Arc::clone(&connection));
            let shared = Arc::clone(shared);
            std::thread::spawn(move || read(reading.ends(direction).0, &pieces, direction, &shared));
            std::thread::spawn(move || write(writing.ends(direction).1, &queue));
        }
    }
}

/// A piece of the stream and when it may go on.
type Piece = (Instant, Vec<u8>);

/// Reads one direction and passes on what the rule of the moment lets through. When it ends, its writer goes on until
/// the queue is empty and then closes: behind a cut the receiver has got exactly the bytes that were let through.
fn read(mut from: &TcpStream, pieces: &SyncSender<Piece>, direction: Direction, shared: &Shared) {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer) else { return };
        let (passing, delay, cut_now) = decide(read as u64, direction, shared);
        let piece = buffer[..passing as usize].to_vec();
        if !piece.is_empty() && pieces.send((Instant::now() + delay, piece)).is_err() {
            return;
        }
        if cut_now {
            return;
        }
    }
}

/// How many of `read` bytes pass, how much later, and whether the connection is cut behind them. Waits while held.
fn decide(read: u64, direction: Direction, shared: &Shared) -> (u64, Duration, bool) {
    let mut state = shared.state();
    loop {
        let rule = &mut state.rules[direction as usize];
        match rule {
            Rule::Pass => return (read, Duration::ZERO, false),
            Rule::Delay(delay) => return (read, *delay, false),
            Rule::Swallow => return (0, Duration::ZERO, false),
            Rule::CutAfter(left) | Rule::SwallowAfter(left) => {
                let passing = read.min(*left);
                *left -= passing;
                let cut_now = passing < read && matches!(rule, Rule::CutAfter(_));
                return (passing, Duration::ZERO, cut_now);
            }
            Rule::Hold if shared.closed.load(Ordering::Relaxed) => return (0, Duration::ZERO, true),
            Rule::Hold => state = shared.changed.wait(state).expect("no thread of the proxy panics with the lock"),
        }
    }
}

/// Writes one direction. When its reader is done, or the receiver gone, the connection is closed both ways (the other
/// direction's reader sees it end): a half-closed connection is nothing that the protocol knows.
fn write(mut to: &TcpStream, queue: &Receiver<Piece>) {
    for (due, piece) in queue {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    // Fails when it is closed already.
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets, on one connection after another.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
            }
        });
        addr
    }

    fn ask(stream: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
        stream.write_all(bytes).unwrap();
        let mut answer = vec![0; bytes.len()];
        stream.read_exact(&mut answer).unwrap();
        answer
    }

    #[test]
    fn what_passes_is_unchanged_and_a_delay_adds_latency() {
        let proxy = Proxy::start(echo());
        let mut stream = TcpStream::connect(proxy.addr()).unwrap();
        assert_eq!(ask(&mut stream, b"hello"), b"hello");
        proxy.set(Direction::ToClient, Rule::Delay(Duration::from_millis(50)));
        let started = Instant::now();
        assert_eq!(ask(&mut stream, b"later"), b"later");
        assert!(started.elapsed() >= Duration::from_millis(50));
        assert_eq!(proxy.accepted(), 1);
    }

    #[test]
    fn a_cut_lets_exactly_so_many_bytes_through() {
        let proxy = Proxy::start(echo());
        let mut stream = TcpStream::connect(proxy.addr()).unwrap();
        proxy.set(Direction::ToClient, Rule::CutAfter(3));
        stream.write_all(b"abcdef").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"abc");
    }

    #[test]
    fn what_is_swallowed_is_gone_and_what_is_held_arrives_later() {
        let proxy = Proxy::start(echo());
        let mut stream = TcpStream::connect(proxy.addr()).unwrap();
        proxy.set(Direction::ToBroker, Rule::SwallowAfter(2));
        stream.write_all(b"abc").unwrap();
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ab");
        proxy.set(Direction::ToBroker, Rule::Hold);
        stream.write_all(b"de").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
        assert!(stream.read(&mut answer).is_err(), "held bytes arrived");
        stream.set_read_timeout(None).unwrap();
        proxy.heal();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"de");
    }

    #[test]
    fn a_cut_closes_and_a_refused_connection_ends_at_once() {
        let proxy = Proxy::start(echo());
        let mut stream = TcpStream::connect(proxy.addr()).unwrap();
        assert_eq!(ask(&mut stream, b"hello"), b"hello");
        proxy.refuse(true);
        proxy.cut();
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
        let mut refused = TcpStream::connect(proxy.addr()).unwrap();
        assert_eq!(refused.read(&mut [0]).unwrap_or(0), 0);
    }
}
