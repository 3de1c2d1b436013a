//! Two clusters, mirrors between them (an exact one too), a group and exports, while brokers and tools are killed at
//! random, by a seed. In the end every count agrees, and what was never killed has not grown. `CORELANE_SEED=n` repeats
//! the order of what goes wrong, `CORELANE_MINUTES=n` makes it so long (`WHAT=mirror make soak`); else it runs in `make
//! test-full` only, for a minute: the command line's own tests kill mirrors and exports too.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use corelane_testkit::{Broker, BrokerOptions, Finished, Process, TestDir, bin, full, run, run_with_input, wait_until};

/// Long, so that only what hangs runs into it: at the end of half an hour gigabytes are compared.
const PATIENCE: Duration = Duration::from_mins(10);
/// Partitions of the topic that is copied anew, and of the one that is copied exactly.
const TOPICS: [(&str, u32); 2] = [("t", 4), ("e", 2)];
/// What runs all the time. Those with an even number are never killed: they are to stay as large as they are.
const TOOLS: [Tool; 6] =
    [Tool::Mirror(0), Tool::Mirror(1), Tool::Exact(0), Tool::Exact(1), Tool::Reader(0), Tool::Reader(1)];
/// How often something goes wrong at least.
const TURNS_MIN: u32 = 4;
/// How much a tool that is never killed may grow.
const GROWTH_BYTES: u64 = 48 << 20;
const GROWTH_DESCRIPTORS: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tool {
    Mirror(u32),
    Exact(u32),
    Reader(u32),
}

impl Tool {
    fn is_steady(self) -> bool {
        let (Tool::Mirror(number) | Tool::Exact(number) | Tool::Reader(number)) = self;
        number % 2 == 0
    }
}

struct World {
    source: Broker,
    target: Broker,
    dir: TestDir,
    tools: BTreeMap<Tool, Process>,
    random: fastrand::Rng,
    published: u64,
    starts: u32,
    /// What the readers have printed, each in its lives.
    read: Vec<PathBuf>,
    counts: BTreeMap<String, u32>,
}

impl World {
    fn start(seed: u64) -> Self {
        let (source, target) = (Broker::start(BrokerOptions::new()), Broker::start(BrokerOptions::new()));
        for (topic, partitions) in TOPICS {
            ok(source.cli().args(["topic", "create", topic, "--partitions", &partitions.to_string()]));
        }
        let mut world = Self {
            source,
            target,
            dir: TestDir::new("chaos"),
            tools: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
            published: 0,
            starts: 0,
            read: Vec::new(),
            counts: BTreeMap::new(),
        };
        let at_work = TOOLS.map(|tool| (tool, world.launch(tool)));
        for (tool, at_work) in at_work {
            world.await_work(tool, &at_work);
        }
        world
    }

    /// Starts a tool and waits until it is at work: at its start it needs every broker.
    fn start_tool(&mut self, tool: Tool) {
        let at_work = self.launch(tool);
        self.await_work(tool, &at_work);
    }

    fn await_work(&mut self, tool: Tool, at_work: &Path) {
        wait_until("a tool to be at work", PATIENCE, || {
            let is_running = self.tools.get_mut(&tool).unwrap().is_running();
            assert!(is_running, "{tool:?} has ended: {}", self.last_words(tool));
            at_work.exists()
        });
        if matches!(tool, Tool::Reader(_)) {
            self.read.push(at_work.to_owned());
        }
    }

