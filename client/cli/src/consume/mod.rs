//! `corelane consume`: a topic's messages, written as they come. This file decides how the command ends; the reading and
//! writing is job.rs.

mod args;
mod format;
mod group;
mod job;
mod sink;
mod until;
mod waiting;

use std::pin::pin;
use std::time::Duration;

use crate::args::Shared;
use crate::error::CliError;
use crate::signals::{Interruption, Signals};

pub(crate) use args::ConsumeArgs;
pub(crate) use format::{Format, Shown};
pub(crate) use job::poll_once;
use job::{End, Job};
use sink::Sink;

/// How long a reader that does not read may hold up the end of an interrupted command.
const LAST_WRITE_MAX: Duration = Duration::from_millis(500);

pub(crate) async fn run(shared: &Shared, args: ConsumeArgs) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(|cause| CliError::System { what: "signals", cause })?;
    if let Some(group) = &args.group {
        return member(shared, group, &args, &mut signals).await;
    }
    let prepare = async {
        let client = shared.connect().await?;
        Job::prepare(&client, &args, shared.json).await
    };
    let mut job = tokio::select! {
        job = prepare => job?,
        interruption = signals.next() => return ended_by(&args, interruption),
    };
    let end = job.work(&mut signals).await;
    let lacks = job.lacks();
    match end {
        Ok(End::Complete) => {
            finish(job.into_sink(), &mut signals).await?;
            lacks.map_or(Ok(()), Err)
        }
        // The reader has what it wanted: neither the rest nor an end that was not reached is a failure.
        Ok(End::Closed) => finish(job.into_sink(), &mut signals).await,
        Ok(End::Interrupted(interruption)) => {
            let written = tokio::time::timeout(LAST_WRITE_MAX, finish(job.into_sink(), &mut signals)).await;
            written.unwrap_or(Ok(()))?;
            ended_by(&args, interruption)
        }
        Err(error) => {
            // What came before the failure is written all the same, but the failure is what is told.
            let _ = finish(job.into_sink(), &mut signals).await;
            Err(error)
        }
    }
}

/// Reads as a member of a group. What was printed is committed before the command ends, however it ends.
async fn member(shared: &Shared, group: &str, args: &ConsumeArgs, signals: &mut Signals) -> Result<(), CliError> {
    let client = tokio::select! {
        client = shared.connect() => client?,
        interruption = signals.next() => return ended_by(args, interruption),
    };
    match group::run(&client, group, args, shared.json, signals).await? {
        End::Complete | End::Closed => Ok(()),
        End::Interrupted(interruption) => ended_by(args, interruption),
    }
}

/// Opens the output that the arguments name.
fn open_sink(args: &ConsumeArgs) -> Result<Sink, CliError> {
    match &args.output {
        Some(path) => Sink::file(path).map_err(|cause| CliError::File { path: path.clone(), cause }),
        None => Sink::stdout().map_err(CliError::Output),
    }
}

/// A signal is the ordinary end of a command that follows, and a failure of one that had something to finish.
fn ended_by(args: &ConsumeArgs, interruption: Interruption) -> Result<(), CliError> {
    if args.ends_by_itself() { Err(CliError::Interrupted(interruption)) } else { Ok(()) }
}

/// Writes the rest; after a signal a reader that does not read is not waited for.
async fn finish(sink: Sink, signals: &mut Signals) -> Result<(), CliError> {
    let mut finished = pin!(sink.finish());
    tokio::select! {
        result = &mut finished => result.map_err(CliError::Output),
        interruption = signals.next() => Err(CliError::Interrupted(interruption)),
    }
}
