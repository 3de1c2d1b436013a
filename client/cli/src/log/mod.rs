//! `corelane log`: the files of a data directory, without a broker. `verify` and `dump` only read, also beside a broker
//! that runs; `repair` wants the directory for itself. What is good and what recovery does is decided by the log's own
//! code; here is what is looked at and how it is told.

mod directory;
mod dry;
mod dump;
mod look;
mod repair;
mod report;
mod salvage;
mod verify;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::args::Shared;
use crate::error::CliError;

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Read everything and say what is damaged
    #[command(after_help = "\
Examples:
  corelane log verify /var/lib/corelane
  corelane log verify /var/lib/corelane/orders~1a2b3c4d/0
  corelane --json log verify /var/lib/corelane | jq '.findings'

Checked are every checksum, every set, that segments follow one another without a gap, identities, checkpoints and \
summaries. Nothing is written and nothing locked. Beside a broker that runs, the newest segment of a partition is read up \
to what the last checkpoint calls durable, and no farther. A torn tail that a crash left is no damage: the next start cuts \
it off and keeps a copy.

Exit status: 0 clean; 1 damage was found; 2 it could not be looked at, or not all of it.")]
    Verify(VerifyArgs),
    /// Print what each message is: id, size, time, key, codec, checksum
    #[command(after_help = "\
Examples:
  corelane log dump /var/lib/corelane/orders~1a2b3c4d/0 --from 4096 --max 20
  corelane log dump /var/lib/corelane/orders~1a2b3c4d/0/00000000000000000000-00000001.log
  corelane --json log dump /var/lib/corelane | jq 'select(.crc != \"good\")'

With --json each message is one object on one line. Nothing is written and nothing locked; beside a broker that runs, the \
newest segment is read up to what the last checkpoint calls durable.")]
    Dump(DumpArgs),
    /// Do now what recovery would do at the next start, or say what that is
    #[command(after_help = "\
Examples:
  corelane log repair /var/lib/corelane --dry-run
  corelane log repair /var/lib/corelane
  corelane log repair /var/lib/corelane --dry-run --salvage /tmp/salvaged

Stop the broker first. As at a start, what lies behind the last checkpoint is read; `corelane log verify` reads it all. A \
torn tail is copied to a file beside its segment and then cut off. What was durable and is damaged \
stays where it is, since readers are led around it, and no boundary is guessed in place. --salvage looks into the damaged \
bytes for what could have been messages and writes them into another directory: candidates, to be judged by you, for a value \
may contain whole messages.")]
    Repair(RepairArgs),
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// A data directory, or a topic's or a partition's directory in one
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    /// A data directory, a topic's or a partition's directory in one, or a segment's file
    #[arg(value_name = "DIR|FILE")]
    path: PathBuf,
    /// Begin with the message that contains this position
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    from: u64,
    /// Stop after so many messages
    #[arg(long, value_name = "N")]
    max: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// A data directory, or a topic's or a partition's directory in one
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Change nothing; say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Look for messages in what is damaged, and write the candidates into this directory, which must not exist yet
    #[arg(long, value_name = "NEW_DIR")]
    salvage: Option<PathBuf>,
}

pub(crate) fn run(shared: &Shared, command: LogCommand) -> Result<(), CliError> {
    match command {
        LogCommand::Verify(args) => verify::run(&args.dir, shared.json),
        LogCommand::Dump(args) => dump::run(&args, shared.json),
        LogCommand::Repair(args) => repair::run(&args, shared.json),
    }
}
