//! One broker, then one member, that nothing reaches any more: from etcd, from the others, from both. Each on a machine
//! of its own, as far as the network goes; packets vanish, and nobody is told.

use std::net::SocketAddr;
use std::time::Duration;

use corelane_client::Client;
use corelane_testkit::{Broker, BrokerOptions, Etcd, Network, full, skip};

use super::world::{
    Manner, Member, Members, Publisher, assert_holds, catch_up, client_of, make_topic, now, read_topic, settle, soon,
};

const PARTITIONS: u32 = 6;
const LEASE: Duration = Duration::from_millis(1_500);
const MANNER: Manner = Manner { lease: LEASE, hold: Duration::ZERO, commit_every: 20 };

// The machines.
const ETCD: usize = 0;
const BROKERS: [usize; 2] = [1, 2];
const MEMBERS: [usize; 2] = [3, 4];

struct World {
    network: Network,
    members: Members,
    live: Vec<Member>,
    client: Client,
    // Dropped after what speaks to them.
    _brokers: Vec<Broker>,
    _etcd: Etcd,
}

fn address(network: &Network, node: usize, port: u16) -> SocketAddr {
    (network.address(node), port).into()
}

impl World {
    async fn start(network: Network) -> Self {
        let etcd = Etcd::start_at(address(&network, ETCD, 2_379), network.wrapper(ETCD));
        let broker = |id: usize| {
            let (endpoint, id_text) = (etcd.endpoint(), id.to_string());
            let options = BrokerOptions::new().shards(1).listen(address(&network, id, 9_400));
            let options = options.wrapper(network.wrapper(id)).args(["--etcd", &endpoint, "--cluster", "test"]);
            let options = options.args(["--broker-id", &id_text, "--pin-shards", "false", "--broker-lease", "2s"]);
            Broker::start(options.args(["--arena-bytes", "32MiB"]))
        };
        let brokers: Vec<Broker> = BROKERS.into_iter().map(broker).collect();
        let addresses = brokers.iter().map(|broker| broker.addr().to_string()).collect::<Vec<_>>().join(",");
        let client = client_of(addresses.clone()).await;
        make_topic(&client, PARTITIONS).await;
        let mut members = Members::new(addresses, MANNER);
        let live = MEMBERS.map(|node| members.start_in(&network.wrapper(node))).into();
        settle(&client, PARTITIONS, MEMBERS.len()).await;
        Self { network, members, live, client, _brokers: brokers, _etcd: etcd }
    }

    fn cut(&self, node: usize, from: &[usize]) {
        from.iter().filter(|other| **other != node).for_each(|other| self.network.cut(node, *other));
    }

    async fn heal(&self) {
        self.network.heal();
        settle(&self.client, PARTITIONS, MEMBERS.len()).await;
        tokio::time::sleep(LEASE / 2).await;
    }

    /// Of how many partitions a message came to a member since then.
    fn read_since(&self, began: u128) -> usize {
        let history = self.members.history();
        let is_read = |deliveries: &[(u64, u64, u128, u128)]| deliveries.last().is_some_and(|(.., at)| *at > began);
        let read = history.tenures.iter().filter(|(_, tenure)| is_read(&tenure.delivered));
        read.map(|((partition, _), _)| *partition).collect::<std::collections::BTreeSet<u32>>().len()
    }

    /// Waits until so many partitions are read, for a while at least: no more of them are.
    async fn expect_read(&self, partitions: usize, what: &str) {
        let began = now();
        tokio::time::sleep(LEASE).await;
        wait_for(what, || self.read_since(began) >= partitions).await;
        assert_eq!(self.read_since(began), partitions, "{what}");
    }
}

async fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    soon(what, waiting).await;
}

const OTHERS_OF_A_BROKER: [usize; 3] = [BROKERS[1], MEMBERS[0], MEMBERS[1]];
const LONG: Duration = LEASE.saturating_mul(2);

/// A broker cut from etcd only: what lies on it is published to and read, and members go on through the other one.
async fn broker_without_etcd(world: &World) {
    world.cut(BROKERS[0], &[ETCD]);
    tokio::time::sleep(LONG).await;
    world.expect_read(PARTITIONS as usize, "all partitions are read on").await;
    // The other broker knows; the one that is cut off answers late, and that it cannot tell.
    settle(&world.client, PARTITIONS, MEMBERS.len()).await;
    world.heal().await;
}

/// A broker that the others do not reach, but etcd does, or not even that: what lies on the other one is read on.
async fn broker_without_others(world: &World, also_without_etcd: bool) {
    world.cut(BROKERS[0], &OTHERS_OF_A_BROKER);
    if also_without_etcd {
        world.cut(BROKERS[0], &[ETCD]);
    }
    tokio::time::sleep(LONG).await;
    world.expect_read(PARTITIONS as usize / 2, "what lies on the other broker is read on").await;
    world.heal().await;
}

/// A member never speaks to etcd.
async fn member_without_etcd(world: &World) {
    let before = world.members.history().tenures.len();
    world.cut(MEMBERS[0], &[ETCD]);
    tokio::time::sleep(LONG).await;
    assert_eq!(world.members.history().tenures.len(), before, "nothing moved");
    world.heal().await;
}

/// A member that reaches no broker: the other one takes over, and it comes back as a new member.
async fn member_without_brokers(world: &World, also_without_etcd: bool) {
    world.cut(MEMBERS[0], &BROKERS);
    if also_without_etcd {
        world.cut(MEMBERS[0], &[ETCD]);
    }
    settle(&world.client, PARTITIONS, 1).await;
    tokio::time::sleep(LEASE).await;
    let cut_off = world.live[0].number;
    let owned = || world.members.history().owned_by(cut_off, now());
    wait_for("it to know that it has lost them", || owned().is_empty()).await;
    world.heal().await;
}

#[test]
fn a_broker_or_a_member_that_nothing_reaches_any_more_loses_what_it_must_and_nobody_else_does() {
    let test = "a_broker_or_a_member_that_nothing_reaches_any_more_loses_what_it_must_and_nobody_else_does";
    if Etcd::installed().is_none() {
        return skip(test, "no etcd; the Debian package etcd-server has it");
    }
    if !Network::can_be_made() {
        return skip(test, "network namespaces cannot be made here");
    }
    let network = Network::start(1 + BROKERS.len() + MEMBERS.len());
    // Before there is a runtime, whose threads are to be there too.
    network.enter();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(cut_and_heal(network));
}

async fn cut_and_heal(network: Network) {
    let world = World::start(network).await;
    let publisher = Publisher::start(&world.client, PARTITIONS, Duration::from_millis(20));
    tokio::time::sleep(LEASE / 2).await;
    broker_without_etcd(&world).await;
    broker_without_others(&world, true).await;
    member_without_brokers(&world, false).await;
    if full() {
        broker_without_others(&world, false).await;
        member_without_etcd(&world).await;
        member_without_brokers(&world, true).await;
    }
    let published = publisher.stop().await;
    catch_up(&world.client).await;
    let (topic, history) = (read_topic(&world.client).await, world.members.history());
    assert_holds(&topic, &published);
    assert_eq!(history.check(&topic), Vec::<String>::new());
    println!("{:?}", history.figures(&topic));
}
