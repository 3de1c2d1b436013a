//! Connections to a broker on this machine.

use std::fs;
use std::sync::LazyLock;

use socket2::SockRef;
use tokio::net::TcpStream;

/// How what is sent keeps to what the network bears: by its window alone. Where the system's choice is one that paces (BBR), a
/// timer for every burst costs a fifth of the broker's core.
const UNPACED: &[u8] = b"reno";
/// What the kernel may hold of what the broker has sent, in bytes; it doubles what is asked for. Its own choice stays small while the
/// receiver is the slower one: then every little that is received makes it send the next little and wake the sender.
const ASKED_BYTES: usize = 2 << 20;
/// The first kernel on which that was seen to help (major and minor number). Before 6.16 buffers grow by themselves while the
/// receiver is the slower one too, and some versions do not open the window to one that is asked for.
const HOLDS_SINCE: (u32, u32) = (6, 18);
/// Whether the system lets a process ask for that much.
static MAY_HOLD: LazyLock<bool> = LazyLock::new(|| {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default();
    let is_new = version(&read("kernel/osrelease")).is_some_and(|version| version >= HOLDS_SINCE);
    is_new && read("net/core/rmem_max").trim().parse().is_ok_and(|most: usize| most >= ASKED_BYTES)
});

/// The first two numbers of a kernel's release, `6.18.44-1-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// If the other side is on this machine, as far as its address tells, nothing that is sent is paced, and much may lie with the
/// kernel. Where somebody forbids either, nothing is lost but the gain.
pub(super) fn prepare(stream: &TcpStream) {
    if let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr())
        && (peer.ip().to_canonical().is_loopback() || peer.ip() == local.ip())
    {
        let socket = SockRef::from(stream);
        let _ = socket.set_tcp_congestion(UNPACED);
        if *MAY_HOLD {
            let _ = socket.set_recv_buffer_size(ASKED_BYTES);
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
        assert!(held >= ASKED_BYTES || !*MAY_HOLD, "{held} bytes");
    }
}