    /// Starts a tool; returns the file that there is once it is at work.
    fn launch(&mut self, tool: Tool) -> PathBuf {
        self.starts += 1;
        let at_work = self.dir.join(format!("at-work-{}", self.starts));
        let (from, to) = (self.source.addr().to_string(), self.target.addr().to_string());
        let quick = ["--lease", "2s", "--commit-interval", "500ms", "--report-interval", "1h"];
        let mut command = Command::new("sh");
        // What it says on its way is looked at when it has ended by itself.
        command.args(["-c", "exec \"$@\" 2>> \"$SAYS\"", "sh"]).arg(bin("corelane")).env("SAYS", self.says(tool));
        match tool {
            Tool::Mirror(_) => command.args(["mirror", "--from", &from, "--to", &to, "--topics", "t", "--group", "m"]),
            Tool::Exact(_) => {
                command.args(["mirror", "--from", &from, "--to", &to, "--topics", "e", "--group", "e", "--exact"])
            }
            Tool::Reader(_) => {
                command.env("CORELANE_BROKER", &from).args(["consume", "t", "--group", "readers", "--output"]);
                command.arg(&at_work).args(["--format", r"%p %i\n"])
            }
        };
        if !matches!(tool, Tool::Reader(_)) {
            command.args(quick).arg("--metrics-file").arg(&at_work);
        }
        self.tools.insert(tool, Process::start(&command));
        at_work
    }

    fn says(&self, tool: Tool) -> PathBuf {
        self.dir.join(format!("{tool:?}.err"))
    }

    /// Publishes to both topics while something goes wrong.
    fn turn(&mut self) {
        let lines = self.random.u64(200..1_500);
        let (from, codec) = (self.published, ["none", "lz4", "zstd"][self.random.usize(..3)]);
        self.published += lines;
        let mut input = String::new();
        for number in from..self.published {
            let rest = "x".repeat(self.random.usize(..150));
            writeln!(input, "k{}:{number} {rest}", number % 211).expect("a string takes what is written");
        }
        let publishers: Vec<_> = TOPICS.map(|(topic, _)| self.publisher(topic, codec, input.clone())).into();
        self.go_wrong();
        for publisher in publishers {
            let finished = publisher.join().expect("a publisher does not panic");
            let summary: serde_json::Value = serde_json::from_slice(&finished.success().stdout).unwrap();
            assert_eq!(summary["acknowledged"], lines, "{summary}");
        }
        for tool in TOOLS {
            assert!(self.tools.get_mut(&tool).unwrap().is_running(), "{tool:?} has ended: {}", self.last_words(tool));
        }
    }

    fn last_words(&self, tool: Tool) -> String {
        let said = fs::read_to_string(self.says(tool)).unwrap_or_default();
        said[said.len().saturating_sub(2_000)..].to_owned()
    }

    fn publisher(&self, topic: &str, codec: &str, input: String) -> std::thread::JoinHandle<Finished> {
        let mut command = self.source.cli();
        command.args(["--json", "produce", topic, "--key-separator", ":", "--delivery-timeout", "5m"]);
        command.args(["--compression", codec]);
        std::thread::spawn(move || {
            loop {
                let finished = run_with_input(&mut command, input.as_bytes(), PATIENCE);
                // At its start it needs a broker; without one nothing was published.
                if finished.status.success() || !finished.stderr.contains("no broker can be reached") {
                    return finished;
                }
            }
        })
    }

    fn go_wrong(&mut self) {
        let victims: Vec<Tool> = TOOLS.into_iter().filter(|tool| !tool.is_steady()).collect();
        let pause = Duration::from_millis(self.random.u64(..400));
        std::thread::sleep(pause);
        let what = match self.random.u32(..10) {
            0 => {
                self.source.kill9();
                std::thread::sleep(pause);
                self.source.restart();
                "source killed".to_owned()
            }
            1 => {
                self.target.kill9();
                std::thread::sleep(pause);
                self.target.restart();
                "target killed".to_owned()
            }
            2..5 => {
                let is_killed = self.random.bool();
                let mut export = Process::start(&self.export("t", "jsonl"));
                std::thread::sleep(pause);
                if is_killed {
                    export.kill9();
                } else {
                    wait_until("an export to end", PATIENCE, || !export.is_running());
                }
                format!("export {}", if is_killed { "killed" } else { "done" })
            }
            5 => {
                let tool = victims[self.random.usize(..victims.len())];
                let mut process = self.tools.remove(&tool).unwrap();
                process.terminate();
                wait_until("a tool to end in order", PATIENCE, || !process.is_running());
                self.start_tool(tool);
                format!("{tool:?} ended")
            }
            _ => {
                let tool = victims[self.random.usize(..victims.len())];
                self.tools.get_mut(&tool).unwrap().kill9();
                self.start_tool(tool);
                format!("{tool:?} killed")
            }
        };
        *self.counts.entry(what).or_default() += 1;
    }

