use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, Read};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use corelane_log::env::{Arena, Chunk, Env};
use corelane_testkit::skip;
use glommio::{LocalExecutorBuilder, Placement};

use super::{Lane, REPORT_USAGE, Sent, ZeroCopy};
use crate::io::arena::ShardSlice;
use crate::io::env::ShardEnv;
use crate::io::socket::{Listener, Socket, listen, local_address};
use crate::limits;

const MIB: usize = 1 << 20;
/// An eighth of it may be out.
const ARENA_BYTES: usize = 32 * MIB;
/// Flags that no kernel knows: it answers as one does that is too old for ours.
const UNKNOWN_FLAGS: u16 = 1 << 15;

/// Runs a test on an executor, with this machine's kernel made to look far away.
fn run<F: Future<Output = io::Result<()>>>(flags: u16, test: impl FnOnce(World) -> F) {
    let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(64 << 10).make().expect("an executor");
    executor
        .run(async {
            let env = ShardEnv::new(ARENA_BYTES)?;
            let zero_copy = ZeroCopy::with_flags(env.ring(), env.arena(), flags);
            if !zero_copy.is_on() {
                skip("zero_copy", "no zero-copy sends here: an old kernel, or a low memlock limit");
                return Ok(());
            }
            let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 1)?.remove(0);
            let peer = TcpStream::connect(local_address(&listener)?)?;
            let socket = Listener::new(listener, Duration::from_secs(10)).accept().await?;
            let lane = zero_copy.lane_to(&socket, true);
            test(World { env, zero_copy, socket, lane, peer }).await
        })
        .expect("the test's operations succeed");
}

struct World {
    env: ShardEnv,
    zero_copy: ZeroCopy,
    socket: Socket,
    lane: Lane,
    peer: TcpStream,
}

impl World {
    /// Memory of the log with content that differs everywhere.
    fn filled(&self, bytes: usize) -> ShardSlice {
        let chunk = self.env.arena().allocate(bytes).expect("room");
        chunk.with_spare(0..bytes, |spare| spare.copy_from_slice(&content(bytes)));
        chunk.fill_to(bytes);
        chunk.slice(0..bytes)
    }

    async fn copy(&self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.socket.poll_send(context, &[IoSlice::new(bytes)], false)).await
    }

    /// Sends by reference until the socket takes no more; answers how many bytes went.
    async fn fill_socket(&self, slice: &ShardSlice) -> io::Result<usize> {
        let mut total = 0;
        loop {
            match self.lane.send(&slice.part(total..slice.len())).await? {
                Sent::Bytes(sent) => total += sent,
                Sent::Full => return Ok(total),
                Sent::Declined => panic!("declined after {total} bytes"),
            }
        }
    }

    async fn until_nothing_is_out(&self) {
        let began = Instant::now();
        while self.lane.has_out() || self.env.arena().pinned_bytes() > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "the kernel never let go of the memory");
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(4) as u32).flat_map(|number| (number ^ 0x5a5a_0000).to_le_bytes()).take(bytes).collect()
}

#[test]
fn copied_and_referred_bytes_arrive_in_the_order_in_which_they_were_sent_however_slow_the_reader() {
    run(REPORT_USAGE, |world| async move {
        let mut peer = world.peer.try_clone()?;
        let reader = thread::spawn(move || {
            let (mut all, mut part) = (Vec::new(), vec![0; 300_000]);
            loop {
                match peer.read(&mut part).expect("received") {
                    0 => return all,
                    count => all.extend_from_slice(&part[..count]),
                }
                thread::sleep(Duration::from_micros(200));
            }
        });
        let slice = world.filled(4 * MIB);
        let (mut expected, mut full) = (Vec::new(), 0);
        for round in 0..12 {
            let head = vec![round; 1 + 9_000 * usize::from(round)];
            let mut left = &head[..];
            while !left.is_empty() {
                let sent = world.copy(left).await?;
                left = &left[sent..];
            }
            expected.extend_from_slice(&head);
            let (mut at, end) = (usize::from(round) * 1_001, 4 * MIB - usize::from(round));
            expected.extend_from_slice(&slice[at..end]);
            while at < end {
                let rest = slice.part(at..end);
                at += match world.lane.send(&rest).await? {
                    Sent::Bytes(sent) => sent,
                    Sent::Full => {
                        full += 1;
                        world.copy(&rest[..rest.len().min(5_000)]).await?
                    }
                    Sent::Declined => world.copy(&rest).await?,
                };
            }
        }
        world.socket.finish();
        assert!(reader.join().expect("the reader ends") == expected, "what arrived is not what was sent");
        assert!(full > 0, "the socket was never full: the test does not test that");
        assert!(world.zero_copy.sent_bytes() > MIB as u64, "hardly anything was sent by reference");
        world.until_nothing_is_out().await;
        Ok(())
    });
}

