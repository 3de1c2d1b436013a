//! Connections to a broker on this machine.

use std::fs;
use std::sync::LazyLock;

use socket2::SockRef;
use tokio::net::TcpStream;

/// How what is sent keeps to what the network bears: by its window alone. Where the system's choice is one that paces (BBR), a
/// timer for every burst costs a fifth of the broker's core.
const UNPACED: &[u8] = b"reno";
/// What the kernel may hold of what the broker has sent, in bytes. Its own choice stays small while the receiver is the slower
/// one: then every little that is received makes it send the next little and wake the sender.
const RECEIVED_BYTES: usize = 2 << 20;
/// Whether the system lets a process ask for that much. Less would be less than the kernel's own choice can grow to.
static MAY_HOLD: LazyLock<bool> = LazyLock::new(|| {
    let most = fs::read_to_string("/proc/sys/net/core/rmem_max").ok().and_then(|most| most.trim().parse().ok());
    most.is_some_and(|most: usize| most >= RECEIVED_BYTES)
});

/// If the other side is on this machine, as far as its address tells, nothing that is sent is paced, and much may lie with the
/// kernel. Where somebody forbids either, nothing is lost but the gain.
pub(super) fn prepare(stream: &TcpStream) {
    if let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr())
        && (peer.ip().to_canonical().is_loopback() || peer.ip() == local.ip())
    {
        let socket = SockRef::from(stream);
        let _ = socket.set_tcp_congestion(UNPACED);
        if *MAY_HOLD {
            let _ = socket.set_recv_buffer_size(RECEIVED_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_sent_to_this_machine_is_not_paced_and_much_may_lie_there() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare(&stream);
        let chosen = SockRef::from(&stream).tcp_congestion().unwrap();
        assert!(chosen.starts_with(UNPACED), "it is {}", String::from_utf8_lossy(&chosen));
        let held = SockRef::from(&stream).recv_buffer_size().unwrap();
        assert!(held >= RECEIVED_BYTES || !*MAY_HOLD, "{held} bytes");
    }
}
