//! The Corelane load generator: publishes, consumes, measures, and checks that what came out is what went in.
//!
//! The report goes to standard output (or as JSON to a file), everything else to standard error.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tokio::task::LocalSet;

use crate::args::Args;
use crate::report::Report;

mod args;
mod consume;
mod latency;
mod ledger;
mod pace;
mod payload;
mod progress;
mod publish;
mod report;
mod run;
mod verify;

fn main() -> ExitCode {
    let args = Args::parse();
    match work(args) {
        Ok(report) if report.is_success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("corelane-loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(args: Args) -> Result<Report, Box<dyn std::error::Error>> {
    let json = args.json.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = LocalSet::new().block_on(&runtime, run::run(args))?;
    // What still waits for a broker that does not answer is not waited for.
    runtime.shutdown_background();
    print(&report, json.as_deref())?;
    Ok(report)
}

fn print(report: &Report, json: Option<&Path>) -> Result<(), Box<dyn std::error::Error>> {
    let text = match json {
        Some(path) if path == Path::new("-") => report.to_json(),
        Some(path) => {
            std::fs::write(path, report.to_json()).map_err(|error| format!("{}: {error}", path.display()))?;
            report.to_text()
        }
        None => report.to_text(),
    };
    // A reader that has left is no failure of the run.
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
