//! Machines that are not there: network namespaces around one that passes packets on between them, so that a test can let
//! nothing through between any two of them, silently, as a switch that has failed does.

use std::cell::RefCell;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::child::Process;
use crate::wait::wait_until;

/// Making a namespace takes milliseconds.
const MADE_WITHIN: Duration = Duration::from_secs(30);
/// Rules of this priority stand before the routes to other networks.
const RULE: &str = "10";

/// So many machines, each with an address of its own, that reach each other through one in the middle. All of it goes with
/// the last process in it.
#[derive(Debug)]
pub struct Network {
    middle: Process,
    nodes: Vec<Process>,
    cuts: RefCell<Vec<(usize, usize)>>,
}

/// Where a process's network namespace is.
fn namespace(process: &Process) -> String {
    format!("/proc/{}/ns/net", process.pid())
}

/// A namespace, held open by a process that does nothing.
fn hold() -> Process {
    let process = Process::start(Command::new("unshare").args(["--net", "sleep", "infinity"]));
    let ours = fs::read_link("/proc/self/ns/net").expect("a process has a namespace");
    let is_other = || fs::read_link(namespace(&process)).is_ok_and(|theirs| theirs != ours);
    wait_until("a network namespace", MADE_WITHIN, is_other);
    process
}

/// Runs a command of iproute2 in a process's namespace.
fn ip(within: &Process, words: &str) {
    let enter = format!("--net={}", namespace(within));
    let output = Command::new("nsenter").args([&enter, "ip"]).args(words.split_whitespace()).output();
    let output = output.expect("util-linux is there");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Network {
    /// Whether this process may make one.
    pub fn can_be_made() -> bool {
        let tried = "ip link set lo up && ip link add name here type veth peer name there && ip rule add pref 10 from all blackhole";
        let tried = Command::new("unshare").args(["--net", "sh", "-c", tried]).output();
        tried.is_ok_and(|output| output.status.success()) && Path::new("/usr/bin/nsenter").exists()
    }

    /// Makes one.
    #[track_caller]
    pub fn start(nodes: usize) -> Network {
        let middle = hold();
        ip(&middle, "link set lo up");
        let enter = format!("--net={}", namespace(&middle));
        let forward = ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"];
        let forwards = Command::new("nsenter").arg(&enter).args(forward).status().expect("util-linux is there");
        assert!(forwards.success(), "a namespace of one's own passes packets on");
        let mut network = Network { middle, nodes: Vec::new(), cuts: RefCell::default() };
        for node in 0..nodes {
            network.add(node);
        }
        network
    }

    fn add(&mut self, node: usize) {
        let (holder, middle) = (hold(), &self.middle);
        ip(middle, &format!("link add to-{node} type veth peer name eth0 netns {}", holder.pid()));
        ip(middle, &format!("addr add 10.77.{node}.1/24 dev to-{node}"));
        ip(middle, &format!("link set to-{node} up"));
        ip(&holder, "link set lo up");
        ip(&holder, &format!("addr add {}/24 dev eth0", address(node)));
        ip(&holder, "link set eth0 up");
        ip(&holder, &format!("route add default via 10.77.{node}.1"));
        self.nodes.push(holder);
    }

    /// The address of machine `node`.
    pub fn address(&self, node: usize) -> Ipv4Addr {
        address(node)
    }

    /// What stands before a command that is to run on machine `node`.
    pub fn wrapper(&self, node: usize) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net={}", namespace(&self.nodes[node]))]
    }

    /// Moves the calling thread, and those that it starts from now on, to the machine in the middle, which reaches all
    /// others whatever is cut.
    pub fn enter(&self) {
        enter(&self.middle);
    }

    /// Does something on machine `node`, on a thread of its own.
    pub fn within<T: Send>(&self, node: usize, work: impl FnOnce() -> T + Send) -> T {
        let holder = &self.nodes[node];
        let on_node = || {
            enter(holder);
            work()
        };
        std::thread::scope(|scope| scope.spawn(on_node).join().expect("what is done there does not fail"))
    }

    /// Lets nothing through between two machines, in neither direction.
    pub fn cut(&self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            ip(&self.middle, &format!("rule add {}", rule(from, to)));
            self.cuts.borrow_mut().push((from, to));
        }
    }

    /// Lets everything through again.
    pub fn heal(&self) {
        for (from, to) in self.cuts.take() {
            ip(&self.middle, &format!("rule del {}", rule(from, to)));
        }
    }
}

/// Moves the calling thread to where a process is.
fn enter(process: &Process) {
    let namespace = File::open(namespace(process)).expect("the namespace of a process that runs");
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("whoever makes namespaces may enter them");
}

fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, u8::try_from(node).expect("few machines"), 2)
}

fn rule(from: usize, to: usize) -> String {
    format!("pref {RULE} from {} to {} blackhole", address(from), address(to))
}