#[test]
fn memory_is_held_until_the_peer_has_taken_it_and_the_ring_counts_as_idle_meanwhile() {
    run(REPORT_USAGE, |world| async move {
        let slice = world.filled(4 * MIB);
        // The window is filled first: what is sent into it is taken at once.
        let copied = world.copy(&slice).await?;
        let sent = world.fill_socket(&slice.part(copied..slice.len())).await?;
        assert!(sent > 0, "nothing was sent by reference into a socket with room");
        world.env.ring().idle().await;
        glommio::timer::sleep(Duration::from_millis(50)).await;
        assert!(world.lane.has_out(), "nobody took it");
        assert_eq!(world.env.arena().pinned_bytes(), 4 * MIB, "a chunk counts whole, and once");
        let mut received = vec![0; copied + sent];
        let mut peer = world.peer.try_clone()?;
        let reader = thread::spawn(move || peer.read_exact(&mut received).map(|()| received));
        world.until_nothing_is_out().await;
        assert!(reader.join().expect("the reader ends")? == slice[..copied + sent]);
        Ok(())
    });
}

#[test]
fn no_more_is_out_than_a_connection_and_a_shard_may_have() {
    run(REPORT_USAGE, |world| async move {
        let large = world.filled(5 * MIB);
        assert_eq!(world.lane.send(&large).await?, Sent::Declined, "its chunk alone is more than the shard's part");
        let half = world.filled(ARENA_BYTES / limits::ZERO_COPY_ARENA_PART / 2);
        let others = [world.filled(half.len()), world.filled(half.len())];
        let full = [&half, &others[0]].map(|slice| slice.clone().pin());
        assert_eq!(world.lane.send(&others[1]).await?, Sent::Declined, "a third half");
        assert!(matches!(world.lane.send(&half).await?, Sent::Bytes(_)), "what is pinned already costs no more");
        drop(full);
        world.lane.out.bytes.set(limits::ZERO_COPY_CONNECTION_BYTES_MAX);
        assert!(!world.lane.is_open());
        assert_eq!(world.lane.send(&half).await?, Sent::Declined);
        world.lane.out.bytes.set(0);
        Ok(())
    });
}

