//! The test kit: real brokers in directories of their own, the other binaries, a proxy that misbehaves, small disks, a
//! real etcd, a cluster on one, machines between which the network fails.
//! Everything here is blocking and std only, so that any test can use it from any runtime; nothing outlives the test
//! process. It knows the binaries by their command lines alone and depends on no other crate of the workspace.

mod binaries;
mod broker;
mod certificates;
mod child;
mod cluster;
mod command;
mod dir;
mod disk;
mod etcd;
mod http;
mod network;
mod ports;
mod process;
mod proxy;
mod skip;
mod wait;

pub use binaries::{bin, example};
pub use broker::{Broker, BrokerOptions, Stall, StartFailure};
pub use certificates::{has_openssl, make_certificate};
pub use child::Process;
pub use cluster::Cluster;
pub use command::{Finished, run, run_with_input};
pub use dir::TestDir;
pub use disk::{FaultyDisk, PowerCut, SmallDisk};
pub use etcd::{Etcd, EtcdKey};
pub use http::{HttpAnswer, http_get, http_put};
pub use network::Network;
pub use ports::Port;
pub use process::ProcessStats;
pub use proxy::{Direction, Proxy, Rule};
pub use skip::{full, sample_logs, skip};
pub use wait::{wait_for, wait_until};