    fn export(&self, topic: &str, format: &str) -> Command {
        let mut command = self.source.cli();
        command.args(["export", topic, "--format", format, "--file-bytes", "200KB", "--to"]);
        command.arg(self.dir.join(format!("{topic}-{format}")));
        command
    }

    /// Memory in MiB and descriptors of what runs.
    fn figures(&self) -> Vec<(String, u64, usize)> {
        let brokers = [("source", self.source.stats()), ("target", self.target.stats())];
        let mut figures: Vec<_> =
            brokers.map(|(name, of)| (name.to_owned(), of.rss_bytes >> 20, of.descriptors)).into();
        for (tool, process) in &self.tools {
            let of = process.stats();
            figures.push((format!("{tool:?}"), of.rss_bytes >> 20, of.descriptors));
        }
        figures
    }

    fn steady(&self) -> BTreeMap<Tool, (u64, usize)> {
        let steady = self.tools.iter().filter(|(tool, _)| tool.is_steady());
        steady.map(|(tool, process)| (*tool, (process.stats().rss_bytes, process.stats().descriptors))).collect()
    }

    /// Waits until the mirrors have copied everything, and nothing is out of order.
    fn settle(&self) {
        let (from, to) = (self.source.addr().to_string(), self.target.addr().to_string());
        for (topic, kind) in [("t", None), ("e", Some("--exact"))] {
            wait_until("everything to be copied", PATIENCE, || {
                let mut verify = self.source.cli();
                verify.args(["--json", "mirror", "verify", "--from", &from, "--to", &to, "--topics", topic]).args(kind);
                let finished = run(&mut verify, PATIENCE);
                let findings: serde_json::Value = serde_json::from_slice(&finished.stdout).unwrap_or_default();
                assert!(finished.status.success(), "{topic}: {findings} {}", finished.stderr);
                findings.as_array().is_some_and(|of| of.iter().all(|finding| finding["not_copied_yet"] == 0))
            });
        }
        wait_until("the readers to have read everything", PATIENCE, || {
            let group = ok(self.source.cli().args(["--json", "group", "describe", "readers"]));
            let group: serde_json::Value = serde_json::from_slice(&group.stdout).unwrap();
            let partitions =
                group["partitions"].as_array().map_or(0, |of| of.iter().filter(|at| at["lag_bytes"] == 0).count());
            partitions == TOPICS[0].1 as usize
        });
    }

    /// What a partition holds, into a file.
    fn consumed(&self, broker: &Broker, topic: &str, partition: u32, format: &str) -> PathBuf {
        let path = self.dir.join(format!("consumed-{topic}-{partition}"));
        let partition = partition.to_string();
        let args = ["consume", topic, "--exit-at-end", "--partition", &partition, "--format", format, "--output"];
        ok(broker.cli().args(args).arg(&path));
        path
    }

    fn check(&mut self) {
        self.settle();
        for (topic, format) in [("t", "jsonl"), ("e", "raw")] {
            ok(&mut self.export(topic, format));
        }
        let mut places = Vec::new();
        for partition in 0..TOPICS[0].1 {
            let exported = files(&self.dir.join("t-jsonl"), partition);
            assert!(digest(&exported) == digest(&[self.consumed(&self.source, "t", partition, "json")]), "{partition}");
            let of_source = self.consumed(&self.source, "t", partition, r"%p %i\n");
            places.extend(BufReader::new(File::open(of_source).unwrap()).lines().map(Result::unwrap));
        }
        assert!(places.len() as u64 >= self.published, "{} of {}", places.len(), self.published);
        let mut read: Vec<String> = self.read.iter().flat_map(|path| lines(path)).collect();
        let read_in_all = read.len();
        for lines in [&mut read, &mut places] {
            lines.sort_unstable();
            lines.dedup();
        }
        assert!(read == places, "the group got {} places of {}", read.len(), places.len());
        println!("{} published, {} in the source, {read_in_all} read by the group", self.published, places.len());
        self.import_back();
        println!("{:?}", self.counts);
    }

