//! The Corelane command line: reads arguments, runs one command on one thread, turns its end into an exit status.
//!
//! Results go to standard output, everything else to standard error.

use std::env;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::error::CliError;

mod args;
mod begin;
mod broker;
mod cluster;
mod consume;
mod copied;
mod error;
mod export;
mod group;
mod log;
mod mirror;
mod output;
mod parse;
mod produce;
mod registry;
mod signals;
mod topic;
mod usage;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && usage::asks_for_json(env::args_os()) => {
            return fail(&CliError::Usage(usage::sentence(&error)), true);
        }
        // What is wrong, for people; or help and the version, which were asked for.
        Err(error) => error.exit(),
    };
    let json = cli.shared.json;
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| CliError::System { what: "the event loop cannot be started", cause })
        .and_then(|runtime| {
            let result = runtime.block_on(run(cli));
            // What still blocks (a read of a terminal, a write to a pipe that nobody empties) is not waited for.
            runtime.shutdown_background();
            result
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, json),
    }
}

/// Says why the command has failed, on the last line of standard error.
fn fail(error: &CliError, json: bool) -> ExitCode {
    if json {
        eprintln!("{}", error.to_json());
    } else {
        eprintln!("corelane: {error}");
    }
    ExitCode::from(error.exit_status())
}

async fn run(cli: Cli) -> Result<(), CliError> {
    let shared = &cli.shared;
    match cli.command {
        Command::Topic(command) => topic::run(shared, command).await,
        Command::Produce(args) => produce::run(shared, *args).await.map_err(CliError::for_use),
        Command::Consume(args) => consume::run(shared, *args).await.map_err(CliError::for_use),
        Command::Export(args) => export::export(shared, *args).await,
        Command::Import(args) => export::import(shared, args).await.map_err(CliError::for_use),
        Command::Mirror(args) => mirror::run(shared, *args).await,
        Command::Group(command) => group::run(shared, command).await,
        Command::Cluster(command) => cluster::run(shared, &command).await,
        Command::Broker(command) => broker::run(shared, &command).await,
        Command::Registry(command) => registry::run(&command, shared.json),
        Command::Log(command) => log::run(shared, command),
        Command::Completions { shell } => output::print(&args::completions(shell)),
    }
}
