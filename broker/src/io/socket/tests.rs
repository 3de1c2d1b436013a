use std::future::poll_fn;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use glommio::{LocalExecutorBuilder, Placement};

use socket2::SockRef;

use super::{Listener, RECEIVED_BYTES_MAX, Socket, UNPACED, listen, local_address, version};

const PEER_TIMEOUT: Duration = Duration::from_secs(10);

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn run<F: Future<Output = io::Result<()>>>(test: impl FnOnce() -> F) {
    let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(64 << 10).make().expect("an executor");
    executor.run(async { test().await }).expect("the test's operations succeed");
}

async fn receive(socket: &Socket, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
    poll_fn(|context| socket.poll_receive(context, first, second)).await
}

async fn connected() -> io::Result<(Socket, std::net::TcpStream)> {
    let listener = listen(loopback(), 1)?.remove(0);
    let peer = std::net::TcpStream::connect(local_address(&listener)?)?;
    Ok((Listener::new(listener, PEER_TIMEOUT).accept().await?, peer))
}

#[test]
fn a_port_in_use_is_refused_though_listeners_share_it() {
    let listeners = listen(loopback(), 3).expect("three listeners");
    let address = local_address(&listeners[0]).expect("an address");
    assert!(listeners.iter().all(|listener| local_address(listener).expect("an address") == address));
    let error = listen(address, 1).expect_err("somebody listens there");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    drop(listeners);
    listen(address, 1).expect("free again");
}

#[test]
fn what_is_sent_to_this_machine_is_not_paced() {
    run(|| async {
        let (socket, _peer) = connected().await?;
        let chosen = SockRef::from(&socket.descriptor()).tcp_congestion()?;
        assert!(chosen.starts_with(UNPACED), "it is {}", String::from_utf8_lossy(&chosen));
        Ok(())
    });
}

#[test]
fn a_peer_on_this_machine_may_send_ahead_as_far_as_the_system_allows() {
    const BYTES: usize = 4 << 20;
    run(|| async {
        let taken = async |is_held: bool| {
            let (socket, mut peer) = connected().await?;
            let is_allowed = is_held && socket.hold_received(BYTES);
            assert!(is_allowed == (is_held && *RECEIVED_BYTES_MAX >= BYTES / 2));
            // With the smallest buffer of its own, what it can send lies with the receiver's kernel.
            SockRef::from(&peer).set_send_buffer_size(1)?;
            peer.set_write_timeout(Some(Duration::from_millis(200)))?;
            let (mut sent, piece) = (0, vec![0; 16 << 10]);
            while let Ok(count) = peer.write(&piece) {
                sent += count;
            }
            io::Result::Ok((sent, is_allowed))
        };
        let ((little, _), (much, is_allowed)) = (taken(false).await?, taken(true).await?);
        assert!(!is_allowed || (much > BYTES / 4 && much > 2 * little), "{much} bytes, {little} without");
        Ok(())
    });
}

#[test]
fn a_kernel_s_version_is_read() {
    let versions = ["6.18.44-fc-v669", "6.1-rc3", "7.0", "five", "6"].map(version);
    assert_eq!(versions, [Some((6, 18)), Some((6, 1)), Some((7, 0)), None, None]);
}

#[test]
fn bytes_arrive_in_both_places_in_order_and_the_end_is_seen() {
    run(|| async {
        let (socket, mut peer) = connected().await?;
        let writer = std::thread::spawn(move || {
            for number in 0..10_000_u32 {
                peer.write_all(&number.to_le_bytes())?;
            }
            io::Result::Ok(())
        });
        let (mut received, mut first, mut second) = (Vec::new(), [0; 33], [0; 1000]);
        loop {
            let count = receive(&socket, &mut first, &mut second).await?;
            if count == 0 {
                break;
            }
            received.extend_from_slice(&first[..count.min(33)]);
            received.extend_from_slice(&second[..count.saturating_sub(33)]);
        }
        let expected: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
        assert!(received == expected);
        writer.join().expect("the writer ends")
    });
}

#[test]
fn slices_are_sent_in_order_though_the_reader_is_slow() {
    run(|| async {
        let (socket, mut peer) = connected().await?;
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).map(|_| all)
        });
        let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut left = content.as_slice();
        while !left.is_empty() {
            let (head, rest) = left.split_at(left.len().min(100));
            let slices = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(rest)];
            let sent = poll_fn(|context| socket.poll_send(context, &slices, false)).await?;
            left = &left[sent..];
        }
        socket.finish();
        assert!(reader.join().expect("the reader ends")? == content);
        Ok(())
    });
}

#[test]
fn a_connection_can_go_on_under_another_descriptor() {
    run(|| async {
        let (socket, mut peer) = connected().await?;
        peer.write_all(b"hello, shard")?;
        let mut first = [0; 5];
        assert_eq!(receive(&socket, &mut first, &mut []).await?, 5);
        let duplicate = socket.duplicate()?;
        drop(socket);
        let moved = Socket::new(duplicate, PEER_TIMEOUT)?;
        let mut rest = [0; 100];
        let count = receive(&moved, &mut rest, &mut []).await?;
        assert_eq!(&rest[..count], b", shard");
        moved.shutdown();
        assert_eq!(peer.read(&mut rest)?, 0);
        Ok(())
    });
}
