//! TCP ports that stay a test's own while its broker is down. They lie below the kernel's range for outgoing connections:
//! a client that reconnects to a port in that range can meet itself, and another's socket may take the port meanwhile.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rustix::fs::{FlockOperation, flock};

use crate::dir::scratch;

const LOWEST: u16 = 10_000;
const HIGHEST: u16 = 32_000;

/// A port on 127.0.0.1, reserved among test processes by a locked file until dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Reserves a free one.
    pub fn reserve() -> Port {
        let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let outgoing = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(HIGHEST);
        let highest = outgoing.clamp(LOWEST + 1_000, HIGHEST);
        let locks = scratch().join("ports");
        fs::create_dir_all(&locks).expect("the scratch directory can be written");
        for _ in 0..1_000 {
            let number = fastrand::u16(LOWEST..highest);
            let lock = File::create(locks.join(number.to_string())).expect("the scratch directory can be written");
            // Bound without SO_REUSEPORT, so this refuses a port on which anybody listens.
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
                && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok()
            {
                return Port { number, _lock: lock };
            }
        }
        panic!("no free port between {LOWEST} and {highest}");
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its address on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}
