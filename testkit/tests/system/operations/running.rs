//! What whoever starts and stops a broker is told.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use corelane_testkit::{Broker, BrokerOptions, TestDir, bin, run};

use crate::support::PATIENCE;

/// `check`, with none of the tests' own variables.
pub(super) fn check(args: &[&str]) -> Command {
    let mut command = Command::new(bin("corelane-broker"));
    command.arg("check").args(args);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CORELANE_") {
            command.env_remove(name);
        }
    }
    command
}

#[test]
fn the_service_manager_hears_that_the_broker_is_ready_and_that_it_stops() {
    let dir = TestDir::new("operations");
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let hear = || {
        let mut bytes = [0; 1024];
        let count = socket.recv(&mut bytes).expect("the broker says something");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let mut broker = Broker::start(BrokerOptions::new().env("NOTIFY_SOCKET", path.as_os_str()));
    let ready = hear();
    assert!(ready.lines().any(|line| line == "READY=1"), "{ready}");
    assert!(ready.contains(&format!("STATUS=serves clients on {}", broker.addr())), "{ready}");
    broker.stop();
    assert_eq!(hear().trim_end(), "STOPPING=1");
}

#[test]
fn settings_are_checked_without_starting_anything() {
    let dir = TestDir::new("operations");
    let file = dir.path().join("corelane.toml");
    let data = dir.path().join("data");
    std::fs::write(&file, format!("data = {data:?}\nbroker_id = 7\nretention = \"3d\"\n")).expect("written");
    let path = file.to_str().expect("a name");
    let good = run(&mut check(&["--config", path]), PATIENCE).success();
    assert!(good.text().starts_with("the settings are good; 3 of "), "{}", good.text());
    assert!(
        good.text().contains("\nbroker_id = 7\n") && good.text().contains("\nretention = \"3d\"\n"),
        "{}",
        good.text()
    );
    assert!(!data.exists(), "nothing is made");
    let from_environment = run(check(&["--config", path]).env("CORELANE_BROKER_ID", "8"), PATIENCE).success();
    assert!(from_environment.text().contains("\nbroker_id = 8\n"), "the environment counts as it does for a start");
    let none = dir.path().join("none");
    let none = none.to_str().expect("a name");
    for (wrong, expected) in [
        (&["--config", path, "--segment-bytes", "1KiB"][..], "segment_bytes: 1KiB is out of range"),
        (&["--config", path, "--http", "127.0.0.1:9400"], "http: 127.0.0.1:9400 is also what listen says"),
        (&["--config", path, "--log-level", "x=y=z"], "log_level: "),
        (&["--config", none], "cannot be read"),
        (&["--config", path, "--listen", "no host:9400"], "listen: the host \"no host\" has no address"),
        (&["--config", path, "--data", path], "corelane.toml is not a directory"),
        (&["--etcd", "http://a:1", "--etcd-user", "u", "--etcd-password-file", none], "etcd_password_file: "),
    ] {
        let refused = run(&mut check(wrong), PATIENCE);
        assert!(refused.status.code() == Some(1) && refused.stderr.contains(expected), "{wrong:?}: {}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "one line: {}", refused.stderr);
    }
    std::fs::write(&file, "retentoin = \"3d\"\n").expect("written");
    let refused = run(&mut check(&["--config", path]), PATIENCE);
    assert!(refused.stderr.contains("unknown setting retentoin (in "), "{}", refused.stderr);
}
