//! What a run is to do, as the command line asks for it: checked, with the defaults filled in.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use corelane_client::{Acks, Compression};

use crate::args::{AcksArg, AudienceArgs, Command, CompressionArg, From, LoadArgs, RunArgs, name_of};
use crate::keys::{KEY_BYTES, KeySpec};
use crate::pace::{Arrivals, Rate};
use crate::parse::Ramp;
use crate::results::Settings;
use crate::sizes::SizeSpec;

/// What a message has in the log beside its key and its value.
const FRAME_BYTES: f64 = 24.0;

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    mode: &'static str,
    pub(crate) run: RunArgs,
    pub(crate) load: Option<Rc<Load>>,
    pub(crate) audience: Option<Audience>,
}

/// What is published.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) size: SizeSpec,
    pub(crate) set: u32,
    pub(crate) keys: KeySpec,
    pub(crate) arrivals: Arrivals,
    pub(crate) outstanding: Option<u32>,
    pub(crate) producers: u32,
    pub(crate) timeout: Duration,
    pub(crate) seed: u64,
    pub(crate) rate: Option<Rate>,
    acks: AcksArg,
    compression: CompressionArg,
    in_flight: Option<u32>,
}

/// Who consumes.
#[derive(Debug, Clone)]
pub(crate) struct Audience {
    pub(crate) consumers: u32,
    pub(crate) group: Option<String>,
    pub(crate) fan_out: u32,
    pub(crate) is_from_end: bool,
    pub(crate) exit_at_end: bool,
}

impl Plan {
    /// None for a command that is no run.
    pub(crate) fn new(command: Command) -> Result<Option<Self>, String> {
        let Some(plan) = Self::of(command)? else { return Ok(None) };
        if plan.run.html.as_deref() == Some(Path::new("-")) {
            return Err(
                "--html takes a file: standard output has the table; `report --html -` prints a page".to_owned()
            );
        }
        Ok(Some(plan))
    }

    fn of(command: Command) -> Result<Option<Self>, String> {
        let plan = match command {
            Command::Produce { run, load } => {
                let load = Load::new(&run, load)?;
                Self { mode: "produce", load: Some(Rc::new(load)), audience: None, run }
            }
            Command::Consume { run, audience, from, exit_at_end } => {
                let audience = Audience::new(&run, audience, from == From::Latest, exit_at_end);
                Self { mode: "consume", load: None, audience: Some(audience), run }
            }
            Command::Both { run, load, audience } => {
                let load = Load::new(&run, load)?;
                // Consumers stand at the ends before anything is published.
                let audience = Audience::new(&run, audience, true, false);
                Self { mode: "both", load: Some(Rc::new(load)), audience: Some(audience), run }
            }
            Command::Report { .. } | Command::Compare { .. } | Command::Completions { .. } => return Ok(None),
        };
        Ok(Some(plan))
    }

    /// The names of the topics.
    pub(crate) fn topics(&self) -> Vec<String> {
        match self.run.topics {
            None => self.run.topic.clone(),
            Some(topics) => {
                let numbered = |name: &String| (0..topics).map(|number| format!("{name}-{number}")).collect::<Vec<_>>();
                self.run.topic.iter().flat_map(numbered).collect()
            }
        }
    }

    /// How long is measured; none: until the count or the end is reached.
    pub(crate) fn run_time(&self) -> Option<Duration> {
        let ramp = self.load.as_ref().and_then(|load| match load.rate {
            Some(Rate::Ramp { ramp, .. }) => Some(ramp.over),
            _ => None,
        });
        let otherwise_bounded =
            self.run.count.is_some() || self.audience.as_ref().is_some_and(|audience| audience.exit_at_end);
        let default = || (!otherwise_bounded).then_some(ramp.unwrap_or(Duration::from_secs(10)));
        self.run.duration.or_else(default)
    }

    /// For the results.
    pub(crate) fn settings(&self, partitions: u32, size_mean_bytes: f64) -> Settings {
        let load = self.load.as_deref();
        let audience = self.audience.as_ref();
        let (rate, ramp) = match load.and_then(|load| load.rate) {
            Some(Rate::Steady(rate)) => (Some(rate), None),
            Some(Rate::Ramp { ramp: Ramp { from, to, over }, .. }) => {
                (None, Some(format!("{from}..{to}/{}s", over.as_secs_f64())))
            }
            None => (None, None),
        };
        Settings {
            mode: self.mode.to_owned(),
            topics: self.topics().len() as u64,
            partitions: partitions.into(),
            producers: load.map_or(0, |load| load.producers.into()),
            consumers: audience.map_or(0, |audience| audience.consumers.into()),
            group: audience.and_then(|audience| audience.group.clone()),
            fan_out: audience.map_or(0, |audience| audience.fan_out.into()),
            set: load.map(|load| load.set.into()),
            size: load.map(|load| load.size.to_string()),
            size_mean_bytes: load.map(|_| size_mean_bytes),
            keys: load.map(|load| load.keys.to_string()),
            rate,
            ramp,
            arrivals: load.filter(|load| load.rate.is_some()).map(|load| name_of(&load.arrivals)),
            outstanding: load.and_then(|load| load.outstanding).map(u64::from),
            in_flight: load.map(|load| load.sets_in_flight(size_mean_bytes) as u64),
            acks: load.map(|load| name_of(&load.acks)),
            compression: load.map(|load| name_of(&load.compression)),
            seed: load.map(|load| load.seed),
            count: self.run.count,
            duration_s: self.run_time().map(|time| time.as_secs_f64()),
            warmup_s: self.run.warmup.unwrap_or_default().as_secs_f64(),
        }
    }
}

