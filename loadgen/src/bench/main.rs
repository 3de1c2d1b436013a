//! The bench: how near the broker comes to what the disk and the socket of this machine give. Every reference is measured
//! in the same run, between the rows that are compared with it; medians of several rounds are judged.
//!
//! The table goes to standard output, everything as JSON to a file; the exit status is 1 if a row was missed.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

mod book;
mod broker;
mod consume;
mod cores;
mod fio;
mod first;
mod instructions;
mod load;
#[path = "../machine.rs"]
mod machine;
mod publish;
mod raw;
mod rounds;
mod rows;
mod targets;

/// Measure a broker on this machine against the machine's own limits.
#[derive(Debug, Clone, Parser)]
#[command(name = "corelane-bench", version)]
struct Args {
    /// Where logs and scratch files go: on the disk that is to be measured. Emptied at the end
    #[arg(long, value_name = "DIRECTORY", default_value = "target/tmp/bench")]
    directory: PathBuf,

    /// Everything that was measured, as JSON
    #[arg(long, value_name = "FILE", default_value = "bench.json")]
    json: PathBuf,

    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// How long each row runs
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,

    /// MiB of the log that consumers read and that a killed broker starts with
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..))]
    history_mib: u64,

    /// Rows to run, by the beginning of their names [default: all]
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    only: Vec<String>,

    /// The program whose instructions are counted under valgrind
    #[arg(long, value_name = "FILE")]
    instructions: Option<PathBuf>,

    /// What the counts were when they were last agreed on
    #[arg(long, value_name = "FILE", default_value = "loadgen/instructions.json")]
    instructions_baseline: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match rounds::run(&args) {
        Ok(book) if book.is_held() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("corelane-bench: {error}");
            ExitCode::from(2)
        }
    }
}