    /// Imports both exports into the target, which is killed meanwhile.
    fn import_back(&mut self) {
        for ((topic, partitions), format) in TOPICS.into_iter().zip(["jsonl", "raw"]) {
            let back = format!("back-{topic}");
            ok(self.target.cli().args(["topic", "create", &back, "--partitions", &partitions.to_string()]));
            let mut import = self.target.cli();
            import.args(["--json", "import", "--topic", &back]).arg(self.dir.join(format!("{topic}-{format}")));
            let importing = std::thread::spawn(move || run(&mut import, PATIENCE).success());
            std::thread::sleep(Duration::from_millis(self.random.u64(..400)));
            self.target.kill9();
            self.target.restart();
            let imported: serde_json::Value = serde_json::from_slice(&importing.join().unwrap().stdout).unwrap();
            assert_eq!(imported["messages"], imported["acknowledged"], "{imported}");
            for partition in 0..partitions {
                let there = once(&self.consumed(&self.target, &back, partition, r"%d %k %v\n"));
                let here = once(&self.consumed(&self.source, topic, partition, r"%d %k %v\n"));
                assert!(!here.is_empty() && there == here, "{topic}/{partition}: {} of {}", there.len(), here.len());
            }
        }
    }
}

#[track_caller]
fn ok(command: &mut Command) -> Finished {
    run(command, PATIENCE).success()
}

fn lines(path: &Path) -> Vec<String> {
    BufReader::new(File::open(path).unwrap()).lines().map(Result::unwrap).collect()
}

fn once(path: &Path) -> Vec<String> {
    let mut lines = lines(path);
    lines.sort_unstable();
    lines.dedup();
    lines
}

/// The exported files of a partition, in order.
fn files(directory: &Path, partition: u32) -> Vec<PathBuf> {
    let of_partition = format!("-{partition:05}-00000001-");
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = paths.filter(|path| path.to_string_lossy().contains(&of_partition)).collect();
    files.sort();
    files
}

/// Their bytes, one after the other, told apart from others.
fn digest(paths: &[PathBuf]) -> (u64, u64) {
    let (mut hasher, mut bytes, mut buffer) = (DefaultHasher::new(), 0, vec![0; 1 << 20]);
    for path in paths {
        let mut file = File::open(path).unwrap();
        loop {
            let read = file.read(&mut buffer).unwrap();
            if read == 0 {
                break;
            }
            hasher.write(&buffer[..read]);
            bytes += read as u64;
        }
    }
    (bytes, hasher.finish())
}

#[test]
fn mirrors_groups_and_exports_have_everything_though_brokers_and_tools_are_killed() {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let Some(minutes) = number("CORELANE_MINUTES").or_else(|| full().then_some(1)) else { return };
    let seed = number("CORELANE_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("seed {seed}");
    let length = Duration::from_mins(minutes);
    let mut world = World::start(seed);
    let (started, mut told, mut before) = (Instant::now(), Instant::now(), None);
    for turn in 1.. {
        world.turn();
        let past = started.elapsed();
        // Buffers have their size by then.
        if before.is_none() && turn >= TURNS_MIN / 2 && past >= length / 4 {
            before = Some(world.steady());
        }
        if told.elapsed() > Duration::from_mins(1) {
            told = Instant::now();
            println!("{past:?} {} published {:?}", world.published, world.figures());
        }
        if turn >= TURNS_MIN && past >= length {
            break;
        }
    }
    world.settle();
    for (tool, (bytes, descriptors)) in world.steady() {
        let (bytes_before, descriptors_before) = before.as_ref().expect("it was looked before")[&tool];
        println!("{tool:?}: {bytes_before} B then {bytes} B, {descriptors_before} descriptors then {descriptors}");
        assert!(bytes <= bytes_before + GROWTH_BYTES, "{tool:?} grows");
        assert!(descriptors <= descriptors_before + GROWTH_DESCRIPTORS, "{tool:?} keeps descriptors");
    }
    world.check();
}