impl Load {
    fn new(run: &RunArgs, load: LoadArgs) -> Result<Self, String> {
        let after_s = run.warmup.unwrap_or_default().as_secs_f64();
        let rate = load.rate.map(Rate::Steady).or(load.ramp.map(|ramp| Rate::Ramp { ramp, after_s }));
        if load.arrivals.is_some() && rate.is_none() {
            return Err("--arrivals says how the sets of a --rate or a --ramp follow each other; give one".to_owned());
        }
        Ok(Self {
            size: load.size,
            set: load.set,
            keys: load.keys,
            arrivals: load.arrivals.unwrap_or(Arrivals::Even),
            outstanding: load.outstanding,
            producers: load.producers.unwrap_or(run.connections),
            timeout: run.timeout,
            seed: load.seed,
            rate,
            acks: load.acks,
            compression: load.compression,
            in_flight: load.in_flight,
        })
    }

    pub(crate) fn acks(&self) -> Acks {
        match self.acks {
            AcksArg::None => Acks::None,
            AcksArg::Received => Acks::Received,
            AcksArg::Durable => Acks::Durable,
        }
    }

    pub(crate) fn compression(&self) -> Compression {
        match self.compression {
            CompressionArg::None => Compression::None,
            CompressionArg::Lz4 => Compression::Lz4,
            CompressionArg::Zstd => Compression::Zstd,
            CompressionArg::Snappy => Compression::Snappy,
            CompressionArg::Gzip => Compression::Gzip,
        }
    }

    /// Bytes in the log of a message whose value has so many.
    pub(crate) fn log_bytes(&self, value_bytes: f64) -> f64 {
        let key_bytes = if self.keys == KeySpec::None { 0.0 } else { KEY_BYTES as f64 };
        value_bytes + key_bytes + FRAME_BYTES
    }

    /// Sets under way to each partition.
    pub(crate) fn sets_in_flight(&self, size_mean_bytes: f64) -> usize {
        if let Some(sets) = self.in_flight.or(self.outstanding) {
            return sets as usize;
        }
        let set_bytes = f64::from(self.set) * self.log_bytes(size_mean_bytes);
        ((f64::from(4 << 20) / set_bytes) as usize).clamp(32, 2048)
    }
}

impl Audience {
    fn new(run: &RunArgs, audience: AudienceArgs, is_from_end: bool, exit_at_end: bool) -> Self {
        Self {
            consumers: audience.consumers.unwrap_or(run.connections),
            group: audience.group,
            fan_out: audience.fan_out,
            is_from_end,
            exit_at_end,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    fn plan(line: &str) -> Plan {
        let cli = Cli::try_parse_from(std::iter::once("loadgen").chain(line.split(' '))).unwrap();
        Plan::new(cli.command).unwrap().unwrap()
    }

    #[test]
    fn a_run_without_a_bound_lasts_ten_seconds_or_as_long_as_its_ramp() {
        assert_eq!(plan("both --topic t").run_time(), Some(Duration::from_secs(10)));
        assert_eq!(plan("both --topic t --ramp 1..2/3s").run_time(), Some(Duration::from_secs(3)));
        assert_eq!(plan("both --topic t --count 5").run_time(), None);
        assert_eq!(plan("both --topic t --count 5 --duration 1s").run_time(), Some(Duration::from_secs(1)));
        assert_eq!(plan("consume --topic t --exit-at-end").run_time(), None);
    }

    #[test]
    fn small_sets_get_a_longer_window() {
        let sets = |line: &str| plan(line).load.unwrap().sets_in_flight(200.0);
        assert_eq!(sets("both --topic t --set 1"), 2048);
        assert_eq!(sets("both --topic t --set 50"), 374);
        assert_eq!(sets("both --topic t --set 10000"), 32);
        assert_eq!(sets("both --topic t --in-flight 5"), 5);
        assert_eq!(sets("both --topic t --outstanding 1"), 1);
    }

    #[test]
    fn topics_are_numbered_when_there_are_to_be_many() {
        assert_eq!(plan("both --topic a,b").topics(), ["a", "b"]);
        assert_eq!(plan("both --topic a --topics 2").topics(), ["a-0", "a-1"]);
    }

    #[test]
    fn random_arrivals_need_a_rate_and_a_page_a_file() {
        let cli = Cli::try_parse_from("loadgen both --topic t --arrivals poisson".split(' ')).unwrap();
        assert!(Plan::new(cli.command).unwrap_err().contains("--rate"));
        let cli = Cli::try_parse_from("loadgen both --topic t --html -".split(' ')).unwrap();
        assert!(Plan::new(cli.command).unwrap_err().contains("--html"));
    }

    #[test]
    fn a_ramp_begins_when_the_warm_up_is_over() {
        let load = plan("produce --topic t --ramp 10..20/1s --warmup 5s").load.unwrap();
        assert!((load.rate.unwrap().due(5.0) - 50.0).abs() < 1e-9);
    }
}
