//! A cluster under test: a real etcd and real brokers on it, each with its own way to etcd that can be cut, and if the test
//! likes, with one from its clients too.

use std::path::Path;
use std::process::Command;

use crate::broker::{Broker, BrokerOptions, StartFailure};
use crate::etcd::Etcd;
use crate::ports::Port;
use crate::proxy::Proxy;

/// The name of every cluster under test.
const NAME: &str = "test";
/// How long its brokers count as running after their last sign of life, in seconds.
const LEASE_S: u64 = 3;

/// An etcd and brokers 1, 2, ... on it. Everything is killed when dropped.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order.
    brokers: Vec<Broker>,
    ways: Vec<Proxy>,
    fronts: Vec<Front>,
    etcd: Etcd,
    has_fronts: bool,
    /// What every broker needs to speak to etcd, beside its address.
    args: Vec<String>,
}

/// The way from clients to a broker: the broker tells them the proxy's address as its own.
#[derive(Debug)]
struct Front {
    // Kept as long as the broker listens there.
    _port: Port,
    proxy: Proxy,
}

impl Cluster {
    /// Starts etcd and so many brokers. Panics where etcd is not installed: see [`Etcd::installed`].
    #[track_caller]
    pub fn start(brokers: usize) -> Cluster {
        Cluster::new(Etcd::start(&[]), brokers, false, &[])
    }

    /// The same, with TLS between brokers and etcd; both sides show this certificate, which this CA signed.
    #[track_caller]
    pub fn start_with_tls(brokers: usize, [ca, certificate, key]: [&Path; 3]) -> Cluster {
        let [ca, certificate, key] = [ca, certificate, key].map(|path| path.to_str().expect("a readable path"));
        let server = ["--cert-file", certificate, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", ca];
        let client = ["--etcd-ca", ca, "--etcd-cert", certificate, "--etcd-key", key];
        Cluster::new(Etcd::start(&server), brokers, false, &client)
    }

    /// The same, with a proxy between each broker and its clients: see [`front`](Cluster::front).
    #[track_caller]
    pub fn start_behind_proxies(brokers: usize) -> Cluster {
        Cluster::new(Etcd::start(&[]), brokers, true, &[])
    }

    #[track_caller]
    fn new(etcd: Etcd, brokers: usize, has_fronts: bool, args: &[&str]) -> Cluster {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        let mut cluster = Cluster { brokers: Vec::new(), ways: Vec::new(), fronts: Vec::new(), etcd, has_fronts, args };
        for _ in 0..brokers {
            cluster.add_broker();
        }
        cluster
    }

    /// Starts one more broker; returns its number.
    #[track_caller]
    pub fn add_broker(&mut self) -> u32 {
        let id = self.brokers.len() as u32 + 1;
        self.ways.push(Proxy::start(self.etcd.addr()));
        let mut options = self.options(id);
        if self.has_fronts {
            let port = Port::reserve();
            let proxy = Proxy::start(port.addr());
            options = options.listen(port.addr()).args(["--advertise", &proxy.addr().to_string()]);
            self.fronts.push(Front { _port: port, proxy });
        }
        let broker = Broker::start(options);
        self.brokers.push(broker);
        id
    }

    /// How broker `id` is started, its data directory and its ports aside.
    pub fn options(&self, id: u32) -> BrokerOptions {
        let scheme = self.etcd.endpoint();
        let (scheme, _) = scheme.split_once("://").expect("an endpoint is a URL");
        let etcd = format!("{scheme}://{}", self.way(id).addr());
        BrokerOptions::new()
            .shards(1)
            .args(["--etcd", &etcd, "--cluster", NAME, "--broker-id", &id.to_string()])
            .args(&self.args)
            .args(["--arena-bytes", "32MiB", "--pin-shards", "false", "--broker-lease", &format!("{LEASE_S}s")])
    }

    /// Starts another broker under the number of broker `id`, with options of the test's beside those of that one.
    pub fn try_start_as(
        &self,
        id: u32,
        change: impl FnOnce(BrokerOptions) -> BrokerOptions,
    ) -> Result<Broker, StartFailure> {
        Broker::try_start(change(self.options(id)))
    }

    /// The brokers' lease, in seconds.
    pub fn lease_s(&self) -> u64 {
        LEASE_S
    }

    /// The registry.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// The registry, to stop it and start it again.
    pub fn etcd_mut(&mut self) -> &mut Etcd {
        &mut self.etcd
    }

    /// A key of the cluster in etcd, by what follows the cluster's prefix.
    pub fn key(&self, relative: &str) -> String {
        format!("/corelane/{NAME}/{relative}")
    }

    /// Broker `id`.
    pub fn broker(&self, id: u32) -> &Broker {
        &self.brokers[id as usize - 1]
    }

    /// Broker `id`, to stop it and start it again.
    pub fn broker_mut(&mut self, id: u32) -> &mut Broker {
        &mut self.brokers[id as usize - 1]
    }

    /// Every broker's address, for clients.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<String> = if self.has_fronts {
            self.fronts.iter().map(|front| front.proxy.addr().to_string()).collect()
        } else {
            self.brokers.iter().map(|broker| broker.addr().to_string()).collect()
        };
        addresses.join(",")
    }

    /// The way from clients to broker `id`, of a cluster behind proxies.
    pub fn front(&self, id: u32) -> &Proxy {
        &self.fronts[id as usize - 1].proxy
    }

    /// The way of broker `id` to etcd.
    pub fn way(&self, id: u32) -> &Proxy {
        &self.ways[id as usize - 1]
    }

    /// Cuts broker `id` from etcd.
    pub fn cut_from_etcd(&self, id: u32) {
        self.way(id).refuse(true);
        self.way(id).cut();
    }

    /// The CLI, talking to broker `id` first.
    pub fn cli(&self, id: u32) -> Command {
        self.broker(id).cli()
    }
}
