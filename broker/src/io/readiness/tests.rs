use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use glommio::{LocalExecutorBuilder, Placement};

use super::{Interest, Wait};
use crate::io::env::ShardEnv;
use crate::io::socket::{Listener, Socket, listen, local_address};

fn run<F: Future<Output = io::Result<()>>>(test: impl FnOnce(ShardEnv, Socket, TcpStream) -> F) {
    let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(64 << 10).make().expect("an executor");
    executor
        .run(async {
            let env = ShardEnv::new(2 << 20)?;
            let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 1)?.remove(0);
            let peer = TcpStream::connect(local_address(&listener)?)?;
            let socket = Listener::new(listener, env.ring(), Duration::from_secs(10)).accept().await?;
            test(env, socket, peer).await
        })
        .expect("the test's operations succeed");
}

/// Waits until there is something to receive.
async fn arrival(env: &ShardEnv, socket: &Socket) {
    let mut wait = Wait::default();
    poll_fn(|context| {
        if wait.0.is_none() {
            wait.begin(&env.ring().downgrade(), socket, Interest::Arrival, context);
        }
        wait.poll_over(context)
    })
    .await;
}

/// Lets the ring submit what is gathered, and take what comes of it.
async fn let_pass() {
    glommio::timer::sleep(Duration::from_millis(5)).await;
}

/// Far more than the completion queue has room for.
#[test]
fn everybody_is_told_however_many_wait() {
    run(|env, socket, mut peer| async move {
        let waiting: Vec<_> = (0..10_000)
            .map(|_| {
                let (env, socket) = (env.clone(), socket.clone());
                glommio::spawn_local(async move { arrival(&env, &socket).await })
            })
            .collect();
        let_pass().await;
        assert_eq!(env.ring().watches(), 10_000, "nothing has come");
        peer.write_all(b"!")?;
        for waiter in waiting {
            waiter.await;
        }
        assert_eq!(env.ring().watches(), 0);
        Ok(())
    });
}

#[test]
fn a_wait_that_is_given_up_holds_nothing_open() {
    run(|env, socket, mut peer| async move {
        for rests in [false, true] {
            let mut waiting = Box::pin(arrival(&env, &socket));
            assert!(futures_util::poll!(waiting.as_mut()).is_pending());
            if rests {
                let_pass().await;
            }
            drop(waiting);
            assert_eq!(env.ring().watches(), 1, "the kernel has not heard of it");
            let_pass().await;
            assert_eq!(env.ring().watches(), 0);
        }
        drop(socket);
        // The executor closes it.
        let_pass().await;
        peer.set_read_timeout(Some(Duration::from_secs(10)))?;
        assert_eq!(peer.read(&mut [0])?, 0, "it is closed");
        Ok(())
    });
}

#[test]
fn the_end_is_something_that_arrives() {
    run(|env, socket, peer| async move {
        let waiting = {
            let (env, socket) = (env.clone(), socket.clone());
            glommio::spawn_local(async move { arrival(&env, &socket).await })
        };
        let_pass().await;
        drop(peer);
        waiting.await;
        Ok(())
    });
    run(|env, socket, _peer| async move {
        let waiting = {
            let (env, socket) = (env.clone(), socket.clone());
            glommio::spawn_local(async move { arrival(&env, &socket).await })
        };
        let_pass().await;
        socket.finish_receiving();
        waiting.await;
        Ok(())
    });
}

/// A ring whose sockets are still waited for goes all the same, and closes them.
#[test]
fn a_ring_waits_for_no_socket() {
    let mut left = None;
    run(|env, socket, peer| {
        left = Some(peer);
        async move {
            let mut waiting = Box::pin(arrival(&env, &socket));
            assert!(futures_util::poll!(waiting.as_mut()).is_pending());
            let_pass().await;
            Ok(())
        }
    });
    assert_eq!(left.expect("set by the test").read(&mut [0]).expect("closed in order"), 0);
}
