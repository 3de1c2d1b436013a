//! The rows: what is done to a broker, and which lines of the table follow from it.

use std::fs::File;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use crate::book::Book;
use crate::broker::{Broker, files_below};
use crate::consume;
use crate::first;
use crate::load::{self, Load, MESSAGE_BYTES, with_cpu};
use crate::publish::Offer;
use crate::rounds::Bench;

/// A row of the bench.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Whether it needs the log that is made at the beginning.
    pub(crate) reads_history: bool,
    pub(crate) measure: fn(&Bench, &mut Book) -> Result<(), String>,
}

const fn row(name: &'static str, measure: fn(&Bench, &mut Book) -> Result<(), String>) -> Row {
    Row { name, reads_history: false, measure }
}

const fn history_row(name: &'static str, measure: fn(&Bench, &mut Book) -> Result<(), String>) -> Row {
    Row { name, reads_history: true, measure }
}

/// All of them. What is compared with publishing alone comes behind it.
pub(crate) const ROWS: &[Row] = &[
    row("publish50", publish_one),
    row("both", both),
    row("publish50x8", publish_eight),
    row("publish50on1", publish_eight_on_one),
    row("many", many),
    row("publish1000", publish_large),
    row("publish1", publish_single),
    row("latency", latency),
    history_row("cold", cold),
    history_row("consume", resident),
    history_row("fanout", fan_out),
    history_row("start.killed", start_killed),
    row("start.empty", start_empty),
    row("memory", memory),
];

/// The arena that a broker has by default.
const ARENA_BYTES: u64 = 64 << 20;
/// Sets of 50 under way of one connection: 16 MiB, the broker's write window.
const WINDOW_50: &str = "--in-flight 1500";
/// When what a load leaves to be done is done, summaries and the like.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
/// How long a broker is watched that has nothing to do.
const IDLE: Duration = Duration::from_secs(3);
/// What is asked of history, in CPU-seconds for a GB.
const FETCH_CPU_PER_GB: f64 = 0.20;
/// Said when a bare sender cannot do it either.
const DEAR_SOCKET: &str = "a bare sender needs more than that here";
/// Said when the disk cannot take what is asked.
const SLOW_DISK: &str = "the disk does not take as much";

impl Bench {
    /// Runs something on a broker whose log is empty.
    fn on_empty<T>(&self, work: impl FnOnce(&Broker) -> Result<T, String>) -> Result<T, String> {
        let data = self.directory.join("empty");
        let broker = Broker::start(&self.binaries, &self.cores, &data)?;
        let outcome = work(&broker);
        broker.stop()?;
        std::fs::remove_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
        outcome
    }

    fn load(&self, broker: &Broker, arguments: &str) -> Result<Load, String> {
        load::run(&self.binaries, &self.cores, broker, arguments)
    }

    fn produce(&self, arguments: &str) -> Result<Load, String> {
        let arguments = format!("produce --duration {}s {arguments}", self.seconds);
        self.on_empty(|broker| self.load(broker, &arguments))
    }

    /// Prepared sets of 50 for as long as a row runs.
    fn sets_of_50(&self, connections: u32, partitions: u32, in_flight: u32) -> Offer {
        Offer { connections, partitions, set_messages: 50, in_flight, seconds: self.seconds }
    }

    fn offer(&self, connections: u32, partitions: u32, in_flight: u32) -> Result<Load, String> {
        let offer = self.sets_of_50(connections, partitions, in_flight);
        self.on_empty(|broker| load::offer(&self.cores, broker, offer))
    }

    fn history(&self) -> PathBuf {
        self.directory.join("history")
    }

    fn on_history<T>(&self, work: impl FnOnce(&Broker) -> Result<T, String>) -> Result<T, String> {
        let broker = Broker::start(&self.binaries, &self.cores, &self.history())?;
        let outcome = work(&broker);
        broker.stop()?;
        outcome
    }

    /// Takes the log out of the page cache.
    fn forget_history(&self) {
        for path in files_below(&self.history()) {
            if let Ok(file) = File::open(path) {
                // A file that is dropped from the cache too late only makes the row look better than it is.
                let _ = fadvise(&file, 0, None, Advice::DontNeed);
            }
        }
    }
}

/// The log that consumers read.
pub(crate) fn make_history(bench: &Bench) -> Result<(), String> {
    let messages = (bench.history_mib << 20) / MESSAGE_BYTES as u64;
    bench.on_history(|broker| {
        bench.load(broker, &format!("produce --set 1000 --create-partitions 1 --count {messages}")).map(drop)
    })
}

