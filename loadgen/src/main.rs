//! The Corelane load generator: publishes, consumes, measures, and checks that what came out is what went in.
//!
//! The report goes to standard output (or as JSON to a file), everything else to standard error.

use std::error::Error;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tokio::task::LocalSet;

use crate::args::{Cli, Command};
use crate::compare::Comparison;
use crate::plan::Plan;
use crate::results::Results;

mod args;
mod compare;
mod consume;
mod html;
mod keys;
mod latency;
mod ledger;
mod machine;
mod pace;
mod parse;
mod payload;
mod plan;
mod progress;
mod publish;
mod results;
mod run;
mod sizes;
mod topics;
mod verify;
mod watch;

/// Wrong arguments, or documents that cannot be read.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let command = Cli::parse().command;
    match Plan::new(command.clone()) {
        Ok(Some(plan)) => finish(measure(&plan), ExitCode::FAILURE),
        Ok(None) => finish(other(command), ExitCode::from(USAGE)),
        Err(error) => finish(Err(error.into()), ExitCode::from(USAGE)),
    }
}

fn finish(outcome: Result<bool, Box<dyn Error>>, failed: ExitCode) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("corelane-loadgen: {error}");
            failed
        }
    }
}

/// Runs; true: everything is as it should be.
fn measure(plan: &Plan) -> Result<bool, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let results = LocalSet::new().block_on(&runtime, run::run(plan))?;
    // What still waits for a broker that does not answer is not waited for.
    runtime.shutdown_background();
    let is_to_stdout = |path: &Path| path == Path::new("-");
    let json = plan.run.json.as_deref();
    // The figures are shown before anything can go wrong with files.
    print(&if json.is_some_and(is_to_stdout) { results.to_json() } else { results.to_text() })?;
    if let Some(path) = json.filter(|path| !is_to_stdout(path)) {
        write(path, &results.to_json())?;
    }
    if let Some(path) = plan.run.html.as_deref() {
        write(path, &html::page(std::slice::from_ref(&results)))?;
    }
    Ok(results.is_success())
}

/// What is no run.
fn other(command: Command) -> Result<bool, Box<dyn Error>> {
    match command {
        Command::Report { results, html } => {
            let results = results.iter().map(|path| Results::read(path)).collect::<Result<Vec<_>, _>>()?;
            let page = html::page(&results);
            if html == Path::new("-") {
                print(&page)?;
            } else {
                write(&html, &page)?;
            }
            Ok(true)
        }
        Command::Compare { before, after, fail_above, figures, json } => {
            let (before, after) = (Results::read(&before)?, Results::read(&after)?);
            let comparison = Comparison::new(&before, &after, fail_above, &figures);
            print(&if json { comparison.to_json() } else { comparison.to_text() })?;
            Ok(comparison.is_passed())
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "corelane-loadgen", &mut script);
            print(&String::from_utf8(script)?)?;
            Ok(true)
        }
        Command::Produce { .. } | Command::Consume { .. } | Command::Both { .. } => unreachable!("these are runs"),
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// A reader that has left is no failure.
fn print(text: &str) -> std::io::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
