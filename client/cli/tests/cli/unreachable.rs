//! Addresses behind which no broker is: every command says so, names the address and ends within its time-out.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use corelane_testkit::run;

use crate::{DEADLINE, corelane};

const COMMANDS: [&[&str]; 6] = [
    &["topic", "list"],
    &["topic", "create", "t"],
    &["cluster", "describe"],
    &["produce", "t", "--delivery-timeout", "2s"],
    &["consume", "t"],
    &["consume", "t", "--exit-at-end"],
];

/// Every command against `address`; the sentence must contain `cause`.
#[track_caller]
fn every_command_fails(address: &str, cause: &str) {
    for command in COMMANDS {
        let mut cli = corelane();
        cli.args(["--broker", address, "--timeout", "1s"]).args(command);
        let finished = run(&mut cli, DEADLINE);
        assert_eq!(finished.status.code(), Some(1), "{command:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(address), "{command:?}: {}", finished.stderr);
        assert!(finished.stderr.to_lowercase().contains(cause), "{command:?}: {}", finished.stderr);
        assert_eq!(finished.text(), "", "{command:?}");
        // A bound on hanging, not on speed: ten times the time-out.
        assert!(finished.took < Duration::from_secs(10), "{command:?} took {:?}", finished.took);
    }
}

/// A listener whose connections are each given to `serve`, on threads that nobody waits for.
fn serve(serve: fn(std::net::TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(connection));
        }
    });
    address
}

#[test]
fn a_closed_port() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    every_command_fails(&address.to_string(), "refused");
}

#[test]
fn a_port_that_accepts_and_says_nothing() {
    let silent = serve(|mut connection| {
        // Ends when the client gives up.
        let _ = connection.read_to_end(&mut Vec::new());
    });
    every_command_fails(&silent.to_string(), "no answer");
}

#[test]
fn another_service() {
    let web = serve(|mut connection| {
        let _ = connection.read(&mut [0; 64]);
        let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    });
    every_command_fails(&web.to_string(), "not a corelane broker");
}

#[test]
fn an_unknown_name() {
    every_command_fails("no-such-host.invalid:9400", "name");
}
