use std::future::poll_fn;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use bytes::BytesMut;
use corelane_log::env::{Disk, Env, OpenMode};
use corelane_testkit::TestDir;
use glommio::{LocalExecutorBuilder, Placement};

use super::{PIPE_BYTES, Pipe, Pipes};
use crate::io::disk::ShardFile;
use crate::io::env::ShardEnv;
use crate::io::socket::{Listener, Socket, listen, local_address};

/// Runs a test on an executor, with a file of `bytes` bytes that differ.
fn run<F: Future<Output = io::Result<()>>>(bytes: usize, test: impl FnOnce(ShardFile, Vec<u8>) -> F) {
    let dir = TestDir::new("pipe");
    let path = dir.path().join("file");
    let content: Vec<u8> = (0..bytes as u32 / 4).flat_map(|number| (number ^ 0x5a5a_0000).to_le_bytes()).collect();
    std::fs::write(&path, &content).expect("written");
    let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(64 << 10).make().expect("an executor");
    executor
        .run(async {
            let env = ShardEnv::new(2 << 20)?;
            let file = env.disk().open(&path, OpenMode::Read).await?;
            // It is gone for everybody else, as a segment that retention took is.
            std::fs::remove_file(&path)?;
            test(file, content).await?;
            env.ring().idle().await;
            io::Result::Ok(())
        })
        .expect("the test's operations succeed");
}

async fn connected() -> io::Result<(Socket, TcpStream)> {
    let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 1)?.remove(0);
    let peer = TcpStream::connect(local_address(&listener)?)?;
    Ok((Listener::new(listener, Duration::from_secs(10)).accept().await?, peer))
}

/// Sends all that is in the pipe; answers how often it had to wait for room.
async fn send_all(socket: &Socket, pipe: &mut Pipe) -> io::Result<usize> {
    let (mut taken, mut waits) = (BytesMut::new(), 0);
    while pipe.bytes() > 0 || !taken.is_empty() {
        poll_fn(|context| {
            let polled = socket.poll_send_pipe(context, pipe, &mut taken, 100_000);
            waits += usize::from(polled.is_pending());
            polled
        })
        .await?;
    }
    Ok(waits)
}

#[test]
fn a_file_goes_through_pipes_into_a_socket_byte_for_byte_however_slow_the_reader() {
    const BYTES: usize = 24 << 20;
    run(BYTES, |file, content| async move {
        let (socket, mut peer) = connected().await?;
        let reader = thread::spawn(move || {
            let mut received = vec![0; BYTES - 5];
            for part in received.chunks_mut(1 << 20) {
                peer.read_exact(part).expect("received");
                thread::yield_now();
            }
            received
        });
        let pipes = Pipes::new(2);
        // Begins inside a page, so that no pipe is filled to its last byte.
        let (mut offset, mut waits) = (5, 0);
        while offset < BYTES {
            let mut pipe = file.fill(pipes.lend().expect("one is free"), offset as u64, BYTES - offset).await?;
            assert!(pipe.bytes() > 0 && pipe.bytes() <= PIPE_BYTES);
            offset += pipe.bytes();
            waits += send_all(&socket, &mut pipe).await?;
        }
        assert!(waits > 0, "the socket was never full: the test does not test that");
        assert!(reader.join().expect("the reader ends") == content[5..]);
        Ok(())
    });
}

#[test]
fn pipes_are_bounded_and_only_empty_ones_come_back() {
    run(PIPE_BYTES, |file, _| async move {
        let pipes = Pipes::new(2);
        let (first, second) = (pipes.lend().expect("free"), pipes.lend().expect("free"));
        assert!(pipes.lend().is_none(), "two are lent");
        drop(first);
        let filled = file.fill(pipes.lend().expect("free again"), 0, 100).await?;
        assert_eq!(filled.bytes(), 100);
        drop((filled, second));
        for _ in 0..3 {
            let pipe = pipes.lend().expect("free again");
            assert_eq!(file.fill(pipe, 7, 10).await?.bytes(), 10, "an old pipe's bytes are not in it");
        }
        // A future that is dropped while the kernel works leaves its pipe to the operation.
        drop(file.fill(pipes.lend().expect("free"), 0, PIPE_BYTES));
        Ok(())
    });
}

#[test]
fn behind_the_end_of_a_file_there_is_nothing() {
    run(1000, |file, _| async move {
        let pipes = Pipes::new(1);
        assert_eq!(file.fill(pipes.lend().expect("free"), 990, 1000).await?.bytes(), 10);
        assert_eq!(file.fill(pipes.lend().expect("free"), 1000, 1000).await?.bytes(), 0);
        Ok(())
    });
}
