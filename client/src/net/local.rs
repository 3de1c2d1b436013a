//! Connections to a broker on this machine.

use socket2::SockRef;
use tokio::net::TcpStream;

/// How what is sent keeps to what the network bears: by its window alone. Where the system's choice is one that paces (BBR), a
/// timer for every burst costs a fifth of the broker's core.
const UNPACED: &[u8] = b"reno";

/// If the other side is on this machine, as far as its address tells, nothing that is sent is paced.
pub(super) fn pace_nothing(stream: &TcpStream) {
    if let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr())
        && (peer.ip().to_canonical().is_loopback() || peer.ip() == local.ip())
    {
        // Where somebody forbids it nothing is lost but the gain.
        let _ = SockRef::from(stream).set_tcp_congestion(UNPACED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_sent_to_this_machine_is_not_paced() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        pace_nothing(&stream);
        let chosen = SockRef::from(&stream).tcp_congestion().unwrap();
        assert!(chosen.starts_with(UNPACED), "it is {}", String::from_utf8_lossy(&chosen));
    }
}
