//! `corelane export` and `corelane import`: a topic as files for a warehouse, and back. This file goes through the
//! partitions and tells how it went; a partition's files are made in load.rs.

mod args;
mod begin;
mod columns;
mod failures;
mod file;
mod group;
mod import;
mod load;
mod names;
mod origin;
mod past;
mod reading;
mod record;
mod same;
mod sources;
mod whole;

use std::fmt::Write;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::args::Shared;
use crate::error::CliError;
use crate::output::print_json;
use crate::parse::place::Place;
use crate::parse::size::format_size;
use crate::signals::Signals;

pub(crate) use args::{ExportArgs, ImportArgs};
use failures::Failures;
use group::Group;
use load::Load;
use past::Past;

/// What a run has done.
#[derive(Debug, Default, Serialize)]
struct Summary {
    topic: String,
    files: u64,
    messages: u64,
    /// Bytes of these messages in the log.
    bytes: u64,
    /// Bytes that retention had taken before they were exported.
    missed_bytes: u64,
    /// Damaged messages that were left out.
    damaged: u64,
    seconds: f64,
}

impl Summary {
    fn sentence(&self) -> String {
        let Self { topic, files, messages, bytes, missed_bytes, damaged, seconds } = self;
        let mut sentence =
            format!("{topic}: {messages} messages ({}) in {files} files, {seconds:.1} s", format_size(*bytes));
        if *missed_bytes > 0 {
            let missed = format_size(*missed_bytes);
            write!(sentence, ", {missed} had been taken by retention before").expect("a string takes what is written");
        }
        if *damaged > 0 {
            write!(sentence, ", {damaged} damaged messages left out").expect("a string takes what is written");
        }
        sentence
    }
}

pub(crate) async fn export(shared: &Shared, args: ExportArgs) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(|cause| CliError::System { what: "signals", cause })?;
    let mut summary = Summary { topic: args.topic.clone(), ..Summary::default() };
    let started = Instant::now();
    let result = tokio::select! {
        result = all(shared, &args, &mut summary) => result,
        // A file that is not whole does not count, so nothing need be waited for.
        interruption = signals.next() => Err(CliError::Interrupted(interruption)),
    };
    summary.seconds = started.elapsed().as_secs_f64();
    if shared.json {
        print_json(&summary)?;
    } else {
        eprintln!("{}", summary.sentence());
    }
    result?;
    match summary.damaged {
        0 => Ok(()),
        damaged => {
            Err(CliError::Consume(format!("the files are not complete: {damaged} damaged messages were left out")))
        }
    }
}

/// Exports partition by partition.
async fn all(shared: &Shared, args: &ExportArgs, summary: &mut Summary) -> Result<(), CliError> {
    let failed = |cause| CliError::File { path: args.to.clone(), cause };
    if matches!(args.begin.from, Place::Latest) && args.group.is_none() {
        let reason =
            "--from latest needs --group, which keeps where it began: without one each run would begin at the end";
        return Err(CliError::Argument(reason.to_owned()));
    }
    let client = shared.connect().await?;
    // Nothing is made for a topic that does not exist.
    client.admin().describe_topic(&args.topic).await?;
    whole::make_directory(&args.to).map_err(failed)?;
    let _lock = whole::lock(&args.to, &args.topic).await.map_err(failed)?;
    let topic = client.admin().describe_topic(&args.topic).await?;
    whole::clean(&args.to).map_err(failed)?;
    let group = match &args.group {
        Some(name) => Some(Group::look_up(&client, name, &topic.topic).await?),
        None => None,
    };
    let (id, partitions) = (topic.topic.topic_id.short(), topic.topic.partitions.len() as u32);
    let past = Past::look(args, &id, group.as_ref()).map_err(failed)?;
    let bar = bar();
    let mut loads = Vec::new();
    let mut failures = Failures::default();
    for partition in &topic.topic.partitions {
        if failures.is_away(partition) {
            continue;
        }
        match Load::new(&client, args, topic.topic.topic_id, partition, group.as_ref(), &past).await {
            Ok(load) => {
                bar.inc_length(load.bytes());
                loads.push(load);
            }
            Err(error) => failures.note(partition, error)?,
        }
    }
    past.keep(args, partitions, &loads)?;
    for load in &loads {
        load.commit_begin().await?;
    }
    for load in loads {
        let partition = load.partition;
        if let Err(error) = load.run(summary, &bar).await {
            let partition = topic.topic.partitions.iter().find(|known| known.partition == partition);
            failures.note(partition.expect("loads are made of these"), error)?;
        }
    }
    bar.finish_and_clear();
    failures.result(&args.topic, topic.topic.partitions.len())
}

fn bar() -> ProgressBar {
    let template = "{bar:30} {binary_bytes} of {binary_total_bytes} ({binary_bytes_per_sec}), {eta} to go";
    let style = ProgressStyle::with_template(template).expect("a constant template is valid");
    ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr()).with_style(style)
}

pub(crate) async fn import(shared: &Shared, args: ImportArgs) -> Result<(), CliError> {
    import::run(shared, &args).await
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