#[test]
fn a_peer_that_leaves_in_the_middle_ends_the_connection_and_gives_the_memory_back() {
    run(REPORT_USAGE, |mut world| async move {
        let slice = world.filled(2 * MIB);
        let copied = world.copy(&slice).await?;
        assert!(copied > 0);
        world.peer.read_exact(&mut [0; 1000])?;
        let (socket, mut result) = (world.socket.clone(), world.lane.send(&slice).await);
        // Unread bytes make it a reset.
        drop(std::mem::replace(&mut world.peer, TcpStream::connect(local_address(&listen_somewhere()?)?)?));
        let began = Instant::now();
        while let Ok(sent) = result {
            assert!(began.elapsed() < Duration::from_secs(20), "{sent:?}: the connection never ended");
            glommio::timer::sleep(Duration::from_millis(1)).await;
            result = world.lane.send(&slice).await;
        }
        let kind = result.expect_err("it ended").kind();
        assert!(matches!(kind, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{kind:?}");
        drop(socket);
        world.until_nothing_is_out().await;
        Ok(())
    });
}

fn listen_somewhere() -> io::Result<std::os::fd::OwnedFd> {
    Ok(listen(SocketAddr::from(([127, 0, 0, 1], 0)), 1)?.remove(0))
}

#[test]
fn a_connection_that_is_given_up_gives_its_memory_back_though_the_peer_takes_nothing() {
    run(REPORT_USAGE, |world| async move {
        let slice = world.filled(2 * MIB);
        world.copy(&slice).await?;
        while world.lane.send(&slice).await? != Sent::Full {}
        assert!(world.lane.has_out());
        let World { env, zero_copy, socket, lane, peer } = world;
        socket.drop_unsent_when_closed();
        socket.shutdown();
        let out = std::rc::Rc::clone(&lane.out);
        drop((socket, lane));
        let began = Instant::now();
        while out.bytes.get() > 0 || env.arena().pinned_bytes() > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "the kernel keeps the memory of a closed connection");
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
        drop((peer, zero_copy));
        Ok(())
    });
}

#[test]
fn a_send_whose_future_is_dropped_goes_on_and_keeps_its_socket_and_its_memory_as_long_as_it_needs_them() {
    run(REPORT_USAGE, |world| async move {
        let slice = world.filled(100_000);
        {
            let mut sending = pin!(world.lane.send(&slice));
            assert!(sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert!(world.lane.has_out() && world.env.ring().operations() == 1);
        let World { env, zero_copy, socket, lane, mut peer } = world;
        // Not submitted yet: the descriptor's number must not be given to another connection.
        drop((socket, lane, slice));
        env.ring().idle().await;
        let mut received = Vec::new();
        let reader = thread::spawn(move || peer.read_to_end(&mut received).map(|_| received));
        let began = Instant::now();
        while env.arena().pinned_bytes() > 0 || env.arena().bytes_used() > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "the kernel never let go of the memory");
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
        assert!(reader.join().expect("the reader ends")? == content(100_000));
        drop(zero_copy);
        Ok(())
    });
}

#[test]
fn a_ring_goes_without_waiting_for_peers_and_what_was_sent_by_reference_still_arrives_as_it_was() {
    let (mut peer, expected) = (None, std::cell::Cell::new(0));
    let began = Instant::now();
    run(REPORT_USAGE, |world| {
        peer = world.peer.try_clone().ok();
        let expected = &expected;
        async move {
            let slice = world.filled(4 * MIB);
            let copied = world.copy(&slice).await?;
            let sent = world.fill_socket(&slice.part(copied..slice.len())).await?;
            expected.set(copied + sent);
            Ok(())
        }
    });
    let Some(mut peer) = peer else { return };
    assert!(began.elapsed() < Duration::from_secs(5), "somebody waited for the peer");
    let mut received = Vec::new();
    peer.read_to_end(&mut received).expect("the kernel sends the rest");
    assert!(received == content(4 * MIB)[..expected.get()]);
}

#[test]
fn a_kernel_that_does_not_take_what_it_is_asked_turns_it_off_and_nothing_is_lost() {
    run(UNKNOWN_FLAGS, |mut world| async move {
        let slice = world.filled(100_000);
        assert!(world.lane.is_open());
        assert_eq!(world.lane.send(&slice).await?, Sent::Declined);
        assert!(!world.zero_copy.is_on() && !world.lane.is_open());
        world.until_nothing_is_out().await;
        assert_eq!(world.copy(&slice[..1000]).await?, 1000);
        let mut received = [0; 1000];
        world.peer.read_exact(&mut received)?;
        assert!(received == slice[..1000]);
        assert_eq!(world.zero_copy.sent_bytes(), 0);
        Ok(())
    });
}

#[test]
fn a_connection_for_which_the_kernel_copies_all_the_same_is_sent_to_by_copying() {
    run(REPORT_USAGE, |world| async move {
        assert!(!world.zero_copy.lane(&world.socket).is_open(), "loopback is not far away");
        let mut peer = world.peer.try_clone()?;
        let reader = thread::spawn(move || io::copy(&mut peer, &mut io::sink()));
        let slice = world.filled(64 << 10);
        for _ in 0..limits::ZERO_COPY_IN_VAIN_MAX {
            assert!(world.lane.is_open());
            while !matches!(world.lane.send(&slice).await?, Sent::Bytes(_)) {}
            world.until_nothing_is_out().await;
        }
        assert!(!world.lane.is_open(), "over loopback the kernel copies");
        world.socket.finish();
        reader.join().expect("the reader ends")?;
        Ok(())
    });
}
