//! `corelane mirror`: copies topics from one cluster to another for as long as it runs. This file connects both sides,
//! refuses what cannot end well, and decides how the command ends; the copying is job.rs.

mod absent;
mod args;
mod claims;
mod compare;
mod exact;
mod job;
mod lineage;
mod losses;
mod origin;
mod pending;
mod progress;
mod publish;
mod rate;
mod rename;
mod targets;
mod verify;

use corelane_client::Client;

use crate::args::Shared;
use crate::error::CliError;
use crate::signals::Signals;

pub(crate) use args::MirrorArgs;
use args::{Between, MirrorCommand};
use job::Job;

/// The two sides.
struct Sides {
    source: Client,
    source_id: String,
    target: Client,
    target_id: String,
}

impl Sides {
    /// Connects to both. They must be two clusters: a mirror of a cluster onto itself would copy its own copies for ever.
    async fn connect(shared: &Shared, between: &Between) -> Result<Self, CliError> {
        let source = shared.connect_to(between.from()).await?;
        let target = shared.connect_to(between.to()).await?;
        let source_id = source.admin().describe_cluster().await?.cluster_id;
        let target_id = target.admin().describe_cluster().await?.cluster_id;
        if source_id == target_id {
            return Err(CliError::Argument(format!(
                "--from and --to are the same cluster, {source_id}; a mirror of a cluster onto itself would copy for ever"
            )));
        }
        Ok(Self { source, source_id, target, target_id })
    }
}

pub(crate) async fn run(shared: &Shared, args: MirrorArgs) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(|cause| CliError::System { what: "signals", cause })?;
    if let Some(MirrorCommand::Verify(args)) = &args.command {
        return tokio::select! {
            result = verify::run(shared, args) => result,
            interruption = signals.next() => Err(CliError::Interrupted(interruption)),
        };
    }
    let args = &args.run;
    let sides = tokio::select! {
        sides = Sides::connect(shared, &args.between) => sides?,
        // A mirror runs until it is told to stop: a signal is its ordinary end.
        _ = signals.next() => return Ok(()),
    };
    tokio::select! {
        told = tell_if_nothing_matches(&sides, &args.between) => told?,
        _ = signals.next() => return Ok(()),
    }
    let mut job = Job::new(&sides, args, shared)?;
    let end = tokio::select! {
        error = job.work() => Err(error),
        _ = signals.next() => Ok(()),
    };
    job.finish(end, &mut signals).await
}

/// Topics that are created later are copied too, so it is no failure; but it may be a typing error.
async fn tell_if_nothing_matches(sides: &Sides, between: &Between) -> Result<(), CliError> {
    let topics = sides.source.admin().list_topics().await?;
    if !topics.iter().any(|topic| between.is_meant(&topic.name)) {
        eprintln!("corelane: no topic of the source matches {:?} yet; waiting for one", between.topics());
    }
    Ok(())
}