/// The reference for publishing, MB/s.
fn publish_limit(book: &Book) -> f64 {
    let limit = |id| book.last(id).unwrap_or(f64::NAN);
    limit("ref.disk_write").min(limit("ref.receiver"))
}

/// Notes a rate, and excuses it when the disk cannot take as much as is asked.
fn note_rate(book: &mut Book, id: &'static str, load: &Load, asked_m_per_s: f64) {
    book.note(id, load.published_per_s / 1e6);
    if book.last("ref.disk_write").is_some_and(|disk| disk < asked_m_per_s * MESSAGE_BYTES) {
        book.excuse(id, SLOW_DISK);
    }
}

/// Notes what a GB of history costs, and excuses it when a bare sender needs more than is asked.
fn note_fetch_cpu(book: &mut Book, id: &'static str, cpu_per_gb: f64) {
    book.note(id, cpu_per_gb);
    if book.last("ref.sender_cpu").is_some_and(|bare| bare > FETCH_CPU_PER_GB) {
        book.excuse(id, DEAR_SOCKET);
    }
}

/// The better of the two ways in which one connection published, in million messages a second.
fn publish_alone(book: &Book) -> Option<f64> {
    let (by_load, prepared) = (book.last("publish50.rate")?, book.last("publish50.prepared")?);
    Some(by_load.max(prepared))
}

/// By the load generator, as its users would, and with prepared sets, for which the load has next to nothing to do.
fn publish_one(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let load = bench.produce(&format!("--set 50 --create-partitions 1 {WINDOW_50}"))?;
    note_rate(book, "publish50.rate", &load, 3.0);
    let load = bench.offer(1, 1, 1500)?;
    book.note("publish50.prepared", load.published_per_s / 1e6);
    book.note("publish50.ratio", load.published_mb_per_s() / publish_limit(book));
    book.note("publish50.cpu", load.cpu_s / load.published_gb());
    Ok(())
}

fn publish_eight(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let load = bench.offer(8, 8, 374)?;
    book.note("publish50x8.rate", load.published_per_s / 1e6);
    book.note("publish50x8.ratio", load.published_mb_per_s() / publish_limit(book));
    book.note("publish50x8.cpu", load.cpu_s / load.published_gb());
    Ok(())
}

fn publish_eight_on_one(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let load = bench.offer(8, 1, 374)?;
    book.note("publish50on1.rate", load.published_per_s / 1e6);
    book.note("publish50on1.ratio", load.published_mb_per_s() / publish_limit(book));
    Ok(())
}

fn publish_large(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let load = bench.produce("--set 1000 --create-partitions 1 --in-flight 75")?;
    note_rate(book, "publish1000.rate", &load, 4.0);
    Ok(())
}

fn publish_single(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let load = bench.produce("--set 1 --create-partitions 1 --in-flight 4096")?;
    book.note("publish1.rate", load.published_per_s / 1e6);
    book.note("publish1.cpu", load.cpu_s / load.published * 1e6);
    Ok(())
}

/// A small window each; all of them together are more than the broker has memory for, so that it also pushes back.
fn many(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let load = bench.on_empty(|broker| {
        // The files of 1,000 young partitions grow in small steps, each with a flush: that is over when they are measured.
        load::offer(&bench.cores, broker, bench.sets_of_50(1000, 1000, 8))?;
        load::offer(&bench.cores, broker, bench.sets_of_50(1000, 1000, 8))
    })?;
    book.note("many.rate", load.published_per_s / 1e6);
    book.note("many.cpu", load.cpu_s / load.published_gb());
    if let Some(alone) = publish_alone(book) {
        book.note("many.ratio", load.published_per_s / 1e6 / alone);
    }
    Ok(())
}

fn both(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let load = bench.on_empty(|broker| load::offer_and_consume(&bench.cores, broker, bench.sets_of_50(1, 1, 1500)))?;
    book.note("both.rate", load.published_per_s / 1e6);
    book.note("both.consumed", load.consumed_per_s / 1e6);
    if let (Some(alone), Some(cpu)) = (publish_alone(book), book.last("publish50.cpu")) {
        book.note("both.ratio", load.published_per_s / 1e6 / alone);
        book.note("both.cpu", (load.cpu_s - cpu * load.published_gb()) / load.consumed_gb());
    }
    Ok(())
}

