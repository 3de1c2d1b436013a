//! Readers on other machines, to whom the broker sends its memory by reference: they read what was published, at the log's
//! end and behind it; and some take nothing, die or vanish while the kernel still holds what they were sent.

use std::process::Command;
use std::time::Duration;

use corelane_client::{Client, Start, TopicSettings};
use corelane_testkit::{Broker, BrokerOptions, Network, Process, bin, full, skip};

use crate::operations::Metrics;
use crate::support::{assert_run, create, eventually, next, number, numbers_of, publish_numbered, read_all, soon};

/// The broker's machine, and the one whose readers behave badly. The test itself is on a third.
const BROKER: usize = 0;
const OTHER: usize = 1;
const TOPIC: &str = "far";
const VALUE_BYTES: usize = 60_000;
/// A round is 12 MiB, beyond what sockets and windows hold.
const ROUND: u64 = 200;

fn rounds() -> u64 {
    if full() { 20 } else { 4 }
}

#[test]
fn readers_on_other_machines_get_what_was_published_whatever_becomes_of_the_others() {
    let test = "readers_on_other_machines_get_what_was_published_whatever_becomes_of_the_others";
    if !Network::can_be_made() {
        return skip(test, "network namespaces cannot be made here");
    }
    let network = Network::start(2);
    // Before there is a runtime, whose threads are to be there too.
    network.enter();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(read_from_afar(network));
}

async fn read_from_afar(network: Network) {
    let mut world = World::start(network).await;
    world.read_hot_and_behind().await;
    let sent = world.by_reference();
    println!("{} KiB were sent by reference", sent >> 10);
    assert_eq!(sent > 0, world.has_zero_copy(), "{sent} bytes were sent by reference");
    world.stall_and_die().await;
    world.vanish_before_the_stop().await;
}

struct World {
    network: Network,
    client: Client,
    broker: Broker,
    published: u64,
}

impl World {
    async fn start(network: Network) -> World {
        let options = BrokerOptions::new().shards(1).listen((network.address(BROKER), 9_400).into());
        let options = options.args(["--pin-shards", "false", "--arena-bytes", "32MiB"]);
        let broker = Broker::start(options.wrapper(network.wrapper(BROKER)));
        let builder = Client::builder().bootstrap(broker.addr().to_string());
        let client = soon("the client to connect", builder.build()).await.expect("the broker is in reach");
        create(&client, TOPIC, 1, TopicSettings::new().set_bytes_max(1 << 20)).await;
        World { network, client, broker, published: 0 }
    }

    fn has_zero_copy(&self) -> bool {
        self.broker.log().lines().any(|line| line.contains("\"zero_copy\":true"))
    }

    fn count(&self, metric: &str) -> u64 {
        let broker = &self.broker;
        self.network.within(BROKER, || Metrics::of(broker, "").count(metric, &[]))
    }

    fn by_reference(&self) -> u64 {
        self.count("corelane_zero_copy_sent_bytes_total")
    }

    async fn publish(&mut self) {
        let producer = self.client.producer().build().expect("a producer");
        let numbers = self.published..self.published + ROUND;
        publish_numbered(&producer, TOPIC, 0, numbers, VALUE_BYTES).await;
        self.published += ROUND;
    }

    async fn read_all(&self) {
        assert_run(&numbers_of(&read_all(&self.client, TOPIC).await), 0..self.published);
    }

    /// A consumer that follows the log while it is written, and then ones that read all of it.
    async fn read_hot_and_behind(&mut self) {
        let builder = self.client.consumer().topic(TOPIC).start(Start::Earliest);
        let mut hot = soon("the consumer to be built", builder.build()).await.expect("a consumer of the topic");
        let following = tokio::spawn(async move {
            for expected in 0..rounds() * ROUND {
                assert_eq!(number(&next(&mut hot).await.value), expected);
            }
        });
        for _ in 0..rounds() {
            self.publish().await;
        }
        soon("the consumer to be through", following).await.expect("it read what was published");
        for _ in 0..3 {
            self.read_all().await;
        }
    }

    /// A reader on the other machine that has read nothing and waits for news.
    async fn waiting_reader(&self) -> Process {
        eventually("the readers before it to go", async || self.count("corelane_long_polls") == 0).await;
        let mut command = Command::new("nsenter");
        command.args(self.network.wrapper(OTHER).into_iter().skip(1)).arg(bin("corelane"));
        command.args(["consume", TOPIC, "--from", "latest", "--broker", &self.broker.addr().to_string()]);
        let reader = Process::start(&command);
        eventually("a reader to wait", async || self.count("corelane_long_polls") > 0).await;
        reader
    }

    /// A reader takes nothing of what it has asked for, and is killed with all of it in between; nobody else notices.
    async fn stall_and_die(&mut self) {
        let mut reader = self.waiting_reader().await;
        reader.pause();
        let before = self.by_reference();
        self.publish().await;
        let sent = self.by_reference() - before;
        println!("{} KiB were sent by reference to a reader that takes nothing", sent >> 10);
        assert_eq!(sent > 0, self.has_zero_copy());
        self.read_all().await;
        reader.kill9();
        self.read_all().await;
    }

    /// A reader's machine vanishes with what it was sent not acknowledged: the stop does not wait for it.
    async fn vanish_before_the_stop(&mut self) {
        let reader = self.waiting_reader().await;
        self.network.cut(BROKER, OTHER);
        let before = self.by_reference();
        self.publish().await;
        assert_eq!(self.by_reference() > before, self.has_zero_copy());
        let took = self.broker.stop();
        assert!(took < Duration::from_secs(10), "the stop took {took:?}");
        drop(reader);
    }
}