fn latency(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let arguments = format!("both --duration {}s --rate 20000 --set 1 --create-partitions 1", bench.seconds);
    let load = bench.on_empty(|broker| bench.load(broker, &arguments))?;
    book.note("latency.p50", load.end_to_end_p50_us);
    book.note("latency.p99", load.end_to_end_p99_us);
    if let (Some(p50), Some(p99)) = (book.last("ref.commit_p50"), book.last("ref.commit_p99")) {
        book.note("latency.p50_ratio", load.end_to_end_p50_us / p50);
        book.note("latency.p99_ratio", load.end_to_end_p99_us / p99);
    }
    Ok(())
}

fn cold(bench: &Bench, book: &mut Book) -> Result<(), String> {
    bench.forget_history();
    let (consumed, cpu_s) = bench.on_history(|broker| with_cpu(broker, || consume::iterate(&broker.address)))?;
    book.note("cold.rate", consumed.messages / consumed.seconds / 1e6);
    note_fetch_cpu(book, "cold.cpu", cpu_s / (consumed.bytes / 1e9));
    let limit = book.last("ref.disk_read").unwrap_or(f64::NAN).min(book.last("ref.sender").unwrap_or(f64::NAN));
    book.note("cold.ratio", consumed.mb_per_s() / limit);
    Ok(())
}

/// Consumed once before, so that what can lie in the page cache does.
fn resident(bench: &Bench, book: &mut Book) -> Result<(), String> {
    bench.on_history(|broker| {
        consume::drain(&broker.address, 1)?;
        let consumed = consume::iterate(&broker.address)?;
        book.note("consume.rate", consumed.messages / consumed.seconds / 1e6);
        let (drained, cpu_s) = with_cpu(broker, || consume::drain(&broker.address, 1))?;
        note_fetch_cpu(book, "drain.cpu", cpu_s / (drained.bytes / 1e9));
        if let Some(sender) = book.last("ref.sender") {
            book.note("consume.ratio", consumed.mb_per_s() / sender);
            book.note("drain.ratio", drained.mb_per_s() / sender);
        }
        Ok(())
    })
}

fn fan_out(bench: &Bench, book: &mut Book) -> Result<(), String> {
    bench.forget_history();
    let (one, one_cpu_s) = bench.on_history(|broker| with_cpu(broker, || consume::drain(&broker.address, 1)))?;
    bench.forget_history();
    bench.on_history(|broker| {
        let read_before = broker.read_bytes();
        let (eight, eight_cpu_s) = with_cpu(broker, || consume::drain(&broker.address, 8))?;
        book.note("fanout.cpu", (eight_cpu_s / eight.bytes) / (one_cpu_s / one.bytes));
        book.note("fanout.read", (broker.read_bytes() - read_before) / one.bytes);
        Ok(())
    })
}

fn start_empty(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let (ready, acknowledged) = bench.on_empty(|broker| {
        first::publish(&broker.address)?;
        Ok((broker.start, broker.age()))
    })?;
    book.note("start.empty", ready.as_secs_f64() * 1e3);
    book.note("start.first", acknowledged.as_secs_f64() * 1e3);
    Ok(())
}

/// Killed while it publishes, so that there is something to recover.
fn start_killed(bench: &Bench, book: &mut Book) -> Result<(), String> {
    let broker = Broker::start(&bench.binaries, &bench.cores, &bench.history())?;
    bench.load(&broker, "produce --set 50 --count 100000")?;
    drop(broker);
    let start = bench.on_history(|broker| Ok(broker.start))?;
    book.note("start.killed", start.as_secs_f64() * 1e3);
    Ok(())
}

fn memory(bench: &Bench, book: &mut Book) -> Result<(), String> {
    bench.on_empty(|broker| {
        let idle = broker.memory_mb().0 - broker.arena_mb(ARENA_BYTES);
        book.note("memory.idle", idle);
        bench.load(broker, "both --duration 2s --set 50 --create-partitions 8 --connections 8")?;
        book.note("memory.busy", broker.memory_mb().1 - broker.arena_mb(ARENA_BYTES));
        thread::sleep(SETTLED_AFTER);
        let before = broker.ran_s();
        thread::sleep(IDLE);
        book.note("idle.cpu", (broker.ran_s() - before) / IDLE.as_secs_f64() * 100.0);
        Ok(())
    })
}
